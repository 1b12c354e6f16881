//! Recordings of VMs under a quota whose samples end before the recording does.

use model::{
    CpuId, Header, HostNs, QuotaMember, Sample, Switch, SwitchEvent, Tables, ThrottledQueue,
    Throttling, VcpuId, VcpuSample, VcpuState, VmId, WaitCounters,
};

use super::common;

const PERIOD_NS: u64 = 1_000_000;

/// What one is made of.
#[derive(Debug)]
pub(crate) struct Quota {
    /// Samples of each vCPU, one a period, and then none.
    pub(crate) samples: u64,
    pub(crate) vcpus: u32,
    /// Its length.
    pub(crate) periods: u64,
    /// Every so many periods.
    pub(crate) reading: usize,
    /// Queues were watched, no counter was read.
    pub(crate) watched: bool,
}

impl Quota {
    pub(crate) fn write(&self, path: &std::path::Path) {
        let (header, mut tables, cpus) = common::small();
        let registers = cpus.iter().flatten().find_map(|sample| match sample.vcpu {
            VcpuState::Guest(registers) => Some((*sample, registers)),
            _ => None,
        });
        let (sample, registers) = registers.unwrap();
        let end = HostNs(header.start.0 + self.periods * PERIOD_NS);
        let header = Header { end, period_ns: PERIOD_NS, ..header };
        self.fill(&header, &mut tables);
        let samples = self.samples(&header, sample, registers);
        let [mut seen, _] = common::small_switches();
        seen.truncate(1);
        let seen = self.seen(&header, seen[0]);
        common::write_with_switches(
            path,
            &(header, tables, vec![samples, vec![]]),
            &[seen, vec![]],
        );
    }

    fn fill(&self, header: &Header, tables: &mut Tables) {
        let vcpu = model::Vcpu { vm: VmId(0), started: None, ended: None, ..tables.vcpus[0] };
        tables.vcpus = (0..self.vcpus).map(|number| model::Vcpu { number, ..vcpu }).collect();
        (tables.vms[0].started, tables.vms[0].ended) = (None, None);
        tables.exits.clear();
        let reading = |n| Throttling {
            vm: VmId(0),
            time: HostNs(header.start.0 + n * PERIOD_NS),
            throttled_ns: n * PERIOD_NS,
        };
        (tables.throttling, tables.quota_members, tables.throttled_queues) = Default::default();
        if self.watched {
            let since = header.start;
            let member = QuotaMember { quota: 0, vm: VmId(0), vcpu: None, since, until: None };
            tables.quota_members.push(member);
            let throttled = |n| {
                let from = HostNs(header.start.0 + n * PERIOD_NS);
                let to = HostNs(from.0 + PERIOD_NS / 2);
                ThrottledQueue { quota: 0, cpu: CpuId(0), from, to }
            };
            let times = (0..self.periods).step_by(self.reading);
            tables.throttled_queues = times.map(throttled).collect();
            return;
        }
        tables.throttling = (0..self.periods).step_by(self.reading).map(reading).collect();
    }

    fn samples(&self, header: &Header, sample: Sample, registers: VcpuSample) -> Vec<Sample> {
        let at = |n, vcpu| {
            let time = HostNs(header.start.0 + n * PERIOD_NS + u64::from(vcpu));
            let waits = Some(waits(n));
            let vcpu = VcpuState::Guest(VcpuSample { vcpu: VcpuId(vcpu), waits, ..registers });
            Sample { time, vcpu, ..sample }
        };
        (0..self.samples).flat_map(|n| (0..self.vcpus).map(move |vcpu| at(n, vcpu))).collect()
    }

    /// Every vCPU, at the recording's end.
    fn seen(&self, header: &Header, switch: Switch) -> Vec<Switch> {
        let waits = Some(waits(self.periods));
        let event = SwitchEvent::Seen { off_cpu: None, exit_reason: 0x60, waits };
        let of = |vcpu| Switch { time: header.end, vcpu: VcpuId(vcpu), event, ..switch };
        (0..self.vcpus).map(of).collect()
    }
}

/// It waits for half of the time.
fn waits(n: u64) -> WaitCounters {
    WaitCounters { halted_ns: 0, polled_ns: 0, runnable_ns: n * PERIOD_NS / 2 }
}
