// Rows of time in buckets as the series of charts.

import type { Buckets } from "./place";
import type { CodeCells } from "./profile";
import { STATES, largest, totals } from "./states";
import { byName, cut, visible } from "./text";

export interface Series {
  name: string;
  // A colour of the pages.
  colour: string;
  // Of each bucket; null: nothing is known.
  values: (number | null)[];
}

// Time of something in a bucket.
export interface Point {
  series: string;
  bucket: number;
  ns: number;
}

// The states' time, of rows by code.
export function pointsOf(rows: readonly CodeCells[]): Point[] {
  return rows.flatMap(({ state, cells }) => {
    const points: Point[] = [];
    for (let at = 0; at < cells.length; at += 4)
      points.push({ series: state, bucket: cells[at] ?? 0, ns: cells[at + 1] ?? 0 });
    return points;
  });
}

// VMs with a colour of their own.
const MOST_VMS = 8;
const MOST_MODULES = 7;

// States of vCPUs, as shares of their time.
export function statesOverTime(rows: Point[], { count }: Buckets): Series[] {
  const all = new Array<number>(count).fill(0);
  for (const { bucket, ns } of rows) all[bucket] = (all[bucket] ?? 0) + ns;
  const met = STATES.filter(({ state }) =>
    rows.some(({ series, ns }) => series === state && ns > 0),
  );
  return met.map(({ state, name, colour }) => {
    const values: (number | null)[] = all.map((ns) => (ns > 0 ? 0 : null));
    for (const row of rows)
      if (row.series === state && all[row.bucket])
        values[row.bucket] = (values[row.bucket] ?? 0) + row.ns / (all[row.bucket] ?? 1);
    return { name, colour, values };
  });
}

// What had a host's CPUs, as shares of their time.
export function sharesOverTime(rows: Point[], { count }: Buckets): Series[] {
  const bySeries = totals(
    rows,
    (row) => row.series,
    (row) => row.ns,
  );
  const vms = largest(bySeries)
    .map(([series]) => series)
    .filter((series) => series.startsWith("VM "));
  const kept = vms.slice(0, MOST_VMS).sort(byName);
  const all = new Array<number>(count).fill(0);
  for (const { bucket, ns } of rows) all[bucket] = (all[bucket] ?? 0) + ns;
  const series = (name: string, colour: string, has: (series: string) => boolean): Series => {
    const values: (number | null)[] = all.map((ns) => (ns > 0 ? 0 : null));
    for (const row of rows) {
      const whole = all[row.bucket] ?? 0;
      if (whole > 0 && has(row.series))
        values[row.bucket] = (values[row.bucket] ?? 0) + row.ns / whole;
    }
    return { name, colour, values };
  };
  return [
    ...kept.map((vm, number) => series(cut(visible(vm), 40), `c${number}`, (name) => name === vm)),
    ...(kept.length < vms.length
      ? [
          series(
            `${vms.length - kept.length} other VMs`,
            "vm",
            (name) => name.startsWith("VM ") && !kept.includes(name),
          ),
        ]
      : []),
    series("the host itself", "host-kernel", (name) => name === "host"),
    series("idle", "idle", (name) => name === "idle"),
    series("not sampled", "not-sampled", (name) => name === "not_sampled"),
  ].filter(({ values }) => values.some((value) => value !== null && value > 0));
}

// Time of each second, by series.
export function trend(rows: Point[], buckets: Buckets): Series[] {
  const names = largest(
    totals(
      rows,
      (row) => row.series,
      (row) => row.ns,
    ),
  ).map(([name]) => name);
  return names.slice(0, MOST_MODULES).map((name, number) => {
    const values = new Array<number | null>(buckets.count).fill(0);
    for (const row of rows)
      if (row.series === name) values[row.bucket] = (1000 * row.ns) / buckets.length;
    return { name: cut(visible(name || "no module"), 60), colour: `c${number}`, values };
  });
}
