//! One worker per VM: it reaches the guest, has it begin its log, and asks it what is new for as long as a caller wants
//! to know.
//!
//! ```text
//!   connect (again and again, the guest may still be booting) --> start log --> whole map
//!     --> symbols, before anything is sampled
//!     --> every PACE: what is new, now and then the symbols of one file
//!     --> a window ends: what is new, and a copy of what counts for the window --> symbols of what it hit
//!     --> the last one ends: the rest
//!     --> late: wait on, and answer with its last report
//!     --> gone: connect again; the same boot goes on, another one is a map of its own
//! ```
//! A guest's report counts whatever becomes of the guest. A worker sleeps between questions. Every question has
//! the session's limit of size. A guest that is connected is waited for as long as it is sampled, and for the session's limit
//! of time after that. Users of the host are served alike, however many VMs each runs: see `fairness`.

mod fairness;
mod inbox;
mod policy;
mod reach;
mod reported;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel as pipe, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::guest::{ModuleSymbols, Pace, UnwoundStack};
use guest::Limits;
use host::vms::VmProcess;
use model::{Budget, GuestCode, HostNs, VmId};
use symbols::{GuestChild, Store};

pub(crate) use self::fairness::in_turns;
use self::fairness::{MAX_QUERIED, Patience};
pub(crate) use self::inbox::GuestTasks;
use self::inbox::{Handle, Order, Reply, SymbolOrder, UnwindOrder};
pub(crate) use self::reach::{MEMORY, MemoryFinder, channel, via};
pub(crate) use self::reported::{Boot, GuestReport, Silence};
use self::worker::{Readers, Worker};
use crate::guest_stacks::WaitingStack;
use crate::vm_table::RowRemap;
use crate::{GuestError, Roots};

/// Limit of all guests' reports, and of those of one user's guests, in bytes.
const MAX_REPORT_BYTES: usize = 512 << 20;
const MAX_REPORT_BYTES_OF_USER: usize = MAX_REPORT_BYTES / 2;

/// Whether a guest's log of processes is wanted after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    /// Another window has begun.
    GoesOn,
    /// Nothing is sampled any more.
    Ends,
}

/// A guest's report for a window, and the way to ask it for symbols.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reported: GuestReport,
    pub(crate) via: &'static str,
    /// `None`: it can't be queried any more.
    pub(crate) asker: Option<Asker>,
    /// What reads what it sends.
    pub(crate) child: GuestChild,
}

/// Several windows may have the reason for a missing report.
pub(crate) type Answered = Result<Answer, Arc<GuestError>>;

/// Answers of guests that were queried together, some of which may still be on their way.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The user of each guest, or why it was not queried.
    queried: Vec<(VmId, Result<u32, Arc<GuestError>>)>,
    answers: Receiver<(VmId, Answered)>,
    patience: Patience,
}

impl Pending {
    /// Waits for them, at most as long as the session's limits of time allow, and the longer the fewer guests of a user are
    /// silent.
    pub(crate) fn wait(mut self) -> Vec<(VmId, Answered)> {
        let users: BTreeMap<VmId, u32> = self
            .queried
            .iter()
            .filter_map(|(vm, user)| Some((*vm, *user.as_ref().ok()?)))
            .collect();
        let (mut answered, mut has_ended) = (BTreeMap::new(), false);
        while answered.len() < users.len() {
            // Answers that have arrived count, however late the caller waits for them.
            let left = self.patience.left(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok((vm, answer)) => {
                    let user = users.get(&vm).copied();
                    user.into_iter().for_each(|user| self.patience.end_one(user, Instant::now()));
                    answered.insert(vm, answer);
                }
                Err(RecvTimeoutError::Timeout) => break,
                // Workers that have ended without an answer have panicked.
                Err(RecvTimeoutError::Disconnected) => {
                    has_ended = true;
                    break;
                }
            }
        }
        let silent = |user| match self.patience.silent(user) {
            _ if has_ended => GuestError::WorkerEnded,
            0 | 1 => GuestError::NoAnswer,
            guests => GuestError::NotWaitedFor { user, guests },
        };
        let answer = |(vm, user): (VmId, Result<u32, Arc<GuestError>>)| {
            let answer = answered.remove(&vm);
            (vm, user.and_then(|user| answer.unwrap_or_else(|| Err(Arc::new(silent(user))))))
        };
        self.queried.into_iter().map(answer).collect()
    }
}

/// Asks a guest for symbols of its last boot's modules.
#[derive(Debug)]
pub(crate) struct Asker {
    handle: Handle,
    session: u32,
    /// What the session calls the map's modules.
    numbers: BTreeMap<u32, u32>,
}

impl Asker {
    /// Shows the symbols of these modules of the map, one after the other, as far as the guest has them.
    pub(crate) fn symbols(&self, modules: &[u32], see: &mut dyn FnMut(ModuleSymbols)) {
        let ask: BTreeMap<u32, u32> = modules
            .iter()
            .filter_map(|module| Some((*self.numbers.get(module)?, *module)))
            .collect();
        if ask.is_empty() {
            return;
        }
        // All of them may be more than there is memory for.
        let (answer, answers) = sync_channel(0);
        let modules = ask.keys().copied().collect();
        self.handle.order(Order::Symbols(SymbolOrder { session: self.session, modules, answer }));
        for answer in answers {
            if let Some(module) = ask.get(&answer.module) {
                see(ModuleSymbols { module: *module, ..answer });
            }
        }
    }
}

/// The worker of one VM.
#[derive(Debug)]
struct GuestWorker {
    vm: VmId,
    /// The user that runs the VM.
    user: u32,
    /// Or why it could not be started.
    started: Result<(Handle, JoinHandle<()>), Arc<GuestError>>,
}

/// The workers of all VMs.
#[derive(Debug)]
pub(crate) struct GuestWorkers {
    /// For what all guests tell, and those of each user.
    room: Budget,
    rooms: BTreeMap<u32, Budget>,
    /// First tries that are over, by the VM's user.
    tried: (Sender<u32>, Receiver<u32>),
    workers: Vec<GuestWorker>,
    /// Where symbols lie that need not be requested.
    symbol_store: Option<PathBuf>,
    /// For one step of one guest.
    limit: Duration,
    /// Of loaded guests from now on.
    pace: Pace,
    /// What reads what a guest sends.
    child: fn() -> GuestChild,
    memory: Arc<MemoryFinder>,
    /// Whether stacks are unwound.
    unwinds: bool,
}

/// Steps of a guest's last answer: a question under way, and what it has not sent yet.
const LAST_STEPS: u32 = 2;
/// And for a last try, where nothing is left of the limit.
const LAST_SLACK: Duration = Duration::from_secs(5);
/// For workers to end, all together. A worker with a pending question is left alone.
const END_LIMIT: Duration = Duration::from_secs(2);

impl GuestWorkers {
    pub(crate) fn new() -> Self {
        Self {
            limit: Duration::ZERO,
            room: Budget::new(MAX_REPORT_BYTES),
            rooms: BTreeMap::new(),
            tried: pipe(),
            workers: Vec::new(),
            symbol_store: None,
            pace: Pace::Prompt,
            child: GuestChild::default,
            memory: Arc::default(),
            unwinds: false,
        }
    }

    /// Samples have call stacks, which are unwound while sampling.
    pub(crate) fn unwind_stacks(&mut self) {
        self.unwinds = true;
    }

    /// Guests are sampled from now on.
    pub(crate) fn begin_sampling(&mut self) {
        self.pace = Pace::Low;
    }

    /// Symbols that lie in this store are not requested while sampling.
    pub(crate) fn set_symbol_store(&mut self, root: PathBuf) {
        self.symbol_store = Some(root);
    }

    /// Waits until every guest queried so far has reported its map or failed once, at most `limit` or until
    /// `interrupted`: what ends before a guest's log begins has no name.
    pub(crate) fn wait_first_try(&self, limit: Duration, interrupted: &dyn Fn() -> bool) {
        const ASK_EVERY: Duration = Duration::from_millis(100);
        let began = Instant::now();
        let users = self.workers.iter().filter(|worker| worker.started.is_ok());
        let mut patience = Patience::new(users.map(|worker| worker.user), began, limit);
        loop {
            let left = patience.left(Instant::now()).min(ASK_EVERY);
            if left.is_zero() || interrupted() {
                break;
            }
            if let Ok(user) = self.tried.1.recv_timeout(left) {
                patience.end_one(user, Instant::now());
            }
        }
        for worker in &self.workers {
            // Silent guests of one user have used up the time of all of them.
            let waited = if patience.silent(worker.user) == 0 { began.elapsed() } else { limit };
            worker.handle().into_iter().for_each(|handle| handle.was_waited_for(waited));
        }
    }

    /// Begins to ask the guest of `vm`.
    pub(crate) fn ask(&mut self, vm: VmId, process: &VmProcess, limits: &Limits, roots: &Roots) {
        let (tried, pace) = (self.tried.0.clone(), self.pace);
        self.start(vm, process, limits, roots, move |worker| worker.follow(pace, tried));
    }

    /// The guest of `vm` is queried when it is to tell, once; its processes' starts and ends are not noted.
    pub(crate) fn ask_once(
        &mut self,
        vm: VmId,
        process: &VmProcess,
        limits: &Limits,
        roots: &Roots,
    ) {
        self.start(vm, process, limits, roots, Worker::answer_once);
    }

    fn start(
        &mut self,
        vm: VmId,
        process: &VmProcess,
        limits: &Limits,
        roots: &Roots,
        work: impl FnOnce(Worker) + Send + 'static,
    ) {
        self.limit = self.limit.max(limits.time);
        let user = process.user;
        let of_user = self.workers.iter().filter(|other| other.user == user);
        let running = of_user.filter_map(GuestWorker::handle).filter(|handle| !handle.is_gone());
        if MAX_QUERIED <= running.count() {
            let started = Err(Arc::new(GuestError::TooManyOfUser { user, most: MAX_QUERIED }));
            self.workers.push(GuestWorker { vm, user, started });
            return;
        }
        let store = self.symbol_store.as_ref().map(|root| Store::of_vm(root, &process.identity()));
        let room =
            self.rooms.entry(user).or_insert_with(|| self.room.part(MAX_REPORT_BYTES_OF_USER));
        let (handle, inbox) = inbox::pair();
        let memory = Arc::clone(&self.memory);
        let readers = Readers { child: (self.child)(), memory, unwinds: self.unwinds };
        let worker = Worker::new(process, limits, roots, store, room, inbox, readers);
        let builder = std::thread::Builder::new().name("guest".to_owned());
        let thread = builder.spawn(move || work(worker));
        let started = thread.map(|thread| (handle, thread));
        let started = started.map_err(|error| Arc::new(GuestError::Thread(error)));
        self.workers.push(GuestWorker { vm, user, started });
    }

    /// A VM has ended: its guest is not queried any more.
    pub(crate) fn vm_gone(&self, vm: VmId) {
        let of_vm = self.workers.iter().filter(|worker| worker.vm == vm);
        of_vm.filter_map(GuestWorker::handle).for_each(Handle::vm_gone);
    }

    /// What is known of guests' tasks, where it has changed since the last call.
    pub(crate) fn new_tasks(&self) -> Vec<(VmId, Option<Arc<GuestTasks>>)> {
        let news = |worker: &GuestWorker| Some((worker.vm, worker.handle()?.new_tasks()?));
        self.workers.iter().filter_map(news).collect()
    }

    /// What is known of a guest's tasks.
    pub(crate) fn tasks(&self, vm: VmId) -> Option<Arc<GuestTasks>> {
        self.workers.iter().filter(|worker| worker.vm == vm).find_map(|it| it.handle()?.tasks())
    }

    /// A sample of this VM's guest hit this code.
    pub(crate) fn add_code(&self, vm: VmId, code: GuestCode) {
        let worker = self.workers.iter().find(|worker| worker.vm == vm);
        if let Some(handle) = worker.and_then(GuestWorker::handle) {
            handle.add_code(code);
        }
    }

    /// Unwinds stacks of guests, whose samples it takes, all guests at the same time: in the same order, `None` where no answer came within `limit`.
    pub(crate) fn unwind(
        &self,
        waiting: &mut [WaitingStack],
        vm_of: &dyn Fn(&WaitingStack) -> Option<VmId>,
        limit: Duration,
    ) -> Vec<Option<UnwoundStack>> {
        let until = Instant::now() + limit;
        let mut places: BTreeMap<VmId, Vec<usize>> = BTreeMap::new();
        for (place, stack) in waiting.iter().enumerate() {
            if let Some(vm) = vm_of(stack) {
                places.entry(vm).or_default().push(place);
            }
        }
        let mut order = |(vm, places): (VmId, Vec<usize>)| {
            let handle = self.workers.iter().find(|worker| worker.vm == vm)?.handle()?;
            let samples = places.iter().map(|place| waiting[*place].take_sample());
            let samples = samples.collect();
            let (answer, answered) = std::sync::mpsc::sync_channel(1);
            handle.order(Order::Unwind(UnwindOrder { samples, until, answer }));
            Some((places, answered))
        };
        let ordered: Vec<_> = places.into_iter().filter_map(&mut order).collect();
        let mut unwound = vec![None; waiting.len()];
        for (places, answered) in ordered {
            let left = until.saturating_duration_since(Instant::now());
            let stacks = answered.recv_timeout(left).unwrap_or_default();
            for (place, stack) in places.into_iter().zip(stacks) {
                unwound[place] = Some(stack);
            }
        }
        unwound
    }

    /// VMs have other rows from now on, or none.
    pub(crate) fn remap(&mut self, moved: &RowRemap) {
        self.workers.retain_mut(|worker| moved.vm(worker.vm).map(|vm| worker.vm = vm).is_some());
    }

    /// Has all guests tell, in parallel, what counts for a window that began at `start`.
    pub(crate) fn collect_answers(&self, start: HostNs, log: Log) -> Pending {
        let (sender, answers) = pipe();
        let tell = |worker: &GuestWorker| {
            let queried = worker.started.as_ref().map_err(Arc::clone).map(|(handle, _)| {
                let answer = Reply::new(worker.vm, sender.clone());
                handle.order(Order::Tell { start, log, answer, handle: handle.clone() });
                worker.user
            });
            (worker.vm, queried)
        };
        let queried: Vec<_> = self.workers.iter().map(tell).collect();
        let users = queried.iter().filter_map(|(_, user)| user.as_ref().ok().copied());
        let limit = self.limit * LAST_STEPS + LAST_SLACK;
        let patience = Patience::new(users, Instant::now(), limit);
        Pending { queried, answers, patience }
    }

    /// Ends all workers. No window gets an answer any more.
    pub(crate) fn end(self) {
        let started = self.workers.into_iter().filter_map(|worker| worker.started.ok());
        let (handles, threads): (Vec<_>, Vec<_>) = started.unzip();
        drop(handles);
        let began = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) && began.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl GuestWorker {
    fn handle(&self) -> Option<&Handle> {
        self.started.as_ref().ok().map(|(handle, _)| handle)
    }
}

#[cfg(test)]
mod test {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use api::guest::{GuestMap, HEADER_BYTES, Request, Response, VERSION};

    use super::*;

    fn roots(folder: &Path) -> Roots {
        let folder = || folder.to_owned();
        let (proc, sys, cgroups) = (folder(), folder(), folder());
        Roots {
            proc,
            sys,
            cgroups,
            locks: folder(),
            config: folder(),
            logs: folder(),
            state: folder(),
        }
    }

    fn limits(time: Duration) -> Limits {
        Limits { time, ..Limits::default() }
    }

    /// The guest's end of a port: answers as a guest does, its `StartLog` when `go_on` says so, and counts those. It ends with
    /// the host's connection, and takes no other one.
    fn slow_guest(listener: UnixListener, go_on: Receiver<()>) -> JoinHandle<usize> {
        std::thread::spawn(move || {
            let (mut host, _) = listener.accept().unwrap();
            let mut logs = 0;
            let mut header = [0; HEADER_BYTES];
            while host.read_exact(&mut header).is_ok() {
                let length = u32::from_le_bytes(*header.last_chunk().unwrap());
                let mut content = vec![0; length as usize];
                host.read_exact(&mut content).unwrap();
                let response = match postcard::from_bytes(&content).unwrap() {
                    Request::Hello { .. } => Response::Hello { version: VERSION, now_ns: 5 },
                    Request::Ping { number } => Response::Pong { number },
                    Request::StartLog { .. } => {
                        logs += 1;
                        go_on.recv().unwrap();
                        Response::LogStarted { now_ns: 5, problem: None }
                    }
                    Request::Changes { .. } | Request::Snapshot => {
                        Response::Map(Box::new(GuestMap {
                            version: VERSION,
                            boot_id: "boot".to_owned(),
                            ..GuestMap::default()
                        }))
                    }
                    other => panic!("unexpected {other:?}"),
                };
                let mut frame = guest::fuzzing::frame(&response);
                frame[8..16].copy_from_slice(&header[8..16]);
                host.write_all(&frame).unwrap();
            }
            logs
        })
    }

    #[test]
    fn a_late_guest_is_waited_for_and_others_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        let (go_on, signal) = pipe();
        let guest = slow_guest(UnixListener::bind(&path).unwrap(), signal);
        let user = rustix::process::getuid().as_raw();
        let process = VmProcess { serial_socket: Some(path.into()), user, ..VmProcess::default() };
        let mut guests = GuestWorkers::new();
        guests.child = || GuestChild::with_sandbox(sandbox::Sandbox::here());
        guests.ask(VmId(0), &process, &limits(Duration::from_secs(2)), &roots(folder.path()));
        let tell = |log| guests.collect_answers(HostNs(0), log).wait().pop().unwrap().1;
        // Windows end while it is at work; the second is not waited for.
        for _ in 0..2 {
            let late = tell(Log::GoesOn).unwrap_err().to_string();
            assert!(
                late.contains("no answer in time: after") && late.contains("at work"),
                "{late}"
            );
        }
        go_on.send(()).unwrap();
        let answer = tell(Log::Ends).unwrap();
        assert_eq!(answer.reported.boots.len(), 1);
        assert!(answer.reported.silences.is_empty() && answer.asker.is_some());
        drop(answer);
        guests.end();
        assert_eq!(guest.join().unwrap(), 1, "it began its log once");
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_a_silent_guest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        let _accepts_and_says_nothing = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let silent = VmProcess { serial_socket: Some(path.into()), ..VmProcess::default() };
        let hour = Duration::from_secs(3600);
        let mut guests = GuestWorkers::new();
        guests.ask(VmId(0), &silent, &limits(hour), &roots(folder.path()));
        guests.wait_first_try(hour, &|| true);
    }

    /// The errors of guests of these users, of whom the first has answered, when time is over.
    fn late(users: &[u32], answers: Receiver<(VmId, Answered)>, limit: Duration) -> Vec<String> {
        let queried = users.iter().zip(0..).map(|(user, vm)| (VmId(vm), Ok(*user))).collect();
        let patience = Patience::new(users.iter().copied(), Instant::now(), limit);
        let answered = Pending { queried, answers, patience }.wait();
        answered.into_iter().map(|(_, answer)| answer.unwrap_err().to_string()).collect()
    }

    #[test]
    fn all_late_answers_are_waited_for_once() {
        let (sender, answers) = pipe();
        sender.send((VmId(0), Err(Arc::new(GuestError::NoChannel)))).unwrap();
        let errors = late(&[5, 5, 7, 7], answers, Duration::ZERO);
        assert!(errors[0].contains("no vsock device"), "what has come counts: {errors:?}");
        assert_eq!(errors[1], "no answer in time");
        assert!(errors[2].contains("2 guests of user 7 do not answer"), "{errors:?}");
        assert_eq!(errors[2], errors[3]);
        let (sender, answers) = pipe();
        drop(sender);
        assert_eq!(late(&[5], answers, Duration::from_secs(3600)), ["the query failed"]);
    }

    #[test]
    fn only_so_many_guests_of_one_user_are_queried() {
        let folder = tempfile::tempdir().unwrap();
        let mut guests = GuestWorkers::new();
        let mut ask = |vm, user| {
            let process = VmProcess { user, ..VmProcess::default() };
            guests.ask_once(
                VmId(vm),
                &process,
                &limits(Duration::from_secs(9)),
                &roots(folder.path()),
            );
        };
        let crowd = u32::try_from(MAX_QUERIED).unwrap();
        (0..=crowd).for_each(|vm| ask(vm, 7));
        ask(crowd + 1, 8);
        let answers: BTreeMap<VmId, Answered> =
            guests.collect_answers(HostNs(0), Log::Ends).wait().into_iter().collect();
        let error = |vm| answers[&VmId(vm)].as_ref().unwrap_err().to_string();
        assert!(error(crowd).contains("user 7 runs more than 256 VMs"), "{}", error(crowd));
        for queried in [0, crowd - 1, crowd + 1] {
            assert!(error(queried).contains("no vsock device"), "{}", error(queried));
        }
        guests.end();
    }

    #[test]
    fn guests_that_cannot_be_reached_say_why() {
        let missing =
            VmProcess { serial_socket: Some("/nonexistent".into()), ..VmProcess::default() };
        let mut guests = GuestWorkers::new();
        let second = limits(Duration::from_secs(1));
        let folder = tempfile::tempdir().unwrap();
        guests.ask(VmId(0), &VmProcess::default(), &second, &roots(folder.path()));
        guests.ask(VmId(1), &missing, &second, &roots(folder.path()));
        guests.wait_first_try(Duration::from_secs(3600), &|| false);
        let reports = |log| -> Vec<_> {
            let answers = guests.collect_answers(HostNs(0), log).wait().into_iter();
            answers.map(|(vm, answer)| (vm.0, answer.unwrap_err().to_string())).collect()
        };
        for log in [Log::GoesOn, Log::GoesOn, Log::Ends] {
            let reasons = reports(log);
            assert_eq!(reasons.iter().map(|(vm, _)| *vm).collect::<Vec<_>>(), [0, 1]);
            assert!(reasons[0].1.contains("no vsock device"), "{reasons:?}");
            assert!(reasons[1].1.contains("/nonexistent"), "{reasons:?}");
        }
        guests.end();
    }
}
