//! Which process ran which code when: a scan of `/proc` brought up to date by side-band events.
//!
//! ```text
//!   scan      exec (comm, exec)     exit of the last thread
//!    |-- image of pid 7 --|-- image of pid 7 --|
//!             fork: the child's image begins as a copy of its parent's
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::{BuildId, HostNs};

use crate::procfs;
use crate::sideband::{Event, EventKind};

/// A process from one exec to the next, or to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessImage {
    /// Process id.
    pub pid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// Valid from; `None`: before the log began.
    pub start: Option<HostNs>,
    /// Valid until; `None`: still there.
    pub end: Option<HostNs>,
    /// Its threads' names.
    pub threads: BTreeMap<u32, String>,
    /// Its executable mappings, in the order they were made: a later one hides an earlier one.
    pub mappings: Vec<ProcessMapping>,
}

/// An executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessMapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    /// Path as the process sees it, `[vdso]`, or empty for anonymous memory.
    pub path: String,
    /// Build id, when the kernel told it.
    pub build_id: Option<BuildId>,
}

/// All images of the host from the scan on.
#[derive(Debug, Default)]
pub struct ProcessLog {
    alive: BTreeMap<u32, Live>,
    ended: Vec<ProcessImage>,
}

#[derive(Debug)]
struct Live {
    image: ProcessImage,
    /// Threads that have not ended; the image ends with the last.
    running: BTreeSet<u32>,
}

impl ProcessLog {
    /// Scans `proc`. Side-band collection must have begun before, so that nothing falls in between.
    ///
    /// # Errors
    /// If `proc` itself can't be listed; processes that end meanwhile are passed over.
    pub fn scan(proc: &Path) -> std::io::Result<Self> {
        let mut log = Self::default();
        for pid in procfs::numbered_entries(proc)? {
            if let Ok(image) = read(proc, pid) {
                log.insert(image);
            }
        }
        Ok(log)
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
                self.map(event.pid, ProcessMapping { start, end, offset, path, build_id });
            }
            EventKind::Exit => self.exit(event.pid, event.tid, time),
        }
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
        let running = image.threads.keys().copied().collect();
        self.alive.insert(image.pid, Live { image, running });
    }

    fn fork(&mut self, pid: u32, tid: u32, parent: u32, time: HostNs) {
        if let Some(live) = self.alive.get_mut(&pid) {
            let name = live.image.name.clone();
            live.image.threads.entry(tid).or_insert(name);
            live.running.insert(tid);
            return;
        }
        let parent = self.alive.get(&parent).map(|live| &live.image);
        let name = parent.map(|image| image.name.clone()).unwrap_or_default();
        self.insert(ProcessImage {
            pid,
            threads: BTreeMap::from([(tid, name.clone())]),
            name,
            start: Some(time),
            end: None,
            mappings: parent.map(|image| image.mappings.clone()).unwrap_or_default(),
        });
    }

    /// Exec ends all threads but one, which takes the process's id.
    fn exec(&mut self, pid: u32, name: String, time: HostNs) {
        self.close(pid, time);
        self.insert(ProcessImage {
            pid,
            threads: BTreeMap::from([(pid, name.clone())]),
            name,
            start: Some(time),
            ..ProcessImage::default()
        });
    }

    fn rename(&mut self, pid: u32, tid: u32, name: String) {
        let Some(live) = self.alive.get_mut(&pid) else { return };
        if pid == tid {
            live.image.name.clone_from(&name);
        }
        live.image.threads.insert(tid, name);
    }

    fn map(&mut self, pid: u32, mapping: ProcessMapping) {
        let Some(live) = self.alive.get_mut(&pid) else { return };
        let known = |m: &ProcessMapping| {
            (m.start, m.end, m.offset, &m.path)
                == (mapping.start, mapping.end, mapping.offset, &mapping.path)
        };
        if !live.image.mappings.iter().any(known) {
            live.image.mappings.push(mapping);
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
}

/// A live process as it is now.
///
/// # Errors
/// If it has ended.
pub fn read(proc: &Path, pid: u32) -> std::io::Result<ProcessImage> {
    let directory = &proc.join(pid.to_string());
    let task = directory.join("task");
    let threads = procfs::numbered_entries(&task)?
        .into_iter()
        .filter_map(|tid| Some((tid, procfs::read_comm(&task.join(tid.to_string())).ok()?)))
        .collect();
    let mappings = procfs::read_maps(directory)?
        .into_iter()
        .map(|entry| ProcessMapping {
            start: entry.start,
            end: entry.end,
            offset: entry.offset,
            path: entry.path,
            build_id: None,
        })
        .collect();
    let name = procfs::read_comm(directory)?;
    Ok(ProcessImage { pid, name, threads, mappings, ..ProcessImage::default() })
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
                let paths: Vec<_> = i.mappings.iter().map(|m| m.path.as_str()).collect();
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
}
