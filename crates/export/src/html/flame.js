
"use strict";
// Draws the tree in #data. Names reach the page as text only (textContent, title), never as markup.
(() => {
  const ROW_PX = 19, MIN_PX = 0.6, MIN_TEXT_PX = 24;
  const data = JSON.parse(document.getElementById("data").textContent);
  const { labels, kinds, modules } = data;
  const { label, depth, total } = data.nodes; // parallel arrays, preorder; node 0 is everything
  const count = label.length, all = total[0];
  const element = (id) => document.getElementById(id);
  const flame = element("flame"), details = element("details"), search = element("search");
  const start = new Array(count).fill(0), end = new Array(count), parent = new Array(count).fill(-1);
  let zoomed = 0, matches = null, drawnWidth = 0;

  const name = (node) => label[node] < 0 ? "all" : labels[label[node]][0];
  const kind = (node) => label[node] < 0 ? "all" : kinds[labels[label[node]][1]];
  const module = (node) => label[node] < 0 ? "" : modules[labels[label[node]][2]] ?? "";
  // A name that says nothing is shown with its module.
  const shown = (node) =>
    /^[[(]/.test(name(node)) && module(node) ? `${name(node)} ${module(node).split("/").pop()}` : name(node);
  const percent = (samples) => all ? (100 * samples / all).toFixed(2) + " %" : "";
  const describe = (node) =>
    `${name(node)}  ${total[node].toLocaleString("en")} samples, ${percent(total[node])}` +
    (module(node) ? `  ${module(node)}` : "") + `  (${kind(node).replace("-", " ")})`;

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
    const width = flame.clientWidth, scale = width / Math.max(1, total[zoomed]);
    const frames = [];
    let deepest = depth[zoomed];
    drawnWidth = width;
    const add = (node, left, right, isParent) => {
      const frame = document.createElement("div");
      frame.className = `frame ${kind(node)}${isParent ? " parent" : ""}${matches?.has(node) ? " match" : ""}`;
      frame.style.left = left + "px";
      frame.style.width = (right - left) + "px";
      frame.style.top = depth[node] * ROW_PX + "px";
      if (right - left >= MIN_TEXT_PX) frame.textContent = shown(node);
      else frame.style.padding = "0";
      frame.dataset.node = node;
      frame.title = describe(node);
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
    element("reset").disabled = zoomed === 0;
  }

  function zoom(node) {
    zoomed = node;
    details.textContent = describe(node);
    draw();
  }

  // Samples in matching frames, those below a match not counted again.
  function find(text) {
    const wanted = text.trim().toLowerCase();
    search.value = text;
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
    element("matched").textContent =
      wanted ? `${percent(samples) || "0 %"} matched (${samples.toLocaleString("en")} samples)` : "";
    draw();
  }

  function addJumps() {
    const button = (text, node) => {
      const jump = document.createElement("button");
      jump.type = "button";
      jump.textContent = text;
      jump.title = describe(node);
      jump.addEventListener("click", () => zoom(node));
      element("jumps").append(jump);
    };
    for (let node = 1; node < count; node++) if (kind(node) === "vm") button(name(node), node);
  }

  const nodeOf = (event) => {
    const frame = event.target.closest(".frame");
    return frame ? Number(frame.dataset.node) : -1;
  };
  flame.addEventListener("click", (event) => { if (nodeOf(event) >= 0) zoom(nodeOf(event)); });
  flame.addEventListener("mouseover", (event) => { if (nodeOf(event) >= 0) details.textContent = describe(nodeOf(event)); });
  flame.addEventListener("mouseleave", () => { details.textContent = describe(zoomed); });
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
  function children(node) {
    const found = [];
    for (let child = node + 1; child < end[node]; child = end[child]) found.push(child);
    return found;
  }
  search.addEventListener("input", () => find(search.value));
  element("reset").addEventListener("click", () => zoom(0));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { find(""); zoom(0); }
  });
  document.querySelector("tbody").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) { zoom(0); find(button.textContent); flame.scrollIntoView({ block: "center" }); }
  });
  for (const time of document.querySelectorAll("time")) time.title = new Date(time.dateTime).toLocaleString();

  layOut();
  if (all === 0) {
    details.textContent = "There are no samples in this view.";
    return;
  }
  addJumps();
  draw();
  new ResizeObserver(() => { if (flame.clientWidth !== drawnWidth) draw(); }).observe(flame);
})();
