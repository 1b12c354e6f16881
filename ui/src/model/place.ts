// What the page shows is in its address, behind the `#`: it can be sent, and servers and proxies never see the names in it.

import type { Span } from "./units";

// Either the last so many seconds, or from one instant to another.
export type Range = { last: number } | Span;

export interface Place {
  // The view and what it is about: ["vm", HOST, VM].
  path: string[];
  range: Range;
  // What else the view has to know.
  more: Record<string, string>;
}

export const LASTS = {
  "15m": 900,
  "1h": 3600,
  "6h": 21_600,
  "24h": 86_400,
  "7d": 604_800,
} as const;
const DEFAULT: Range = { last: LASTS["1h"] };
// Slices of results are this long, until they are rolled up.
export const SLICE_MS = 10_000;
// Ranges up to this length are shown by the second where windows are looked at themselves.
export const BY_SECOND_MS = 120_000;

export function parsePlace(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  const { last, from, to, ...more } = Object.fromEntries(new URLSearchParams(query)) as Record<
    string,
    string
  >;
  return {
    path: path === "" ? [] : path.split("/").map(decode),
    range: parseRange(last, from, to),
    more,
  };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function parseRange(
  last: string | undefined,
  from: string | undefined,
  to: string | undefined,
): Range {
  const [begin, end] = [Date.parse(from ?? ""), Date.parse(to ?? "")];
  if (begin < end) return { from: begin, to: end };
  const known = Object.entries(LASTS).find(([name]) => name === last);
  return known ? { last: known[1] } : DEFAULT;
}

export function formatPlace({ path, range, more }: Place): string {
  const time: Record<string, string> =
    "last" in range
      ? { last: Object.entries(LASTS).find(([, seconds]) => seconds === range.last)?.[0] ?? "1h" }
      : { from: iso(range.from), to: iso(range.to) };
  const query = new URLSearchParams({ ...time, ...more });
  return `#/${path.map(encodeURIComponent).join("/")}?${query.toString()}`;
}

export function iso(ms: number): string {
  return new Date(ms).toISOString();
}

// The instants that a range stands for now, at the edges of slices.
export function spanOf(range: Range, now: number): Span {
  if ("from" in range) return range;
  const to = Math.ceil(now / SLICE_MS) * SLICE_MS;
  return { from: to - range.last * 1000, to };
}

// A part of the range that the view's address names.
export function parseSpan(text: string | undefined): Span | null {
  const [from, to] = (text ?? "").split("~").map(Date.parse);
  return from !== undefined && to !== undefined && from < to ? { from, to } : null;
}

export function formatSpan(span: Span): string {
  return `${iso(span.from)}~${iso(span.to)}`;
}

// Equal buckets that a range is shown in: about `wanted` of them, none shorter than a slice, at multiples of their length.
export interface Buckets {
  start: number;
  length: number;
  count: number;
}

const LENGTHS_S = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400,
];

export function bucketsOf(span: Span, wanted: number, shortest = SLICE_MS): Buckets {
  const seconds = (span.to - span.from) / 1000;
  const length =
    1000 *
    (LENGTHS_S.find((length) => shortest <= 1000 * length && seconds / length <= wanted) ?? 86_400);
  const start = Math.floor(span.from / length) * length;
  return { start, length, count: Math.max(1, Math.ceil((span.to - start) / length)) };
}

export function bucketAt({ start, length, count }: Buckets, ms: number): number {
  return Math.max(0, Math.min(count - 1, Math.floor((ms - start) / length)));
}

// The buckets that a span is made of; null: it begins or ends within one, or outside.
export function bucketsIn(
  buckets: Buckets,
  { from, to }: Span,
): { first: number; last: number } | null {
  const [first, end] = [
    (from - buckets.start) / buckets.length,
    (to - buckets.start) / buckets.length,
  ];
  return Number.isInteger(first) && Number.isInteger(end) && 0 <= first && end <= buckets.count
    ? { first, last: end - 1 }
    : null;
}

// Whole buckets, from one to another.
export function spanOfBuckets({ start, length }: Buckets, first: number, last: number): Span {
  const [low, high] = [Math.min(first, last), Math.max(first, last)];
  return { from: start + low * length, to: start + (high + 1) * length };
}
