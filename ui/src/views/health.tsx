// Whether collection works: agents, how late they are, what is missing.

import { type HostHealth, health, hosts } from "../api/client";
import { Name } from "../parts/name";
import { Section, Shown, useApp, usePlaces, useSums } from "../parts/app";
import { DataTable } from "../parts/table";
import { type Agent, agentsOf, gapNs, isSilent, lagMs, missedShare, stateOf } from "../model/agent";
import { iso } from "../model/place";
import { count, durations, instant, percent } from "../model/units";

export function Health() {
  const { span } = useApp();
  const to = usePlaces();
  const { value, ...rest } = useSums(`health ${span.from} ${span.to}`, async (signal) => {
    const [enrolled, answer] = await Promise.all([
      hosts(signal),
      health({ from: iso(span.from), to: iso(span.to) }, signal),
    ]);
    return { ...answer, agents: agentsOf(answer.hosts, new Set(enrolled.map(({ host }) => host))) };
  });
  const table = <Row,>(rows: Row[] | undefined) => ({
    ...rest,
    ...(rows && value ? { value: { rows, partial: value.partial } } : {}),
  });
  const lag = (row: Agent) => lagMs(row, span.to);
  const lags = durations((value?.agents ?? []).map((row) => lag(row) * 1e6));
  const gaps = durations((value?.agents ?? []).map(gapNs));
  // Those that send, those that were given up, and the silent ones by how long they have been so.
  const order = (row: Agent) =>
    isSilent(row, span.to)
      ? `2 ${Math.min(lag(row), Number.MAX_SAFE_INTEGER)}`
      : row.isEnrolled
        ? "0"
        : "1";
  const of = (row: Agent, text: (health: HostHealth) => string) =>
    row.health ? text(row.health) : "-";
  return (
    <>
      <h1>Health</h1>
      <Section
        title="Agents"
        about="Those that have been silent for longest come first. The lag is the time from the last window's end to the end of the range: meanwhile an agent keeps its windows in its spool, of which its own metrics say the size."
      >
        <Shown
          of={table(value?.agents)}
          empty="No host is enrolled: run vmscope agent enroll on one."
        >
          {(rows) => (
            <DataTable
              label="Agents"
              rows={rows}
              columns={[
                {
                  title: "Host",
                  value: (row) => row.host,
                  cell: (row) => <Name name={row.host} href={to(["host", row.host])} />,
                },
                {
                  title: "State",
                  value: order,
                  cell: (row) =>
                    isSilent(row, span.to) ? (
                      <strong class="bad">{stateOf(row, span.to)}</strong>
                    ) : (
                      stateOf(row, span.to)
                    ),
                },
                { title: "Lag", value: lag, cell: (row) => of(row, () => lags(lag(row) * 1e6)) },
                {
                  title: "Last window ended",
                  value: (row) => row.health?.end_unix_ms ?? 0,
                  cell: (row) => of(row, ({ end_unix_ms }) => instant(end_unix_ms)),
                },
                {
                  title: "Windows",
                  value: (row) => row.health?.windows ?? 0,
                  cell: (row) => of(row, ({ windows }) => count(windows)),
                },
                {
                  title: "Gaps",
                  value: gapNs,
                  cell: (row) => of(row, () => (gapNs(row) === 0 ? "none" : gaps(gapNs(row)))),
                },
                {
                  title: "Samples",
                  value: (row) => row.health?.samples ?? 0,
                  cell: (row) => of(row, ({ samples }) => count(samples)),
                },
                {
                  title: "Lost",
                  value: (row) => row.health?.samples_lost ?? 0,
                  cell: (row) => of(row, ({ samples_lost }) => count(samples_lost)),
                },
                {
                  title: "Missed",
                  value: missedShare,
                  cell: (row) =>
                    of(row, ({ samples, samples_missed }) =>
                      percent(samples_missed, samples + samples_missed),
                    ),
                },
                {
                  title: "Version",
                  value: (row) => row.health?.vmscope_version ?? "",
                  cell: (row) => <Name name={row.health?.vmscope_version ?? "-"} length={20} />,
                },
                {
                  title: "Kernel",
                  value: (row) => row.health?.kernel ?? "",
                  cell: (row) => <Name name={row.health?.kernel ?? "-"} length={40} />,
                },
              ]}
            />
          )}
        </Shown>
      </Section>
      <Section
        title="What was lost, and notes"
        about="What the agents counted or noted, in all windows of this time."
      >
        <Shown of={table(value?.notes)} empty="Nothing was lost, and there are no notes.">
          {(rows) => (
            <DataTable
              label="What was lost, and notes"
              rows={rows}
              columns={[
                {
                  title: "Host",
                  value: (row) => row.host,
                  cell: (row) => <Name name={row.host} href={to(["host", row.host])} />,
                },
                {
                  title: "About",
                  value: (row) => row.subject,
                  cell: (row) => <Name name={row.subject} length={40} />,
                },
                {
                  title: "What",
                  value: (row) => row.what,
                  cell: (row) => <Name name={row.what} length={200} />,
                },
                {
                  title: "Count",
                  value: (row) => row.count ?? -1,
                  cell: (row) => (typeof row.count === "number" ? count(row.count) : ""),
                },
                {
                  title: "Windows",
                  value: (row) => row.windows,
                  cell: (row) => count(row.windows),
                },
              ]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}
