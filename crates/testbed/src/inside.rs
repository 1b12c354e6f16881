//! The part inside the host: starts the guests, runs the command when all are ready, ends everything.
//!
//! ```text
//!  natives, guests (two booting at a time) --all ready--> command --ended--> files to the share --> end
//!                                  stop ----------------> signal, then kill ---^
//! ```
//!
//! The calling thread starts every process, because they are bound to its life; other threads wait and
//! send messages.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::Error;
use crate::exec::{self, Guests};
use crate::guest_vm::{GuestVm, pin};
use crate::link::{Event, Link};
use crate::plan::{Plan, Seat};
use crate::process::{self, Bound};
use crate::qemu::Origin;
use crate::scenario::{Scenario, When};

/// Every guest's boot is a lot of emulation: more at once only makes each slower.
const BOOTING_AT_ONCE: usize = 2;
/// How many guests of a run may die while booting and be started again.
const TRIES: u32 = 3;
/// How long a command may take to end after a request.
const GRACE: Duration = Duration::from_secs(20);
/// Where the virtual host keeps the testbed's files.
pub(crate) const FOLDER: &str = "/run/testbed";

/// Where the guests' sockets, logs and files are.
pub(crate) fn guests_folder(folder: &Path) -> PathBuf {
    folder.join("guests")
}

/// What the waiting threads tell.
#[derive(Debug)]
pub(crate) enum Message {
    /// A guest is ready, or never will be.
    Booted(usize, Result<(), String>),
    /// It is time to start this guest.
    Start(usize),
    /// It is time to end this guest.
    End(usize),
    /// The guest of this name was saved to its file: another QEMU is to take it in.
    TakeIn(String, Sender<Result<(), String>>),
    /// The second host is ready.
    PeerReady,
    /// The command ended.
    Ended(io::Result<ExitStatus>),
    /// The run is to end early.
    Stop(Stop),
    /// The command did not end on request.
    Kill,
}

/// Why a run ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Interrupted,
    /// The time limit was reached.
    TimeLimit,
}

/// Runs the plan in the virtual host this process was started in. For the host's init only.
pub fn inside() -> Result<(), Error> {
    let folder = Path::new(FOLDER);
    let share = folder.join("share");
    let (link, control) = Link::ports()?;
    let (sender, receiver) = mpsc::channel();
    control.forward(sender.clone());
    let work = folder.join("work");
    let result =
        Plan::read(&share).and_then(|plan| run_plan(&plan, folder, &link, (sender, &receiver)));
    let copied = bring_back(&work, &share.join("out"));
    let event = match result.and_then(|code| copied.map(|()| code)) {
        Ok(code) => Event::Ended(code),
        Err(error) => Event::Failed(model::error_chain(&error)),
    };
    link.tell(&event);
    Ok(())
}

/// Starts the guests, runs the command and returns its exit code. `folder` is for sockets, logs, `bin`
/// and `work`, the command's folder.
pub(crate) fn run_plan(
    plan: &Plan,
    folder: &Path,
    link: &Link,
    (sender, receiver): (Sender<Message>, &Receiver<Message>),
) -> Result<u8, Error> {
    let scenario = plan.scenario()?;
    let guests_folder = guests_folder(folder);
    let work = folder.join("work");
    for needed in [&guests_folder, &work] {
        fs::create_dir_all(needed).map_err(Error::io("create", needed))?;
    }
    let _natives = start_natives(&scenario, folder)?;
    let socket = exec::socket(folder);
    let listener = UnixListener::bind(&socket).map_err(Error::io("listen at", &socket))?;
    let guests = Guests::default();
    let (served, reported) = (Arc::clone(&guests), sender.clone());
    std::thread::spawn(move || exec::serve(&listener, &served, &reported));
    if plan.has_peer() {
        exec::serve_peer(plan.seat)?;
    }
    for guest in scenario.guests.iter().filter(|guest| guest.start == When::Arrives) {
        let vm = GuestVm::expect(guest, &guests_folder)?;
        guests.lock().unwrap_or_else(PoisonError::into_inner).insert(guest.name.clone(), vm.into());
    }
    let queue =
        (0..scenario.guests.len()).filter(|&i| scenario.guests[i].start == When::Before).collect();
    let mut run = Run {
        plan,
        scenario: &scenario,
        folder,
        link,
        sender,
        guests,
        queue,
        started: BTreeMap::new(),
        booting: Vec::new(),
        failures: 0,
        waits_for_peer: plan.seat == Seat::Main && plan.has_peer(),
        command: None,
    };
    let result = run.carry_out(receiver);
    run.end_all();
    result
}

struct Run<'a> {
    plan: &'a Plan,
    scenario: &'a Scenario,
    folder: &'a Path,
    link: &'a Link,
    sender: Sender<Message>,
    guests: Guests,
    queue: VecDeque<usize>,
    started: BTreeMap<usize, (Arc<GuestVm>, Instant)>,
    booting: Vec<usize>,
    failures: u32,
    waits_for_peer: bool,
    command: Option<RunningCommand>,
}

struct RunningCommand {
    id: u32,
    pumps: Vec<Receiver<()>>,
}

impl Run<'_> {
    fn carry_out(&mut self, messages: &Receiver<Message>) -> Result<u8, Error> {
        loop {
            while self.booting.len() < BOOTING_AT_ONCE
                && let Some(index) = self.queue.pop_front()
            {
                self.start_guest(index)?;
            }
            let is_ready = self.queue.is_empty() && self.booting.is_empty() && !self.waits_for_peer;
            if self.command.is_none() && is_ready {
                self.start_command()?;
            }
            // This run holds a sender itself, so there is always one.
            let Ok(message) = messages.recv() else { return Err(Error::Interrupted) };
            match message {
                Message::Booted(index, result) => self.booted(index, result)?,
                Message::Start(index) => self.start_guest(index)?,
                Message::End(index) => self.end_guest(index),
                Message::TakeIn(name, done) => {
                    // The client may have gone away.
                    let _ = done.send(self.take_in(&name).map_err(|error| error.to_string()));
                }
                Message::PeerReady => self.waits_for_peer = false,
                Message::Ended(status) => return self.command_ended(status),
                Message::Stop(stop) => self.stop(stop)?,
                Message::Kill => self.signal(Signal::KILL),
            }
        }
    }

    fn start_guest(&mut self, index: usize) -> Result<(), Error> {
        let guest = &self.scenario.guests[index];
        let folder = guests_folder(self.folder);
        self.link.tell(&Event::Starting(guest.name.clone()));
        let boot = &self.plan.guests[index];
        let vm = Arc::new(GuestVm::start(guest, index, boot, &folder, Origin::Boot)?);
        self.started.insert(index, (Arc::clone(&vm), Instant::now()));
        self.booting.push(index);
        let sender = self.sender.clone();
        std::thread::spawn(move || sender.send(Message::Booted(index, vm.wait_ready())));
        Ok(())
    }

    fn booted(&mut self, index: usize, result: Result<(), String>) -> Result<(), Error> {
        self.booting.retain(|&booting| booting != index);
        let name = self.scenario.guests[index].name.clone();
        let Some((vm, since)) = self.started.get(&index) else { return Ok(()) };
        match result {
            Ok(()) => {
                self.link.tell(&Event::Ready(name.clone(), since.elapsed().as_millis()));
                self.guests
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(name, Arc::clone(vm));
                Ok(())
            }
            Err(problem) => {
                let problem = format!("{problem}: {}", vm.last_words(&guests_folder(self.folder)));
                self.start_again(index, name, problem)
            }
        }
    }

    /// Under emulation a guest now and then dies of an exception while it boots; another try helps.
    fn start_again(&mut self, index: usize, guest: String, problem: String) -> Result<(), Error> {
        self.failures += 1;
        if self.failures > TRIES {
            return Err(Error::Guest { guest, problem });
        }
        self.link.tell(&Event::Died(guest, format!("{problem}; starting it again")));
        self.started.remove(&index);
        self.start_guest(index)
    }

    /// Ends a guest that was saved to its file, and starts it from there.
    fn take_in(&mut self, name: &str) -> Result<(), Error> {
        let index = self.scenario.guests.iter().position(|guest| guest.name == name);
        let Some((index, (old, _))) = index.and_then(|i| Some((i, self.started.remove(&i)?)))
        else {
            let problem = "ended while it was saved".to_owned();
            return Err(Error::Guest { guest: name.to_owned(), problem });
        };
        old.end_on_request();
        let (guest, boot) = (&self.scenario.guests[index], &self.plan.guests[index]);
        let folder = guests_folder(self.folder);
        let vm = Arc::new(GuestVm::start(guest, index, boot, &folder, Origin::File)?);
        self.started.insert(index, (Arc::clone(&vm), Instant::now()));
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), vm);
        Ok(())
    }

    fn end_guest(&mut self, index: usize) {
        let name = &self.scenario.guests[index].name;
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some((vm, _)) = self.started.remove(&index) {
            vm.end();
            self.link.tell(&Event::Gone(name.clone()));
        }
    }

    fn end_all(&mut self) {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for (vm, _) in std::mem::take(&mut self.started).values() {
            vm.end();
        }
    }

    fn start_command(&mut self) -> Result<(), Error> {
        let (mut command, name) = self.command_line();
        let mut child = process::spawn_bound(&mut command, Vec::new())
            .map_err(Error::io("run", Path::new(&name)))?;
        let pumps = self.link.pump(&mut child);
        self.command = Some(RunningCommand { id: child.id(), pumps });
        self.link.tell(&Event::Running);
        let sender = self.sender.clone();
        std::thread::spawn(move || sender.send(Message::Ended(child.wait())));
        for (index, guest) in self.scenario.guests.iter().enumerate() {
            if let When::After(delay) = guest.start {
                self.later(delay, Message::Start(index));
            }
            if let Some(When::After(delay)) = guest.stop {
                self.later(delay, Message::End(index));
            }
        }
        Ok(())
    }

    fn command_line(&self) -> (Command, String) {
        let mut command = match self.plan.command.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            None => shell(),
        };
        command.stdin(Stdio::null()).stdout(self.link.output()).stderr(self.link.output());
        at_home(&mut command, self.folder);
        let name = command.get_program().to_string_lossy().into_owned();
        (command, name)
    }

    /// Says which guests are gone that were not ended: what the command saw of them is cut short.
    fn tell_of_dead_guests(&self) {
        for (index, (vm, _)) in &self.started {
            if vm.has_died() {
                let words = vm.last_words(&guests_folder(self.folder));
                let problem = format!("died while the command ran: {words}");
                self.link.tell(&Event::Died(self.scenario.guests[*index].name.clone(), problem));
            }
        }
    }

    fn command_ended(&mut self, status: io::Result<ExitStatus>) -> Result<u8, Error> {
        self.tell_of_dead_guests();
        if let Some(command) = self.command.take() {
            // What it left running would keep its pipes open.
            process::signal_group(command.id, Signal::KILL);
            for pump in command.pumps {
                let _ = pump.recv_timeout(Duration::from_secs(10));
            }
        }
        status.map(exit_code).map_err(Error::io("wait for", Path::new("the command")))
    }

    fn stop(&mut self, stop: Stop) -> Result<(), Error> {
        if self.command.is_none() {
            let waiting: Vec<_> =
                self.booting.iter().map(|&i| self.scenario.guests[i].name.as_str()).collect();
            return Err(Error::Guest {
                guest: waiting.join(", "),
                problem: "not ready when the run was ended".to_owned(),
            });
        }
        self.signal(match stop {
            Stop::Interrupted => Signal::INT,
            Stop::TimeLimit => Signal::TERM,
        });
        self.later(GRACE, Message::Kill);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(command) = &self.command {
            process::signal_group(command.id, signal);
        }
    }

    fn later(&self, delay: Duration, message: Message) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            sender.send(message)
        });
    }
}

/// A command's folder, and where it finds the testbed and its programs.
pub(crate) fn at_home(command: &mut Command, folder: &Path) {
    command.current_dir(folder.join("work")).env(exec::FOLDER_VARIABLE, folder);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
}

/// An interactive shell on the virtual host's terminal.
fn shell() -> Command {
    let mut command = Command::new("setsid");
    // A session's leader gets the first terminal it opens as its own.
    command.args(["--wait", "sh", "-c"]);
    command.arg("exec </dev/hvc0 >/dev/hvc0 2>&1; stty sane $TERMINAL_SIZE; exec bash -i");
    command
}

/// Like a shell: a signal's number plus 128.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn start_natives(scenario: &Scenario, folder: &Path) -> Result<Vec<Bound>, Error> {
    scenario.natives.iter().map(|native| start_native(native, folder)).collect()
}

fn start_native(native: &crate::scenario::Native, folder: &Path) -> Result<Bound, Error> {
    let program = native_program(native.workload.program(), folder);
    let words = native.workload.words_with_program(&program);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child: Child =
        process::spawn_bound(&mut command, Vec::new()).map_err(Error::io("run", &program))?;
    let id = child.id();
    let child = Bound(child);
    if let Some(cpu) = native.pin {
        pin(id, cpu).map_err(Error::io("pin", &program))?;
    }
    Ok(child)
}

fn native_program(name: &str, folder: &Path) -> PathBuf {
    if name.starts_with('/') { PathBuf::from(name) } else { folder.join("bin").join(name) }
}

/// Copies what the command wrote to where this machine sees it.
fn bring_back(work: &Path, out: &Path) -> Result<(), Error> {
    let written = fs::read_dir(work).is_ok_and(|mut entries| entries.next().is_some());
    if !written {
        return Ok(());
    }
    let everything = work.join(".");
    process::run(Command::new("cp").args(process::COPY_TREE).arg(everything).arg(out)).map(drop)
}
