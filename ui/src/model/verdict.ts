// Why a VM is slow, in a sentence or two: the largest of what it lost, and to whom.

import {
  LOST,
  NOT_SAMPLED,
  STOLEN_OUTSIDE,
  STOLEN_VMM,
  THROTTLED,
  largest,
  sum,
  type Times,
} from "./states";
import { percent } from "./units";

// Less than this share of the time is nothing to speak of.
const MINIMUM = 0.02;

export interface Loss {
  states: Times;
  // Time that others had while this VM waited for a CPU, by their names.
  thieves: Times;
  // Time of VM exits, by reason.
  exits: Times;
  // The function that took most of the guest's own time, if functions are known.
  hottest?: { name: string; ns: number };
}

export interface Verdict {
  headline: string;
  reasons: string[];
}

export function verdict({ states, thieves, exits, hottest }: Loss): Verdict {
  const all = sum(states);
  if (all === 0) return { headline: "Nothing was recorded of this VM here.", reasons: [] };
  const [outside, vmm, throttled] = [
    sum(states, STOLEN_OUTSIDE),
    sum(states, STOLEN_VMM),
    sum(states, THROTTLED),
  ];
  const lost = sum(states, LOST);
  const reasons: [number, string][] = [
    [
      outside,
      `waited for a CPU ${percent(outside, all)} of the time${blame(thieves, outside, "taken by ")}`,
    ],
    [vmm, `was in the VMM ${percent(vmm, all)} of the time${blame(exits, vmm, "for the exit ")}`],
    [throttled, `was held back by a CPU quota ${percent(throttled, all)} of the time`],
  ];
  const shown = reasons
    .filter(([ns]) => ns >= MINIMUM * all)
    .sort(([a], [b]) => b - a)
    .map(([, text]) => text);
  const own =
    hottest && hottest.ns >= MINIMUM * all
      ? [
          `spent ${percent(hottest.ns, all)} of the time in ${hottest.name}, more than in any other function`,
        ]
      : [];
  const headline =
    shown.length > 0
      ? `This VM lost ${percent(lost, all)} of its vCPUs' time.`
      : `This VM lost little: ${percent(lost, all)} of its vCPUs' time.`;
  return { headline, reasons: [...shown, ...own, ...unsampled(states, all)] };
}

function blame(times: Times, all: number, words: string): string {
  const named = largest(times)
    .filter(([, ns]) => ns >= all / 10)
    .slice(0, 3);
  return named.length === 0
    ? ""
    : `: ${words}${named.map(([name, ns]) => `${name} (${percent(ns, all, 0)})`).join(", ")}`;
}

function unsampled(states: Times, all: number): string[] {
  const ns = sum(states, NOT_SAMPLED);
  return ns < all / 5
    ? []
    : [
        `was on a CPU, but not sampled, ${percent(ns, all)} of the time: the host missed sampling interrupts`,
      ];
}
