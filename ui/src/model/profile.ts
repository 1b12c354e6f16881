// Where the time of a VM's code went: the flame graph and the tables of a range, and how they differ between two.

import { GUEST, IDLE, LOST, NOT_SAMPLED, STOLEN, stateOf } from "./states";
import { byName, cut, visible } from "./text";

// Time of a vCPU, as the result tables charge it.
export interface CodeRow {
  state: string;
  process: string | null;
  thread: string | null;
  function: string | null;
  module: string | null;
  // The call path to the function, the outermost first, joined by `;`.
  stack?: string | null;
  // The last so many of it are the guest kernel's.
  kernelFrames?: number;
  thief: string | null;
  exit: string | null;
  ns: number;
  corrected: number;
  samples: number;
}

// The same in buckets of time: of each bucket that has any, its number, ns, corrected ns and samples.
export type CodeCells = Omit<CodeRow, "ns" | "corrected" | "samples"> & {
  cells: readonly number[];
};

// What some buckets have, the largest first.
export function ofBuckets(rows: readonly CodeCells[], first: number, last: number): CodeRow[] {
  const found: CodeRow[] = [];
  for (const { cells, ...code } of rows) {
    let [ns, corrected, samples] = [0, 0, 0];
    for (let at = 0; at < cells.length; at += 4) {
      const bucket = cells[at] ?? -1;
      if (bucket < first || last < bucket) continue;
      ns += cells[at + 1] ?? 0;
      corrected += cells[at + 2] ?? 0;
      samples += cells[at + 3] ?? 0;
    }
    if (ns > 0) found.push({ ...code, ns, corrected, samples });
  }
  return found.sort((a, b) => b.ns - a.ns);
}

// Corrected: without what was lost. Apparent: as the guest's own clock shows it.
export type Basis = "corrected" | "apparent";

export function timeOf(row: CodeRow, basis: Basis): number {
  if (basis === "corrected") return row.corrected;
  return IDLE.includes(row.state) ? 0 : row.ns;
}

// The data of `flame.js`.
export interface FlameData {
  kinds: string[];
  modules: string[];
  labels: [name: string, kind: number, module: number][];
  nodes: { label: number[]; depth: number[]; total: number[] };
}

interface Frame {
  name: string;
  kind: string;
  module: string;
}

// Levels of the host's own code, which runs for a VM: its VMM and vhost threads.
const HOST = ["host_kernel", "host_user"];

interface Branch {
  // Of each side.
  totals: number[];
  children: Map<string, Branch & { frame: Frame }>;
}

// A function's name as stacks have it, and back.
export const joinable = (name: string) => name.replaceAll("\\", "\\x5c").replaceAll(";", "\\x3b");
const unjoined = (name: string) => name.replaceAll("\\x3b", ";").replaceAll("\\x5c", "\\");
const namesOf = (stack: string) => stack.split(";").map(unjoined);

// The path to a guest's function, the function last.
function pathOf(row: CodeRow): Frame[] {
  if (row.function === null) return [];
  const module = row.module ?? "";
  const stack = row.stack ?? null;
  if (stack === null) {
    const isKernel = row.state === "guest_kernel" || module.startsWith("[");
    return [{ name: row.function, kind: isKernel ? "guest-kernel" : "guest-user", module }];
  }
  const names = namesOf(stack);
  const firstOfKernel = names.length - (row.kernelFrames ?? 0);
  return names.map((name, at) => ({
    name,
    kind: firstOfKernel <= at ? "guest-kernel" : "guest-user",
    // Callers have none: a function is one frame, whether it calls or not.
    module: "",
  }));
}

// From a function outward: it, its caller, the caller's caller. Where it calls itself, from its innermost call.
export function callersOf(row: CodeRow, name: string): Frame[] {
  const path = pathOf(row);
  const at = path.findLastIndex((frame) => frame.name === name);
  return path.slice(0, at + 1).reverse();
}

// From a function inward: it, what it calls. Where it calls itself, from its outermost call.
export function calleesOf(row: CodeRow, name: string): Frame[] {
  const path = pathOf(row);
  const at = path.findIndex((frame) => frame.name === name);
  return at < 0 ? [] : path.slice(at);
}

const NAME_LENGTH = 300;
export const UNATTRIBUTED = "[not attributed]";

// Time that no code of the guest is charged with has frames of its own, in brackets.
export function framesOf(row: CodeRow, basis: Basis): Frame[] {
  const frames: Frame[] = [{ name: row.process ?? UNATTRIBUTED, kind: "process", module: "" }];
  if (row.thread !== null && row.thread !== row.process)
    frames.push({ name: row.thread, kind: "process", module: "" });
  if (HOST.includes(row.state)) {
    const kind = row.state.replace("_", "-");
    const stack = row.stack ?? null;
    const names = stack === null ? [row.function ?? "[unknown]"] : namesOf(stack);
    for (const name of names) frames.push({ name, kind, module: "" });
    return frames;
  }
  frames.push(...pathOf(row));
  const state = stateOf(row.state);
  if (state === undefined) return frames;
  const lost = (name: string) => frames.push({ name: `[${name}]`, kind: state.colour, module: "" });
  if (NOT_SAMPLED.includes(row.state) && row.function === null) lost(state.name);
  if (basis === "corrected" || !LOST.includes(row.state)) return frames;
  // Without the type of steal.
  const name = state.name.replace(/ \(.*\)$/, "");
  lost(STOLEN.includes(row.state) ? `${name}: ${row.thief ?? row.exit ?? "unknown"}` : name);
  return frames;
}

// A tree of the sides' times: one side, or two that are compared. A node's total is the mean of the sides.
export function flame(
  sides: readonly (readonly CodeRow[])[],
  basis: Basis,
  scale: readonly number[] = sides.map(() => 1),
  frames: (row: CodeRow) => readonly Frame[] = (row) => framesOf(row, basis),
) {
  const branch = (): Branch => ({ totals: sides.map(() => 0), children: new Map() });
  const root = branch();
  sides.forEach((rows, side) => {
    for (const row of rows) {
      const time = timeOf(row, basis) * (scale[side] ?? 1);
      if (time === 0) continue;
      let at = root;
      at.totals[side] = (at.totals[side] ?? 0) + time;
      for (const frame of frames(row)) {
        const key = JSON.stringify([frame.name, frame.module, frame.kind]);
        const next = at.children.get(key) ?? { ...branch(), frame };
        at.children.set(key, next);
        next.totals[side] = (next.totals[side] ?? 0) + time;
        at = next;
      }
    }
  });
  return preorder(root, sides.length);
}

function preorder(root: Branch, sides: number) {
  const data: FlameData = {
    kinds: [],
    modules: [],
    labels: [],
    nodes: { label: [], depth: [], total: [] },
  };
  const [kinds, modules, labels] = [
    new Map<string, number>(),
    new Map<string, number>(),
    new Map<string, number>(),
  ];
  // Of each node, what each side has.
  const bySide: number[][] = [];
  const mean = ({ totals }: Branch) => totals.reduce((a, b) => a + b, 0) / sides;
  const visit = (at: Branch, label: number, depth: number) => {
    data.nodes.label.push(label);
    data.nodes.depth.push(depth);
    data.nodes.total.push(mean(at));
    bySide.push(at.totals);
    const children = [...at.children.values()].sort(
      (a, b) => mean(b) - mean(a) || byName(a.frame.name, b.frame.name),
    );
    for (const child of children) {
      const { name, kind, module } = child.frame;
      const key = JSON.stringify([name, kind, module]);
      const known =
        labels.get(key) ??
        data.labels.push([
          shorten(name),
          intern(kinds, data.kinds, kind),
          intern(modules, data.modules, shorten(module)),
        ]) - 1;
      labels.set(key, known);
      visit(child, known, depth + 1);
    }
  };
  visit(root, -1, 0);
  return { data, bySide };
}

const shorten = (name: string) => cut(visible(name), NAME_LENGTH);

function intern(known: Map<string, number>, list: string[], text: string): number {
  const index = known.get(text) ?? list.push(text) - 1;
  known.set(text, index);
  return index;
}

// Time of a function or a process.
export interface Line {
  process: string | null;
  function: string | null;
  module: string | null;
  corrected: number;
  apparent: number;
  samples: number;
}

export const functionKey = (row: CodeRow) =>
  row.function === null ? null : [row.process, row.function, row.module];
export const processKey = (row: CodeRow) => [row.process, null, null];

// Adds up rows by a key, whose parts become the line's; rows without one are left out. The largest is first.
export function lines(
  rows: readonly CodeRow[],
  key: (row: CodeRow) => (string | null)[] | null,
): Line[] {
  const found = new Map<string, Line>();
  for (const row of rows) {
    const parts = key(row);
    if (parts === null) continue;
    const text = JSON.stringify(parts);
    const [process = null, name = null, module = null] = parts;
    const line = found.get(text) ?? {
      process,
      function: name,
      module,
      corrected: 0,
      apparent: 0,
      samples: 0,
    };
    found.set(text, line);
    line.corrected += timeOf(row, "corrected");
    line.apparent += timeOf(row, "apparent");
    if (GUEST.includes(row.state)) line.samples += row.samples;
  }
  return [...found.values()].sort((a, b) => b.apparent - a.apparent);
}

// A function's shares of two ranges, in parts of all vCPU time.
export interface Change {
  function: string;
  module: string | null;
  a: number;
  b: number;
}

// The largest change is first.
export function changes(
  a: readonly CodeRow[],
  b: readonly CodeRow[],
  basis: Basis,
  wholes: readonly [number, number],
): Change[] {
  const found = new Map<string, Change>();
  (
    [
      ["a", a, wholes[0]],
      ["b", b, wholes[1]],
    ] as const
  ).forEach(([side, rows, whole]) => {
    for (const row of rows) {
      if (row.function === null || whole === 0) continue;
      const key = JSON.stringify([row.function, row.module]);
      const change = found.get(key) ?? { function: row.function, module: row.module, a: 0, b: 0 };
      found.set(key, change);
      change[side] += timeOf(row, basis) / whole;
    }
  });
  return [...found.values()].sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a));
}

// The class of a frame whose share changed by so much: of each colour the strongest is for a change of its mean by half.
export function changeClass(before: number, after: number): string {
  const relative = Math.abs(after - before) / Math.max(before, after);
  const level = relative < 0.05 ? 0 : relative < 0.2 ? 1 : relative < 0.5 ? 2 : 3;
  return level === 0 || Number.isNaN(relative)
    ? "same"
    : `${after > before ? "grew" : "shrank"}-${level}`;
}
