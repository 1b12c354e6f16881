//! What a worker does with one guest.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use api::guest::{
    CpuTask, CurrentTasks, GuestMap, GuestModule, MAX_REQUEST_BYTES, MAX_STACKS, Pace, StackPart,
    StackRegisters, StackSample, UnwoundStack,
};
use guest::{Channel, Limits, LogStart, Session, SessionError};
use host::vms::VmProcess;
use model::{Budget, BuildId, HostNs, StackEnd};
use probes::{GuestView, MemorySlot};
use symbols::{GuestChild, Store};

use super::inbox::{GuestTasks, Inbox, Order, SymbolOrder, UnwindOrder, WakeReason};
use super::{Answer, Answered, Asker, GuestReport, Log, MEMORY, MemoryFinder, channel, via};
use crate::lock::PortLock;
use crate::{GuestError, Roots};

/// Between two tries to reach a guest. Each that it leaves without an answer in time doubles it: it may be at work on it.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_AT_MOST: Duration = Duration::from_secs(32);
/// To try again where a guest answered with nonsense: reading as much as one may send takes a second of CPU time.
const RETRY_NONSENSE: Duration = Duration::from_secs(3600);

/// Between two questions while sampling.
const PACE: Duration = Duration::from_secs(4);
/// Each answer without news doubles it.
const PACE_AT_MOST: Duration = Duration::from_secs(16);

/// Of a guest whose memory is read: a look costs it nothing, and the host little.
const MEMORY_PACE: Duration = Duration::from_millis(100);
/// Each look without news doubles it. Samples say which process runs and which code it executes; callers of that code lie
/// in mappings that only a look finds.
const MEMORY_PACE_AT_MOST: Duration = Duration::from_millis(1600);
const MEMORY_PACE_OF_STACKS: Duration = Duration::from_millis(400);
/// Looks take half a per cent of a CPU, as long as there is one in this time; and at most a twentieth, whatever the guest does.
const REST_PER_LOOK: u32 = 200;
const MIN_REST_PER_LOOK: u32 = 20;

/// For symbols before anything is sampled: these functions keep their names if the guest is gone at the end.
const EARLY_SYMBOLS: Duration = Duration::from_secs(1);

/// Time limit of a connection and its greeting while sampling. Nothing waits for them.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// To look for a Linux kernel again in memory that had none: each look doubles it. The guest may still be booting.
const RETRY_MEMORY_AT_MOST: Duration = Duration::from_secs(600);

/// Even if all its time was waited for before: a guest may have come up meanwhile.
const LAST_TRY_AT_LEAST: Duration = Duration::from_secs(1);

/// Interval at which a wait for a late answer looks for orders.
const LATE_SLICE: Duration = Duration::from_secs(1);

/// Most bytes of stacks in one request; the rest of `MAX_REQUEST_BYTES` is for its other fields.
const UNWIND_BYTES: usize = MAX_REQUEST_BYTES - (1 << 16);

/// A guest whose stacks take long to unwind has none for this many times as long: it has half a CPU at most.
const UNWIND_REST: u32 = 1;

/// No time limit: wait for the next order.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// What reads for a worker.
#[derive(Debug)]
pub(super) struct Readers {
    /// A guest's answers.
    pub(super) child: GuestChild,
    /// Where its memory lies.
    pub(super) memory: Arc<MemoryFinder>,
    /// Samples wait for stacks that it unwinds: it may not be kept from the CPU for long.
    pub(super) unwinds: bool,
}

/// One guest's worker.
#[derive(Debug)]
pub(super) struct Worker {
    process: VmProcess,
    limits: Limits,
    roots: Roots,
    store: Option<Store>,
    inbox: Inbox,
    child: GuestChild,
    memory: Arc<MemoryFinder>,
    unwinds: bool,
    unwind_rest_until: Instant,
    reported: GuestReport,
    /// Keeps the way to it ours, where there is one only.
    port: Option<PortLock>,
    session: Option<Session>,
    /// Its way, or that of the last one.
    via: &'static str,
    /// Where the memory lies that is read.
    slots: Vec<MemorySlot>,
    /// CPU time of all looks at it so far, and the pause before the next one.
    look_cpu_ns: u64,
    /// Whether samples say which task runs.
    has_tasks: bool,
    memory_pace: Duration,
    sessions: u32,
    /// To the next question, or try.
    pause: Duration,
    /// Why the last query failed.
    error: Option<Arc<GuestError>>,
    /// A window's order that is being carried out, until it is answered, and when it was seen.
    current: Option<(Order, Instant)>,
    /// The next one, when an answer is late.
    held: Option<(Order, Instant)>,
}

impl Worker {
    pub(super) fn new(
        process: &VmProcess,
        limits: &Limits,
        roots: &Roots,
        store: Option<Store>,
        room: &Budget,
        inbox: Inbox,
        readers: Readers,
    ) -> Self {
        Self {
            process: process.clone(),
            limits: limits.clone(),
            roots: roots.clone(),
            store,
            inbox,
            child: readers.child,
            memory: readers.memory,
            unwinds: readers.unwinds,
            unwind_rest_until: Instant::now(),
            reported: GuestReport::within(room),
            port: None,
            session: None,
            via: "",
            slots: Vec::new(),
            look_cpu_ns: 0,
            has_tasks: false,
            memory_pace: MEMORY_PACE,
            sessions: 0,
            pause: RETRY,
            error: None,
            current: None,
            held: None,
        }
    }

    /// Queries from now on, and answers. `tried` hears when the first try is over. `pace`: that of a guest which is sampled, or
    /// is not yet.
    pub(super) fn follow(mut self, pace: Pace, tried: Sender<u32>) {
        let begun = self.begin(self.limits.time, pace);
        let kept = begun.and_then(|()| Ok(self.keep_early_symbols()?));
        kept.unwrap_or_else(|error| self.lose(error));
        report_try(&tried, self.process.user);
        let first = if self.session.is_some() { self.pace() } else { RETRY };
        self.work(first);
    }

    /// Asks when it is to tell, and not before.
    pub(super) fn answer_once(mut self) {
        self.work(FOREVER);
    }

    fn work(&mut self, first: Duration) {
        let mut due = Instant::now() + first;
        self.pause = first;
        loop {
            let woken = match self.held.take() {
                Some((order, _)) => WakeReason::Order(order),
                None => self.inbox.wait(due.saturating_duration_since(Instant::now())),
            };
            if self.inbox.is_gone() && self.pause != FOREVER {
                // Its channel may lead to another guest by now.
                self.lose(GuestError::EndedMeanwhile);
                self.pause = FOREVER;
                due = Instant::now() + FOREVER;
            }
            let is_there = !self.inbox.is_gone();
            match woken {
                WakeReason::Unwanted => return,
                WakeReason::Order(order @ Order::Tell { log, .. }) => {
                    self.current = Some((order, Instant::now()));
                    if is_there {
                        self.bring_up_to_date(log);
                    }
                    self.answer_current();
                }
                WakeReason::Order(Order::Symbols(order)) => self.send_symbols(order),
                WakeReason::Order(Order::Unwind(order)) => self.unwind(order),
                WakeReason::Order(Order::Wake) | WakeReason::Time => {
                    if is_there && due <= Instant::now() {
                        self.pause = self.ask();
                        due = Instant::now() + self.pause;
                    }
                }
            }
        }
    }

    /// Unless a late guest was not waited for.
    fn answer_current(&mut self) {
        let Some((Order::Tell { start, log, answer, handle }, _)) = self.current.take() else {
            return;
        };
        let answered =
            self.answer(start, log, |session, numbers| Asker { handle, session, numbers });
        self.inbox.answered();
        answer.send(answered);
    }

    /// Queries the guest for news, or connects again. How long to wait then.
    fn ask(&mut self) -> Duration {
        let Some(session) = self.session.take() else { return self.try_again() };
        match self.ask_news(session) {
            Ok(true) => self.pace(),
            Ok(false) => self.slowest_pace().min((self.pause * 2).max(self.pace())),
            Err(error) => {
                let is_nonsense = error.is_nonsense();
                self.lose(error.into());
                if is_nonsense { RETRY_NONSENSE } else { RETRY }
            }
        }
    }

    fn try_again(&mut self) -> Duration {
        let limit = self.limits.time.min(BEGIN_LIMIT);
        let requested = Instant::now();
        match self.begin(limit, Pace::Low) {
            Ok(()) => self.pace(),
            Err(error) => {
                let is_nonsense =
                    matches!(&error, GuestError::Session(error) if error.is_nonsense());
                let was_searched = error.was_memory_searched();
                self.lose(error);
                match (is_nonsense, was_searched) {
                    (true, _) => RETRY_NONSENSE,
                    (_, true) => (self.pause * 2).clamp(RETRY, RETRY_MEMORY_AT_MOST),
                    _ if requested.elapsed() < limit => RETRY,
                    _ => (self.pause * 2).clamp(RETRY, RETRY_AT_MOST),
                }
            }
        }
    }

    /// Has the guest's memory be read, or connects to its program within `limit`; then its log begins, and it tells its map.
    fn begin(&mut self, limit: Duration, pace: Pace) -> Result<(), GuestError> {
        let Err(memory) = self.begin_to_read(limit, pace) else { return Ok(()) };
        let program = channel(&self.process);
        let begun = program.and_then(|program| self.begin_over(&program, limit, pace));
        begun.map_err(|program| GuestError::no_way(program, memory))
    }

    fn begin_to_read(&mut self, limit: Duration, pace: Pace) -> Result<(), GuestError> {
        let finder = Arc::clone(&self.memory);
        let _turn = finder.wait_for_turn(self.process.user);
        let (memory, slots) = self.memory.find(&self.process, &self.roots, self.unwinds)?;
        self.port = None;
        self.begin_over(&memory, limit, pace)?;
        self.find_tasks(&slots)?;
        self.slots = slots;
        if !self.unwinds {
            self.session.iter().for_each(Session::lower_priority);
        }
        Ok(())
    }

    /// Lets samples say which task runs. Without that, page tables and FS base tell, where the host can read them.
    fn find_tasks(&mut self, slots: &[MemorySlot]) -> Result<(), SessionError> {
        self.has_tasks = false;
        let Some(session) = &mut self.session else { return Ok(()) };
        let tasks = match session.current_tasks(self.limits.time) {
            Ok(tasks) => tasks,
            Err(SessionError::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let CurrentTasks { direct_map, image, offsets, cpus } = tasks;
        let view = |cpu: CpuTask| GuestView {
            current: cpu.address,
            irq_stack: cpu.irq_stack,
            direct_map,
            image,
            offsets,
        };
        let views = cpus.into_iter().map(|cpu| (cpu.apic_id, view(cpu))).collect();
        self.inbox.set_tasks(Some(GuestTasks { views, slots: slots.to_vec() }));
        self.has_tasks = true;
        Ok(())
    }

    fn begin_over(
        &mut self,
        channel: &Channel,
        limit: Duration,
        pace: Pace,
    ) -> Result<(), GuestError> {
        self.take_port(channel)?;
        let mut session = self.greet(channel, limit)?;
        let mut is_patient = self.patience();
        let LogStart { guest_ns, problem } =
            session.start_log(pace, LATE_SLICE, &mut is_patient)?;
        let map = session.changes(LATE_SLICE, &mut is_patient)?;
        drop(is_patient);
        let is_memory = matches!(channel, Channel::Memory(_));
        self.look_cpu_ns = map.cpu_ns;
        self.reported.begin(map, session.clock(), is_memory)?;
        self.reported.log_began.get_or_insert(session.clock().to_host(guest_ns));
        self.reported.log_problem = self.reported.log_problem.take().or(problem);
        self.via = via(channel);
        self.keep(session);
        Ok(())
    }

    /// Connects within `limit`.
    fn greet(&mut self, channel: &Channel, limit: Duration) -> Result<Session, SessionError> {
        let (limits, child) = (self.limits.clone(), self.child.clone());
        let mut is_patient = self.patience_before_greeting();
        Session::open_within(channel, &limits, limit, LATE_SLICE, &mut is_patient, child)
    }

    /// Between two questions while sampling. A child looks at memory at each question.
    fn pace(&self) -> Duration {
        if self.via == MEMORY { self.memory_pace } else { PACE }
    }

    fn slowest_pace(&self) -> Duration {
        if self.via == MEMORY {
            self.memory_pace.max(self.quiet_memory_pace())
        } else {
            PACE_AT_MOST
        }
    }

    fn quiet_memory_pace(&self) -> Duration {
        match (self.has_tasks, self.unwinds) {
            // Samples don't say which process runs.
            (false, _) => MEMORY_PACE,
            (true, true) => MEMORY_PACE_OF_STACKS,
            (true, false) => MEMORY_PACE_AT_MOST,
        }
    }

    /// A look at memory that took long is followed by a long rest.
    fn pace_memory(&mut self, cpu_ns: u64) {
        let spent = Duration::from_nanos(cpu_ns.saturating_sub(self.look_cpu_ns));
        self.look_cpu_ns = cpu_ns;
        let rest = (spent * REST_PER_LOOK).clamp(MEMORY_PACE, self.quiet_memory_pace());
        self.memory_pace = rest.max(spent * MIN_REST_PER_LOOK).min(PACE_AT_MOST);
    }

    fn keep(&mut self, session: Session) {
        self.session = Some(session);
        self.sessions += 1;
    }

    fn lose(&mut self, error: GuestError) {
        self.reported.lose(error.to_string());
        self.error = Some(Arc::new(error));
        self.session = None;
        self.inbox.set_tasks(None);
    }

    fn take_port(&mut self, channel: &Channel) -> Result<(), GuestError> {
        if self.port.is_none() {
            self.port = PortLock::for_channel(channel, &self.roots.locks)?;
        }
        Ok(())
    }

    /// Asks what is new, and perhaps for a file's symbols. Whether there was anything.
    fn ask_news(&mut self, mut session: Session) -> Result<bool, SessionError> {
        self.send_codes(&mut session)?;
        let map = session.changes_while_sampled(LATE_SLICE, &mut self.patience())?;
        let is_news = has_news(&map);
        self.pace_memory(map.cpu_ns);
        self.reported.add(map, session.clock());
        let is_stored = is_stored(self.store.as_ref());
        let boot = self.reported.boots.last_mut();
        if let Some(module) =
            boot.and_then(|boot| boot.next_module_in_time(Instant::now(), is_stored))
        {
            self.keep_symbols(module, Pace::Low, &mut session)?;
        }
        self.session = Some(session);
        Ok(is_news)
    }

    /// Asks for what a window's end needs.
    fn bring_up_to_date(&mut self, log: Log) {
        if let Some(session) = self.session.take() {
            let requested = match log {
                Log::GoesOn => self.ask_at_window_end(session),
                Log::Ends => self.ask_the_rest(session),
            };
            requested.unwrap_or_else(|error| self.lose(error.into()));
        }
        let is_late = self.error.as_ref().is_some_and(|error| error.is_late());
        // One that was too late is still at work.
        if log == Log::Ends && self.session.is_none() && !is_late {
            self.last_try().unwrap_or_else(|error| self.lose(error));
        }
    }

    fn ask_at_window_end(&mut self, mut session: Session) -> Result<(), SessionError> {
        self.send_codes(&mut session)?;
        let map = session.window_end(LATE_SLICE, &mut self.patience())?;
        self.reported.add(map, session.clock());
        self.session = Some(session);
        let has_moved = self.via == MEMORY
            && self
                .memory
                .find(&self.process, &self.roots, self.unwinds)
                .map(|(_, slots)| slots)
                .ok()
                .as_ref()
                != Some(&self.slots);
        // Memory that was taken away may be the VMM's own by now; and the administrator may have forbidden to read it.
        if has_moved || self.reported.boots.last().is_some_and(|boot| boot.map.is_crowded()) {
            // A port has one user at a time.
            self.session = None;
            self.inbox.set_tasks(None);
            let limit = self.limits.time.min(BEGIN_LIMIT);
            self.begin(limit, Pace::Low).unwrap_or_else(|error| self.lose(error));
        }
        Ok(())
    }

    fn ask_the_rest(&mut self, mut session: Session) -> Result<(), SessionError> {
        self.send_codes(&mut session)?;
        let map = session.snapshot()?;
        self.reported.add(map, session.clock());
        self.session = Some(session);
        Ok(())
    }

    /// What samples hit since the last question: it may be gone at the next look.
    fn send_codes(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let codes = self.inbox.take_codes();
        if codes.is_empty() {
            return Ok(());
        }
        session.add_code(codes, LATE_SLICE, &mut self.patience())
    }

    /// After the end: a guest that could not be reached may be by now. If not, its last report counts.
    fn last_try(&mut self) -> Result<(), GuestError> {
        // One limit for what is waited for before and after sampling.
        let left = self.limits.time.saturating_sub(self.inbox.waited()).max(LAST_TRY_AT_LEAST);
        let memory = self.memory.find(&self.process, &self.roots, self.unwinds);
        let Err(memory) = memory.and_then(|(memory, _)| self.last_try_over(&memory, left)) else {
            return Ok(());
        };
        let program = channel(&self.process);
        let done = program.and_then(|program| self.last_try_over(&program, left));
        done.map_err(|program| GuestError::no_way(program, memory))
    }

    fn last_try_over(&mut self, channel: &Channel, left: Duration) -> Result<(), GuestError> {
        self.take_port(channel)?;
        let deadline = Instant::now() + left;
        let child = self.child.clone();
        let never = &mut || false;
        let mut session = Session::open_within(channel, &self.limits, left, left, never, child)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let map = session.snapshot_within(left)?;
        self.reported.begin(map, session.clock(), matches!(channel, Channel::Memory(_)))?;
        self.via = via(channel);
        self.keep(session);
        Ok(())
    }

    fn answer(
        &mut self,
        start: HostNs,
        log: Log,
        asker: impl FnOnce(u32, std::collections::BTreeMap<u32, u32>) -> Asker,
    ) -> Answered {
        let Some(last) = self.reported.boots.last() else {
            let error = self.error.clone();
            return Err(error.unwrap_or_else(|| Arc::new(GuestError::NoAnswer)));
        };
        let numbers = last.map.numbers_in_session();
        let reported = match log {
            Log::GoesOn => self.reported.for_window(start),
            Log::Ends => self.reported.take(),
        };
        let via = self.via;
        let asker = self.session.is_some().then(|| asker(self.sessions, numbers));
        Ok(Answer { reported, via, asker, child: self.child.clone() })
    }

    fn send_symbols(&mut self, order: SymbolOrder) {
        // Another session has other numbers.
        let session = self.session.as_mut().filter(|_| order.session == self.sessions);
        if let Some(session) = session {
            let with_id = self.reported.boots.last().map(|boot| boot.map.with_build_id());
            let has_id = |module| with_id.as_ref().is_some_and(|known| known.contains(&module));
            session.symbols(&order.modules, &has_id, &mut |symbols| {
                // The receiver may be gone.
                let _ = order.answer.send(symbols);
            });
        }
    }

    /// Unwinds stacks, as many at a time as fit into a request.
    fn unwind(&mut self, order: UnwindOrder) {
        let UnwindOrder { samples, until, answer } = order;
        if self.via != MEMORY || self.inbox.is_gone() || until <= Instant::now() {
            return;
        }
        if Instant::now() < self.unwind_rest_until {
            let _ = answer.send(samples.iter().map(without_callers).collect());
            return;
        }
        let Some(mut session) = self.session.take() else { return };
        match self.unwind_over(&mut session, samples, until) {
            Ok(stacks) => {
                self.session = Some(session);
                // The receiver may be gone.
                let _ = answer.send(stacks);
            }
            Err(error) => self.lose(error.into()),
        }
    }

    fn unwind_over(
        &mut self,
        session: &mut Session,
        samples: Vec<StackSample>,
        until: Instant,
    ) -> Result<Vec<UnwoundStack>, SessionError> {
        // A process that was sampled for the first time has no mappings yet.
        self.send_codes(session)?;
        let mut stacks = Vec::with_capacity(samples.len());
        let mut left = samples.into_iter().peekable();
        // Answers come in time or not at all: those of the others are late.
        while left.peek().is_some() && Instant::now() < until {
            let mut room = UNWIND_BYTES;
            let mut batch = Vec::new();
            while batch.len() < MAX_STACKS
                && let Some(sample) = left.next_if(|sample| n_bytes(sample) <= room)
            {
                room -= n_bytes(&sample);
                batch.push(sample);
            }
            let unwound = session.unwind(batch, self.limits.time)?;
            stacks.extend(unwound.stacks);
            // Of the same process, but for no look.
            self.look_cpu_ns = self.look_cpu_ns.saturating_add(unwound.cpu_ns);
            let rest = Duration::from_nanos(unwound.cpu_ns) * UNWIND_REST;
            self.unwind_rest_until = self.unwind_rest_until.max(Instant::now()) + rest;
        }
        Ok(stacks)
    }

    /// Takes an order that has come, if none is held. `false`: the last receiver is gone.
    fn hold_order(&mut self) -> bool {
        if self.held.is_none() {
            match self.inbox.look() {
                WakeReason::Unwanted => return false,
                WakeReason::Order(order) => self.held = Some((order, Instant::now())),
                WakeReason::Time => {}
            }
        }
        true
    }

    /// Whether to wait on for a guest that is late: it may be busy, and giving it up would end its log. While it is sampled it
    /// is waited for; callers meanwhile get its last report.
    fn patience(&mut self) -> impl FnMut() -> bool {
        let requested = Instant::now();
        let mut was_late = false;
        move || {
            if !self.hold_order() {
                return false;
            }
            let (time, is_known) = (self.limits.time, was_late);
            let is_over = |(order, seen): &mut (Order, Instant)| {
                let goes_on = matches!(order, Order::Tell { log: Log::GoesOn, .. });
                time <= seen.elapsed() || is_known && goes_on
            };
            let orders = [&mut self.current, &mut self.held];
            let over = orders.into_iter().find_map(|order| order.take_if(is_over));
            match over {
                Some((Order::Tell { start, log: Log::GoesOn, answer, .. }, _)) => {
                    was_late = true;
                    answer.send(self.answer_without(start, requested.elapsed()));
                    self.inbox.answered();
                }
                Some(last @ (Order::Tell { log: Log::Ends, .. }, _)) => {
                    self.held = Some(last);
                    return false;
                }
                // The caller goes without symbols.
                Some((Order::Symbols(_) | Order::Unwind(_) | Order::Wake, _)) | None => {}
            }
            !self.inbox.is_gone()
        }
    }

    /// Whether to wait on for a guest that has not greeted yet. A window that ends in the meantime does not wait for
    /// it; after the last one it has the time of a last try.
    fn patience_before_greeting(&mut self) -> impl FnMut() -> bool {
        move || {
            if !self.hold_order() {
                return false;
            }
            let is_window = |(order, _): &mut (Order, Instant)| {
                matches!(order, Order::Tell { log: Log::GoesOn, .. })
            };
            if self.current.is_none() {
                self.current = self.held.take_if(is_window);
                self.answer_current();
            }
            let is_over = |(_, seen): &(Order, Instant)| {
                LAST_TRY_AT_LEAST <= seen.elapsed() && self.limits.time <= self.inbox.waited()
            };
            !self.held.as_ref().is_some_and(is_over) && !self.inbox.is_gone()
        }
    }

    /// What counts for a window whose end the guest has not reported yet.
    fn answer_without(&mut self, start: HostNs, waited: Duration) -> Answered {
        let late = SessionError::Late { question: "its map", waited };
        if self.reported.boots.is_empty() {
            return Err(Arc::new(late.into()));
        }
        let mut reported = self.reported.for_window(start);
        reported.lose(late.to_string());
        let via = self.via;
        Ok(Answer { reported, via, asker: None, child: self.child.clone() })
    }

    /// The symbols of one file after the other, for a while.
    fn keep_early_symbols(&mut self) -> Result<(), SessionError> {
        let began = Instant::now();
        let Some(mut session) = self.session.take() else { return Ok(()) };
        while began.elapsed() < EARLY_SYMBOLS && !self.inbox.is_gone() {
            let is_stored = is_stored(self.store.as_ref());
            let next =
                self.reported.boots.last_mut().and_then(|boot| boot.map.next_module(is_stored));
            let Some(module) = next else { break };
            self.keep_symbols(module, Pace::Prompt, &mut session)?;
        }
        self.session = Some(session);
        Ok(())
    }

    fn keep_symbols(
        &mut self,
        module: u32,
        pace: Pace,
        session: &mut Session,
    ) -> Result<(), SessionError> {
        let symbols = session.early_symbols(module, pace, LATE_SLICE, &mut self.patience());
        match symbols {
            Ok(symbols) => {
                self.look_cpu_ns = self.look_cpu_ns.saturating_add(symbols.cpu_ns);
                self.reported.keep(symbols);
            }
            // The others may still be queried.
            Err(SessionError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The stack of a sample that is not unwound.
fn without_callers(sample: &StackSample) -> UnwoundStack {
    let part = |registers: &StackRegisters| StackPart {
        frames: vec![registers.ip],
        end: StackEnd::TooMuchWork,
        basis: None,
    };
    UnwoundStack {
        kernel: sample.kernel.as_ref().map(part),
        user: sample.user.as_ref().map(part),
        interpreter: None,
    }
}

/// Bytes of a sample in a request, at most.
fn n_bytes(sample: &StackSample) -> usize {
    const OF_REGISTERS: usize = 256;
    OF_REGISTERS + sample.copies.iter().map(|copy| copy.bytes.len()).sum::<usize>()
}

/// Whether a file's symbols are known already.
fn is_stored(store: Option<&Store>) -> impl Fn(&GuestModule) -> bool + '_ {
    move |module| {
        let build_id = BuildId::new(&module.build_id);
        store.zip(build_id).is_some_and(|(store, id)| store.has(&id))
    }
}

fn has_news(map: &GuestMap) -> bool {
    !(map.images.is_empty() && map.kernel_threads.is_empty() && map.modules.is_empty())
}

/// Ends the wait for the first try of this user's guest; no caller may be waiting any more.
fn report_try(tried: &Sender<u32>, user: u32) {
    let _ = tried.send(user);
}
