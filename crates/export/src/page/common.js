"use strict";
// What the components share. Each is a function of a box and its data, and makes all that it needs in the box.
// Names reach the page as text only (textContent, fillText), never as markup.

// An element with properties or attributes, and what is in it.
function make(tag, set = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(set)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function button(text, act, set = {}) {
  const made = make("button", { type: "button", ...set }, text);
  made.addEventListener("click", act);
  return made;
}

// A field to search in, and a place for what was found.
function searchField(name, placeholder, find) {
  const input = make("input", { type: "search", placeholder, autocomplete: "off", spellcheck: false });
  input.addEventListener("input", () => find(input.value));
  return { input, label: make("label", {}, `${name} `, input), found: make("output", { className: "found" }) };
}

// Text beside the pointer, inside of the box.
function tooltip(box) {
  const tip = make("div", { className: "tip", hidden: true });
  box.append(tip);
  const show = (event, text) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const outer = box.getBoundingClientRect(), left = event.clientX - outer.left + 14, top = event.clientY - outer.top;
    const fits = event.clientY + 16 + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${fits ? top + 16 : Math.max(0, top - tip.offsetHeight - 10)}px`;
  };
  return { show, hide: () => { tip.hidden = true; } };
}

// A colour of the page's table, by its meaning.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const onNewColours = (act, signal) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act, { signal });

// In the unit that suits the span.
function time(ns, span = ns) {
  const [unit, name] = span < 1e3 ? [1, "ns"] : span < 1e6 ? [1e3, "us"] : span < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return `${(ns / unit).toFixed(unit === 1 ? 0 : 3)} ${name}`;
}
