//! Spools of all CPUs as one stream in time order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use model::HostNs;

use crate::error::Error;
use crate::spool::{Codec, Place, SpoolReader};

/// Merges spools, each in time order. Where a spool is not in time order its items come in its own order: none
/// is lost.
#[derive(Debug)]
pub(crate) struct Merge<C: Codec> {
    spools: Vec<SpoolReader<C>>,
    /// The next item of each spool that has one: its time, then the spool.
    next: BinaryHeap<Reverse<(HostNs, usize)>>,
}

impl<C: Codec> Merge<C> {
    /// Where times are equal the spools come in the order given.
    pub(crate) fn open(spools: &[(Place, PathBuf)]) -> Result<Self, Error> {
        let open = |(place, path): &(Place, PathBuf)| SpoolReader::open(path, *place);
        let mut spools = spools.iter().map(open).collect::<Result<Vec<SpoolReader<C>>, _>>()?;
        let mut next = BinaryHeap::new();
        for (idx, spool) in spools.iter_mut().enumerate() {
            if spool.advance()? {
                next.push(Reverse((C::time(spool.item()), idx)));
            }
        }
        Ok(Self { spools, next })
    }

    /// Fills `batch` with the next `limit` items, fewer only at the end; false when there are none.
    pub(crate) fn next_batch(
        &mut self,
        limit: usize,
        batch: &mut Vec<C::Item>,
    ) -> Result<bool, Error> {
        batch.clear();
        while batch.len() < limit {
            let Some(Reverse((_, idx))) = self.next.pop() else { break };
            // Until then this spool goes on without asking the others.
            let until =
                self.next.peek().map_or((HostNs(u64::MAX), usize::MAX), |Reverse(key)| *key);
            let spool = &mut self.spools[idx];
            while batch.len() < limit {
                batch.push(spool.item().clone());
                if !spool.advance()? {
                    break;
                }
                let key = (C::time(spool.item()), idx);
                if until < key || limit <= batch.len() {
                    self.next.push(Reverse(key));
                    break;
                }
            }
        }
        Ok(!batch.is_empty())
    }

    /// Bytes at the spools' ends that are no whole block; meaningful at the end.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.spools.iter().map(SpoolReader::lost_bytes).sum()
    }
}
