//! A trace as `report`, `compare` and `export` read it: one machine on its time axis.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use model::{HostNs, MachineId, Tid, TraceFilter};
use recording::trace::Trace;
use table::clean;
use trace_analysis::findings::Findings;
use trace_analysis::report::{About, Context};
use trace_analysis::timeline::{Builder, Survey, Timeline};

use super::progress::Progress;
use cli::TimeRange;
use cli::Usage;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// The trace's folder
    pub(crate) dir: PathBuf,
    /// Machine to show [default: the command's, else the host if it was traced, else the first VM]
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) range: TimeRange,
}

/// An open trace, and one machine of it.
#[derive(Debug)]
pub(super) struct OpenTrace {
    pub(super) trace: Trace,
    pub(super) timeline: Timeline,
    n_events: u64,
    /// Of a VM whose host was traced, too.
    host: Option<Timeline>,
    range: Option<Range<HostNs>>,
}

impl OpenTrace {
    /// # Errors
    /// A usage error when it has no such machine; or it can't be read.
    pub(super) fn open(
        dir: &Path,
        machine: Option<&str>,
        range: TimeRange,
    ) -> anyhow::Result<Self> {
        let trace = Trace::open(dir)?;
        let range = range.within(trace.header.begin..trace.header.end)?;
        let machine = choose(&trace, machine)?;
        let row = trace.tables.machines.get(machine.index());
        let is_vm = machine != MachineId::HOST && row.is_some_and(|it| !it.vcpu_threads.is_empty());
        let machines = is_vm.then_some(MachineId::HOST).into_iter().chain([machine]);
        let (mut timelines, n_events) = on_time_axis(&trace, machines, range.as_ref())?;
        let timeline = timelines.pop().context("a machine has a timeline")?;
        let host = timelines.pop();
        Ok(Self { trace, timeline, n_events, host, range })
    }

    /// Every machine that was traced, each on its time axis.
    ///
    /// # Errors
    /// When the events can't be read.
    pub(super) fn timelines(&self) -> anyhow::Result<Cow<'_, [Timeline]>> {
        let traced = self.trace.tables.machines.iter().filter(|row| !row.cpus.is_empty());
        if traced.count() < 2 {
            return Ok(Cow::Borrowed(std::slice::from_ref(&self.timeline)));
        }
        let rows = (0..).map(MachineId).zip(&self.trace.tables.machines);
        let traced = rows.filter(|(_, row)| !row.cpus.is_empty()).map(|(machine, _)| machine);
        Ok(Cow::Owned(on_time_axis(&self.trace, traced, self.range.as_ref())?.0))
    }

    /// What its views are made from: all that is found out about the machine.
    pub(super) fn context(&self, limit: Option<usize>) -> Context<'_> {
        let header = &self.trace.header;
        let about = About {
            vmscope_version: &header.vmscope_version,
            hostname: &header.hostname,
            begin: header.begin,
            end: header.end,
            begin_unix_ns: header.begin_unix_ns,
            complete: header.complete,
            filters: &header.filters,
            counters: &header.counters,
            notes: &header.notes,
            n_events: self.n_events,
            range: self.range.as_ref().map(|range| [range.start, range.end]),
        };
        let (tables, host) = (&self.trace.tables, self.host.as_ref());
        Context { about, findings: Findings::new(tables, &self.timeline, host), limit }
    }

    /// The root of the tasks that the trace was limited to; where VMs were traced, it is a task of theirs.
    pub(super) fn tree(&self) -> Option<Tid> {
        let filters = &self.trace.header.filters;
        let of_vms = filters.iter().any(|filter| matches!(filter, TraceFilter::Vm(_)));
        if of_vms && self.timeline.machine == MachineId::HOST {
            return None;
        }
        filters.iter().find_map(|filter| match filter {
            TraceFilter::Tree(pid) => Some(Tid(pid.0)),
            _ => None,
        })
    }
}

/// These machines on their time axes, and how many events there are of the last one. The trace is read twice rather than
/// held: events take more room than what is made from them.
fn on_time_axis(
    trace: &Trace,
    machines: impl Iterator<Item = MachineId>,
    range: Option<&Range<HostNs>>,
) -> anyhow::Result<(Vec<Timeline>, u64)> {
    let progress = Progress::start("reading the trace", 2 * trace.known_events().unwrap_or(0));
    let machines: Vec<_> = machines.collect();
    let mut surveys: Vec<_> = machines.iter().map(|it| survey(trace, *it, range)).collect();
    let mut events = 0;
    trace.for_each_batch(&mut |batch| {
        let of_last = batch.iter().filter(|event| Some(&event.machine) == machines.last());
        events += of_last.count() as u64;
        surveys.iter_mut().for_each(|survey| survey.see(batch));
        progress.advance(batch.len());
    })?;
    let mut builders: Vec<_> = surveys.into_iter().map(Survey::builder).collect();
    trace.for_each_batch(&mut |batch| {
        builders.iter_mut().for_each(|builder| builder.see(batch));
        progress.advance(batch.len());
    })?;
    Ok((builders.into_iter().map(Builder::finish).collect(), events))
}

fn survey<'a>(trace: &'a Trace, machine: MachineId, range: Option<&Range<HostNs>>) -> Survey<'a> {
    let mut survey = Survey::new(&trace.tables, machine).within(range.cloned());
    if trace.header.leaves_out_switches(machine) {
        survey.switches_left_out();
    }
    survey
}

fn choose(trace: &Trace, name: Option<&str>) -> Result<MachineId, Usage> {
    let rows = &trace.tables.machines;
    let mut traced = (0..).map(MachineId).zip(rows).filter(|(_, row)| !row.cpus.is_empty());
    let command = trace.tables.command.as_ref().map(|command| command.machine);
    let Some(name) = name else {
        let first =
            command.filter(|id| rows.get(id.index()).is_some_and(|row| !row.cpus.is_empty()));
        let found = first.or_else(|| traced.next().map(|(id, _)| id));
        return found.ok_or_else(|| Usage("this trace has no traced machine".to_owned()));
    };
    let names: Vec<_> = traced.clone().map(|(_, row)| clean(&row.name).into_owned()).collect();
    let found = traced.find(|(_, row)| row.name == name).map(|(id, _)| id);
    let none = || format!("no machine {} in this trace: it has {}", clean(name), names.join(", "));
    found.ok_or_else(|| Usage(none()))
}
