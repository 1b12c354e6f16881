//! Spools of all CPUs as one stream in time order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::Error;

/// One spool, item by item in time order.
pub(crate) trait Source {
    /// What it holds.
    type Item;
    /// Goes to the next item, at first to the first; false at the end.
    fn advance(&mut self) -> Result<bool, Error>;
    /// The time of the item it is at.
    fn time(&self) -> u64;
    /// The item it is at.
    fn item(&self) -> Self::Item;
    /// Bytes at its end that are no whole block; meaningful at the end.
    fn lost_bytes(&self) -> u64;
}

/// Merges spools, each in time order. Where a spool is not in time order its items come in its own order: none
/// is lost.
#[derive(Debug)]
pub(crate) struct Merge<S> {
    sources: Vec<S>,
    /// The next item of each source that has one: its time, then the source.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<S: Source> Merge<S> {
    /// Where times are equal the sources come in the order given.
    pub(crate) fn new(mut sources: Vec<S>) -> Result<Self, Error> {
        let mut next = BinaryHeap::new();
        for (idx, source) in sources.iter_mut().enumerate() {
            if source.advance()? {
                next.push(Reverse((source.time(), idx)));
            }
        }
        Ok(Self { sources, next })
    }

    /// Fills `batch` with the next `limit` items, fewer only at the end.
    pub(crate) fn next_batch(
        &mut self,
        limit: usize,
        batch: &mut Vec<S::Item>,
    ) -> Result<(), Error> {
        batch.clear();
        while batch.len() < limit {
            let Some(Reverse((_, idx))) = self.next.pop() else { break };
            // Until then this source goes on without asking the others.
            let until = self.next.peek().map_or((u64::MAX, usize::MAX), |Reverse(key)| *key);
            let source = &mut self.sources[idx];
            let more = loop {
                batch.push(source.item());
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

    /// Bytes at the spools' ends that are no whole block; meaningful at the end.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.sources.iter().map(Source::lost_bytes).sum()
    }
}
