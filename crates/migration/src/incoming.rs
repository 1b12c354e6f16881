//! The QEMU that a VM comes to: started here, or found.
//!
//! ```text
//!  start: command line of the configuration, memory bound --> monitor answers --> listens --> the VM runs: it is let go
//!  find:  a VM of this name whose vCPUs have never run  ----------------------------^
//!                                                          \__ the VM stays: a QEMU that was started here is ended
//! ```
//!
//! The kernel says whether the VM runs: KVM knows the thread of a vCPU from its first run on. A QEMU whose vCPUs have
//! never run can be ended at any time: the source has the VM.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use layout::{Allowed, Topology};
use model::{Pid, Tid};
use numa::VmProcess;
use probes::FoundVm;
use qmp::{CAPABILITIES, QmpError, Session};
use rustix::process::Signal;
use serde_json::json;

use crate::config::Incoming;
use crate::offer::CheckedOffer;
use crate::records::{Record, Records};
use crate::template::Memory;
use crate::this_host::ThisHost;
use crate::{PROC, SYS};

/// How long a QEMU may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at a QEMU.
const LOOK: Duration = Duration::from_millis(200);
/// What QEMU's last lines may have.
const MAX_LOG_BYTES: usize = 4096;

/// A QEMU that waits for its VM.
#[derive(Debug)]
pub(crate) struct IncomingQemu {
    pub(crate) found: FoundVm,
    pub(crate) started: u64,
    /// The threads of its vCPUs, which have not run.
    pub(crate) threads: Vec<Tid>,
    /// How it was started, if it was started here.
    pub(crate) own: Option<Own>,
}

/// A QEMU that was started here.
#[derive(Debug)]
pub(crate) struct Own {
    session: Session,
    child: Child,
    record: Record,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IncomingError {
    #[error("failed to run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("QEMU did not start: {0}")]
    Start(String),
    #[error("{0}")]
    Qmp(#[from] QmpError),
    #[error("{0}")]
    Probe(#[from] probes::ProbeError),
    #[error("QEMU (process {0}) has no VM in KVM")]
    NoVm(u32),
    #[error("no QEMU here waits for a VM of this name")]
    NotFound,
    #[error("failed to write {path}: {source}")]
    Record { path: PathBuf, source: io::Error },
}

/// Starts a QEMU that waits for a VM.
pub(crate) fn start(
    host: &ThisHost,
    records: &Records,
    incoming: &Incoming,
    memory: &Memory,
) -> Result<IncomingQemu, IncomingError> {
    let own_monitor = records.file(&incoming.vm, "qmp");
    let monitor = incoming.command.monitor().unwrap_or_else(|| own_monitor.clone());
    // An earlier QEMU's, which would have no listener.
    let _ = fs::remove_file(&monitor);
    let words = incoming.command.command_line(memory, &own_monitor);
    let path = records.file(&incoming.vm, "log");
    let log = File::create(&path)
        .map_err(|source| IncomingError::Record { path: path.clone(), source })?;
    let mut child = spawn(&words, log)
        .map_err(|source| IncomingError::Run { program: words[0].clone(), source })?;
    let alive = || match child.try_wait() {
        // What starts a QEMU elsewhere, as systemd-run does, ends before it.
        Ok(None) => true,
        Ok(Some(status)) if status.success() => true,
        Ok(Some(_)) | Err(_) => false,
    };
    let session = Session::wait_for(&monitor, alive);
    let result = session.map_err(IncomingError::from).and_then(|mut session| {
        match known_by(host, records, &incoming.vm, &monitor, &mut session) {
            Ok((found, record, threads)) => Ok((session, found, record, threads)),
            Err(error) => {
                // What started it may have ended long ago.
                let _ = session.ask("quit", None);
                Err(error)
            }
        }
    });
    match result {
        Ok((session, found, record, threads)) => {
            let (threads, started) = (own_threads(found.pid, threads), record.started);
            Ok(IncomingQemu { found, started, threads, own: Some(Own { session, child, record }) })
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            // QEMU's own words say more than that it does not answer.
            Err(said(records, &incoming.vm).map_or(error, IncomingError::Start))
        }
    }
}

/// The VM of a QEMU that answers, what is recorded of it, and its vCPUs' threads.
fn known_by(
    host: &ThisHost,
    records: &Records,
    vm: &str,
    monitor: &Path,
    session: &mut Session,
) -> Result<(FoundVm, Record, Vec<u32>), IncomingError> {
    let pid = session.process()?;
    spare_others(pid, None);
    let threads = session.vcpu_threads()?;
    let (found, started) = known(host, Pid(pid))?;
    let record = Record { vm: vm.to_owned(), pid, started, monitor: monitor.to_owned() };
    let failed = |source| IncomingError::Record { path: records.file(vm, "qemu"), source };
    records.write(&record).map_err(failed)?;
    Ok((found, record, threads))
}

/// Its own session, so that no terminal's signal reaches it, and the first to be killed when the memory that it is bound to
/// does not suffice: never a VM that runs.
fn spawn(words: &[String], log: File) -> io::Result<Child> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: between fork and exec only async-signal-safe calls may be made: these are system calls, and allocate nothing.
    unsafe {
        command.pre_exec(|| {
            let _ = rustix::process::setsid();
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
            let mode = rustix::fs::Mode::empty();
            // Not allowed to everybody; then others take their chances.
            if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, mode) {
                let _ = rustix::io::write(&file, b"1000");
            }
            Ok(())
        })
    };
    command.spawn()
}

/// From now on it is a process like others.
fn spare_others(pid: u32, score: Option<&str>) {
    let own = fs::read_to_string(Path::new(PROC).join("self/oom_score_adj")).unwrap_or_default();
    let file = Path::new(PROC).join(pid.to_string()).join("oom_score_adj");
    let _ = fs::write(file, score.unwrap_or(own.trim()));
}

/// Its last words.
fn said(records: &Records, vm: &str) -> Option<String> {
    let bytes = fs::read(records.file(vm, "log")).unwrap_or_default();
    let tail = &bytes[bytes.len().saturating_sub(MAX_LOG_BYTES)..];
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines = &lines[lines.len().saturating_sub(3)..];
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// The VM of a process, as the kernel knows it.
fn known(host: &ThisHost, pid: Pid) -> Result<(FoundVm, u64), IncomingError> {
    let found = host.find()?.into_iter().find(|found| found.pid == pid);
    let found = found.ok_or(IncomingError::NoVm(pid.0))?;
    let process = numa::processes(Path::new(PROC), std::slice::from_ref(&found)).pop();
    let process = process.and_then(Result::ok).ok_or(IncomingError::NoVm(pid.0))?;
    Ok((found, process.started))
}

/// A QEMU names threads that may be any: those of its process are taken.
fn own_threads(pid: Pid, named: Vec<u32>) -> Vec<Tid> {
    let tasks = Path::new(PROC).join(pid.0.to_string()).join("task");
    named.into_iter().filter(|tid| tasks.join(tid.to_string()).exists()).map(Tid).collect()
}

/// Finds a QEMU that another program started, and that waits for a VM of this name.
pub(crate) fn find(
    host: &ThisHost,
    vm: &str,
    uuid: Option<&str>,
) -> Result<IncomingQemu, IncomingError> {
    let found = host.find()?;
    let processes = numa::processes(Path::new(PROC), &found);
    for (found, process) in found.into_iter().zip(processes) {
        let Ok(VmProcess { pid, started, threads, .. }) = process else { continue };
        let described = host::vms::describe(Path::new(PROC), pid.0, "");
        let same = |own: &str| uuid.is_none_or(|uuid| uuid.eq_ignore_ascii_case(own));
        if described.name == vm && threads.is_empty() && described.uuid.as_deref().is_none_or(same)
        {
            let threads = vcpu_threads(pid);
            return Ok(IncomingQemu { found, started, threads, own: None });
        }
    }
    Err(IncomingError::NotFound)
}

/// The threads that QEMU calls `CPU 0/KVM`, in their order, when it gives threads names (`-name NAME,debug-threads=on`).
fn vcpu_threads(pid: Pid) -> Vec<Tid> {
    let tasks = Path::new(PROC).join(pid.0.to_string()).join("task");
    let vcpu = |entry: fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let number = name.trim().strip_prefix("CPU ")?.strip_suffix("/KVM")?.parse::<u32>().ok()?;
        Some((number, Tid(entry.file_name().to_str()?.parse().ok()?)))
    };
    let mut threads: Vec<(u32, Tid)> =
        fs::read_dir(tasks).into_iter().flatten().flatten().filter_map(vcpu).collect();
    threads.sort_unstable();
    threads.into_iter().map(|(_, tid)| tid).collect()
}

impl IncomingQemu {
    pub(crate) fn process(&self, name: &str) -> VmProcess {
        let Self { found, started, threads, .. } = self;
        VmProcess {
            name: name.to_owned(),
            pid: found.pid,
            started: *started,
            threads: threads.clone(),
        }
    }

    /// What it may use of the host.
    pub(crate) fn allowed(&self, topology: &Topology, requested: &CheckedOffer) -> Allowed {
        let process = self.process(&requested.vm);
        numa::allowed(Path::new(SYS), Path::new(PROC), topology, &process, requested.vcpus)
    }

    /// Gives the vCPUs that have not run yet their threads.
    pub(crate) fn complete(&self, found: &mut FoundVm) {
        if found.pid == self.found.pid {
            for (vcpu, tid) in found.vcpus.iter_mut().zip(&self.threads) {
                vcpu.tid = vcpu.tid.or(Some(*tid));
            }
        }
    }

    /// Has a QEMU of ours listen at an address; where it does.
    pub(crate) fn listen(
        &mut self,
        address: IpAddr,
        [first, last]: [u16; 2],
    ) -> Result<Option<SocketAddr>, QmpError> {
        let Some(Own { session, .. }) = &mut self.own else { return Ok(None) };
        session.set_capabilities(CAPABILITIES)?;
        let host = SocketAddr::new(address, first);
        let uri = format!("tcp:{host},to={last}");
        session.ask("migrate-incoming", Some(&json!({ "uri": uri })))?;
        Ok(Some(SocketAddr::new(address, session.incoming_address()?.1)))
    }

    pub(crate) fn state(&self, host: &ThisHost) -> State {
        state(host, self.found.pid, self.started)
    }

    /// The VM is here for good.
    pub(crate) fn let_go(self, records: &Records) {
        if let Some(Own { session, mut child, record }) = self.own {
            drop(session);
            records.remove(&record);
            // So that its end leaves nothing.
            std::thread::spawn(move || child.wait());
        }
    }

    /// The VM stays where it was: a QEMU that was started here is ended, unless the VM runs.
    pub(crate) fn end(self, host: &ThisHost, records: &Records) -> State {
        let state = self.state(host);
        match (state, self.own) {
            (State::Waits, Some(Own { session, mut child, record })) => {
                drop(session);
                kill(&record);
                let _ = child.wait();
                records.remove(&record);
                State::Gone
            }
            (State::Gone, Some(Own { mut child, record, .. })) => {
                let _ = child.wait();
                records.remove(&record);
                State::Gone
            }
            (state, Some(Own { mut child, record, .. })) => {
                records.remove(&record);
                std::thread::spawn(move || child.wait());
                state
            }
            (state, None) => state,
        }
    }
}

/// What happens to a QEMU when its source says nothing: QEMUs need no daemon to hand over a VM. Waits until it has the
/// VM, is gone, or has done nothing for so long.
pub(crate) fn outcome(host: &ThisHost, pid: Pid, started: u64, idle: Duration) -> State {
    let (mut busy, mut cpu_time) = (Instant::now(), None);
    loop {
        let state = state(host, pid, started);
        let now = numa::cpu_time(&Path::new(PROC).join(pid.0.to_string())).ok();
        if now != cpu_time {
            (busy, cpu_time) = (Instant::now(), now);
        }
        if state != State::Waits || idle <= busy.elapsed() {
            return state;
        }
        std::thread::sleep(LOOK);
    }
}

/// What became of a QEMU that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The VM has not run there.
    Waits,
    Runs,
    Gone,
}

/// As the kernel says. When that fails, the VM counts as running: then nothing is ended.
pub(crate) fn state(host: &ThisHost, pid: Pid, started: u64) -> State {
    let Ok(found) = host.find() else { return State::Runs };
    let Some(found) = found.into_iter().find(|found| found.pid == pid) else { return State::Gone };
    let has_run = found.vcpus.iter().any(|vcpu| vcpu.tid.is_some());
    match numa::processes(Path::new(PROC), &[found]).pop() {
        Some(Ok(process)) if process.started == started => {
            if has_run {
                State::Runs
            } else {
                State::Waits
            }
        }
        _ => State::Gone,
    }
}

/// Ends a QEMU that was started here, and waits until it is gone.
pub(crate) fn kill(record: &Record) {
    let pid = i32::try_from(record.pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(pid) = pid.filter(|_| record.is_there()) else { return };
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    let start = Instant::now();
    while record.is_there() && start.elapsed() < END_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
}
