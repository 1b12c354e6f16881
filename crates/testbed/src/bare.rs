//! A program that boots with no operating system, in QEMU: started, listened to on its debug port (0xe9), ended.
//!
//! It needs no virtual host: with emulation it runs anywhere, with KVM wherever that really runs guests, be it this
//! machine or the virtual host.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use cli::SignalFlag;

use crate::error::Error;
use crate::exec::FOLDER_VARIABLE;
use crate::process::{self, Bound};
use crate::qemu::{self, Disk, LoneMachine};

/// How often signals and limits are looked at while nothing is said.
const TICK: Duration = Duration::from_millis(100);
/// How long QEMU may take to end after it closed the line.
const TO_END: Duration = Duration::from_secs(10);
/// A line is handed on at this length, ended or not.
const LINE_BYTES: u64 = 1 << 16;
/// What a disk seems to hold; it takes no room.
const DISK_BYTES: u64 = 64 << 20;

/// The machine that a program boots on.
#[derive(Debug, Clone)]
pub struct Bare {
    /// The program: an ELF file that QEMU can boot.
    pub image: PathBuf,
    pub command_line: String,
    pub accelerator: Accelerator,
    pub cpus: u32,
    pub memory_mib: u32,
}

/// What runs the CPU of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU's emulation.
    Emulation,
    /// The same, with time that counts instructions: runs come out alike.
    Deterministic,
    Kvm,
}

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For everything.
    pub whole: Duration,
    /// From one line to the next.
    pub silence: Duration,
}

/// How a machine's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareEnd {
    /// It switched itself off, or started again.
    Ended,
    /// It said nothing for too long.
    Silent,
    /// The whole time was over.
    TimeLimit,
    /// The listener had heard enough.
    Left,
}

/// What a listener wants after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// The next.
    On,
    /// No more: the machine is ended.
    Enough,
}

/// Whether this process runs in a testbed, whose KVM needs no trial.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(FOLDER_VARIABLE).is_some()
}

/// Boots a machine with one empty disk of each kind (ATA, virtio, NVMe) and hands on each line of its debug port.
/// Whatever ends this, nothing of it stays.
///
/// # Errors
/// QEMU is missing or refuses; or the user interrupts.
pub fn boot_bare(
    machine: &Bare,
    patience: Patience,
    hear: &mut dyn FnMut(&[u8]) -> Listen,
) -> Result<BareEnd, Error> {
    let failed = |error: std::io::Error| Error::Bare { problem: format!("did not start: {error}") };
    let interrupts = process::catch_interrupts().map_err(failed)?;
    let folder =
        tempfile::tempdir().map_err(Error::io("create a folder in", &std::env::temp_dir()))?;
    let log = folder.path().join("log");
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(qemu::program()?);
    let disks = disks(folder.path())?;
    command.args(LoneMachine { machine, disks: &disks, lines: theirs.as_raw_fd() }.arguments());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&log).map_err(Error::io("create", &log))?);
    let child = process::spawn_bound(&mut command, vec![theirs.into()]).map_err(failed)?;
    let mut qemu = Bound(child);
    let end = listen(&lines(ours), patience, &interrupts, hear)?;
    if end == BareEnd::Ended {
        refused(&mut qemu, &log)?;
    }
    Ok(end)
}

fn listen(
    lines: &Receiver<Vec<u8>>,
    patience: Patience,
    interrupts: &SignalFlag,
    hear: &mut dyn FnMut(&[u8]) -> Listen,
) -> Result<BareEnd, Error> {
    let start = Instant::now();
    let mut last = start;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                last = Instant::now();
                if hear(&line) == Listen::Enough {
                    return Ok(BareEnd::Left);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(BareEnd::Ended),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupts.take() {
            return Err(Error::Interrupted);
        }
        if patience.whole < start.elapsed() {
            return Ok(BareEnd::TimeLimit);
        }
        if patience.silence < last.elapsed() {
            return Ok(BareEnd::Silent);
        }
    }
}

/// An error if QEMU ended because it did not like something.
fn refused(qemu: &mut Bound, log: &Path) -> Result<(), Error> {
    let start = Instant::now();
    while start.elapsed() < TO_END {
        match qemu.0.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let said = std::fs::read(log).ok().and_then(|text| process::last_lines(&text, 2));
                let said = said.unwrap_or_else(|| status.to_string());
                return Err(Error::Bare { problem: format!("ended: {said}") });
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn lines(stream: UnixStream) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            let read = (&mut reader).take(LINE_BYTES).read_until(b'\n', &mut line);
            if !matches!(read, Ok(1..)) || sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Empty files, as disks.
fn disks(folder: &Path) -> Result<Vec<(Disk, PathBuf)>, Error> {
    let make = |(kind, name): (Disk, &str)| {
        let path = folder.join(name);
        File::create(&path)
            .and_then(|file| file.set_len(DISK_BYTES))
            .map_err(Error::io("create", &path))?;
        Ok((kind, path))
    };
    [(Disk::Ata, "ata"), (Disk::Virtio, "virtio"), (Disk::Nvme, "nvme")]
        .into_iter()
        .map(make)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn patience(silence_ms: u64) -> Patience {
        let silence = Duration::from_millis(silence_ms);
        Patience { whole: Duration::from_secs(60), silence }
    }

    fn heard(patience: Patience, wanted: usize, say: impl FnOnce(UnixStream)) -> (BareEnd, usize) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let interrupts = process::catch_interrupts().unwrap();
        say(theirs);
        let mut n = 0;
        let end = listen(&lines(ours), patience, &interrupts, &mut |_| {
            n += 1;
            if n == wanted { Listen::Enough } else { Listen::On }
        });
        (end.unwrap(), n)
    }

    #[test]
    fn a_machine_that_goes_is_ended() {
        let said = heard(patience(60_000), 9, |mut machine| machine.write_all(b"a\nb\nc").unwrap());
        assert_eq!(said, (BareEnd::Ended, 3));
    }

    #[test]
    fn the_listener_may_leave() {
        let mut kept = None;
        let said = heard(patience(60_000), 2, |mut machine| {
            machine.write_all(b"a\nb\nc\n").unwrap();
            kept = Some(machine);
        });
        assert_eq!(said, (BareEnd::Left, 2));
    }

    #[test]
    fn silence_has_a_limit() {
        let mut kept = None;
        let said = heard(patience(10), 9, |mut machine| {
            machine.write_all(b"a\n").unwrap();
            kept = Some(machine);
        });
        assert_eq!(said, (BareEnd::Silent, 1));
    }
}
