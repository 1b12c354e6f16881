//! The agent's main loop: samples, ends windows, and does what signals say.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cli::{SIGHUP, SIGINT, SIGTERM, SignalFlag, wake_on_signals};
use collector::{
    CollectError, Exits, GuestQuestions, Naming, ProcessEvents, Recorder, Roots, SampledWindow,
    Sampling, SessionPlan,
};
use model::{Counter, Header, HostNs, Trigger, error_chain};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::time::ClockId;
use sd_notify::NotifyState;
use tracing::{info, warn};

use crate::ConfigError;
use crate::alignment;
use crate::budget::{Budget, Change};
use crate::config::{Config, Windows};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::self_priority;
use crate::sender::{Notifier, Sender};
use crate::spool::Spool;
use crate::state::{State, StateError};
use crate::window_writer::{self, WindowWriter};

/// What the spool gives when the disk is full and the need is unknown.
const FULL_DISK_BYTES: u64 = 32 << 20;
/// Longer than clocks differ by when nothing happened.
const SUSPENDED: Duration = Duration::from_secs(1);
/// Guests are waited for before sampling begins, so long at most: one that never answers delays no window.
const START_WAIT: Duration = Duration::from_secs(30);

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}")]
    State(String),
    /// Another agent has the folder.
    #[error("another agent is running in {0}: stop it first")]
    Taken(PathBuf),
    /// The kernel does not let it sample.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// The address of its metrics.
    #[error("failed to serve metrics on {address}")]
    Metrics { address: std::net::SocketAddr, source: std::io::Error },
    /// One that has no end.
    #[error("the {0} has failed: start the agent again")]
    Thread(String),
    /// A thread, a pipe.
    #[error("failed to start")]
    Start(#[from] std::io::Error),
}

impl From<StateError> for RunError {
    fn from(error: StateError) -> Self {
        Self::State(error_chain(&error))
    }
}

/// Collects until SIGTERM or SIGINT, as the file at `config` says. `version`: vmscope's.
///
/// # Errors
/// When it can't begin. Nothing that happens later ends it, but a kernel that refuses a session begun anew.
pub fn run(config: &Path, windows: Windows, version: &str) -> Result<(), RunError> {
    let signals = Signals::catch()?;
    let shared = Shared::default();
    let read = Config::read(config, windows)?;
    let state = State::create(&read.state)?;
    let _lock = lock(&state)?;
    shared.take(&read);
    if let Some(address) = read.metrics {
        let metrics = Arc::clone(&shared.metrics);
        crate::metrics::serve(address, metrics)
            .map_err(|source| RunError::Metrics { address, source })?;
    }
    if !sandbox::has_landlock() {
        let advice = "add landlock to the kernel's lsm=, Linux 5.13 or later";
        warn!(
            "this kernel has no Landlock: seccomp alone keeps child processes from files ({advice})"
        );
    }
    let (threads, spool) = start_threads(&state, &shared)?;
    let host = crate::state::read(&state.host()).ok().map(|host| host.trim().to_owned());
    let (file, version) = (config.to_owned(), version.to_owned());
    let plan = Plan { config: read, file, windows, version, host };
    let mut agent = match Agent::begin(plan, (state, spool), shared, signals) {
        // It was ended while it waited for guests.
        Err(RunError::Collect(CollectError::Interrupted)) => return Ok(()),
        begun => begun?,
    };
    // Without systemd there is nothing to notify.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let ended = agent.work(&threads);
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    agent.end();
    let [window_writer, _sender] = threads;
    // A window writer that panicked has finished nothing; what it left is found at the next start.
    let _ = window_writer.join();
    ended
}

/// One agent at a time.
fn lock(state: &State) -> Result<File, RunError> {
    let path = state.windows();
    let folder = File::open(&path).map_err(|error| StateError::new("read", &path, error))?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(_) => Err(RunError::Taken(path)),
    }
}

/// State that the agent's threads share.
#[derive(Debug)]
struct Shared {
    queue: Arc<Queue<SampledWindow>>,
    metrics: Arc<Metrics>,
    bell: Arc<Notifier>,
    server: Arc<Mutex<Option<String>>>,
    spool_bytes: Arc<AtomicU64>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            queue: Arc::new(Queue::new()),
            metrics: Arc::default(),
            bell: Arc::default(),
            server: Arc::default(),
            spool_bytes: Arc::default(),
        }
    }
}

impl Shared {
    fn take(&self, config: &Config) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.clone_from(&config.server);
        drop(server);
        self.bell.new_server();
        self.spool_bytes.store(config.spool_bytes, Ordering::Relaxed);
        self.metrics.window_ns.set(config.window_s * 1_000_000_000);
    }
}

/// The window writer and the sender.
type Threads = [JoinHandle<()>; 2];

fn start_threads(state: &State, shared: &Shared) -> Result<(Threads, Spool), RunError> {
    let boot = host::machine::boot_id(&Roots::default().proc);
    let boots = boot.map_or(Vec::new(), |boot| state.boots(boot));
    let spool = Spool::open(state.spool(), &boots)?;
    let mut window_writer = WindowWriter {
        naming: Naming::new(Roots::default().proc, Vec::new(), symbols::Store::default_path()),
        spool: spool.clone(),
        spool_bytes: Arc::clone(&shared.spool_bytes),
        metrics: Arc::clone(&shared.metrics),
        bell: Arc::clone(&shared.bell),
        left: window_writer::left_in(&state.windows())?,
    };
    let sender = Sender {
        state: state.clone(),
        spool: spool.clone(),
        refused: Spool::open(state.refused(), &boots)?,
        server: Arc::clone(&shared.server),
        metrics: Arc::clone(&shared.metrics),
        bell: Arc::clone(&shared.bell),
    };
    let queue = Arc::clone(&shared.queue);
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let sender = thread("sender").spawn(move || sender.run())?;
    let window_writer = thread("window-writer").spawn(move || window_writer.run(&queue))?;
    Ok(([window_writer, sender], spool))
}

/// Flags that signals set.
#[derive(Debug)]
struct Signals {
    end: SignalFlag,
    reload: SignalFlag,
    /// Readable after a signal.
    wake: UnixStream,
}

impl Signals {
    fn catch() -> Result<Self, std::io::Error> {
        let end = SignalFlag::catch(&[SIGTERM, SIGINT])?;
        let reload = SignalFlag::catch(&[SIGHUP])?;
        let wake = wake_on_signals(&[SIGTERM, SIGINT, SIGHUP])?;
        wake.set_nonblocking(true)?;
        Ok(Self { end, reload, wake })
    }

    fn is_end(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    fn take_reload(&self) -> bool {
        use std::io::Read as _;
        // A byte for each signal.
        while (&self.wake).read(&mut [0; 64]).is_ok_and(|read| 0 < read) {}
        self.reload.take()
    }
}

/// What is to be done.
#[derive(Debug)]
struct Plan {
    config: Config,
    file: PathBuf,
    windows: Windows,
    version: String,
    /// The name that this host was enrolled with.
    host: Option<String>,
}

impl Plan {
    fn session(&self, period_ns: u64, wait: Duration) -> SessionPlan {
        let config = &self.config;
        let time = Duration::from_secs(config.guest_timeout_s);
        SessionPlan {
            roots: Roots::default(),
            sampling: Sampling {
                trigger: Trigger::CpuClock,
                period_ns,
                trigger_period: period_ns,
                call_graph: config.call_graph,
            },
            off_cpu_source: config.off_cpu_source(),
            exits: if config.exits { Exits::Counted } else { Exits::NotCounted },
            process_events: ProcessEvents::Followed,
            guests: GuestQuestions::On {
                limits: guest::Limits { time, ..guest::Limits::default() },
                with_map: Vec::new(),
                wait,
            },
            vmscope_version: self.version.clone(),
            hostname: self.host.clone(),
        }
    }

    /// Whether another configuration needs another session.
    fn needs_session(&self, other: &Config) -> bool {
        let of = |config: &Config| {
            let Config { offcpu_source, exits, call_graph, guest_timeout_s, period_us, .. } =
                config;
            (*offcpu_source, *exits, *call_graph, *guest_timeout_s, *period_us)
        };
        of(&self.config) != of(other)
    }
}

/// A session under way, and what it has cost.
#[derive(Debug)]
struct Agent {
    plan: Plan,
    state: State,
    spool: Spool,
    shared: Shared,
    signals: Signals,
    /// `None`: it has ended.
    recorder: Option<Recorder>,
    /// The period that could not be set.
    refused_period_ns: Option<u64>,
    budget: Budget,
    /// When the window under way ends.
    edge: Instant,
    began: Instant,
    cpu_before: Duration,
    suspended_before: Duration,
    /// A CPU was not sampled in the last window.
    silent_cpu: bool,
    /// KVM's modules that the session knows.
    kvm: Vec<(&'static str, u64)>,
    /// The end of the last window that was sampled.
    covered_until: Option<HostNs>,
    next_folder: u64,
}

impl Agent {
    fn begin(
        plan: Plan,
        (state, spool): (State, Spool),
        shared: Shared,
        signals: Signals,
    ) -> Result<Self, RunError> {
        let budget = Budget::new(plan.config.period_ns());
        let now = Instant::now();
        let mut agent = Self {
            plan,
            state,
            spool,
            shared,
            signals,
            recorder: None,
            refused_period_ns: None,
            budget,
            edge: now,
            began: now,
            cpu_before: self_priority::cpu_time(),
            suspended_before: self_priority::suspended(),
            silent_cpu: false,
            kvm: Vec::new(),
            covered_until: None,
            next_folder: unix_now_ns(),
        };
        agent.begin_session()?;
        Ok(agent)
    }

    fn begin_session(&mut self) -> Result<(), RunError> {
        self.kvm = host::machine::kvm_modules(&Roots::default().sys);
        let begun = match self.begin_recorder() {
            Err(error) if is_full_disk(&error) => {
                self.evict_oldest();
                self.begin_recorder()
            }
            begun => begun,
        };
        let recorder = begun?;
        for note in &recorder.header().notes {
            warn!("{}", note.text);
        }
        self.recorder = Some(recorder);
        self.begin_window();
        Ok(())
    }

    fn begin_recorder(&mut self) -> Result<Recorder, CollectError> {
        // A session that replaces another one samples at once: guests answer while it samples.
        let wait = match self.covered_until {
            Some(_) => Duration::ZERO,
            None => START_WAIT.min(Duration::from_secs(self.plan.config.guest_timeout_s)),
        };
        // Rings have room for the shortest period; the budget's is set when the window begins.
        let plan = self.plan.session(self.plan.config.period_ns(), wait);
        let folder = self.new_folder();
        let store = symbols::Store::default_path();
        let interrupted = || self.signals.is_end();
        Recorder::begin(&plan, &store, &folder, &interrupted)
    }

    /// A window can't be written. On a full disk the oldest ones make room for the next.
    fn lose_window(&self, what: &str, error: &CollectError) {
        warn!("{what} is lost: {}", error_chain(error));
        self.shared.metrics.windows_lost.add(1);
        if is_full_disk(error) {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&self) {
        if let Err(error) = self.spool.evict_oldest(FULL_DISK_BYTES, &self.shared.metrics) {
            warn!("{}", error_chain(&error));
        }
    }

    /// Until a signal says so.
    fn work(&mut self, threads: &Threads) -> Result<(), RunError> {
        let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        while !self.signals.is_end() {
            if let Some(thread) = threads.iter().find(|thread| thread.is_finished()) {
                let name = thread.thread().name().unwrap_or_default().to_owned();
                return Err(RunError::Thread(name));
            }
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            self.wait(watchdog.unwrap_or(Duration::MAX));
            self.take_in();
            if self.signals.take_reload() {
                self.reload()?;
            }
            let suspended = self_priority::suspended();
            if SUSPENDED < suspended.saturating_sub(self.suspended_before) {
                self.suspended_before = suspended;
                self.note("the machine was suspended: the window ended early");
                // CPUs went offline with it, and took their perf events with them.
                self.renew()?;
            }
            if self.has_other_cpus() {
                info!("CPUs went online or offline: sampling starts anew");
                self.renew()?;
            }
            if self.recorder.is_some()
                && self.kvm != host::machine::kvm_modules(&Roots::default().sys)
            {
                info!("KVM was loaded or unloaded: sampling starts anew");
                self.renew()?;
            }
            if self.edge <= Instant::now() {
                self.end_window()?;
            }
        }
        Ok(())
    }

    fn has_other_cpus(&mut self) -> bool {
        let Some(recorder) = &self.recorder else { return false };
        let cpus = host::machine::online_cpus(&Roots::default().sys).unwrap_or_default();
        // One that went and came back between two looks lost its perf events for good.
        let is_silent = std::mem::take(&mut self.silent_cpu);
        is_silent || !cpus.is_empty() && cpus != recorder.header().cpus
    }

    fn wait(&self, at_most: Duration) {
        let Some(recorder) = &self.recorder else { return };
        let until = recorder.next_poll().min(self.edge);
        let left = until.saturating_duration_since(Instant::now()).min(at_most);
        let wake = recorder.wake();
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.wake.as_fd(), PollFlags::IN)];
        fds.extend(wake.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        // Whatever comes of it, the loop looks itself.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }

    /// Stores what has come in. A window that can't be stored is lost, and nothing else.
    fn take_in(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Err(error) = recorder.poll() {
            if let Err(error) = recorder.lose_window() {
                warn!("{}", error_chain(&error));
            }
            self.lose_window("the current window", &error);
        }
        let settled = self.recorder.as_mut().and_then(Recorder::take_settled);
        if let Some(window) = settled {
            self.hand_on(window);
        }
    }

    fn end_window(&mut self) -> Result<(), RunError> {
        let (cpu, length) = (self_priority::cpu_time(), self.began.elapsed());
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu_before, cpu));
        let most = self.plan.config.max_cpu_percent;
        let change = self.budget.after_window(used, length, most);
        let folder = self.new_folder();
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        match recorder.cut(&folder) {
            Ok(()) => self.shared.metrics.windows_cut.add(1),
            Err(error) => self.lose_window("a window", &error),
        }
        self.begin_window();
        if let Some(change) = change {
            self.tell_of(change);
        }
        Ok(())
    }

    /// The window under way has just begun.
    fn begin_window(&mut self) {
        self.began = Instant::now();
        self.edge = self.began + alignment::length(unix_now_ns(), self.plan.config.window());
        let period_ns = self.budget.period_ns();
        let Some(recorder) = &mut self.recorder else { return };
        let set = match recorder.header().period_ns {
            now if now == period_ns => Ok(()),
            _ => recorder.set_period(period_ns),
        };
        match set {
            Ok(()) => self.refused_period_ns = None,
            // It is tried again at each window, and said once.
            Err(error) if self.refused_period_ns.replace(period_ns) != Some(period_ns) => {
                warn!("{}", error_chain(&error));
            }
            Err(_) => {}
        }
        self.shared.metrics.period_ns.set(recorder.header().period_ns);
    }

    fn tell_of(&mut self, change: Change) {
        let Change { from_ns, to_ns, percent } = change;
        let ms = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e3;
        let text = format!(
            "the agent used {percent:.2} % of a CPU, {} % are allowed: the sampling period is {} ms, it was {} ms",
            self.plan.config.max_cpu_percent,
            ms(to_ns),
            ms(from_ns)
        );
        info!("{text}");
        self.note(&text);
    }

    fn note(&mut self, text: &str) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(text.to_owned());
        }
    }

    fn hand_on(&mut self, window: SampledWindow) {
        let metrics = &self.shared.metrics;
        self.silent_cpu = has_silent_cpu(window.header());
        let (start, end) = (window.header().start, window.header().end);
        if let Some(until) = self.covered_until.replace(end) {
            metrics.uncovered_ns.add(start.since(until));
        }
        let is_late = self.shared.queue.is_at_work();
        for dropped in self.shared.queue.push(window, self.plan.config.pending_windows) {
            let header = dropped.header();
            metrics.dropped_unfinished.add(1);
            metrics.uncovered_ns.add(header.end.since(header.start));
            warn!("a window was dropped unfinished: this host has no CPU time to finish it");
            if let Err(error) = dropped.discard() {
                warn!("{}", error_chain(&error));
            }
        }
        metrics.unfinished.set(self.shared.queue.len() as u64);
        if is_late {
            // A window writer that never gets a CPU would finish nothing.
            self_priority::restore_priority();
        }
    }

    fn reload(&mut self) -> Result<(), RunError> {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let _ = sd_notify::notify(&[NotifyState::Reloading, now]);
        }
        let reloaded = self.take_config();
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        reloaded
    }

    fn take_config(&mut self) -> Result<(), RunError> {
        let config = match Config::read(&self.plan.file, self.plan.windows) {
            Ok(config) => config,
            Err(error) => {
                self.shared.metrics.reload_failures.add(1);
                warn!("the old configuration stays in force: {}", error_chain(&error));
                return Ok(());
            }
        };
        let old = &self.plan.config;
        if (&old.state, old.metrics) != (&config.state, config.metrics) {
            info!("changes of state and metrics take effect at the agent's next start");
        }
        let needs_session = self.plan.needs_session(&config);
        let needs_window = old.window_s != config.window_s;
        if old.period_us != config.period_us {
            self.budget = Budget::new(config.period_ns());
        }
        self.shared.take(&config);
        self.plan.config = config;
        info!("the configuration was read again");
        match (needs_session, needs_window) {
            (true, _) => self.renew(),
            (false, true) => self.end_window(),
            (false, false) => Ok(()),
        }
    }

    /// Ends the session and begins another one.
    fn renew(&mut self) -> Result<(), RunError> {
        self.end_session();
        self.begin_session()
    }

    fn end_session(&mut self) {
        let Some(recorder) = self.recorder.take() else { return };
        match recorder.end() {
            Ok(windows) => windows.into_iter().for_each(|window| {
                self.shared.metrics.windows_cut.add(1);
                self.hand_on(window);
            }),
            Err(error) => self.lose_window("the last window", &error),
        }
    }

    /// What was sampled is finished; what is spooled is sent at the next start.
    fn end(&mut self) {
        self.end_session();
        self.shared.bell.end();
        self.shared.queue.close();
        self_priority::restore_priority();
    }

    /// A name that no other window has, of this or an earlier agent.
    fn new_folder(&mut self) -> PathBuf {
        self.next_folder = unix_now_ns().max(self.next_folder + 1);
        self.state.windows().join(format!("{:020}", self.next_folder))
    }
}

/// Whether a CPU had no sampling interrupt in all of a window. In a short one it may just have stood still, as virtual ones do.
fn has_silent_cpu(header: &Header) -> bool {
    const MIN_NS: u64 = 5_000_000_000;
    let expected = header.end.since(header.start) / header.period_ns.max(1);
    let mut missed = header.counts(Counter::SamplesMissed);
    MIN_NS <= header.end.since(header.start) && missed.any(|(_, missed)| expected <= missed)
}

fn is_full_disk(error: &CollectError) -> bool {
    matches!(error, CollectError::Recording(recording::Error::NoSpace(..)))
}

fn unix_now_ns() -> u64 {
    u64::try_from(self_priority::of_clock(ClockId::Realtime).as_nanos()).unwrap_or(u64::MAX)
}
