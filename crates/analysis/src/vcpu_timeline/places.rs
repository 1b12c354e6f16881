//! The process, thread and function that a guest was in, named once each.

use model::{Sample, VcpuSample, VcpuState};
use rustc_hash::FxHashMap;

use super::{CodeLocation, CodeLocationId};
use crate::Resolver;
use crate::label::Namer;
use resolve::{CodeRef, Level, ProcessRef, SampleSite, Threads};

/// Equal keys, equal places.
type Key = (ProcessRef, Option<u32>, CodeRef, bool);

/// Numbers places in order of their first appearance.
#[derive(Debug)]
pub(super) struct Places<'r> {
    resolver: &'r Resolver<'r>,
    threads: Threads,
    by_key: FxHashMap<Key, CodeLocationId>,
    numbers: FxHashMap<CodeLocation, CodeLocationId>,
    places: Vec<CodeLocation>,
}

impl<'r> Places<'r> {
    pub(super) fn new(resolver: &'r Resolver<'r>) -> Self {
        Self {
            resolver,
            threads: resolver.threads(),
            by_key: FxHashMap::default(),
            numbers: FxHashMap::default(),
            places: Vec::new(),
        }
    }

    /// Where the guest was at the sample, or at its last VM exit before it.
    pub(super) fn locate(&mut self, sample: &Sample, vcpu: &VcpuSample) -> (Level, CodeLocationId) {
        let sample = Sample { vcpu: VcpuState::Guest(*vcpu), ..*sample };
        let located = self.resolver.locate(&sample);
        let thread = self.threads.thread_of_sample(&sample, &located);
        let kernel = located.level == Level::GuestKernel || vcpu.ip.0 >> 63 == 1;
        let key = (located.process, thread, located.code, kernel);
        if let Some(place) = self.by_key.get(&key) {
            return (located.level, *place);
        }
        let place = self.named(&located, thread, kernel);
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
            module: code.module.map(|module| namer.module(module).to_owned()),
            build_id: code.module.and_then(|module| namer.build_id(module)).cloned(),
            kernel,
        }
    }
}
