//! A recording's time axis, and the names of what is on it.

use std::collections::HashMap;

use analysis::axis::{Account, Axis, Occupant, Place, Segment, Span, State, Timeline};
use analysis::{clean, exit_reason};
use model::{Header, HostNs, Image, ImageKind, Owner, Pid, Tables, Tid, VcpuId, VmId};

/// A recording's vCPUs and pCPUs in time, or a part of them.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    /// Who did what when.
    pub axis: &'a Axis,
    /// What the axis' ids refer to.
    pub tables: &'a Tables,
    /// The recording's facts.
    pub header: &'a Header,
    /// Only this VM; `None`: all.
    pub vm: Option<VmId>,
    /// Only the vCPUs of this number; `None`: all.
    pub vcpu: Option<u32>,
}

/// The VMs to show, each with its vCPUs.
pub(crate) type Group<'a> = (VmId, Vec<&'a Timeline>);

/// Names of who has a CPU.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    pub(crate) chart: Chart<'a>,
    processes: HashMap<Pid, Vec<&'a Image>>,
    threads: HashMap<(Pid, Tid), &'a str>,
}

impl<'a> Chart<'a> {
    /// VMs in the tables' order, vCPUs by number.
    pub(crate) fn groups(&self) -> Vec<Group<'a>> {
        let tables = self.tables;
        let group = |vm: VmId| {
            let is_shown = |timeline: &&Timeline| {
                let vcpu = tables.vcpus.get(timeline.vcpu.index());
                vcpu.is_some_and(|v| v.vm == vm && self.vcpu.is_none_or(|only| only == v.number))
            };
            let mut timelines: Vec<_> = self.axis.timelines.iter().filter(is_shown).collect();
            timelines.sort_by_key(|timeline| tables.vcpus[timeline.vcpu.index()].number);
            (vm, timelines)
        };
        let vms = (0..tables.vms.len()).map(VmId::from_index);
        let chosen = vms.filter(|vm| self.vm.is_none_or(|only| only == *vm));
        chosen.map(group).filter(|(_, timelines)| !timelines.is_empty()).collect()
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
    pub(crate) fn state(&self, state: State) -> String {
        match (kind_name(state), reason(state)) {
            (kind, Some(reason)) => {
                format!("{kind}: {}", exit_reason::name(self.header.vendor, reason))
            }
            (kind, None) => kind.to_owned(),
        }
    }

    /// `vcpu0`.
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

    /// `vm web vcpu0`.
    pub(crate) fn vm_and_vcpu(&self, vcpu: VcpuId) -> String {
        match self.tables.vcpus.get(vcpu.index()) {
            Some(row) => format!("{} {}", self.vm(row.vm), self.vcpu(vcpu)),
            None => self.vcpu(vcpu),
        }
    }
}

impl<'a> Names<'a> {
    pub(crate) fn new(chart: Chart<'a>) -> Self {
        let is_process =
            |image: &Image| image.owner == Owner::Host && image.kind == ImageKind::Process;
        let mut processes: HashMap<Pid, Vec<&Image>> = HashMap::new();
        for image in chart.tables.images.iter().filter(|image| is_process(image)) {
            processes.entry(image.pid).or_default().push(image);
        }
        let mut threads = HashMap::new();
        for thread in &chart.tables.threads {
            if let Some(image) = chart.tables.images.get(thread.image.index())
                && is_process(image)
            {
                threads.insert((image.pid, thread.tid), thread.name.as_str());
            }
        }
        Self { chart, processes, threads }
    }

    /// Who has a CPU at an instant: `vm web vcpu0`, `postgres (300)`, `vm web: qemu-system-x86 (1000)`, `idle`.
    pub(crate) fn occupant(&self, who: Occupant, at: HostNs) -> String {
        match who {
            Occupant::Idle => "idle".to_owned(),
            Occupant::Unknown => "unknown".to_owned(),
            Occupant::Vcpu(vcpu) => self.chart.vm_and_vcpu(vcpu),
            Occupant::Thread(pid, _) => self.process(pid, at),
        }
    }

    /// The name of a thread, where it is known.
    pub(crate) fn thread(&self, pid: Pid, tid: Tid) -> Option<String> {
        self.threads.get(&(pid, tid)).map(|name| format!("{} ({tid})", clean(name)))
    }

    fn process(&self, pid: Pid, at: HostNs) -> String {
        let images = self.processes.get(&pid).map_or(&[] as &[&Image], Vec::as_slice);
        let began = |image: &&&Image| image.start.is_none_or(|start| start <= at);
        // Of a process id that was used again, the one that began last.
        let image = images.iter().filter(began).max_by_key(|image| image.start);
        let name = image.or(images.first()).map_or("[unknown]", |image| &image.name);
        let vms = self.chart.tables.vms.iter();
        let is_vm = |vm: &model::Vm| vm.pid == pid && vm.ended.is_none_or(|ended| at <= ended);
        match vms.enumerate().find(|(_, vm)| is_vm(vm)) {
            Some((row, _)) => {
                format!("{}: {} ({pid})", self.chart.vm(VmId::from_index(row)), clean(name))
            }
            None => format!("{} ({pid})", clean(name)),
        }
    }
}

/// `compute (120)`.
pub(crate) fn guest_process(place: &Place) -> String {
    let name = clean(&place.process);
    place.pid.map_or_else(|| name.to_string(), |pid| format!("{name} ({pid})"))
}

/// A state without its reason. The names are part of the formats: scripts look for them.
pub(crate) fn kind_name(state: State) -> &'static str {
    match state {
        State::GuestUser => "guest user",
        State::GuestKernel => "guest kernel",
        State::GuestUnknown => "guest",
        State::Vmm { .. } => "vmm",
        State::WaitingInVmm { .. } => "waiting in vmm",
        State::Preempted => "preempted",
        State::Halted => "halted",
        State::HaltPolling => "halt polling",
        State::Throttled => "throttled",
        State::NotSampled => "not sampled",
        State::Unknown => "unknown",
    }
}

/// What a state counts as, in words.
pub(crate) fn account_name(account: Account) -> &'static str {
    match account {
        Account::Guest => "guest",
        Account::Halt => "halt",
        Account::HaltPolling => "halt polling",
        Account::StealOutside => "steal (outside)",
        Account::StealVmm => "steal (in VMM)",
        Account::Throttled => "throttled",
        Account::NotSampled => "not sampled",
        Account::Unknown => "unknown",
    }
}

fn reason(state: State) -> Option<u32> {
    match state {
        State::Vmm { reason } => Some(reason),
        State::WaitingInVmm { reason } => reason,
        _ => None,
    }
}
