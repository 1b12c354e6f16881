//! A session's windows: which records belong to which window, and the counters of each.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Counter, ExitCount, Header, HostNs, StackEnd, Switch, Trigger, Vcpu, VcpuId, Vm};
use probes::{RecordBatch, RingCounters, StackBytes};
use recording::RECORD_SIZE;

use super::Session;
use crate::CollectError;
use crate::guest_stacks::{Origin, WaitingStack};
use crate::resets::Resets;
use crate::sink::Sink;
use crate::throttling::Quotas;
use crate::vm_table::VmTable;

/// How long guests' stacks may take to be unwound: the rings fill meanwhile. After the end nothing does.
const UNWIND_LIMIT: Duration = Duration::from_secs(1);
const LAST_UNWIND_LIMIT: Duration = Duration::from_secs(5);

/// What belongs to the window under way.
#[derive(Debug, Default)]
pub(super) struct WindowState {
    /// Not handed to the sink yet.
    pub(super) switches: Vec<Switch>,
    /// Taken from the rings by the last cut, which they come after.
    carried: Vec<Carried>,
    /// Records handed to the sink, by CPU.
    n_samples: BTreeMap<u32, u64>,
    /// At its begin.
    before: KernelCounters,
    /// By the kernel's number of the vCPU.
    exits_before: BTreeMap<(VcpuId, u32), u64>,
    /// For records with rows in the place of numbers.
    room: Vec<u8>,
}

/// What the kernel has counted since the session began.
#[derive(Debug, Default)]
struct KernelCounters {
    samples: BTreeMap<u32, RingCounters>,
    switches_dropped: BTreeMap<u32, u64>,
    quotas_dropped: u64,
    processes_lost: Option<u64>,
}

/// Records of one CPU that wait for the next window.
#[derive(Debug)]
struct Carried {
    cpu_idx: usize,
    records: Vec<u8>,
    stacks: Option<CarriedStacks>,
}

/// Their call stacks.
#[derive(Debug)]
struct CarriedStacks {
    stacks: Vec<u8>,
    chunks: Vec<u8>,
}

impl CarriedStacks {
    fn as_bytes(&self) -> StackBytes<'_> {
        StackBytes { stacks: &self.stacks, chunks: &self.chunks }
    }
}

/// What becomes of records from after a window's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateRecords {
    /// They are the next window's.
    Carry,
    /// CPUs stop one after the other: samples that some CPUs still take after it are left out.
    Drop,
}

/// A window that is over.
#[derive(Debug)]
pub(crate) struct WindowEnd {
    /// Its bounds are `start` and `end`; its counters are the window's, its notes the session's so far.
    pub(crate) header: Header,
    pub(crate) vms: Vec<Vm>,
    /// What tells each VM from others for good.
    pub(crate) identities: Vec<String>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) quotas: Quotas,
    pub(crate) exits: Vec<ExitCount>,
    /// Signs that guests booted again, also in the windows before.
    pub(crate) resets: Resets,
}

impl Session {
    pub(super) fn begin_window(&mut self, start: HostNs) {
        self.header.start = start;
        self.header.end = start;
        let since_ns = self.sources.now().since(start);
        self.header.start_unix_ns = self.sources.unix_now_ns().saturating_sub(since_ns);
        self.window.n_samples.clear();
    }

    fn kernel_counters(&self) -> KernelCounters {
        let (sources, cpus) = (&self.sources, &self.header.cpus);
        let dropped = |cpu: &u32| Some((*cpu, sources.switches_dropped(*cpu)?));
        KernelCounters {
            samples: cpus.iter().map(|cpu| (*cpu, sources.counters(*cpu))).collect(),
            switches_dropped: cpus.iter().filter_map(dropped).collect(),
            quotas_dropped: cpus.iter().filter_map(|cpu| sources.quotas_dropped(*cpu)).sum(),
            processes_lost: sources.processes_lost(),
        }
    }

    pub(super) fn drain(
        &mut self,
        sink: &mut dyn Sink,
        until: HostNs,
        after: LateRecords,
    ) -> Result<(), CollectError> {
        let (window, cpus) = (&mut self.window, &self.header.cpus);
        let VmTable { numbers, vcpus, .. } = &self.vms;
        let (resets, guests) = (&mut self.resets, &self.guests);
        let mut store = |cpu_idx: usize, drained: &RecordBatch<'_>| {
            let n = (drained.records.len() / RECORD_SIZE) as u64;
            *window.n_samples.entry(cpus[cpu_idx]).or_default() += n;
            let records = numbers.to_rows(drained.records, &mut window.room);
            for record in records.as_chunks::<RECORD_SIZE>().0 {
                if let Some((row, ip)) = recording::guest_kernel_ip(record)
                    && let Some(vcpu) = vcpus.get(row.index())
                {
                    resets.see(recording::time_of(record), vcpu, ip);
                }
            }
            sink.samples(cpu_idx, &RecordBatch::new(records, drained.stacks()))
        };
        for Carried { cpu_idx, records, stacks } in std::mem::take(&mut window.carried) {
            store(
                cpu_idx,
                &RecordBatch::new(&records, stacks.as_ref().map(CarriedStacks::as_bytes)),
            )?;
        }
        for (cpu_idx, cpu) in cpus.iter().enumerate() {
            self.sources.drain_samples(*cpu, &mut |drained| {
                let (taken, later) = drained.split_at(n_until(drained.records, until));
                if !later.records.is_empty() && after == LateRecords::Carry {
                    let stacks = later.stacks().map(|StackBytes { stacks, chunks }| {
                        CarriedStacks { stacks: stacks.to_vec(), chunks: chunks.to_vec() }
                    });
                    let records = later.records.to_vec();
                    window.carried.push(Carried { cpu_idx, records, stacks });
                }
                if taken.records.is_empty() { Ok(()) } else { store(cpu_idx, &taken) }
            })?;
            self.sources.drain_guest_code(*cpu, &mut |number, code| {
                let vcpu = numbers.row(VcpuId(number)).and_then(|row| vcpus.get(row.index()));
                if let Some(vcpu) = vcpu {
                    guests.add_code(vcpu.vm, code);
                }
            });
            let known = window.switches.len();
            self.sources.drain_switches(*cpu, &mut window.switches);
            for switch in &mut window.switches[known..] {
                switch.vcpu = numbers.row(switch.vcpu).unwrap_or(VcpuId(u32::MAX));
            }
        }
        let is_later = |switch: &mut Switch| after == LateRecords::Carry && until < switch.time;
        let later: Vec<Switch> = window.switches.extract_if(.., is_later).collect();
        if !window.switches.is_empty() {
            sink.switches(&window.switches)?;
        }
        window.switches = later;
        let sources = &*self.sources;
        let mut unwind = |mut waiting: Vec<WaitingStack>| {
            let vm_of = |stack: &WaitingStack| Some(vcpus.get(stack.origin.vcpu.index())?.vm);
            let limit = if after == LateRecords::Carry { UNWIND_LIMIT } else { LAST_UNWIND_LIMIT };
            let unwound = guests.unwind(&mut waiting, &vm_of, limit);
            for (stack, unwound) in waiting.iter().zip(&unwound) {
                let user = unwound.as_ref().and_then(|unwound| unwound.user.as_ref());
                if user.is_some_and(|part| part.end == StackEnd::Cut) {
                    sources.copy_more(stack.origin.cr3, stack.origin.tid);
                }
                let Origin { vmm, cr3, .. } = stack.origin;
                let interpreter = unwound.as_ref().and_then(|unwound| unwound.interpreter);
                if let Some(interpreter) = interpreter {
                    sources.copy_interpreter(vmm, cr3, &interpreter);
                }
            }
            unwound
        };
        Ok(sink.polled(&mut unwind)?)
    }

    pub(super) fn window_end(&mut self, exits: Vec<ExitCount>) -> WindowEnd {
        let span = (self.header.start, self.header.end);
        let quotas = self.throttling.take(&*self.sources, &self.header.cpus, span);
        let now = self.kernel_counters();
        let mut header = self.header.clone();
        header.counters = self.counters(&now);
        let left_out = self.throttling.take_left_out();
        let dropped = now.quotas_dropped - self.window.before.quotas_dropped + left_out;
        if 0 < dropped {
            header.counters.insert(Counter::ThrottledQueuesDropped.name().to_owned(), dropped);
        }
        self.window.before = now;
        let VmTable { vms, vcpus, .. } = &self.vms;
        WindowEnd {
            header,
            vms: vms.clone(),
            identities: self.vms.identities(),
            vcpus: vcpus.clone(),
            quotas,
            exits,
            resets: self.resets.clone(),
        }
    }

    /// Everything that was lost in the window, by name.
    fn counters(&self, now: &KernelCounters) -> BTreeMap<String, u64> {
        let (header, before) = (&self.header, &self.window.before);
        let expected = header.end.since(header.start) / self.plan.sampling.period_ns.max(1);
        let mut counters = BTreeMap::new();
        let mut add = |name: String, n: u64| {
            counters.insert(name, n);
        };
        for (cpu, now) in &now.samples {
            let before = before.samples.get(cpu).copied().unwrap_or_default();
            let dropped = now.dropped - before.dropped;
            add(Counter::SamplesDropped.of_cpu(*cpu), dropped);
            // A halted CPU counts no cycles: only the timer's interrupts are expected at all times.
            if self.plan.sampling.trigger == Trigger::CpuClock {
                let came = self.window.n_samples.get(cpu).copied().unwrap_or(0) + dropped;
                add(Counter::SamplesMissed.of_cpu(*cpu), expected.saturating_sub(came));
            }
            add(Counter::VcpuReadErrors.of_cpu(*cpu), now.read_errors - before.read_errors);
        }
        for (cpu, dropped) in &now.switches_dropped {
            let before = before.switches_dropped.get(cpu).copied().unwrap_or(0);
            add(Counter::SwitchesDropped.of_cpu(*cpu), dropped - before);
        }
        if let Some(lost) = now.processes_lost {
            let before = before.processes_lost.unwrap_or(0);
            add(Counter::ProcessEventsLost.name().to_owned(), lost - before);
        }
        let looks = [
            (Counter::VcpuLooksFailed, self.looks.failed),
            (Counter::VcpusNotWatched, self.looks.not_watched.len() as u64),
        ];
        for (counter, n) in looks.into_iter().filter(|(_, n)| 0 < *n) {
            add(counter.name().to_owned(), n);
        }
        counters
    }

    /// Exits since the last call, which is at a window's begin: both ends are the window's, to the time of a call.
    pub(super) fn exits(&mut self) -> Vec<ExitCount> {
        let so_far = self.sources.exits(self.vms.numbers.len());
        let mut exits = so_far.clone();
        exits.retain_mut(|exit| {
            let before = self.window.exits_before.get(&(exit.vcpu, exit.reason));
            exit.count -= before.copied().unwrap_or(0).min(exit.count);
            let row = self.vms.numbers.row(exit.vcpu);
            exit.vcpu = row.unwrap_or(exit.vcpu);
            0 < exit.count && row.is_some()
        });
        self.window.exits_before =
            so_far.into_iter().map(|exit| ((exit.vcpu, exit.reason), exit.count)).collect();
        exits
    }
}

/// How many of the records, which are in time order, are not after `until`.
fn n_until(records: &[u8], until: HostNs) -> usize {
    let (each, _) = records.as_chunks::<RECORD_SIZE>();
    let is_in_time = |record: &[u8; RECORD_SIZE]| recording::time_of(record) <= until;
    match each.last() {
        Some(last) if !is_in_time(last) => each.partition_point(is_in_time),
        _ => each.len(),
    }
}
