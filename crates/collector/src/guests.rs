//! One worker per VM: it reaches the guest, has it begin its log, and asks it what is new until the end.
//!
//! ```text
//!   connect (again and again, the guest may still be booting) --> start log --> whole map
//!     --> symbols, before anything is sampled
//!     --> every PACE: what is new, now and then the symbols of one file --> end: the rest
//!     --> silent, or gone: connect again; the same boot goes on, another one is a map of its own
//! ```
//! What a guest has told counts whatever becomes of it. A worker sleeps between questions. Every question has
//! the session's limits of time and size.

mod end;
mod told;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel as pipe};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::guest::{GuestMap, GuestModule, Pace};
use guest::{Channel, Limits, LogBegin, Session, SessionError};
use host::vms::VmProcess;
use model::{Budget, BuildId, Clock, VmId};
use symbols::{GuestChild, Store};

use self::end::{End, Woken};
pub(crate) use self::told::{Boot, Silence, Told};
use crate::GuestError;
use crate::lock::PortLock;

/// Between two tries to reach a guest. Each that it leaves without an answer in time doubles it: it may be at work on it.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_AT_MOST: Duration = Duration::from_secs(32);
/// To try again where a guest answered with nonsense: reading as much as one may send takes a second of CPU time.
const RETRY_NONSENSE: Duration = Duration::from_secs(3600);

/// Between two questions while sampling; and how late an answer is when the guest may have booted again.
const PACE: Duration = Duration::from_secs(4);
/// Each answer without news doubles it.
const PACE_AT_MOST: Duration = Duration::from_secs(16);

/// For symbols before anything is sampled: if the guest is gone at the end, these functions have names all the same.
const EARLY_SYMBOLS: Duration = Duration::from_secs(1);

/// To begin a session while sampling; nobody waits for it.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// Even if all its time was waited for before: a guest may have come up meanwhile.
const LAST_TRY_AT_LEAST: Duration = Duration::from_secs(1);

/// Bytes that are kept of what all guests told.
const TOLD_BYTES: usize = 512 << 20;

/// What a guest told, and the session to ask it for symbols.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) told: Told,
    pub(crate) via: &'static str,
    /// `None`: it can't be asked any more.
    pub(crate) session: Option<Session>,
    /// What reads what it sends.
    pub(crate) child: GuestChild,
}

/// The workers of all VMs.
#[derive(Debug)]
pub(crate) struct GuestWorkers {
    end: Arc<End>,
    /// For what all guests tell.
    room: Budget,
    tried: (Sender<()>, Receiver<()>),
    /// A worker that could not even be started is there with the reason.
    workers: Vec<(VmId, std::io::Result<Worker>)>,
    /// Where symbols lie that need not be asked for.
    symbol_store: Option<PathBuf>,
}

type Worker = JoinHandle<Result<Answer, GuestError>>;

impl GuestWorkers {
    pub(crate) fn new() -> Self {
        Self {
            end: Arc::default(),
            room: Budget::new(TOLD_BYTES),
            tried: pipe(),
            workers: Vec::new(),
            symbol_store: None,
        }
    }

    /// Symbols that lie in this store are not asked for while sampling.
    pub(crate) fn know_symbols_in(&mut self, root: PathBuf) {
        self.symbol_store = Some(root);
    }

    /// Waits until every guest asked so far has told its map or failed once, at most `limit` or until
    /// `interrupted`: what ends before a guest's log begins has no name.
    pub(crate) fn wait_first_try(&self, limit: Duration, interrupted: &dyn Fn() -> bool) {
        const ASK_EVERY: Duration = Duration::from_millis(100);
        let began = Instant::now();
        let mut waiting_for = self.workers.len();
        while 0 < waiting_for && began.elapsed() < limit && !interrupted() {
            if self.tried.1.recv_timeout(ASK_EVERY).is_ok() {
                waiting_for -= 1;
            }
        }
        self.end.change(|state| state.waited = began.elapsed());
    }

    /// Begins to ask the guest of `vm`. `locks`: the folder of lock files.
    pub(crate) fn ask(&mut self, vm: VmId, process: &VmProcess, limits: &Limits, locks: &Path) {
        let (process, tried) = (process.clone(), self.tried.0.clone());
        let store = self.symbol_store.as_ref().map(|root| Store::of_vm(root, &process.identity()));
        let (limits, locks, end) = (limits.clone(), locks.to_owned(), Arc::clone(&self.end));
        let (child, room) = (GuestChild::default(), self.room.clone());
        let questions = Questions { vm, limits, locks, store, end, room, child };
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || questions.work(&process, tried));
        self.workers.push((vm, worker));
    }

    /// Takes the map of a VM's guest now, once; its processes' starts and ends are not noted.
    pub(crate) fn ask_once(
        &mut self,
        vm: VmId,
        process: &VmProcess,
        limits: &Limits,
        locks: &Path,
    ) {
        let (process, limits, locks) = (process.clone(), limits.clone(), locks.to_owned());
        let room = self.room.clone();
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || answer_once(&channel(&process)?, &limits, &locks, &room));
        self.workers.push((vm, worker));
    }

    /// A VM has ended: its guest is not asked any more.
    pub(crate) fn vm_gone(&self, vm: VmId) {
        self.end.change(|state| {
            state.gone.insert(vm);
        });
    }

    /// Lets all guests tell the rest, in parallel; returns when each has answered or failed.
    pub(crate) fn finish(mut self) -> Vec<(VmId, Result<Answer, GuestError>)> {
        self.end.change(|state| state.reached = Some(Instant::now()));
        std::mem::take(&mut self.workers)
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

/// Nobody wants to know any more: guests are not asked again.
impl Drop for GuestWorkers {
    fn drop(&mut self) {
        let vms: Vec<VmId> = self.workers.iter().map(|(vm, _)| *vm).collect();
        self.end.change(|state| state.gone.extend(vms));
    }
}

/// What one worker needs.
struct Questions {
    vm: VmId,
    limits: Limits,
    locks: PathBuf,
    store: Option<Store>,
    end: Arc<End>,
    room: Budget,
    child: GuestChild,
}

impl Questions {
    /// Asks from the session's begin to its end.
    fn work(&self, process: &VmProcess, tried: Sender<()>) -> Result<Answer, GuestError> {
        // Dropping the sender without sending would end nobody's wait: others hold it too.
        let channel = channel(process).inspect_err(|_| report_try(&tried))?;
        let via = via(&channel);
        let (mut told, mut first_try, mut pause) = (Told::within(&self.room), Some(tried), RETRY);
        loop {
            let first = first_try.is_some();
            let limit = self.limits.time.min(if first { Duration::MAX } else { BEGIN_LIMIT });
            let asked = Instant::now();
            let mut begun = self.begin(&channel, &mut told, limit);
            if first && let Ok(session) = begun {
                let kept = self.keep_early_symbols(session, &channel, &mut told);
                begun = kept.map_err(GuestError::from);
            }
            if let Some(tried) = first_try.take() {
                report_try(&tried);
            }
            if begun.is_ok() || asked.elapsed() < limit {
                pause = RETRY;
            }
            match begun.and_then(|session| Ok(self.follow(session, &channel, &mut told)?)) {
                Ok(session) => return Ok(self.answer(told, via, session)),
                Err(error) => {
                    if let GuestError::Session(error) = &error
                        && error.is_nonsense()
                    {
                        pause = RETRY_NONSENSE;
                    }
                    told.lose(error.to_string());
                }
            }
            match self.end.wait(self.vm, pause) {
                Woken::Time => pause = (pause * 2).min(RETRY_AT_MOST),
                Woken::VmGone if told.boots.is_empty() => return Err(GuestError::EndedMeanwhile),
                Woken::VmGone => return Ok(self.answer(told, via, None)),
                Woken::End => return self.last_try(&channel, told),
            }
        }
    }

    fn answer(&self, told: Told, via: &'static str, session: Option<Session>) -> Answer {
        Answer { told, via, session, child: self.child.clone() }
    }

    /// Has the guest begin its log and tell its map, each within `limit`.
    fn begin(
        &self,
        channel: &Channel,
        told: &mut Told,
        limit: Duration,
    ) -> Result<Session, GuestError> {
        self.take_port(channel, told)?;
        let mut session = Session::open_within(channel, &self.limits, limit, self.child.clone())?;
        let LogBegin { guest_ns, problem } = session.start_log()?;
        let map = session.changes(limit)?;
        told.begin(map, session.clock())?;
        told.log_began.get_or_insert(session.clock().to_host(guest_ns));
        told.log_problem = told.log_problem.take().or(problem);
        Ok(session)
    }

    fn take_port(&self, channel: &Channel, told: &mut Told) -> Result<(), GuestError> {
        if told.port.is_none() {
            told.port = PortLock::of(channel, &self.locks)?;
        }
        Ok(())
    }

    /// Asks what is new until the end, and for the rest then. No session: the VM has ended.
    fn follow(
        &self,
        mut session: Session,
        channel: &Channel,
        told: &mut Told,
    ) -> Result<Option<Session>, SessionError> {
        let mut pace = PACE;
        loop {
            match self.end.wait(self.vm, pace) {
                Woken::Time => {
                    let mut is_patient = self.patience(channel, session.clock());
                    let map = session.changes_while_sampled(PACE, &mut is_patient)?;
                    pace = if has_news(&map) { PACE } else { PACE_AT_MOST.min(pace * 2) };
                    told.add(map, session.clock());
                    let is_stored = self.is_stored();
                    let next = told
                        .boots
                        .last_mut()
                        .and_then(|boot| boot.next_module_in_time(Instant::now(), is_stored));
                    if let Some(module) = next {
                        self.keep_symbols(module, Pace::Low, &mut session, channel, told)?;
                    }
                }
                Woken::VmGone => {
                    told.lose(GuestError::EndedMeanwhile.to_string());
                    return Ok(None);
                }
                Woken::End => {
                    let map = session.snapshot()?;
                    told.add(map, session.clock());
                    return Ok(Some(session));
                }
            }
        }
    }

    /// Whether to wait on for a guest that is late: it may be busy, and giving it up loses its log. Not if it has booted again
    /// meanwhile. By vsock it can be asked that beside its answer.
    fn patience<'a>(&'a self, channel: &'a Channel, clock: Clock) -> impl FnMut() -> bool + 'a {
        let asked = Instant::now();
        move || {
            let waited = asked.elapsed().max(self.end.waited_after());
            let is_over = self.limits.time <= waited || self.end.is_gone(self.vm);
            !is_over && !self.has_other_clock(channel, clock)
        }
    }

    fn has_other_clock(&self, channel: &Channel, clock: Clock) -> bool {
        /// Far more than clocks drift apart, and than a boot takes.
        const OTHER_NS: u64 = 1_000_000_000;
        const HELLO_LIMIT: Duration = Duration::from_secs(1);
        let Channel::Vsock { .. } = channel else { return false };
        let child = self.child.clone();
        Session::open_within(channel, &self.limits, HELLO_LIMIT, child).is_ok_and(|session| {
            let now_ns = session.clock().host_minus_guest_ns;
            OTHER_NS < now_ns.abs_diff(clock.host_minus_guest_ns)
        })
    }

    /// The symbols of one file after the other, for a while.
    fn keep_early_symbols(
        &self,
        mut session: Session,
        channel: &Channel,
        told: &mut Told,
    ) -> Result<Session, SessionError> {
        let began = Instant::now();
        while began.elapsed() < EARLY_SYMBOLS
            && self.end.wait(self.vm, Duration::ZERO) == Woken::Time
        {
            let is_stored = self.is_stored();
            let next = told.boots.last_mut().and_then(|boot| boot.map.next_module(is_stored));
            let Some(module) = next else { break };
            self.keep_symbols(module, Pace::Prompt, &mut session, channel, told)?;
        }
        Ok(session)
    }

    fn keep_symbols(
        &self,
        module: u32,
        pace: Pace,
        session: &mut Session,
        channel: &Channel,
        told: &mut Told,
    ) -> Result<(), SessionError> {
        let mut is_patient = self.patience(channel, session.clock());
        match session.early_symbols(module, pace, PACE, &mut is_patient) {
            Ok(symbols) => told.keep(symbols),
            // It may be asked for the others.
            Err(SessionError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether nobody needs to ask for a file's symbols.
    fn is_stored(&self) -> impl Fn(&GuestModule) -> bool {
        |module| {
            let build_id = BuildId::new(&module.build_id);
            self.store.as_ref().zip(build_id).is_some_and(|(store, id)| store.has(&id))
        }
    }

    /// After the end: a guest that could not be reached may be by now. If not, what it told before counts.
    fn last_try(&self, channel: &Channel, mut told: Told) -> Result<Answer, GuestError> {
        // One limit for what is waited for before and after sampling.
        let waited = self.end.waited();
        let left = self.limits.time.saturating_sub(waited).max(LAST_TRY_AT_LEAST);
        let asked = self.take_port(channel, &mut told).and_then(|()| {
            let (map, session) = take_map(channel, &self.limits, left, &self.child)?;
            told.begin(map, session.clock())?;
            Ok(session)
        });
        match asked {
            Err(error) if told.boots.is_empty() => Err(error),
            asked => Ok(self.answer(told, via(channel), asked.ok())),
        }
    }
}

fn has_news(map: &GuestMap) -> bool {
    !(map.images.is_empty() && map.kernel_threads.is_empty() && map.modules.is_empty())
}

fn answer_once(
    channel: &Channel,
    limits: &Limits,
    locks: &Path,
    room: &Budget,
) -> Result<Answer, GuestError> {
    let port = PortLock::of(channel, locks)?;
    let child = GuestChild::default();
    let (map, session) = take_map(channel, limits, limits.time, &child)?;
    let mut told = Told::within(room);
    told.begin(map, session.clock())?;
    told.port = port;
    Ok(Answer { told, via: via(channel), session: Some(session), child })
}

/// A guest's map without a log, within `limit`.
fn take_map(
    channel: &Channel,
    limits: &Limits,
    limit: Duration,
    child: &GuestChild,
) -> Result<(GuestMap, Session), SessionError> {
    let deadline = Instant::now() + limit;
    let mut session = Session::open_within(channel, limits, limit, child.clone())?;
    let left = deadline.saturating_duration_since(Instant::now());
    Ok((session.snapshot_within(left)?, session))
}

fn via(channel: &Channel) -> &'static str {
    match channel {
        Channel::Vsock { .. } => "vsock",
        Channel::Serial { .. } => "virtio-serial",
    }
}

/// How to reach a VM's guest.
pub(crate) fn channel(process: &VmProcess) -> Result<Channel, GuestError> {
    if let Some(cid) = process.vsock_cid {
        return Ok(Channel::Vsock { cid });
    }
    if let Some(path) = &process.serial_socket {
        return Ok(Channel::Serial { path: path.clone(), user: process.user });
    }
    Err(GuestError::NoChannel)
}

/// Tells whoever waits for first tries; nobody may be waiting any more.
fn report_try(tried: &Sender<()>) {
    let _ = tried.send(());
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
        guests.ask(VmId(0), &silent, &limits(hour), folder.path());
        guests.wait_first_try(hour, &|| true);
    }

    #[test]
    fn guests_that_cannot_be_reached_say_why() {
        let missing =
            VmProcess { serial_socket: Some("/nonexistent".into()), ..VmProcess::default() };
        let mut guests = GuestWorkers::new();
        let second = limits(Duration::from_secs(1));
        let folder = tempfile::tempdir().unwrap();
        guests.ask(VmId(0), &VmProcess::default(), &second, folder.path());
        guests.ask(VmId(1), &missing, &second, folder.path());
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
            user: 7,
            ..VmProcess::default()
        };
        let reached = |vsock_cid, serial| channel(&vm(vsock_cid, serial)).unwrap();
        assert_eq!(reached(Some(3), Some("/s")), Channel::Vsock { cid: 3 });
        assert_eq!(reached(None, Some("/s")), Channel::Serial { path: "/s".into(), user: 7 });
        assert!(matches!(channel(&vm(None, None)), Err(GuestError::NoChannel)));
    }
}
