//! The virtual KVM host's process: started with the ports joined to us, watched, ended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cli::SignalFlag;
use rustix::pipe::PipeFlags;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::bochs::{self, SerialPorts};
use crate::error::Error;
use crate::inside::Stop;
use crate::launch::{HostBoot, Prepared};
use crate::link::{self, Event};
use crate::plan::Seat;
use crate::process::{self, Bound};
use crate::progress::{Progress, warn};
use crate::qemu::{self, HostMachine, Wire};
use crate::scenario::Host;

/// How long the inside may take to stop on request: its command's grace, and files to bring back.
const GRACE: Duration = Duration::from_secs(60);
/// How long the machine may take to power off.
const POWER_OFF: Duration = Duration::from_secs(15);
/// How many times as long Bochs may take.
const SLOWNESS: u32 = 6;
/// How often a host that ends before its command begins is booted. No program under test runs then: the emulator crashed.
const BOOTS: u32 = 3;
/// How often signals and limits are looked at while nothing happens.
const TICK: Duration = Duration::from_millis(100);

/// A running virtual host.
#[derive(Debug)]
pub(crate) struct VirtualHost {
    name: String,
    process: Bound,
    events: Receiver<Event>,
    control: File,
    pumps: Vec<JoinHandle<()>>,
    console: PathBuf,
    log: PathBuf,
    is_bochs: bool,
    /// Its command has not begun.
    is_booting: bool,
    /// The second host, as long as nothing was heard of its end.
    peer: Option<Box<Self>>,
}

/// Runs what was made ready; returns the command's exit code.
pub(crate) fn run(prepared: &Prepared, limit: Duration, narrates: bool) -> Result<u8, Error> {
    let interrupts = process::catch_interrupts()
        .map_err(|error| Error::Host { problem: format!("can't be guarded: {error}") })?;
    let mut progress = Progress::new("booting the virtual host", narrates);
    let mut boots_left = BOOTS;
    let result = loop {
        boots_left -= 1;
        let mut host = VirtualHost::start(prepared, None)?;
        let result = host.watch(&mut progress, &interrupts, Some(limit));
        let is_booting = host.is_booting;
        host.end(result.is_ok());
        match &result {
            Err(error @ Error::Host { .. }) if is_booting && 0 < boots_left => {
                warn(&format!("{error}; it boots again"));
            }
            _ => break result,
        }
    };
    match prepared.host {
        Some(HostBoot::Intel) => {
            let brought = bochs::bring_back(prepared.folder.path());
            result.and_then(|code| brought.map(|()| code))
        }
        _ => result,
    }
}

impl VirtualHost {
    /// Starts the machine, and its peer if it is to have one; `terminal` is one end of an interactive session.
    pub(crate) fn start(prepared: &Prepared, terminal: Option<UnixStream>) -> Result<Self, Error> {
        let Some(peer) = &prepared.peer else { return Self::start_one(prepared, terminal, None) };
        let (ours, theirs) = UnixStream::pair().map_err(did_not_start)?;
        let peer = Box::new(Self::start_one(peer, None, Some(theirs))?);
        Ok(Self { peer: Some(peer), ..Self::start_one(prepared, terminal, Some(ours))? })
    }

    fn start_one(
        prepared: &Prepared,
        terminal: Option<UnixStream>,
        wire: Option<UnixStream>,
    ) -> Result<Self, Error> {
        let failed = did_not_start;
        let folder = prepared.folder.path();
        let (console, log) = (folder.join("console"), folder.join("log"));
        let is_bochs = matches!(prepared.host, Some(HostBoot::Intel));
        let one_way = if is_bochs { pipe } else { socket };
        let (out, out_end) = one_way().map_err(failed)?;
        let (err, err_end) = one_way().map_err(failed)?;
        let two_ways = if is_bochs { pseudo_terminal } else { socket };
        let (events, events_end) = two_ways().map_err(failed)?;
        let file = File::create(&log).map_err(Error::io("create", &log))?;
        let mut command = match &prepared.host {
            None => return Err(Error::Host { problem: "was not made ready".to_owned() }),
            Some(HostBoot::Amd { kernel, image, initrd }) => {
                make_disk(&prepared.scenario.host, folder)?;
                let terminal_size = terminal.as_ref().map(|_| crate::shell::size_argument());
                let machine = HostMachine {
                    host: &prepared.scenario.host,
                    kernel,
                    image,
                    initrd,
                    share: folder,
                    console: &console,
                    ports: &[
                        (link::OUT, out_end.as_raw_fd()),
                        (link::ERR, err_end.as_raw_fd()),
                        (link::EVENTS, events_end.as_raw_fd()),
                    ],
                    taps: prepared.scenario.taps(),
                    wire: wire
                        .as_ref()
                        .map(|end| Wire { seat: prepared.seat, socket: end.as_raw_fd() }),
                    terminal: terminal.as_ref().map(AsRawFd::as_raw_fd),
                    extra: terminal_size.as_deref().unwrap_or_default(),
                };
                let mut command = Command::new(qemu::program()?);
                command.args(machine.arguments()).stdin(Stdio::null());
                command.stdout(file.try_clone().map_err(failed)?);
                command
            }
            Some(HostBoot::Intel) => {
                let ports = SerialPorts {
                    out: out_end.as_raw_fd(),
                    err: err_end.as_raw_fd(),
                    events: events_end.as_raw_fd(),
                };
                bochs::command(folder, prepared.scenario.host.memory, ports)?
            }
        };
        let mut inherited = vec![out_end, err_end, events_end];
        inherited.extend([terminal, wire].into_iter().flatten().map(OwnedFd::from));
        let child = process::spawn_bound(command.stderr(file), inherited).map_err(failed)?;
        let mut process = Bound(child);
        if is_bochs {
            bochs::go_on(&mut process.0).map_err(failed)?;
            bochs::read_screen(log.clone());
        }
        let control = events.try_clone().map_err(failed)?;
        let is_peer = prepared.seat == Seat::Peer;
        let pumps = vec![
            // What the command prints is the first host's alone.
            std::thread::spawn(move || match is_peer {
                true => carry(out, io::stderr()),
                false => carry(out, io::stdout()),
            }),
            std::thread::spawn(move || carry(err, io::stderr())),
        ];
        let (name, events) = (prepared.scenario.name.clone(), listen(events));
        let (is_booting, peer) = (true, None);
        Ok(Self { name, process, events, control, pumps, console, log, is_bochs, is_booting, peer })
    }

    /// Waits for the end; passes on Ctrl-C and the time limit.
    pub(crate) fn watch(
        &mut self,
        progress: &mut Progress,
        interrupts: &SignalFlag,
        limit: Option<Duration>,
    ) -> Result<u8, Error> {
        let mut stopping: Option<(Stop, Instant, String)> = None;
        let mut heard = false;
        loop {
            self.watch_peer(progress)?;
            match self.events.recv_timeout(TICK) {
                Ok(Event::Ended(code)) => return outcome(stopping, limit, Ok(code)),
                Ok(Event::Failed(problem)) => {
                    return outcome(stopping, limit, Err(Error::Inside { problem }));
                }
                Ok(event) => {
                    heard = true;
                    self.is_booting &= !matches!(event, Event::Running);
                    progress.on(&event);
                }
                Err(RecvTimeoutError::Timeout) => progress.tick(),
                Err(RecvTimeoutError::Disconnected) => {
                    return outcome(
                        stopping,
                        limit,
                        Err(Error::Host { problem: self.last_words() }),
                    );
                }
            }
            let wish = match limit {
                _ if interrupts.take() => Some(Stop::Interrupted),
                Some(limit) if stopping.is_none() && progress.elapsed() > limit => {
                    Some(Stop::TimeLimit)
                }
                _ => None,
            };
            match (&stopping, wish) {
                (None, Some(stop)) if !heard => {
                    // No program inside listens yet, and nothing is to be brought back.
                    let stopping = (stop, Instant::now(), progress.stage().to_owned());
                    return outcome(Some(stopping), limit, Err(Error::Interrupted));
                }
                (None, Some(stop)) => {
                    // Should it not listen any more, the grace ends it.
                    let _ = self.control.write_all(link::stop_line(stop).as_bytes());
                    stopping = Some((stop, Instant::now(), progress.stage().to_owned()));
                }
                (Some((_, since, _)), wish)
                    if wish.is_some() || since.elapsed() > self.patience(GRACE) =>
                {
                    return outcome(stopping, limit, Err(Error::Interrupted));
                }
                _ => {}
            }
        }
    }

    /// Tells that the second host is ready, as soon as it is. When it fails, so does the run.
    fn watch_peer(&mut self, progress: &mut Progress) -> Result<(), Error> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        loop {
            let problem = match peer.events.try_recv() {
                Ok(Event::Running) => {
                    peer.is_booting = false;
                    // A host that is gone will be noticed.
                    let _ = self.control.write_all(link::PEER_LINE.as_bytes());
                    continue;
                }
                Ok(Event::Failed(problem)) => problem,
                Ok(event) => {
                    progress.on_peer(&peer.name, &event);
                    continue;
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => peer.last_words(),
            };
            return Err(Error::Host { problem: format!("{}: {problem}", peer.name) });
        }
    }

    /// Lets the second host's command end, and its files be brought back.
    fn end_peer(&mut self, orderly: bool) {
        let Some(mut peer) = self.peer.take() else { return };
        let requested = peer.control.write_all(link::stop_line(Stop::Interrupted).as_bytes());
        let start = Instant::now();
        while orderly && requested.is_ok() && start.elapsed() < GRACE {
            match peer.events.recv_timeout(TICK) {
                Ok(Event::Ended(_) | Event::Failed(_)) | Err(RecvTimeoutError::Disconnected) => {
                    break;
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        peer.end(orderly);
    }

    /// How long it may take for what takes QEMU's emulation so long.
    fn patience(&self, limit: Duration) -> Duration {
        if self.is_bochs { limit * SLOWNESS } else { limit }
    }

    /// Lets the machine power off, or ends it.
    pub(crate) fn end(mut self, orderly: bool) {
        self.end_peer(orderly);
        let start = Instant::now();
        while orderly
            && start.elapsed() < self.patience(POWER_OFF)
            && matches!(self.process.0.try_wait(), Ok(None))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.process);
        for pump in self.pumps {
            let _ = pump.join();
        }
    }

    /// A QEMU that refused its command line says why, else the kernel may have; a signal, or an exit without a word (its
    /// emulated CPU faulted three times over), is in how it ended.
    fn last_words(&mut self) -> String {
        let status =
            self.process.0.wait().map_or_else(|error| error.to_string(), |s| s.to_string());
        let said = std::fs::read(&self.log).ok().and_then(|text| process::last_lines(&text, 3));
        // Bochs always has a last word.
        let said = said.filter(|_| !self.is_bochs || !self.console.exists());
        let said = said.unwrap_or_else(|| process::last_words(&self.console));
        let when = if self.is_booting { " while it booted" } else { "" };
        format!("ended by itself{when} ({status}): {said}")
    }
}

/// Our end of a port of the machine, and the end to inherit.
fn socket() -> io::Result<(File, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((OwnedFd::from(ours).into(), theirs.into()))
}

/// The same in one direction, to be opened by a path.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((ours.into(), theirs))
}

/// The same in both directions.
fn pseudo_terminal() -> io::Result<(File, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    Ok((ours.into(), theirs))
}

/// The host's disk, if it is to have one.
fn make_disk(host: &Host, folder: &Path) -> Result<(), Error> {
    let Some(disk) = &host.disk else { return Ok(()) };
    let path = qemu::disk_file(folder);
    File::create(&path)
        .and_then(|file| file.set_len(disk.size.as_mebibytes() << 20))
        .map_err(Error::io("create", &path))
}

fn did_not_start(error: io::Error) -> Error {
    Error::Host { problem: format!("did not start: {error}") }
}

/// What a run that may have been stopped comes to.
fn outcome(
    stopping: Option<(Stop, Instant, String)>,
    limit: Option<Duration>,
    result: Result<u8, Error>,
) -> Result<u8, Error> {
    match (stopping, result) {
        (None, result) => result,
        (Some((Stop::TimeLimit, _, stage)), _) => {
            Err(Error::TimeLimit { seconds: limit.unwrap_or_default().as_secs(), stage })
        }
        (Some((Stop::Interrupted, _, _)), Ok(code)) => Ok(code),
        (Some((Stop::Interrupted, _, _)), Err(_)) => Err(Error::Interrupted),
    }
}

fn listen(events: File) -> Receiver<Event> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(events).lines().map_while(Result::ok);
        for event in lines.filter_map(|line| Event::parse(&line)) {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

fn carry(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
        && to.write_all(&buffer[..n]).and_then(|()| to.flush()).is_ok()
    {}
}
