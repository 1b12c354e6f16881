//! The scenario on this machine itself, where its KVM really runs guests.

use std::sync::mpsc;
use std::time::Duration;

use cli::SignalFlag;

use crate::error::Error;
use crate::inside::{self, Message, Stop};
use crate::launch::Prepared;
use crate::link::{Event, Link};
use crate::plan::Plan;
use crate::process;
use crate::progress::Progress;

/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Runs what was made ready; returns the command's exit code.
pub(crate) fn run(prepared: &Prepared, limit: Duration, narrates: bool) -> Result<u8, Error> {
    let folder = prepared.folder.path();
    let plan = Plan::read(folder)?;
    let interrupts = process::catch_interrupts()
        .map_err(|error| Error::Host { problem: format!("can't be guarded: {error}") })?;
    // Where it is built in or already there, nothing happens; where it is missing, QEMU says so.
    let _ = process::tool("modprobe", "kmod")
        .and_then(|mut modprobe| process::run(modprobe.args(["-q", "vhost_vsock"])));
    let (sender, receiver) = mpsc::channel();
    let (events, reported) = mpsc::channel();
    let stop = sender.clone();
    let watcher = std::thread::spawn(move || watch(&reported, &stop, &interrupts, limit, narrates));
    let result = inside::run_plan(&plan, folder, &Link::Direct { events }, (sender, &receiver));
    match watcher.join() {
        Ok(Some(stage)) => Err(Error::TimeLimit { seconds: limit.as_secs(), stage }),
        _ => result,
    }
}

/// Unloads a kernel module, and loads it with this parameter. What it depends on stays loaded, with its own parameters.
///
/// # Errors
/// When it is in use, or one of the tools is missing.
pub fn reload_module(module: &str, parameter: &str) -> Result<(), Error> {
    process::run(process::tool("rmmod", "kmod")?.arg(module))?;
    process::run(process::tool("modprobe", "kmod")?.args([module, parameter])).map(drop)
}

/// Shows progress and passes on Ctrl-C and the time limit, until the other side hangs up. Returns what
/// was going on when the time limit was reached, if it was.
fn watch(
    events: &mpsc::Receiver<Event>,
    stop: &mpsc::Sender<Message>,
    interrupts: &SignalFlag,
    limit: Duration,
    narrates: bool,
) -> Option<String> {
    let mut progress = Progress::new("starting guests on this machine", narrates);
    let mut reached = None;
    loop {
        match events.recv_timeout(TICK) {
            Ok(event) => progress.on(&event),
            Err(mpsc::RecvTimeoutError::Timeout) => progress.tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => return reached,
        }
        if interrupts.take() {
            let _ = stop.send(Message::Stop(Stop::Interrupted));
        }
        if reached.is_none() && progress.elapsed() > limit {
            reached = Some(progress.stage().to_owned());
            let _ = stop.send(Message::Stop(Stop::TimeLimit));
        }
    }
}
