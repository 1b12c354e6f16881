// The fleet: which hosts and VMs lose time, when, and to whom.

import { type VmSteal, fleetSteal, victims } from "../api/questions";
import { Findings } from "../parts/findings";
import { type HeatRow, HeatMap } from "../parts/heat";
import { Name } from "../parts/name";
import { Bar, DataTable } from "../parts/table";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { bucketsOf, formatPlace, spanOfBuckets } from "../model/place";
import { duration, percent } from "../model/units";

const BUCKETS = 96;
// Around a cell that is opened, so many on each side.
const AROUND = 5;

export function Fleet() {
  const { span } = useApp();
  const to = usePlaces();
  const buckets = bucketsOf(span, BUCKETS);
  const key = `${span.from} ${span.to}`;
  const steal = useAnswer(`steal ${key}`, (signal) => fleetSteal(span, buckets, signal));
  const losers = useAnswer(`victims ${key}`, (signal) => victims(span, signal));

  const open = (row: HeatRow, bucket: number) => {
    location.hash = formatPlace({ path: ["host", row.name], more: {}, range: spanOfBuckets(buckets, bucket - AROUND, bucket + AROUND) });
  };
  return (
    <>
      <h1>Fleet</h1>
      <Findings />
      <Section title="Stolen time, by host" about="Share of the vCPUs' time in which they waited for a CPU (steal type 1) or were in the VMM (type 2). The hosts that lose most come first.">
        <Shown of={steal} empty="No host has sent results for this time.">
          {(rows) => {
            const whole = rows.map(({ host, cells }) => {
              const shares: (number | null)[] = new Array(buckets.count).fill(null);
              let [ns, stolen] = [0, 0];
              for (const cell of cells) {
                shares[cell.bucket] = cell.ns > 0 ? (cell.outside + cell.vmm) / cell.ns : null;
                ns += cell.ns;
                stolen += cell.outside + cell.vmm;
              }
              return { row: { name: host, href: to(["host", host]), shares }, share: ns > 0 ? stolen / ns : 0 };
            });
            whole.sort((a, b) => b.share - a.share || (a.row.name < b.row.name ? -1 : 1));
            return <HeatMap label="Stolen time by host and time" rows={whole.map(({ row }) => row)} buckets={buckets} onOpen={open} />;
          }}
        </Shown>
      </Section>
      <Section title="VMs that lost most">
        <Shown of={losers} empty="No VM ran in this time.">
          {(rows) => <DataTable label="VMs that lost most" rows={rows} columns={vmColumns(to)} />}
        </Shown>
      </Section>
    </>
  );
}

function vmColumns(to: ReturnType<typeof usePlaces>) {
  const share = (title: string, paint: string, value: (vm: VmSteal) => number) => ({
    title, value,
    cell: (vm: VmSteal) => <Bar share={value(vm)} paint={paint}>{percent(value(vm), 1)}</Bar>,
  });
  return [
    { title: "VM", value: (vm: VmSteal) => vm.vm, cell: (vm: VmSteal) => <Name name={vm.vm} href={to(["vm", vm.host, vm.vm])} /> },
    { title: "Host", value: (vm: VmSteal) => vm.host, cell: (vm: VmSteal) => <Name name={vm.host} href={to(["host", vm.host])} /> },
    share("Lost", "mark", (vm) => (vm.outside + vm.vmm + vm.throttled) / vm.ns),
    share("Waiting for a CPU", "preempted", (vm) => vm.outside / vm.ns),
    share("In the VMM", "vmm", (vm) => vm.vmm / vm.ns),
    share("Throttled", "throttled", (vm) => vm.throttled / vm.ns),
    { title: "vCPU time", value: (vm: VmSteal) => vm.ns, cell: (vm: VmSteal) => duration(vm.ns) },
  ];
}
