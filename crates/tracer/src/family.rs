//! Which threads a trace of a process tree follows.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use bpf::Mapped;
use host::procfs::numbered_entries;
use model::Pid;

/// Looks at `/proc` until one finds nothing new, at most so often.
const MAX_LOOKS: u32 = 8;

/// The map of followed threads: a bit for each thread id. The programs add threads that followed ones make.
#[derive(Debug)]
pub(crate) struct Followed {
    bits: Mapped,
    roots: Vec<Pid>,
}

impl Followed {
    pub(crate) fn new(bits: Mapped) -> Self {
        Self { bits, roots: Vec::new() }
    }

    /// Adds all threads of `process` and of its descendants. Where the programs are attached they add what is made from the
    /// first bit on, so that only what was there before must be looked for; no task that is made meanwhile escapes, as
    /// the search goes on until it finds nothing new.
    pub(crate) fn add(&mut self, process: Pid) -> io::Result<()> {
        self.roots.push(process);
        self.look_for(process).map(|_| ())
    }

    /// Adds those whom the families got before the programs were attached. A family that has ended is skipped. Returns
    /// all threads of the families.
    pub(crate) fn add_missed(&self) -> BTreeSet<u32> {
        let look = |&process| self.look_for(process).unwrap_or_default();
        self.roots.iter().flat_map(look).collect()
    }

    fn look_for(&self, process: Pid) -> io::Result<BTreeSet<u32>> {
        let proc = Path::new("/proc");
        let mut found = BTreeSet::from([process.0]);
        let mut threads = self.add_threads(proc, process.0)?;
        for _ in 0..MAX_LOOKS {
            let family = descendants(&found, &parents(proc)?);
            if family.is_empty() {
                break;
            }
            for &process in &family {
                // One that ended meanwhile is followed no more.
                threads.extend(self.add_threads(proc, process).unwrap_or_default());
            }
            found.extend(family);
        }
        Ok(threads)
    }

    fn add_threads(&self, proc: &Path, process: u32) -> io::Result<BTreeSet<u32>> {
        let threads = threads(proc, process)?;
        for &tid in &threads {
            let (word, bit) = (tid as usize / 64, tid % 64);
            if word * 8 < self.bits.bytes() {
                self.bits.word(word * 8).fetch_or(1 << bit, Ordering::Relaxed);
            }
        }
        Ok(threads)
    }
}

/// The threads of a process.
pub(crate) fn threads(proc: &Path, process: u32) -> io::Result<BTreeSet<u32>> {
    let tasks = numbered_entries(&proc.join(process.to_string()).join("task"))?;
    Ok(tasks.into_iter().collect())
}

/// Processes and their parents.
fn parents(proc: &Path) -> io::Result<Vec<(u32, u32)>> {
    let parent = |pid: u32| {
        let text = std::fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
        Some((pid, parse_parent(&String::from_utf8_lossy(&text))?))
    };
    Ok(numbered_entries(proc)?.into_iter().filter_map(parent).collect())
}

/// The parent in the text of `/proc/PID/stat`. The name, in brackets, may hold anything.
fn parse_parent(text: &str) -> Option<u32> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The processes below those of `roots` that are none of them.
fn descendants(roots: &BTreeSet<u32>, parents: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    loop {
        let is_new = |pid| !roots.contains(&pid) && !found.contains(&pid);
        let is_below = |parent| roots.contains(&parent) || found.contains(&parent);
        let more: Vec<u32> = parents
            .iter()
            .filter(|&&(pid, parent)| is_new(pid) && is_below(parent))
            .map(|&(pid, _)| pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn families() {
        let check = |roots: &[u32], parents: &[(u32, u32)], expected: &[u32]| {
            let roots = roots.iter().copied().collect();
            let found: Vec<u32> = descendants(&roots, parents).into_iter().collect();
            assert_eq!(found, expected);
        };
        check(&[5], &[(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)], &[6, 7]);
        check(&[5], &[(4, 6), (6, 5)], &[4, 6]);
        check(&[5, 6], &[(6, 5)], &[]);
        check(&[5], &[(6, 7), (7, 6), (8, 8)], &[]);
    }

    #[test]
    fn parents_in_stat() {
        let check = |text, expected| assert_eq!(parse_parent(text), expected, "{text}");
        check("7 (cc1) R 6 7 6 0", Some(6));
        check("7 (a) S 9) R 6 7", Some(6));
        check("7 (cc1) R", None);
        check("", None);
    }
}
