//! The command of a trace, in the guest.
//!
//! ```text
//!  hold     vmscope-guest starts itself as `vmscope-guest held COMMAND...`: that task is there, and waits
//!  release  it becomes COMMAND
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The hidden subcommand of `vmscope-guest`.
pub const HELD: &str = "held";

/// A command, waiting or running. Dropped, it is killed with all that it started in its process group.
#[derive(Debug)]
pub(crate) struct TracedCommand {
    child: Child,
    /// Closed, it ends a command that still waits.
    gate: Option<ChildStdin>,
    output: File,
}

impl TracedCommand {
    /// Makes the command's task. What it writes goes to a file that has no name.
    pub(crate) fn hold(words: &[String]) -> io::Result<Self> {
        let output = nameless_file(Path::new("/tmp"))?;
        let mut child = Command::new("/proc/self/exe")
            .arg(HELD)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .process_group(0)
            .spawn()?;
        let gate = child.stdin.take();
        Ok(Self { child, gate, output })
    }

    pub(crate) fn task(&self) -> u32 {
        self.child.id()
    }

    /// Lets it begin its program; once.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        match self.gate.take() {
            Some(mut gate) => gate.write_all(b"\n"),
            None => Ok(()),
        }
    }

    /// Its exit code, when it has ended: as shells have it, 128 and the number of the signal that ended it.
    ///
    /// It stays a zombie, so that its process group's number is not reused.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.leader()?), look).ok().flatten()?;
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal))
    }

    fn leader(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// The end of its output, up to this many bytes.
    pub(crate) fn output(&mut self, at_most: usize) -> io::Result<Vec<u8>> {
        let length = self.output.metadata()?.len();
        self.output.seek(SeekFrom::Start(length.saturating_sub(at_most as u64)))?;
        let mut bytes = Vec::new();
        (&self.output).take(at_most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for TracedCommand {
    fn drop(&mut self) {
        if let Some(leader) = self.leader() {
            // The group may be empty.
            let _ = kill_process_group(leader, Signal::KILL);
        }
        // It was killed: this does not wait for long.
        let _ = self.child.wait();
    }
}

/// A file in `folder` that vanishes with its last descriptor.
fn nameless_file(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("vmscope-{}-{}", std::process::id(), super::now_ns()));
    let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// What the held task does: waits on its standard input, then becomes the command. Returns only when it can't.
pub fn become_command(words: &[String]) -> io::Error {
    let mut go = [0];
    if let Err(error) = io::stdin().read_exact(&mut go) {
        return error;
    }
    let Some((program, arguments)) = words.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    Command::new(program).args(arguments).stdin(Stdio::null()).exec()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn files_have_no_name_and_give_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = nameless_file(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let child = Command::new("sh")
            .args(["-c", "echo one; echo two; exit 3"])
            .stdout(file.try_clone().unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut command = TracedCommand { child, gate: None, output: file };
        assert_eq!(end_of(&command), 3);
        assert_eq!(command.output(100).unwrap(), b"one\ntwo\n");
        assert_eq!(command.output(4).unwrap(), b"two\n");
    }

    fn end_of(command: &TracedCommand) -> i32 {
        loop {
            match command.exit_code() {
                Some(code) => return code,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_command_that_ended_keeps_its_number() {
        let child = Command::new("sh").args(["-c", "kill -9 $$"]).process_group(0).spawn().unwrap();
        let place = format!("/proc/{}", child.id());
        let command = TracedCommand { child, gate: None, output: tempfile::tempfile().unwrap() };
        assert_eq!([end_of(&command), end_of(&command)], [137, 137]);
        assert!(
            Path::new(&place).exists(),
            "the number must not be reused before the group is killed"
        );
        drop(command);
        assert!(!Path::new(&place).exists());
    }

    #[test]
    fn dropping_a_command_ends_it() {
        let child =
            Command::new("sleep").arg("1000").stdin(Stdio::piped()).process_group(0).spawn();
        let child = child.unwrap();
        let id = child.id();
        let output = tempfile::tempfile().unwrap();
        let command = TracedCommand { child, gate: None, output };
        assert_eq!(command.exit_code(), None);
        drop(command);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
