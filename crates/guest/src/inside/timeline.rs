//! What processes were there when: from those alive before the log, the log's events, and those
//! alive after it. Pure.
//!
//! ```text
//!             fork               exec                 last thread's exit
//!  (nothing) ------> image of    -----> image of the  ------> (ended)
//!                    the parent         new program
//! ```
//!
//! What was reported once (`changes`) is reported again only if it changed: by the same id.
//!
//! A program's image is reported by its page tables, which an exec replaces and the kernel uses again
//! for others after the end: therefore the times.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use api::guest::{
    GuestImage, GuestKernelThread, GuestMapping, GuestThread, MAX_IMAGES, MAX_OTHERS,
};

use crate::answer;

/// Mappings of one image that are kept.
const MAX_MAPPINGS: usize = 1 << 14;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) time_ns: u64,
    /// The process (of a fork: the new one).
    pub(crate) pid: u32,
    /// The thread (of a fork: the new one).
    pub(crate) tid: u32,
    pub(crate) kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A process (`tid == pid`) or thread was made.
    Fork { parent: u32, name: String, cr3: Option<u64>, fs_base: u64 },
    /// It took a name; by exec: everything mapped after this belongs to the new program.
    Named { name: String, exec: bool },
    /// It mapped code.
    Mapped(GuestMapping),
    /// The exec is through: the new program's page tables.
    Exec { name: String, cr3: u64 },
    /// A thread ended.
    Exit { fs_base: u64 },
    /// A kernel thread ended, which had this stack since it was made.
    KernelExit { name: String, stack: u64, start_ns: u64 },
}

/// What processes there were and are. It forgets those that ended as soon as they are reported.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    live: HashMap<u32, Live>,
    /// Ended and not reported yet.
    done: Vec<GuestImage>,
    next_id: u32,
    /// When the log began.
    started_ns: u64,
    /// Those that ended and were not reported yet, in time order.
    ended_kernel_threads: VecDeque<GuestKernelThread>,
    /// Processes that the last call of `end_lost` did not find, by pid, with their ids.
    missing: HashMap<u32, u32>,
}

impl Timeline {
    /// Begins with the processes alive when the log began.
    pub(crate) fn begin(before: Vec<GuestImage>, started_ns: u64) -> Self {
        let mut timeline = Self { started_ns, ..Self::default() };
        for image in before {
            let id = timeline.new_id();
            timeline.live.insert(image.pid, Live::before(id, image));
        }
        timeline
    }

    /// Takes what happened next, in time order.
    pub(crate) fn follow(&mut self, events: Vec<Event>) {
        // Earlier ones are among those alive before, and not all of them were logged: the log's programs begin one after the
        // other.
        let is_logged = |event: &Event| self.started_ns <= event.time_ns;
        let events: Vec<Event> = events.into_iter().filter(is_logged).collect();
        events.into_iter().for_each(|event| self.apply(event));
        let excess = self.done.len().saturating_sub(MAX_IMAGES);
        self.done.drain(..excess);
    }

    /// Images that began, changed or ended since they were reported, those that ended first. Processes beyond about
    /// this many bytes are reported the next time.
    pub(crate) fn changes(&mut self, most_bytes: usize) -> Vec<GuestImage> {
        let mut bytes = 0;
        let mut has_room = |image: &GuestImage| {
            bytes += answer::encoded_image_bytes(image);
            bytes <= most_bytes
        };
        let n_done = self.done.iter().take_while(|image| has_room(image)).count();
        let mut changes: Vec<GuestImage> = self.done.drain(..n_done).collect();
        for (pid, live) in self.live.iter_mut().filter(|(_, live)| live.is_changed) {
            let image = live.clone().image(*pid, None);
            if !image.as_ref().is_none_or(&mut has_room) {
                break;
            }
            live.is_changed = false;
            changes.extend(image);
        }
        changes
    }

    /// Ends those that `is_there` did not find now and at the last call: their ends were lost. One that ends just now is
    /// still to be reported by the log.
    pub(crate) fn end_lost(&mut self, now_ns: u64, is_there: impl Fn(u32) -> bool) {
        let missing = self.live.iter().filter(|(pid, _)| !is_there(**pid));
        let missing: HashMap<u32, u32> = missing.map(|(pid, live)| (*pid, live.id)).collect();
        let before = std::mem::replace(&mut self.missing, missing);
        for (pid, id) in before {
            if self.missing.get(&pid) == Some(&id)
                && let Some(live) = self.live.remove(&pid)
            {
                self.missing.remove(&pid);
                self.done.extend(live.image(pid, Some(now_ns)));
            }
        }
    }

    /// What is not reported yet, and all that are alive at the end: `after`, whose `start_ns` is when each was made.
    /// More than `MAX_IMAGES` are cut off, the oldest ones first.
    pub(crate) fn end(mut self, after: Vec<GuestImage>, ended_ns: u64) -> Vec<GuestImage> {
        self.conclude(after, self.started_ns, ended_ns);
        let excess = self.done.len().saturating_sub(MAX_IMAGES);
        self.done.drain(..excess);
        self.done
    }

    /// Kernel threads to report: `alive` (`start_ns` is when each was created), and those that ended since the last call.
    /// More than `MAX_OTHERS` are cut off, first those that ended first.
    pub(crate) fn kernel_threads(
        &mut self,
        alive: Vec<GuestKernelThread>,
    ) -> Vec<GuestKernelThread> {
        let ended = std::mem::take(&mut self.ended_kernel_threads);
        let ended = ended.iter().rev();
        // Those that were alive when they were looked for, and ended before the log did.
        let gone: HashSet<_> = ended.clone().map(|thread| (thread.tid, thread.start_ns)).collect();
        let alive =
            alive.into_iter().filter(|thread| !gone.contains(&(thread.tid, thread.start_ns)));
        let made = |mut thread: GuestKernelThread| {
            thread.start_ns = thread.start_ns.filter(|made_ns| self.started_ns < *made_ns);
            thread
        };
        alive.chain(ended.cloned()).map(made).take(MAX_OTHERS).collect()
    }

    fn kernel_exit(&mut self, ended: GuestKernelThread) {
        if MAX_OTHERS <= self.ended_kernel_threads.len() {
            self.ended_kernel_threads.pop_front();
        }
        self.ended_kernel_threads.push_back(ended);
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }
}

/// A process that has not ended.
#[derive(Debug, Clone)]
struct Live {
    /// Of its image.
    id: u32,
    /// Since it was reported.
    is_changed: bool,
    start_ns: Option<u64>,
    name: String,
    page_tables: PageTables,
    threads: BTreeMap<u32, LiveThread>,
    mappings: Vec<GuestMapping>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageTables {
    /// Not reported yet: between the two events of an exec, or a fork that was only half seen.
    Unknown,
    /// Its parent's (vfork): not an image of its own.
    Borrowed,
    Own(u64),
}

#[derive(Debug, Clone)]
struct LiveThread {
    name: String,
    fs_base: u64,
    ended: bool,
}

impl Live {
    fn before(id: u32, image: GuestImage) -> Self {
        let thread = |thread: GuestThread| {
            let live = LiveThread { name: thread.name, fs_base: thread.fs_base, ended: false };
            (thread.tid, live)
        };
        Self {
            id,
            is_changed: true,
            start_ns: None,
            name: image.name,
            page_tables: PageTables::Own(image.cr3),
            threads: image.threads.into_iter().map(thread).collect(),
            mappings: image.mappings,
        }
    }

    /// A process that the log knows nothing of but its name.
    fn fresh(id: u32, tid: u32, name: String, start_ns: u64) -> Self {
        let thread = LiveThread { name: name.clone(), fs_base: 0, ended: false };
        Self {
            id,
            is_changed: true,
            start_ns: Some(start_ns),
            name,
            page_tables: PageTables::Unknown,
            threads: BTreeMap::from([(tid, thread)]),
            mappings: Vec::new(),
        }
    }

    fn image(self, pid: u32, end_ns: Option<u64>) -> Option<GuestImage> {
        let PageTables::Own(cr3) = self.page_tables else { return None };
        Some(GuestImage {
            id: self.id,
            pid,
            name: self.name,
            cr3,
            start_ns: self.start_ns,
            end_ns,
            threads: distinguished(Vec::new(), self.threads),
            mappings: self.mappings,
        })
    }

    /// A new mapping takes the place of what it covers.
    fn map(&mut self, new: GuestMapping) {
        self.is_changed = true;
        let mut kept = Vec::with_capacity(self.mappings.len() + 2);
        for old in self.mappings.drain(..) {
            if old.end <= new.start || new.end <= old.start {
                kept.push(old);
                continue;
            }
            if old.start < new.start {
                kept.push(GuestMapping { end: new.start, ..old.clone() });
            }
            if new.end < old.end {
                let offset = old.offset.wrapping_add(new.end - old.start);
                kept.push(GuestMapping { start: new.end, offset, ..old });
            }
        }
        if kept.len() < MAX_MAPPINGS {
            kept.push(new);
        }
        self.mappings = kept;
    }
}

/// The living threads, and those of the others that follow from them and each other. Threads
/// after each other may have one FS base (the C library uses stacks again): the last one is kept.
fn distinguished(living: Vec<GuestThread>, others: BTreeMap<u32, LiveThread>) -> Vec<GuestThread> {
    let mut taken: HashSet<u64> = living.iter().map(|thread| thread.fs_base).collect();
    let known: HashSet<u32> = living.iter().map(|thread| thread.tid).collect();
    let mut threads = living;
    for (tid, thread) in others.into_iter().rev().filter(|(tid, _)| !known.contains(tid)) {
        if thread.fs_base == 0 || taken.insert(thread.fs_base) {
            threads.push(GuestThread { tid, name: thread.name, fs_base: thread.fs_base });
        }
    }
    threads.sort_by_key(|thread| thread.tid);
    threads
}

impl Timeline {
    fn apply(&mut self, event: Event) {
        let Event { time_ns, pid, tid, kind } = event;
        match kind {
            EventKind::Fork { fs_base, .. } if pid != tid => self.new_thread(pid, tid, fs_base),
            EventKind::Fork { parent, name, cr3, fs_base } => {
                let mut child = Live::fresh(self.new_id(), pid, name, time_ns);
                if let Some(thread) = child.threads.get_mut(&pid) {
                    thread.fs_base = fs_base;
                }
                self.fork(time_ns, pid, child, parent, cr3);
            }
            EventKind::Named { name, exec: true } => self.exec(time_ns, pid, name, None),
            EventKind::Named { name, exec: false } => self.rename(pid, tid, name),
            EventKind::Mapped(mapping) => {
                if let Some(live) = self.live.get_mut(&pid) {
                    live.map(mapping);
                }
            }
            EventKind::Exec { name, cr3 } => match self.live.get_mut(&pid) {
                Some(live) if live.page_tables == PageTables::Unknown => {
                    live.page_tables = PageTables::Own(cr3);
                    live.is_changed = true;
                }
                _ => self.exec(time_ns, pid, name, Some(cr3)),
            },
            EventKind::Exit { fs_base } => self.exit(time_ns, pid, tid, fs_base),
            EventKind::KernelExit { name, stack, start_ns } => {
                let (start_ns, end_ns) = (Some(start_ns), Some(time_ns));
                self.kernel_exit(GuestKernelThread { tid, name, stack, start_ns, end_ns });
            }
        }
    }

    fn fork(&mut self, time_ns: u64, pid: u32, mut child: Live, parent: u32, cr3: Option<u64>) {
        // Made while the log began: it is among those alive before, too.
        if let Some(live) = self.live.get_mut(&pid)
            && live.start_ns.is_none()
            && cr3.is_none_or(|cr3| live.page_tables == PageTables::Own(cr3))
        {
            live.start_ns = Some(time_ns);
            live.is_changed = true;
            return;
        }
        let parent = self.live.get(&parent);
        if let Some(parent) = parent {
            if child.name.is_empty() {
                child.name.clone_from(&parent.name);
                for thread in child.threads.values_mut() {
                    thread.name.clone_from(&parent.name);
                }
            }
            child.mappings.clone_from(&parent.mappings);
        }
        child.page_tables = match (cr3, parent) {
            (Some(cr3), Some(parent)) if parent.page_tables == PageTables::Own(cr3) => {
                PageTables::Borrowed
            }
            (Some(cr3), _) => PageTables::Own(cr3),
            (None, _) => PageTables::Unknown,
        };
        // Without an event of its end: it was lost.
        if let Some(old) = self.live.insert(pid, child) {
            let was_reported = !old.is_changed;
            let old = old.image(pid, Some(time_ns));
            self.done.extend(old.filter(|old| was_reported || old.start_ns.is_some()));
        }
    }

    fn new_thread(&mut self, pid: u32, tid: u32, fs_base: u64) {
        if let Some(live) = self.live.get_mut(&pid) {
            let thread = LiveThread { name: live.name.clone(), fs_base, ended: false };
            live.threads.insert(tid, thread);
            live.is_changed = true;
        }
    }

    fn rename(&mut self, pid: u32, tid: u32, name: String) {
        let Some(live) = self.live.get_mut(&pid) else { return };
        live.is_changed = true;
        if let Some(thread) = live.threads.get_mut(&tid) {
            thread.name.clone_from(&name);
        }
        if pid == tid {
            live.name = name;
        }
    }

    fn exec(&mut self, time_ns: u64, pid: u32, name: String, cr3: Option<u64>) {
        let mut new = Live::fresh(self.new_id(), pid, name, time_ns);
        new.page_tables = cr3.map_or(PageTables::Unknown, PageTables::Own);
        if let Some(old) = self.live.insert(pid, new) {
            self.done.extend(old.image(pid, Some(time_ns)));
        }
    }

    fn exit(&mut self, time_ns: u64, pid: u32, tid: u32, fs_base: u64) {
        let Some(live) = self.live.get_mut(&pid) else { return };
        if let Some(thread) = live.threads.get_mut(&tid) {
            thread.ended = true;
            if fs_base != 0 {
                thread.fs_base = fs_base;
            }
        }
        if live.threads.values().all(|thread| thread.ended)
            && let Some(live) = self.live.remove(&pid)
        {
            self.done.extend(live.image(pid, Some(time_ns)));
        }
    }

    /// Joins what is left with the processes found alive at the end.
    fn conclude(&mut self, after: Vec<GuestImage>, started_ns: u64, ended_ns: u64) {
        let mut seen = HashSet::new();
        let mut alive = Vec::new();
        let mut after = after;
        // Of processes that share page tables (vfork), the older one owns them.
        after.sort_by_key(|image| image.start_ns);
        for image in after {
            let live = self.live.remove(&image.pid);
            if seen.insert(image.cr3) {
                alive.push(self.still_alive(image, live, started_ns, ended_ns));
            }
        }
        // Their end was lost.
        let mut lost: Vec<_> = self.live.drain().collect();
        lost.sort_by_key(|(pid, _)| *pid);
        let ended = |(pid, live): (u32, Live)| live.image(pid, Some(ended_ns));
        self.done.extend(lost.into_iter().filter_map(ended));
        self.done.extend(alive);
    }

    fn still_alive(
        &mut self,
        mut image: GuestImage,
        live: Option<Live>,
        started_ns: u64,
        ended_ns: u64,
    ) -> GuestImage {
        let made_ns = image.start_ns.filter(|made_ns| started_ns < *made_ns);
        let Some(live) = live else {
            image.id = self.new_id();
            image.start_ns = made_ns;
            return image;
        };
        match live.page_tables {
            PageTables::Own(cr3) if cr3 != image.cr3 => {
                // Its exec was lost: where the old program ends and the new one begins is unknown.
                image.id = self.new_id();
                image.start_ns = made_ns;
                let old = live.image(image.pid, Some(ended_ns));
                self.done.extend(old);
            }
            _ => {
                image.id = live.id;
                image.start_ns = live.start_ns;
                // It ended between the walk and the look at its mappings.
                if image.mappings.is_empty() {
                    image.mappings = live.mappings;
                }
                image.threads = distinguished(image.threads, live.threads);
            }
        }
        image
    }
}

#[cfg(test)]
#[path = "timeline_test.rs"]
mod test;
