// What the views ask, in SQL on the result tables (docs/formats.md).

import type { Answer, Question } from "./client";
import { sql } from "./client";
import type { CodeRow } from "../model/profile";
import { type Buckets, iso } from "../model/place";
import type { Span } from "../model/units";

// Rows, and why they are not all there are.
export interface Table<Row> {
  rows: Row[];
  partial: string[];
}

type Cells = Record<string, unknown>;

const text = (cell: unknown): string => (typeof cell === "string" ? cell : "");
const maybe = (cell: unknown): string | null => (typeof cell === "string" ? cell : null);
// Sums that don't fit into 64 bits come as text.
const number = (cell: unknown): number => Number(cell ?? 0);

// A name as SQL.
const quote = (name: string): string => `'${name.replaceAll("'", "''")}'`;
const within = (span: Span): string => `slice >= '${iso(span.from)}' AND slice < '${iso(span.to)}'`;
const bucket = ({ start, length }: Buckets): string => `(to_unixtime(slice) - ${start / 1000}) / ${length / 1000}`;
const STOLEN_VMM = "state IN ('steal_vmm', 'steal_vmm_waiting')";
const sumIf = (condition: string): string => `sum(CASE WHEN ${condition} THEN ns ELSE 0 END)`;
// Without the process id, which would make a thief of its own of each run of a short command.
const THIEF = `coalesce('VM ' || thief_vm, CASE WHEN thief LIKE '% (%)' THEN left(thief, length(thief) - strpos(reverse(thief), '( ') - 1) ELSE thief END)`;

function rowsOf<Row>({ columns, rows, partial }: Answer, row: (cells: Cells) => Row): Table<Row> {
  const cells = (values: unknown[]) => Object.fromEntries(columns.map(({ name }, index) => [name, values[index]]));
  return { rows: rows.map((values) => row(cells(values))), partial };
}

async function table<Row>(query: string, span: Span, host: string | null, signal: AbortSignal, row: (cells: Cells) => Row): Promise<Table<Row>> {
  const question: Question = { sql: query, from: iso(span.from), to: iso(span.to), ...(host === null ? {} : { host }) };
  return rowsOf(await sql(question, signal), row);
}

// A host's stolen time, bucket by bucket.
export interface HostSteal {
  host: string;
  cells: { bucket: number; ns: number; outside: number; vmm: number }[];
}

// One row a host: with a row for each bucket a fleet's answer would have more rows than answers may have.
export function fleetSteal(span: Span, buckets: Buckets, signal: AbortSignal): Promise<Table<HostSteal>> {
  const query = `
    SELECT host, string_agg(concat_ws(':', bucket, ns, outside, vmm), ' ') AS cells FROM (
      SELECT host, ${bucket(buckets)} AS bucket, sum(ns) AS ns, ${sumIf("state = 'steal_outside'")} AS outside, ${sumIf(STOLEN_VMM)} AS vmm
      FROM vcpu_time WHERE ${within(span)} GROUP BY 1, 2)
    GROUP BY host`;
  return table(query, span, null, signal, (row) => ({
    host: text(row["host"]),
    cells: text(row["cells"]).split(" ").map((cell) => {
      const [bucket = 0, ns = 0, outside = 0, vmm = 0] = cell.split(":").map(Number);
      return { bucket, ns, outside, vmm };
    }),
  }));
}

export interface VmSteal {
  host: string;
  vm: string;
  ns: number;
  outside: number;
  vmm: number;
  throttled: number;
}

// The VMs that lost the largest shares of their time.
export function victims(span: Span, signal: AbortSignal): Promise<Table<VmSteal>> {
  const query = `
    SELECT * FROM (
      SELECT host, vm, sum(ns) AS ns, ${sumIf("state = 'steal_outside'")} AS outside, ${sumIf(STOLEN_VMM)} AS vmm, ${sumIf("state = 'throttled'")} AS throttled
      FROM vcpu_time WHERE ${within(span)} GROUP BY host, vm)
    ORDER BY CAST(outside + vmm + throttled AS DOUBLE) / CAST(ns AS DOUBLE) DESC, host, vm LIMIT 200`;
  return table(query, span, null, signal, (row) => ({
    host: text(row["host"]), vm: text(row["vm"]), ns: number(row["ns"]),
    outside: number(row["outside"]), vmm: number(row["vmm"]), throttled: number(row["throttled"]),
  }));
}

// Time of something in a bucket.
export interface Point {
  series: string;
  bucket: number;
  ns: number;
}

const point = (row: Cells): Point => ({ series: text(row["series"]), bucket: number(row["bucket"]), ns: number(row["ns"]) });

// What a host's CPUs did: for a VM (its guest, VMM and vhost threads), for the host itself, nothing.
export function cpuShares(host: string, span: Span, buckets: Buckets, signal: AbortSignal): Promise<Table<Point>> {
  const query = `
    SELECT coalesce('VM ' || vm, CASE WHEN level IN ('idle', 'not_sampled') THEN level ELSE 'host' END) AS series, ${bucket(buckets)} AS bucket, sum(ns) AS ns
    FROM cpu_time WHERE host = ${quote(host)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, host, signal, point);
}

// What a VM's vCPUs did.
export function vmStates(host: string, vm: string, span: Span, buckets: Buckets, signal: AbortSignal): Promise<Table<Point>> {
  const query = `
    SELECT state AS series, ${bucket(buckets)} AS bucket, sum(ns) AS ns
    FROM vcpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1, 2`;
  return table(query, span, host, signal, point);
}

export interface StateRow {
  vm: string;
  state: string;
  thief: string | null;
  ns: number;
}

// What the vCPUs of a host's VMs did, and who had the CPU meanwhile.
export function hostStates(host: string, span: Span, signal: AbortSignal): Promise<Table<StateRow>> {
  const query = `
    SELECT vm, state, ${THIEF} AS thief, sum(ns) AS ns
    FROM vcpu_time WHERE host = ${quote(host)} AND ${within(span)} GROUP BY 1, 2, 3 ORDER BY ns DESC`;
  return table(query, span, host, signal, (row) => ({
    vm: text(row["vm"]), state: text(row["state"]), thief: maybe(row["thief"]), ns: number(row["ns"]),
  }));
}

export interface VmSize {
  vm: string;
  vcpus: number;
  noMap: string | null;
}

export function vmSizes(host: string, span: Span, signal: AbortSignal): Promise<Table<VmSize>> {
  const query = `SELECT vm, max(vcpus) AS vcpus, max(no_map_reason) AS reason FROM vms WHERE host = ${quote(host)} AND ${within(span)} GROUP BY vm`;
  return table(query, span, host, signal, (row) => ({ vm: text(row["vm"]), vcpus: number(row["vcpus"]), noMap: maybe(row["reason"]) }));
}

// A VM's time by code, thief and exit reason: all that is known of a range.
export function vmCode(host: string, vm: string, span: Span, signal: AbortSignal): Promise<Table<CodeRow>> {
  const query = `
    SELECT state, process, thread, function, module, ${THIEF} AS thief, exit_reason,
           sum(ns) AS ns, sum(corrected_ns) AS corrected, sum(samples) AS samples
    FROM vcpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY ns DESC`;
  return table(query, span, host, signal, (row) => ({
    state: text(row["state"]), process: maybe(row["process"]), thread: maybe(row["thread"]), function: maybe(row["function"]),
    module: maybe(row["module"]), thief: maybe(row["thief"]), exit: maybe(row["exit_reason"]),
    ns: number(row["ns"]), corrected: number(row["corrected"]), samples: number(row["samples"]),
  }));
}

// What the host ran for a VM: its VMM, vhost, KVM.
export function vmHostCode(host: string, vm: string, span: Span, signal: AbortSignal): Promise<Table<CodeRow>> {
  const query = `
    SELECT level, process, thread, function, module, stack, sum(ns) AS ns, sum(samples) AS samples
    FROM cpu_time WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND level IN ('host_kernel', 'host_user') AND ${within(span)}
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY ns DESC`;
  return table(query, span, host, signal, (row) => ({
    state: text(row["level"]), process: maybe(row["process"]), thread: maybe(row["thread"]), function: maybe(row["function"]),
    module: maybe(row["module"]), stack: maybe(row["stack"]), thief: null, exit: null,
    ns: number(row["ns"]), corrected: number(row["ns"]), samples: number(row["samples"]),
  }));
}

// How often a VM exited, where exits are counted.
export function vmExits(host: string, vm: string, span: Span, signal: AbortSignal): Promise<Table<{ reason: string; exits: number }>> {
  const query = `SELECT exit_reason, sum(exits) AS exits FROM exits WHERE host = ${quote(host)} AND vm = ${quote(vm)} AND ${within(span)} GROUP BY 1`;
  return table(query, span, host, signal, (row) => ({ reason: text(row["exit_reason"]), exits: number(row["exits"]) }));
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
export function functionPlaces(name: string, module: string | null, span: Span, signal: AbortSignal): Promise<Table<FunctionPlace>> {
  const query = `
    SELECT f.host AS host, f.vm AS vm, process, module, corrected, apparent, CAST(corrected AS DOUBLE) / CAST(whole AS DOUBLE) AS share
    FROM (SELECT host, vm, process, module, sum(corrected_ns) AS corrected, sum(ns) AS apparent
          FROM vcpu_time WHERE ${isFunction(name, module)} AND ${within(span)} GROUP BY 1, 2, 3, 4) AS f
    JOIN (SELECT host, vm, sum(vcpu_ns) AS whole FROM vms WHERE ${within(span)} GROUP BY 1, 2) AS v ON f.host = v.host AND f.vm = v.vm
    ORDER BY corrected DESC LIMIT 1000`;
  return table(query, span, null, signal, (row) => ({
    host: text(row["host"]), vm: text(row["vm"]), process: maybe(row["process"]), module: maybe(row["module"]),
    corrected: number(row["corrected"]), apparent: number(row["apparent"]), share: number(row["share"]),
  }));
}

// Its corrected time in the whole fleet, by module.
export function functionTrend(name: string, module: string | null, span: Span, buckets: Buckets, signal: AbortSignal): Promise<Table<Point>> {
  const query = `
    SELECT coalesce(module, '') AS series, ${bucket(buckets)} AS bucket, sum(corrected_ns) AS ns
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

// Hosts, VMs and functions whose names have a text in them, whatever its case.
export async function search(wanted: string, span: Span, signal: AbortSignal): Promise<Table<Found>> {
  const has = (column: string) => `strpos(lower(${column}), ${quote(wanted.toLowerCase())}) > 0`;
  const vms = `
    SELECT host, vm, sum(vcpu_ns) AS ns FROM vms WHERE ${within(span)} AND (${has("vm")} OR ${has("host")}) GROUP BY 1, 2 ORDER BY ns DESC LIMIT 200`;
  const functions = `
    SELECT function, module, sum(corrected_ns) AS ns FROM vcpu_time WHERE ${within(span)} AND ${has("function")}
    GROUP BY 1, 2 ORDER BY ns DESC LIMIT 200`;
  const [machines, code] = await Promise.all([
    table(vms, span, null, signal, (row): Found => ({ kind: "VM", name: text(row["vm"]), host: text(row["host"]), module: null, ns: number(row["ns"]) })),
    table(functions, span, null, signal, (row): Found => ({
      kind: "function", name: text(row["function"]), host: null, module: maybe(row["module"]), ns: number(row["ns"]),
    })),
  ]);
  const names = new Set(machines.rows.flatMap(({ host }) => (host?.toLowerCase().includes(wanted.toLowerCase()) ? [host] : [])));
  const hosts = [...names].map((host): Found => ({ kind: "host", name: host, host, module: null, ns: 0 }));
  const partial = [...new Set([...machines.partial, ...code.partial])];
  return { rows: [...hosts, ...machines.rows, ...code.rows], partial };
}

export interface HostHealth {
  host: string;
  windows: number;
  cpus: number;
  covered: number;
  first: number;
  // When the last window ended, ms since 1970.
  end: number;
  samples: number;
  lost: number;
  missed: number;
  kernel: string;
  version: string;
}

export function hostHealth(span: Span, host: string | null, signal: AbortSignal): Promise<Table<HostHealth>> {
  const query = `
    SELECT host, count(DISTINCT concat(boot, '-', window_ns)) AS windows, max(cpus) AS cpus, sum(length_ns) AS covered,
           to_unixtime(min(slice)) AS first, max(to_unixtime(slice) + length_ns / 1000000000) AS last_end,
           sum(samples) AS samples, sum(samples_lost) AS lost, sum(samples_missed) AS missed, max(kernel) AS kernel, max(vmscope_version) AS version
    FROM hosts WHERE ${within(span)}${host === null ? "" : ` AND host = ${quote(host)}`} GROUP BY host`;
  return table(query, span, host, signal, (row) => ({
    host: text(row["host"]), windows: number(row["windows"]), cpus: number(row["cpus"]), covered: number(row["covered"]),
    first: 1000 * number(row["first"]), end: 1000 * number(row["last_end"]), samples: number(row["samples"]),
    lost: number(row["lost"]), missed: number(row["missed"]), kernel: text(row["kernel"]), version: text(row["version"]),
  }));
}

export interface Note {
  host: string;
  subject: string;
  what: string;
  count: number | null;
  windows: number;
}

export function healthNotes(span: Span, signal: AbortSignal): Promise<Table<Note>> {
  const query = `
    SELECT host, subject, what, sum(count) AS count, count(*) AS windows
    FROM health WHERE ${within(span)} GROUP BY 1, 2, 3 ORDER BY windows DESC, host, subject, what LIMIT 2000`;
  return table(query, span, null, signal, (row) => ({
    host: text(row["host"]), subject: text(row["subject"]), what: text(row["what"]),
    count: row["count"] === null ? null : number(row["count"]), windows: number(row["windows"]),
  }));
}
