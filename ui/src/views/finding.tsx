// A finding: why, the evidence, what to do, and what it looked like before and after.

import type { ComponentChildren } from "preact";
import { type FindingChange, type FindingEntry, findings } from "../api/client";
import { cpuShares, functionTrend, vmStates } from "../api/questions";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { Chart, type Series } from "../parts/chart";
import { handled, placeOf } from "../parts/findings";
import { Name } from "../parts/name";
import { Bar, DataTable } from "../parts/table";
import { type Buckets, SLICE_MS, bucketsOf, formatPlace, formatSpan } from "../model/place";
import { type Evidence, cpus, evidenceOf, measured } from "../model/finding";
import { instant, percent, span as spanText, type Span } from "../model/units";
import { Difference } from "./compare";
import { sharesOverTime, statesOverTime, trend } from "../model/series";

const BUCKETS = 120;

export function Finding({ id }: { id: string }) {
  const { span } = useApp();
  const found = useAnswer(`finding ${id} ${span.to}`, async (signal) => {
    const { findings: all } = await findings({}, signal);
    return { rows: all.filter((finding) => finding.id === id), partial: [] };
  });
  return (
    <>
      <h1>Finding</h1>
      <Shown
        of={found}
        empty="The server does not know this finding, or not any more: it keeps the last thousand that are over, since its start."
      >
        {([finding]) => finding && <Whole finding={finding} />}
      </Shown>
    </>
  );
}

const ranged = (range: { from_unix_s: number; to_unix_s: number }): Span => ({
  from: 1000 * range.from_unix_s,
  to: 1000 * range.to_unix_s,
});
// Of what is still so there is nothing in the future.
const upToNow = ({ from, to }: Span): Span => ({
  from,
  to: Math.max(from, Math.min(to, Math.ceil(Date.now() / SLICE_MS) * SLICE_MS)),
});
const onset = ({ onset: { from_unix_s, to_unix_s } }: FindingChange) =>
  from_unix_s === to_unix_s
    ? instant(1000 * from_unix_s)
    : spanText(ranged({ from_unix_s, to_unix_s }));

function Whole({ finding }: { finding: FindingEntry }) {
  const { changes } = finding;
  // What says most first: of a VM, or else of a host.
  const main = changes.find(({ vm }) => vm !== undefined) ?? changes[0];
  const [before, after] = [ranged(finding.before), upToNow(ranged(finding.after))];
  const facts: [string, ComponentChildren][] = [
    ["State", finding.state === "open" ? "open" : "over"],
    ["Found", instant(1000 * finding.found_unix_s)],
    ...(finding.over_unix_s === undefined
      ? []
      : [["Over since", instant(1000 * finding.over_unix_s)] as [string, string]]),
    ...(main ? [["It began", onset(main)] as [string, string]] : []),
    ["Where", <Places key="where" changes={changes} after={after} />],
    ...handled(finding),
  ];
  return (
    <>
      <div class="verdict">
        <p>
          <strong>
            <Name name={finding.summary} length={400} />.
          </strong>
        </p>
      </div>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Because finding={finding} after={after} />
      <Section title="What to do">
        {finding.advice.length === 0 ? (
          <p class="faint">Nothing that the evidence supports.</p>
        ) : (
          <DataTable
            label="What to do"
            rows={finding.advice}
            columns={[
              {
                title: "Advice",
                value: ({ text }) => text,
                cell: ({ text }) => <Name name={text} length={200} />,
              },
              {
                title: "Gives back",
                value: (row) => row.cpus,
                cell: (row) => (row.cpus > 0 ? cpus(row.cpus) : "not known"),
              },
            ]}
          />
        )}
      </Section>
      {main && <BeforeAndAfter main={main} before={before} after={after} />}
      <Changes finding={finding} after={after} />
    </>
  );
}

function Places({ changes, after }: { changes: FindingChange[]; after: Span }) {
  const to = usePlaces();
  const places = [
    ...new Map(
      changes.filter(({ host }) => host !== undefined).map((change) => [placeOf(change), change]),
    ).entries(),
  ].slice(0, 8);
  if (places.length === 0) return <>the whole fleet</>;
  return (
    <>
      {places.map(([name, { host = "", vm }], at) => (
        <>
          {at > 0 && ", "}
          <Name
            key={name}
            name={name}
            length={40}
            href={to(vm === undefined ? ["host", host] : ["vm", host, vm], {}, after)}
          />
        </>
      ))}
    </>
  );
}

// Why: the cause's facts, and what the evidence is.
function Because({ finding, after }: { finding: FindingEntry; after: Span }) {
  const to = usePlaces();
  const host = finding.changes.find((change) => change.host !== undefined)?.host;
  const { facts, functions, owners } = evidenceOf(finding.cause);
  const fact = ({ title, text, vm, code }: Evidence) => {
    const href =
      vm !== undefined && host !== undefined
        ? to(["vm", host, vm], {}, after)
        : code
          ? to(
              ["function"],
              { name: code.function, ...(code.module ? { module: code.module } : {}) },
              after,
            )
          : undefined;
    return (
      <div key={title}>
        <dt>{title}</dt>
        <dd>
          <Name name={text} length={120} {...(href === undefined ? {} : { href })} />
        </dd>
      </div>
    );
  };
  return (
    <Section title="Why">
      <dl class="facts">{facts.map(fact)}</dl>
      {owners.length > 0 && (
        <DataTable
          label="Who wants the CPUs"
          rows={owners}
          columns={[
            {
              title: "Who",
              value: ({ name }) => name,
              cell: ({ name, vm }) => (
                <Name
                  name={name}
                  {...(vm !== undefined && host !== undefined
                    ? { href: to(["vm", host, vm], {}, after) }
                    : {})}
                />
              ),
            },
            { title: "Wants", value: (row) => row.cpus, cell: (row) => cpus(row.cpus) },
          ]}
        />
      )}
      {functions.length > 0 && (
        <>
          <h3>
            {finding.cause.kind === "thief" ? "What the thief was running" : "Where in the guest"}
          </h3>
          <DataTable
            label="Functions behind it"
            rows={functions}
            columns={[
              {
                title: "Function",
                value: ({ code }) => code.function,
                cell: ({ code }) => (
                  <Name
                    name={code.function}
                    href={to(
                      ["function"],
                      { name: code.function, ...(code.module ? { module: code.module } : {}) },
                      after,
                    )}
                  />
                ),
              },
              {
                title: "Process",
                value: ({ code }) => code.process ?? "",
                cell: ({ code }) => <Name name={code.process || "-"} />,
              },
              {
                title: "Module",
                value: ({ code }) => code.module ?? "",
                cell: ({ code }) => <Name name={code.module || "-"} />,
              },
              { title: "Used", value: (row) => row.cpus, cell: (row) => cpus(row.cpus) },
            ]}
          />
        </>
      )}
    </Section>
  );
}

function BeforeAndAfter({
  main,
  before,
  after,
}: {
  main: FindingChange;
  before: Span;
  after: Span;
}) {
  const { host, vm, measure } = main;
  const whole = { from: before.from, to: Math.max(after.to, before.to) };
  const buckets = bucketsOf(whole, BUCKETS);
  const code = "code" in measure ? measure.code : null;
  const to = usePlaces();
  const sides =
    host !== undefined && vm !== undefined
      ? { host, vm, a: formatSpan(before), b: formatSpan(after) }
      : null;
  const answered = useAnswer(
    JSON.stringify([host, vm, code, whole]),
    (signal) =>
      host === undefined
        ? functionTrend(code?.function ?? "", code?.module || null, whole, buckets, signal)
        : vm === undefined
          ? cpuShares(host, whole, buckets, signal)
          : vmStates(host, vm, whole, buckets, signal),
    buckets,
  );
  const shown = answered.about ?? buckets;
  const series = (rows: { series: string; bucket: number; ns: number }[]): Series[] =>
    host === undefined
      ? trend(rows, shown)
      : vm === undefined
        ? sharesOverTime(rows, shown)
        : statesOverTime(rows, shown);
  return (
    <>
      <Section
        title="Before and after"
        about={`Before: ${spanText(before)}. After: ${spanText(after)}. The bar marks when it began, with a probability of 95 %.`}
      >
        <p>
          {host !== undefined && (
            <Name
              name={placeOf(main)}
              href={to(vm === undefined ? ["host", host] : ["vm", host, vm], {}, whole)}
            />
          )}
          {host === undefined && code && (
            <Name name={code.function} href={to(["function"], { name: code.function }, whole)} />
          )}
          : <bdi>{main.what}</bdi> {measured(main.measure, main.before)} before,{" "}
          {measured(main.measure, main.after)} after.
          {sides && (
            <>
              {" "}
              <a href={formatPlace({ path: ["compare"], range: whole, more: sides })}>
                Compare in full
              </a>
            </>
          )}
        </p>
        <Shown of={answered} empty="The results of this time are not there any more.">
          {(rows) => (
            <Line
              label={main.what}
              buckets={shown}
              series={series(rows)}
              main={main}
              isShare={host !== undefined}
              whole={whole}
            />
          )}
        </Shown>
      </Section>
      {host !== undefined &&
        vm !== undefined &&
        before.from < before.to &&
        after.from < after.to && (
          <Difference a={{ host, vm, span: before }} b={{ host, vm, span: after }} />
        )}
    </>
  );
}

// A part of it that is selected is shown in the view of its VM or host.
function Line(props: {
  label: string;
  buckets: Buckets;
  series: Series[];
  main: FindingChange;
  isShare: boolean;
  whole: Span;
}) {
  const { main, buckets, whole } = props;
  const { host, vm } = main;
  const open = (span: Span | null) => {
    if (span === null || host === undefined) return;
    location.hash = formatPlace({
      path: vm === undefined ? ["host", host] : ["vm", host, vm],
      range: whole,
      more: { sel: formatSpan(span) },
    });
  };
  return (
    <Chart
      label={`${props.label}, over time`}
      buckets={buckets}
      series={props.series}
      {...(props.isShare ? { most: 1 } : {})}
      mark={ranged(main.onset)}
      amount={(value) => (props.isShare ? percent(value, 1, 0) : cpus(value / 1e9))}
      selection={null}
      onSelect={open}
      onZoom={open}
    />
  );
}

function Changes({ finding, after }: { finding: FindingEntry; after: Span }) {
  const to = usePlaces();
  const rows = finding.changes;
  const largest = Math.max(...rows.map((row) => Math.abs(row.cpus)), Number.MIN_VALUE);
  return (
    <Section
      title="What changed"
      about={
        finding.more_changes > 0
          ? `${finding.more_changes} more are not listed.`
          : "All that changed with it."
      }
    >
      <DataTable
        label="What changed"
        rows={rows}
        columns={[
          {
            title: "Where",
            value: placeOf,
            cell: (row) =>
              row.host === undefined ? (
                "the fleet"
              ) : (
                <Name
                  name={placeOf(row)}
                  length={40}
                  href={to(
                    row.vm === undefined ? ["host", row.host] : ["vm", row.host, row.vm],
                    {},
                    after,
                  )}
                />
              ),
          },
          {
            title: "What",
            value: ({ what }) => what,
            cell: ({ what }) => <Name name={what} length={60} />,
          },
          {
            title: "Before",
            value: (row) => row.before,
            cell: (row) => measured(row.measure, row.before),
          },
          {
            title: "After",
            value: (row) => row.after,
            cell: (row) => measured(row.measure, row.after),
          },
          {
            title: "Costs",
            value: (row) => row.cpus,
            cell: (row) => (
              <Bar share={Math.abs(row.cpus) / largest} paint="mark">
                {cpus(row.cpus)}
              </Bar>
            ),
          },
          {
            title: "Since",
            value: (row) => row.since_unix_s,
            cell: (row) => instant(1000 * row.since_unix_s),
          },
          {
            title: "Standard errors",
            value: (row) => row.score,
            cell: (row) => row.score.toFixed(1),
          },
        ]}
      />
    </Section>
  );
}
