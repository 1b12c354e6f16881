// What the code of a VM did: flame graph, functions, processes; corrected or apparent.

import { useMemo } from "preact/hooks";
import {
  type Basis,
  type CodeRow,
  type Line,
  flame,
  functionKey,
  lines,
  processKey,
  UNATTRIBUTED,
} from "../model/profile";
import { visible } from "../model/text";
import { percent } from "../model/units";
import { Section, useApp, useMore, usePlaces } from "./app";
import { Flame } from "./flame";
import { Name } from "./name";
import { Bar, DataTable, timeColumn } from "./table";

export function useBasis(): Basis {
  return useApp().place.more["time"] === "apparent" ? "apparent" : "corrected";
}

export function BasisSwitch() {
  const basis = useBasis();
  const setMore = useMore();
  const option = (value: Basis, name: string, title: string) => (
    <label title={title}>
      <input
        type="radio"
        name="basis"
        checked={basis === value}
        onChange={() => setMore({ time: value === "corrected" ? "" : value })}
      />{" "}
      {name}
    </label>
  );
  return (
    <fieldset class="switch">
      <legend>Time</legend>
      {option("corrected", "corrected", "without what was lost meanwhile: stolen or throttled")}
      {option(
        "apparent",
        "apparent",
        "as the guest's clock shows it, with what was lost meanwhile",
      )}
    </fieldset>
  );
}

export function Profile(props: {
  rows: CodeRow[];
  find: { current: ((text: string) => void) | null };
}) {
  const { rows, find } = props;
  const basis = useBasis();
  const to = usePlaces();
  const tree = useMemo(() => flame([rows], basis), [rows, basis]);
  const functions = useMemo(() => lines(rows, functionKey), [rows]);
  const processes = useMemo(() => lines(rows, processKey), [rows]);
  const all = rows.reduce((ns, row) => ns + row.ns, 0);
  const search = (text: string) => {
    find.current?.(visible(text));
    document.querySelector(".flame-box")?.scrollIntoView({ block: "center" });
  };
  return (
    <>
      <Section
        title="What the guest ran"
        about="Processes, threads and functions; their width is their time. Apparent time includes what each function lost meanwhile, as frames of its own."
      >
        <BasisSwitch />
        <Flame {...tree} find={find} />
      </Section>
      <Section title="Functions">
        {functions.length === 0 ? (
          <p class="faint">
            No function was seen: the guest was idle, or has no names (see Health).
          </p>
        ) : (
          <DataTable
            label="Functions"
            rows={functions}
            columns={[
              functionColumn(search, to),
              ...timeColumns(functions, all),
              processColumn(search),
              moduleColumn(),
            ]}
          />
        )}
      </Section>
      <Section title="Processes">
        <DataTable
          label="Processes"
          rows={processes}
          columns={[processColumn(search), ...timeColumns(processes, all)]}
        />
      </Section>
    </>
  );
}

function functionColumn(search: (text: string) => void, to: ReturnType<typeof usePlaces>) {
  const name = (line: Line) => line.function ?? "";
  return {
    title: "Function",
    value: name,
    cell: (line: Line) => (
      <>
        <Name
          name={name(line)}
          href={to(["function"], {
            name: name(line),
            ...(line.module === null ? {} : { module: line.module }),
          })}
        />
        <button
          type="button"
          class="more"
          aria-label={`Show ${visible(name(line)).slice(0, 60)} in the flame graph`}
          onClick={() => search(name(line))}
        >
          show
        </button>
      </>
    ),
  };
}

function processColumn(search: (text: string) => void) {
  const name = (line: Line) => line.process ?? UNATTRIBUTED;
  return {
    title: "Process",
    value: name,
    cell: (line: Line) => (
      <>
        <Name name={name(line)} />
        <button
          type="button"
          class="more"
          aria-label={`Show ${visible(name(line)).slice(0, 60)} in the flame graph`}
          onClick={() => search(name(line))}
        >
          show
        </button>
      </>
    ),
  };
}

function moduleColumn() {
  return {
    title: "Module",
    value: (line: Line) => line.module ?? "",
    cell: (line: Line) => <Name name={line.module ?? "-"} />,
  };
}

function timeColumns(rows: readonly Line[], all: number) {
  const lost = (line: Line) => line.apparent - line.corrected;
  return [
    timeColumn(
      "Corrected",
      rows,
      (line) => line.corrected,
      (text, line) => (
        <Bar share={line.corrected / all} paint="guest-user">
          {text}
        </Bar>
      ),
    ),
    {
      title: "% of the VM",
      value: (line: Line) => line.corrected,
      cell: (line: Line) => percent(line.corrected, all, 2),
    },
    timeColumn("Apparent", rows, (line) => line.apparent),
    timeColumn("Lost", rows, lost, (text, line) => (
      <Bar share={lost(line) / all} paint="preempted">
        {text}
      </Bar>
    )),
    {
      title: "Samples",
      value: (line: Line) => line.samples,
      cell: (line: Line) => line.samples.toLocaleString("en"),
    },
  ];
}
