
"use strict";
// Draws the Gantt charts from #gantt-data: lanes in view only, pieces narrower than a pixel as shares of its column.
// Names reach the page as text only (textContent, fillText), never as markup.
(() => {
  const LANE_PX = 18, BAR_PX = 14, AXIS_PX = 22, MIN_SPAN_NS = 100, STEP = 0.15;
  const { doings, runs, words } = JSON.parse(document.getElementById("gantt-data").textContent);
  // How high each doing is drawn: what runs is full, what waits lower, what sleeps a line.
  const HEIGHT = { "cpu-wait": 0.75, "disk-wait": 0.75, "lock-wait": 0.75, asleep: 0.2, stopped: 0.35, queued: 0.5, vmm: 0.75, halted: 0.08, idle: 0.08, unknown: 0.5 };
  const heights = doings.map(([, style]) => HEIGHT[style] ?? 1);
  const MANY_TASKS = 200;
  const { MIXED, GAP, unpack, shared, pieceAt, beginOf } = ganttLanes(doings.length);
  const number = (name) => doings.findIndex(([, style]) => style === name);
  const RUNS = ["user", "kernel", "interrupt"].map(number), WAITS = ["cpu-wait", "disk-wait", "lock-wait"].map(number);
  const longest = Math.max(1, ...runs.map((run) => run.length));
  const charts = [];
  // The chart in which something was chosen last.
  let latest = null;
  let view = { from: 0, to: longest }, colours = {};

  const time = (ns, span = ns) => {
    const [unit, name] = span < 1e3 ? [1, "ns"] : span < 1e6 ? [1e3, "us"] : span < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    return `${(ns / unit).toFixed(unit === 1 ? 0 : 3)} ${name}`;
  };
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const sum = (lane, which) => which.reduce((all, n) => all + lane.totals[n], 0);

  function readColours() {
    const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = { doings: doings.map(([, name]) => get(name)), ink: get("ink"), faint: get("faint"), line: get("line"),
      page: get("page"), hover: get("hover"), mark: get("mark"), onDark: get("on-dark"), onLight: get("on-light") };
    // Letters on a bar: whichever of the two stands out.
    colours.letters = colours.doings.map((colour) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      return 0.299 * r + 0.587 * g + 0.114 * b < 140 ? colours.onDark : colours.onLight;
    });
  }

  class Chart {
    constructor(run, box) {
      this.run = run;
      this.lanes = run.machines.flatMap((machine) => {
        const head = { kind: "machine", name: machine.name, about: "", depth: 0, from: machine.begin, pieces: [] };
        return [head, ...machine.lanes].map((lane) => ({ ...lane, ...unpack(lane), machine }));
      });
      this.scroller = element("div", "gantt-scroll");
      this.scroller.tabIndex = 0;
      this.scroller.setAttribute("role", "application");
      this.scroller.setAttribute("aria-label", `Gantt chart of ${run.label}. Arrow keys: left and right move in time, ` +
        "up and down choose a lane; plus and minus zoom; comma and full stop go from piece to piece; b goes to who woke the task; 0 shows everything");
      this.spacer = element("div");
      this.canvas = element("canvas", "gantt-canvas");
      this.canvas.setAttribute("aria-hidden", "true");
      this.overview = element("canvas", "gantt-overview");
      this.overview.setAttribute("role", "img");
      this.overview.setAttribute("aria-label", `Use of all CPUs of ${run.label} over time, with the part in view marked`);
      this.spacer.append(this.canvas);
      this.scroller.append(this.spacer);
      this.tip = element("div", "gantt-tip");
      this.tip.hidden = true;
      this.empty = element("p", "gantt-empty", "No lane matches.");
      this.chosen = null;
      this.piece = -1;
      box.append(this.overview, this.scroller, this.empty, this.tip);
      this.select("", order.value);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.scroller);
    }

    // Chooses the lanes to show and their order.
    select(query, order) {
      const wanted = query.trim().toLowerCase();
      const key = { cpu: (lane) => -sum(lane, RUNS), waits: (lane) => -sum(lane, WAITS), begin: (lane) => lane.from }[order];
      const isAsked = (lane) => lane.kind !== "task" || lane.asked || !asked.checked;
      const matches = (lane) => !wanted || lane.kind === "machine" || `${lane.name} ${lane.about}`.toLowerCase().includes(wanted);
      this.flat = order !== "family";
      this.shown = [];
      let matched = 0;
      for (const machine of this.run.machines) {
        const lanes = this.lanes.filter((lane) => lane.machine === machine && isAsked(lane) && matches(lane));
        const tasks = lanes.filter((lane) => lane.kind === "task"), others = lanes.filter((lane) => lane.kind !== "task");
        if (key) tasks.sort((one, other) => key(one) - key(other));
        if (others.length + tasks.length > 1) this.shown.push(...others, ...(order === "shared" ? shared(tasks) : tasks));
        matched += others.length + tasks.length - others.filter((lane) => lane.kind === "machine").length;
      }
      this.selected = this.shown;
      this.matched = matched;
      this.depth = Math.min(...this.shown.filter((lane) => lane.kind === "task").map((lane) => lane.depth), Infinity);
      this.chosen = null;
      this.piece = -1;
      this.scroller.scrollTop = 0;
      this.layOut();
    }

    // Leaves out lanes of tasks that are not there in the time in view, unless that is not wanted. The lane at the top stays there.
    layOut() {
      const top = this.shown[Math.floor(this.scroller.scrollTop / LANE_PX)];
      const there = (lane) => lane.kind !== "task" || (lane.from < view.to && view.from < lane.ends[lane.ends.length - 1]);
      this.shown = inView.checked ? this.selected.filter(there) : this.selected;
      const row = this.shown.indexOf(top);
      const nothing = !this.shown.some((lane) => lane.kind !== "machine");
      this.empty.hidden = !nothing;
      this.scroller.hidden = nothing;
      this.spacer.style.height = `${AXIS_PX + this.shown.length * LANE_PX + 4}px`;
      if (0 < row && this.scroller.scrollTop) this.scroller.scrollTop = row * LANE_PX + this.scroller.scrollTop % LANE_PX;
      this.draw();
    }

    get gutter() { return Math.min(220, Math.round(this.width * 0.3)); }
    x(ns) { return this.gutter + (ns - view.from) / (view.to - view.from) * (this.width - this.gutter); }
    ns(x) { return view.from + (x - this.gutter) / (this.width - this.gutter) * (view.to - view.from); }

    size(canvas, width, height) {
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      return context;
    }

    draw() {
      if (this.pending) return;
      this.pending = requestAnimationFrame(() => { this.pending = 0; this.drawNow(); });
    }

    drawNow() {
      this.width = Math.max(200, this.scroller.clientWidth);
      const height = Math.min(this.scroller.clientHeight, this.spacer.offsetHeight);
      if (this.scroller.hidden || !height) return;
      const context = this.context = this.size(this.canvas, this.width, height);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      const top = this.scroller.scrollTop, first = Math.max(0, Math.floor((top - LANE_PX) / LANE_PX));
      const last = Math.min(this.shown.length, Math.ceil((top + height) / LANE_PX));
      this.drawTicks(height);
      for (let row = first; row < last; row++) this.drawLane(this.shown[row], AXIS_PX + row * LANE_PX - top, row);
      this.drawAxis(height);
      this.drawOverview();
    }

    drawLane(lane, y, row) {
      const context = this.context, gutter = this.gutter, middle = y + LANE_PX / 2;
      if (lane === this.chosen) {
        context.fillStyle = colours.hover;
        context.fillRect(0, y, this.width, LANE_PX);
      }
      const depth = this.flat || lane.kind !== "task" ? 0 : lane.depth - this.depth;
      const indent = 6 + Math.min(depth, 8) * 9 + (lane.kind === "machine" ? 0 : 6);
      context.fillStyle = lane.kind === "task" ? colours.ink : colours.faint;
      if (lane.kind === "machine") context.font = "600 11px system-ui, sans-serif";
      this.text(lane.name, indent, middle, gutter - indent - 6);
      context.font = "11px system-ui, sans-serif";
      if (lane.kind === "machine" && row) {
        context.fillStyle = colours.line;
        context.fillRect(0, y, this.width, 1);
      }
      context.save();
      context.beginPath();
      context.rect(gutter, y, this.width - gutter, LANE_PX);
      context.clip();
      this.drawPieces(lane, y + (LANE_PX - BAR_PX) / 2);
      context.restore();
    }

    drawPieces(lane, y) {
      const { ends, kinds, extra, mixed } = lane, shares = new Float64Array(doings.length), context = this.context;
      let column = -1, filled = 0;
      const flush = () => {
        if (0 < filled) this.drawShares(shares, filled, column, 1, y);
        shares.fill(0);
        filled = 0;
      };
      for (let piece = pieceAt(lane, view.from); piece < ends.length; piece++) {
        const begin = beginOf(lane, piece);
        if (view.to <= begin) break;
        const left = this.x(Math.max(begin, view.from)), right = this.x(Math.min(ends[piece], view.to));
        const kind = kinds[piece];
        if (kind === GAP) continue;
        if (1.5 <= right - left) {
          flush();
          column = -1;
          if (kind === MIXED) {
            const all = mixed[extra[piece]];
            for (let n = 0; n < all.length; n += 2) shares[all[n]] = all[n + 1];
            this.drawShares(shares, 1000, left, right - left, y);
            shares.fill(0);
          } else {
            this.drawPiece(kind, extra[piece], left, right, y, lane);
          }
        } else {
          if (column !== Math.floor(left)) flush();
          column = Math.floor(left);
          const part = Math.max(right - left, 1e-6);
          filled += part;
          if (kind === MIXED) {
            const all = mixed[extra[piece]];
            for (let n = 0; n < all.length; n += 2) shares[all[n]] += part * all[n + 1] / 1000;
          } else {
            shares[kind] += part;
          }
        }
      }
      flush();
      if (lane === this.chosen && 0 <= this.piece && this.piece < ends.length) {
        const left = this.x(beginOf(lane, this.piece)), right = this.x(ends[this.piece]);
        context.strokeStyle = colours.mark;
        context.lineWidth = 2;
        context.strokeRect(left, y - 1, Math.max(2, right - left), BAR_PX + 2);
      }
    }

    // A piece by itself: its height says what sort of thing it is, for those who can't tell the colours.
    drawPiece(kind, word, left, right, y, lane) {
      const context = this.context, height = Math.max(1.5, BAR_PX * heights[kind]), wide = right - left;
      context.fillStyle = colours.doings[kind];
      context.fillRect(left, y + (BAR_PX - height) / 2, Math.max(1, wide - (wide > 4 ? 0.5 : 0)), height);
      const text = words[word] ?? (lane.kind === "task" && WAITS.includes(kind) ? doings[kind][0] : "");
      if (wide < 36 || !text || (kind === number("idle"))) return;
      const low = heights[kind] < 0.6;
      context.fillStyle = low ? colours.faint : colours.letters[kind];
      // Without ids and who woke, if that is what fits.
      const room = wide - (low ? 12 : 6);
      const shown = [text, text.replace(/, woken by.*/, ""), text.replace(/ \(\d+\)/g, "").replace(/, woken by.*/, "")]
        .find((text, n) => n === 2 || context.measureText(text).width <= room);
      if (low) {
        const length = Math.min(wide - 8, context.measureText(shown).width + 6);
        context.save();
        context.fillStyle = lane === this.chosen ? colours.hover : colours.page;
        context.fillRect(left + 4, y, length, BAR_PX);
        context.restore();
      }
      this.text(shown, left + (low ? 7 : 3), y + BAR_PX / 2 + 0.5, room);
    }

    // Shares on top of each other, what runs at the bottom.
    drawShares(shares, whole, left, width, y) {
      let bottom = y + BAR_PX;
      for (let kind = 0; kind < shares.length; kind++) {
        if (!shares[kind]) continue;
        const part = BAR_PX * shares[kind] / whole, height = part * (heights[kind] < 0.6 ? heights[kind] : 1);
        this.context.fillStyle = colours.doings[kind];
        this.context.fillRect(left, bottom - height, width, height);
        bottom -= height;
      }
    }

    text(text, x, y, width) {
      if (width < 12) return;
      let shown = text;
      const context = this.context;
      if (width < context.measureText(shown).width) {
        let low = 0, high = shown.length;
        while (low < high) {
          const middle = (low + high + 1) >> 1;
          if (context.measureText(shown.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
        }
        if (low < 2) return;
        shown = shown.slice(0, low) + "…";
      }
      context.fillText(shown, x, y);
    }

    // Where the axis has marks: at round times.
    ticks() {
      const room = (this.width - this.gutter) / 110, rough = (view.to - view.from) / Math.max(1, room);
      const power = 10 ** Math.floor(Math.log10(rough)), list = [];
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => rough <= step);
      for (let tick = Math.ceil(view.from / step); tick * step <= view.to; tick++) list.push(tick * step);
      return { step, list };
    }

    drawTicks(height) {
      this.context.fillStyle = colours.line;
      for (const tick of this.ticks().list) this.context.fillRect(Math.round(this.x(tick)), AXIS_PX, 1, height);
    }

    drawAxis(height) {
      const context = this.context, { step, list } = this.ticks();
      context.fillStyle = colours.page;
      context.fillRect(0, 0, this.width, AXIS_PX - 1);
      context.fillStyle = colours.line;
      context.fillRect(0, AXIS_PX - 1, this.width, 1);
      context.fillRect(this.gutter - 1, 0, 1, height);
      context.fillStyle = colours.faint;
      for (const tick of list) {
        const x = Math.round(this.x(tick));
        context.fillRect(x, AXIS_PX - 6, 1, 5);
        this.text(tickText(tick, step), x + 3, AXIS_PX / 2 - 1, Math.min(105, this.width - x - 4));
      }
      this.text(`${time(view.to - view.from)} in view`, 6, AXIS_PX / 2 - 1, this.gutter - 10);
    }

    // All CPUs' shares over the whole run, drawn once and kept.
    drawOverview() {
      const height = 34, key = `${this.width} ${colours.ink}`, inner = this.width - this.gutter;
      if (this.overviewKey !== key) {
        this.overviewKey = key;
        const picture = element("canvas"), kept = { context: this.context, view };
        this.context = this.size(picture, this.width, height);
        view = { from: 0, to: longest };
        const cpus = this.lanes.filter((lane) => lane.kind === "cpu"), all = [];
        for (let column = 0; column < inner; column++) all.push(new Float64Array(doings.length));
        for (const lane of cpus) this.collect(lane, all, longest / inner);
        all.forEach((shares, column) => {
          const whole = cpus.length * longest / inner;
          let bottom = height - 1;
          shares.forEach((ns, kind) => {
            if (!ns || doings[kind][1] === "idle") return;
            const part = (height - 2) * ns / whole;
            this.context.fillStyle = colours.doings[kind];
            this.context.fillRect(this.gutter + column, bottom - part, 1, part);
            bottom -= part;
          });
        });
        this.context.fillStyle = colours.faint;
        this.context.font = "11px system-ui, sans-serif";
        this.context.textBaseline = "middle";
        this.text(cpus.length === 1 ? "1 CPU, all of the trace" : `${cpus.length} CPUs, all of the trace`, 6, height / 2, this.gutter - 10);
        this.overviewPicture = picture;
        ({ context: this.context, view } = kept);
      }
      const context = this.size(this.overview, this.width, height);
      context.drawImage(this.overviewPicture, 0, 0, this.width, height);
      const scale = inner / longest, left = this.gutter + view.from * scale, right = this.gutter + view.to * scale;
      context.fillStyle = colours.page;
      context.globalAlpha = 0.65;
      context.fillRect(this.gutter, 0, left - this.gutter, height);
      context.fillRect(right, 0, this.width - right, height);
      context.globalAlpha = 1;
      context.strokeStyle = colours.mark;
      context.lineWidth = 1.5;
      context.strokeRect(left + 0.75, 0.75, Math.max(1, right - left - 1.5), height - 1.5);
    }

    // Adds a lane's pieces to columns of `step` ns each.
    collect(lane, columns, step) {
      for (let piece = 0; piece < lane.ends.length; piece++) {
        let from = beginOf(lane, piece);
        const to = lane.ends[piece];
        for (let column = Math.floor(from / step); from < to && column < columns.length; column++) {
          const stop = Math.min(to, (column + 1) * step), ns = Math.max(0, stop - from);
          if (lane.kinds[piece] === MIXED) {
            const shares = lane.mixed[lane.extra[piece]];
            for (let n = 0; n < shares.length; n += 2) columns[column][shares[n]] += ns * shares[n + 1] / 1000;
          } else {
            columns[column][lane.kinds[piece]] += ns;
          }
          from = stop;
        }
      }
    }

    laneAt(event) {
      const box = this.scroller.getBoundingClientRect(), y = event.clientY - box.top;
      if (y < AXIS_PX) return undefined;
      return this.shown[Math.floor((y + this.scroller.scrollTop - AXIS_PX) / LANE_PX)];
    }

    // What is said of a piece, or of a lane when there is none.
    describe(lane, piece) {
      if (!(0 <= piece && piece < lane.ends.length) || lane.kinds[piece] === GAP) return this.describeLane(lane);
      const begin = beginOf(lane, piece), end = lane.ends[piece];
      const shares = lane.kinds[piece] === MIXED ? lane.mixed[lane.extra[piece]] : null;
      const what = shares
        ? pairs(shares).map(([kind, part]) => `${(part / 10).toFixed(1)} % ${doings[kind][0]}`).join("\n")
        : doings[lane.kinds[piece]][0] + (words[lane.extra[piece]] ? `\n${words[lane.extra[piece]]}` : "");
      return `${(lane.owners?.[piece] ?? lane).name}: ${time(end - begin)}\n${what}\nfrom ${time(begin, longest)} to ${time(end, longest)}`;
    }

    describeLane(lane) {
      if (lane.kind === "machine") {
        const { idle_tasks: idle, left_out: left, exact, resolution } = lane.machine;
        return [lane.name, `${idle} tasks never had a CPU and have no lane`, left ? `${left} more were left out` : "",
          exact ? "" : `pieces below ${time(resolution)} are merged`].filter(Boolean).join("\n");
      }
      const parts = [...lane.totals].map((ns, kind) => [kind, ns]).filter(([, ns]) => ns).sort((a, b) => b[1] - a[1]);
      return [lane.name, lane.about, ...parts.map(([kind, ns]) => `${time(ns)} ${doings[kind][0]}`)].filter(Boolean).join("\n");
    }

    showTip(event) {
      const lane = this.laneAt(event), box = this.scroller.getBoundingClientRect();
      const x = event.clientX - box.left;
      let text = "";
      if (lane && x < this.gutter) text = this.describeLane(lane);
      else if (lane) {
        const at = this.ns(x), piece = pieceAt(lane, at);
        const there = piece < lane.ends.length && beginOf(lane, piece) <= at && lane.kinds[piece] !== GAP;
        if (there) text = this.describe(lane, piece);
      }
      this.tip.hidden = !text;
      if (!text) return;
      this.tip.textContent = text;
      const outer = this.tip.parentElement.getBoundingClientRect();
      const left = Math.min(event.clientX - outer.left + 14, outer.width - this.tip.offsetWidth - 4);
      const below = event.clientY - outer.top + 16;
      const fits = event.clientY + 16 + this.tip.offsetHeight < innerHeight;
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${fits ? below : Math.max(0, event.clientY - outer.top - this.tip.offsetHeight - 10)}px`;
    }

    listen() {
      const { scroller, overview } = this;
      let drag = null;
      scroller.addEventListener("scroll", () => { this.tip.hidden = true; this.draw(); });
      scroller.addEventListener("wheel", (event) => {
        const zooms = event.ctrlKey || event.metaKey, sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (!zooms && !sideways) return;
        event.preventDefault();
        const x = event.clientX - scroller.getBoundingClientRect().left;
        if (zooms) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), this.ns(Math.max(x, this.gutter)));
        else move(sideways / 800);
      }, { passive: false });
      scroller.addEventListener("pointerdown", (event) => {
        const x = event.clientX - scroller.getBoundingClientRect().left;
        if (event.button || scroller.clientWidth < x) return;
        drag = { x: event.clientX, y: event.clientY, from: view.from, top: scroller.scrollTop, moved: false };
      });
      scroller.addEventListener("pointermove", (event) => {
        if (!drag) return this.showTip(event);
        if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 4) return;
        if (!drag.moved) scroller.setPointerCapture(event.pointerId);
        drag.moved = true;
        this.tip.hidden = true;
        const span = view.to - view.from;
        show(drag.from - (event.clientX - drag.x) / (this.width - this.gutter) * span, span);
        if (event.pointerType === "mouse") scroller.scrollTop = drag.top - (event.clientY - drag.y);
      });
      const stop = (event) => {
        if (drag && !drag.moved && event.type === "pointerup") this.choose(this.laneAt(event), this.pieceUnder(event));
        drag = null;
      };
      scroller.addEventListener("pointerup", stop);
      scroller.addEventListener("pointercancel", stop);
      scroller.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      scroller.addEventListener("dblclick", () => this.zoomToPiece());
      scroller.addEventListener("keydown", (event) => this.key(event));
      const jump = (event) => {
        const x = event.clientX - overview.getBoundingClientRect().left, span = view.to - view.from;
        show((x - this.gutter) / (this.width - this.gutter) * longest - span / 2, span);
      };
      overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
      overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
    }

    pieceUnder(event) {
      const lane = this.laneAt(event), x = event.clientX - this.scroller.getBoundingClientRect().left;
      if (!lane || x < this.gutter) return -1;
      const piece = pieceAt(lane, this.ns(x));
      return piece < lane.ends.length && beginOf(lane, piece) <= this.ns(x) ? piece : -1;
    }

    choose(lane, piece) {
      if (!lane) return;
      latest = this;
      this.chosen = lane;
      this.piece = piece;
      said.textContent = this.describe(lane, piece).replaceAll("\n", "; ");
      this.draw();
    }

    zoomToPiece() {
      if (!this.chosen || this.piece < 0) return;
      const begin = beginOf(this.chosen, this.piece), span = Math.max(MIN_SPAN_NS, this.chosen.ends[this.piece] - begin);
      show(begin - span * 0.1, span * 1.2);
    }

    // Goes to who ended the chosen wait, at the time that it did.
    toWaker() {
      const lane = this.chosen;
      if (!lane || this.piece < 0 || GAP <= lane.kinds[this.piece]) return;
      const name = /, woken by (?:disk request of )?(.+ \(\d+\))$/.exec(words[lane.extra[this.piece]] ?? "")?.[1];
      if (name === (lane.owners?.[this.piece] ?? lane).name) {
        said.textContent = "Its own disk request's end woke it.";
        return;
      }
      const at = lane.ends[this.piece], was = (one) => one.name === name && one.from <= at && at <= one.ends[one.ends.length - 1];
      const waker = this.selected.find((one) => one.machine === lane.machine && one.kind === "task" && (one.owners ?? [one]).some(was));
      if (!waker) {
        said.textContent = name ? `${name} has no lane here.` : "Who woke it is not a task, or not known.";
        return;
      }
      if (at < view.from || view.to < at) show(at - (view.to - view.from) / 2, view.to - view.from);
      this.choose(waker, Math.min(pieceAt(waker, at - 1), waker.ends.length - 1));
      this.reveal();
    }

    // Scrolls to the chosen lane.
    reveal() {
      const y = this.shown.indexOf(this.chosen) * LANE_PX, room = this.scroller.clientHeight - AXIS_PX - LANE_PX;
      if (y < this.scroller.scrollTop) this.scroller.scrollTop = Math.max(0, y);
      if (this.scroller.scrollTop + room < y) this.scroller.scrollTop = y - room;
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        ArrowLeft: () => move(-STEP), ArrowRight: () => move(STEP), a: () => move(-STEP), d: () => move(STEP),
        "+": () => zoom(0.7), "=": () => zoom(0.7), w: () => zoom(0.7), "-": () => zoom(1 / 0.7), s: () => zoom(1 / 0.7),
        Home: () => show(0, view.to - view.from), End: () => show(longest, view.to - view.from),
        0: () => show(0, longest), Escape: () => show(0, longest), Enter: () => this.zoomToPiece(),
        ArrowUp: () => this.step(-1), ArrowDown: () => this.step(1), ",": () => this.next(-1), ".": () => this.next(1), b: () => this.toWaker(),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      this.tip.hidden = true;
      act();
    }

    // The lane above or below.
    step(by) {
      const at = this.shown.indexOf(this.chosen), row = Math.max(0, Math.min(this.shown.length - 1, at + by));
      this.choose(this.shown[row], -1);
      this.reveal();
    }

    // The piece before or after in the chosen lane, brought into view.
    next(by) {
      if (!this.chosen) return this.step(1);
      const here = this.piece < 0 ? pieceAt(this.chosen, view.from) - (0 < by ? 1 : 0) : this.piece;
      const piece = Math.max(0, Math.min(this.chosen.ends.length - 1, here + by));
      const begin = beginOf(this.chosen, piece), span = view.to - view.from;
      if (begin < view.from || view.to < begin) show(begin - span / 2, span);
      this.choose(this.chosen, piece);
    }
  }

  const pairs = (list) => list.flatMap((one, at) => at % 2 ? [] : [[one, list[at + 1]]]);

  function tickText(ns, step) {
    const [unit, name] = longest < 1e6 ? [1e3, "us"] : longest < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit) - 1e-9)));
    return `${(ns / unit).toFixed(digits)} ${name}`;
  }

  // All charts show the same time.
  function show(from, span) {
    span = Math.max(MIN_SPAN_NS, Math.min(longest, span));
    from = Math.max(0, Math.min(longest - span, from));
    view = { from, to: from + span };
    charts.forEach((chart) => chart.layOut());
  }
  const move = (part) => show(view.from + part * (view.to - view.from), view.to - view.from);
  function zoom(factor, around = (view.from + view.to) / 2) {
    const span = Math.max(MIN_SPAN_NS, Math.min(longest, (view.to - view.from) * factor));
    show(around - (around - view.from) * span / (view.to - view.from), span);
  }

  const boxes = [...document.querySelectorAll("[data-gantt]")];
  if (!boxes.length) return;
  const said = document.getElementById("gantt-said"), search = document.getElementById("gantt-search");
  const order = document.getElementById("gantt-order"), matched = document.getElementById("gantt-matched");
  const inView = document.getElementById("gantt-in-view"), asked = document.getElementById("gantt-asked");
  readColours();
  // Thousands of lanes are better shared, unless somebody wants them apart.
  const tasks = runs.flatMap((run) => run.machines.flatMap((machine) => machine.lanes)).filter((lane) => lane.kind === "task");
  order.value = MANY_TASKS < tasks.filter((lane) => lane.asked).length ? "shared" : "family";
  document.getElementById("gantt-asked-label").hidden = tasks.every((lane) => lane.asked);
  for (const box of boxes) charts.push(new Chart(runs[box.dataset.gantt], box));
  const select = () => {
    charts.forEach((chart) => chart.select(search.value, order.value));
    matched.textContent = search.value.trim() ? `${charts.reduce((all, chart) => all + chart.matched, 0)} lanes` : "";
  };
  search.addEventListener("input", select);
  order.addEventListener("change", select);
  asked.addEventListener("change", select);
  inView.addEventListener("change", () => charts.forEach((chart) => chart.layOut()));
  const button = (id, act) => document.getElementById(id).addEventListener("click", act);
  button("gantt-in", () => zoom(0.5));
  button("gantt-out", () => zoom(2));
  button("gantt-left", () => move(-0.5));
  button("gantt-right", () => move(0.5));
  button("gantt-all", () => show(0, longest));
  button("gantt-waker", () => latest?.toWaker());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    charts.forEach((chart) => chart.draw());
  });
})();
