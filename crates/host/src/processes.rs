//! Which process ran which code when: a scan of `/proc` brought up to date by side-band events.
//!
//! ```text
//!   scan      exec (comm, exec)     exit of the last thread
//!    |-- image of pid 7 --|-- image of pid 7 --|
//!             fork: the child's image begins as a copy of its parent's
//! ```

mod mappings;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use model::HostNs;

use crate::sideband::{Event, EventKind};
use crate::{procfs, tasks};

pub use mappings::{MappedFile, Mappings, ProcessMapping};

/// Mappings and threads of all processes that a log keeps at most; a path counts for as many as it has times 64 bytes.
const MAX_KEPT: usize = 1 << 20;
/// From here on processes with more than `MODEST` get no more: they shall not use up what others need.
const MAX_FOR_ALL: usize = MAX_KEPT / 2;
/// Mappings, or threads, of a process that is like any other.
const MODEST: usize = 512;

/// Bytes of `maps` that a scan reads of each process, whatever others have: `MODEST` lines and more.
const MODEST_MAPS: u64 = 128 << 10;
/// Bytes of `maps` that a scan reads of processes that have more.
const LONG_MAPS: u64 = 64 << 20;

/// A process from one exec to the next, or to its end.
#[derive(Debug, Clone, Default)]
pub struct ProcessImage {
    pub pid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// Valid from; `None`: before the log began.
    pub start: Option<HostNs>,
    /// Valid until; `None`: still there.
    pub end: Option<HostNs>,
    pub threads: BTreeMap<u32, String>,
    /// Its executable mappings.
    pub mappings: Mappings,
    /// It is one of the kernel's own threads.
    pub is_kernel_thread: bool,
    /// It is the process that `follow_command` named, or descends from it.
    pub is_of_command: bool,
}

/// All images of the host from the scan on.
#[derive(Debug, Default)]
pub struct ProcessLog {
    alive: BTreeMap<u32, Live>,
    ended: Vec<ProcessImage>,
    /// So many of them `forget_ended` has looked at.
    ended_and_hit: usize,
    files: HashSet<Arc<MappedFile>>,
    /// What is kept, or more: what has gone since is still counted.
    kept: usize,
    /// When `kept` is counted anew.
    count_at: usize,
    left_out: u64,
    command: Option<u32>,
}

#[derive(Debug)]
struct Live {
    image: ProcessImage,
    /// Threads that have not ended; the image ends with the last.
    running: BTreeSet<u32>,
    /// Threads that had ended when `forget_before` was called last.
    gone: BTreeSet<u32>,
}

impl ProcessLog {
    /// Scans `proc`. Side-band collection must have begun before, so that nothing falls in between.
    ///
    /// # Errors
    /// If `proc` itself can't be listed; processes that end while they are read are skipped.
    pub fn scan(proc: &Path) -> std::io::Result<Self> {
        let mut log = Self::default();
        let mut left = LONG_MAPS;
        for pid in procfs::numbered_entries(proc)? {
            let most = MODEST_MAPS.saturating_add(left).min(procfs::MAX_MAPS_BYTES);
            if let Ok((image, maps)) = read_with(&mut log.files, proc, pid, most) {
                left = left.saturating_sub(maps.bytes.saturating_sub(MODEST_MAPS));
                log.left_out += u64::from(maps.is_cut);
                log.insert_within_budget(image);
            }
        }
        Ok(log)
    }

    /// Marks this process and its descendants. Its fork must not have been applied yet.
    pub fn follow_command(&mut self, pid: u32) {
        self.command = Some(pid);
    }

    /// Takes the next event. Events that the scan has already seen change nothing.
    pub fn apply(&mut self, event: Event) {
        let time = HostNs(event.time_ns);
        match event.kind {
            EventKind::Fork { parent } => self.fork(event.pid, event.tid, parent, time),
            EventKind::Comm { name, exec: true } => self.exec(event.pid, name, time),
            EventKind::Comm { name, exec: false } => self.rename(event.pid, event.tid, name),
            EventKind::Map { start, length, offset, path, build_id } => {
                let end = start.saturating_add(length);
                self.map(event.pid, (start, end, offset), MappedFile { path, build_id });
            }
            EventKind::Exit => self.exit(event.pid, event.tid, time),
        }
        if self.count_at <= self.kept {
            self.count();
        }
    }

    /// Forgets processes that have ended since the last call and that `is_hit` denies: no sample refers to them.
    pub fn forget_ended(&mut self, is_hit: impl Fn(u32) -> bool) {
        let new = self.ended.split_off(self.ended_and_hit);
        self.ended.extend(new.into_iter().filter(|image| is_hit(image.pid)));
        self.ended_and_hit = self.ended.len();
        if MAX_FOR_ALL <= self.kept {
            // There may be room again.
            self.count_at = self.kept;
        }
    }

    /// Forgets what no record from `start` on can refer to: processes that ended before, and names of threads that had ended
    /// at the last call. Those that ended later are kept if `is_hit`.
    pub fn forget_before(&mut self, start: HostNs, is_hit: impl Fn(u32) -> bool) {
        self.ended.retain(|image| start < image.end.unwrap_or(HostNs::MAX));
        self.ended_and_hit = 0;
        self.forget_ended(is_hit);
        for Live { image, running, gone } in self.alive.values_mut() {
            image.threads.retain(|tid, _| running.contains(tid) || !gone.contains(tid));
            *gone = image.threads.keys().copied().filter(|tid| !running.contains(tid)).collect();
        }
    }

    /// Mappings and threads for which there was no room since the last call. What was not read of a process counts as one.
    pub fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// The images of the processes that `is_hit`, those still alive last.
    #[must_use]
    pub fn images(&self, is_hit: impl Fn(u32) -> bool) -> Vec<ProcessImage> {
        let alive = self.alive.values().map(|live| &live.image);
        self.ended.iter().chain(alive).filter(|image| is_hit(image.pid)).cloned().collect()
    }

    /// Every image seen, those still alive last.
    #[must_use]
    pub fn finish(mut self) -> Vec<ProcessImage> {
        self.ended.extend(self.alive.into_values().map(|live| live.image));
        self.ended
    }

    /// The name of a live process.
    #[must_use]
    pub fn name(&self, pid: u32) -> Option<&str> {
        self.alive.get(&pid).map(|live| live.image.name.as_str())
    }

    fn insert(&mut self, image: ProcessImage) {
        self.kept += image.threads.len();
        let running = image.threads.keys().copied().collect();
        self.alive.insert(image.pid, Live { image, running, gone: BTreeSet::new() });
    }

    fn insert_within_budget(&mut self, mut image: ProcessImage) {
        let mappings = image.mappings.len();
        if has_room(self.kept, mappings) {
            self.kept += mappings;
        } else {
            self.left_out += mappings as u64;
            image.mappings = Mappings::default();
        }
        self.insert(image);
    }

    fn fork(&mut self, pid: u32, tid: u32, parent: u32, time: HostNs) {
        if let Some(live) = self.alive.get_mut(&pid) {
            live.running.insert(tid);
            if has_room(self.kept, live.image.threads.len()) {
                let name = live.image.name.clone();
                live.image.threads.entry(tid).or_insert(name);
                self.kept += 1;
            } else {
                self.left_out += 1;
            }
            return;
        }
        let parent = self.alive.get_mut(&parent).map(|live| &mut live.image);
        // Only the kernel's threads make others. A program that one of them starts becomes a process by its exec.
        let mut image = ProcessImage { pid, start: Some(time), ..ProcessImage::default() };
        if let Some(parent) = parent {
            image.name.clone_from(&parent.name);
            image.mappings = parent.mappings.fork();
            image.is_kernel_thread = parent.is_kernel_thread;
            image.is_of_command = parent.is_of_command;
        }
        image.is_of_command |= self.command == Some(pid);
        image.threads.insert(tid, image.name.clone());
        self.insert(image);
    }

    /// Exec ends all threads but one, which takes the process's id.
    fn exec(&mut self, pid: u32, name: String, time: HostNs) {
        let is_of_command = self.alive.get(&pid).is_some_and(|live| live.image.is_of_command);
        self.close(pid, time);
        self.insert(ProcessImage {
            pid,
            threads: BTreeMap::from([(pid, name.clone())]),
            name,
            start: Some(time),
            is_of_command,
            ..ProcessImage::default()
        });
    }

    fn rename(&mut self, pid: u32, tid: u32, name: String) {
        let Some(live) = self.alive.get_mut(&pid) else { return };
        if pid == tid {
            live.image.name.clone_from(&name);
        }
        if let Some(known) = live.image.threads.get_mut(&tid) {
            *known = name;
        } else if has_room(self.kept, live.image.threads.len()) {
            live.image.threads.insert(tid, name);
            self.kept += 1;
        }
    }

    fn map(&mut self, pid: u32, (start, end, offset): (u64, u64, u64), file: MappedFile) {
        let Some(live) = self.alive.get_mut(&pid) else { return };
        if !has_room(self.kept, live.image.mappings.len()) {
            self.left_out += 1;
            return;
        }
        let file = share(&mut self.files, file);
        if live.image.mappings.push(ProcessMapping { start, end, offset, file: file.clone() }) {
            // Only a file without another mapping is new.
            let is_new = Arc::strong_count(&file) <= 3;
            self.kept += 1 + if is_new { weight(&file) } else { 0 };
        }
    }

    fn exit(&mut self, pid: u32, tid: u32, time: HostNs) {
        let Some(live) = self.alive.get_mut(&pid) else { return };
        live.running.remove(&tid);
        if live.running.is_empty() {
            self.close(pid, time);
        }
    }

    fn close(&mut self, pid: u32, time: HostNs) {
        if let Some(mut live) = self.alive.remove(&pid) {
            live.image.end = Some(time);
            self.ended.push(live.image);
        }
    }

    /// Counts what is kept.
    fn count(&mut self) {
        self.files.retain(|file| 1 < Arc::strong_count(file));
        let mut seen = HashSet::new();
        let images = self.alive.values().map(|live| &live.image).chain(&self.ended);
        let parts = images.map(|image| image.mappings.len_unseen(&mut seen) + image.threads.len());
        self.kept =
            parts.sum::<usize>() + self.files.iter().map(|file| weight(file)).sum::<usize>();
        self.count_at = MAX_FOR_ALL.max(self.kept + MAX_KEPT / 16);
    }
}

/// Whether a process that has `own` mappings, or threads, may get one more.
fn has_room(kept: usize, own: usize) -> bool {
    kept < if own < MODEST { MAX_KEPT } else { MAX_FOR_ALL }
}

fn weight(file: &MappedFile) -> usize {
    1 + file.path.len() / 64
}

/// The one that all share.
fn share(files: &mut HashSet<Arc<MappedFile>>, file: MappedFile) -> Arc<MappedFile> {
    if let Some(known) = files.get(&file) {
        return known.clone();
    }
    let file = Arc::new(file);
    files.insert(file.clone());
    file
}

/// A live process as it is now.
///
/// # Errors
/// If it has ended.
pub fn read(proc: &Path, pid: u32) -> std::io::Result<ProcessImage> {
    read_with(&mut HashSet::new(), proc, pid, MODEST_MAPS).map(|(image, _)| image)
}

fn read_with(
    files: &mut HashSet<Arc<MappedFile>>,
    proc: &Path,
    pid: u32,
    most: u64,
) -> std::io::Result<(ProcessImage, procfs::Maps)> {
    let directory = &proc.join(pid.to_string());
    let task = directory.join("task");
    let threads = procfs::numbered_entries(&task)?
        .into_iter()
        .filter_map(|tid| Some((tid, procfs::read_comm(&task.join(tid.to_string())).ok()?)))
        .collect();
    let mut maps = procfs::read_maps(directory, most)?;
    let mappings = std::mem::take(&mut maps.executable)
        .into_iter()
        .map(|entry| ProcessMapping {
            start: entry.start,
            end: entry.end,
            offset: entry.offset,
            file: share(files, MappedFile { path: entry.path, build_id: None }),
        })
        .collect();
    let name = procfs::read_comm(directory)?;
    let is_kernel_thread = tasks::is_kernel_thread(directory);
    let image =
        ProcessImage { pid, name, threads, mappings, is_kernel_thread, ..ProcessImage::default() };
    Ok((image, maps))
}

#[cfg(test)]
mod test {
    use super::*;

    fn event(time_ns: u64, pid: u32, tid: u32, kind: EventKind) -> Event {
        Event { time_ns, pid, tid, kind }
    }

    fn map(start: u64, path: &str) -> EventKind {
        EventKind::Map { start, length: 16, offset: 0, path: path.into(), build_id: None }
    }

    /// One line per image: `pid name start..end path,path thread,thread`.
    fn check(events: Vec<Event>, expected: &[&str]) {
        let mut log = ProcessLog::default();
        log.insert(ProcessImage {
            pid: 7,
            name: "sh".into(),
            threads: BTreeMap::from([(7, "sh".into())]),
            ..ProcessImage::default()
        });
        events.into_iter().for_each(|event| log.apply(event));
        let time = |t: Option<HostNs>| t.map_or("-".to_owned(), |t| t.0.to_string());
        let mut lines: Vec<String> = log
            .finish()
            .iter()
            .map(|i| {
                let paths: Vec<_> = i.mappings.iter().map(|m| m.file.path.as_str()).collect();
                let threads: Vec<_> = i.threads.iter().map(|(t, n)| format!("{t}={n}")).collect();
                let (start, end) = (time(i.start), time(i.end));
                let (paths, threads) = (paths.join(","), threads.join(","));
                format!("{} {} {start}..{end} {paths} {threads}", i.pid, i.name)
            })
            .collect();
        lines.sort();
        assert_eq!(lines, expected);
    }

    #[test]
    fn fork_exec_exit() {
        check(
            vec![
                event(5, 7, 7, map(0x1000, "/bin/sh")),
                event(5, 7, 7, map(0x1000, "/bin/sh")),
                event(10, 8, 8, EventKind::Fork { parent: 7 }),
                event(11, 8, 8, EventKind::Comm { name: "ls".into(), exec: true }),
                event(12, 8, 8, map(0x2000, "/bin/ls")),
                event(20, 8, 8, EventKind::Exit),
            ],
            &["7 sh -..- /bin/sh 7=sh", "8 ls 11..20 /bin/ls 8=ls", "8 sh 10..11 /bin/sh 8=sh"],
        );
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        check(
            vec![
                event(1, 7, 9, EventKind::Fork { parent: 7 }),
                event(2, 7, 9, EventKind::Comm { name: "worker".into(), exec: false }),
                event(3, 7, 7, EventKind::Exit),
                event(4, 7, 9, EventKind::Exit),
                event(5, 7, 7, EventKind::Exit), // unknown by now: nothing happens
            ],
            &["7 sh -..4  7=sh,9=worker"],
        );
    }

    #[test]
    fn descendants_of_the_command_are_marked() {
        let mut log = ProcessLog::default();
        log.insert(ProcessImage { pid: 1, ..ProcessImage::default() });
        log.follow_command(10);
        let exec = |name: &str| EventKind::Comm { name: name.to_owned(), exec: true };
        log.apply(event(5, 10, 10, EventKind::Fork { parent: 1 }));
        log.apply(event(6, 10, 10, exec("make")));
        log.apply(event(7, 11, 11, EventKind::Fork { parent: 10 }));
        log.apply(event(8, 10, 10, EventKind::Exit));
        log.apply(event(9, 12, 12, EventKind::Fork { parent: 11 }));
        log.apply(event(10, 12, 12, exec("cc1")));
        log.apply(event(11, 13, 13, EventKind::Fork { parent: 1 }));
        let images = log.images(|_| true);
        let marked = images.iter().filter(|image| image.is_of_command).map(|image| image.pid);
        // Each of 10 and 12 has an image before its exec, and one from then on.
        assert_eq!(marked.collect::<Vec<_>>(), [10, 10, 12, 11, 12]);
    }

    #[test]
    fn kernel_threads_are_the_kernels() {
        let mut log = ProcessLog::default();
        log.insert(ProcessImage { pid: 2, is_kernel_thread: true, ..ProcessImage::default() });
        log.insert(ProcessImage { pid: 7, name: "vhost-9".into(), ..ProcessImage::default() });
        for (pid, parent) in [(50, 2), (51, 2), (8, 7)] {
            log.apply(event(1, pid, pid, EventKind::Fork { parent }));
        }
        // A program that the kernel starts, such as modprobe.
        log.apply(event(2, 51, 51, EventKind::Comm { name: "modprobe".into(), exec: true }));
        let kernel: Vec<_> = log.images(|_| true).iter().map(|it| it.is_kernel_thread).collect();
        // By pid; what 51 was before its exec has ended.
        assert_eq!(kernel, [true, true, false, false, true, false]);
        assert!(!read(Path::new("/proc"), std::process::id()).unwrap().is_kernel_thread);
    }

    fn log_of(pids: std::ops::Range<u32>) -> ProcessLog {
        let mut log = ProcessLog::default();
        for pid in pids {
            log.apply(event(1, pid, pid, EventKind::Fork { parent: 0 }));
        }
        log
    }

    #[test]
    fn a_process_with_many_mappings_leaves_room_for_others() {
        let mut log = log_of(1..4);
        for n in 0..MAX_KEPT as u64 {
            log.apply(event(2, 1, 1, map(n << 12, "/tmp/bomb")));
        }
        log.apply(event(3, 2, 2, map(0x1000, "/bin/sh")));
        // What it passes on costs nothing, how often it may fork.
        for pid in 10..2000 {
            log.apply(event(4, pid, pid, EventKind::Fork { parent: 1 }));
            log.apply(event(5, pid, pid, EventKind::Exit));
        }
        log.apply(event(6, 3, 3, map(0x1000, "/bin/sh")));
        log.count();
        assert!(log.kept <= MAX_FOR_ALL + 4000, "{} kept", log.kept);
        let left_out = log.take_left_out();
        assert!(MAX_KEPT as u64 / 2 <= left_out + 10, "{left_out} left out");
        let others: Vec<_> =
            log.finish().into_iter().filter(|image| (2..4).contains(&image.pid)).collect();
        assert!(others.iter().all(|image| image.mappings.len() == 1));
    }

    #[test]
    fn processes_that_no_sample_hit_are_forgotten() {
        let mut log = log_of(1..6);
        log.apply(event(2, 2, 2, EventKind::Exit));
        log.apply(event(3, 3, 3, EventKind::Exit));
        log.forget_ended(|pid| pid == 3);
        log.apply(event(4, 4, 4, EventKind::Exit));
        log.forget_ended(|pid| pid == 5);
        let pids: Vec<_> = log.finish().iter().map(|image| image.pid).collect();
        assert_eq!(pids, [3, 1, 5]);
    }

    #[test]
    fn what_no_later_record_can_refer_to_is_forgotten() {
        let mut log = log_of(1..5);
        log.apply(event(2, 2, 2, EventKind::Exit));
        log.apply(event(3, 1, 11, EventKind::Fork { parent: 1 }));
        log.apply(event(4, 1, 11, EventKind::Exit));
        log.apply(event(12, 3, 3, EventKind::Exit));
        let shown = |log: &ProcessLog| -> Vec<(u32, usize)> {
            log.images(|_| true).iter().map(|image| (image.pid, image.threads.len())).collect()
        };
        assert_eq!(shown(&log), [(2, 1), (3, 1), (1, 2), (4, 1)]);
        assert_eq!(log.images(|pid| pid == 2).len(), 1);
        // A sample of the thread that has ended may still come.
        log.forget_before(HostNs(10), |pid| pid == 3);
        assert_eq!(shown(&log), [(3, 1), (1, 2), (4, 1)]);
        log.forget_before(HostNs(20), |_| true);
        assert_eq!(shown(&log), [(1, 1), (4, 1)]);
    }

    #[test]
    fn threads_without_end_have_a_budget_too() {
        let mut log = log_of(1..3);
        for tid in 10..2_000_000 {
            log.apply(event(2, 1, tid, EventKind::Fork { parent: 1 }));
            log.apply(event(2, 1, tid, EventKind::Exit));
        }
        log.apply(event(3, 2, 20, EventKind::Fork { parent: 2 }));
        let images = log.finish();
        assert!(images[0].threads.len() <= MAX_FOR_ALL);
        assert_eq!(images[1].threads.len(), 2);
    }
}
