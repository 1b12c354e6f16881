//! One running guest: its QEMU, its vCPUs' places, the port through which it runs lines.
//!
//! ```text
//!  spawn (paused) --> QMP: threads --> pin --> cont --> "ready" on the exec port --> lines and answers
//!
//!  a guest that migrates: whichever QEMU connects its exec port next has it
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use qmp::{Migration, MigrationState, QmpError, Session};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use serde_json::json;

use crate::error::Error;
use crate::exec::ExecOutput;
use crate::plan::Boot;
use crate::process;
use crate::qemu::{self, GuestMachine, Origin};
use crate::quota::{self, Group};
use crate::scenario::Guest;

/// What a guest says when its workloads run.
const READY: &str = "ready\n";
/// How long a guest may take to become its clone.
const IDENTITY_LIMIT: Duration = Duration::from_secs(60);
/// Limit of an exec's answer, in bytes.
const MAX_OUTPUT: u64 = 64 << 20;

/// The exec port of the guest, as long as a QEMU has connected it.
type Port = Option<BufReader<UnixStream>>;

/// A guest whose QEMU runs, or is to come.
#[derive(Debug)]
pub(crate) struct GuestVm {
    name: String,
    qmp: PathBuf,
    /// The file that it is saved to.
    state: PathBuf,
    /// Its QEMU, if it was started here.
    child: Mutex<Option<Child>>,
    port: Arc<Mutex<Port>>,
    /// Where a template or a clone gets its identity.
    identity: Option<Mutex<BufReader<UnixStream>>>,
    tap: String,
    /// The command wanted it to end, or may.
    is_unwanted: AtomicBool,
    /// Its control group, when it has a quota; dropped after the process ended.
    _group: Option<Group>,
}

/// How QEMU calls the open file that it was given.
const GIVEN: &str = "devices";

impl GuestVm {
    /// Starts a guest: QEMU is there, its vCPUs are pinned and run, but it has not booted yet.
    pub(crate) fn start(
        guest: &Guest,
        index: usize,
        boot: &Boot,
        folder: &Path,
        origin: Origin<'_>,
    ) -> Result<Self, Error> {
        let failed = |problem: String| Error::Guest { guest: guest.name.clone(), problem };
        let pair = || UnixStream::pair().map_err(|error| failed(error.to_string()));
        let has_identity = matches!(origin, Origin::Template(_) | Origin::Clone(_));
        let (identity, identity_end) = has_identity.then(pair).transpose()?.unzip();
        if let Some(identity) = &identity {
            let limited = identity.set_read_timeout(Some(IDENTITY_LIMIT));
            limited.map_err(|error| failed(error.to_string()))?;
        }
        let machine = GuestMachine {
            guest,
            index,
            kernel: &boot.kernel,
            initrd: &boot.initrd,
            disk: boot.disk.as_deref(),
            folder,
            identity: identity_end.as_ref().map(AsRawFd::as_raw_fd),
            origin,
        };
        let log = folder.join(format!("{}.log", guest.name));
        let listener = listen(&machine.exec())?;
        let sockets = identity_end.into_iter().map(OwnedFd::from).collect();
        let child = spawn(&machine, sockets, &log)
            .map_err(|error| failed(format!("QEMU did not start: {error}")))?;
        let id = child.id();
        let mut vm = Self {
            name: guest.name.clone(),
            qmp: machine.qmp(),
            state: machine.state(),
            child: Mutex::new(Some(child)),
            port: Arc::default(),
            identity: identity.map(|socket| Mutex::new(BufReader::new(socket))),
            tap: machine.tap(),
            is_unwanted: AtomicBool::new(guest.migrates),
            _group: None,
        };
        if let Some(quota) = guest.quota {
            let run = folder.parent().and_then(Path::file_name).unwrap_or_default();
            let group = Group::hold(Path::new(quota::ROOT), Path::new(run), &guest.name, id, quota);
            vm._group = Some(group.map_err(|error| failed(format!("quota: {error}")))?);
        }
        vm.pin_and_go(guest, origin, &listener).map_err(|error| {
            let said = std::fs::read(&log).ok().and_then(|text| process::last_lines(&text, 3));
            failed(said.unwrap_or_else(|| format!("failed to start: {error}")))
        })?;
        if guest.migrates {
            vm.take_further(listener)?;
        }
        Ok(vm)
    }

    /// A guest that the command brings here.
    pub(crate) fn expect(guest: &Guest, folder: &Path) -> Result<Self, Error> {
        let file = |ending: &str| folder.join(format!("{}.{ending}", guest.name));
        let vm = Self {
            name: guest.name.clone(),
            qmp: file("qmp"),
            state: file("state"),
            child: Mutex::new(None),
            port: Arc::default(),
            identity: None,
            tap: String::new(),
            is_unwanted: AtomicBool::new(true),
            _group: None,
        };
        vm.take_further(listen(&qemu::exec_socket(folder, &guest.name))?)?;
        Ok(vm)
    }

    /// Whichever QEMU connects next has the guest from then on.
    fn take_further(&self, listener: UnixListener) -> Result<(), Error> {
        listener
            .set_nonblocking(false)
            .map_err(Error::io("listen at", Path::new("a guest's exec port")))?;
        let port = Arc::clone(&self.port);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *port.lock().unwrap_or_else(PoisonError::into_inner) = Some(BufReader::new(stream));
            }
        });
        Ok(())
    }

    /// Waits until the guest says that its workloads run.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(port) = &mut *port else { return Err("has no exec port".to_owned()) };
        let mut line = String::new();
        match port.take(64).read_line(&mut line) {
            Ok(_) if line == READY => Ok(()),
            Ok(0) => Err("ended before it was ready".to_owned()),
            Ok(_) => Err(format!("said {line:?} instead of ready")),
            Err(error) => Err(format!("was not heard: {error}")),
        }
    }

    /// Whether its QEMU is gone although it was not ended.
    pub(crate) fn has_died(&self) -> bool {
        !self.is_unwanted.load(Ordering::Relaxed) && self.exit().is_some()
    }

    /// How its QEMU ended.
    fn exit(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.as_mut()?.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// What is known of an end that was not wanted: QEMU's exit, its own words, the console's.
    pub(crate) fn last_words(&self, folder: &Path) -> String {
        let status = match self.exit() {
            Some(status) => format!("QEMU's {status}"),
            None => "QEMU still runs".to_owned(),
        };
        let file = |ending: &str| folder.join(format!("{}.{ending}", self.name));
        let log = std::fs::read(file("log")).ok().and_then(|text| process::last_lines(&text, 6));
        let said = [Some(status), log, Some(process::last_words(&file("console")))];
        said.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Runs a line in the guest's shell.
    pub(crate) fn exec(&self, line: &str) -> Result<ExecOutput, Error> {
        let failed = |problem: String| Error::Guest { guest: self.name.clone(), problem };
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let port = port.as_mut().ok_or_else(|| failed("is not on this host".to_owned()))?;
        exchange(port, line).map_err(|error| failed(format!("did not run `{line}`: {error}")))
    }

    /// Ends the guest at once, because the command asks for it.
    pub(crate) fn end_on_request(&self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
        self.end();
    }

    /// Ends the guest at once.
    pub(crate) fn end(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_mut().map(process::end);
    }

    /// Saves the guest to its file by live migration; it is paused then.
    pub(crate) fn save(&self) -> Result<(), String> {
        let uri = format!("exec:cat >'{}'", self.state.display());
        let save = || migrate(&mut self.session()?, &uri);
        completed(save())
    }

    /// Saves the state of a template's devices, and ends it: its memory is in its file. It is not paused before: its clones
    /// would stay paused.
    pub(crate) fn save_devices(&self, file: &Path) -> Result<(), String> {
        let save = || {
            let mut session = self.session()?;
            leave_memory_out(&mut session)?;
            let all =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(file);
            session.give(GIVEN, all?.as_fd())?;
            migrate(&mut session, &format!("fd:{GIVEN}"))
        };
        completed(save())?;
        self.end_on_request();
        Ok(())
    }

    /// Tells a template or a clone who it is.
    pub(crate) fn identify(&self, line: &str) -> Result<(), Error> {
        let failed = |problem: String| Error::Guest { guest: self.name.clone(), problem };
        let Some(port) = &self.identity else {
            return Err(failed("has no port for its identity".to_owned()));
        };
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = String::new();
        let mut exchange = || {
            port.get_mut().write_all(format!("{line}\n").as_bytes())?;
            (&mut *port).take(200).read_line(&mut answer)
        };
        exchange().map_err(|error| failed(format!("did not take its identity: {error}")))?;
        match answer.as_str() {
            "ok\n" => Ok(()),
            answer => Err(failed(format!("did not take its identity: {:?}", answer.trim_end()))),
        }
    }

    /// The host's end of its network device.
    pub(crate) fn tap(&self) -> &str {
        &self.tap
    }

    /// The process of its QEMU.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Child::id)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn session(&self) -> Result<Session, QmpError> {
        Session::wait_for(&self.qmp, || self.exit().is_none())
    }

    fn pin_and_go(
        &self,
        guest: &Guest,
        origin: Origin<'_>,
        exec: &UnixListener,
    ) -> Result<(), QmpError> {
        let mut session = self.session()?;
        // QEMU connects before it answers.
        let (port, _) = exec.accept()?;
        port.set_nonblocking(false)?;
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = Some(BufReader::new(port));
        for (thread, &cpu) in session.vcpu_threads()?.into_iter().zip(&guest.pin) {
            pin(thread, cpu)?;
        }
        match origin {
            Origin::Boot | Origin::File | Origin::Template(_) => {
                session.ask("cont", None).map(drop)
            }
            Origin::Clone(saved) => take_in_devices(&mut session, &saved.devices),
        }
    }
}

/// Until it is over.
fn migrate(session: &mut Session, uri: &str) -> Result<Migration, QmpError> {
    session.ask("migrate", Some(&json!({ "uri": uri })))?;
    loop {
        let migration = session.migration()?;
        if migration.state.is_over() {
            return Ok(migration);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn completed(migration: Result<Migration, QmpError>) -> Result<(), String> {
    match migration.map_err(|error| error.to_string())? {
        Migration { state: MigrationState::Completed, .. } => Ok(()),
        failed => Err(format!("QEMU failed to migrate: {failed:?}")),
    }
}

/// Takes in what `save_devices` saved; the guest runs then. A file opened anew: clones that read at one place would miss
/// what others have read.
fn take_in_devices(session: &mut Session, file: &Path) -> Result<(), QmpError> {
    leave_memory_out(session)?;
    session.give(GIVEN, File::open(file)?.as_fd())?;
    session.ask("migrate-incoming", Some(&json!({ "uri": format!("fd:{GIVEN}") })))?;
    session.wait("RESUME")
}

fn leave_memory_out(session: &mut Session) -> Result<(), QmpError> {
    let capabilities = json!([{ "capability": "x-ignore-shared", "state": true }]);
    let arguments = json!({ "capabilities": capabilities });
    session.ask("migrate-set-capabilities", Some(&arguments)).map(drop)
}

impl Drop for GuestVm {
    fn drop(&mut self) {
        self.end();
    }
}

/// Binds a thread to one CPU.
pub(crate) fn pin(thread: u32, cpu: u32) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize);
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    // None would be this thread.
    let thread = thread.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(sched_setaffinity(Some(thread), &cpus)?)
}

/// Listens for the QEMU of a guest; an earlier one's socket makes room. There is no wait.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(Error::io("listen at", path))
}

fn spawn(machine: &GuestMachine<'_>, sockets: Vec<OwnedFd>, log: &Path) -> io::Result<Child> {
    let program = qemu::program().map_err(io::Error::other)?;
    let log = std::fs::File::create(log)?;
    let mut command = Command::new(program);
    command.args(machine.arguments()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if matches!(machine.origin, Origin::Clone(_)) {
        process::without_huge_pages(&mut command);
    }
    process::spawn_bound(&mut command, sockets)
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
    if header.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its QEMU has ended"));
    }
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
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
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
        check("begin\n", Err("has ended"));
        check("0 99999999999 1\n", Err("too much"));
    }
}
