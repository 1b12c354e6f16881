// States of vCPUs (docs/measuring.md), as the page shows them. The table is made from that of crates/model.

import table from "../../vcpu-states.json";

export interface State {
  // As the result tables have it.
  state: string;
  name: string;
  // A colour of the exported pages.
  colour: string;
  // What it counts as.
  account: string;
  // Whether the guest wanted this time, and got it.
  class: string;
}

export const STATES: readonly State[] = table;

const statesWhere = (is: (state: State) => boolean): readonly string[] =>
  STATES.filter(is).map(({ state }) => state);
const inAccount = (name: string) => statesWhere(({ account }) => account === name);
const inClass = (name: string) => statesWhere((state) => state.class === name);

export const GUEST = inAccount("guest");
export const STOLEN_OUTSIDE = inAccount("steal_outside");
export const STOLEN_VMM = inAccount("steal_vmm");
export const THROTTLED = inAccount("throttled");
export const NOT_SAMPLED = inAccount("not_sampled");
export const STOLEN = inClass("stolen");
// When the guest had nothing to do, or was not to do anything.
export const IDLE = inClass("idle");
// What it wanted and did not get, stolen or held back.
export const LOST: readonly string[] = [...STOLEN, ...inClass("held_back")];

export const stateOf = (name: string): State | undefined =>
  STATES.find(({ state }) => state === name);

export type Times = ReadonlyMap<string, number>;

export function sum(times: Times, states?: readonly string[]): number {
  let total = 0;
  for (const [state, ns] of times) if (!states || states.includes(state)) total += ns;
  return total;
}

// Adds up what rows say of each key.
export function totals<Row>(
  rows: readonly Row[],
  key: (row: Row) => string,
  value: (row: Row) => number,
): Map<string, number> {
  const found = new Map<string, number>();
  for (const row of rows) found.set(key(row), (found.get(key(row)) ?? 0) + value(row));
  return found;
}

export function largest(times: Times): [string, number][] {
  return [...times].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
}
