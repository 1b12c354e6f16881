// A function: where in the fleet it runs, and since when.

import { useMemo } from "preact/hooks";
import { functionPaths, functionPlaces, functionTrend } from "../api/questions";
import { Flame } from "../parts/flame";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { Bar, DataTable, timeColumn } from "../parts/table";
import { TimeLine, useSelection } from "../parts/timeline";
import { bucketsOf } from "../model/place";
import { type CodeRow, calleesOf, callersOf, flame } from "../model/profile";
import { trend } from "../model/series";
import { duration, percent } from "../model/units";

const BUCKETS = 120;

export function FunctionView() {
  const { place, span } = useApp();
  const to = usePlaces();
  const name = place.more["name"] ?? "";
  const module = place.more["module"] ?? null;
  const buckets = bucketsOf(span, BUCKETS);
  const { about } = useSelection();
  const times = useAnswer(
    JSON.stringify([name, module, span]),
    (signal) => functionTrend(name, module, span, buckets, signal),
    buckets,
  );
  const shown = times.about ?? buckets;
  const places = useAnswer(JSON.stringify([name, module, about]), (signal) =>
    functionPlaces(name, module, about, signal),
  );
  const paths = useAnswer(JSON.stringify([name, about]), (signal) =>
    functionPaths(name, about, signal),
  );
  return (
    <>
      <h1>
        Function <Name name={name} />
      </h1>
      {module !== null && (
        <p>
          in <Name name={module} /> (<a href={to(["function"], { name })}>in all modules</a>)
        </p>
      )}
      <Section
        title="Its time in the fleet"
        about="Corrected time for each second, by module and build: a new build has another build id."
      >
        <Shown of={times} empty="It did not run, or was not seen, in this time.">
          {(rows) => (
            <TimeLine
              label="The function's time"
              buckets={shown}
              series={trend(rows, shown)}
              amount={(ns) => `${duration(ns)}/s`}
            />
          )}
        </Shown>
      </Section>
      <Section
        title="Its callers and callees"
        about="Of VMs that are recorded with call graphs: the paths that have 0.02 % of their VM's time, in corrected time, in all modules."
      >
        <Shown of={paths} empty="No call path of it is known in this time.">
          {(rows) => <Calls rows={rows} name={name} />}
        </Shown>
      </Section>
      <Section title="Where it runs">
        <Shown of={places} empty="Nowhere in this time.">
          {(rows) => (
            <DataTable
              label="Where the function runs"
              rows={rows}
              columns={[
                {
                  title: "VM",
                  value: (row) => row.vm,
                  cell: (row) => <Name name={row.vm} href={to(["vm", row.host, row.vm])} />,
                },
                {
                  title: "Host",
                  value: (row) => row.host,
                  cell: (row) => <Name name={row.host} href={to(["host", row.host])} />,
                },
                {
                  title: "Process",
                  value: (row) => row.process ?? "",
                  cell: (row) => <Name name={row.process ?? "-"} />,
                },
                {
                  title: "Module",
                  value: (row) => row.module ?? "",
                  cell: (row) => <Name name={row.module ?? "-"} />,
                },
                {
                  title: "% of the VM",
                  value: (row) => row.share,
                  cell: (row) => (
                    <Bar share={row.share} paint="guest-user">
                      {percent(row.share, 1, 2)}
                    </Bar>
                  ),
                },
                timeColumn("Corrected", rows, (row) => row.corrected),
                timeColumn("Apparent", rows, (row) => row.apparent),
              ]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}

function Calls({ rows, name }: { rows: CodeRow[]; name: string }) {
  const trees = useMemo(
    () =>
      [callersOf, calleesOf].map((part) =>
        flame([rows], "corrected", [1], (row) => part(row, name)),
      ),
    [rows, name],
  );
  const [callers, callees] = trees;
  return (
    <>
      <h3>Callers: each frame was called by the one on it</h3>
      {callers && <Flame {...callers} />}
      <h3>Callees</h3>
      {callees && <Flame {...callees} />}
    </>
  );
}
