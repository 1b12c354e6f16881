//! The command of a trace: its task is there before its program begins, so that probes and filters know it.
//!
//! ```text
//!  hold     fork; the new task says its number and waits            (in a thread: spawning ends with the exec)
//!  release  the new task goes on and executes the program, or says why it can't
//! ```

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use model::Tid;

/// A command that waits for its release. Dropped, it ends without having begun its program.
#[derive(Debug)]
pub(super) struct HeldCommand {
    pub(super) task: Tid,
    go: PipeWriter,
    spawning: JoinHandle<io::Result<Child>>,
}

impl HeldCommand {
    /// Makes the task of a command.
    ///
    /// # Errors
    /// When no task can be made.
    pub(super) fn hold(program: &str, arguments: &[String]) -> io::Result<Self> {
        let (waiting, go) = pipe()?;
        let (mut reported, report) = pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        let mut gate = Gate { report, waiting, go: go.as_raw_fd() };
        // SAFETY: between fork and exec it makes system calls on its own descriptors, and nothing else.
        unsafe { command.pre_exec(move || gate.pass()) };
        let spawning = std::thread::Builder::new().spawn(move || command.spawn())?;
        let mut task = [0; 4];
        if reported.read_exact(&mut task).is_err() {
            // No task was made: the thread knows why.
            let spawned = join(spawning);
            return Err(spawned.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Self { task: Tid(u32::from_ne_bytes(task)), go, spawning })
    }

    /// Lets it begin its program.
    ///
    /// # Errors
    /// When the program can't be executed.
    pub(super) fn release(mut self) -> io::Result<Child> {
        self.go.write_all(&[1])?;
        drop(self.go);
        join(self.spawning)
    }
}

fn join(spawning: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawning.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it ended")))
}

/// The new task's side.
struct Gate {
    report: PipeWriter,
    waiting: PipeReader,
    /// The new task's copy of the other side: open, it would keep `waiting` from ending with vmscope.
    go: RawFd,
}

impl Gate {
    fn pass(&mut self) -> io::Result<()> {
        // SAFETY: this process' own copy, which has no other user.
        unsafe { rustix::io::close(self.go) };
        let task = rustix::process::getpid().as_raw_nonzero().get();
        self.report.write_all(&task.to_ne_bytes())?;
        self.waiting.read_exact(&mut [0])
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn hold(words: &[&str]) -> HeldCommand {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        HeldCommand::hold(&words[0], &words[1..]).unwrap()
    }

    #[test]
    fn waits_for_its_release() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made");
        let held = hold(&["touch", file.to_str().unwrap()]);
        let (task, name) = (held.task.0, std::fs::read_to_string("/proc/self/comm").unwrap());
        let comm = std::fs::read_to_string(format!("/proc/{task}/comm")).unwrap();
        assert!(!name.is_empty() && comm != "touch\n" && !file.exists());
        let mut child = held.release().unwrap();
        assert_eq!(child.id(), task);
        assert!(child.wait().unwrap().success() && file.exists());
    }

    #[test]
    fn says_why_it_can_not_be_executed() {
        let error = hold(&["/no/such/program"]).release().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn dropped_it_ends_without_its_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made");
        let HeldCommand { go, spawning, .. } = hold(&["touch", file.to_str().unwrap()]);
        drop(go);
        assert!(join(spawning).is_err());
        assert!(!file.exists());
    }
}
