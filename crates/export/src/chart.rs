//! A recording's time axis, and the names of what is on it.

use std::iter::Peekable;
use std::slice::Iter;

use analysis::exit_reason;
use analysis::steal::{ThiefNames, TimelineInput};
use analysis::vcpu_timeline::{CodeLocation, Occupant, Segment, Span, VcpuTimeline, VcpuTimelines};
use model::{Header, HostNs, IntervalRow, Tables, TimelineState, VcpuId, VmId};
use table::clean;

/// A recording's vCPUs and pCPUs in time, or a part of them.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    pub axis: &'a VcpuTimelines,
    /// What the axis' ids refer to.
    pub tables: &'a Tables,
    pub header: &'a Header,
    /// Only this VM; `None`: all.
    pub vm: Option<VmId>,
    /// Only the vCPUs of this number; `None`: all.
    pub vcpu: Option<u32>,
}

/// A chart, and the names of who has its CPUs.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    pub(crate) chart: Chart<'a>,
    names: ThiefNames<'a>,
}

/// The VMs to show, each with its vCPUs.
pub(crate) type Group<'a> = (VmId, Vec<&'a VcpuTimeline>);

impl<'a> Chart<'a> {
    /// VMs in the tables' order, vCPUs by number.
    pub(crate) fn groups(&self) -> Vec<Group<'a>> {
        let tables = self.tables;
        let group = |vm: VmId| {
            let is_shown = |timeline: &&VcpuTimeline| {
                let vcpu = tables.vcpus.get(timeline.vcpu.index());
                vcpu.is_some_and(|v| v.vm == vm && self.vcpu.is_none_or(|only| only == v.number))
            };
            let mut timelines: Vec<_> = self.axis.timelines.iter().filter(is_shown).collect();
            timelines.sort_by_key(|timeline| tables.vcpus[timeline.vcpu.index()].number);
            (vm, timelines)
        };
        let vms = (0..tables.vms.len()).map(VmId::from_index);
        let chosen = vms.filter(|vm| self.vm.is_none_or(|only| tables.is_same_vm(only, *vm)));
        chosen.map(group).filter(|(_, timelines)| !timelines.is_empty()).collect()
    }

    /// How many vCPUs are shown.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.groups().iter().map(|(_, timelines)| timelines.len()).sum()
    }

    /// Shows the intervals of all vCPUs, one vCPU after the other, each in time order.
    ///
    /// # Errors
    /// That of `see`, after which it ends.
    pub fn for_each_interval<E>(
        &self,
        see: &mut dyn FnMut(IntervalRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { axis, tables, header, .. } = *self;
        let (evidence, names) = (TimelineInput { axis, tables, header }, ThiefNames::new(tables));
        for timeline in self.groups().iter().flat_map(|(_, timelines)| timelines) {
            analysis::results::for_each_interval(&evidence, &names, timeline, see)?;
        }
        Ok(())
    }

    /// Who had the CPU while a vCPU waited for it, in time order; the victim itself did not.
    pub(crate) fn while_waiting(
        &self,
        victim: VcpuId,
        waiting: &Segment,
    ) -> impl Iterator<Item = Span> + use<'a> {
        let occupancy = self.axis.cpus.iter().find(|cpu| Some(cpu.cpu) == waiting.cpu);
        let spans = occupancy.map_or(&[] as &[Span], |cpu| &cpu.spans);
        let first = spans.partition_point(|span| span.to <= waiting.from);
        let (from, to) = (waiting.from, waiting.to);
        let overlapping = spans[first..].iter().take_while(move |span| span.from < to);
        let clipped = move |span: &Span| Span {
            from: span.from.max(from),
            to: span.to.min(to),
            who: if span.who == Occupant::Vcpu(victim) { Occupant::Unknown } else { span.who },
        };
        overlapping.map(clipped)
    }

    /// A state as words: `guest user`, `vmm: npf`.
    pub(crate) fn state(&self, state: TimelineState) -> String {
        let kind = state.kind().chart_name();
        match state.exit_reason() {
            Some(reason) => {
                format!("{kind}: {}", exit_reason::name(self.header.vendor, reason))
            }
            None => kind.to_owned(),
        }
    }

    /// The track's name, such as `vcpu0`.
    pub(crate) fn vcpu(&self, vcpu: VcpuId) -> String {
        match self.tables.vcpus.get(vcpu.index()) {
            Some(vcpu) => format!("vcpu{}", vcpu.number),
            None => format!("vcpu row {vcpu}"),
        }
    }

    /// `vm web`.
    pub(crate) fn vm(&self, vm: VmId) -> String {
        let name = self.tables.vms.get(vm.index()).map_or("[unknown]", |vm| &vm.name);
        format!("vm {}", clean(name))
    }
}

impl<'a> Named<'a> {
    pub(crate) fn new(chart: Chart<'a>) -> Self {
        Self { chart, names: ThiefNames::new(chart.tables) }
    }

    /// Who has a CPU at an instant, as `vmscope steal` calls it: `web vcpu0`, `postgres (300)`, `[idle]`.
    pub(crate) fn occupant(&self, who: Occupant, at: HostNs) -> String {
        clean(&self.names.name(self.names.thief(who, at))).into_owned()
    }
}

/// The next run of segments that look the same.
pub(crate) fn merged<T: PartialEq>(
    segments: &mut Peekable<Iter<'_, Segment>>,
    looks: impl Fn(&Segment) -> T,
) -> Option<Segment> {
    let mut whole = *segments.next()?;
    while let Some(next) = segments.next_if(|next| looks(next) == looks(&whole)) {
        whole.to = next.to;
    }
    Some(whole)
}

/// `compute (120)`.
pub(crate) fn guest_process(place: &CodeLocation) -> String {
    let name = clean(&place.process);
    place.pid.map_or_else(|| name.to_string(), |pid| format!("{name} ({pid})"))
}
