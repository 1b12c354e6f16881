// Whether an agent collects and sends.

import type { HostHealth } from "../api/client";
import { SLICE_MS } from "./place";
import { duration } from "./units";

export interface Agent {
  host: string;
  isEnrolled: boolean;
  // Absent: it sent nothing of this time.
  health: HostHealth | null;
}

// An agent that sends is late by a few windows at most, and by this much on a busy server.
const MOST_LATE_MS = 120_000;
const MOST_WINDOWS_LATE = 3;

// What is not covered between the first instant and the last. Both are known to a slice: a shorter gap is none.
export function gapNs({ health }: Agent): number {
  const gap = health ? (health.end_unix_ms - health.first_unix_ms) * 1e6 - health.covered_ns : 0;
  return SLICE_MS * 1e6 < gap ? gap : 0;
}

// From the end of its last window to the end of the range.
export function lagMs({ health }: Agent, rangeEnd: number): number {
  return health ? Math.max(0, rangeEnd - health.end_unix_ms) : Infinity;
}

export function isSilent(agent: Agent, rangeEnd: number): boolean {
  const { health } = agent;
  const windowMs = health ? health.covered_ns / 1e6 / Math.max(1, health.windows) : 0;
  return Math.max(MOST_LATE_MS, MOST_WINDOWS_LATE * windowMs) < lagMs(agent, rangeEnd);
}

export function stateOf(agent: Agent, rangeEnd: number): string {
  if (!agent.health) return "silent in this time";
  if (isSilent(agent, rangeEnd)) return `silent for ${duration(lagMs(agent, rangeEnd) * 1e6)}`;
  return agent.isEnrolled ? "sends" : "not enrolled any more";
}

// The share of sampling interrupts that never came.
export function missedShare({ health }: Agent): number {
  return health && health.samples + health.samples_missed > 0
    ? health.samples_missed / (health.samples + health.samples_missed)
    : 0;
}

// All hosts, those that have been silent for longest first.
export function agentsOf(sent: readonly HostHealth[], enrolled: ReadonlySet<string>): Agent[] {
  const known = new Map(sent.map((health) => [health.host, health]));
  const names = [...new Set([...enrolled, ...known.keys()])];
  const agents = names.map((host) => ({
    host,
    isEnrolled: enrolled.has(host),
    health: known.get(host) ?? null,
  }));
  return agents.sort((a, b) => (a.health?.end_unix_ms ?? 0) - (b.health?.end_unix_ms ?? 0));
}
