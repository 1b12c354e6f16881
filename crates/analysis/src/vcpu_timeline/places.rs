//! The process, thread and function that a guest was in, named once each.

use std::sync::Arc;

use model::{Sample, StackId, VcpuSample, VcpuState};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{CodeLocation, CodeLocationId};
use crate::Resolver;
use crate::flow::{FrameKind, frame_kind};
use crate::label::Namer;
use resolve::{CodeRef, Level, ProcessRef, SampleSite, Threads, VmRef};

/// Equal keys, equal places.
type Key = (ProcessRef, Option<u32>, CodeRef, bool, Option<StackId>);

/// Places with callers, 2 KiB each at most. VMs have equal parts, of 1,024 at least: guests choose how different their
/// stacks are. Later ones are those of their innermost function.
const MAX_STACKS: usize = 1 << 16;
const LEAST_STACKS: usize = 1 << 10;

/// Numbers places in order of their first appearance.
#[derive(Debug)]
pub(super) struct Places<'r> {
    resolver: &'r Resolver<'r>,
    threads: Threads,
    /// Whether code with other callers is another place.
    with_callers: bool,
    by_key: FxHashMap<Key, CodeLocationId>,
    numbers: FxHashMap<CodeLocation, CodeLocationId>,
    places: Vec<CodeLocation>,
    caller_names: FxHashSet<Arc<str>>,
    /// Places with callers, by VM.
    n_stacks: FxHashMap<Option<VmRef>, usize>,
    max_stacks: usize,
    /// Samples whose stacks came after too many others.
    pub(super) callers_left_out: u64,
}

impl<'r> Places<'r> {
    pub(super) fn new(resolver: &'r Resolver<'r>) -> Self {
        Self {
            resolver,
            threads: resolver.threads(),
            with_callers: false,
            by_key: FxHashMap::default(),
            numbers: FxHashMap::default(),
            places: Vec::new(),
            caller_names: FxHashSet::default(),
            n_stacks: FxHashMap::default(),
            max_stacks: MAX_STACKS
                .checked_div(resolver.tables().vms.len())
                .map_or(MAX_STACKS, |part| part.max(LEAST_STACKS)),
            callers_left_out: 0,
        }
    }

    /// Code with other callers is another place from now on.
    pub(super) fn distinguish_callers(&mut self) {
        self.with_callers = true;
    }

    /// Where the guest was at the sample, or at its last VM exit before it.
    pub(super) fn locate(&mut self, sample: &Sample, vcpu: &VcpuSample) -> (Level, CodeLocationId) {
        let sample = Sample { vcpu: VcpuState::Guest(*vcpu), ..*sample };
        let located = self.resolver.locate(&sample);
        let thread = self.threads.thread_of_sample(&sample, &located);
        let kernel = located.level == Level::GuestKernel || vcpu.ip.0 >> 63 == 1;
        let stack = sample.stack.filter(|_| self.with_callers);
        let key = (located.process, thread, located.code, kernel, stack);
        if let Some(place) = self.by_key.get(&key) {
            return (located.level, *place);
        }
        let n_stacks = self.n_stacks.get(&located.vm).copied().unwrap_or(0);
        if stack.is_some() && self.max_stacks <= n_stacks {
            self.callers_left_out += 1;
            return self.locate_function(&sample, vcpu);
        }
        let mut place = self.named(&located, thread, kernel);
        if stack.is_some() {
            (place.callers, place.kernel_callers) = self.callers(&sample, &located);
        }
        let next = CodeLocationId(u32::try_from(self.places.len()).unwrap_or(u32::MAX));
        let number = *self.numbers.entry(place.clone()).or_insert(next);
        if number == next {
            if stack.is_some() {
                self.n_stacks.insert(located.vm, n_stacks + 1);
            }
            self.places.push(place);
        }
        self.by_key.insert(key, number);
        (located.level, number)
    }

    /// All places, and for each the first one that differs in its callers at most.
    pub(super) fn finish(self) -> (Vec<CodeLocation>, Vec<CodeLocationId>) {
        let same_code = if self.with_callers { same_code(&self.places) } else { Vec::new() };
        (self.places, same_code)
    }

    fn locate_function(&mut self, sample: &Sample, vcpu: &VcpuSample) -> (Level, CodeLocationId) {
        self.locate(&Sample { stack: None, ..*sample }, vcpu)
    }

    /// The names of the callers, and how many of them are the kernel's.
    fn callers(&mut self, sample: &Sample, located: &SampleSite) -> (Vec<Arc<str>>, u32) {
        let namer = Namer::new(self.resolver);
        let call_stack = self.resolver.call_stack(sample, located);
        let callers = call_stack.get(1..).unwrap_or_default();
        let is_kernel = |at: &&_| frame_kind(located, **at) == FrameKind::GuestKernel;
        let n_kernel = callers.iter().take_while(is_kernel).count();
        let mut name = |at: &_| {
            let name = namer.function(self.resolver.code(*at));
            if let Some(known) = self.caller_names.get(name.as_str()) {
                return Arc::clone(known);
            }
            let name: Arc<str> = name.into();
            self.caller_names.insert(Arc::clone(&name));
            name
        };
        (callers.iter().map(&mut name).collect(), u32::try_from(n_kernel).unwrap_or(u32::MAX))
    }

    fn named(&self, located: &SampleSite, thread: Option<u32>, kernel: bool) -> CodeLocation {
        let namer = Namer::new(self.resolver);
        let (process, pid) = namer.process(located.process);
        let thread = thread.map(|row| namer.thread(row));
        let code = self.resolver.code(located.code);
        CodeLocation {
            process,
            pid,
            tid: thread.as_ref().and_then(|(_, tid)| *tid),
            thread: thread.map(|(name, _)| name),
            function: namer.function(code),
            callers: Vec::new(),
            kernel_callers: 0,
            module: code.module.map(|module| namer.module(module).to_owned()),
            build_id: code.module.and_then(|module| namer.build_id(module)).cloned(),
            kernel,
        }
    }
}

pub(crate) fn same_code(places: &[CodeLocation]) -> Vec<CodeLocationId> {
    let mut first: FxHashMap<CodeLocation, CodeLocationId> = FxHashMap::default();
    let numbered = (0..).map(CodeLocationId).zip(places);
    let first_of = numbered.map(|(id, place)| {
        let code = CodeLocation { callers: Vec::new(), kernel_callers: 0, ..place.clone() };
        *first.entry(code).or_insert(id)
    });
    first_of.collect()
}
