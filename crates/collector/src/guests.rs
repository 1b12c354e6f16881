//! One worker per VM: it reaches the guest, has it begin its log, and asks it what is new until the end.
//!
//! ```text
//!   connect (again and again, the guest may still be booting) --> start log --> whole map
//!     --> every PACE: what is new, and the symbols of one file --> end: the rest
//!     --> silent, or gone: connect again; the same boot goes on, another one is a map of its own
//! ```
//! What a guest has told counts whatever becomes of it. A worker sleeps but for a question every `PACE`. Every question has
//! the session's limits of time and size.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel as pipe};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::guest::{GuestMap, GuestModule};
use guest::{Channel, KnownMap, Limits, LogBegin, Session, SessionError};
use host::vms::VmProcess;
use model::{BuildId, Clock, HostNs, VmId};
use symbols::Store;

use crate::GuestError;
use crate::lock::PortLock;

/// Between two tries to reach a guest. Each that it leaves without an answer in time doubles it: it may be at work on it.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_AT_MOST: Duration = Duration::from_secs(32);

/// Between two questions while sampling; and how late an answer is when the guest may have booted again.
const PACE: Duration = Duration::from_secs(4);

/// To begin a session while sampling; nobody waits for it.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// Even if all its time was waited for before: a guest may have come up meanwhile.
const LAST_TRY_AT_LEAST: Duration = Duration::from_secs(1);

/// Boots of a guest that are told apart, and silences that are named: a guest may make up as many as it likes.
const MAX_BOOTS: usize = 4;
const MAX_SILENCES: usize = 20;

/// What a guest told, and the session to ask it for symbols.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) told: Told,
    pub(crate) via: &'static str,
    /// `None`: it can't be asked any more.
    pub(crate) session: Option<Session>,
}

/// What a guest has told so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Oldest first.
    pub(crate) boots: Vec<Boot>,
    pub(crate) silences: Vec<Silence>,
    /// When its first log began; `None`: it had none.
    pub(crate) log_began: Option<HostNs>,
    /// Keeps the way to it ours, where there is one only.
    pub(crate) port: Option<PortLock>,
    /// Why processes that ended meanwhile are not in the map.
    pub(crate) log_problem: Option<String>,
}

/// A guest from one boot to the next.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) map: KnownMap,
    pub(crate) clock: Clock,
}

/// A time of which a guest told nothing.
#[derive(Debug)]
pub(crate) struct Silence {
    pub(crate) from: HostNs,
    /// `None`: it said nothing any more.
    pub(crate) until: Option<HostNs>,
    pub(crate) reason: String,
}

impl Boot {
    /// When it booted: its clock began then.
    pub(crate) fn booted(&self) -> HostNs {
        self.clock.to_host(0)
    }
}

impl Told {
    /// A session's first answer. An error: it is one boot too many.
    fn begin(&mut self, map: GuestMap, clock: Clock) -> Result<(), SessionError> {
        let is_known = self.boots.last().is_some_and(|boot| boot.map.boot_id() == map.boot_id);
        if !is_known && self.boots.len() == MAX_BOOTS {
            return Err(SessionError::Refused(format!("it booted more than {MAX_BOOTS} times")));
        }
        let now = clock.to_host(map.now_ns);
        if let Some(silence) = self.silences.last_mut() {
            silence.until.get_or_insert(now);
        }
        match self.boots.last_mut() {
            Some(boot) if is_known => {
                boot.map.add_new_session(map);
                boot.clock = clock;
            }
            _ => {
                let mut known = KnownMap::default();
                known.add(map);
                self.boots.push(Boot { map: known, clock });
            }
        }
        Ok(())
    }

    fn add(&mut self, map: GuestMap, clock: Clock) {
        if let Some(boot) = self.boots.last_mut() {
            boot.map.add(map);
            boot.clock = clock;
        }
    }

    /// The guest does not answer any more. What follows before it answers again is the same silence.
    fn lose(&mut self, reason: String) {
        let is_silent = self.silences.last().is_some_and(|silence| silence.until.is_none());
        let (Some(boot), false) = (self.boots.last(), is_silent) else { return };
        if self.silences.len() < MAX_SILENCES {
            let from = boot.clock.to_host(boot.map.told_ns());
            self.silences.push(Silence { from, until: None, reason });
        } else if let Some(last) = self.silences.last_mut() {
            // It has spoken in between, now and then.
            last.until = None;
        }
    }
}

/// The workers of all VMs.
#[derive(Debug)]
pub(crate) struct GuestWorkers {
    end: Arc<End>,
    tried: (Sender<()>, Receiver<()>),
    /// A worker that could not even be started is there with the reason.
    workers: Vec<(VmId, std::io::Result<Worker>)>,
    /// Where symbols lie that need not be asked for.
    symbol_store: Option<PathBuf>,
}

type Worker = JoinHandle<Result<Answer, GuestError>>;

/// The collection's end, and that of VMs, as workers wait for it.
#[derive(Debug, Default)]
struct End {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EndState {
    reached: Option<Instant>,
    /// How long guests were waited for before anything was sampled.
    waited: Duration,
    gone: BTreeSet<VmId>,
}

/// Why a worker goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// It has waited long enough.
    Time,
    /// Its VM has ended: its channel may lead to another one by now.
    VmGone,
    /// The collection has ended.
    End,
}

impl End {
    /// Waits for the end, that of `vm`, or `limit`.
    fn wait(&self, vm: VmId, limit: Duration) -> Woken {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = |state: &mut EndState| state.reached.is_none() && !state.gone.contains(&vm);
        let waited = self.changed.wait_timeout_while(state, limit, going_on);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match (state.gone.contains(&vm), state.reached.is_some()) {
            (true, _) => Woken::VmGone,
            (false, true) => Woken::End,
            (false, false) => Woken::Time,
        }
    }

    fn is_gone(&self, vm: VmId) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).gone.contains(&vm)
    }

    /// How long guests have been waited for, before and after sampling.
    fn waited(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waited + state.reached.map_or(Duration::ZERO, |reached| reached.elapsed())
    }

    /// The same, if the collection has ended.
    fn waited_after(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reached.map_or(Duration::ZERO, |reached| state.waited + reached.elapsed())
    }

    fn change(&self, change: impl FnOnce(&mut EndState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl GuestWorkers {
    pub(crate) fn new() -> Self {
        Self { end: Arc::default(), tried: pipe(), workers: Vec::new(), symbol_store: None }
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
        let questions = Questions { vm, limits, locks, store, end };
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || questions.work(&process, tried));
        self.workers.push((vm, worker));
    }

    /// Takes the map of a VM's guest now, once; its processes' starts and ends are not noted.
    pub(crate) fn ask_once(&mut self, vm: VmId, process: &VmProcess, limits: &Limits) {
        let (process, limits) = (process.clone(), limits.clone());
        let worker = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || answer_once(&channel(&process)?, &limits));
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
}

impl Questions {
    /// Asks from the session's begin to its end.
    fn work(&self, process: &VmProcess, tried: Sender<()>) -> Result<Answer, GuestError> {
        // Dropping the sender without sending would end nobody's wait: others hold it too.
        let channel = channel(process).inspect_err(|_| report_try(&tried))?;
        let via = via(&channel);
        let (mut told, mut first_try, mut pause) = (Told::default(), Some(tried), RETRY);
        loop {
            let first = first_try.is_some();
            let limit = self.limits.time.min(if first { Duration::MAX } else { BEGIN_LIMIT });
            let asked = Instant::now();
            let begun = self.begin(&channel, &mut told, limit);
            if let Some(tried) = first_try.take() {
                report_try(&tried);
            }
            if begun.is_ok() || asked.elapsed() < limit {
                pause = RETRY;
            }
            match begun.and_then(|session| Ok(self.follow(session, &channel, &mut told)?)) {
                Ok(session) => return Ok(Answer { told, via, session }),
                Err(error) => told.lose(error.to_string()),
            }
            match self.end.wait(self.vm, pause) {
                Woken::Time => pause = (pause * 2).min(RETRY_AT_MOST),
                Woken::VmGone if told.boots.is_empty() => return Err(GuestError::EndedMeanwhile),
                Woken::VmGone => return Ok(Answer { told, via, session: None }),
                Woken::End => return self.last_try(&channel, told),
            }
        }
    }

    /// Has the guest begin its log and tell its map, each within `limit`.
    fn begin(
        &self,
        channel: &Channel,
        told: &mut Told,
        limit: Duration,
    ) -> Result<Session, GuestError> {
        self.take_port(channel, told)?;
        let mut session = Session::open_within(channel, &self.limits, limit)?;
        let LogBegin { guest_ns, problem } = session.start_log()?;
        let map = session.changes(limit)?;
        told.begin(map, session.clock())?;
        told.log_began.get_or_insert(session.clock().to_host(guest_ns));
        told.log_problem = told.log_problem.take().or(problem);
        Ok(session)
    }

    fn take_port(&self, channel: &Channel, told: &mut Told) -> Result<(), GuestError> {
        if let (Channel::Serial { path }, None) = (channel, &told.port) {
            told.port = PortLock::take(path, &self.locks)?;
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
        loop {
            match self.end.wait(self.vm, PACE) {
                Woken::Time => {
                    let mut is_patient = self.patience(channel, session.clock());
                    let map = session.changes_while_sampled(PACE, &mut is_patient)?;
                    told.add(map, session.clock());
                    self.keep_next_symbols(&mut session, channel, told)?;
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
        Session::open_within(channel, &self.limits, HELLO_LIMIT).is_ok_and(|session| {
            let now_ns = session.clock().host_minus_guest_ns;
            OTHER_NS < now_ns.abs_diff(clock.host_minus_guest_ns)
        })
    }

    /// The symbols of one more file: if the guest is gone at the end, its functions have names all the same.
    fn keep_next_symbols(
        &self,
        session: &mut Session,
        channel: &Channel,
        told: &mut Told,
    ) -> Result<(), SessionError> {
        let Some(boot) = told.boots.last_mut() else { return Ok(()) };
        let is_stored = |module: &GuestModule| {
            let build_id = BuildId::new(&module.build_id);
            self.store.as_ref().zip(build_id).is_some_and(|(store, id)| store.has(&id))
        };
        let Some(module) = boot.map.next_module(is_stored) else { return Ok(()) };
        let mut is_patient = self.patience(channel, session.clock());
        match session.symbols_while_sampled(module, PACE, &mut is_patient) {
            Ok(symbols) => boot.map.keep(symbols),
            // It may be asked for the others.
            Err(SessionError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// After the end: a guest that could not be reached may be by now. If not, what it told before counts.
    fn last_try(&self, channel: &Channel, mut told: Told) -> Result<Answer, GuestError> {
        // One limit for what is waited for before and after sampling.
        let waited = self.end.waited();
        let left = self.limits.time.saturating_sub(waited).max(LAST_TRY_AT_LEAST);
        let asked = self.take_port(channel, &mut told).and_then(|()| {
            let (map, session) = take_map(channel, &self.limits, left)?;
            told.begin(map, session.clock())?;
            Ok(session)
        });
        match asked {
            Err(error) if told.boots.is_empty() => Err(error),
            asked => Ok(Answer { told, via: via(channel), session: asked.ok() }),
        }
    }
}

fn answer_once(channel: &Channel, limits: &Limits) -> Result<Answer, GuestError> {
    let (map, session) = take_map(channel, limits, limits.time)?;
    let mut told = Told::default();
    told.begin(map, session.clock())?;
    Ok(Answer { told, via: via(channel), session: Some(session) })
}

/// A guest's map without a log, within `limit`.
fn take_map(
    channel: &Channel,
    limits: &Limits,
    limit: Duration,
) -> Result<(GuestMap, Session), SessionError> {
    let deadline = Instant::now() + limit;
    let mut session = Session::open_within(channel, limits, limit)?;
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
        return Ok(Channel::Serial { path: path.clone() });
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

    /// What a guest tells: `BOOT@TIME` a session's first answer, `+TIME` another one, `-` nothing any more. Then its boots,
    /// each with the time of its last answer, and its silences.
    fn check_told(answers: &str, boots: &[(&str, u64)], silences: &[(u64, Option<u64>)]) {
        let clock = Clock { host_minus_guest_ns: 1000, error_ns: 0 };
        let mut told = Told::default();
        for answer in answers.split(' ') {
            let map = |boot_id: &str, time: &str| GuestMap {
                boot_id: boot_id.to_owned(),
                now_ns: time.parse().unwrap(),
                ..GuestMap::default()
            };
            match (answer.split_once('@'), answer.split_once('+')) {
                (Some((boot, time)), _) => {
                    // One boot too many is a failed session like others.
                    if let Err(error) = told.begin(map(boot, time), clock) {
                        told.lose(error.to_string());
                    }
                }
                (_, Some((boot, time))) => told.add(map(boot, time), clock),
                _ => told.lose("no answer in time".to_owned()),
            }
        }
        let told_boots: Vec<_> =
            told.boots.iter().map(|boot| (boot.map.boot_id(), boot.map.told_ns())).collect();
        assert_eq!(told_boots, boots, "{answers}");
        let told_silences: Vec<_> = told
            .silences
            .iter()
            .map(|silence| (silence.from.0, silence.until.map(|until| until.0)))
            .collect();
        assert_eq!(told_silences, silences, "{answers}");
    }

    #[test]
    fn what_was_told_counts_and_silences_have_times() {
        check_told("x@1 x+5", &[("x", 5)], &[]);
        check_told("- - x@1 x+5 - -", &[("x", 5)], &[(1005, None)]);
        check_told("x@1 x+5 - - x@9", &[("x", 9)], &[(1005, Some(1009))]);
        check_told("x@1 - y@3 y+5 -", &[("x", 1), ("y", 5)], &[(1001, Some(1003)), (1005, None)]);
        let boots = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
        let times = [(1001, Some(1002)), (1002, Some(1003)), (1003, Some(1004)), (1004, None)];
        check_told("a@1 - b@2 - c@3 - d@4 - e@5 -", &boots, &times);
    }

    #[test]
    fn the_end_of_a_vm_and_of_all_wake_workers() {
        let end = End::default();
        let moment = Duration::from_millis(1);
        assert_eq!(end.wait(VmId(0), moment), Woken::Time);
        end.change(|state| state.gone.extend([VmId(1)]));
        assert_eq!(end.wait(VmId(0), moment), Woken::Time);
        end.change(|state| state.reached = Some(Instant::now()));
        let hour = Duration::from_secs(3600);
        assert_eq!([0, 1].map(|vm| end.wait(VmId(vm), hour)), [Woken::End, Woken::VmGone]);
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
