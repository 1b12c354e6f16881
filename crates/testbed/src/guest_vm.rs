//! One running guest: its QEMU, its vCPUs' places, the port through which it runs lines.
//!
//! ```text
//!  spawn (paused) --> QMP: threads --> pin --> cont --> "ready" on the exec port --> lines and answers
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::error::Error;
use crate::exec::ExecOutput;
use crate::plan::Boot;
use crate::process;
use crate::qemu::{self, GuestMachine, Origin};
use crate::qmp;
use crate::quota::{self, Group};
use crate::scenario::Guest;

/// What a guest says when its workloads run.
const READY: &str = "ready\n";
/// Most that one exec may answer.
const MAX_OUTPUT: u64 = 64 << 20;

/// A guest whose QEMU runs.
#[derive(Debug)]
pub(crate) struct GuestVm {
    name: String,
    qmp: PathBuf,
    /// The file that it is saved to.
    state: PathBuf,
    child: Mutex<Child>,
    port: Mutex<BufReader<UnixStream>>,
    /// The command wanted it to end.
    is_unwanted: AtomicBool,
    /// Its control group, when it has a quota; dropped after the process ended.
    _group: Option<Group>,
}

impl GuestVm {
    /// Starts a guest: QEMU is there, its vCPUs are pinned and run, but it has not booted yet.
    pub(crate) fn start(
        guest: &Guest,
        index: usize,
        boot: &Boot,
        folder: &Path,
        origin: Origin,
    ) -> Result<Self, Error> {
        let failed = |problem: String| Error::Guest { guest: guest.name.clone(), problem };
        let (ours, theirs) = UnixStream::pair().map_err(|error| failed(error.to_string()))?;
        let machine = GuestMachine {
            guest,
            index,
            kernel: &boot.kernel,
            initrd: &boot.initrd,
            disk: boot.disk.as_deref(),
            folder,
            exec: theirs.as_raw_fd(),
            origin,
        };
        let log = folder.join(format!("{}.log", guest.name));
        let child = spawn(&machine, theirs, &log)
            .map_err(|error| failed(format!("QEMU did not start: {error}")))?;
        let id = child.id();
        let mut vm = Self {
            name: guest.name.clone(),
            qmp: machine.qmp(),
            state: machine.state(),
            child: Mutex::new(child),
            port: Mutex::new(BufReader::new(ours)),
            is_unwanted: AtomicBool::new(false),
            _group: None,
        };
        if let Some(quota) = guest.quota {
            let run = folder.parent().and_then(Path::file_name).unwrap_or_default();
            let group = Group::hold(Path::new(quota::ROOT), Path::new(run), &guest.name, id, quota);
            vm._group = Some(group.map_err(|error| failed(format!("quota: {error}")))?);
        }
        vm.pin_and_go(guest).map_err(|error| {
            let said = std::fs::read(&log).ok().and_then(|text| process::last_lines(&text, 3));
            failed(said.unwrap_or_else(|| format!("failed to start: {error}")))
        })?;
        Ok(vm)
    }

    /// Waits until the guest says that its workloads run.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        match (&mut *port).take(64).read_line(&mut line) {
            Ok(_) if line == READY => Ok(()),
            Ok(0) => Err("ended before it was ready".to_owned()),
            Ok(_) => Err(format!("said {line:?} instead of ready")),
            Err(error) => Err(format!("was not heard: {error}")),
        }
    }

    /// Whether its QEMU is gone although nobody ended it.
    pub(crate) fn has_died(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_unwanted.load(Ordering::Relaxed) && !matches!(child.try_wait(), Ok(None))
    }

    /// What is known of an end that nobody wanted: QEMU's exit, its own words, the console's.
    pub(crate) fn last_words(&self, folder: &Path) -> String {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match child.try_wait() {
            Ok(Some(status)) => format!("QEMU's {status}"),
            _ => "QEMU still runs".to_owned(),
        };
        let read = |ending: &str| {
            let text = std::fs::read(folder.join(format!("{}.{ending}", self.name))).ok()?;
            process::last_lines(&text, 6)
        };
        let said = [Some(status), read("log"), read("console")];
        said.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Runs a line in the guest's shell.
    pub(crate) fn exec(&self, line: &str) -> Result<ExecOutput, Error> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        exchange(&mut port, line).map_err(|error| Error::Guest {
            guest: self.name.clone(),
            problem: format!("did not run `{line}`: {error}"),
        })
    }

    /// Ends the guest at once, because the command asks for it.
    pub(crate) fn end_as_asked(&self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
        self.end();
    }

    /// Ends the guest at once.
    pub(crate) fn end(&self) {
        process::end(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Saves the guest to its file by live migration; it is paused then.
    pub(crate) fn save(&self) -> io::Result<()> {
        self.session()?.save(&self.state)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn session(&self) -> io::Result<qmp::Session> {
        let alive = || {
            matches!(self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None))
        };
        qmp::Session::connect(&self.qmp, alive)
    }

    fn pin_and_go(&self, guest: &Guest) -> io::Result<()> {
        let mut session = self.session()?;
        for (thread, &cpu) in session.vcpu_threads()?.into_iter().zip(&guest.pin) {
            pin(thread, cpu)?;
        }
        session.go_on()
    }
}

impl Drop for GuestVm {
    fn drop(&mut self) {
        self.end();
    }
}

/// Binds a thread to one CPU.
pub(crate) fn pin(thread: i32, cpu: u32) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize);
    Ok(sched_setaffinity(Pid::from_raw(thread), &cpus)?)
}

fn spawn(machine: &GuestMachine<'_>, exec: UnixStream, log: &Path) -> io::Result<Child> {
    let program = qemu::program().map_err(io::Error::other)?;
    let log = std::fs::File::create(log)?;
    let mut command = Command::new(program);
    command.args(machine.arguments()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    process::spawn_bound(&mut command, vec![exec.into()])
}

/// Sends a line; the answer is `begin` when the guest has taken it, at its end `CODE SIZE SIZE`, then so many bytes of
/// output and of errors. It may take as long as it likes: when the run ends, the guest and its port do too. A guest
/// that booted again says `ready` again: before `begin` the line still waits for it, after it the line is lost.
fn exchange(port: &mut BufReader<UnixStream>, line: &str) -> io::Result<ExecOutput> {
    if line.contains('\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a line break in an argument"));
    }
    port.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut header = String::new();
    let mut has_begun = false;
    loop {
        header.clear();
        (&mut *port).take(100).read_line(&mut header)?;
        match header.as_str() {
            READY if has_begun => return Err(io::Error::other("it booted again meanwhile")),
            READY => {}
            "begin\n" if !has_begun => has_begun = true,
            _ => break,
        }
    }
    let garbled = || io::Error::new(io::ErrorKind::InvalidData, format!("it answered {header:?}"));
    let numbers: Vec<u64> = header.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[code, n_out, n_err] = numbers.as_slice() else { return Err(garbled()) };
    let code = u8::try_from(code).map_err(|_| garbled())?;
    if n_out.saturating_add(n_err) > MAX_OUTPUT {
        return Err(io::Error::other("it printed too much"));
    }
    let mut read = |n: u64| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut *port).take(n).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(ExecOutput { code, stdout: read(n_out)?, stderr: read(n_err)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: &str, expected: Result<(u8, &str, &str), &str>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answer.as_bytes()).unwrap();
        let result = exchange(&mut BufReader::new(ours), "true");
        let result = result.map(|o| {
            (o.code, String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap())
        });
        match (result, expected) {
            (Ok(got), Ok((code, out, err))) => {
                assert_eq!(got, (code, out.to_owned(), err.to_owned()))
            }
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn answers_are_checked() {
        check("begin\n0 3 0\nabc", Ok((0, "abc", "")));
        check("begin\n7 2 1\nabc", Ok((7, "ab", "c")));
        check("ready\nbegin\n0 0 0\n", Ok((0, "", "")));
        check("begin\nready\n", Err("booted again"));
        check("begin\nbegin\n", Err("answered"));
        check("300 0 0\n", Err("answered"));
        check("what\n", Err("answered"));
        check("0 99999999999 1\n", Err("too much"));
    }
}
