//! System calls of single tasks, at little cost to all others.
//!
//! The tracepoints of system calls run their BPF programs for every task: an empty program makes a short call half as long
//! again. A perf event of one task costs others a test, whether perf has an event for them. So each traced task gets an event
//! for both tracepoints, its children inherit them, and a program on a function that perf calls for such tasks stores the
//! record (from Linux 6.6 on: the function has more arguments than programs could have before). The events only count. Where
//! another tool has attached a BPF program by perf, perf calls the function for every task.
//!
//! The kernel ends a task's events when it executes a program with other rights (setuid, setgid); see `Executions`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use model::{HostNs, Tid, TraceEvent, TraceEventKind};
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Tasks that get events of their own; those that they make inherit. For more the tracepoints are used.
const MAX_TASKS: usize = 512;

/// Numbers of the two trace events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventTypes {
    pub(crate) enter: u64,
    pub(crate) exit: u64,
}

impl EventTypes {
    /// As the kernel's tracefs has them, mounted or not.
    pub(crate) fn read() -> Option<Self> {
        Self::read_below(Path::new("/sys/kernel/tracing")).or_else(|| {
            let mount = detached_tracefs().ok()?;
            Self::read_below(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())))
        })
    }

    fn read_below(tracefs: &Path) -> Option<Self> {
        let number = |event: &str| {
            let file = tracefs.join("events/raw_syscalls").join(event).join("id");
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        Some(Self { enter: number("sys_enter")?, exit: number("sys_exit")? })
    }
}

/// A mount that no one else sees, which ends with its descriptor.
fn detached_tracefs() -> io::Result<OwnedFd> {
    let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&tracefs)?;
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(fsmount(&tracefs, FsMountFlags::FSMOUNT_CLOEXEC, read_only)?)
}

/// The events of tasks. Dropped, they end.
#[derive(Default)]
pub(crate) struct TaskEvents {
    events: Vec<Counter>,
    tasks: BTreeSet<u32>,
    late: LateForks,
}

impl TaskEvents {
    /// Opens events for those of `tasks` that have none of their own yet. Returns whether there were any. One that inherited
    /// them may get them twice: the program still runs once for each call.
    ///
    /// # Errors
    /// If the kernel refuses, or there are too many tasks. A task that ended meanwhile needs none.
    pub(crate) fn add(&mut self, types: EventTypes, tasks: BTreeSet<u32>) -> io::Result<bool> {
        const NO_SUCH_TASK: i32 = 3;
        let new: Vec<u32> = tasks.difference(&self.tasks).copied().collect();
        if MAX_TASKS < self.tasks.len() + new.len() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        allow_many_files();
        for &tid in &new {
            for number in [types.enter, types.exit] {
                match open(number, tid) {
                    Ok(event) => self.events.push(event),
                    Err(error) if error.raw_os_error() == Some(NO_SUCH_TASK) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.tasks.extend(&new);
        self.late.watch(&new);
        Ok(!new.is_empty())
    }

    /// Whether one of these events shows a task that may have none: the traced tasks must be looked at again.
    pub(crate) fn lacks_some(&mut self, events: &[TraceEvent]) -> bool {
        let mut lacks = false;
        for event in events {
            lacks |= self.late.is_late(event);
        }
        lacks
    }
}

/// Finds forks that began before their task had its events. The kernel copies a task's events early in a fork, and shows the
/// new task only at the end: a look at the tasks in between sees neither.
///
/// ```text
///  fork begins (no event yet)   the parent gets its events   a look: no child   child begins, without events
///  |                            |                            |                  |
/// ```
#[derive(Debug, Default)]
struct LateForks {
    /// Tasks that got events while they ran, and when they made their first call with them.
    first_calls: HashMap<Tid, Option<HostNs>>,
}

impl LateForks {
    fn watch(&mut self, tasks: &[u32]) {
        self.first_calls.extend(tasks.iter().map(|&tid| (Tid(tid), None)));
    }

    /// Events come in CPU by CPU, so a call may be seen before a fork that was earlier.
    fn is_late(&mut self, event: &TraceEvent) -> bool {
        match event.kind {
            TraceEventKind::SyscallEnter { task, .. } => {
                if let Some(first) = self.first_calls.get_mut(&task) {
                    *first = Some(first.map_or(event.time, |first| first.min(event.time)));
                }
                false
            }
            TraceEventKind::Fork { parent, kernel: false, .. } => {
                let first = self.first_calls.get(&parent);
                first.is_some_and(|first| first.is_none_or(|first| event.time < first))
            }
            _ => false,
        }
    }
}

impl std::fmt::Debug for TaskEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskEvents").field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

/// Each task takes two descriptors: many need more than the usual soft limit. The traced command has begun by now, with
/// the limit that it would have had.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening the events will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn open(number: u64, tid: u32) -> io::Result<Counter> {
    let tid = i32::try_from(tid).map_err(|_| io::ErrorKind::InvalidInput)?;
    Builder::new(Tracepoint::with_id(number))
        .observe_pid(tid)
        .any_cpu()
        .exclude_kernel(false)
        .exclude_hv(false)
        .inherit(true)
        .enabled(true)
        .build()
}

/// Finds programs that began and whose tasks then had no events any more: the end of the call that began them is missing.
///
/// ```text
///  call begins --> program begins --> call ends      all is well
///                                 \-> task ends, or the trace does: it had no events
/// ```
#[derive(Debug, Clone, Default)]
pub struct Executions {
    /// What tasks did, by time: it comes CPU by CPU, and a task that begins a program may move to another one.
    steps: BTreeMap<(HostNs, Tid), Step>,
    /// Tasks in a call that may begin a program, and whether it has.
    calling: HashMap<Tid, bool>,
    unseen: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Enter,
    Begin,
    Exit,
    End,
}

/// Steps that wait for earlier ones of other CPUs, and tasks in such calls.
const MAX_STEPS: usize = 1 << 16;

impl Executions {
    /// Takes the next event of a task's CPU.
    pub fn see(&mut self, event: &TraceEvent) {
        let (task, step) = match event.kind {
            TraceEventKind::SyscallEnter { task, number } if may_execute(number) => {
                (task, Step::Enter)
            }
            TraceEventKind::Exec { task, .. } => (task, Step::Begin),
            TraceEventKind::SyscallExit { task, number, .. } if may_execute(number) => {
                (task, Step::Exit)
            }
            TraceEventKind::Exit { task } => (task, Step::End),
            _ => return,
        };
        self.steps.insert((event.time, task), step);
        while MAX_STEPS < self.steps.len() {
            if let Some(((_, task), step)) = self.steps.pop_first() {
                self.take(task, step);
            }
        }
    }

    fn take(&mut self, task: Tid, step: Step) {
        match step {
            Step::Enter => {
                self.ended(task);
                // A guest may make up tasks.
                if self.calling.len() < MAX_STEPS {
                    self.calling.insert(task, false);
                }
            }
            Step::Begin => {
                self.calling.entry(task).and_modify(|has_begun| *has_begun = true);
            }
            Step::Exit => {
                self.calling.remove(&task);
            }
            Step::End => self.ended(task),
        }
    }

    fn ended(&mut self, task: Tid) {
        self.unseen += u64::from(self.calling.remove(&task) == Some(true));
    }

    /// How many so far, with those whose tasks are still there. All events must have been seen.
    #[must_use]
    pub fn unseen(&self) -> u64 {
        let mut all = self.clone();
        for ((_, task), step) in std::mem::take(&mut all.steps) {
            all.take(task, step);
        }
        all.unseen + all.calling.values().filter(|&&has_begun| has_begun).count() as u64
    }
}

/// `execve`, `execveat`, or any call of a 32-bit program.
fn may_execute(number: u16) -> bool {
    matches!(number, 59 | 322 | 0xffff)
}

#[cfg(test)]
mod test {
    use model::{MachineId, Pid, TaskName};

    use super::*;

    /// A word per event of task 7: `>N` begins call N, `<N` ends it, `exec`, `exit`.
    fn check(words: &str, expected: u64) {
        let mut executions = Executions::default();
        let task = Tid(7);
        // As from two CPUs: every other event comes first.
        let mut events = Vec::new();
        for (word, time) in words.split_whitespace().zip(1..) {
            let kind = match word.split_at(1) {
                (">", call) => TraceEventKind::SyscallEnter { task, number: call.parse().unwrap() },
                ("<", call) => {
                    let (number, failed) = (call.parse().unwrap(), false);
                    TraceEventKind::SyscallExit { task, number, failed }
                }
                _ if word == "exec" => TraceEventKind::Exec { task, name: TaskName::new(b"sh") },
                _ => TraceEventKind::Exit { task },
            };
            let (machine, cpu, time) = (MachineId::HOST, time % 2, HostNs(time.into()));
            events.push(TraceEvent { machine, cpu, time, kind });
        }
        events.sort_by_key(|event| event.cpu);
        events.iter().for_each(|event| executions.see(event));
        assert_eq!(executions.unseen(), expected, "{words}");
    }

    #[test]
    fn programs_whose_calls_are_not_seen() {
        check(">59 exec <59 >1 <1 exit", 0);
        check(">59 exec <65535 >65535 exit", 0);
        // It could not be executed.
        check(">59 <59 exit", 0);
        // A task without events before.
        check("exec exit", 0);
        check(">59 exec exit", 1);
        check(">322 exec", 1);
        check(">59 exec exit >59 exec <59 >59 exec exit", 2);
    }

    #[test]
    fn forks_that_began_without_events() {
        let at =
            |time, kind| TraceEvent { time: HostNs(time), machine: MachineId::HOST, cpu: 0, kind };
        let call = |time| at(time, TraceEventKind::SyscallEnter { task: Tid(7), number: 56 });
        let fork = |time, parent| {
            let (parent, child, pid) = (Tid(parent), Tid(9), Pid(9));
            at(time, TraceEventKind::Fork { parent, child, pid, kernel: false })
        };
        let check = |events: &[TraceEvent], expected| {
            let mut events_of_tasks = TaskEvents::default();
            events_of_tasks.late.watch(&[7]);
            assert_eq!(events_of_tasks.lacks_some(events), expected, "{events:?}");
        };
        check(&[call(1), fork(2, 7)], false);
        check(&[fork(2, 7)], true);
        check(&[fork(2, 7), call(3)], true);
        // Of another CPU.
        check(&[call(3), fork(2, 7)], true);
        check(&[call(3), call(1), fork(2, 7)], false);
        // It inherited its events.
        check(&[fork(2, 8)], false);
    }

    #[test]
    fn numbers_in_tracefs() {
        let tracefs = tempfile::tempdir().unwrap();
        let types =
            || EventTypes::read_below(tracefs.path()).map(|types| (types.enter, types.exit));
        assert_eq!(types(), None);
        for (event, id) in [("sys_enter", "377\n"), ("sys_exit", "376\n")] {
            let folder = tracefs.path().join("events/raw_syscalls").join(event);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("id"), id).unwrap();
        }
        assert_eq!(types(), Some((377, 376)));
    }
}
