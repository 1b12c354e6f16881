//! Starting other programs so that they can't outlive us.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use cli::{SIGHUP, SIGINT, SIGTERM, SignalFlag};
use rustix::process::{Pid, Signal};

use crate::error::Error;
use crate::progress::narrate;

/// How `cp` copies a folder for any user: all but the owner, which only root may set.
pub(crate) const COPY_TREE: [&str; 2] = ["-dR", "--preserve=mode,timestamps,links"];

/// Notes Ctrl-C and termination, so that everything can be ended in order.
pub(crate) fn catch_interrupts() -> io::Result<SignalFlag> {
    SignalFlag::catch(&[SIGINT, SIGTERM, SIGHUP])
}

/// A command for `program`, found in PATH or where Debian keeps the administrator's programs.
pub(crate) fn tool(program: &str, package: &'static str) -> Result<Command, Error> {
    find(program)
        .map(Command::new)
        .ok_or_else(|| Error::Missing { program: program.to_owned(), package })
}

/// Where `program` is.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Runs a command to its end and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>, Error> {
    let what = format!("running {}", command.get_program().to_string_lossy());
    let output = narrate(&what, || Command::output(command.stdin(Stdio::null())));
    let failed = |output: String| Error::Command { command: shown(command), output };
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => {
            Err(failed(last_lines(&output.stderr, 3).unwrap_or_else(|| output.status.to_string())))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Makes a folder into a disk image, with room for as much again as its third and 64 MiB.
pub(crate) fn disk(root: &Path, image: &Path) -> Result<(), Error> {
    let used = run(tool("du", "coreutils")?.arg("-skx").arg(root))?;
    let used_kib: u64 = String::from_utf8_lossy(&used)
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let size = format!("{}k", used_kib + used_kib / 3 + (64 << 10));
    let mut mke2fs = tool("mke2fs", "e2fsprogs")?;
    run(mke2fs
        .args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"])
        .arg(root)
        .arg(image)
        .arg(size))
    .map(drop)
}

fn shown(command: &Command) -> String {
    let words: Vec<OsString> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsString::from)
        .collect();
    words.join(" ".as_ref()).to_string_lossy().into_owned()
}

/// The last `n` lines that say something, joined by `; `.
pub(crate) fn last_lines(text: &[u8], n: usize) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(n)..];
    if tail.is_empty() { None } else { Some(tail.join("; ")) }
}

/// Only one child is started at a time: sockets meant for one must not reach another.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a child that is killed when the starting thread ends, that terminal signals don't reach, and
/// that inherits these sockets under the numbers they have here.
pub(crate) fn spawn_bound(command: &mut Command, inherited: Vec<OwnedFd>) -> io::Result<Child> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    for socket in &inherited {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
    }
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls may be made: this is one prctl, and an
    // error value that allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        })
    };
    command.spawn()
}

/// The child takes small pages only. A huge one for the stack of each of its threads adds up over many children.
pub(crate) fn without_huge_pages(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls may be made: this is one prctl, and an error value that
    // allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(rustix::thread::disable_transparent_huge_pages(true)?));
    }
}

/// Starts a child that is killed when the starting thread ends, and that terminal signals don't reach.
///
/// # Errors
/// When it can't be started.
pub fn spawn_bound_alone(command: &mut Command) -> io::Result<Child> {
    spawn_bound(command, Vec::new())
}

/// Signals the process group that `spawn_bound` made for this child.
pub(crate) fn signal_group(child_id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(child_id).ok().and_then(Pid::from_raw) {
        // It may be gone already; that is what is wanted.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Kills a child and its group, and waits for it.
pub(crate) fn end(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        signal_group(child.id(), Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A child that ends when dropped.
#[derive(Debug)]
pub(crate) struct Bound(pub(crate) Child);

impl Drop for Bound {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Why a kernel panicked and where it was, from its console; else the last lines there. An oops says where before the
/// panic, a watchdog after it.
pub(crate) fn last_words(console: &Path) -> String {
    let text = std::fs::read(console).unwrap_or_default();
    let lines = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = lines.lines().collect();
    let found = |lines: &[&str], word: &str| {
        let mut found = lines.iter().filter_map(|line| Some(&line[line.find(word)?..]));
        found.next().map(|line| line.trim_end().to_owned())
    };
    let panic = lines.iter().position(|line| line.contains("Kernel panic")).map(|at| {
        let (before, after) = lines.split_at(at);
        let oops = OOPS.iter().find_map(|word| found(before, word));
        let place = found(after, "RIP: ").or_else(|| found(before, "RIP: "));
        let said = [found(after, "Kernel panic"), oops, place];
        said.into_iter().flatten().collect::<Vec<_>>().join("; ")
    });
    panic.or_else(|| last_lines(&text, 6)).unwrap_or_else(|| "(nothing on its console)".to_owned())
}

/// How the first line of an oops begins.
const OOPS: [&str; 4] = ["BUG: ", "Oops: ", "int3: ", "general protection fault"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_what_a_kernel_said_last() {
        let console = tempfile::NamedTempFile::new().unwrap();
        let said = |text: &str| {
            std::fs::write(console.path(), text).unwrap();
            last_words(console.path())
        };
        assert_eq!(said(""), "(nothing on its console)");
        assert_eq!(said("one\ntwo\n"), "one; two");
        let panic =
            "[   48.5] Kernel panic - not syncing: softlockup: hung tasks\r\n[   48.5] RIP: 0010\n";
        assert_eq!(said(panic), "Kernel panic - not syncing: softlockup: hung tasks; RIP: 0010");
        let oops = "[ 1.0] BUG: unable to handle page fault for address: 0\n[ 1.0] Oops: 0002 [#1]\n\
                    [ 1.0] RIP: 0010:memset+0x1/0x2\nRIP: 0010:native_halt\nKernel panic: Fatal exception\n";
        let all = "Kernel panic: Fatal exception; BUG: unable to handle page fault for address: 0; \
                   RIP: 0010:memset+0x1/0x2";
        assert_eq!(said(oops), all);
    }
}
