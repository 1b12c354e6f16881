import assert from "node:assert/strict";
import test from "node:test";
import { csv } from "./csv";
import { cpus, evidenceOf, measured } from "./finding";
import {
  bucketAt,
  bucketsIn,
  bucketsOf,
  formatPlace,
  formatSpan,
  parsePlace,
  parseSpan,
  spanOf,
  spanOfBuckets,
} from "./place";
import {
  type CodeCells,
  type CodeRow,
  calleesOf,
  callersOf,
  changeClass,
  changes,
  flame,
  functionKey,
  lines,
  ofBuckets,
} from "./profile";
import { pointsOf, statesOverTime } from "./series";
import { byName, cut, visible } from "./text";
import { type Agent, agentsOf, gapNs, isSilent, missedShare, stateOf } from "./agent";
import { duration, durations, percent } from "./units";
import { verdict } from "./verdict";

test("what can't be seen in a name is made visible", () => {
  const check = (name: string, expected: string) => assert.equal(visible(name), expected);
  check('plain <b>& "漢字" é ـي 😀', 'plain <b>& "漢字" é ـي 😀');
  check("\u001b[2J\u009b31m\r\n", "\\u{1b}[2J\\u{9b}31m\\u{d}\\u{a}");
  check("gpj.\u202eexe\u2066\u200b\ufeff", "gpj.\\u{202e}exe\\u{2066}\\u{200b}\\u{feff}");
  check("\u{e0041}\ud800x", "\\u{e0041}\\u{d800}x");
  check(
    "e\u0301 a\u0301\u0301\u0301\u0301\u0301",
    "e\u0301 a\\u{301}\\u{301}\\u{301}\\u{301}\\u{301}",
  );
});

test("long names are cut between characters", () => {
  assert.equal(cut("abc", 3), "abc");
  assert.equal(cut("abcd", 3), "ab…");
  assert.equal(cut("😀😀😀😀", 3), "😀😀…");
  assert.equal(cut("😀😀😀", 3), "😀😀😀");
  assert.equal(cut("x".repeat(10_000), 72).length, 72);
  assert.deepEqual(["vm10", "vm9", "VM1"].sort(byName), ["VM1", "vm9", "vm10"]);
});

test("figures are short", () => {
  const check = (ns: number, expected: string) => assert.equal(duration(ns), expected);
  check(0, "0 ns");
  check(999, "999 ns");
  check(1500, "1.50 us");
  check(90e9, "90.0 s");
  check(150e9, "2.50 min");
  check(-2e9, "-2.00 s");
  check(100 * 86400e9, "100 d");
  const column = durations([90e9, 3e9, 1e6, 0, Infinity]);
  assert.deepEqual([90e9, 3e9, 1e6, 0].map(column), ["90.00 s", "3.00 s", "<0.01 s", "0.00 s"]);
  assert.deepEqual([7200e9, 5e9].map(durations([7200e9, 5e9])), ["2.00 h", "<0.01 h"]);
  assert.deepEqual([7, 0].map(durations([7, 0])), ["7 ns", "0 ns"]);
  assert.equal(durations([])(0), "0 ns");
  assert.equal(percent(1, 3), "33.3 %");
  assert.equal(percent(1, 0), "-");
});

test("an agent sends, is late, is silent, and has gaps", () => {
  const windows = (n: number, more: Partial<NonNullable<Agent["health"]>> = {}) => ({
    host: "a",
    windows: n,
    cpus: 2,
    covered_ns: n * 60e9,
    first_unix_ms: 60_000,
    end_unix_ms: 60_000 + n * 60_000,
    samples: 90,
    samples_lost: 0,
    samples_missed: 10,
    kernel: "6.1",
    vmscope_version: "0.3",
    ...more,
  });
  const agent = (health: Agent["health"], isEnrolled = true): Agent => ({
    host: "a",
    isEnrolled,
    health,
  });
  const ten = agent(windows(10));
  const state = (agent: Agent, minutes: number) => stateOf(agent, 660_000 + 60_000 * minutes);
  assert.deepEqual(
    [0, 3, 4, 19].map((minutes) => state(ten, minutes)),
    ["sends", "sends", "silent for 4.00 min", "silent for 19.0 min"],
  );
  // Windows of an hour come each hour.
  const hourly = agent(windows(1, { covered_ns: 3600e9, end_unix_ms: 660_000 }));
  assert.deepEqual(
    [isSilent(hourly, 660_000 + 3 * 3_600_000), isSilent(hourly, 660_001 + 3 * 3_600_000)],
    [false, true],
  );
  assert.deepEqual(
    [state(agent(null), 0), state(agent(windows(10), false), 0)],
    ["silent in this time", "not enrolled any more"],
  );
  // The first and the last instant are known to a slice of 10 s.
  const gap = (missing_ms: number) =>
    gapNs(agent(windows(10, { end_unix_ms: 660_000 + missing_ms })));
  assert.deepEqual([-9_000, 0, 10_000, 10_001, 60_000].map(gap), [0, 0, 0, 10_001e6, 60e9]);
  assert.deepEqual([missedShare(ten), missedShare(agent(null))], [0.1, 0]);
  const all = agentsOf([windows(10), { ...windows(3), host: "b" }], new Set(["a", "c"]));
  assert.deepEqual(
    all.map(({ host, isEnrolled }) => [host, isEnrolled]),
    [
      ["c", true],
      ["b", false],
      ["a", true],
    ],
  );
});

test("a file for spreadsheets has no formulas", () => {
  const rows = [
    { name: '=1+"2"', ns: -3, more: "left out" },
    { name: null, ns: 4, more: "" },
  ];
  const expected = ["name,ns", `"'=1+""2""",-3`, ",4", ""].join("\r\n");
  assert.equal(csv(["name", "ns"], rows), expected);
});

test("a place is what its address says", () => {
  const name = "a/b c?<img>#%\u202e&x=1";
  const place = {
    path: ["vm", "kvm1", name],
    range: { from: 60_000, to: 120_000 },
    more: { q: name },
  };
  assert.deepEqual(parsePlace(formatPlace(place)), place);
  const live = { path: [], range: { last: 21_600 }, more: {} };
  assert.deepEqual(parsePlace(formatPlace(live)), live);
  for (const odd of [
    "",
    "#",
    "#/",
    "#/?from=x&to=y",
    "#/?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
    "#/?last=9y",
  ]) {
    assert.deepEqual(parsePlace(odd), { path: [], range: { last: 3600 }, more: {} }, odd);
  }
  assert.deepEqual(parsePlace("#/vm/%zz/%41").path, ["vm", "%zz", "A"]);
  const unnamed = { path: ["vm", "kvm1", ""], range: { last: 3600 }, more: {} };
  assert.deepEqual(parsePlace(formatPlace(unnamed)), unnamed);
  const span = { from: 10_000, to: 30_000 };
  assert.deepEqual(parseSpan(formatSpan(span)), span);
  for (const odd of [undefined, "", "~", "x~y", formatSpan({ from: 2, to: 1 })])
    assert.equal(parseSpan(odd), null);
});

test("ranges are shown in whole buckets", () => {
  assert.deepEqual(spanOf({ last: 60 }, 100_001), { from: 50_000, to: 110_000 });
  const buckets = bucketsOf({ from: 65_000, to: 665_000 }, 12);
  assert.deepEqual(buckets, { start: 60_000, length: 60_000, count: 11 });
  assert.deepEqual(
    [0, 60_000, 119_999, 120_000, 9e9].map((ms) => bucketAt(buckets, ms)),
    [0, 0, 0, 1, 10],
  );
  assert.deepEqual(spanOfBuckets(buckets, 3, 1), { from: 120_000, to: 300_000 });
  // None is shorter than a slice, and years are still few.
  assert.equal(bucketsOf({ from: 0, to: 20_000 }, 100).length, 10_000);
  assert.equal(bucketsOf({ from: 0, to: 400 * 86_400_000 }, 100).count, 400);
});

const row = (
  state: string,
  name: string | null,
  ns: number,
  more: Partial<CodeRow> = {},
): CodeRow => ({
  state,
  process: "p",
  thread: "p",
  function: name,
  module: null,
  thief: null,
  exit: null,
  ns,
  corrected: state.startsWith("guest") || state === "not_sampled" ? ns : 0,
  samples: 1,
  ...more,
});
const ROWS = [
  row("guest_user", "f", 60),
  row("guest_kernel", "g", 20, { thread: "t", module: "[kernel]" }),
  row("steal_outside", "f", 30, { thief: "VM b" }),
  row("steal_vmm", "g", 5, { thread: "t", module: "[kernel]", exit: "msr" }),
  row("halt", null, 100, { process: null, thread: null }),
];

// A tree as lines: depth, name, total.
function drawn(rows: CodeRow[], basis: "corrected" | "apparent"): string[] {
  const { nodes, labels } = flame([rows], basis).data;
  return nodes.label.map(
    (label, at) =>
      `${" ".repeat(nodes.depth[at] ?? 0)}${label < 0 ? "all" : labels[label]?.[0]} ${nodes.total[at]}`,
  );
}

test("a flame graph has what was stolen in apparent time only", () => {
  assert.deepEqual(drawn(ROWS, "corrected"), ["all 80", " p 80", "  f 60", "  t 20", "   g 20"]);
  assert.deepEqual(drawn(ROWS, "apparent"), [
    "all 115",
    " p 115",
    "  f 90",
    "   [waiting for a CPU: VM b] 30",
    "  t 25",
    "   g 25",
    "    [in the VMM: msr] 5",
  ]);
  assert.deepEqual(drawn([], "apparent"), ["all 0"]);
  assert.deepEqual(drawn([row("guest_user", "\u202ex", 1)], "corrected")[2], "  \\u{202e}x 1");
});

test("the host's code is shown by its call stacks", () => {
  const host = [
    row("host_user", "c", 3, { stack: "a;b;c", corrected: 3 }),
    row("host_kernel", "k", 2, { corrected: 2 }),
  ];
  assert.deepEqual(drawn(host, "corrected"), [
    "all 5",
    " p 5",
    "  a 3",
    "   b 3",
    "    c 3",
    "  k 2",
  ]);
});

test("a guest's code is shown by its call stacks", () => {
  const rows = [
    row("guest_user", "f[u8; 2]", 3, { stack: "main;f[u8\\x3b 2]", corrected: 3 }),
    row("guest_user", "read", 1, { stack: "main;read", module: "/lib/libc.so.6", corrected: 1 }),
    row("guest_kernel", "ksys_read", 2, {
      stack: "main;read;entry;ksys_read",
      kernelFrames: 2,
      module: "[kernel]",
      corrected: 2,
    }),
  ];
  assert.deepEqual(drawn(rows, "corrected"), [
    "all 6",
    " p 6",
    "  main 6",
    "   f[u8; 2] 3",
    "   read 3",
    "    entry 2",
    "     ksys_read 2",
  ]);
  const { labels, kinds } = flame([rows], "corrected").data;
  const kindOf = (wanted: string) => kinds[labels.find(([name]) => name === wanted)?.[1] ?? -1];
  assert.deepEqual(["main", "f[u8; 2]", "read", "entry", "ksys_read"].map(kindOf), [
    "guest-user",
    "guest-user",
    "guest-user",
    "guest-kernel",
    "guest-kernel",
  ]);
  const names = (frames: { name: string }[]) => frames.map(({ name }) => name).join(" ");
  const [of_f, , of_read] = rows;
  if (of_f === undefined || of_read === undefined) throw new Error();
  assert.equal(names(callersOf(of_read, "entry")), "entry read main");
  assert.equal(names(calleesOf(of_read, "read")), "read entry ksys_read");
  assert.equal(names(callersOf(of_f, "read")), "");
});

test("functions have both times", () => {
  const [f, g] = lines(ROWS, functionKey);
  assert.deepEqual([f?.function, f?.corrected, f?.apparent, f?.samples], ["f", 60, 90, 1]);
  assert.deepEqual([g?.function, g?.corrected, g?.apparent], ["g", 20, 25]);
});

test("two ranges differ by shares", () => {
  const after = [row("guest_user", "f", 30), row("guest_user", "new", 70)];
  assert.deepEqual(changes(ROWS, after, "corrected", [200, 100]), [
    { function: "new", module: null, a: 0, b: 0.7 },
    { function: "g", module: "[kernel]", a: 0.1, b: 0 },
    { function: "f", module: null, a: 0.3, b: 0.3 },
  ]);
  const { data, bySide } = flame([ROWS, after], "corrected", [1 / 256, 1 / 128]);
  const at = data.nodes.label.findIndex((label) => data.labels[label]?.[0] === "new");
  assert.deepEqual([bySide[at], data.nodes.total[at]], [[0, 70 / 128], 70 / 256]);
  const classes = (
    [
      [1, 1],
      [0, 0],
      [1, 1.1],
      [1, 1.4],
      [0, 1],
      [1, 0.7],
      [1, 0],
    ] as const
  ).map(([a, b]) => changeClass(a, b));
  assert.deepEqual(classes, ["same", "same", "grew-1", "grew-2", "grew-3", "shrank-2", "shrank-3"]);
});

test("the verdict names the largest loss first, and who did it", () => {
  const check = (states: Record<string, number>, expected: string[], more = {}) => {
    const found = verdict({
      states: new Map(Object.entries(states)),
      thieves: new Map(),
      exits: new Map(),
      ...more,
    });
    assert.deepEqual([found.headline, ...found.reasons], expected);
  };
  check({}, ["Nothing was recorded of this VM here."]);
  check({ guest_user: 50, halt: 50 }, ["This VM lost little: 0.0 % of its vCPUs' time."]);
  check(
    { guest_user: 60, steal_outside: 10, steal_vmm: 25, steal_vmm_waiting: 5 },
    [
      "This VM lost 40.0 % of its vCPUs' time.",
      "was in the VMM 30.0 % of the time: for the exit io (100 %)",
      "waited for a CPU 10.0 % of the time: taken by VM b (90 %), kworker (10 %)",
      "spent 40.0 % of the time in f, more than in any other function",
    ],
    {
      thieves: new Map([
        ["kworker", 1],
        ["VM b", 9],
      ]),
      exits: new Map([["io", 30]]),
      hottest: { name: "f", ns: 40 },
    },
  );
  check({ guest_user: 50, throttled: 30, not_sampled: 20 }, [
    "This VM lost 30.0 % of its vCPUs' time.",
    "was held back by a CPU quota 30.0 % of the time",
    "was on a CPU, but not sampled, 20.0 % of the time: the host missed sampling interrupts",
  ]);
});

test("a part of a range is added up from its buckets", () => {
  const buckets = { start: 60_000, length: 10_000, count: 6 };
  assert.deepEqual(bucketsIn(buckets, { from: 70_000, to: 90_000 }), { first: 1, last: 2 });
  assert.deepEqual(bucketsIn(buckets, { from: 60_000, to: 120_000 }), { first: 0, last: 5 });
  for (const odd of [
    { from: 75_000, to: 90_000 },
    { from: 50_000, to: 70_000 },
    { from: 110_000, to: 130_000 },
  ])
    assert.equal(bucketsIn(buckets, odd), null);
  const code = {
    process: null,
    thread: null,
    function: null,
    module: null,
    thief: null,
    exit: null,
  };
  const rows: CodeCells[] = [
    { ...code, state: "guest_user", cells: [0, 10, 10, 1, 2, 30, 30, 3] },
    { ...code, state: "halt", cells: [2, 70, 0, 0, 5, 5, 0, 0] },
  ];
  const added = (first: number, last: number) =>
    ofBuckets(rows, first, last).map(({ state, ns, corrected, samples }) => [
      state,
      ns,
      corrected,
      samples,
    ]);
  assert.deepEqual(added(0, 5), [
    ["halt", 75, 0, 0],
    ["guest_user", 40, 40, 4],
  ]);
  assert.deepEqual(added(1, 2), [
    ["halt", 70, 0, 0],
    ["guest_user", 30, 30, 3],
  ]);
  assert.deepEqual(added(3, 4), []);
  const series = statesOverTime(pointsOf(rows), buckets);
  assert.deepEqual(
    series.map(({ name, values }) => [name, values]),
    [
      ["guest user", [1, null, 0.3, null, null, 0]],
      ["halted", [0, null, 0.7, null, null, 1]],
    ],
  );
  assert.deepEqual(bucketsOf({ from: 0, to: 60_000 }, 120, 1000), {
    start: 0,
    length: 1000,
    count: 60,
  });
  assert.deepEqual(bucketsOf({ from: 0, to: 60_000 }, 120), { start: 0, length: 10_000, count: 6 });
});

test("a cause is shown as facts", () => {
  const code = { process: "sh", function: "f", module: "/bin/sh" };
  const thief = evidenceOf({
    kind: "thief",
    owner: { kind: "vm", name: "ci" },
    part: 0.9,
    functions: [{ code, cpus: 0.5 }],
    is_new: true,
  });
  assert.deepEqual(thief.facts, [
    { title: "Thief", text: "VM ci", vm: "ci" },
    { title: "Its part of the additional steal type 1", text: "90 %" },
    { title: "New", text: "it was not there before" },
  ]);
  assert.equal(thief.functions.length, 1);
  const grown = evidenceOf({
    kind: "function",
    code,
    is_lock: false,
    is_new: false,
    build: { before: "0a", after: "0b" },
  });
  assert.deepEqual(
    grown.facts.map(({ text }) => text),
    ["f", "0a", "0b"],
  );
  const full = evidenceOf({
    kind: "overcommitted",
    wanted_cpus: 3,
    cpus: 2,
    owners: [{ owner: { kind: "kernel-thread", name: "ksoftirqd" }, cpus: 1 }],
  });
  assert.deepEqual(full.owners, [{ name: "kernel thread ksoftirqd", cpus: 1 }]);
  assert.equal(evidenceOf({ kind: "unknown" }).facts.length, 1);
  assert.deepEqual([cpus(0), cpus(0.05), cpus(-1.234)], ["0.00 CPUs", "0.050 CPUs", "-1.23 CPUs"]);
  assert.deepEqual(
    [
      measured({ kind: "exits", reason: "io" }, 12.3),
      measured({ kind: "useful" }, 0.005),
      measured({ kind: "useful" }, 0.5),
    ],
    ["12 for each vCPU and second", "0.500 %", "50.0 %"],
  );
});
