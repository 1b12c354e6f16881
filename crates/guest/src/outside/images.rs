//! What processes there were when, from one look at a guest's list of tasks after the other. Pure.
//!
//! ```text
//!   look    look    look
//!    | a b   | a c   | a c'      b ended and c began between two looks; c executed another program between the next two
//! ```
//! The time of an event between two looks is unknown. A process that began counts from the look before, and one that
//! ended until this look; where both had the same page tables, the older one counts until the look before. Samples say what
//! looks miss: a process that lived in between, and code that was mapped for a short time.

use std::collections::{BTreeMap, BTreeSet};

use api::guest::{
    GuestImage, GuestKernelThread, GuestMapping, GuestThread, MAX_IMAGES, MAX_OTHERS,
};
use linux::tasks::{KernelThread, Process, Walk, comm};
use model::{Cr3, GuestCode};

use crate::answer;

/// A process that is so young may be about to execute a program.
const YOUNG_NS: u64 = 300_000_000;
/// One that is older and has no mappings has none.
const LONG_NS: u64 = 5_000_000_000;

/// What a sample hit may be reported so long after its process ended.
const KEPT_NS: u64 = 10_000_000_000;

/// Threads of one process that are kept after their end.
const MAX_ENDED_THREADS: usize = 1 << 10;

/// Processes and kernel threads so far.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// By process id, and when it was made.
    live: BTreeMap<(u32, u64), Live>,
    /// Ended, by process id and page tables.
    ended: BTreeMap<(u32, u64), Ended>,
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
    /// Where functions of scripts are, which it does not map as code.
    scripts: Vec<GuestMapping>,
}

/// A process that was not there any more at the last look.
#[derive(Debug)]
struct Ended {
    image: GuestImage,
    is_reported: bool,
    /// No sample that hit it is reported later.
    kept_until_ns: u64,
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
                    self.last_new_ns = now_ns;
                    let live = match self.ended.remove(&(process.pid, process.cr3)) {
                        // A sample hit it before.
                        Some(seen) => Live::again(seen.image, &process, mapped),
                        None => Live::new(self.new_id(), &process, before_ns, mapped),
                    };
                    Live { first_seen_ns: now_ns, ..live }
                }
            };
            self.live.insert(key, live);
        }
        // A list that went astray says nothing about those that it lacks.
        if walk.problem.is_some() {
            for (key, live) in gone {
                if taken.contains(&live.image.cr3) {
                    self.end(live, before_ns.unwrap_or(now_ns), now_ns);
                } else if self.live.len() < MAX_IMAGES {
                    self.live.entry(key).or_insert(live);
                }
            }
        } else {
            for (_, live) in gone {
                let is_taken = taken.contains(&live.image.cr3);
                self.end(live, before_ns.filter(|_| is_taken).unwrap_or(now_ns), now_ns);
            }
        }
        self.ended.retain(|_, ended| !ended.is_reported || now_ns < ended.kept_until_ns);
        self.see_kernel_threads(walk.kernel_threads, walk.problem.is_none(), now_ns);
        self.last_look_ns = Some(now_ns);
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    fn end(&mut self, live: Live, end_ns: u64, now_ns: u64) {
        let image = GuestImage { end_ns: Some(end_ns), ..live.image };
        self.keep_ended(image, now_ns);
    }

    fn keep_ended(&mut self, image: GuestImage, now_ns: u64) {
        let key = (image.pid, image.cr3);
        if MAX_IMAGES <= self.ended.len() && !self.ended.contains_key(&key) {
            self.ended.pop_first();
        }
        let kept_until_ns = now_ns.saturating_add(KEPT_NS);
        self.ended.insert(key, Ended { image, is_reported: false, kept_until_ns });
    }

    /// Whether this task, thread and mapping are known already.
    pub(crate) fn has_code(&self, code: &GuestCode) -> bool {
        let cr3 = Cr3::new(code.cr3).base();
        let has = |image: &GuestImage| {
            let is_mapped = |it: &GuestMapping| it.start <= code.start && code.end <= it.end;
            image.cr3 == cr3
                && image.threads.iter().any(|thread| thread.tid == code.tid)
                && (code.end == 0 || image.mappings.iter().any(is_mapped))
        };
        let mut live = self.live.range((code.pid, 0)..=(code.pid, u64::MAX));
        live.any(|(_, live)| has(&live.image))
            || self
                .ended
                .get(&(code.pid, cr3))
                .is_some_and(|ended| ended.image.end_ns >= Some(code.time_ns) && has(&ended.image))
    }

    /// Adds a task that a sample hit, and what was mapped there.
    pub(crate) fn add_code(&mut self, code: &GuestCode, mapping: Option<GuestMapping>) {
        let cr3 = Cr3::new(code.cr3).base();
        let end_ns = code.time_ns.saturating_add(1);
        let name = comm(&code.comm);
        if cr3 == 0 {
            // Idle tasks are there from the first look on.
            if code.tid != 0 {
                let thread = (code.tid, name, code.stack);
                self.add_kernel_thread(thread, Some(code.time_ns));
            }
            return;
        }
        let thread = GuestThread { tid: code.tid, name, fs_base: code.fs_base };
        let of_process = (code.pid, 0)..=(code.pid, u64::MAX);
        if let Some((_, live)) =
            self.live.range_mut(of_process).find(|(_, live)| live.image.cr3 == cr3)
        {
            live.is_reported &= !add_part(&mut live.image, thread, mapping);
            return;
        }
        if let Some(ended) = self.ended.get_mut(&(code.pid, cr3)) {
            let has_news = add_part(&mut ended.image, thread, mapping);
            let end_ns = ended.image.end_ns.max(Some(end_ns));
            ended.is_reported &= !has_news && ended.image.end_ns == end_ns;
            ended.image.end_ns = end_ns;
            return;
        }
        let image = GuestImage {
            id: self.new_id(),
            pid: code.pid,
            name: thread.name.clone(),
            cr3,
            start_ns: Some(code.time_ns),
            end_ns: Some(end_ns),
            threads: vec![thread],
            mappings: mapping.into_iter().collect(),
        };
        self.keep_ended(image, code.time_ns);
    }

    /// Adds where functions of scripts are in a process.
    pub(crate) fn add_scripts(&mut self, pid: u32, cr3: u64, mappings: &[GuestMapping]) {
        let cr3 = Cr3::new(cr3).base();
        let mut live = self.live.range_mut((pid, 0)..=(pid, u64::MAX));
        if let Some((_, live)) = live.find(|(_, live)| live.image.cr3 == cr3) {
            live.scripts.extend_from_slice(mappings);
            live.image.mappings.extend_from_slice(mappings);
            live.is_reported = false;
        } else if let Some(ended) = self.ended.get_mut(&(pid, cr3)) {
            ended.image.mappings.extend_from_slice(mappings);
            ended.is_reported = false;
        }
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

    /// The executable mappings of a process, as far as looks and samples have found them. `cr3` tells which of the programs
    /// it is that the process has executed; 0: the last one.
    pub(crate) fn mappings(&self, pid: u32, cr3: u64) -> Option<&[GuestMapping]> {
        let cr3 = Cr3::new(cr3).base();
        let live = self.live.range((pid, 0)..=(pid, u64::MAX)).map(|(_, live)| &live.image);
        let mut live = live.rev().filter(|image| cr3 == 0 || image.cr3 == cr3);
        let ended = || self.ended.get(&(pid, cr3)).map(|ended| &ended.image);
        live.next().or_else(ended).map(|image| image.mappings.as_slice())
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
            self.add_kernel_thread((thread.tid, thread.name, thread.stack), self.last_look_ns);
        }
    }

    fn add_kernel_thread(&mut self, (tid, name, stack): (u32, String, u64), start_ns: Option<u64>) {
        if self.kernel_threads.contains_key(&(tid, stack))
            || MAX_OTHERS <= self.kernel_threads.len()
        {
            return;
        }
        let thread = GuestKernelThread { tid, name, stack, start_ns, end_ns: None };
        self.new_kernel_threads.push(thread.clone());
        self.kernel_threads.insert((tid, stack), thread);
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
        let mut changes = Vec::new();
        for ended in self.ended.values_mut().filter(|ended| !ended.is_reported) {
            if !has_room(&ended.image) {
                break;
            }
            ended.is_reported = true;
            changes.push(ended.image.clone());
        }
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
        Self {
            image,
            is_reported: false,
            first_seen_ns: 0,
            mappings_mark: mark,
            scripts: Vec::new(),
        }
    }

    /// One that is there although it was taken for ended.
    fn again(image: GuestImage, process: &Process, mapped: Option<Mapped>) -> Self {
        let image = GuestImage { end_ns: None, ..image };
        let mut live = Self {
            image,
            is_reported: false,
            first_seen_ns: 0,
            mappings_mark: 0,
            scripts: Vec::new(),
        };
        live.update(process, mapped);
        live
    }

    fn update(&mut self, process: &Process, mapped: Option<Mapped>) {
        let threads = with_ended(threads(process), &self.image.threads);
        if self.image.name != process.name || self.image.threads != threads {
            self.image.name.clone_from(&process.name);
            self.image.threads = threads;
            self.is_reported = false;
        }
        if let Some(Mapped { mark, mut mappings }) = mapped {
            self.mappings_mark = mark;
            if !mappings.is_empty() {
                mappings.extend_from_slice(&self.scripts);
            }
            if self.image.mappings != mappings && !mappings.is_empty() {
                self.image.mappings = mappings;
                self.is_reported = false;
            }
        }
    }
}

/// Adds a thread, and a mapping that none covers. Whether anything is new.
fn add_part(image: &mut GuestImage, thread: GuestThread, mapping: Option<GuestMapping>) -> bool {
    let is_new_thread = image.threads.iter().all(|known| known.tid != thread.tid);
    if is_new_thread {
        image.threads.push(thread);
    }
    let is_covered = |new: &GuestMapping| {
        let covers = |known: &GuestMapping| known.start <= new.start && new.end <= known.end;
        image.mappings.iter().any(covers)
    };
    let mapping = mapping.filter(|new| !is_covered(new));
    let is_new_mapping = mapping.is_some();
    image.mappings.extend(mapping);
    is_new_thread || is_new_mapping
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

    fn code(pid: u32, cr3: u64, time_ns: u64, comm: [u8; 16]) -> GuestCode {
        GuestCode { pid, tid: pid, cr3, time_ns, comm, ..GuestCode::default() }
    }

    fn mapping(start: u64, module: u32) -> GuestMapping {
        GuestMapping { start, end: start + 0x1000, offset: 0, module }
    }

    #[test]
    fn a_process_that_no_look_found_is_there_by_its_samples() {
        let mut images = Images::default();
        see(&mut images, 100, &[process(1, 5, 0x1000)]);
        changes(&mut images);
        let name = *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        images.add_code(&code(7, 0x7001, 150, name), Some(mapping(0x40_0000, 3)));
        images.add_code(&code(7, 0x7801, 160, name), Some(mapping(0x50_0000, 4)));
        let reported = images.changes(usize::MAX);
        let [image] = &reported[..] else { panic!("{reported:?}") };
        assert_eq!((image.pid, image.name.as_str(), image.cr3), (7, "sh", 0x6000));
        assert_eq!((image.start_ns, image.end_ns), (Some(150), Some(161)));
        assert_eq!(image.mappings, [mapping(0x40_0000, 3), mapping(0x50_0000, 4)]);
        // Known by now, and then more of it.
        let mapped = |start, time_ns| GuestCode {
            start,
            end: start + 0x1000,
            ..code(7, 0x7001, time_ns, name)
        };
        assert!(images.has_code(&mapped(0x40_0000, 155)));
        assert!(!images.has_code(&mapped(0x40_0000, 165)), "it was there longer");
        assert!(!images.has_code(&mapped(0x60_0000, 155)));
        images.add_code(&mapped(0x40_0000, 155), Some(mapping(0x40_0000, 3)));
        assert_eq!(changes(&mut images), []);
        images.add_code(&code(7, 0x7001, 170, name), None);
        assert_eq!(changes(&mut images), [(7, 0x6000, Some(150), Some(171))]);
        // A look finds it: it goes on under its number.
        see(&mut images, 200, &[process(1, 5, 0x1000), process(7, 140, 0x6000)]);
        let again = images.changes(usize::MAX);
        assert_eq!((again[0].id, again[0].end_ns, again[0].mappings.len()), (image.id, None, 2));
        // What was mapped shortly, and another thread.
        let other = GuestCode { tid: 8, ..code(7, 0x6000, 210, name) };
        images.add_code(&other, Some(mapping(0x60_0000, 5)));
        let more = images.changes(usize::MAX);
        assert_eq!((more[0].threads.len(), more[0].mappings.len()), (2, 3));
        // It is kept for late samples, and then forgotten.
        see(&mut images, 300, &[process(1, 5, 0x1000)]);
        assert_eq!(changes(&mut images), [(7, 0x6000, Some(150), Some(300))]);
        images.add_code(&code(7, 0x6000, 220, name), Some(mapping(0x70_0000, 6)));
        assert_eq!(changes(&mut images), [(7, 0x6000, Some(150), Some(300))]);
        see(&mut images, 300 + KEPT_NS, &[process(1, 5, 0x1000)]);
        assert!(images.ended.is_empty());
    }

    #[test]
    fn a_kernel_thread_that_no_look_found_is_there_by_its_samples() {
        let mut images = Images::default();
        let name = *b"kworker/0:1\0\0\0\0\0";
        for time_ns in [10, 20] {
            images.add_code(&GuestCode { stack: 0x4000, ..code(9, 0, time_ns, name) }, None);
        }
        images.add_code(&code(0, 0, 30, name), None);
        let threads = images.kernel_thread_changes();
        assert_eq!(threads.len(), 1);
        assert_eq!((threads[0].tid, threads[0].name.as_str()), (9, "kworker/0:1"));
        assert_eq!((threads[0].stack, threads[0].start_ns), (0x4000, Some(10)));
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
