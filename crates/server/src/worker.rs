//! The process that unpacks and reads a window, without privileges: whatever is in there costs that window.
//!
//! ```text
//!  server                                worker: the same program, started anew
//!    | -- exec: stdin = the window -------> |   confined to its folder; unpacks, opens
//!    | <-- stdout: what it is, or why not   |   (analyze: writes result tables into the folder)
//! ```
//! What it answers is checked as the window itself would be.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use analysis::results::SLICE_NS;
use model::{BootId, HostNs};
use recording::Recording;
use recording::window::{HostName, MAX_WINDOW_BYTES, UnpackError, unpack};
use rustix::process::Signal;
use sandbox::{FolderLimits, confine_to_folder};
use serde::{Deserialize, Serialize};

use crate::results;

/// First argument of a program that is to be a worker.
const ARGUMENT: &str = "worker";
/// Names in the worker's folder.
const WINDOW: &str = "window";
const TABLES: &str = "tables";
/// What it may take. A recording's tables and a slice of its samples have budgets of 1.3 GiB.
const LIMITS: FolderLimits =
    FolderLimits { memory_bytes: 3 << 30, cpu_seconds: 300, file_bytes: MAX_WINDOW_BYTES };
/// How long it may run, on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Bytes of its result tables.
const MAX_TABLES: u64 = 256 << 20;
/// Bytes of its answer.
const MAX_ANSWER: u64 = 1 << 16;
/// Lower than everything else of the machine: sampling and receiving go first.
const NICE: i32 = 10;

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Whether the window is one, and which.
    Check,
    /// That, and its result tables.
    Analyze,
    /// The same in slices of a second.
    Seconds,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Analyze => "analyze",
            Self::Seconds => "seconds",
        }
    }

    /// Length of the slices of its result tables.
    fn slice_ns(self) -> Option<u64> {
        match self {
            Self::Check => None,
            Self::Analyze => Some(SLICE_NS),
            Self::Seconds => Some(1_000_000_000),
        }
    }
}

/// What `recording.json` says of the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    boot: Option<String>,
    start_ns: u64,
    pub(crate) start_unix_ns: u64,
    pub(crate) end_ns: u64,
}

impl Facts {
    pub(crate) fn boot(&self) -> Option<BootId> {
        self.boot.as_ref()?.parse().ok()
    }

    pub(crate) fn start(&self) -> HostNs {
        HostNs(self.start_ns)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Ok(Facts),
    Refused(String),
    Failed(String),
}

/// Why a worker has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// The window is to blame.
    #[error("{0}")]
    Refused(String),
    /// Whose fault it is that the worker did not answer: the window's or this machine's.
    #[error("the process that reads the window {0}")]
    Ended(String),
    /// The machine is to blame.
    #[error("failed to read a window: {0}")]
    Failed(String),
    /// It was killed, or had no end: for lack of memory, on a machine that stood still, or by what the window made of it.
    #[error("the process that reads the window {0}")]
    Stopped(String),
}

impl From<io::Error> for WorkerError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What a worker found out; its tables are removed with it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) facts: Facts,
    folder: tempfile::TempDir,
}

impl Outcome {
    /// The folder with the tables.
    ///
    /// # Errors
    /// When there are none, or they are too large: whatever the window made of the worker, they are bounded.
    pub(crate) fn folder(&self) -> Result<PathBuf, WorkerError> {
        let folder = self.folder.path().join(TABLES);
        let mut bytes = 0;
        for (_, file) in results::tables() {
            bytes += folder.join(file).metadata()?.len();
        }
        if MAX_TABLES < bytes {
            return Err(WorkerError::Refused(format!("the results are too large: {bytes} bytes")));
        }
        Ok(folder)
    }

    /// The tables by name, each with its file's bytes.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn tables(&self) -> Result<Vec<(&'static str, Vec<u8>)>, WorkerError> {
        let folder = self.folder()?;
        results::tables().map(|(table, file)| Ok((table, fs::read(folder.join(file))?))).collect()
    }
}

/// Has a worker read the window in `file`, in a folder that it makes in `scratch`. Blocks.
/// `host`: the name under which the host that sent it is enrolled, whatever its recording says.
pub(crate) fn run(
    task: Task,
    host: &HostName,
    file: File,
    scratch: &Path,
) -> Result<Outcome, WorkerError> {
    let folder = tempfile::Builder::new().prefix("worker-").tempdir_in(scratch)?;
    let mut child = Command::new("/proc/self/exe")
        .args([ARGUMENT, task.name(), host.as_str()])
        .env_clear()
        .current_dir(folder.path())
        .stdin(Stdio::from(file))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let status = wait(&mut child)?;
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_ANSWER).read_to_end(&mut answer)?;
    }
    match serde_json::from_slice(&answer) {
        Ok(Reply::Ok(facts)) => Ok(Outcome { facts, folder }),
        Ok(Reply::Refused(reason)) => Err(WorkerError::Refused(shown(&reason))),
        Ok(Reply::Failed(reason)) => Err(WorkerError::Failed(shown(&reason))),
        Err(_) if was_stopped(status) => Err(WorkerError::Stopped(describe(status))),
        Err(_) => Err(WorkerError::Ended(describe(status))),
    }
}

/// An answer fits into the pipe, so the worker need not be read from before it ends.
fn wait(child: &mut std::process::Child) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    while began.elapsed() < MAX_TIME {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Whether it was ended from outside: by who stops the service, the kernel for lack of memory, or we after a time in
/// which it had too little of the CPU or the disk. Its own limits have other signals, that on CPU time among them.
fn was_stopped(status: Option<ExitStatus>) -> bool {
    const FROM_OTHERS: [Signal; 4] = [Signal::TERM, Signal::KILL, Signal::INT, Signal::HUP];
    let Some(status) = status else { return true };
    FROM_OTHERS.iter().any(|other| status.signal() == Some(other.as_raw()))
}

fn describe(status: Option<ExitStatus>) -> String {
    match status {
        None => format!("took more than {} s", MAX_TIME.as_secs()),
        Some(status) => format!("ended: {status}"),
    }
}

/// A reason may quote the window.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 500;
    text.chars().filter(|c| !model::is_unsafe(*c)).take(MAX_CHARS).collect()
}

/// Is a worker, if this process was started for that: a program's first call. `None`: it was not.
#[must_use]
pub(crate) fn serve() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let task = arguments.next()?;
    let tasks = [Task::Check, Task::Analyze, Task::Seconds];
    let task = tasks.into_iter().find(|known| task == known.name())?;
    let host = arguments.next()?.to_str()?.parse().ok()?;
    let reply = match work(task, &host) {
        Ok(facts) => Reply::Ok(facts),
        Err(WorkerError::Refused(reason)) => Reply::Refused(reason),
        Err(error) => Reply::Failed(error.to_string()),
    };
    let written = serde_json::to_writer(io::stdout().lock(), &reply);
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn work(task: Task, host: &HostName) -> Result<Facts, WorkerError> {
    if task == Task::Analyze {
        // Without the right to, it is as high as the others.
        let _ = rustix::process::nice(NICE);
    }
    confine_to_folder(Path::new("."), LIMITS).map_err(WorkerError::Failed)?;
    let window = PathBuf::from(WINDOW);
    unpack(io::stdin().lock(), &window, MAX_WINDOW_BYTES).map_err(|error| match error {
        UnpackError::Io(error) => WorkerError::Failed(format!("failed to unpack it: {error}")),
        refused => WorkerError::Refused(refused.to_string()),
    })?;
    let recording = Recording::open(&window).map_err(refused)?;
    if !recording.header.complete {
        return Err(WorkerError::Refused("the recording is not complete".to_owned()));
    }
    if let Some(slice_ns) = task.slice_ns() {
        fs::create_dir(TABLES)?;
        results::write(&recording, host, slice_ns, Path::new(TABLES)).map_err(refused)?;
    }
    let header = &recording.header;
    Ok(Facts {
        boot: header.boot.map(|boot| boot.to_string()),
        start_ns: header.start.0,
        start_unix_ns: header.start_unix_ns,
        end_ns: header.end.0,
    })
}

fn refused(error: recording::Error) -> WorkerError {
    match error {
        recording::Error::Io { .. } | recording::Error::NoSpace { .. } => {
            WorkerError::Failed(error.to_string())
        }
        error => WorkerError::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn replies_are_as_ever() {
        let boot = Some("00000000000000000000000000000007".to_owned());
        let facts = Facts { boot, start_ns: 1, start_unix_ns: 2, end_ns: 3 };
        let unknown = Facts { boot: None, ..facts.clone() };
        let replies = [
            Reply::Ok(facts),
            Reply::Ok(unknown),
            Reply::Refused("a reason".to_owned()),
            Reply::Failed("a reason".to_owned()),
        ];
        let lines = replies.iter().map(|reply| serde_json::to_string(reply).unwrap() + "\n");
        let golden = include_str!("../../../tests/golden/server/worker-replies.txt");
        assert_eq!(lines.collect::<String>(), golden);
    }
}
