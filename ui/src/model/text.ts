// Names come from guests and hosts that may be hostile. They are shown as text, with what can't be seen made visible.

// The same characters as `is_unsafe` in crates/model/src/text.rs, written as it writes them. Lone surrogates are the browser's.
const UNSAFE = new RegExp(
  // eslint-disable-next-line no-misleading-character-class -- these are ranges, and no letters with marks
  "[\\p{Cc}\\p{Cs}\\u{ad}\\u{61c}\\u{115f}-\\u{1160}\\u{17b4}-\\u{17b5}\\u{180b}-\\u{180f}\\u{200b}-\\u{200f}\\u{2028}-\\u{202e}" +
    "\\u{2060}-\\u{206f}\\u{3164}\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff9}-\\u{fffb}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]",
  "gu",
);
// Marks that are stacked on a letter reach into other lines.
const STACKED = /\p{M}{4,}/gu;

export function visible(name: string): string {
  const code = (char: string) => `\\u{${char.codePointAt(0)?.toString(16) ?? ""}}`;
  return name.replace(UNSAFE, code).replace(STACKED, (marks) => [...marks].map(code).join(""));
}

// The first characters of a visible name; "…" tells that there are more.
export function cut(name: string, length: number): string {
  // Twice as many units hold at least as many characters.
  const start = [...name.slice(0, 2 * length + 2)];
  return start.length <= length && name.length <= 2 * length
    ? name
    : start.slice(0, length - 1).join("") + "…";
}

// What stands in a form's field.
export function fieldOf(form: HTMLFormElement, name: string): string {
  const value = new FormData(form).get(name);
  return typeof value === "string" ? value.trim() : "";
}

// Sorts "vm9" before "vm10".
export const byName = new Intl.Collator("en", { numeric: true }).compare;
