// What the views ask, in SQL on the result tables (docs/formats.md).

import type { Answer, Question, WindowId } from "./client";
import { ready, seconds, sql } from "./client";
import { type CodeCells, type CodeRow, joinable } from "../model/profile";
import { type Buckets, iso } from "../model/place";
import type { Point } from "../model/series";
import type { Span } from "../model/units";

// Rows, and why they are not all there are.
export interface Table<Row> {
  rows: Row[];
  partial: string[];
}

// Of a build id: enough to tell builds apart.
const BUILD_LETTERS = 12;
// Windows that are looked at second by second, and how long one may be.
const MOST_WINDOWS = 12;
const LONGEST_WINDOW_MS = 3_600_000;

type Cells = Record<string, unknown>;

const text = (cell: unknown): string => (typeof cell === "string" ? cell : "");
const maybe = (cell: unknown): string | null => (typeof cell === "string" ? cell : null);
// Sums that don't fit into 64 bits come as text.
const number = (cell: unknown): number => Number(cell ?? 0);

// A name as SQL.
const quote = (name: string): string => `'${name.replaceAll("'", "''")}'`;
const within = (span: Span): string => `slice >= '${iso(span.from)}' AND slice < '${iso(span.to)}'`;
const bucket = ({ start, length, count }: Buckets): string =>
  count === 1 ? "0" : `(to_unixtime(slice) - ${start / 1000}) / ${length / 1000}`;
// Without the process id, which would make a thief of its own of each run of a short command. A process may call itself like a
// VM or a kernel thread. Results of version 0.2 and before have a text only.
const THIEF = `coalesce('VM ' || thief_vm,
  CASE WHEN thief_kind = 'process' AND (thief_name LIKE 'VM %' OR thief_name LIKE '[%') THEN '"' || thief_name || '"'
    WHEN thief_kind = 'process' THEN thief_name WHEN thief_kind = 'kernel_thread' THEN '[' || thief_name || ']' END,
  CASE WHEN thief LIKE '% (%)' THEN left(thief, length(thief) - strpos(reverse(thief), '( ') - 1) ELSE thief END)`;

function rowsOf<Row>({ columns, rows, partial }: Answer, row: (cells: Cells) => Row): Table<Row> {
  const cells = (values: unknown[]) =>
    Object.fromEntries(columns.map(({ name }, index) => [name, values[index]]));
  return { rows: rows.map((values) => row(cells(values))), partial };
}

async function table<Row>(
  query: string,
  span: Span,
  host: string | null,
  signal: AbortSignal,
  row: (cells: Cells) => Row,
): Promise<Table<Row>> {
  const question: Question = {
    sql: query,
    from: iso(span.from),
    to: iso(span.to),
    ...(host === null ? {} : { host }),
  };
  return rowsOf(await sql(question, signal), row);
}

const point = (row: Cells): Point => ({
  series: text(row["series"]),
  bucket: number(row["bucket"]),
  ns: number(row["ns"]),
});

// What a host's CPUs did: for a VM (its guest, VMM and vhost threads), for the host itself, nothing.
export function cpuShares(
  host: string,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<Point>> {
  const query = `
    SELECT coalesce('VM ' || vm, CASE WHEN level IN ('idle', 'not_sampled') THEN level ELSE 'host' END) AS series, ${bucket(buckets)} AS bucket, sum(ns) AS ns
    FROM cpu_time WHERE host = ${quote(host)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, host, signal, point);
}

// What a VM's vCPUs did.
export function vmStates(
  host: string,
  vm: string,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<Point>> {
  const query = `
    SELECT state AS series, ${bucket(buckets)} AS bucket, sum(ns) AS ns
    FROM vcpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, host, signal, point);
}

// CPU time to charge for, and what was lost; all but names in ns.
export interface MeteringRow {
  host: string;
  // Null: a gap in the host's windows.
  vm: string | null;
  project: string | null;
  owner: string | null;
  day: string | null;
  line: string;
  process: string | null;
  apparent: number;
  corrected: number;
  stealOutside: number;
  stealVmm: number;
  throttled: number;
  notCharged: number;
}

export async function metering(span: Span, signal: AbortSignal): Promise<Table<MeteringRow>> {
  const range = { from: iso(span.from), to: iso(span.to) };
  return rowsOf(await ready("metering", range, signal), (row) => ({
    host: text(row["host"]),
    vm: maybe(row["vm"]),
    project: maybe(row["project"]),
    owner: maybe(row["owner"]),
    day: maybe(row["day"]),
    line: text(row["line"]),
    process: maybe(row["process"]),
    apparent: number(row["apparent_ns"]),
    corrected: number(row["corrected_ns"]),
    stealOutside: number(row["steal_outside_ns"]),
    stealVmm: number(row["steal_vmm_ns"]),
    throttled: number(row["throttled_ns"]),
    notCharged: number(row["not_charged_ns"]),
  }));
}

export interface StateRow {
  vm: string;
  state: string;
  thief: string | null;
  ns: number;
}

// What the vCPUs of a host's VMs did, and who had the CPU meanwhile.
export function hostStates(
  host: string,
  span: Span,
  signal: AbortSignal,
): Promise<Table<StateRow>> {
  const query = `
    SELECT vm, state, ${THIEF} AS thief, sum(ns) AS ns
    FROM vcpu_time WHERE host = ${quote(host)} AND ${within(span)} GROUP BY 1, 2, 3 ORDER BY ns DESC`;
  return table(query, span, host, signal, (row) => ({
    vm: text(row["vm"]),
    state: text(row["state"]),
    thief: maybe(row["thief"]),
    ns: number(row["ns"]),
  }));
}

export interface VmSize {
  vm: string;
  vcpus: number;
  noMap: string | null;
}

export function vmSizes(host: string, span: Span, signal: AbortSignal): Promise<Table<VmSize>> {
  const query = `SELECT vm, max(vcpus) AS vcpus, max(no_map_reason) AS reason FROM vms WHERE host = ${quote(host)} AND ${within(span)} GROUP BY vm`;
  return table(query, span, host, signal, (row) => ({
    vm: text(row["vm"]),
    vcpus: number(row["vcpus"]),
    noMap: maybe(row["reason"]),
  }));
}

// A host's CPUs, and the length of its windows together.
export function hostSize(
  host: string,
  span: Span,
  signal: AbortSignal,
): Promise<Table<{ cpus: number; covered: number }>> {
  const query = `SELECT max(cpus) AS cpus, sum(length_ns) AS covered FROM hosts WHERE host = ${quote(host)} AND ${within(span)}`;
  return table(query, span, host, signal, (row) => ({
    cpus: number(row["cpus"]),
    covered: number(row["covered"]),
  }));
}

// Rows with what each bucket has of them: a part of a range needs no further question.
const inBuckets = (columns: string, sums: string, from: string, buckets: Buckets): string => `
    SELECT ${columns}, string_agg(concat_ws(':', bucket, ${sums}), ' ') AS cells FROM (${from.replace("BUCKET", bucket(buckets))}) GROUP BY ${columns}`;
const cellsOf = (row: Cells): number[] => text(row["cells"]).split(/[ :]/).map(Number);

// A VM's time by code, thief and exit reason: all that is known of a range.
export async function vmCode(
  host: string,
  vm: string,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<CodeCells>> {
  const columns =
    "state, process, thread, function, module, stack, kernel_frames, thief, exit_reason";
  const query = inBuckets(
    columns,
    "ns, corrected, samples",
    `
    SELECT state, process, thread, function, module, stack, kernel_frames, ${THIEF} AS thief, exit_reason, BUCKET AS bucket,
           sum(ns) AS ns, sum(corrected_ns) AS corrected, sum(samples) AS samples
    FROM vcpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10`,
    buckets,
  );
  return table(query, span, host, signal, (row) => ({
    state: text(row["state"]),
    process: maybe(row["process"]),
    thread: maybe(row["thread"]),
    function: maybe(row["function"]),
    module: maybe(row["module"]),
    stack: maybe(row["stack"]),
    kernelFrames: number(row["kernel_frames"] ?? 0),
    thief: maybe(row["thief"]),
    exit: maybe(row["exit_reason"]),
    cells: cellsOf(row),
  }));
}

// The windows of a host that may have something of a range.
async function windowsOf(host: string, span: Span, signal: AbortSignal): Promise<WindowId[]> {
  const query = `
    SELECT boot, window_ns FROM hosts WHERE host = ${quote(host)}
    AND slice < '${iso(span.to)}' AND to_unixtime(slice) + length_ns / 1000000000 + 10 >= ${Math.floor(span.from / 1000)} ORDER BY slice`;
  const earlier = { from: span.from - LONGEST_WINDOW_MS, to: span.to };
  const { rows } = await table(query, earlier, host, signal, (row): WindowId => [
    host,
    text(row["boot"]),
    String(row["window_ns"]).padStart(20, "0"),
  ]);
  return rows;
}

// A VM's time second by second, from the windows themselves; null: they are not stored any more.
export async function vmSeconds(
  host: string,
  vm: string,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<CodeCells> | null> {
  const span = { from: buckets.start, to: buckets.start + buckets.count * buckets.length };
  const windows = await windowsOf(host, span, signal);
  const answers = await Promise.all(
    windows.slice(0, MOST_WINDOWS).map((window) => seconds(window, vm, signal)),
  );
  const rows = answers.flatMap((answer) =>
    (answer?.rows ?? []).map(({ cells, ...row }): CodeCells => {
      const shift = (answer?.start_unix_s ?? 0) - buckets.start / 1000;
      const inside = cells
        .map(([second = 0, ...sums]) => [
          Math.floor(((second + shift) * 1000) / buckets.length),
          ...sums,
        ])
        .filter(([bucket = -1]) => 0 <= bucket && bucket < buckets.count);
      return {
        state: row.state,
        process: row.process ?? null,
        thread: row.thread ?? null,
        function: row.function ?? null,
        module: row.module ?? null,
        stack: row.stack ?? null,
        kernelFrames: row.kernel_frames ?? 0,
        thief:
          row.thief_vm === undefined
            ? (row.thief?.replace(/ \(\d+\)$/, "") ?? null)
            : `VM ${row.thief_vm}`,
        exit: row.exit_reason ?? null,
        cells: inside.flat(),
      };
    }),
  );
  if (answers.every((answer) => answer === null)) return null;
  const lacks = [
    ...(answers.includes(null) ? ["a part of this time is stored in slices of 10 s only"] : []),
    ...(MOST_WINDOWS < windows.length
      ? [`only ${MOST_WINDOWS} of ${windows.length} windows are shown`]
      : []),
  ];
  return { rows, partial: lacks };
}

// What the host ran for a VM: its VMM, vhost, KVM.
export function vmHostCode(
  host: string,
  vm: string,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<CodeCells>> {
  const query = inBuckets(
    "level, process, thread, function, module, stack",
    "ns, ns, samples",
    `
    SELECT level, process, thread, function, module, stack, BUCKET AS bucket, sum(ns) AS ns, sum(samples) AS samples
    FROM cpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND level IN ('host_kernel', 'host_user') AND ${within(span)}
    GROUP BY 1, 2, 3, 4, 5, 6, 7`,
    buckets,
  );
  return table(query, span, host, signal, (row) => ({
    state: text(row["level"]),
    process: maybe(row["process"]),
    thread: maybe(row["thread"]),
    function: maybe(row["function"]),
    module: maybe(row["module"]),
    stack: maybe(row["stack"]),
    thief: null,
    exit: null,
    cells: cellsOf(row),
  }));
}

// How often a VM exited, where exits are counted.
export function vmExits(
  host: string,
  vm: string,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<{ reason: string; bucket: number; exits: number }>> {
  const query = `
    SELECT exit_reason, ${bucket(buckets)} AS bucket, sum(exits) AS exits
    FROM exits WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, host, signal, (row) => ({
    reason: text(row["exit_reason"]),
    bucket: number(row["bucket"]),
    exits: number(row["exits"]),
  }));
}

export interface FunctionPlace {
  host: string;
  vm: string;
  process: string | null;
  module: string | null;
  corrected: number;
  apparent: number;
  // Of all vCPU time of this VM.
  share: number;
}

const isFunction = (name: string, module: string | null): string =>
  `function = ${quote(name)}${module === null ? "" : ` AND module = ${quote(module)}`}`;

// Where in the fleet a function runs.
export function functionPlaces(
  name: string,
  module: string | null,
  span: Span,
  signal: AbortSignal,
): Promise<Table<FunctionPlace>> {
  const query = `
    SELECT f.host AS host, f.vm AS vm, process, module, corrected, apparent, CAST(corrected AS DOUBLE) / CAST(whole AS DOUBLE) AS share
    FROM (SELECT host, vm, process, module, sum(corrected_ns) AS corrected, sum(ns) AS apparent
          FROM vcpu_time WHERE ${isFunction(name, module)} AND ${within(span)} GROUP BY 1, 2, 3, 4) AS f
    JOIN (SELECT host, vm, sum(vcpu_ns) AS whole FROM vms WHERE ${within(span)} GROUP BY 1, 2) AS v ON f.host = v.host AND f.vm = v.vm
    ORDER BY corrected DESC LIMIT 1000`;
  return table(query, span, null, signal, (row) => ({
    host: text(row["host"]),
    vm: text(row["vm"]),
    process: maybe(row["process"]),
    module: maybe(row["module"]),
    corrected: number(row["corrected"]),
    apparent: number(row["apparent"]),
    share: number(row["share"]),
  }));
}

// The call paths that it is on, in the whole fleet: as code of one VM.
export function functionPaths(
  name: string,
  span: Span,
  signal: AbortSignal,
): Promise<Table<CodeRow>> {
  const frame = quote(`;${joinable(name)};`);
  const query = `
    SELECT state, function, module, stack, kernel_frames, sum(ns) AS ns, sum(corrected_ns) AS corrected, sum(samples) AS samples
    FROM vcpu_time WHERE strpos(concat(';', stack, ';'), ${frame}) > 0 AND corrected_ns > 0 AND ${within(span)}
    GROUP BY 1, 2, 3, 4, 5 ORDER BY corrected DESC LIMIT 2000`;
  return table(query, span, null, signal, (row) => ({
    state: text(row["state"]),
    process: null,
    thread: null,
    function: maybe(row["function"]),
    module: maybe(row["module"]),
    stack: maybe(row["stack"]),
    kernelFrames: number(row["kernel_frames"] ?? 0),
    thief: null,
    exit: null,
    ns: number(row["ns"]),
    corrected: number(row["corrected"]),
    samples: number(row["samples"]),
  }));
}

// Its corrected time in the whole fleet, by module and build.
export function functionTrend(
  name: string,
  module: string | null,
  span: Span,
  buckets: Buckets,
  signal: AbortSignal,
): Promise<Table<Point>> {
  const query = `
    SELECT concat(coalesce(module, ''), CASE WHEN build_id IS NULL THEN '' ELSE concat(' (build ', left(build_id, ${BUILD_LETTERS}), ')') END) AS series, ${bucket(buckets)} AS bucket, sum(corrected_ns) AS ns
    FROM vcpu_time WHERE ${isFunction(name, module)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, null, signal, point);
}

export interface Found {
  kind: "host" | "VM" | "function";
  name: string;
  host: string | null;
  module: string | null;
  ns: number;
}

// What VMs' managers know of them.
const LABELS = ["instance", "manager_id", "namespace", "owner", "pod", "project", "tags", "uuid"];

// Hosts, VMs and functions whose names have a text in them, whatever its case, and VMs whose labels have it.
export async function search(
  wanted: string,
  span: Span,
  signal: AbortSignal,
): Promise<Table<Found>> {
  const has = (column: string) => `strpos(lower(${column}), ${quote(wanted.toLowerCase())}) > 0`;
  const vms = `
    SELECT host, vm, sum(vcpu_ns) AS ns FROM vms WHERE ${within(span)} AND (${["vm", "host", ...LABELS].map(has).join(" OR ")}) GROUP BY 1, 2 ORDER BY ns DESC LIMIT 200`;
  const functions = `
    SELECT function, module, sum(corrected_ns) AS ns FROM vcpu_time WHERE ${within(span)} AND ${has("function")}
    GROUP BY 1, 2 ORDER BY ns DESC LIMIT 200`;
  const [machines, code] = await Promise.all([
    table(vms, span, null, signal, (row): Found => ({
      kind: "VM",
      name: text(row["vm"]),
      host: text(row["host"]),
      module: null,
      ns: number(row["ns"]),
    })),
    table(functions, span, null, signal, (row): Found => ({
      kind: "function",
      name: text(row["function"]),
      host: null,
      module: maybe(row["module"]),
      ns: number(row["ns"]),
    })),
  ]);
  const names = new Set(
    machines.rows.flatMap(({ host }) =>
      host?.toLowerCase().includes(wanted.toLowerCase()) ? [host] : [],
    ),
  );
  const hosts = [...names].map((host): Found => ({
    kind: "host",
    name: host,
    host,
    module: null,
    ns: 0,
  }));
  const partial = [...new Set([...machines.partial, ...code.partial])];
  return { rows: [...hosts, ...machines.rows, ...code.rows], partial };
}
