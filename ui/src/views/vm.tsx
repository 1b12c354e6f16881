// A VM: what its vCPUs did, and of any part of that why.

import { useMemo, useRef } from "preact/hooks";
import { type Table, vmCode, vmExits, vmHostCode, vmSeconds, vmStates } from "../api/questions";
import { Flame } from "../parts/flame";
import { Name } from "../parts/name";
import { type Answered, Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { Profile } from "../parts/profile";
import { DataTable, timeColumn } from "../parts/table";
import { TimeLine, useSelection } from "../parts/timeline";
import {
  BY_SECOND_MS,
  type Buckets,
  bucketsIn,
  bucketsOf,
  formatPlace,
  formatSpan,
  spanOfBuckets,
} from "../model/place";
import {
  type CodeCells,
  type CodeRow,
  UNATTRIBUTED,
  flame,
  functionKey,
  lines,
  ofBuckets,
} from "../model/profile";
import { type Point, pointsOf, statesOverTime } from "../model/series";
import { STATES, STOLEN_OUTSIDE, STOLEN_VMM, largest, sum, totals } from "../model/states";
import { cut, visible } from "../model/text";
import { SECOND_MS, type Span, count, percent, span as spanText } from "../model/units";
import { verdict } from "../model/verdict";
import { Findings } from "../parts/findings";

const BUCKETS = 120;

export function Vm(props: { host: string; vm: string }) {
  const { host, vm } = props;
  const { place, span } = useApp();
  const to = usePlaces();
  const { selection, about } = useSelection();
  const fine = bucketsOf(span, BUCKETS, SECOND_MS);
  const isShort = span.to - span.from <= BY_SECOND_MS;
  const bySecond = useAnswer(
    `seconds ${isShort ? `${span.from} ${span.to}` : ""}`,
    async (signal) => (isShort ? vmSeconds(host, vm, fine, signal) : null),
    fine,
  );
  // Without the windows themselves there are the slices of their results.
  const isFine = isShort && (bySecond.isLoading || !!bySecond.value);
  const buckets = isFine ? fine : bucketsOf(span, BUCKETS);
  const answered = useAnswer(
    `states ${span.from} ${span.to} ${isFine}`,
    (signal) =>
      isFine
        ? Promise.resolve({ rows: [], partial: [] })
        : vmStates(host, vm, span, buckets, signal),
    buckets,
  );
  const points = useMemo(() => pointsOf(bySecond.value?.rows ?? []), [bySecond.value]);
  const timeline = isFine
    ? ({
        ...bySecond,
        ...(bySecond.value ? { value: { rows: points, partial: bySecond.value.partial } } : {}),
      } as Answered<Table<Point>, Buckets>)
    : answered;
  const shown = timeline.about ?? buckets;
  const sides = { host, vm, a: formatSpan(before(about)), b: formatSpan(about) };
  return (
    <>
      <h1>
        VM <Name name={vm} />
      </h1>
      <p>
        on host <Name name={host} href={to(["host", host])} />
      </p>
      <Section title="What its vCPUs did">
        <Shown of={timeline} empty="Nothing was recorded of this VM in this time.">
          {(rows) => (
            <TimeLine
              label="States of the vCPUs over time"
              buckets={shown}
              series={statesOverTime(rows, shown)}
              most={1}
              amount={(share) => percent(share, 1, 0)}
            >
              <a href={formatPlace({ path: ["compare"], range: place.range, more: sides })}>
                Compare with the time before
              </a>
            </TimeLine>
          )}
        </Shown>
      </Section>
      <Details
        host={host}
        vm={vm}
        span={span}
        buckets={buckets}
        selection={selection}
        bySecond={isFine ? bySecond : null}
      />
      <Findings host={host} vm={vm} />
    </>
  );
}

// The same length before a time.
function before({ from, to }: Span): Span {
  return { from: 2 * from - to, to: from };
}

// All of the range is queried once, in buckets; the selection is added up here. Only a selection that does not consist of
// buckets, which an address can name, is queried.
function Details(props: {
  host: string;
  vm: string;
  span: Span;
  buckets: Buckets;
  selection: Span | null;
  bySecond: Answered<Table<CodeCells> | null, Buckets> | null;
}) {
  const { host, vm, selection } = props;
  const inside = selection && bucketsIn(props.buckets, selection);
  const span = selection && !inside ? selection : props.span;
  const buckets =
    selection && !inside
      ? { start: selection.from, length: selection.to - selection.from, count: 1 }
      : props.buckets;
  const { first, last } = inside ?? { first: 0, last: buckets.count - 1 };
  const key = `${span.from} ${span.to}`;
  const isFine = props.bySecond !== null && (!selection || inside !== null);
  const answered = useAnswer(
    `code ${isFine} ${key}`,
    (signal) =>
      isFine ? Promise.resolve({ rows: [], partial: [] }) : vmCode(host, vm, span, buckets, signal),
    buckets,
  );
  // What the host ran, and exits, are known by slices of 10 s: of single seconds they are those of all the time.
  const whole = isFine
    ? { start: buckets.start, length: buckets.count * buckets.length, count: 1 }
    : buckets;
  const exits = useAnswer(
    `exits ${isFine} ${key}`,
    (signal) => vmExits(host, vm, span, whole, signal),
    whole,
  );
  const answeredOfHost = useAnswer(
    `host code ${isFine} ${key}`,
    (signal) => vmHostCode(host, vm, span, whole, signal),
    whole,
  );
  const code = useBuckets(
    isFine && props.bySecond ? props.bySecond : answered,
    buckets,
    first,
    last,
  );
  const hostCode = useBuckets(answeredOfHost, buckets, first, last);
  const isChosen = ({ bucket }: { bucket: number }) =>
    !isSame(exits.about, buckets) || (first <= bucket && bucket <= last);
  const counts = totals(
    (exits.value?.rows ?? []).filter(isChosen),
    (row) => row.reason,
    (row) => row.exits,
  );
  const isAnswered = isSame(code.about, buckets);
  const find = useRef<((text: string) => void) | null>(null);
  return (
    <Shown of={code} empty="Nothing was recorded of this VM in the selected time.">
      {(rows) => (
        <>
          <Why
            rows={rows}
            title={
              selection && isAnswered ? "Why it was slow in the selected time" : "Why it was slow"
            }
            span={
              isAnswered || !code.about
                ? (selection ?? span)
                : spanOfBuckets(code.about, 0, code.about.count - 1)
            }
          />
          <Losses rows={rows} host={host} exits={counts} />
          <Profile rows={rows} find={find} />
          <Section
            title="What the host ran for it"
            about={
              isFine
                ? "In all of the time shown: it is not known by the second."
                : "Code of the VMM, of vhost and of KVM in the threads of this VM. Call chains are there if the agent has call_graph = true."
            }
          >
            <Shown of={hostCode} empty="None was seen.">
              {(rows) => <HostCode rows={rows} />}
            </Shown>
          </Section>
        </>
      )}
    </Shown>
  );
}

const isSame = (a: Buckets | undefined, b: Buckets) =>
  a?.start === b.start && a.length === b.length && a.count === b.count;

// The part of an answer that some buckets have: the same rows until others are chosen. Of an answer about others all of it.
function useBuckets(
  answered: Answered<Table<CodeCells> | null, Buckets>,
  buckets: Buckets,
  first: number,
  last: number,
): Answered<Table<CodeRow>, Buckets> {
  const { value, ...rest } = answered;
  const [from, to] = isSame(rest.about, buckets) ? [first, last] : [0, Infinity];
  const rows = useMemo(() => ofBuckets(value?.rows ?? [], from, to), [value, from, to]);
  return { ...rest, ...(value ? { value: { rows, partial: value.partial } } : {}) };
}

function HostCode({ rows }: { rows: CodeRow[] }) {
  const tree = useMemo(() => flame([rows], "corrected"), [rows]);
  return <Flame {...tree} />;
}

const short = (name: string) => cut(visible(name), 60);
const thievesOf = (rows: CodeRow[]) =>
  totals(
    rows.filter(({ state }) => STOLEN_OUTSIDE.includes(state)),
    (row) => row.thief ?? "[unknown]",
    (row) => row.ns,
  );
const exitsOf = (rows: CodeRow[]) =>
  totals(
    rows.filter(({ state }) => STOLEN_VMM.includes(state)),
    (row) => row.exit ?? "[unknown]",
    (row) => row.ns,
  );

function Why(props: { rows: CodeRow[]; title: string; span: Span }) {
  const { headline, reasons } = useMemo(() => {
    const { rows } = props;
    const named = (times: Map<string, number>) =>
      new Map([...times].map(([name, ns]) => [short(name), ns]));
    const [top] = lines(rows, functionKey);
    const hottest = top && {
      name: `${short(top.function ?? "")} of ${short(top.process ?? UNATTRIBUTED)}`,
      ns: top.corrected,
    };
    return verdict({
      ...(hottest ? { hottest } : {}),
      states: totals(
        rows,
        (row) => row.state,
        (row) => row.ns,
      ),
      thieves: named(thievesOf(rows)),
      exits: named(exitsOf(rows)),
    });
  }, [props.rows]);
  return (
    <Section title={props.title} about={spanText(props.span)}>
      <div class="verdict">
        <p>
          <strong>{headline}</strong>
        </p>
        {reasons.length > 0 && (
          <ul>
            {reasons.map((reason) => (
              <li key={reason}>It {reason}.</li>
            ))}
          </ul>
        )}
      </div>
    </Section>
  );
}

function Losses(props: { rows: CodeRow[]; host: string; exits: Map<string, number> }) {
  const { rows, host, exits } = props;
  const to = usePlaces();
  const states = totals(
    rows,
    (row) => row.state,
    (row) => row.ns,
  );
  const all = sum(states);
  const thieves = largest(thievesOf(rows));
  const inVmm = exitsOf(rows);
  const reasons = [...new Set([...inVmm.keys(), ...exits.keys()])].map((reason) => ({
    reason,
    ns: inVmm.get(reason) ?? 0,
    exits: exits.get(reason) ?? 0,
  }));
  const link = (thief: string) =>
    thief.startsWith("VM ") ? { href: to(["vm", host, thief.slice(3)]) } : {};
  const parts = STATES.filter(({ state }) => states.has(state)).map(({ state, name, colour }) => ({
    name,
    colour,
    ns: states.get(state) ?? 0,
  }));
  return (
    <div class="columns">
      <Section title="Where the time went">
        <DataTable
          label="States"
          rows={parts}
          columns={[
            {
              title: "State",
              value: (row) => row.name,
              cell: (row) => (
                <>
                  <span class={`swatch ${row.colour}`} />
                  {row.name}
                </>
              ),
            },
            timeColumn("Time", parts, (row) => row.ns),
            { title: "Share", value: (row) => row.ns, cell: (row) => percent(row.ns, all) },
          ]}
        />
      </Section>
      <Section title="Who had the CPU meanwhile">
        {thieves.length === 0 ? (
          <p class="faint">It never waited for a CPU.</p>
        ) : (
          <DataTable
            label="Thieves"
            first={8}
            rows={thieves}
            columns={[
              {
                title: "Thief",
                value: ([thief]) => thief,
                cell: ([thief]) => <Name name={thief} {...link(thief)} />,
              },
              timeColumn("Time", thieves, ([, ns]) => ns),
              { title: "Share", value: ([, ns]) => ns, cell: ([, ns]) => percent(ns, all) },
            ]}
          />
        )}
      </Section>
      <Section title="VM exits">
        {reasons.length === 0 ? (
          <p class="faint">No time was lost to VM exits.</p>
        ) : (
          <DataTable
            label="VM exits"
            first={8}
            rows={reasons.sort((a, b) => b.ns - a.ns)}
            columns={[
              {
                title: "Reason",
                value: (row) => row.reason,
                cell: (row) => <Name name={row.reason} />,
              },
              timeColumn("Time lost", reasons, (row) => row.ns),
              { title: "Share", value: (row) => row.ns, cell: (row) => percent(row.ns, all) },
              {
                title: "Exits",
                value: (row) => row.exits,
                cell: (row) =>
                  row.exits === 0 ? <span class="faint">not counted</span> : count(row.exits),
              },
            ]}
          />
        )}
      </Section>
    </div>
  );
}
