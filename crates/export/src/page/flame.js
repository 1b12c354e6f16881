"use strict";
// A flame graph of `labels` (name, kind, module), `kinds`, `modules` and `nodes` (parallel arrays in preorder; node 0 is
// everything). Names in the first column of tables in `[data-searched-by=flame]` become buttons that search for them.
// `amount` words a total, `paint` and `remark` give a node's class and a further line. Until `signal` aborts, Esc resets it.
// Returns what searches for a text.
function flameGraph(box, data, options = {}) {
  const ROW_PX = 19, MIN_PX = 0.6, MIN_TEXT_PX = 24;
  const HINT = "Click a frame to zoom into it, click one above to zoom out. Esc resets.";
  const { amount = (samples) => `${samples.toLocaleString("en")} samples`, paint, remark, signal } = options;
  const { labels, kinds, modules } = data;
  const { label, depth, total } = data.nodes;
  const count = label.length, all = total[0];
  const start = new Array(count).fill(0), end = new Array(count), parent = new Array(count).fill(-1);
  let zoomed = 0, matches = null, drawnWidth = 0;

  const details = make("p", { className: "said", "aria-live": "polite" }, all ? HINT : "There are no samples in this view.");
  const flame = make("div", { className: "flame", tabIndex: 0, role: "group" });
  const search = searchField("Search", "function, process or module", find);
  const jumps = make("span", { className: "buttons" });
  const reset = button("Reset zoom", () => zoom(0), { disabled: true });
  box.append(make("div", { className: "controls" }, search.label, search.found, jumps, reset), details,
    make("div", { className: "flame-scroll" }, flame));
  const tip = tooltip(box);

  const name = (node) => label[node] < 0 ? "all" : labels[label[node]][0];
  const kind = (node) => label[node] < 0 ? "all" : kinds[labels[label[node]][1]];
  const module = (node) => label[node] < 0 ? "" : modules[labels[label[node]][2]] ?? "";
  // A name that says nothing is shown with its module.
  const shown = (node) =>
    /^[[(]/.test(name(node)) && module(node) ? `${name(node)} ${module(node).split("/").pop()}` : name(node);
  const percent = (samples) => all ? (100 * samples / all).toFixed(2) + " %" : "";
  const describe = (node) => [name(node), `${amount(total[node])}, ${percent(total[node])}`, remark?.(node),
    module(node), kind(node).replace("-", " ")].filter(Boolean);

  // Where each node begins, in samples; which nodes are below it; which one is above.
  function layOut() {
    const path = [], filled = [];
    for (let node = 0; node < count; node++) {
      while (path.length > depth[node]) end[path.pop()] = node;
      if (path.length) {
        parent[node] = path[path.length - 1];
        start[node] = filled[path.length - 1];
        filled[path.length - 1] += total[node];
      }
      path.push(node);
      filled[path.length - 1] = start[node];
    }
    for (const node of path) end[node] = count;
  }

  function draw() {
    const width = flame.clientWidth, scale = width / (total[zoomed] || 1);
    const frames = [];
    let deepest = depth[zoomed];
    drawnWidth = width;
    const add = (node, left, right, isParent) => {
      const className = `frame ${paint?.(node) ?? kind(node)}${isParent ? " parent" : ""}${matches?.has(node) ? " match" : ""}`;
      const frame = make("div", { className });
      Object.assign(frame.style, { left: `${left}px`, width: `${right - left}px`, top: `${depth[node] * ROW_PX}px` });
      if (right - left >= MIN_TEXT_PX) frame.textContent = shown(node);
      else frame.style.padding = "0";
      frame.dataset.node = node;
      frames.push(frame);
      deepest = Math.max(deepest, depth[node]);
    };
    for (let node = parent[zoomed]; node >= 0; node = parent[node]) add(node, 0, width, true);
    for (let node = zoomed; node < end[zoomed];) {
      const left = (start[node] - start[zoomed]) * scale, right = left + total[node] * scale;
      if (right - left < MIN_PX) { node = end[node]; continue; } // its children are narrower still
      add(node, left, right, false);
      node++;
    }
    flame.style.height = (deepest + 1) * ROW_PX + "px";
    flame.replaceChildren(...frames);
    flame.ariaLabel = `Flame graph, callers above callees: ${amount(total[zoomed])} in ${frames.length} frames`;
    reset.disabled = zoomed === 0;
  }

  function zoom(node) {
    zoomed = node;
    details.textContent = node ? describe(node).join("  ") : HINT;
    tip.hide();
    draw();
  }

  // Samples in matching frames, those below a match not counted again.
  function find(text) {
    const wanted = text.trim().toLowerCase();
    search.input.value = text;
    matches = null;
    let samples = 0;
    if (wanted) {
      const hit = labels.map(([name, , module]) =>
        name.toLowerCase().includes(wanted) || (modules[module] ?? "").toLowerCase().includes(wanted));
      matches = new Set();
      for (let node = 1, countedUntil = 0; node < count; node++) {
        if (!hit[label[node]]) continue;
        matches.add(node);
        if (node < countedUntil) continue;
        samples += total[node];
        countedUntil = end[node];
      }
    }
    search.found.textContent =
      wanted ? `${percent(samples) || "0 %"} matched (${amount(samples)})` : "";
    draw();
  }

  function children(node) {
    const found = [];
    for (let child = node + 1; child < end[node]; child = end[child]) found.push(child);
    return found;
  }

  const nodeOf = (event) => Number(event.target.closest(".frame")?.dataset.node ?? -1);
  flame.addEventListener("click", (event) => { if (nodeOf(event) >= 0) zoom(nodeOf(event)); });
  flame.addEventListener("mousemove", (event) => tip.show(event, nodeOf(event) < 0 ? "" : describe(nodeOf(event)).join("\n")));
  flame.addEventListener("mouseleave", tip.hide);
  // Arrow keys walk the tree: up to the caller, down to the largest callee, sideways to its siblings.
  flame.addEventListener("keydown", (event) => {
    const above = parent[zoomed];
    const siblings = above < 0 ? [0] : children(above);
    const at = siblings.indexOf(zoomed);
    const target = {
      ArrowUp: above, ArrowDown: children(zoomed)[0] ?? -1,
      ArrowLeft: siblings[at - 1] ?? -1, ArrowRight: siblings[at + 1] ?? -1,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    if (target >= 0) zoom(target);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { find(""); zoom(0); }
  }, { signal });
  for (const cell of document.querySelectorAll("[data-searched-by=flame] td:first-child")) {
    const searched = cell.textContent;
    cell.replaceChildren(button(searched, () => { zoom(0); find(searched); flame.scrollIntoView({ block: "center" }); }));
  }

  layOut();
  if (all === 0) return find;
  for (let node = 1; node < count; node++) if (kind(node) === "vm") jumps.append(button(name(node), () => zoom(node)));
  draw();
  new ResizeObserver(() => { if (flame.clientWidth !== drawnWidth) draw(); }).observe(flame);
  return find;
}
