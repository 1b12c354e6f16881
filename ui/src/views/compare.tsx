// Two ranges of a VM, or two VMs: what grew and what shrank.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { vmCode } from "../api/questions";
import { Flame } from "../parts/flame";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, useMore, usePlaces } from "../parts/app";
import { BasisSwitch, useBasis } from "../parts/profile";
import { Bar, DataTable } from "../parts/table";
import { formatSpan, parseSpan } from "../model/place";
import { type CodeRow, changes, flame, ofBuckets } from "../model/profile";
import { STATES, sum, totals } from "../model/states";
import { type Span, percent, span as spanText } from "../model/units";

export interface Side {
  host: string;
  vm: string;
  span: Span;
}

export function Compare() {
  const { place, span } = useApp();
  const { more } = place;
  const half = (span.from + span.to) / 2;
  const side = (
    host: string | undefined,
    vm: string | undefined,
    time: string | undefined,
    absent: Span,
  ): Side => ({
    host: host ?? "",
    vm: vm ?? "",
    span: parseSpan(time) ?? absent,
  });
  const a = side(more["host"], more["vm"], more["a"], { from: span.from, to: half });
  const b = side(more["host_b"] ?? more["host"], more["vm_b"] ?? more["vm"], more["b"], {
    from: half,
    to: span.to,
  });
  return (
    <>
      <h1>Compare</h1>
      <Choice key={JSON.stringify([a, b])} a={a} b={b} />
      {a.vm && a.host && b.vm && b.host ? (
        <Difference key={JSON.stringify([a.host, a.vm, b.host, b.vm])} a={a} b={b} />
      ) : (
        <p class="faint">
          Choose what is compared: a VM's name and its host's, and two times. The page of a VM has a
          link here that fills this in.
        </p>
      )}
    </>
  );
}

// An instant as the browser's field has it: in the reader's time zone.
function field(ms: number): string {
  const local = new Date(ms - 60_000 * new Date(ms).getTimezoneOffset());
  return local.toISOString().slice(0, 19);
}

function Choice(props: { a: Side; b: Side }) {
  const setMore = useMore();
  const submit = (event: JSX.TargetedSubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.currentTarget)) as Record<string, string>;
    const time = (name: string, last: Span) => {
      const [from, to] = [
        Date.parse(values[`${name}_from`] ?? ""),
        Date.parse(values[`${name}_to`] ?? ""),
      ];
      return formatSpan(from < to ? { from, to } : last);
    };
    // A field loses the ends of lines, which a name may have.
    const name = (field: string, last: string) =>
      values[field] === last.replace(/[\r\n]/g, "") ? last : (values[field] ?? "");
    setMore({
      host: name("a_host", props.a.host),
      vm: name("a_vm", props.a.vm),
      host_b: name("b_host", props.b.host),
      vm_b: name("b_vm", props.b.vm),
      a: time("a", props.a.span),
      b: time("b", props.b.span),
    });
  };
  const inputs = (name: "a" | "b", { host, vm, span }: Side) => (
    <fieldset>
      <legend>{name === "a" ? "A (before)" : "B (after)"}</legend>
      <label>
        Host <input name={`${name}_host`} value={host} autocomplete="off" />
      </label>
      <label>
        VM <input name={`${name}_vm`} value={vm} autocomplete="off" />
      </label>
      <label>
        From <input type="datetime-local" step="1" name={`${name}_from`} value={field(span.from)} />
      </label>
      <label>
        To <input type="datetime-local" step="1" name={`${name}_to`} value={field(span.to)} />
      </label>
    </fieldset>
  );
  return (
    <form class="choice" onSubmit={submit}>
      {inputs("a", props.a)}
      {inputs("b", props.b)}
      <button type="submit">Compare</button>
    </form>
  );
}

// What of them differs.
export function Difference({ a, b }: { a: Side; b: Side }) {
  const ask = async ({ host, vm, span }: Side, signal: AbortSignal) => {
    const { rows, partial } = await vmCode(
      host,
      vm,
      span,
      { start: span.from, length: span.to - span.from, count: 1 },
      signal,
    );
    return { rows: ofBuckets(rows, 0, 0), partial };
  };
  const both = useAnswer(JSON.stringify([a, b]), async (signal) => {
    const [before, after] = await Promise.all([ask(a, signal), ask(b, signal)]);
    const isThere = before.rows.length + after.rows.length > 0;
    return {
      rows: isThere ? [{ before: before.rows, after: after.rows }] : [],
      partial: [...new Set([...before.partial, ...after.partial])],
    };
  });
  const to = usePlaces();
  const about = (side: Side) => (
    <>
      <Name name={side.vm} href={to(["vm", side.host, side.vm], {}, side.span)} /> on{" "}
      <Name name={side.host} />, {spanText(side.span)}
    </>
  );
  return (
    <>
      <p>
        A: {about(a)}
        <br />
        B: {about(b)}
      </p>
      <Shown of={both} empty="Of both sides nothing was recorded.">
        {([both]) =>
          both &&
          (both.before.length > 0 && both.after.length > 0 ? (
            <Both {...both} />
          ) : (
            <Only
              name={both.after.length > 0 ? "B" : "A"}
              rows={both.after.length > 0 ? both.after : both.before}
            />
          ))
        }
      </Shown>
    </>
  );
}

// The side of which something was recorded.
function Only({ name, rows }: { name: string; rows: CodeRow[] }) {
  const basis = useBasis();
  const tree = useMemo(() => flame([rows], basis), [rows, basis]);
  return (
    <Section
      title={`What the guest ran in ${name}`}
      about="Of the other side nothing was recorded."
    >
      <BasisSwitch />
      <Flame {...tree} />
    </Section>
  );
}

function Both({ before, after }: { before: CodeRow[]; after: CodeRow[] }) {
  const basis = useBasis();
  const to = usePlaces();
  const states = [before, after].map((rows) =>
    totals(
      rows,
      (row) => row.state,
      (row) => row.ns,
    ),
  );
  const wholes = states.map((times) => sum(times)) as [number, number];
  const tree = useMemo(
    () =>
      flame(
        [before, after],
        basis,
        wholes.map((whole) => 1 / whole),
      ),
    [before, after, basis],
  );
  const rows = useMemo(() => changes(before, after, basis, wholes), [before, after, basis]);
  const share = (side: 0 | 1, state: string) => (states[side]?.get(state) ?? 0) / wholes[side];
  const points = (change: number) => `${change > 0 ? "+" : ""}${(100 * change).toFixed(2)}`;
  const met = STATES.map(({ state, name, colour }) => ({
    name,
    colour,
    a: share(0, state),
    b: share(1, state),
  })).filter(({ a, b }) => a + b > 0);
  return (
    <>
      <Section title="States" about="In % of the vCPUs' time.">
        <DataTable
          label="States of both"
          rows={met}
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
            { title: "A", value: (row) => row.a, cell: (row) => percent(row.a, 1, 2) },
            { title: "B", value: (row) => row.b, cell: (row) => percent(row.b, 1, 2) },
            {
              title: "Change, points",
              value: (row) => row.b - row.a,
              cell: (row) => points(row.b - row.a),
            },
          ]}
        />
      </Section>
      <Section
        title="What the guest ran"
        about="A frame's width is its mean share of both. Red frames grew, blue ones shrank; the stronger the colour, the more."
      >
        <BasisSwitch />
        <ul class="legend">
          {[
            ["shrank-3", "by half and more"],
            ["shrank-2", ""],
            ["shrank-1", "shrank by 5 %"],
            ["same", "the same"],
            ["grew-1", "grew by 5 %"],
            ["grew-2", ""],
            ["grew-3", "by half and more"],
          ].map(([colour, name]) => (
            <li key={colour}>
              <span class={`swatch ${colour ?? ""}`} />
              {name}
            </li>
          ))}
        </ul>
        <Flame {...tree} />
      </Section>
      <Section title="Functions by change" about="In % of the vCPUs' time.">
        {rows.length === 0 ? (
          <p class="faint">No function was seen.</p>
        ) : (
          <DataTable
            label="Functions by change"
            rows={rows}
            columns={[
              {
                title: "Function",
                value: (row) => row.function,
                cell: (row) => (
                  <Name
                    name={row.function}
                    href={to(["function"], {
                      name: row.function,
                      ...(row.module === null ? {} : { module: row.module }),
                    })}
                  />
                ),
              },
              { title: "A", value: (row) => row.a, cell: (row) => percent(row.a, 1, 2) },
              { title: "B", value: (row) => row.b, cell: (row) => percent(row.b, 1, 2) },
              {
                title: "Change, points",
                value: (row) => row.b - row.a,
                cell: (row) => (
                  <Bar
                    share={Math.abs(row.b - row.a)}
                    paint={row.a < row.b ? "grew-3" : "shrank-3"}
                  >
                    {points(row.b - row.a)}
                  </Bar>
                ),
              },
              {
                title: "Module",
                value: (row) => row.module ?? "",
                cell: (row) => <Name name={row.module ?? "-"} />,
              },
            ]}
          />
        )}
      </Section>
    </>
  );
}
