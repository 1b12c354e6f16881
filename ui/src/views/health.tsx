// Whether collection works: agents, how late they are, what is missing.

import { type HostHealth, health, hosts } from "../api/client";
import { Name } from "../parts/name";
import { Section, Shown, useApp, usePlaces, useSums } from "../parts/app";
import { DataTable } from "../parts/table";
import { SLICE_MS, iso } from "../model/place";
import { count, duration, instant, percent } from "../model/units";

const MOST_LATE_MS = 120_000;

interface Agent {
  host: string;
  isEnrolled: boolean;
  health: HostHealth | null;
}

export function Health() {
  const { span } = useApp();
  const to = usePlaces();
  const { value, ...rest } = useSums(`health ${span.from} ${span.to}`, async (signal) => {
    const [enrolled, answer] = await Promise.all([hosts(signal), health({ from: iso(span.from), to: iso(span.to) }, signal)]);
    return { ...answer, agents: agentsOf(answer.hosts, new Set(enrolled.map(({ host }) => host))) };
  });
  const table = <Row,>(rows: Row[] | undefined) => ({ ...rest, ...(rows && value ? { value: { rows, partial: value.partial } } : {}) });
  // What is not covered between the first instant and the last. These are known to a slice: a shorter gap is none.
  const gap = ({ health }: Agent) => {
    const gap = health ? (health.end_unix_ms - health.first_unix_ms) * 1e6 - health.covered_ns : 0;
    return SLICE_MS * 1e6 < gap ? gap : 0;
  };
  // An agent that sends is late by a few windows at most.
  const isSilent = (row: Agent) => row.health !== null && Math.max(MOST_LATE_MS, 3 * row.health.covered_ns / 1e6 / Math.max(1, row.health.windows)) < lag(row);
  const state = (row: Agent) => (row.health === null ? "silent in this time" : isSilent(row) ? `silent for ${duration(lag(row) * 1e6)}` : row.isEnrolled ? "sends" : "not enrolled any more");
  const lag = ({ health }: Agent) => (health ? Math.max(0, span.to - health.end_unix_ms) : Infinity);
  const of = (row: Agent, text: (health: HostHealth) => string) => (row.health ? text(row.health) : "-");
  return (
    <>
      <h1>Health</h1>
      <Section title="Agents" about="Those that have been silent for longest come first. The lag is the time from the last window's end to the end of the range: meanwhile an agent keeps its windows in its spool, of which its own metrics say the size.">
        <Shown of={table(value?.agents)} empty="No host is enrolled: run vmscope agent enroll on one.">
          {(rows) => (
            <DataTable label="Agents" rows={rows} columns={[
              { title: "Host", value: (row) => row.host, cell: (row) => <Name name={row.host} href={to(["host", row.host])} /> },
              { title: "State", value: state, cell: (row) => (row.health === null || isSilent(row) ? <strong class="bad">{state(row)}</strong> : state(row)) },
              { title: "Lag", value: lag, cell: (row) => of(row, () => duration(lag(row) * 1e6)) },
              { title: "Last window ended", value: (row) => row.health?.end_unix_ms ?? 0, cell: (row) => of(row, ({ end_unix_ms }) => instant(end_unix_ms)) },
              { title: "Windows", value: (row) => row.health?.windows ?? 0, cell: (row) => of(row, ({ windows }) => count(windows)) },
              { title: "Gaps", value: gap, cell: (row) => of(row, () => (gap(row) === 0 ? "none" : duration(gap(row)))) },
              { title: "Samples", value: (row) => row.health?.samples ?? 0, cell: (row) => of(row, ({ samples }) => count(samples)) },
              { title: "Lost", value: (row) => row.health?.samples_lost ?? 0, cell: (row) => of(row, ({ samples_lost }) => count(samples_lost)) },
              { title: "Missed", value: (row) => missed(row.health), cell: (row) => of(row, (health) => percent(missed(health), 1)) },
              { title: "Version", value: (row) => row.health?.vmscope_version ?? "", cell: (row) => <Name name={row.health?.vmscope_version ?? "-"} length={20} /> },
              { title: "Kernel", value: (row) => row.health?.kernel ?? "", cell: (row) => <Name name={row.health?.kernel ?? "-"} length={40} /> },
            ]} />
          )}
        </Shown>
      </Section>
      <Section title="What was lost, and notes" about="What the agents counted or noted, in all windows of this time.">
        <Shown of={table(value?.notes)} empty="Nothing was lost, and there are no notes.">
          {(rows) => (
            <DataTable label="What was lost, and notes" rows={rows} columns={[
              { title: "Host", value: (row) => row.host, cell: (row) => <Name name={row.host} href={to(["host", row.host])} /> },
              { title: "About", value: (row) => row.subject, cell: (row) => <Name name={row.subject} length={40} /> },
              { title: "What", value: (row) => row.what, cell: (row) => <Name name={row.what} length={200} /> },
              { title: "Count", value: (row) => row.count ?? 0, cell: (row) => (typeof row.count === "number" ? count(row.count) : "") },
              { title: "Windows", value: (row) => row.windows, cell: (row) => count(row.windows) },
            ]} />
          )}
        </Shown>
      </Section>
    </>
  );
}

// The share of sampling interrupts that never came.
function missed(health: HostHealth | null): number {
  return health && health.samples + health.samples_missed > 0 ? health.samples_missed / (health.samples + health.samples_missed) : 0;
}

// All hosts, those that have been silent for longest first.
function agentsOf(sent: HostHealth[], enrolled: Set<string>): Agent[] {
  const known = new Map(sent.map((health) => [health.host, health]));
  const names = [...new Set([...enrolled, ...known.keys()])];
  const agents = names.map((host) => ({ host, isEnrolled: enrolled.has(host), health: known.get(host) ?? null }));
  return agents.sort((a, b) => (a.health?.end_unix_ms ?? 0) - (b.health?.end_unix_ms ?? 0));
}
