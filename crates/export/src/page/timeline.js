
"use strict";
// Timelines of `runs` (page/lanes.rs has their form), all of which show the same time: lanes in view only, pieces narrower
// than a pixel as shares of its column.
function timeline(box, data) {
  const LANE_PX = 18, BAR_PX = 14, AXIS_PX = 22, MIN_SPAN_NS = 100, STEP = 0.15;
  const { doings, runs, words } = data;
  // How high each doing is drawn: what runs is full, what waits lower, what sleeps a line.
  const HEIGHT = { "cpu-wait": 0.75, "disk-wait": 0.75, "lock-wait": 0.75, asleep: 0.2, stopped: 0.35, queued: 0.5, vmm: 0.75,
    "vmm-waiting": 0.75, preempted: 0.75, throttled: 0.5, "not-sampled": 0.5, "halt-polling": 0.3, idle: 0.08, unknown: 0.5 };
  const heights = doings.map(([, style]) => HEIGHT[style] ?? 1);
  const MANY_TASKS = 200;
  const { MIXED, GAP, unpack, shared, pieceAt, beginOf } = timelineLanes(doings.length);
  const number = (name) => doings.findIndex(([, style]) => style === name);
  const RUNS = ["user", "kernel", "interrupt"].map(number), WAITS = ["cpu-wait", "disk-wait", "lock-wait"].map(number);
  const longest = Math.max(1, ...runs.map((run) => run.length));
  const charts = [];
  // The chart in which something was chosen last.
  let latest = null;
  let view = { from: 0, to: longest }, colours = {};

  const sum = (lane, which) => which.reduce((all, n) => all + lane.totals[n], 0);

  function readColours() {
    colours = { doings: doings.map(([, style]) => colour(style)), ink: colour("ink"), faint: colour("faint"), line: colour("line"),
      page: colour("page"), hover: colour("hover"), mark: colour("mark"), onDark: colour("on-dark"), onLight: colour("on-light") };
    // Letters on a bar: whichever of the two stands out.
    colours.letters = colours.doings.map((colour) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      return 0.299 * r + 0.587 * g + 0.114 * b < 140 ? colours.onDark : colours.onLight;
    });
  }

  class Chart {
    constructor(run) {
      this.run = run;
      this.lanes = run.machines.flatMap((machine) => {
        const head = { kind: "machine", name: machine.name, about: machine.about, depth: 0, from: machine.begin, pieces: [] };
        return [head, ...machine.lanes].map((lane) => ({ ...lane, ...unpack(lane), machine }));
      });
      const label = `Timelines of ${run.label}. Arrow keys: left and right move in time, up and down choose a lane; plus and ` +
        "minus zoom; comma and full stop go from piece to piece; b goes to who woke the task; 0 shows everything";
      this.canvas = make("canvas", { className: "timeline-canvas", "aria-hidden": "true" });
      this.spacer = make("div", {}, this.canvas);
      this.scroller = make("div", { className: "timeline-scroll", tabIndex: 0, role: "application", "aria-label": label }, this.spacer);
      this.overview = make("canvas", { className: "timeline-overview", role: "img",
        "aria-label": `Use of all CPUs of ${run.label} over time, with the part in view marked` });
      this.empty = make("p", {}, "No lane matches.");
      this.chosen = null;
      this.piece = -1;
      const chart = make("div", { className: "timeline" }, this.overview, this.scroller, this.empty);
      this.tip = tooltip(chart);
      if (1 < runs.length) box.append(make("h3", {}, run.label));
      box.append(chart);
      this.select("", order.value);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.scroller);
    }

    // Chooses the lanes to show and their order.
    select(query, order) {
      const wanted = query.trim().toLowerCase();
      const key = { cpu: (lane) => -sum(lane, RUNS), waits: (lane) => -sum(lane, WAITS), begin: (lane) => lane.from }[order];
      const isRequested = (lane) => lane.kind !== "task" || lane.requested || !onlyRequested.checked;
      const matches = (lane) => !wanted || lane.kind === "machine" || `${lane.name} ${lane.about}`.toLowerCase().includes(wanted);
      this.flat = order !== "family";
      this.shown = [];
      let matched = 0;
      for (const machine of this.run.machines) {
        const lanes = this.lanes.filter((lane) => lane.machine === machine && isRequested(lane) && matches(lane));
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
            for (let n = 0; n < all.length; n += 3) shares[all[n]] = all[n + 1];
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
            for (let n = 0; n < all.length; n += 3) shares[all[n]] += part * all[n + 1] / 1000;
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
        const picture = make("canvas"), kept = { context: this.context, view };
        this.context = this.size(picture, this.width, height);
        view = { from: 0, to: longest };
        const ofKind = (wanted) => this.lanes.filter(({ kind }) => kind === wanted), all = [];
        const cpus = [ofKind("cpu"), ofKind("vcpu")].find((lanes) => lanes.length) ?? [], name = cpus[0]?.kind === "vcpu" ? "vCPU" : "CPU";
        for (let column = 0; column < inner; column++) all.push(new Float64Array(doings.length));
        for (const lane of cpus) this.collect(lane, all, longest / inner);
        all.forEach((shares, column) => {
          const whole = cpus.length * longest / inner;
          let bottom = height - 1;
          shares.forEach((ns, kind) => {
            if (!ns || heights[kind] < 0.1) return;
            const part = (height - 2) * ns / whole;
            this.context.fillStyle = colours.doings[kind];
            this.context.fillRect(this.gutter + column, bottom - part, 1, part);
            bottom -= part;
          });
        });
        this.context.fillStyle = colours.faint;
        this.context.font = "11px system-ui, sans-serif";
        this.context.textBaseline = "middle";
        this.text(`${cpus.length} ${name}${cpus.length === 1 ? "" : "s"}, all of the time`, 6, height / 2, this.gutter - 10);
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
            for (let n = 0; n < shares.length; n += 3) columns[column][shares[n]] += ns * shares[n + 1] / 1000;
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
        ? triples(shares).map(([kind, part, word]) => `${(part / 10).toFixed(1)} % ${said(kind, word)}`).join("\n")
        : said(lane.kinds[piece], lane.extra[piece]);
      return `${(lane.owners?.[piece] ?? lane).name}: ${time(end - begin)}\n${what}\nfrom ${time(begin, longest)} to ${time(end, longest)}`;
    }

    describeLane(lane) {
      const parts = [...lane.totals].map((ns, kind) => [kind, ns]).filter(([, ns]) => ns).sort((a, b) => b[1] - a[1]);
      return [lane.name, lane.about, ...parts.map(([kind, ns]) => `${time(ns)} ${doings[kind][0]}`)].filter(Boolean).join("\n");
    }

    showTip(event) {
      const lane = this.laneAt(event), x = event.clientX - this.scroller.getBoundingClientRect().left;
      if (!lane || x < this.gutter) return this.tip.show(event, lane && this.describeLane(lane));
      const piece = this.pieceUnder(event);
      this.tip.show(event, 0 <= piece && lane.kinds[piece] !== GAP && this.describe(lane, piece));
    }

    listen() {
      const { scroller, overview } = this;
      let drag = null;
      scroller.addEventListener("scroll", () => { this.tip.hide(); this.draw(); });
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
        this.tip.hide();
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
      scroller.addEventListener("pointerleave", () => { this.tip.hide(); });
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
      details.textContent = this.describe(lane, piece).replaceAll("\n", "; ");
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
        details.textContent = "Its own disk request's end woke it.";
        return;
      }
      const at = lane.ends[this.piece], was = (one) => one.name === name && one.from <= at && at <= one.ends[one.ends.length - 1];
      const waker = this.selected.find((one) => one.machine === lane.machine && one.kind === "task" && (one.owners ?? [one]).some(was));
      if (!waker) {
        details.textContent = name ? `${name} has no lane here.` : "Who woke it is not a task, or not known.";
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
      this.tip.hide();
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

  const triples = (list) => list.flatMap((one, at) => at % 3 ? [] : [[one, list[at + 1], list[at + 2]]]);
  const said = (kind, word) => doings[kind][0] + (words[word] ? `: ${words[word]}` : "");

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

  const tasks = runs.flatMap((run) => run.machines.flatMap((machine) => machine.lanes)).filter((lane) => lane.kind === "task");
  const search = searchField("Filter", "name, thread or process id", select);
  const orders = [["family", "parents before children"], ["shared", "tasks share lanes"], ["begin", "by begin"],
    ["cpu", "most CPU time first"], ["waits", "most waiting first"]];
  const order = make("select", {}, ...orders.map(([value, text]) => make("option", { value }, text)));
  const onlyRequested = make("input", { type: "checkbox", checked: true }), inView = make("input", { type: "checkbox", checked: true });
  const forTasks = [make("label", {}, "Order ", order),
    make("label", { hidden: tasks.every((lane) => lane.requested) }, onlyRequested, " Only the command's tasks"), make("label", {}, inView, " Only tasks in view")];
  const buttons = make("span", { className: "buttons" },
    button("\u2190", () => move(-0.5), { "aria-label": "Earlier" }), button("\u2192", () => move(0.5), { "aria-label": "Later" }),
    button("+", () => zoom(0.5), { "aria-label": "Zoom in" }), button("\u2212", () => zoom(2), { "aria-label": "Zoom out" }),
    button("All", () => show(0, longest)));
  if (tasks.length) buttons.append(button("Who woke it", () => latest?.toWaker()));
  const details = make("p", { className: "said", "aria-live": "polite" }, "Click a piece or a lane to see what it is.");
  box.append(make("div", { className: "controls" }, search.label, search.found, ...tasks.length ? forTasks : [], buttons), details);
  readColours();
  // Thousands of lanes are better shared, unless the user wants them apart.
  order.value = MANY_TASKS < tasks.filter((lane) => lane.requested).length ? "shared" : "family";
  for (const run of runs) charts.push(new Chart(run));
  function select() {
    charts.forEach((chart) => chart.select(search.input.value, order.value));
    search.found.textContent = search.input.value.trim() ? `${charts.reduce((all, chart) => all + chart.matched, 0)} lanes` : "";
  }
  order.addEventListener("change", select);
  onlyRequested.addEventListener("change", select);
  inView.addEventListener("change", () => charts.forEach((chart) => chart.layOut()));
  onNewColours(() => {
    readColours();
    charts.forEach((chart) => chart.draw());
  });
}
