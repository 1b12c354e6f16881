// A host: who has its CPUs, who takes them from whom, and whether it has enough.

import {
  type StateRow,
  type VmSize,
  cpuShares,
  hostSize,
  hostStates,
  vmSizes,
} from "../api/questions";
import { Findings } from "../parts/findings";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { DataTable } from "../parts/table";
import { TimeLine, useSelection } from "../parts/timeline";
import { bucketsOf } from "../model/place";
import { sharesOverTime } from "../model/series";
import {
  GUEST,
  IDLE,
  STATES,
  STOLEN,
  STOLEN_OUTSIDE,
  THROTTLED,
  largest,
  sum,
  totals,
} from "../model/states";
import { byName } from "../model/text";
import { type Span, duration, percent, span as spanText } from "../model/units";

const BUCKETS = 120;
// Columns of the matrix besides the VMs.
const MOST_OTHERS = 4;

export function Host(props: { host: string }) {
  const { host } = props;
  const { span } = useApp();
  const buckets = bucketsOf(span, BUCKETS);
  const { about } = useSelection();
  const shares = useAnswer(
    `shares ${span.from} ${span.to}`,
    (signal) => cpuShares(host, span, buckets, signal),
    buckets,
  );
  const shown = shares.about ?? buckets;
  const states = useAnswer(`states ${about.from} ${about.to}`, (signal) =>
    hostStates(host, about, signal),
  );
  const sizes = useAnswer(`sizes ${about.from} ${about.to}`, (signal) =>
    vmSizes(host, about, signal),
  );
  const size = useAnswer(`size ${about.from} ${about.to}`, (signal) =>
    hostSize(host, about, signal),
  );
  return (
    <>
      <h1>
        Host <Name name={host} />
      </h1>
      <Section title="Who had its CPUs">
        <Shown of={shares} empty="This host has sent no results for this time.">
          {(rows) => (
            <TimeLine
              label="Shares of the host's CPUs over time"
              buckets={shown}
              series={sharesOverTime(rows, shown)}
              most={1}
              amount={(share) => percent(share, 1, 0)}
            />
          )}
        </Shown>
      </Section>
      <Shown of={states} empty="No VM ran here in this time.">
        {(rows) => (
          <>
            <Overcommit
              rows={rows}
              sizes={sizes.value?.rows ?? []}
              cpus={size.value?.rows[0]?.cpus ?? 0}
              covered={size.value?.rows[0]?.covered ?? 0}
              span={about}
            />
            <Matrix rows={rows} host={host} />
            <Vms rows={rows} sizes={sizes.value?.rows ?? []} host={host} />
          </>
        )}
      </Shown>
      <Findings host={host} />
    </>
  );
}

// CPUs that something of so many ns needed all the time.
const inCpus = (ns: number, covered: number) => (covered > 0 ? (ns / covered).toFixed(2) : "-");

function Overcommit(props: {
  rows: StateRow[];
  sizes: VmSize[];
  cpus: number;
  covered: number;
  span: Span;
}) {
  const { rows, sizes, cpus, covered } = props;
  const states = totals(
    rows,
    (row) => row.state,
    (row) => row.ns,
  );
  const vcpus = sizes.reduce((vcpus, vm) => vcpus + vm.vcpus, 0);
  const wanted = sum(states) - sum(states, IDLE);
  const got = wanted - sum(states, [...STOLEN_OUTSIDE, ...THROTTLED]);
  const ratio = cpus > 0 ? vcpus / cpus : 0;
  const facts: [string, string][] = [
    ["CPUs", String(cpus || "-")],
    ["VMs", String(sizes.length)],
    ["vCPUs", `${vcpus}${cpus > 0 ? ` (${ratio.toFixed(2)} for each CPU)` : ""}`],
    ["CPUs that the VMs wanted", inCpus(wanted, covered)],
    ["CPUs that they got", inCpus(got, covered)],
    ["Stolen", percent(sum(states, STOLEN), sum(states))],
  ];
  return (
    <Section title="Overcommit" about={spanText(props.span)}>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {cpus > 0 && cpus * covered < wanted && (
        <p class="verdict">
          The VMs wanted {inCpus(wanted, covered)} CPUs, and there are {cpus}. Move a VM to another
          host, or give those that matter more <code>cpu.weight</code>.
        </p>
      )}
    </Section>
  );
}

function Matrix(props: { rows: StateRow[]; host: string }) {
  const to = usePlaces();
  const stolen = props.rows.filter(({ state }) => STOLEN_OUTSIDE.includes(state));
  const wholes = totals(
    props.rows,
    (row) => row.vm,
    (row) => row.ns,
  );
  const name = (row: StateRow) => row.thief ?? "[unknown]";
  const thieves = largest(totals(stolen, name, (row) => row.ns)).map(([thief]) => thief);
  const vms = thieves.filter((thief) => thief.startsWith("VM ")).slice(0, 12);
  const others = thieves.filter((thief) => !thief.startsWith("VM ")).slice(0, MOST_OTHERS);
  const columns = [...vms.sort(byName), ...others];
  const link = (thief: string) =>
    thief.startsWith("VM ") ? { href: to(["vm", props.host, thief.slice(3)]) } : {};
  const victims = [...wholes.keys()].sort(byName);
  const taken = (vm: string, has: (thief: string) => boolean) =>
    stolen.filter((row) => row.vm === vm && has(name(row))).reduce((ns, row) => ns + row.ns, 0);
  const rest = (thief: string) => !columns.includes(thief);
  const cell = (vm: string, key: string, ns: number) => {
    const share = ns / (wholes.get(vm) ?? 1);
    return (
      <td key={key} class="number heat-cell" title={duration(ns)}>
        <span class="heat-paint" style={{ opacity: Math.sqrt(Math.min(1, 2 * share)) * 0.55 }} />
        <span>{ns === 0 ? "-" : percent(share, 1)}</span>
      </td>
    );
  };
  return (
    <Section
      title="Who takes CPU time from whom"
      about="In % of the victim's time: while it waited for a CPU, the thief ran there."
    >
      {stolen.length === 0 ? (
        <p class="faint">No VM waited for a CPU.</p>
      ) : (
        <div class="scroll">
          <table class="matrix" aria-label="Who takes CPU time from whom">
            <thead>
              <tr>
                <th scope="col">Victim</th>
                {columns.map((thief) => (
                  <th key={thief} scope="col" class="number">
                    <Name name={thief} length={24} {...link(thief)} />
                  </th>
                ))}
                {columns.length < thieves.length && (
                  <th scope="col" class="number">
                    {thieves.length - columns.length} others
                  </th>
                )}
              </tr>
            </thead>
            <tbody>
              {victims.map((vm) => (
                <tr key={vm}>
                  <th scope="row">
                    <Name name={vm} href={to(["vm", props.host, vm])} length={40} />
                  </th>
                  {columns.map((thief) =>
                    cell(
                      vm,
                      thief,
                      taken(vm, (other) => other === thief),
                    ),
                  )}
                  {columns.length < thieves.length && cell(vm, "", taken(vm, rest))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  );
}

function Vms(props: { rows: StateRow[]; sizes: VmSize[]; host: string }) {
  const to = usePlaces();
  const sizes = new Map(props.sizes.map((size) => [size.vm, size]));
  const vms = [...new Set(props.rows.map(({ vm }) => vm))].map((vm) => {
    const states = totals(
      props.rows.filter((row) => row.vm === vm),
      (row) => row.state,
      (row) => row.ns,
    );
    return { vm, states, all: sum(states), size: sizes.get(vm) };
  });
  const share = (title: string, states: readonly string[]) => ({
    title,
    value: (row: (typeof vms)[0]) => sum(row.states, states) / row.all,
    cell: (row: (typeof vms)[0]) => percent(sum(row.states, states), row.all),
  });
  return (
    <Section title="Its VMs">
      <DataTable
        label="VMs of this host"
        rows={vms.sort((a, b) => sum(b.states, STOLEN) / b.all - sum(a.states, STOLEN) / a.all)}
        columns={[
          {
            title: "VM",
            value: (row) => row.vm,
            cell: (row) => <Name name={row.vm} href={to(["vm", props.host, row.vm])} />,
          },
          {
            title: "vCPUs",
            value: (row) => row.size?.vcpus ?? -1,
            cell: (row) => row.size?.vcpus ?? "-",
          },
          share("Guest", GUEST),
          share("Stolen", STOLEN),
          share("Throttled", THROTTLED),
          share("Halted", ["halt"]),
          share("Halt polling", ["halt_polling"]),
          {
            title: "States",
            value: (row) => 1 - sum(row.states, IDLE) / row.all,
            cell: (row) => <States states={row.states} />,
          },
          {
            title: "Guest's names",
            value: (row) => (row.size?.noMap ? `none: ${row.size.noMap}` : "known"),
            cell: (row) =>
              row.size?.noMap ? <Name name={`none: ${row.size.noMap}`} length={50} /> : "known",
          },
        ]}
      />
    </Section>
  );
}

// A bar of a VM's states; the numbers stand beside it.
function States(props: { states: ReadonlyMap<string, number> }) {
  const all = sum(props.states);
  let left = 0;
  return (
    <svg class="states" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      {STATES.map(({ state, colour }) => {
        const width = (100 * (props.states.get(state) ?? 0)) / all;
        left += width;
        return (
          width > 0 && (
            <rect key={state} class={colour} x={left - width} width={width} height="10" />
          )
        );
      })}
    </svg>
  );
}
