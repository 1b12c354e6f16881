//! The command of a recording or a trace, while it runs.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use model::{MachineId, TraceTask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A command that outlives its recording gets SIGTERM, and may then take this long.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// Processes that it started may run this much longer.
const AFTER_IT: Duration = Duration::from_millis(200);

/// A command that has begun its program.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Readable when it has ended. Without it that is seen a little later.
    ended: Option<OwnedFd>,
}

/// How a command ended.
#[derive(Debug)]
pub enum Ended {
    Itself(ExitStatus),
    /// The recording ended first, and the command got SIGTERM: its processes that are still running.
    WithRecording(Vec<Process>),
}

/// The command's process, or one that came from it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: model::Pid,
    /// Readable when it has ended.
    ended: OwnedFd,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

impl Running {
    /// A program that has begun.
    #[must_use]
    pub fn new(child: Child) -> Self {
        let ended = end_of(child.id());
        Self { child, ended }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> model::Pid {
        model::Pid(self.child.id())
    }

    /// Whether it has ended by now.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Readable when it has ended.
    #[must_use]
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(AsFd::as_fd)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.ended {
            // It may end by itself just now: then there is nothing to signal.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    /// After the recording. It takes some seconds at most, whatever the command does with SIGTERM.
    #[must_use]
    pub fn finish(mut self, proc: &Path) -> Ended {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Ended::Itself(status);
        }
        // Afterwards their owner is unknown.
        let mut processes = processes(proc, self.child.id());
        self.signal(Signal::TERM);
        if let Some(ended) = &self.ended {
            has_ended_within(ended, LAST_WAIT);
        }
        // Should it have ended, it is gone now.
        let _ = self.child.try_wait();
        let deadline = Instant::now() + AFTER_IT;
        let left = || deadline.saturating_duration_since(Instant::now());
        processes.retain(|process| !has_ended_within(&process.ended, left()));
        Ended::WithRecording(processes)
    }
}

/// What a reader should know of processes that went on after SIGTERM.
#[must_use]
pub fn still_runs(left: &[Process]) -> Option<String> {
    let names: Vec<_> = left.iter().map(Process::to_string).collect();
    let names = names.join(", ");
    (!left.is_empty()).then(|| format!("of the command still run, though it got SIGTERM: {names}"))
}

/// A process and all that came from it.
fn processes(proc: &Path, first: u32) -> Vec<Process> {
    let tasks = host::tasks::snapshot(proc, MachineId::HOST).unwrap_or_default();
    let mut family = BTreeSet::from([model::Pid(first)]);
    // A child's number may be lower than its parent's.
    while let Some(child) =
        tasks.iter().find(|task| family.contains(&task.parent) && !family.contains(&task.pid))
    {
        family.insert(child.pid);
    }
    let is_of_family = |task: &&TraceTask| task.tid.0 == task.pid.0 && family.contains(&task.pid);
    let process = |task: &TraceTask| {
        let ended = end_of(task.pid.0)?;
        Some(Process { name: task.name.clone(), pid: task.pid, ended })
    };
    tasks.iter().filter(is_of_family).filter_map(process).collect()
}

fn end_of(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn has_ended_within(process: &OwnedFd, time: Duration) -> bool {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let ready = poll(&mut ends, Timespec::try_from(time).ok().as_ref());
    ready.is_ok_and(|ready| 0 < ready)
}

#[cfg(test)]
mod test {
    use super::*;
    use std::process::Command;

    fn running(script: &str) -> Running {
        Running::new(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    #[test]
    fn ends_by_itself_or_with_the_recording() {
        let mut command = running("exit 3");
        while !command.has_ended() {
            std::thread::yield_now();
        }
        let ended = command.finish(Path::new("/proc"));
        assert!(matches!(ended, Ended::Itself(status) if status.code() == Some(3)));
        let mut command = running("exec sleep 600");
        assert!(!command.has_ended());
        let ended = command.finish(Path::new("/proc"));
        assert!(matches!(&ended, Ended::WithRecording(left) if left.is_empty()), "{ended:?}");
    }

    /// Its end is not waited for without a limit.
    #[test]
    fn a_command_that_ignores_sigterm_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let begun = dir.path().join("begun");
        let script =
            format!("trap '' TERM; touch {}; while :; do sleep 600; done", begun.display());
        let command = running(&script);
        while !begun.exists() {
            std::thread::yield_now();
        }
        let Ended::WithRecording(left) = command.finish(Path::new("/proc")) else {
            panic!("by itself")
        };
        let text = still_runs(&left).unwrap();
        assert!(text.contains("though it got SIGTERM: sh ("), "{text}");
        for process in &left {
            pidfd_send_signal(&process.ended, Signal::KILL).unwrap();
        }
    }

    #[test]
    fn what_it_leaves_behind_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let begun = dir.path().join("begun");
        let command = running(&format!("sleep 600 & touch {}; wait", begun.display()));
        while !begun.exists() {
            std::thread::yield_now();
        }
        let Ended::WithRecording(left) = command.finish(Path::new("/proc")) else {
            panic!("by itself")
        };
        let [sleep] = &left[..] else { panic!("{left:?}") };
        assert_eq!(sleep.to_string(), format!("sleep ({})", sleep.pid));
        pidfd_send_signal(&sleep.ended, Signal::KILL).unwrap();
    }
}
