// A VM: what its vCPUs did, and of any part of that why.

import { useMemo, useRef } from "preact/hooks";
import { vmCode, vmExits, vmHostCode, vmStates } from "../api/questions";
import type { Series } from "../parts/chart";
import { Flame } from "../parts/flame";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { Profile } from "../parts/profile";
import { DataTable } from "../parts/table";
import { TimeLine, useSelection } from "../parts/timeline";
import { type Buckets, bucketsOf, formatPlace, formatSpan } from "../model/place";
import { type CodeRow, UNATTRIBUTED, flame, functionKey, lines } from "../model/profile";
import { STATES, STOLEN_VMM, largest, sum, totals } from "../model/states";
import { cut, visible } from "../model/text";
import { type Span, count, duration, percent, span as spanText } from "../model/units";
import { verdict } from "../model/verdict";
import { Findings } from "../parts/findings";

const BUCKETS = 120;

export function Vm(props: { host: string; vm: string }) {
  const { host, vm } = props;
  const { place, span } = useApp();
  const to = usePlaces();
  const buckets = bucketsOf(span, BUCKETS);
  const { selection, about } = useSelection();
  const timeline = useAnswer(`states ${span.from} ${span.to}`, (signal) => vmStates(host, vm, span, buckets, signal));
  const sides = { host, vm, a: formatSpan(before(about)), b: formatSpan(about) };
  return (
    <>
      <h1>VM <Name name={vm} /></h1>
      <p>on host <Name name={host} href={to(["host", host])} /></p>
      <Section title="What its vCPUs did">
        <Shown of={timeline} empty="Nothing was recorded of this VM in this time.">
          {(rows) => (
            <TimeLine label="States of the vCPUs over time" buckets={buckets} series={statesOverTime(rows, buckets)} most={1} amount={(share) => percent(share, 1, 0)}>
              <a href={formatPlace({ path: ["compare"], range: place.range, more: sides })}>Compare with the time before</a>
            </TimeLine>
          )}
        </Shown>
      </Section>
      <Details host={host} vm={vm} span={about} isPart={selection !== null} />
      <Findings host={host} vm={vm} />
    </>
  );
}

// The same length before a time.
function before({ from, to }: Span): Span {
  return { from: 2 * from - to, to: from };
}

function statesOverTime(rows: { series: string; bucket: number; ns: number }[], { count }: Buckets): Series[] {
  const all: number[] = new Array(count).fill(0);
  for (const { bucket, ns } of rows) all[bucket] = (all[bucket] ?? 0) + ns;
  const met = STATES.filter(({ state }) => rows.some(({ series, ns }) => series === state && ns > 0));
  return met.map(({ state, name, colour }) => {
    const values: (number | null)[] = all.map((ns) => (ns > 0 ? 0 : null));
    for (const row of rows) if (row.series === state && all[row.bucket]) values[row.bucket] = row.ns / (all[row.bucket] ?? 1);
    return { name, colour, values };
  });
}

function Details(props: { host: string; vm: string; span: Span; isPart: boolean }) {
  const { host, vm, span } = props;
  const key = `${span.from} ${span.to}`;
  const code = useAnswer(`code ${key}`, (signal) => vmCode(host, vm, span, signal));
  const exits = useAnswer(`exits ${key}`, (signal) => vmExits(host, vm, span, signal));
  const hostCode = useAnswer(`host code ${key}`, (signal) => vmHostCode(host, vm, span, signal));
  const find = useRef<((text: string) => void) | null>(null);
  return (
    <Shown of={code} empty="Nothing was recorded of this VM in the selected time.">
      {(rows) => (
        <>
          <Why rows={rows} title={props.isPart ? `Why it was slow in the selected time` : "Why it was slow"} span={span} />
          <Losses rows={rows} host={host} exits={new Map(exits.value?.rows.map(({ reason, exits }) => [reason, exits]))} />
          <Profile rows={rows} find={find} />
          <Section title="What the host ran for it" about="Code of the VMM, of vhost and of KVM in the threads of this VM. Call chains are there if the agent has call_graph = true.">
            <Shown of={hostCode} empty="None was seen.">{(rows) => <HostCode rows={rows} />}</Shown>
          </Section>
        </>
      )}
    </Shown>
  );
}

function HostCode({ rows }: { rows: CodeRow[] }) {
  const tree = useMemo(() => flame([rows], "corrected"), [rows]);
  return <Flame {...tree} />;
}

const short = (name: string) => cut(visible(name), 60);
const thievesOf = (rows: CodeRow[]) => totals(rows.filter(({ state }) => state === "steal_outside"), (row) => row.thief ?? "[unknown]", (row) => row.ns);
const exitsOf = (rows: CodeRow[]) => totals(rows.filter(({ state }) => STOLEN_VMM.includes(state)), (row) => row.exit ?? "[unknown]", (row) => row.ns);

function Why(props: { rows: CodeRow[]; title: string; span: Span }) {
  const { headline, reasons } = useMemo(() => {
    const { rows } = props;
    const named = (times: Map<string, number>) => new Map([...times].map(([name, ns]) => [short(name), ns]));
    const [top] = lines(rows, functionKey);
    const hottest = top && { name: `${short(top.function ?? "")} of ${short(top.process ?? UNATTRIBUTED)}`, ns: top.corrected };
    return verdict({ ...(hottest ? { hottest } : {}), states: totals(rows, (row) => row.state, (row) => row.ns), thieves: named(thievesOf(rows)), exits: named(exitsOf(rows)) });
  }, [props.rows]);
  return (
    <Section title={props.title} about={spanText(props.span)}>
      <div class="verdict">
        <p><strong>{headline}</strong></p>
        {reasons.length > 0 && <ul>{reasons.map((reason) => <li key={reason}>It {reason}.</li>)}</ul>}
      </div>
    </Section>
  );
}

function Losses(props: { rows: CodeRow[]; host: string; exits: Map<string, number> }) {
  const { rows, host, exits } = props;
  const to = usePlaces();
  const states = totals(rows, (row) => row.state, (row) => row.ns);
  const all = sum(states);
  const thieves = largest(thievesOf(rows));
  const inVmm = exitsOf(rows);
  const reasons = [...new Set([...inVmm.keys(), ...exits.keys()])].map((reason) => ({ reason, ns: inVmm.get(reason) ?? 0, exits: exits.get(reason) ?? 0 }));
  const link = (thief: string) => (thief.startsWith("VM ") ? { href: to(["vm", host, thief.slice(3)]) } : {});
  const parts = STATES.filter(({ state }) => states.has(state)).map(({ state, name, colour }) => ({ name, colour, ns: states.get(state) ?? 0 }));
  return (
    <div class="columns">
      <Section title="Where the time went">
        <DataTable label="States" rows={parts} columns={[
          { title: "State", value: (row) => row.name, cell: (row) => <><span class={`swatch ${row.colour}`} />{row.name}</> },
          { title: "Time", value: (row) => row.ns, cell: (row) => duration(row.ns) },
          { title: "Share", value: (row) => row.ns, cell: (row) => percent(row.ns, all) },
        ]} />
      </Section>
      <Section title="Who had the CPU meanwhile">
        {thieves.length === 0 ? <p class="faint">It never waited for a CPU.</p> : (
          <DataTable label="Thieves" first={8} rows={thieves} columns={[
            { title: "Thief", value: ([thief]) => thief, cell: ([thief]) => <Name name={thief} {...link(thief)} /> },
            { title: "Time", value: ([, ns]) => ns, cell: ([, ns]) => duration(ns) },
            { title: "Share", value: ([, ns]) => ns, cell: ([, ns]) => percent(ns, all) },
          ]} />
        )}
      </Section>
      <Section title="VM exits">
        {reasons.length === 0 ? <p class="faint">No time was lost to VM exits.</p> : (
          <DataTable label="VM exits" first={8} rows={reasons.sort((a, b) => b.ns - a.ns)} columns={[
            { title: "Reason", value: (row) => row.reason, cell: (row) => <Name name={row.reason} /> },
            { title: "Time lost", value: (row) => row.ns, cell: (row) => duration(row.ns) },
            { title: "Share", value: (row) => row.ns, cell: (row) => percent(row.ns, all) },
            { title: "Exits", value: (row) => row.exits, cell: (row) => (row.exits === 0 ? <span class="faint">not counted</span> : count(row.exits)) },
          ]} />
        )}
      </Section>
    </div>
  );
}
