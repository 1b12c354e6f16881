//! Samples to a `Flow`.
//!
//! ```text
//!  outermost first
//!  guest sample, unified and guest view:  [vm] process user-callers... kernel-callers... function
//!  guest sample, host view:               [vm]
//!  host sample:                           process user-callers... kernel-callers... function
//!  idle sample:                           [idle] kernel-callers... function
//! ```

use std::hash::Hash;

use model::{Header, Sample, VcpuState};
use rustc_hash::FxHashMap;

use super::{Flow, FlowModule, FlowSample, FlowThread, Frame, FrameKind};
use crate::Selection;
use crate::filter::Filter;
use crate::label::{Namer, UNKNOWN};
use resolve::{
    CallStackKey, CodeName, CodeRef, Level, ProcessRef, Resolver, SampleSite, Threads,
    UnresolvedReason, VmRef,
};

/// The flow of `samples`.
#[must_use]
pub fn build(
    resolver: &Resolver<'_>,
    header: &Header,
    selection: Selection,
    samples: impl IntoIterator<Item = Sample>,
) -> Flow {
    let mut builder = FlowBuilder::new(resolver, header, selection);
    samples.into_iter().for_each(|sample| builder.push(&sample));
    builder.finish()
}

/// Builds a flow from samples as they come.
#[derive(Debug)]
pub struct FlowBuilder<'r> {
    resolver: &'r Resolver<'r>,
    namer: Namer<'r>,
    filter: Filter<'r>,
    lookup: Threads,
    modules: Interner<FlowModule>,
    frames: Interner<Frame>,
    stacks: Interner<Vec<u32>>,
    threads: Interner<FlowThread>,
    stack_of: FxHashMap<StackKey, u32>,
    thread_of: FxHashMap<ThreadKey, u32>,
    flow: Flow,
}

/// Equal keys, equal stacks.
type StackKey = (Level, Option<VmRef>, ProcessRef, CodeRef, Option<CallStackKey>);
/// Equal keys, equal threads. The first says guest; the last tells threads without a row apart: the
/// host thread, or the vCPU.
type ThreadKey = (bool, Option<VmRef>, ProcessRef, Option<u32>, u32);

impl<'r> FlowBuilder<'r> {
    /// A flow of a recording, still without samples.
    #[must_use]
    pub fn new(resolver: &'r Resolver<'r>, header: &Header, selection: Selection) -> Self {
        Self {
            resolver,
            namer: Namer::new(resolver),
            filter: Filter::new(resolver, selection),
            lookup: resolver.threads(),
            modules: Interner::default(),
            frames: Interner::default(),
            stacks: Interner::default(),
            threads: Interner::default(),
            stack_of: FxHashMap::default(),
            thread_of: FxHashMap::default(),
            flow: Flow {
                period_ns: header.period_ns,
                start: header.start,
                end: header.end,
                start_unix_ns: header.start_unix_ns,
                hostname: header.hostname.clone(),
                ..Flow::default()
            },
        }
    }

    /// Adds a sample.
    pub fn push(&mut self, sample: &Sample) {
        let Some(located) = self.filter.locate(sample) else {
            return;
        };
        if !self.filter.admits_process(located.process) {
            return;
        }
        let thread = self.thread(sample, &located);
        let stack = self.stack(sample, &located);
        let cpu = sample.cpu.0;
        self.flow.samples.push(FlowSample { time: sample.time, cpu, thread, stack });
    }

    /// The flow of all pushed samples, in time order.
    #[must_use]
    pub fn finish(mut self) -> Flow {
        self.flow.samples.sort_by_key(|sample| (sample.time, sample.cpu));
        Flow {
            modules: self.modules.items,
            frames: self.frames.items,
            stacks: self.stacks.items,
            threads: self.threads.items,
            ..self.flow
        }
    }

    fn stack(&mut self, sample: &Sample, located: &SampleSite) -> u32 {
        let callers = sample.stack.is_some().then(|| Resolver::call_stack_key(sample, located));
        let key = (located.level, located.vm, located.process, located.code, callers);
        if let Some(stack) = self.stack_of.get(&key) {
            return *stack;
        }
        let frames = match located.level.is_guest() {
            true => self.guest_frames(sample, located),
            false => self.host_frames(sample, located),
        };
        let stack = self.stacks.intern(frames);
        self.stack_of.insert(key, stack);
        stack
    }

    fn guest_frames(&mut self, sample: &Sample, located: &SampleSite) -> Vec<u32> {
        let name = located.vm.map_or_else(|| UNKNOWN.to_owned(), |vm| self.namer.vm(vm));
        let mut frames = vec![self.plain_frame(FrameKind::Vm, format!("[{name}]"))];
        // A VM that can't be looked into is one frame.
        if !matches!(located.process, ProcessRef::Vm(_)) {
            let (process, _) = self.namer.process(located.process);
            frames.push(self.plain_frame(FrameKind::Process, process));
            let call_stack = self.resolver.call_stack(sample, located);
            frames.extend(call_stack.into_iter().rev().map(|at| self.code_frame(located, at)));
        }
        frames
    }

    fn host_frames(&mut self, sample: &Sample, located: &SampleSite) -> Vec<u32> {
        let (process, _) = self.namer.process(located.process);
        let idle = located.level == Level::Idle;
        let kind = if idle { FrameKind::Idle } else { FrameKind::Process };
        let mut frames = vec![self.plain_frame(kind, process)];
        let call_stack = self.resolver.call_stack(sample, located);
        frames.extend(call_stack.into_iter().rev().map(|at| self.code_frame(located, at)));
        frames
    }

    fn plain_frame(&mut self, kind: FrameKind, name: String) -> u32 {
        self.frames.intern(Frame { kind, name, module: None, offset: 0 })
    }

    fn code_frame(&mut self, located: &SampleSite, at: CodeRef) -> u32 {
        let code = self.resolver.code(at);
        let module = code.module.map(|module| {
            let path = self.namer.module(module);
            let path = match self.namer.module_vm(module) {
                Some(vm) => format!("[{vm}]{path}"),
                None => path.to_owned(),
            };
            let row = self.resolver.tables().modules.get(module.index());
            let build_id = row.and_then(|module| module.build_id.clone());
            self.modules.intern(FlowModule { path, build_id })
        });
        let name = match code.name {
            CodeName::Unknown(UnresolvedReason::NoGuestMap(_)) => UNKNOWN.to_owned(),
            _ => self.namer.function(code),
        };
        self.frames.intern(Frame {
            kind: frame_kind(located, at),
            name,
            module,
            offset: code.offset,
        })
    }

    fn thread(&mut self, sample: &Sample, located: &SampleSite) -> u32 {
        let row = self.lookup.thread_of_sample(sample, located);
        let guest = located.level.is_guest();
        let carrier = match &sample.vcpu {
            _ if row.is_some() => 0,
            VcpuState::Guest(vcpu) if guest => vcpu.vcpu.0,
            _ => sample.tid.0,
        };
        let key = (guest, located.vm, located.process, row, carrier);
        if let Some(thread) = self.thread_of.get(&key) {
            return *thread;
        }
        let thread = self.describe_thread(sample, located, row);
        let number = self.threads.intern(thread);
        self.thread_of.insert(key, number);
        number
    }

    fn describe_thread(
        &self,
        sample: &Sample,
        located: &SampleSite,
        row: Option<u32>,
    ) -> FlowThread {
        let guest = located.level.is_guest();
        let (process, pid) = self.namer.process(located.process);
        let vm = located.vm.filter(|_| guest).map(|vm| self.namer.vm(vm));
        let (thread, tid) = match row {
            Some(row) => self.namer.thread(row),
            None if guest => (self.guest_thread(sample, located), None),
            None if pid.is_none() => (process.clone(), Some(sample.tid.0)),
            None => (UNKNOWN.to_owned(), Some(sample.tid.0)),
        };
        let tid = tid.unwrap_or(0);
        FlowThread { vm, process, pid: pid.unwrap_or(0), thread, tid }
    }

    /// A guest thread without a name: of a VM that can't be looked into, its vCPU.
    fn guest_thread(&self, sample: &Sample, located: &SampleSite) -> String {
        let (ProcessRef::Vm(_), VcpuState::Guest(vcpu)) = (located.process, &sample.vcpu) else {
            return UNKNOWN.to_owned();
        };
        let row = self.resolver.tables().vcpus.get(vcpu.vcpu.index());
        row.map_or_else(|| UNKNOWN.to_owned(), |vcpu| format!("vcpu{}", vcpu.number))
    }
}

/// Numbers for different things, in the order they were first seen.
#[derive(Debug)]
struct Interner<T> {
    numbers: FxHashMap<T, u32>,
    items: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: FxHashMap::default(), items: Vec::new() }
    }
}

impl<T: Hash + Eq + Clone> Interner<T> {
    fn intern(&mut self, item: T) -> u32 {
        if let Some(number) = self.numbers.get(&item) {
            return *number;
        }
        let number = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        self.items.push(item.clone());
        self.numbers.insert(item, number);
        number
    }
}

/// A call stack has kernel frames on top of user frames.
pub(crate) fn frame_kind(located: &SampleSite, at: CodeRef) -> FrameKind {
    match (located.level, at) {
        (Level::GuestKernel, CodeRef::Image(image, _))
            if ProcessRef::Image(image) == located.process =>
        {
            FrameKind::GuestUser
        }
        (Level::GuestKernel, _) => FrameKind::GuestKernel,
        (Level::GuestUser | Level::GuestUnknown, _) => FrameKind::GuestUser,
        (Level::HostUser, _) => FrameKind::HostUser,
        (Level::HostKernel | Level::Idle, CodeRef::Image(image, _))
            if ProcessRef::Image(image) == located.process =>
        {
            FrameKind::HostUser
        }
        (Level::HostKernel | Level::Idle, CodeRef::Nowhere(UnresolvedReason::NoProcess)) => {
            FrameKind::HostUser
        }
        (Level::HostKernel | Level::Idle, _) => FrameKind::HostKernel,
    }
}
