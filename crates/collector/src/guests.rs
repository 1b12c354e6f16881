//! One worker per VM: it reaches the guest, has it begin its log, waits, and takes its map.
//!
//! ```text
//!   connect (again and again, the guest may still be booting) --> start log --> wait for the end --> snapshot
//! ```
//! A worker sleeps while samples are taken. Every step has the session's limits of time and size.

use std::sync::mpsc::{Receiver, Sender, channel as pipe};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::guest::GuestMap;
use guest::{Channel, Limits, Session};
use host::vms::VmProcess;
use model::{Clock, VmId};

use crate::GuestError;

/// Between two tries to reach a guest that does not answer.
const RETRY: Duration = Duration::from_secs(2);

/// What a guest told, and the session to ask it for symbols.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) map: GuestMap,
    pub(crate) clock: Clock,
    pub(crate) via: &'static str,
    pub(crate) session: Session,
    /// Why processes that ended meanwhile are not in the map.
    pub(crate) log_problem: Option<String>,
}

/// The workers of all VMs.
#[derive(Debug)]
pub(crate) struct GuestWorkers {
    end: Arc<End>,
    tried: (Sender<()>, Receiver<()>),
    /// A worker that could not even be started is there with the reason.
    workers: Vec<(VmId, std::io::Result<Worker>)>,
}

type Worker = JoinHandle<Result<Answer, GuestError>>;

/// The collection's end, as workers wait for it.
#[derive(Debug, Default)]
struct End {
    reached: Mutex<bool>,
    changed: Condvar,
}

impl End {
    /// Waits for the end or `limit`; whether the end has come.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = |reached: &mut bool| !*reached;
        match limit {
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(reached, limit, going_on);
                *waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                *self.changed.wait_while(reached, going_on).unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl GuestWorkers {
    pub(crate) fn new() -> Self {
        Self { end: Arc::default(), tried: pipe(), workers: Vec::new() }
    }

    /// Waits until every guest asked so far has begun its log or failed once, at most `limit` or until
    /// `interrupted`: what ends before a guest's log begins has no name.
    pub(crate) fn wait_first_try(&self, limit: Duration, interrupted: &dyn Fn() -> bool) {
        const ASK_EVERY: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + limit;
        let mut waiting_for = self.workers.len();
        while 0 < waiting_for && Instant::now() < deadline && !interrupted() {
            if self.tried.1.recv_timeout(ASK_EVERY).is_ok() {
                waiting_for -= 1;
            }
        }
    }

    /// Begins to ask the guest of `vm`.
    pub(crate) fn ask(&mut self, vm: VmId, process: &VmProcess, limits: &Limits) {
        let (process, limits, end) = (process.clone(), limits.clone(), Arc::clone(&self.end));
        let tried = self.tried.0.clone();
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || work(&process, &limits, &end, tried));
        self.workers.push((vm, worker));
    }

    /// Takes the map of a VM's guest now, once; its processes' starts and ends are not noted.
    pub(crate) fn ask_once(&mut self, vm: VmId, process: &VmProcess, limits: &Limits) {
        let (process, limits) = (process.clone(), limits.clone());
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || answer_once(&process, &limits));
        self.workers.push((vm, worker));
    }

    /// Lets all guests send their maps, in parallel; returns when each has answered or failed.
    pub(crate) fn finish(self) -> Vec<(VmId, Result<Answer, GuestError>)> {
        self.end.reach();
        self.workers
            .into_iter()
            .map(|(vm, worker)| {
                let answer = match worker.map(JoinHandle::join) {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) => Err(GuestError::WorkerEnded),
                    Err(error) => Err(GuestError::Thread(error)),
                };
                (vm, answer)
            })
            .collect()
    }
}

fn work(
    process: &VmProcess,
    limits: &Limits,
    end: &End,
    tried: Sender<()>,
) -> Result<Answer, GuestError> {
    // Dropping the sender without sending would end nobody's wait: others hold it too.
    let channel = channel(process).inspect_err(|_| report_try(&tried))?;
    let (session, log_problem) = connect(&channel, limits, end, tried)?;
    end.wait(None);
    take_map(session, &channel, log_problem)
}

fn answer_once(process: &VmProcess, limits: &Limits) -> Result<Answer, GuestError> {
    let channel = channel(process)?;
    let session = Session::open(&channel, limits)?;
    take_map(session, &channel, None)
}

fn take_map(
    mut session: Session,
    channel: &Channel,
    log_problem: Option<String>,
) -> Result<Answer, GuestError> {
    let map = session.snapshot()?;
    let clock = session.clock();
    let via = match channel {
        Channel::Vsock { .. } => "vsock",
        Channel::Serial { .. } => "virtio-serial",
    };
    Ok(Answer { map, clock, via, session, log_problem })
}

/// How to reach a VM's guest.
pub(crate) fn channel(process: &VmProcess) -> Result<Channel, GuestError> {
    if let Some(cid) = process.vsock_cid {
        return Ok(Channel::Vsock { cid });
    }
    if let Some(path) = &process.serial_socket {
        return Ok(Channel::Serial { path: path.clone() });
    }
    Err(GuestError::NoChannel)
}

/// Tells whoever waits for first tries; nobody may be waiting any more.
fn report_try(tried: &Sender<()>) {
    let _ = tried.send(());
}

/// Tries until the guest answers; after the collection's end once more, then not again.
fn connect(
    channel: &Channel,
    limits: &Limits,
    end: &End,
    tried: Sender<()>,
) -> Result<(Session, Option<String>), GuestError> {
    let mut ended = false;
    let mut first_try = Some(tried);
    loop {
        let session = Session::open(channel, limits).and_then(|mut session| {
            let problem = session.start_log()?;
            Ok((session, problem))
        });
        if let Some(tried) = first_try.take() {
            report_try(&tried);
        }
        match session {
            Ok(reached) => return Ok(reached),
            Err(error) if ended => return Err(error.into()),
            Err(_) => ended = end.wait(Some(RETRY)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn limits(time: Duration) -> Limits {
        Limits { time, ..Limits::default() }
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_a_silent_guest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        let _accepts_and_says_nothing = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let silent = VmProcess { serial_socket: Some(path), ..VmProcess::default() };
        let hour = Duration::from_secs(3600);
        let mut guests = GuestWorkers::new();
        guests.ask(VmId(0), &silent, &limits(hour));
        guests.wait_first_try(hour, &|| true);
    }

    #[test]
    fn guests_that_cannot_be_reached_say_why() {
        let missing =
            VmProcess { serial_socket: Some("/nonexistent".into()), ..VmProcess::default() };
        let mut guests = GuestWorkers::new();
        guests.ask(VmId(0), &VmProcess::default(), &limits(Duration::from_secs(1)));
        guests.ask(VmId(1), &missing, &limits(Duration::from_secs(1)));
        guests.wait_first_try(Duration::from_secs(3600), &|| false);
        let reasons: Vec<_> = guests
            .finish()
            .into_iter()
            .map(|(vm, answer)| (vm.0, answer.unwrap_err().to_string()))
            .collect();
        assert!(reasons[0].1.contains("no vsock device"), "{reasons:?}");
        assert!(reasons[1].1.contains("/nonexistent"), "{reasons:?}");
    }

    #[test]
    fn a_guest_is_reached_somehow() {
        let vm = |vsock_cid, serial: Option<&str>| VmProcess {
            name: String::new(),
            vsock_cid,
            serial_socket: serial.map(Into::into),
            ..VmProcess::default()
        };
        let reached = |vsock_cid, serial| channel(&vm(vsock_cid, serial)).unwrap();
        assert_eq!(reached(Some(3), Some("/s")), Channel::Vsock { cid: 3 });
        assert_eq!(reached(None, Some("/s")), Channel::Serial { path: "/s".into() });
        assert!(matches!(channel(&vm(None, None)), Err(GuestError::NoChannel)));
    }
}
