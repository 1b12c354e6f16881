//! Spools of all CPUs as one stream of samples in time order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use model::Sample;

use crate::abi::{RECORD_SIZE, decode, time_of};
use crate::error::Error;
use crate::spool::SpoolReader;

/// Merges spools, each in time order. Holds one block of each. Where a spool is not in time order its
/// samples come in its own order: none is lost.
#[derive(Debug)]
pub(crate) struct Merge {
    sources: Vec<Source>,
    /// The next sample of each source that has one: its time, then the source.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

#[derive(Debug)]
struct Source {
    spool: SpoolReader,
    block: Vec<u8>,
    record: usize,
}

impl Merge {
    /// The spools' CPUs come in the order given where times are equal.
    pub(crate) fn new(spools: Vec<SpoolReader>) -> Result<Self, Error> {
        let mut merge = Self { sources: Vec::new(), next: BinaryHeap::new() };
        for (idx, spool) in spools.into_iter().enumerate() {
            let mut source = Source { spool, block: Vec::new(), record: 0 };
            if source.load()? {
                merge.next.push(Reverse((source.time(), idx)));
            }
            merge.sources.push(source);
        }
        Ok(merge)
    }

    /// Fills `batch` with the next `limit` samples, fewer only at the end.
    pub(crate) fn next_batch(
        &mut self,
        limit: usize,
        batch: &mut Vec<Sample>,
    ) -> Result<(), Error> {
        batch.clear();
        while batch.len() < limit {
            let Some(Reverse((_, idx))) = self.next.pop() else { break };
            // Until then this source goes on without asking the others.
            let until = self.next.peek().map_or((u64::MAX, usize::MAX), |Reverse(key)| *key);
            let source = &mut self.sources[idx];
            let more = loop {
                batch.push(source.sample());
                if !source.advance()? {
                    break false;
                }
                if until < (source.time(), idx) || limit <= batch.len() {
                    break true;
                }
            };
            if more {
                self.next.push(Reverse((source.time(), idx)));
            }
        }
        Ok(())
    }

    /// Bytes at the spools' ends that are no whole block; meaningful at the end of the samples.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.spool.lost_bytes()).sum()
    }
}

impl Source {
    fn records(&self) -> &[[u8; RECORD_SIZE]] {
        self.block.as_chunks::<RECORD_SIZE>().0
    }

    fn time(&self) -> u64 {
        time_of(&self.records()[self.record]).0
    }

    fn sample(&self) -> Sample {
        decode(&self.records()[self.record], self.spool.cpu())
    }

    /// False at the end.
    fn advance(&mut self) -> Result<bool, Error> {
        self.record += 1;
        if self.record < self.records().len() {
            return Ok(true);
        }
        self.load()
    }

    fn load(&mut self) -> Result<bool, Error> {
        self.record = 0;
        self.spool.next(&mut self.block)
    }
}

/// Opens the spools of a recording, by CPU.
pub(crate) fn open_spools(paths: &[(model::CpuId, PathBuf)]) -> Result<Vec<SpoolReader>, Error> {
    paths.iter().map(|(cpu, path)| SpoolReader::open(path, *cpu)).collect()
}
