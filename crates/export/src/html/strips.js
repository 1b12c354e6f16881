
"use strict";
// Draws the vCPUs' strips from #strips. Names reach the page as text only (textContent, title).
(() => {
  const { kinds, words, length, strips } = JSON.parse(document.getElementById("strips").textContent);
  if (strips.length === 0) return;
  const details = document.getElementById("strip-details"), hint = details.textContent;
  const canvases = [...document.querySelectorAll("canvas[data-strip]")];
  const swatches = [...document.querySelectorAll("#strip-legend .swatch")];
  const seconds = (ns) => (ns / 1e9).toFixed(length < 1e9 ? 6 : 4);
  // Runs touch: where each ends, in ns since the recording's start.
  const ends = strips.map(({ from, runs }) => runs.map(([run]) => from += run));

  function draw(canvas) {
    const { from, runs } = strips[canvas.dataset.strip], stops = ends[canvas.dataset.strip];
    const colours = swatches.map((swatch) => getComputedStyle(swatch).backgroundColor);
    const width = canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
    const height = canvas.height = Math.round(canvas.clientHeight * devicePixelRatio);
    const context = canvas.getContext("2d"), scale = width / Math.max(1, length);
    let left = from * scale;
    runs.forEach((run, index) => {
      const right = stops[index] * scale;
      for (let at = 1, top = 0; at < run.length; at += 3) {
        const part = height * run[at + 1] / 1000;
        context.fillStyle = colours[run[at]];
        context.fillRect(left, top, right - left, part);
        top += part;
      }
      left = right;
    });
  }

  function describe(canvas, event) {
    const { from, runs } = strips[canvas.dataset.strip], stops = ends[canvas.dataset.strip];
    const box = canvas.getBoundingClientRect();
    const time = (event.clientX - box.left) / Math.max(1, box.width) * length;
    const index = stops.findIndex((stop) => time < stop);
    if (time < from || index < 0) return "not there";
    const run = runs[index], parts = [];
    for (let at = 1; at < run.length; at += 3) {
      const word = words[run[at + 2]] ?? "";
      const joined = kinds[run[at]] + (word && (kinds[run[at]] === "preempted" ? ` by ${word}` : `: ${word}`));
      parts.push(run.length > 4 ? `${joined} ${(run[at + 1] / 10).toFixed(1)} %` : joined);
    }
    return `${seconds(index ? stops[index - 1] : from)} to ${seconds(stops[index])} s: ${parts.join(", ")}`;
  }

  for (const canvas of canvases) {
    canvas.addEventListener("mousemove", (event) => {
      details.textContent = canvas.title = describe(canvas, event);
    });
    canvas.addEventListener("mouseleave", () => { details.textContent = hint; });
    new ResizeObserver(() => draw(canvas)).observe(canvas);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => canvases.forEach(draw));
})();
