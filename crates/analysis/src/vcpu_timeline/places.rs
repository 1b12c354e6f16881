//! The process, thread and function that a guest was in, named once each.

use model::{Sample, StackId, VcpuSample, VcpuState};
use rustc_hash::FxHashMap;

use super::{CodeLocation, CodeLocationId};
use crate::Resolver;
use crate::label::Namer;
use resolve::{CodeRef, Level, ProcessRef, SampleSite, Threads};

/// Equal keys, equal places.
type Key = (ProcessRef, Option<u32>, CodeRef, bool, Option<StackId>);

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
        let callers = match stack {
            Some(_) => self.callers(&sample, &located),
            None => Vec::new(),
        };
        let place = CodeLocation { callers, ..self.named(&located, thread, kernel) };
        let next = CodeLocationId(u32::try_from(self.places.len()).unwrap_or(u32::MAX));
        let number = *self.numbers.entry(place.clone()).or_insert(next);
        if number == next {
            self.places.push(place);
        }
        self.by_key.insert(key, number);
        (located.level, number)
    }

    pub(super) fn finish(self) -> Vec<CodeLocation> {
        self.places
    }

    fn callers(&self, sample: &Sample, located: &SampleSite) -> Vec<String> {
        let namer = Namer::new(self.resolver);
        let call_stack = self.resolver.call_stack(sample, located);
        let callers = call_stack.into_iter().skip(1);
        callers.map(|at| namer.function(self.resolver.code(at))).collect()
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
            module: code.module.map(|module| namer.module(module).to_owned()),
            build_id: code.module.and_then(|module| namer.build_id(module)).cloned(),
            kernel,
        }
    }
}
