//! Samples to profiles.

use std::collections::BTreeMap;

use model::{Guest, GuestStack, Header, Note, Sample, Tables, TimeAccount, VcpuState, VmId};
use rustc_hash::FxHashMap;

use crate::filter::Filter;
use crate::guest_time::GuestTime;
use crate::label::{Namer, UNKNOWN};
use crate::profile::{
    GuestStacks, Label, Other, Profile, Row, Shares, Side, Unnamed, Unresolved, VmSummary,
};
use crate::unsampled::unsampled;
use crate::vcpu_timeline::VcpuTimelines;
use crate::{By, GuestTimeByNode, NodeMemory, Nodes, Query, Unsampled, View, VmNodes};
use resolve::{
    Code, CodeName, CodeRef, Level, ProcessRef, Resolver, SampleSite, Threads, UnresolvedReason,
    VmRef,
};

/// Counts samples as they come; memory grows with the distinct places, not with the samples.
#[derive(Debug)]
pub struct Aggregator<'r> {
    resolver: &'r Resolver<'r>,
    header: &'r Header,
    query: Query,
    filter: Filter<'r>,
    codes: Codes<'r>,
    threads: Option<Threads>,
    counts: FxHashMap<Key, u64>,
    guest_time: Option<GuestTime<'r>>,
    guest_stacks: Option<GuestStacks>,
    /// By node.
    nodes: Option<Nodes>,
}

/// What is counted together: at least as fine as any report's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    level: Level,
    vm: Option<VmRef>,
    process: ProcessRef,
    code: u32,
    split: Split,
}

/// What only some reports tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Split {
    No,
    /// Row of `Tables::threads`.
    Thread(u32),
    /// A host thread without a row.
    HostTid(u32),
    Cpu(u32),
    Vcpu(u32),
    Node(u32),
}

impl<'r> Aggregator<'r> {
    /// A profile of a recording, still without samples.
    #[must_use]
    pub fn new(resolver: &'r Resolver<'r>, header: &'r Header, query: Query) -> Self {
        Self {
            resolver,
            header,
            filter: Filter::new(resolver, query.selection.clone()),
            codes: Codes::new(resolver, query.by == By::Address),
            threads: (query.by == By::Thread).then(|| resolver.threads()),
            counts: FxHashMap::default(),
            guest_time: GuestTime::for_selection(resolver.tables(), header, &query.selection),
            guest_stacks: has_guest_stacks(resolver.tables()).then(GuestStacks::default),
            nodes: (query.by == By::Node).then(|| Nodes::new(resolver.tables())),
            query,
        }
    }

    /// Adds a sample to its row.
    pub fn push(&mut self, sample: &Sample) {
        let Some(located) = self.filter.locate(sample) else {
            return;
        };
        if let Some(time) = &mut self.guest_time {
            time.note_seen(sample);
        }
        if !self.filter.admits_process(located.process) {
            return;
        }
        self.count_stack(sample, located.level);
        let key = Key {
            level: located.level,
            vm: located.vm,
            process: located.process,
            code: self.codes.number(located.code),
            split: self.split(sample, &located),
        };
        *self.counts.entry(key).or_default() += 1;
    }

    /// The profile of all pushed samples. In the guest view, what was not sampled is unknown.
    #[must_use]
    pub fn finish(self) -> Profile {
        self.finish_on(&VcpuTimelines::default())
    }

    /// Whether its numbers are of an axis.
    #[must_use]
    pub fn needs_axis(&self) -> bool {
        self.guest_time.is_some()
    }

    /// The profile of what was pushed. The axis says which VMs were not sampled, and in the guest view what vCPUs did
    /// meanwhile.
    #[must_use]
    pub fn finish_on(self, axis: &VcpuTimelines) -> Profile {
        let namer = Namer::new(self.resolver);
        let mut shares = Shares::default();
        let mut lines: BTreeMap<Label, u64> = BTreeMap::new();
        let mut unresolved: BTreeMap<Unresolved, u64> = BTreeMap::new();
        for (key, samples) in &self.counts {
            let code = self.codes.code(key.code);
            self.count_share(&mut shares, key.level, *samples);
            *lines.entry(self.label(&namer, key, code)).or_default() += samples;
            if let Some(why) = why_unresolved(self.resolver, &namer, key, code) {
                *unresolved.entry(why).or_default() += samples;
            }
        }
        self.count_unseen(axis, &namer, &mut shares, &mut lines);
        let nodes = self.vm_nodes(&namer);
        nodes.iter().for_each(|vm| add_nodes_with_memory(vm, &mut lines));
        let total = shares.sum();
        let (rows, other) = cut(sorted(lines), self.query.limit);
        let shown: u64 = rows.iter().map(|row| row.samples).sum();
        debug_assert_eq!(shown + other.samples, total, "every sample is in one row");
        Profile {
            vm: self.query.selection.vm().map(|vm| namer.vm(VmRef::Known(vm))),
            header: self.header.clone(),
            vms: vm_summaries(self.resolver.tables()),
            total,
            shares,
            rows,
            other,
            nodes,
            unsampled: self.unsampled(axis),
            guest_stacks: self.guest_stacks.clone(),
            unresolved: sorted_unresolved(unresolved),
            counters: non_zero(&self.header.counters),
            notes: self.notes(),
            query: self.query,
        }
    }

    fn unsampled(&self, axis: &VcpuTimelines) -> Vec<Unsampled> {
        let selection = &self.query.selection;
        match selection.view() {
            View::Native => Vec::new(),
            View::Unified | View::Host | View::Guest => {
                unsampled(self.resolver.tables(), axis, selection.vm())
            }
        }
    }

    fn count_stack(&mut self, sample: &Sample, level: Level) {
        let (Some(stacks), VcpuState::Guest(_)) = (&mut self.guest_stacks, &sample.vcpu) else {
            return;
        };
        let rows = &self.resolver.tables().stacks;
        let stack = sample.stack.and_then(|id| rows.get(id.index())).map(|stack| &stack.guest);
        match level {
            Level::GuestKernel => stacks.add(true, stack.and_then(|stack| stack.kernel_end)),
            Level::GuestUser => stacks.add(false, stack.and_then(|stack| stack.user_end)),
            _ => {}
        }
    }

    fn split(&self, sample: &Sample, located: &SampleSite) -> Split {
        let guest_view = self.query.selection.view() == View::Guest;
        match (self.query.by, &sample.vcpu) {
            (By::Thread, _) => {
                let row = self.threads.as_ref().and_then(|t| t.thread_of_sample(sample, located));
                let is_real = !located.level.is_guest() && located.level != Level::Idle;
                let untold = if is_real { Split::HostTid(sample.tid.0) } else { Split::No };
                row.map_or(untold, Split::Thread)
            }
            (By::Cpu, VcpuState::Guest(vcpu)) if guest_view => {
                let row = self.resolver.tables().vcpus.get(vcpu.vcpu.index());
                row.map_or(Split::No, |vcpu| Split::Vcpu(vcpu.number))
            }
            (By::Cpu, _) if guest_view => Split::No,
            (By::Cpu, _) => Split::Cpu(sample.cpu.0),
            (By::Node, _) => {
                let node = self.nodes.as_ref().and_then(|nodes| nodes.of_cpu(sample.cpu));
                node.map_or(Split::No, Split::Node)
            }
            (By::Function | By::Address | By::Process | By::Module | By::Vm, _) => Split::No,
        }
    }

    fn count_share(&self, shares: &mut Shares, level: Level, samples: u64) {
        let guest_view = self.query.selection.view() == View::Guest;
        let share = match level {
            Level::Idle => &mut shares.idle,
            Level::HostKernel => &mut shares.os,
            Level::HostUser => &mut shares.user,
            Level::GuestKernel if guest_view => &mut shares.os,
            Level::GuestUser if guest_view => &mut shares.user,
            Level::GuestUnknown if guest_view => {
                return shares.unseen.add(TimeAccount::Unknown, samples);
            }
            Level::GuestKernel | Level::GuestUser | Level::GuestUnknown => &mut shares.vm,
        };
        *share += samples;
    }

    fn label(&self, namer: &Namer, key: &Key, code: Code) -> Label {
        let side = side(key);
        let (process, pid) = namer.process(key.process);
        let vm = key.vm.map(|vm| namer.vm(vm));
        let whose = Label { vm: vm.clone(), side: Some(side), ..Label::default() };
        let whose_process = Label { process: Some(process.clone()), pid, ..whose.clone() };
        let module = code.module.map(|module| namer.module(module).to_owned());
        match self.query.by {
            By::Function | By::Address => {
                let has_offset = code.name == CodeName::Stripped
                    || self.query.by == By::Address && code.module.is_some();
                let offset = has_offset.then_some(code.offset);
                let function = Some(namer.function(code));
                Label { function, module, offset, ..whose_process }
            }
            By::Process => whose_process,
            By::Thread => {
                let unnamed = if pid.is_some() { UNKNOWN.to_owned() } else { process };
                let (thread, tid) = match key.split {
                    Split::Thread(row) => namer.thread(row),
                    Split::HostTid(tid) => (unnamed, Some(tid)),
                    Split::No | Split::Cpu(_) | Split::Vcpu(_) | Split::Node(_) => (unnamed, None),
                };
                Label { thread: Some(thread), tid, ..whose_process }
            }
            By::Module => {
                let module = module.unwrap_or_else(|| namer.function(code));
                let guest = side == Side::Guest;
                let side = Some(if guest { Side::Guest } else { Side::Host });
                Label { module: Some(module), side, vm: vm.filter(|_| guest), ..Label::default() }
            }
            By::Vm => whose,
            By::Cpu => match key.split {
                Split::Cpu(cpu) => Label { cpu: Some(cpu), ..Label::default() },
                Split::Vcpu(vcpu) => Label { vcpu: Some(vcpu), ..whose },
                // In the guest view, on a vCPU that is not known.
                Split::No | Split::Thread(_) | Split::HostTid(_) | Split::Node(_) => whose,
            },
            By::Node => match key.split {
                Split::Node(node) => Label { node: Some(node), ..whose },
                _ => whose,
            },
        }
    }

    /// Guest view: samples that the vCPUs should have had and did not.
    fn count_unseen(
        &self,
        axis: &VcpuTimelines,
        namer: &Namer,
        shares: &mut Shares,
        lines: &mut BTreeMap<Label, u64>,
    ) {
        let Some(time) = &self.guest_time else {
            return;
        };
        for (vcpu, unseen) in time.unseen(&self.query.selection, axis) {
            for (side, samples) in unseen {
                count_unseen_share(shares, side, samples);
                *lines.entry(self.unseen_label(namer, side, vcpu)).or_default() += samples;
            }
        }
    }

    fn unseen_label(&self, namer: &Namer, side: Side, vcpu: u32) -> Label {
        let line = side.line();
        let vm = self.query.selection.vm().map(|vm| namer.vm(VmRef::Known(vm)));
        let label = Label { vm, side: Some(side), ..Label::default() };
        match self.query.by {
            By::Function | By::Address => Label { function: line, ..label },
            By::Process => Label { process: line, ..label },
            By::Thread => Label { thread: line, ..label },
            By::Module => Label { module: line, ..label },
            By::Vm | By::Node => label,
            By::Cpu => Label { vcpu: Some(vcpu), ..label },
        }
    }

    /// What the selected VMs have on the nodes; nothing if that is not requested.
    fn vm_nodes(&self, namer: &Namer) -> Vec<VmNodes> {
        let selection = &self.query.selection;
        let Some(nodes) = self.nodes.as_ref().filter(|_| selection.view() != View::Native) else {
            return Vec::new();
        };
        let vms = (0..self.resolver.tables().vms.len()).map(VmId::from_index);
        let selected = vms.filter(|vm| selection.vm().is_none_or(|wanted| wanted == *vm));
        let vm_nodes = |vm| {
            let whose = VmRef::Known(vm);
            let mut guest = GuestTimeByNode::new();
            for (key, samples) in &self.counts {
                if key.level.is_guest() && key.vm == Some(whose) {
                    let node = if let Split::Node(node) = key.split { Some(node) } else { None };
                    *guest.entry(node).or_default() += samples;
                }
            }
            let memory = nodes.memory(vm);
            let remote = memory.remote_share(&guest);
            VmNodes { vm: namer.vm(whose), guest, memory, remote }
        };
        selected.map(vm_nodes).collect()
    }

    /// The recording's notes, and what this report adds.
    fn notes(&self) -> Vec<Note> {
        let mut notes = self.header.notes.clone();
        for vm in &self.resolver.tables().vms {
            if let Guest::Unmapped { reason } = &vm.guest
                && !notes.iter().any(|n| n.subject == vm.name && n.text.contains(reason.as_str()))
            {
                notes.push(note(&vm.name, format!("no guest map: {reason}")));
            }
        }
        let left_out = self.filter.left_out();
        if left_out.guest > 0 {
            let text = format!("{} that interrupted a guest left out", n_samples(left_out.guest));
            notes.push(note("host", text));
        }
        if left_out.unknown_vcpu > 0 {
            let text = format!("{} of unknown vCPUs left out", n_samples(left_out.unknown_vcpu));
            notes.push(note("host", text));
        }
        if self.counts.is_empty() {
            notes.push(note("report", "no sample matches".to_owned()));
        }
        notes
    }
}

/// A node that has a VM's memory has a line, even if the guest never ran there.
fn add_nodes_with_memory(vm: &VmNodes, lines: &mut BTreeMap<Label, u64>) {
    let NodeMemory::Known(memory) = &vm.memory else { return };
    for (node, _) in memory.iter().filter(|(_, bytes)| 0 < **bytes) {
        let (vm, node, side) = (Some(vm.vm.clone()), Some(*node), Some(Side::Guest));
        lines.entry(Label { vm, node, side, ..Label::default() }).or_default();
    }
}

/// Names code once per address.
#[derive(Debug)]
struct Codes<'r> {
    resolver: &'r Resolver<'r>,
    /// Each address of a function is its own.
    by_address: bool,
    at: FxHashMap<CodeRef, u32>,
    numbers: FxHashMap<Code, u32>,
    codes: Vec<Code>,
}

impl<'r> Codes<'r> {
    fn new(resolver: &'r Resolver<'r>, by_address: bool) -> Self {
        Self {
            resolver,
            by_address,
            at: FxHashMap::default(),
            numbers: FxHashMap::default(),
            codes: Vec::new(),
        }
    }

    fn number(&mut self, at: CodeRef) -> u32 {
        if let Some(number) = self.at.get(&at) {
            return *number;
        }
        let code = self.resolver.code(at);
        let code = if self.by_address { code } else { code.counted_as() };
        let next = u32::try_from(self.codes.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(code).or_insert(next);
        if number == next {
            self.codes.push(code);
        }
        self.at.insert(at, number);
        number
    }

    fn code(&self, number: u32) -> Code {
        self.codes[number as usize]
    }
}

fn has_guest_stacks(tables: &Tables) -> bool {
    tables.stacks.iter().any(|stack| stack.guest != GuestStack::default())
}

fn vm_summaries(tables: &Tables) -> Vec<VmSummary> {
    let mut n_vcpus = vec![0; tables.vms.len()];
    for vcpu in &tables.vcpus {
        if let Some(n) = n_vcpus.get_mut(vcpu.vm.index()) {
            *n += 1;
        }
    }
    let vms = tables.vms.iter().zip(n_vcpus);
    vms.map(|(vm, n_vcpus)| VmSummary { vm: vm.clone(), n_vcpus }).collect()
}

fn count_unseen_share(shares: &mut Shares, side: Side, samples: u64) {
    match side {
        Side::Unseen(account) => shares.unseen.add(account, samples),
        Side::StealOwnVcpu { .. } => shares.steal_own_vcpu += samples,
        // These have samples.
        Side::Guest | Side::Vmm | Side::Host | Side::Idle => {
            shares.unseen.add(TimeAccount::Unknown, samples);
        }
    }
}

fn side(key: &Key) -> Side {
    match key.level {
        Level::Idle => Side::Idle,
        level if level.is_guest() => Side::Guest,
        _ if key.vm.is_some() => Side::Vmm,
        _ => Side::Host,
    }
}

/// What has no name and why, for a count of 0 samples; `None`: everything has.
fn why_unresolved(
    resolver: &Resolver<'_>,
    namer: &Namer,
    key: &Key,
    code: Code,
) -> Option<Unresolved> {
    let of_guest = key.vm.filter(|_| key.level.is_guest());
    let subject = of_guest.map_or_else(|| "host".to_owned(), |vm| namer.vm(vm));
    let module = code.module.map(|module| namer.module(module).to_owned());
    if let Some(reason) = resolver.why_unnamed(code) {
        let stripped = code.name == CodeName::Stripped;
        let what = if stripped { Unnamed::Stripped } else { Unnamed::Function };
        return Some(Unresolved { what, subject, module, reason, samples: 0 });
    }
    let reason = match key.process {
        ProcessRef::UnknownHost(_) => resolver.why(UnresolvedReason::NoProcess),
        ProcessRef::UnknownGuest(_, why) => resolver.why(why),
        ProcessRef::Image(_) | ProcessRef::Idle | ProcessRef::Vm(_) => return None,
    };
    Some(Unresolved { what: Unnamed::Process, subject, module: None, reason, samples: 0 })
}

fn sorted(lines: BTreeMap<Label, u64>) -> Vec<Row> {
    let is_shown = |(label, samples): &(Label, u64)| 0 < *samples || label.node.is_some();
    let lines = lines.into_iter().filter(is_shown);
    let mut rows: Vec<Row> = lines.map(|(label, samples)| Row { samples, label }).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
    rows
}

fn cut(mut rows: Vec<Row>, limit: Option<usize>) -> (Vec<Row>, Other) {
    let cut_off = rows.split_off(limit.unwrap_or(rows.len()).min(rows.len()));
    let samples = cut_off.iter().map(|row| row.samples).sum();
    (rows, Other { rows: cut_off.len(), samples })
}

fn sorted_unresolved(counts: BTreeMap<Unresolved, u64>) -> Vec<Unresolved> {
    let counted = counts.into_iter().map(|(what, samples)| Unresolved { samples, ..what });
    let mut sorted: Vec<Unresolved> = counted.collect();
    sorted.sort_by_key(|u| std::cmp::Reverse(u.samples));
    sorted
}

fn non_zero(counters: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    counters.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.clone(), *n)).collect()
}

fn note(subject: &str, text: String) -> Note {
    Note { subject: subject.to_owned(), text }
}

fn n_samples(n: u64) -> String {
    if n == 1 { "1 sample".to_owned() } else { format!("{n} samples") }
}
