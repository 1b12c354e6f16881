//! The host's side of the protocol: one session with one guest.

mod ask;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::guest::{
    CurrentTasks, GuestMap, HEADER_BYTES, MAX_ANSWER_BYTES, ModuleSymbols, Pace, Request, Response,
    StackSample, UnwoundStacks, VERSION,
};
use model::{Clock, GuestCode};

use crate::answer::AnswerReader;
use crate::frame::Decoder;
use crate::known::symbol_bytes;
use crate::link::{Channel, Link};
use crate::now_ns;
use crate::session_error::{SessionError, bounded, check_version, unexpected};
use crate::stacks;

/// What a guest may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// For each step: connecting and beginning the log, the map, all symbols.
    pub time: Duration,
    /// For what it answers to one question.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), bytes: 256 << 20 }
    }
}

/// Of files whose symbols are requested before it is known that a sample hit them.
const LARGEST_EARLY_FILE: u64 = 4 << 20;

/// Bytes before and among greetings: the rest of an answer to a host that went away may lie in a serial port.
const MAX_GREETING_BYTES: usize = MAX_ANSWER_BYTES + (64 << 10);

/// A guest's log has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStart {
    /// When, guest's `CLOCK_MONOTONIC`, ns.
    pub guest_ns: u64,
    /// Why it can't note everything, when it can't.
    pub problem: Option<String>,
}

/// A session with a guest.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    link: Link,
    decoder: Decoder,
    reader: Box<dyn AnswerReader>,
    number: u64,
    limits: Limits,
    /// Of the question under way.
    deadline: Instant,
    bytes_left: u64,
    /// `bytes_left` at the question.
    most_bytes: u64,
    /// Whether all of it was sent.
    is_requested: bool,
    /// Numbers of pings: of the next one, and of the first one after the question.
    next_ping: u64,
    first_ping: u64,
    /// Greetings that were not waited for.
    owed_greetings: usize,
    clock: Option<Clock>,
    /// Symbols of files without a build id, and of files that can't be read: no store can keep them.
    sent: BTreeMap<u32, ModuleSymbols>,
    sent_bytes: usize,
}

/// Of those.
const MAX_SENT_BYTES: usize = 16 << 20;

impl Session {
    /// Connects and agrees on the protocol's version and the clocks. Together with `start_log` it has
    /// the time limit of one step, however many questions that takes. `reader` reads what the guest sends.
    ///
    /// # Errors
    /// If there is no guest, it does not answer in time, or it speaks another version.
    pub fn open(
        channel: &Channel,
        limits: &Limits,
        reader: impl AnswerReader + 'static,
    ) -> Result<Self, SessionError> {
        Self::open_within(channel, limits, limits.time, limits.time, &mut || false, reader)
    }

    /// As `open`, with a time limit of its own for this step. After every `slice` without an answer, `is_patient` decides
    /// whether to keep waiting until then.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_within(
        channel: &Channel,
        limits: &Limits,
        limit: Duration,
        slice: Duration,
        is_patient: &mut dyn FnMut() -> bool,
        reader: impl AnswerReader + 'static,
    ) -> Result<Self, SessionError> {
        let deadline = Instant::now() + limit;
        let link = Link::open(channel, deadline)
            .map_err(|source| SessionError::Link { channel: channel.clone(), source })?;
        let mut session = Self::over(link, channel.clone(), limits.clone(), Box::new(reader));
        session.deadline = deadline.min(Instant::now() + slice);
        session.hello(slice, &mut || Instant::now() < deadline && is_patient())?;
        Ok(session)
    }

    fn over(link: Link, channel: Channel, limits: Limits, reader: Box<dyn AnswerReader>) -> Self {
        let number = session_number();
        let decoder = Decoder::of_session(number, MAX_ANSWER_BYTES);
        let (bytes_left, most_bytes) = (limits.bytes, limits.bytes);
        let deadline = Instant::now() + limits.time;
        Self {
            channel,
            link,
            decoder,
            reader,
            number,
            limits,
            deadline,
            bytes_left,
            most_bytes,
            is_requested: false,
            next_ping: 0,
            first_ping: 0,
            owed_greetings: 0,
            clock: None,
            sent: BTreeMap::new(),
            sent_bytes: 0,
        }
    }

    /// The guest's clock on the host's, from the fastest round trip so far.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.unwrap_or_default()
    }

    /// Has the guest note processes that start and end. A guest that is late is waited for as by `changes_while_sampled`.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn start_log(
        &mut self,
        pace: Pace,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<LogStart, SessionError> {
        self.begin_question(limit);
        match self.ask_patiently(&Request::StartLog { pace }, limit, is_patient)? {
            Response::LogStarted { now_ns, problem } => {
                Ok(LogStart { guest_ns: now_ns, problem: problem.map(|text| bounded(&text)) })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Takes what the guest has not sent yet in this session; its log goes on. Not checked yet: see `merge`. It has the
    /// bytes of a step of its own: a long recording asks often. A guest that is late is waited for as by
    /// `changes_while_sampled`.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn changes(
        &mut self,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<GuestMap, SessionError> {
        self.begin_question(limit);
        map_of(self.ask_patiently(&Request::Changes { pace: Pace::Prompt }, limit, is_patient)?)
    }

    /// Like `changes`, for a guest that is being sampled. A busy guest may answer late, and hanging up would end its log. So
    /// after every `limit` without an answer, `is_patient` decides whether to keep waiting; and the guest is queried
    /// now and then whether it has booted again meanwhile.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn changes_while_sampled(
        &mut self,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<GuestMap, SessionError> {
        let question = Request::Changes { pace: Pace::Low };
        map_of(self.ask_at_pace(&question, Pace::Low, limit, is_patient)?)
    }

    /// Like `changes_while_sampled`, with what else may have changed since the last window, and a new look at the clocks, which
    /// drift apart in hours.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn window_end(
        &mut self,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<GuestMap, SessionError> {
        let answer = self.ask_at_pace(&Request::WindowEnd, Pace::Low, limit, is_patient)?;
        let map = map_of(answer)?;
        self.begin_question(limit);
        self.clock = None;
        self.hello(limit, is_patient)?;
        Ok(map)
    }

    /// What reads the guest's memory works in the background from now on. A program in the guest chooses its priority itself.
    #[cfg(feature = "outside")]
    pub fn lower_priority(&self) {
        self.link.lower_priority();
    }

    /// Where the guest's kernel says which task runs on each CPU.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn current_tasks(&mut self, limit: Duration) -> Result<CurrentTasks, SessionError> {
        self.begin_question(limit);
        match self.ask(&Request::CurrentTasks)? {
            Response::CurrentTasks(tasks) => Ok(*tasks),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the guest's memory be read for these tasks, which samples hit: the next map has them.
    ///
    /// # Errors
    /// If it is not read any more.
    pub fn add_code(
        &mut self,
        codes: Vec<GuestCode>,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        match self.ask_at_pace(&Request::AddCode(codes), Pace::Low, limit, is_patient)? {
            Response::CodeAdded => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Frames of stacks that were copied, and the CPU time that this took.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn unwind(
        &mut self,
        samples: Vec<StackSample>,
        limit: Duration,
    ) -> Result<UnwoundStacks, SessionError> {
        self.begin_question(limit);
        let n_requested = samples.len();
        match self.ask(&Request::Stacks(samples))? {
            Response::Stacks(UnwoundStacks { stacks, cpu_ns }) => {
                stacks::check(stacks, n_requested)
                    .map(|stacks| UnwoundStacks { stacks, cpu_ns })
                    .ok_or_else(|| SessionError::Nonsense("stacks of other samples".into()))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Takes the rest, with who is alive now; ends the log. It has the time limit of one step.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn snapshot(&mut self) -> Result<GuestMap, SessionError> {
        self.snapshot_within(self.limits.time)
    }

    /// As `snapshot`, with a time limit of its own.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn snapshot_within(&mut self, limit: Duration) -> Result<GuestMap, SessionError> {
        self.begin_question(limit);
        let map = map_of(self.ask(&Request::Snapshot)?)?;
        // Clocks drift: a second look, near what the times are used for. The map is worth more than it.
        match self.hello(limit, &mut || false) {
            Err(error) if error.is_late() => self.owed_greetings += 1,
            done => done?,
        }
        Ok(map)
    }

    /// The symbols of one module (its number in this session) before the end, unless its file is large. A guest that is late
    /// is waited for as by `changes_while_sampled`.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn early_symbols(
        &mut self,
        module: u32,
        pace: Pace,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<ModuleSymbols, SessionError> {
        let largest_file = LARGEST_EARLY_FILE;
        let question = Request::Symbols { modules: vec![module], pace, largest_file };
        symbols_of(module, self.ask_at_pace(&question, pace, limit, is_patient)?)
    }

    /// Shows the symbols of these modules (their numbers in this session) to `see`, one entry for each, as they come: all
    /// of them may be more than there is memory for. All of them together have the time limit of one step; a module whose
    /// answer fails has the reason as its problem, and after a failed connection the rest has it too. The guest is
    /// queried once for a file without a build id, or one that it can't read: `has_build_id` says which have one.
    pub fn symbols(
        &mut self,
        modules: &[u32],
        has_build_id: &dyn Fn(u32) -> bool,
        see: &mut dyn FnMut(ModuleSymbols),
    ) {
        self.begin_question(self.limits.time);
        let mut broken: Option<String> = None;
        for module in modules {
            if let Some(sent) = self.sent.get(module) {
                see(ModuleSymbols { cpu_ns: 0, ..sent.clone() });
                continue;
            }
            let outcome = match &broken {
                Some(reason) => Err(reason.clone()),
                None => self.symbols_of(*module, has_build_id(*module)).map_err(|error| {
                    let reason = error.to_string();
                    // What was refused, or stopped its reader, leaves the way free for the next one.
                    if !matches!(error, SessionError::Refused(_) | SessionError::Unread(_)) {
                        broken = Some(reason.clone());
                    }
                    reason
                }),
            };
            see(outcome.unwrap_or_else(|reason| ModuleSymbols {
                module: *module,
                problem: Some(reason),
                ..ModuleSymbols::default()
            }));
        }
    }

    /// Keeps what would be requested again.
    fn keep_sent(&mut self, symbols: &ModuleSymbols, has_build_id: bool) {
        let bytes = symbol_bytes(symbols);
        let is_again = !has_build_id || symbols.problem.is_some();
        if is_again && self.sent_bytes + bytes <= MAX_SENT_BYTES {
            self.sent_bytes += bytes;
            self.sent.insert(symbols.module, symbols.clone());
        }
    }

    fn symbols_of(
        &mut self,
        module: u32,
        has_build_id: bool,
    ) -> Result<ModuleSymbols, SessionError> {
        let (pace, largest_file) = (Pace::Prompt, u64::MAX);
        let question = Request::Symbols { modules: vec![module], pace, largest_file };
        let symbols = symbols_of(module, self.ask(&question)?)?;
        self.keep_sent(&symbols, has_build_id);
        Ok(symbols)
    }

    /// Exchanges a few greetings: the fastest tells the clocks' difference best.
    fn hello(
        &mut self,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        const EXCHANGES: usize = 5;
        self.allow(self.limits.bytes.min(MAX_GREETING_BYTES as u64));
        for _ in 0..EXCHANGES {
            let sent_ns = now_ns();
            let request = Request::Hello { version: VERSION };
            let (answer, received_ns) =
                self.ask_patiently_noting(&request, limit, is_patient, now_ns)?;
            let Response::Hello { version, now_ns } = answer else {
                return Err(unexpected(&answer));
            };
            check_version(version)?;
            let clock = clock_of(sent_ns, now_ns, received_ns);
            if self.clock.is_none_or(|best| clock.error_ns < best.error_ns) {
                self.clock = Some(clock);
            }
        }
        Ok(())
    }
}

const _: () = assert!(HEADER_BYTES == 20);

fn map_of(answer: Response) -> Result<GuestMap, SessionError> {
    let map = match answer {
        Response::Map(map) => *map,
        other => return Err(unexpected(&other)),
    };
    check_version(map.version)?;
    Ok(map)
}

fn symbols_of(module: u32, answer: Response) -> Result<ModuleSymbols, SessionError> {
    match answer {
        Response::Symbols(mut answers) if answers.len() == 1 && answers[0].module == module => {
            Ok(answers.remove(0))
        }
        other => Err(unexpected(&other)),
    }
}

/// The guest read its clock somewhere between sending and receiving: most likely in the middle.
fn clock_of(sent_ns: u64, guest_ns: u64, received_ns: u64) -> Clock {
    let round_trip_ns = received_ns.saturating_sub(sent_ns);
    let middle_ns = sent_ns + round_trip_ns / 2;
    Clock {
        // Wraps to the right difference; a nonsense clock gives a nonsense one, which saturates later.
        host_minus_guest_ns: middle_ns.wrapping_sub(guest_ns).cast_signed(),
        error_ns: round_trip_ns.div_ceil(2),
    }
}

/// Different from those of other sessions with this guest: not a secret.
fn session_number() -> u64 {
    now_ns().rotate_left(20) ^ u64::from(std::process::id())
}

#[cfg(test)]
#[path = "session_test.rs"]
mod test;
