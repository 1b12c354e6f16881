// States of vCPUs (docs/measuring.md), as the page shows them.

export interface State {
  // As the result tables have it.
  state: string;
  name: string;
  // A colour of the exported pages.
  colour: string;
}

export const STATES: readonly State[] = [
  { state: "guest_user", name: "guest user", colour: "guest-user" },
  { state: "guest_kernel", name: "guest kernel", colour: "guest-kernel" },
  { state: "guest_unknown", name: "guest, level unknown", colour: "guest-unknown" },
  { state: "steal_outside", name: "waiting for a CPU (steal type 1)", colour: "preempted" },
  { state: "steal_vmm", name: "in the VMM (steal type 2)", colour: "vmm" },
  { state: "steal_vmm_waiting", name: "asleep in the VMM (steal type 2)", colour: "vmm-waiting" },
  { state: "throttled", name: "throttled by a quota", colour: "throttled" },
  { state: "halt_polling", name: "halt polling", colour: "halt-polling" },
  { state: "halt", name: "halted", colour: "idle" },
  { state: "paused", name: "paused", colour: "stopped" },
  { state: "not_sampled", name: "not sampled", colour: "not-sampled" },
  { state: "unknown", name: "unknown", colour: "unknown" },
];

export const GUEST = ["guest_user", "guest_kernel", "guest_unknown"];
// When the guest had nothing to do, or was not to do anything.
export const IDLE = ["halt", "halt_polling", "paused", "unknown"];

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
