//! Files: what the tasks looked at did with them, who waited for their locks, and what disks did for them.

use std::collections::{BTreeMap, BTreeSet};

use model::{FileKind, TraceFile, TraceStack};

use crate::findings::Findings;
use crate::timeline::files::{Content, FileNumber, FileUse, Requests, SocketUse, Waits};
use crate::timeline::{State, TaskId};
use crate::waits::split_stack;

/// The kernel function of the threads that write journals of file systems (ext4, ocfs2).
const JOURNAL_THREAD: &str = "kjournald2";

/// A file, and all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRow<'a> {
    /// Its row of the trace's tables; `None`: not known which file it was.
    pub file: Option<&'a TraceFile>,
    /// What the tasks looked at did.
    pub used: FileUse,
    /// What disks did for it, by requests of any task.
    pub requests: Requests,
}

/// Waits for a file's inode lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow<'a> {
    pub file: Option<&'a TraceFile>,
    pub waiter: TaskId,
    /// Who held it when the waits began; `None`: the lock does not say (readers hold it, or it was being handed over).
    pub holder: Option<TaskId>,
    pub waits: Waits,
}

/// What requests to disks held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestClass {
    /// Pages of files, and what tasks read or write past the page cache.
    Files,
    /// The same of files that are not known.
    UnknownFiles,
    Metadata,
    Journal,
    /// Blocks of the disk itself, which no file system marks: mostly its metadata.
    Blocks,
    /// Flushes and discards.
    NoData,
}

/// Files by time in their calls, then by bytes.
#[must_use]
pub fn files<'a>(findings: &Findings<'a>) -> Vec<FileRow<'a>> {
    let mut rows = BTreeMap::<FileNumber, (FileUse, Requests)>::new();
    let all = &findings.timeline.files;
    for ((task, file), used) in &all.uses {
        if findings.admits(*task) {
            rows.entry(*file).or_default().0.merge(used);
        }
    }
    for ((_, content), requests) in &all.requests {
        let Content::File(file) = content else { continue };
        match rows.get_mut(file) {
            Some(row) => row.1.merge(requests),
            // Others used it.
            None if !findings.is_everyone() => {}
            None => rows.entry(*file).or_default().1.merge(requests),
        }
    }
    let by_number = by_number(findings);
    let row = |(file, (used, requests)): (FileNumber, _)| FileRow {
        file: file.and_then(|number| by_number.get(&number).copied()),
        used,
        requests,
    };
    let mut rows: Vec<_> = rows.into_iter().map(row).collect();
    rows.sort_by_key(|row| {
        let bytes = row.used.reads.bytes + row.used.writes.bytes;
        std::cmp::Reverse((row.used.call_ns + row.used.lock.ns, bytes, row.used.pages_read_bytes))
    });
    rows
}

/// Waits for inode locks, most time first.
#[must_use]
pub fn lock_waits<'a>(findings: &Findings<'a>) -> Vec<LockRow<'a>> {
    let by_number = by_number(findings);
    let waits = findings.timeline.files.lock_waits.iter();
    let of_tasks = waits.filter(|((waiter, ..), _)| findings.admits(*waiter));
    let row =
        |(&(waiter, file, holder), &waits): (&(TaskId, FileNumber, Option<TaskId>), &Waits)| {
            let file = file.and_then(|number| by_number.get(&number).copied());
            LockRow { file, waiter, holder, waits }
        };
    let mut rows: Vec<_> = of_tasks.map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.waits.ns));
    rows
}

/// What requests of all tasks held. The sums are those of the machine's disks.
#[must_use]
pub fn requests(findings: &Findings<'_>) -> BTreeMap<RequestClass, Requests> {
    let journals = journal_threads(findings);
    let mut classes = BTreeMap::<RequestClass, Requests>::new();
    for ((maker, content), requests) in &findings.timeline.files.requests {
        let is_journal = || maker.is_some_and(|maker| journals.contains(&maker));
        let class = match content {
            Content::File(Some(_)) => RequestClass::Files,
            Content::Disk | Content::Metadata | Content::File(None) if is_journal() => {
                RequestClass::Journal
            }
            Content::File(None) => RequestClass::UnknownFiles,
            Content::Metadata => RequestClass::Metadata,
            Content::Disk => RequestClass::Blocks,
            Content::None => RequestClass::NoData,
        };
        classes.entry(class).or_default().merge(requests);
    }
    classes
}

/// What the tasks looked at sent and received, by task.
pub fn sockets<'a>(findings: &'a Findings<'_>) -> impl Iterator<Item = (TaskId, SocketUse)> + 'a {
    let all = findings.timeline.files.sockets.iter();
    all.filter(|(task, _)| findings.admits(**task)).map(|(task, used)| (*task, *used))
}

fn by_number<'a>(findings: &Findings<'a>) -> BTreeMap<u32, &'a TraceFile> {
    let machine = findings.timeline.machine;
    let rows = findings.tables.files.iter().filter(|file| file.machine == machine);
    rows.map(|file| (file.number, file)).collect()
}

/// The journal's threads, by the kernel function in which they slept: any program may choose their name.
fn journal_threads(findings: &Findings<'_>) -> BTreeSet<TaskId> {
    let (tables, timeline) = (findings.tables, findings.timeline);
    let is_journal = |name: &str| name == JOURNAL_THREAD;
    let of_machine = tables.stacks.iter().filter(|(machine, ..)| *machine == timeline.machine);
    let in_journal = of_machine.filter(|(.., names)| names.iter().any(|name| is_journal(name)));
    let stacks: BTreeSet<TraceStack> = in_journal.map(|(_, number, _)| *number).collect();
    let asleep = tables.tasks.iter().filter(|task| task.machine == timeline.machine);
    let found: BTreeSet<_> = asleep
        .filter(|task| task.asleep_in.as_deref().is_some_and(|it| split_stack(it).any(is_journal)))
        .map(|task| task.tid)
        .collect();
    let slept_there = |state: &State| match state {
        State::Asleep(sleep) => sleep.stack.is_some_and(|stack| stacks.contains(&stack)),
        _ => false,
    };
    let ids = (0..).map(TaskId).zip(&timeline.tasks).filter(|(_, task)| task.kernel);
    ids.filter(|(_, task)| {
        (task.before && found.contains(&task.tid))
            || task.segments.iter().any(|segment| slept_there(&segment.state))
    })
    .map(|(id, _)| id)
    .collect()
}

impl FileRow<'_> {
    /// Its path; else why there is none.
    #[must_use]
    pub fn label(&self) -> String {
        label(self.file)
    }
}

/// A file's path; else why there is none.
#[must_use]
pub fn label(file: Option<&TraceFile>) -> String {
    let Some(file) = file else { return "[unknown: not known which file]".to_owned() };
    let (major, minor) = (file.device >> 20, file.device & 0xf_ffff);
    match &file.path {
        Some(path) if file.links == 0 => format!("{path} (deleted)"),
        Some(path) if file.kind == FileKind::Folder => format!("{}/", path.trim_end_matches('/')),
        Some(path) => path.clone(),
        None if file.kind == FileKind::BlockDevice => format!("[blocks of disk {major}:{minor}]"),
        None => format!("[unknown: no name: inode {} of {major}:{minor}]", file.inode),
    }
}

impl RequestClass {
    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::UnknownFiles => "unknown files",
            Self::Metadata => "metadata",
            Self::Journal => "journal",
            Self::Blocks => "blocks of the disk",
            Self::NoData => "no data",
        }
    }
}
