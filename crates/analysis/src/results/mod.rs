//! A window's results as rows that any engine can add up.
//!
//! ```text
//!  samples, switches --+--> VcpuTimelines --> vcpu_time   of a vCPU and slice: adds up to the time it was there
//!  tables -------------+--> Flow -----------> cpu_time    of a CPU and slice: adds up to the slice's length
//!  header ----------------------------------> hosts, vms, exits, health
//! ```
//!
//! The same input gives the same rows in the same order, wherever and however often it is analysed.

mod cpus;
mod slices;
mod vcpus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Counter, ExitsRow, Guest, Header, HealthRow, HostRow, RecordConsumer, ResultRow, Results,
    Sample, Switch, Tables, TimeAccount, Vm, VmRow, WindowKey,
};

use self::slices::Slices;
pub use self::vcpus::for_each_interval;
use crate::flow::FlowBuilder;
use crate::steal::{ThiefNames, TimelineInput};
use crate::vcpu_timeline::{VcpuTimeline, VcpuTimelines, VcpuTimelinesBuilder};
use crate::{Resolver, Selection, exit_reason};

/// Length of a time slice of result tables, until they are rolled up.
pub const SLICE_NS: u64 = 10_000_000_000;

/// Takes a window's samples and switches.
#[derive(Debug)]
pub struct ResultsBuilder<'r> {
    resolver: &'r Resolver<'r>,
    header: &'r Header,
    timelines: VcpuTimelinesBuilder<'r>,
    flow: FlowBuilder<'r>,
    n_samples: u64,
}

impl<'r> ResultsBuilder<'r> {
    /// Result tables of a recording, still without rows.
    #[must_use]
    pub fn new(resolver: &'r Resolver<'r>, header: &'r Header) -> Self {
        let off_cpu_source = header.off_cpu_source;
        Self {
            resolver,
            header,
            timelines: VcpuTimelinesBuilder::new(resolver, header, off_cpu_source).with_callers(),
            flow: FlowBuilder::new(resolver, header, Selection::everything()),
            n_samples: 0,
        }
    }

    /// The window's rows, in slices of `slice_ns` that begin at multiples of it.
    #[must_use]
    pub fn finish(self, window: &Arc<WindowKey>, slice_ns: u64) -> Results {
        let Self { resolver, header, timelines, flow, n_samples } = self;
        let tables = resolver.tables();
        let axis = timelines.finish();
        let slices = Slices::new(header, slice_ns);
        let names = ThiefNames::new(tables);
        let evidence = TimelineInput { axis: &axis, tables, header };
        let (cpu_time, left_out) = cpus::rows(&flow.finish(), &slices, header, &names, tables);
        let whole = Whole { window, slice_unix_us: slices.first_unix_us() };
        Results {
            vcpu_time: vcpus::rows(&evidence, &slices, &names)
                .into_iter()
                .map(|(slice_unix_us, row)| Whole { window, slice_unix_us }.row(row))
                .collect(),
            cpu_time: cpu_time
                .into_iter()
                .map(|(slice_unix_us, row)| Whole { window, slice_unix_us }.row(row))
                .collect(),
            exits: exits(tables, header).into_iter().map(|row| whole.row(row)).collect(),
            hosts: vec![whole.row(host(header, tables, n_samples))],
            vms: vms(tables, &axis).into_iter().map(|row| whole.row(row)).collect(),
            health: health(header, &axis, left_out).into_iter().map(|row| whole.row(row)).collect(),
        }
    }
}

impl RecordConsumer for ResultsBuilder<'_> {
    fn push_sample(&mut self, sample: &Sample) {
        self.timelines.push_sample(sample);
        self.flow.push(sample);
        self.n_samples += 1;
    }

    fn push_switch(&mut self, switch: &Switch) {
        self.timelines.push_switch(switch);
    }
}

/// What all rows of a slice have in common.
struct Whole<'a> {
    window: &'a Arc<WindowKey>,
    slice_unix_us: i64,
}

impl Whole<'_> {
    fn row<T>(&self, row: T) -> ResultRow<T> {
        ResultRow { window: Arc::clone(self.window), slice_unix_us: self.slice_unix_us, row }
    }
}

fn host(header: &Header, tables: &Tables, samples: u64) -> HostRow {
    HostRow {
        length_ns: header.end.since(header.start),
        hostname: header.hostname.clone(),
        kernel: header.kernel.clone(),
        vmscope_version: header.vmscope_version.clone(),
        period_ns: header.period_ns,
        cpus: count(header.cpus.len()),
        vms: count(tables.vms.iter().map(|vm| &vm.name).collect::<BTreeSet<_>>().len()),
        samples,
        samples_lost: header.count(Counter::SamplesDropped),
        samples_missed: header.count(Counter::SamplesMissed),
    }
}

/// In one pass over each table: a window may have as many VMs as rows.
fn vms(tables: &Tables, axis: &VcpuTimelines) -> Vec<VmRow> {
    let mut times = vec![VmTimes::default(); tables.vms.len()];
    for vcpu in &tables.vcpus {
        if let Some(times) = times.get_mut(vcpu.vm.index()) {
            times.n_vcpus += 1;
        }
    }
    for timeline in &axis.timelines {
        let vcpu = tables.vcpus.get(timeline.vcpu.index());
        if let Some(times) = vcpu.and_then(|vcpu| times.get_mut(vcpu.vm.index())) {
            times.add(timeline);
        }
    }
    let mut rows: BTreeMap<&str, (usize, VmRow)> = BTreeMap::new();
    for (number, (vm, times)) in tables.vms.iter().zip(&times).enumerate() {
        let mut row = times.row(vm);
        // One that ended and started again is one VM.
        let place = match rows.get(vm.name.as_str()) {
            Some((place, before)) => {
                add_earlier(&mut row, before);
                *place
            }
            None => number,
        };
        rows.insert(&vm.name, (place, row));
    }
    let mut rows: Vec<(usize, VmRow)> = rows.into_values().collect();
    rows.sort_unstable_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Adds the time of a VM before it ended and started again. All else is as it was last.
fn add_earlier(row: &mut VmRow, before: &VmRow) {
    let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
    row.vcpus = row.vcpus.max(before.vcpus);
    row.vcpu_ns = row.vcpu_ns.saturating_add(before.vcpu_ns);
    row.steal_outside_ns = sum(row.steal_outside_ns, before.steal_outside_ns);
    row.steal_vmm_ns = sum(row.steal_vmm_ns, before.steal_vmm_ns);
    row.throttled_ns = sum(row.throttled_ns, before.throttled_ns);
}

/// Time of all vCPUs of a VM.
#[derive(Debug, Clone, Copy, Default)]
struct VmTimes {
    n_vcpus: usize,
    there_ns: u64,
    steal_outside_ns: u64,
    steal_vmm_ns: u64,
    throttled_ns: u64,
}

impl VmTimes {
    fn add(&mut self, timeline: &VcpuTimeline) {
        self.there_ns = self.there_ns.saturating_add(timeline.length_ns());
        for segment in &timeline.segments {
            let sum = match segment.state.account() {
                TimeAccount::StealOutside => &mut self.steal_outside_ns,
                TimeAccount::StealVmm => &mut self.steal_vmm_ns,
                TimeAccount::Throttled => &mut self.throttled_ns,
                _ => continue,
            };
            *sum = sum.saturating_add(segment.length_ns());
        }
    }

    fn row(&self, vm: &Vm) -> VmRow {
        let (map_via, no_map_reason) = match &vm.guest {
            Guest::Mapped { via, .. } => (Some(via.clone()), None),
            Guest::Unmapped { reason } => (None, Some(reason.clone())),
        };
        VmRow {
            vm: vm.name.clone(),
            pid: vm.pid.0,
            vcpus: count(self.n_vcpus),
            vcpu_ns: self.there_ns,
            steal_outside_ns: Some(self.steal_outside_ns),
            steal_vmm_ns: Some(self.steal_vmm_ns),
            throttled_ns: Some(self.throttled_ns),
            map_via,
            no_map_reason,
            labels: vm.labels.clone(),
        }
    }
}

fn exits(tables: &Tables, header: &Header) -> Vec<ExitsRow> {
    let row = |exit: &model::ExitCount| {
        let vcpu = tables.vcpus.get(exit.vcpu.index())?;
        Some(ExitsRow {
            vm: tables.vms.get(vcpu.vm.index())?.name.clone(),
            vcpu: vcpu.number,
            exit_reason: exit_reason::name(header.vendor, exit.reason).into_owned(),
            exits: exit.count,
        })
    };
    let mut rows: Vec<_> = tables.exits.iter().filter_map(row).collect();
    rows.sort_unstable();
    rows
}

/// Counters that are not 0, notes, and what made no sense.
fn health(header: &Header, axis: &VcpuTimelines, left_out: u64) -> Vec<HealthRow> {
    let of_host = |what: &str, count: u64| {
        let (subject, what) = ("host".to_owned(), what.to_owned());
        (0 < count).then_some(HealthRow { subject, what, count: Some(count) })
    };
    let is_lost = |name: &str| {
        Counter::parse(name).is_none_or(|(counter, _)| counter != Counter::SamplesWritten)
    };
    let lost = header.counters.iter().filter(|(name, _)| is_lost(name));
    let counters = lost.filter_map(|(name, n)| of_host(name, *n));
    let problems = axis.problems.iter().filter_map(|(what, n)| of_host(what, *n));
    let notes = header.notes.iter().map(|note| HealthRow {
        subject: note.subject.clone(),
        what: note.text.clone(),
        count: None,
    });
    counters
        .chain(problems)
        .chain(of_host("samples of CPUs that were not sampled", left_out))
        .chain(notes)
        .collect()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
