"use strict";
// Fills the page's boxes with their components.
(() => {
  const components = { flame: flameGraph, timeline };
  for (const box of document.querySelectorAll("[data-component]")) {
    const { component } = box.dataset;
    components[component](box, JSON.parse(document.getElementById(`${component}-data`).textContent));
  }
  for (const time of document.querySelectorAll("time")) time.title = new Date(time.dateTime).toLocaleString();
})();
