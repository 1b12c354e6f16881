// Whether collection works: agents, how late they are, what is missing.

import { hosts } from "../api/client";
import { type HostHealth, healthNotes, hostHealth } from "../api/questions";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { DataTable } from "../parts/table";
import { count, duration, instant, percent } from "../model/units";

interface Agent {
  host: string;
  isEnrolled: boolean;
  health: HostHealth | null;
}

export function Health() {
  const { span } = useApp();
  const to = usePlaces();
  const key = `${span.from} ${span.to}`;
  const agents = useAnswer(`agents ${key}`, async (signal) => {
    const [enrolled, health] = await Promise.all([hosts(signal), hostHealth(span, null, signal)]);
    const sent = new Map(health.rows.map((row) => [row.host, row]));
    const names = new Set([...enrolled.map(({ host }) => host), ...sent.keys()]);
    const known = new Set(enrolled.map(({ host }) => host));
    const rows = [...names].map((host): Agent => ({ host, isEnrolled: known.has(host), health: sent.get(host) ?? null }));
    return { rows: rows.sort((a, b) => (a.health?.end ?? 0) - (b.health?.end ?? 0)), partial: health.partial };
  });
  const notes = useAnswer(`notes ${key}`, (signal) => healthNotes(span, signal));
  // What is not covered between the first instant and the last.
  const gap = ({ health }: Agent) => (health ? Math.max(0, (health.end - health.first) * 1e6 - health.covered) : 0);
  const lag = ({ health }: Agent) => (health ? Math.max(0, span.to - health.end) : Infinity);
  const of = (row: Agent, text: (health: HostHealth) => string) => (row.health ? text(row.health) : "-");
  return (
    <>
      <h1>Health</h1>
      <Section title="Agents" about="Those that have been silent for longest come first. The lag is the time from the last window's end to the end of the range: meanwhile an agent keeps its windows in its spool, of which its own metrics say the size.">
        <Shown of={agents} empty="No host is enrolled: run vmscope agent enroll on one.">
          {(rows) => (
            <DataTable label="Agents" rows={rows} columns={[
              { title: "Host", value: (row) => row.host, cell: (row) => <Name name={row.host} href={to(["host", row.host])} /> },
              { title: "State", value: (row) => (row.health ? "sends" : ""), cell: (row) => (row.health ? (row.isEnrolled ? "sends" : "not enrolled any more") : <strong class="bad">silent in this time</strong>) },
              { title: "Lag", value: lag, cell: (row) => of(row, () => duration(lag(row) * 1e6)) },
              { title: "Last window ended", value: (row) => row.health?.end ?? 0, cell: (row) => of(row, ({ end }) => instant(end)) },
              { title: "Windows", value: (row) => row.health?.windows ?? 0, cell: (row) => of(row, ({ windows }) => count(windows)) },
              { title: "Gaps", value: gap, cell: (row) => of(row, () => (gap(row) === 0 ? "none" : duration(gap(row)))) },
              { title: "Samples", value: (row) => row.health?.samples ?? 0, cell: (row) => of(row, ({ samples }) => count(samples)) },
              { title: "Lost", value: (row) => row.health?.lost ?? 0, cell: (row) => of(row, ({ lost }) => count(lost)) },
              { title: "Missed", value: (row) => missed(row.health), cell: (row) => of(row, (health) => percent(missed(health), 1)) },
              { title: "Version", value: (row) => row.health?.version ?? "", cell: (row) => of(row, ({ version }) => version) },
              { title: "Kernel", value: (row) => row.health?.kernel ?? "", cell: (row) => <Name name={row.health?.kernel ?? "-"} length={40} /> },
            ]} />
          )}
        </Shown>
      </Section>
      <Section title="What was lost, and notes" about="What the agents counted or noted, in all windows of this time.">
        <Shown of={notes} empty="Nothing was lost, and there are no notes.">
          {(rows) => (
            <DataTable label="What was lost, and notes" rows={rows} columns={[
              { title: "Host", value: (row) => row.host, cell: (row) => <Name name={row.host} href={to(["host", row.host])} /> },
              { title: "About", value: (row) => row.subject, cell: (row) => <Name name={row.subject} length={40} /> },
              { title: "What", value: (row) => row.what, cell: (row) => <Name name={row.what} length={200} /> },
              { title: "Count", value: (row) => row.count ?? 0, cell: (row) => (row.count === null ? "" : count(row.count)) },
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
  return health && health.samples + health.missed > 0 ? health.missed / (health.samples + health.missed) : 0;
}
