// The fleet: which hosts and VMs lose time, when, and to whom.

import { type VmTimes, fleet } from "../api/client";
import { Findings } from "../parts/findings";
import { type HeatRow, HeatMap } from "../parts/heat";
import { Name } from "../parts/name";
import { Bar, DataTable, timeColumn } from "../parts/table";
import { Section, Shown, useApp, usePlaces, useSums } from "../parts/app";
import { type Buckets, formatPlace, iso, spanOfBuckets } from "../model/place";
import { percent } from "../model/units";

const SLOTS = 96;
// Around a cell that is opened, so many on each side.
const AROUND = 5;

export function Fleet() {
  const { span } = useApp();
  const to = usePlaces();
  const answered = useSums(`${span.from} ${span.to}`, (signal) =>
    fleet({ from: iso(span.from), to: iso(span.to), slots: SLOTS }, signal),
  );
  const { value, ...rest } = answered;
  const table = <Row,>(rows: Row[] | undefined) => ({
    ...rest,
    ...(rows && value ? { value: { rows, partial: value.partial } } : {}),
  });
  const buckets: Buckets = {
    start: 1000 * (value?.start_unix_s ?? 0),
    length: 1000 * (value?.slot_s ?? 1),
    count: value?.hosts[0]?.stolen.length ?? 0,
  };
  const open = (row: HeatRow, bucket: number) => {
    location.hash = formatPlace({
      path: ["host", row.name],
      more: {},
      range: spanOfBuckets(buckets, bucket - AROUND, bucket + AROUND),
    });
  };
  return (
    <>
      <h1>Fleet</h1>
      <Findings />
      <Section
        title="Stolen time, by host"
        about="Share of the vCPUs' time in which they waited for a CPU (steal type 1) or were in the VMM (type 2). The hosts that lose most come first."
      >
        <Shown of={table(value?.hosts)} empty="No host has sent results for this time.">
          {(rows) => (
            <HeatMap
              label="Stolen time by host and time"
              rows={rows.map(({ host, stolen }) => ({
                name: host,
                href: to(["host", host]),
                shares: stolen,
              }))}
              buckets={buckets}
              onOpen={open}
            />
          )}
        </Shown>
      </Section>
      <Section title="VMs that lost most">
        <Shown of={table(value?.vms)} empty="No VM ran in this time.">
          {(rows) => (
            <DataTable label="VMs that lost most" rows={rows} columns={vmColumns(rows, to)} />
          )}
        </Shown>
      </Section>
    </>
  );
}

function vmColumns(rows: readonly VmTimes[], to: ReturnType<typeof usePlaces>) {
  const share = (title: string, paint: string, value: (vm: VmTimes) => number) => ({
    title,
    value,
    cell: (vm: VmTimes) => (
      <Bar share={value(vm)} paint={paint}>
        {percent(value(vm), 1)}
      </Bar>
    ),
  });
  return [
    {
      title: "VM",
      value: (vm: VmTimes) => vm.vm,
      cell: (vm: VmTimes) => <Name name={vm.vm} href={to(["vm", vm.host, vm.vm])} />,
    },
    {
      title: "Host",
      value: (vm: VmTimes) => vm.host,
      cell: (vm: VmTimes) => <Name name={vm.host} href={to(["host", vm.host])} />,
    },
    share("Lost", "mark", (vm) => (vm.outside_ns + vm.vmm_ns + vm.throttled_ns) / vm.ns),
    share("Waiting for a CPU", "preempted", (vm) => vm.outside_ns / vm.ns),
    share("In the VMM", "vmm", (vm) => vm.vmm_ns / vm.ns),
    share("Throttled", "throttled", (vm) => vm.throttled_ns / vm.ns),
    timeColumn("vCPU time", rows, (vm) => vm.ns),
  ];
}
