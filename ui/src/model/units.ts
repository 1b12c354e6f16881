// Figures as text.

export const SECOND_MS = 1000;

export function percent(part: number, whole: number, digits = 1): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(digits)} %` : "-";
}

const UNITS = [
  ["ns", 1],
  ["us", 1e3],
  ["ms", 1e6],
  ["s", 1e9],
  ["min", 60e9],
  ["h", 3600e9],
  ["d", 86400e9],
] as const;

// The unit that suits a length of time: 90 s are no 1.5 min.
function unitOf(ns: number): (typeof UNITS)[number] {
  return UNITS.findLast(([, size]) => Math.abs(ns) >= (size < 60e9 ? size : 2 * size)) ?? UNITS[0];
}

// A length of time, in the unit that suits it.
export function duration(ns: number): string {
  const [name, size] = unitOf(ns);
  const value = ns / size;
  const digits = size === 1 ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${name}`;
}

// Words lengths of time in one unit, that of the longest. What is not 0 does not look like it.
export function durations(all: readonly number[]): (ns: number) => string {
  const longest = all
    .filter(Number.isFinite)
    .reduce((longest, ns) => Math.max(longest, Math.abs(ns)), 0);
  const [name, size] = unitOf(longest);
  const digits = size === 1 ? 0 : longest / size < 100 ? 2 : 1;
  const least = 10 ** -digits;
  return (ns) => {
    const value = ns / size;
    return 0 < value && value < least
      ? `<${least.toFixed(digits)} ${name}`
      : `${value.toFixed(digits)} ${name}`;
  };
}

export function count(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

// An instant in the reader's time zone, with the date unless it is today's.
export function instant(ms: number, now = Date.now()): string {
  const date = new Date(ms);
  const time = date.toLocaleTimeString("sv");
  return date.toDateString() === new Date(now).toDateString()
    ? time
    : `${date.toLocaleDateString("sv")} ${time}`;
}

export function span(range: Span): string {
  return `${instant(range.from)} to ${instant(range.to)} (${duration((range.to - range.from) * 1e6)})`;
}

// Milliseconds since 1970; `to` is not in it.
export interface Span {
  from: number;
  to: number;
}
