//! What processes there were when, from one look at a guest's list of tasks after the other. Pure.
//!
//! ```text
//!   look    look    look
//!    | a b   | a c   | a c'      b ended and c began between two looks; c executed another program between the next two
//! ```
//! The time of an event between two looks is unknown. A process that began counts from the look before, and one that
//! ended until this look; where both had the same page tables, the older one counts until the look before.

use std::collections::{BTreeMap, BTreeSet};

use api::guest::{
    GuestImage, GuestKernelThread, GuestMapping, GuestThread, MAX_IMAGES, MAX_OTHERS,
};
use linux::tasks::{KernelThread, Process, Walk};

use crate::answer;

/// A process that is so young may be about to execute a program.
const YOUNG_NS: u64 = 300_000_000;
/// One that is older and has no mappings has none.
const LONG_NS: u64 = 5_000_000_000;

/// Threads of one process that are kept after their end.
const MAX_ENDED_THREADS: usize = 1 << 10;

/// Processes and kernel threads so far.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// By process id, and when it was made.
    live: BTreeMap<(u32, u64), Live>,
    /// Ended and not reported yet.
    ended: Vec<GuestImage>,
    kernel_threads: BTreeMap<(u32, u64), GuestKernelThread>,
    /// Not reported yet.
    new_kernel_threads: Vec<GuestKernelThread>,
    next_id: u32,
    /// `None`: there was none.
    last_look_ns: Option<u64>,
    /// When a look last found a program that the one before had not.
    last_new_ns: u64,
    is_unsure: bool,
}

/// A process that was there at the last look.
#[derive(Debug)]
struct Live {
    image: GuestImage,
    is_reported: bool,
    first_seen_ns: u64,
    /// What tells whether its mappings have changed.
    mappings_mark: u64,
}

/// The executable mappings of a process.
pub(crate) struct Mapped {
    /// For the next look, to compare.
    pub(crate) mark: u64,
    pub(crate) mappings: Vec<GuestMapping>,
}

impl Images {
    /// Takes what a look at `now_ns` found. `mappings` reads those of a process, unless their mark is still the given one.
    pub(crate) fn see(
        &mut self,
        walk: Walk,
        now_ns: u64,
        mut mappings: impl FnMut(&Process, Option<u64>) -> Option<Mapped>,
    ) {
        let before_ns = self.last_look_ns;
        let mut gone: BTreeMap<(u32, u64), Live> = std::mem::take(&mut self.live);
        let mut taken = BTreeSet::new();
        for process in walk.processes {
            let key = (process.pid, process.start_ns);
            let known = gone.remove(&key);
            // Of processes that share page tables (vfork), the first one owns them.
            if !taken.insert(process.cr3) || MAX_IMAGES <= self.live.len() {
                gone.extend(known.map(|live| (key, live)));
                continue;
            }
            let live = match known {
                Some(mut live) if live.image.cr3 == process.cr3 => {
                    let mapped = mappings(&process, Some(live.mappings_mark));
                    live.update(&process, mapped);
                    live
                }
                replaced => {
                    gone.extend(replaced.map(|live| (key, live)));
                    let mapped = mappings(&process, None);
                    let id = self.next_id;
                    self.next_id = id.wrapping_add(1);
                    self.last_new_ns = now_ns;
                    Live { first_seen_ns: now_ns, ..Live::new(id, &process, before_ns, mapped) }
                }
            };
            self.live.insert(key, live);
        }
        // A list that went astray says nothing about those that it lacks.
        if walk.problem.is_some() {
            for (key, live) in gone {
                if taken.contains(&live.image.cr3) {
                    self.end(live, before_ns.unwrap_or(now_ns));
                } else if self.live.len() < MAX_IMAGES {
                    self.live.entry(key).or_insert(live);
                }
            }
        } else {
            for (_, live) in gone {
                let is_taken = taken.contains(&live.image.cr3);
                self.end(live, before_ns.filter(|_| is_taken).unwrap_or(now_ns));
            }
        }
        let excess = self.ended.len().saturating_sub(MAX_IMAGES);
        self.ended.drain(..excess);
        self.see_kernel_threads(walk.kernel_threads, walk.problem.is_none(), now_ns);
        self.last_look_ns = Some(now_ns);
    }

    fn end(&mut self, live: Live, end_ns: u64) {
        self.ended.push(GuestImage { end_ns: Some(end_ns), ..live.image });
    }

    /// Whether a process was found so long before `now_ns` that it hardly executes another program soon.
    pub(crate) fn is_settled(&self, pid: u32, start_ns: u64, now_ns: u64) -> bool {
        self.live.get(&(pid, start_ns)).is_some_and(|live| {
            let age_ns = now_ns.saturating_sub(live.first_seen_ns);
            // Between two programs it has no mappings.
            let is_whole = !live.image.mappings.is_empty() || LONG_NS < age_ns;
            is_whole && YOUNG_NS < age_ns
        })
    }

    /// Whether none is younger.
    pub(crate) fn are_settled(&self, now_ns: u64) -> bool {
        let is_old = self.last_new_ns.saturating_add(LONG_NS) < now_ns;
        let are_whole = || self.live.values().all(|live| !live.image.mappings.is_empty());
        is_old || self.last_new_ns.saturating_add(YOUNG_NS) < now_ns && are_whole()
    }

    /// The executable mappings of a process that was there at the last look.
    pub(crate) fn mappings(&self, pid: u32) -> Option<&[GuestMapping]> {
        let mut of_pid = self.live.range((pid, 0)..=(pid, u64::MAX));
        of_pid.next_back().map(|(_, live)| live.image.mappings.as_slice())
    }

    /// Whether only a walk over all tasks tells which process has some page tables.
    pub(crate) fn take_unsure(&mut self) -> bool {
        std::mem::take(&mut self.is_unsure)
    }

    /// Adds the new processes that a look found. All others stay as they were.
    pub(crate) fn see_new(
        &mut self,
        walk: Walk,
        now_ns: u64,
        mappings: impl FnMut(&Process, Option<u64>) -> Option<Mapped>,
    ) {
        // The oldest first.
        let mut processes = walk.processes;
        processes.reverse();
        let keys: BTreeSet<(u32, u64)> = processes.iter().map(|it| (it.pid, it.start_ns)).collect();
        let others = self.live.iter().filter(|(key, _)| !keys.contains(*key));
        let owned: BTreeSet<u64> = others.map(|(_, live)| live.image.cr3).collect();
        let n_found = processes.len();
        // It has its parent's page tables (vfork), or those of a process that has ended: a whole walk tells.
        processes.retain(|process| !owned.contains(&process.cr3));
        self.is_unsure = processes.len() < n_found;
        let problem = Some("only new processes were looked for");
        self.see(Walk { processes, problem, ..walk }, now_ns, mappings);
    }

    fn see_kernel_threads(&mut self, found: Vec<KernelThread>, is_whole: bool, now_ns: u64) {
        let keys: BTreeSet<_> = found.iter().map(|thread| (thread.tid, thread.stack)).collect();
        if is_whole {
            let gone = |key: &&(u32, u64)| !keys.contains(*key);
            let gone: Vec<_> = self.kernel_threads.keys().filter(gone).copied().collect();
            let gone = gone.iter().filter_map(|key| self.kernel_threads.remove(key));
            let end_ns = Some(now_ns);
            self.new_kernel_threads.extend(gone.map(|gone| GuestKernelThread { end_ns, ..gone }));
        }
        for thread in found {
            let key = (thread.tid, thread.stack);
            if self.kernel_threads.contains_key(&key) || MAX_OTHERS <= self.kernel_threads.len() {
                continue;
            }
            let thread = GuestKernelThread {
                tid: thread.tid,
                name: thread.name,
                stack: thread.stack,
                start_ns: self.last_look_ns,
                end_ns: None,
            };
            self.new_kernel_threads.push(thread.clone());
            self.kernel_threads.insert(key, thread);
        }
        let excess = self.new_kernel_threads.len().saturating_sub(MAX_OTHERS);
        self.new_kernel_threads.drain(..excess);
    }

    /// Images that began, changed or ended since they were reported; more than about so many bytes the next time.
    pub(crate) fn changes(&mut self, most_bytes: usize) -> Vec<GuestImage> {
        let mut bytes = 0;
        let mut has_room = |image: &GuestImage| {
            bytes += answer::encoded_image_bytes(image);
            bytes <= most_bytes
        };
        let n_ended = self.ended.iter().take_while(|image| has_room(image)).count();
        let mut changes: Vec<GuestImage> = self.ended.drain(..n_ended).collect();
        for live in self.live.values_mut().filter(|live| !live.is_reported) {
            if !has_room(&live.image) {
                break;
            }
            live.is_reported = true;
            changes.push(live.image.clone());
        }
        changes
    }

    /// Kernel threads that began or ended since the last call.
    pub(crate) fn kernel_thread_changes(&mut self) -> Vec<GuestKernelThread> {
        std::mem::take(&mut self.new_kernel_threads)
    }
}

impl Live {
    fn new(id: u32, process: &Process, start_ns: Option<u64>, mapped: Option<Mapped>) -> Self {
        let Mapped { mark, mappings } = mapped.unwrap_or(Mapped { mark: 0, mappings: Vec::new() });
        let image = GuestImage {
            id,
            pid: process.pid,
            name: process.name.clone(),
            cr3: process.cr3,
            start_ns,
            end_ns: None,
            threads: threads(process),
            mappings,
        };
        Self { image, is_reported: false, first_seen_ns: 0, mappings_mark: mark }
    }

    fn update(&mut self, process: &Process, mapped: Option<Mapped>) {
        let threads = with_ended(threads(process), &self.image.threads);
        if self.image.name != process.name || self.image.threads != threads {
            self.image.name.clone_from(&process.name);
            self.image.threads = threads;
            self.is_reported = false;
        }
        if let Some(Mapped { mark, mappings }) = mapped {
            self.mappings_mark = mark;
            if self.image.mappings != mappings && !mappings.is_empty() {
                self.image.mappings = mappings;
                self.is_reported = false;
            }
        }
    }
}

/// Threads that are there, and those that were, unless one that is there has the FS base by now.
fn with_ended(mut threads: Vec<GuestThread>, before: &[GuestThread]) -> Vec<GuestThread> {
    let taken: BTreeSet<u64> = threads.iter().map(|thread| thread.fs_base).collect();
    let tids: BTreeSet<u32> = threads.iter().map(|thread| thread.tid).collect();
    let ended = before.iter().filter(|thread| {
        !tids.contains(&thread.tid) && thread.fs_base != 0 && !taken.contains(&thread.fs_base)
    });
    threads.extend(ended.take(MAX_ENDED_THREADS).cloned());
    threads.sort_by_key(|thread| thread.tid);
    threads
}

fn threads(process: &Process) -> Vec<GuestThread> {
    let thread = |thread: &linux::tasks::Thread| GuestThread {
        tid: thread.tid,
        name: thread.name.clone(),
        fs_base: thread.fs_base,
    };
    process.threads.iter().map(thread).collect()
}

#[cfg(test)]
mod test {
    use linux::tasks::Thread;

    use super::*;

    fn process(pid: u32, start_ns: u64, cr3: u64) -> Process {
        let thread = Thread { tid: pid, name: "it".into(), fs_base: 0x7000, ..Thread::default() };
        Process {
            pid,
            start_ns,
            cr3,
            name: "it".into(),
            threads: vec![thread],
            ..Process::default()
        }
    }

    fn see(images: &mut Images, now_ns: u64, processes: &[Process]) {
        let walk = Walk { processes: processes.to_vec(), ..Walk::default() };
        images.see(walk, now_ns, |_, _| None);
    }

    /// What changed, as (process id, page tables, start, end).
    fn changes(images: &mut Images) -> Vec<(u32, u64, Option<u64>, Option<u64>)> {
        let changes = images.changes(usize::MAX).into_iter();
        changes.map(|image| (image.pid, image.cr3, image.start_ns, image.end_ns)).collect()
    }

    #[test]
    fn what_was_there_at_first_has_no_beginning() {
        let mut images = Images::default();
        see(&mut images, 100, &[process(1, 5, 0x1000), process(2, 6, 0x2000)]);
        assert_eq!(changes(&mut images), [(1, 0x1000, None, None), (2, 0x2000, None, None)]);
        see(&mut images, 200, &[process(1, 5, 0x1000), process(2, 6, 0x2000)]);
        assert_eq!(changes(&mut images), []);
    }

    #[test]
    fn who_takes_page_tables_over_has_them_from_the_look_before() {
        let mut images = Images::default();
        see(&mut images, 100, &[process(1, 5, 0x1000), process(2, 6, 0x2000)]);
        changes(&mut images);
        // 1 has ended, and 3 has its page tables; 2 has executed another program; 2 is another process by now.
        see(&mut images, 200, &[process(2, 6, 0x4000), process(3, 150, 0x1000)]);
        let first = [
            (1, 0x1000, None, Some(100)),
            (2, 0x2000, None, Some(200)),
            (2, 0x4000, Some(100), None),
            (3, 0x1000, Some(100), None),
        ];
        assert_eq!(changes(&mut images), first);
        see(&mut images, 300, &[process(2, 250, 0x4000), process(3, 150, 0x1000)]);
        let second = [(2, 0x4000, Some(100), Some(200)), (2, 0x4000, Some(200), None)];
        assert_eq!(changes(&mut images), second);
    }

    #[test]
    fn a_list_that_went_astray_ends_nothing() {
        let mut images = Images::default();
        see(&mut images, 100, &[process(1, 5, 0x1000), process(2, 6, 0x2000)]);
        changes(&mut images);
        let walk = Walk { problem: Some("astray"), ..Walk::default() };
        images.see(walk, 200, |_, _| None);
        assert_eq!(changes(&mut images), []);
        see(&mut images, 300, &[process(1, 5, 0x1000)]);
        assert_eq!(changes(&mut images), [(2, 0x2000, None, Some(300))]);
    }

    #[test]
    fn a_thread_that_ended_stays_until_another_has_its_fs_base() {
        let mut images = Images::default();
        let with = |threads: &[(u32, u64)]| {
            let thread = |(tid, fs_base): &(u32, u64)| Thread {
                tid: *tid,
                fs_base: *fs_base,
                ..Thread::default()
            };
            Process { threads: threads.iter().map(thread).collect(), ..process(1, 5, 0x1000) }
        };
        let tids = |images: &mut Images| -> Vec<u32> {
            let image = images.changes(usize::MAX).pop().unwrap();
            image.threads.iter().map(|thread| thread.tid).collect()
        };
        see(&mut images, 100, &[with(&[(1, 0x10), (2, 0x20)])]);
        assert_eq!(tids(&mut images), [1, 2]);
        see(&mut images, 200, &[with(&[(1, 0x10), (3, 0x30)])]);
        assert_eq!(tids(&mut images), [1, 2, 3]);
        see(&mut images, 300, &[with(&[(1, 0x10), (4, 0x20)])]);
        assert_eq!(tids(&mut images), [1, 3, 4]);
    }
}
