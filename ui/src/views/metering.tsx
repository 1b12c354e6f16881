// What to charge for: CPU time without what others took.

import { type MeteringRow, metering } from "../api/questions";
import { csv } from "../model/csv";
import { iso } from "../model/place";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { DataTable, timeColumn } from "../parts/table";

const COLUMNS = [
  "day",
  "host",
  "vm",
  "project",
  "owner",
  "line",
  "process",
  "corrected",
  "apparent",
  "stealOutside",
  "stealVmm",
  "throttled",
  "notCharged",
] as const;

// The lines of one key added up, most time to charge for first.
function sums(rows: MeteringRow[], key: (row: MeteringRow) => string): MeteringRow[] {
  const found = new Map<string, MeteringRow>();
  for (const row of rows) {
    const sum = found.get(key(row));
    if (!sum) {
      found.set(key(row), { ...row });
      continue;
    }
    sum.apparent += row.apparent;
    sum.corrected += row.corrected;
    sum.stealOutside += row.stealOutside;
    sum.stealVmm += row.stealVmm;
    sum.throttled += row.throttled;
    sum.notCharged += row.notCharged;
  }
  return [...found.values()].sort((a, b) => b.corrected - a.corrected);
}

export function Metering() {
  const { span } = useApp();
  const to = usePlaces();
  const answer = useAnswer(`metering ${span.from} ${span.to}`, (signal) => metering(span, signal));
  const { value, ...rest } = answer;
  const part = (rows: (all: MeteringRow[]) => MeteringRow[], partial: string[] = []) => ({
    ...rest,
    ...(value ? { value: { rows: rows(value.rows), partial } } : {}),
  });
  const vmOf = ({ host, vm, project, owner }: MeteringRow) =>
    JSON.stringify([host, vm, project, owner]);
  const ofVms = (rows: MeteringRow[]) => rows.filter(({ vm }) => vm !== null);
  const vms = part((rows) => sums(ofVms(rows), vmOf), value?.partial);
  const processes = part((rows) =>
    sums(
      ofVms(rows).filter(({ line }) => line === "process"),
      (row) => JSON.stringify([row.host, row.vm, row.process]),
    ),
  );
  const gaps = part((rows) => rows.filter(({ vm }) => vm === null));
  const host = {
    title: "Host",
    value: (row: MeteringRow) => row.host,
    cell: (row: MeteringRow) => <Name name={row.host} href={to(["host", row.host])} />,
  };
  const vm = {
    title: "VM",
    value: (row: MeteringRow) => row.vm ?? "",
    cell: (row: MeteringRow) => (
      <Name name={row.vm ?? "-"} href={to(["vm", row.host, row.vm ?? ""])} />
    ),
  };
  const label = (title: string, name: (row: MeteringRow) => string | null) => ({
    title,
    value: (row: MeteringRow) => name(row) ?? "",
    cell: (row: MeteringRow) => <Name name={name(row) ?? "-"} length={40} />,
  });
  const times = (rows: MeteringRow[]) => [
    timeColumn("To charge", rows, ({ corrected }) => corrected),
    timeColumn("Apparent", rows, ({ apparent }) => apparent),
    timeColumn("Stolen by others", rows, ({ stealOutside }) => stealOutside),
    timeColumn("In the VMM", rows, ({ stealVmm }) => stealVmm),
    timeColumn("Throttled", rows, ({ throttled }) => throttled),
  ];
  return (
    <>
      <h1>Metering</h1>
      <Section
        title="VMs"
        about="CPU time to charge for is what a guest ran. The apparent time has what it lost meanwhile, too: to others, in the VMM, to a CPU quota. Idle and unknown time is not charged."
      >
        {value && (
          <p>
            <a
              download={`metering ${iso(span.from)}.csv`}
              href={`data:text/csv;charset=utf-8,${encodeURIComponent(csv(COLUMNS, value.rows))}`}
            >
              All lines as CSV, in ns
            </a>
          </p>
        )}
        <Shown of={vms} empty="No VM ran in this time.">
          {(rows) => (
            <DataTable
              label="VMs to charge"
              rows={rows}
              columns={[
                host,
                vm,
                label("Project", (row) => row.project),
                label("Owner", (row) => row.owner),
                ...times(rows),
                timeColumn("Idle or unknown", rows, ({ notCharged }) => notCharged),
              ]}
            />
          )}
        </Shown>
      </Section>
      <Section title="Processes" about="Of the VMs' guests.">
        <Shown of={processes} empty="No guest has processes with names.">
          {(rows) => (
            <DataTable
              label="Processes to charge"
              rows={rows}
              columns={[host, vm, label("Process", (row) => row.process), ...times(rows)]}
            />
          )}
        </Shown>
      </Section>
      <Section
        title="Gaps"
        about="Time of hosts without a window, also of windows that are still on their way. It is never charged."
      >
        <Shown of={gaps} empty="Windows cover all of this time.">
          {(rows) => (
            <DataTable
              label="Gaps"
              rows={rows}
              columns={[host, timeColumn("Without windows", rows, ({ notCharged }) => notCharged)]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}
