//! Moves a VM's pages from node to node, no faster than it may.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::apply_plan::still_there;
use crate::pages::{self, BATCH};
use crate::read::{HostVm, MemoryRange, NumaError};

/// Attempts to move a page: some pages are busy for a moment.
const TRIES: u32 = 3;

/// Moves some of a VM's memory from one node to another.
pub(crate) struct Mover<'a> {
    pub(crate) proc: &'a Path,
    pub(crate) vm: &'a HostVm,
    /// The kernel's numbers of the nodes.
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) ranges: &'a [MemoryRange],
    pub(crate) left: u64,
    pub(crate) moved: u64,
    /// Bytes that the kernel did not move.
    pub(crate) stuck: u64,
    pub(crate) pace: &'a mut Pace,
}

impl Mover<'_> {
    /// Whether it was not stopped. Pages that can't be moved are left where they are.
    pub(crate) fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<bool, NumaError> {
        let wanted = self.left;
        for range in self.ranges {
            for addresses in batches(range) {
                // Where most pages are pinned, trying all of them takes long.
                let is_stuck = is_much(self.stuck, wanted) && self.moved < self.stuck;
                if self.left < range.page_bytes || is_stuck {
                    return Ok(true);
                }
                if stop() {
                    return Ok(false);
                }
                still_there(self.proc, &self.vm.process)?;
                self.batch(&addresses, range.page_bytes).map_err(|source| NumaError::Pages {
                    vm: self.vm.process.name.clone(),
                    source,
                })?;
            }
        }
        Ok(true)
    }

    fn batch(&mut self, addresses: &[u64], page_bytes: u64) -> io::Result<()> {
        let pid = self.vm.process.pid;
        let on = |addresses: &[u64], node: u32| -> io::Result<Vec<u64>> {
            let nodes = pages::nodes(pid, addresses)?;
            let there = addresses.iter().zip(nodes).filter(|(_, found)| *found == Some(node));
            Ok(there.map(|(address, _)| *address).collect())
        };
        let mut waiting = on(addresses, self.from)?;
        waiting.truncate(usize::try_from(self.left / page_bytes).unwrap_or(usize::MAX));
        for _ in 0..TRIES {
            if waiting.is_empty() {
                break;
            }
            pages::move_to(pid, &waiting, self.to)?;
            let moved = on(&waiting, self.to)?.len() as u64 * page_bytes;
            self.left = self.left.saturating_sub(moved);
            self.moved += moved;
            self.pace.wait(moved);
            waiting = on(&waiting, self.from)?;
        }
        self.stuck += waiting.len() as u64 * page_bytes;
        Ok(())
    }
}

/// Whether so many bytes that do not move are too many: more than a tenth of those that should.
pub(crate) fn is_much(stuck: u64, wanted: u64) -> bool {
    wanted < stuck.saturating_mul(10)
}

/// The addresses of a range's pages. No batch ends within a huge page: the kernel moves such a page as a whole, and what of
/// it is in another batch would not be counted.
fn batches(range: &MemoryRange) -> impl Iterator<Item = Vec<u64>> + use<> {
    let MemoryRange { start, end, page_bytes } = *range;
    let span = page_bytes.saturating_mul(BATCH as u64).max(1);
    let mut at = start;
    std::iter::from_fn(move || {
        let stop = (at / span + 1).saturating_mul(span).min(end);
        let first = at;
        let page = |n: u64| first.checked_add(n.checked_mul(page_bytes)?).filter(|at| *at < stop);
        let pages: Vec<u64> = (0..).map_while(page).collect();
        at = stop;
        (!pages.is_empty()).then_some(pages)
    })
}

/// Keeps to a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    begin: Instant,
    bytes: u64,
    bytes_per_s: u64,
}

impl Pace {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self { begin: Instant::now(), bytes: 0, bytes_per_s }
    }

    fn wait(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s.max(1) as f64);
        std::thread::sleep(due.saturating_sub(self.begin.elapsed()));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn batches_hold_every_page_once() {
        let check = |start, end, page_bytes, expected: &[usize]| {
            let all: Vec<Vec<u64>> = batches(&MemoryRange { start, end, page_bytes }).collect();
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            assert!(all.concat().windows(2).all(|pair| pair[0] + page_bytes == pair[1]));
        };
        check(4096, 4096, 4096, &[]);
        check(0, 2500 * 4096, 4096, &[1024, 1024, 452]);
        check(256 * 4096, 2500 * 4096, 4096, &[768, 1024, 452]);
        check(1 << 30, (1 << 30) + (5 << 20), 2 << 20, &[3]);
        check(u64::MAX - 4096, u64::MAX, 4096, &[1]);
    }
}
