//! How a session asks: one question at a time, with limits of time and bytes, and what becomes of a late answer.
//!
//! ```text
//!   host: question ......... ping ...... ping
//!   guest:       (at work ...................) answer, pong, pong
//!   guest that has started anew:       pong                        the question is forgotten
//! ```

use std::time::{Duration, Instant};

use api::guest::{HEADER_BYTES, MAX_LOW_PACE_BYTES, MAX_REQUEST_BYTES, Pace, Request, Response};

use super::Session;
use crate::frame;
use crate::link::LinkError;
use crate::session_error::{SessionError, bounded, nonsense};

/// A guest that is late for long is pinged at this interval.
const PING_AT_MIN_EVERY: Duration = Duration::from_secs(32);

impl Session {
    /// A session may go on for hours: each question has a time and bytes of its own.
    pub(super) fn begin_question(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
        self.allow(self.limits.bytes);
    }

    pub(super) fn allow(&mut self, bytes: u64) {
        (self.bytes_left, self.most_bytes) = (bytes, bytes);
    }

    pub(super) fn ask_at_pace(
        &mut self,
        question: &Request,
        pace: Pace,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<Response, SessionError> {
        self.begin_question(limit);
        if pace == Pace::Low {
            // A guest that is polled every few seconds may send little.
            self.allow(self.limits.bytes.min((MAX_LOW_PACE_BYTES + HEADER_BYTES) as u64));
        }
        self.ask_patiently(question, limit, is_patient)
    }

    pub(super) fn ask_patiently(
        &mut self,
        question: &Request,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
    ) -> Result<Response, SessionError> {
        self.ask_patiently_noting(question, limit, is_patient, || ()).map(|(answer, ())| answer)
    }

    /// Whenever the deadline of an answer has passed, it is put off by `limit` if `is_patient`. The answer is then still the
    /// session's: no question is queried anew.
    pub(super) fn ask_patiently_noting<T>(
        &mut self,
        question: &Request,
        limit: Duration,
        is_patient: &mut dyn FnMut() -> bool,
        note: impl Fn() -> T,
    ) -> Result<(Response, T), SessionError> {
        let requested = Instant::now();
        let mut pause = limit;
        let mut ping_at = requested + pause;
        let mut answer = self.ask_noting(question, &note);
        while self.is_requested && answer.as_ref().is_err_and(SessionError::is_late) {
            if !is_patient() {
                let waited = requested.elapsed();
                let late = |question| Err(SessionError::Late { question, waited });
                return name(question).map_or(answer, late);
            }
            self.deadline = Instant::now() + limit;
            if ping_at <= Instant::now() {
                self.ping()?;
                pause = (pause * 2).min(PING_AT_MIN_EVERY);
                ping_at = Instant::now() + pause;
            }
            answer = self.answer(&note);
        }
        answer
    }

    /// Asks whether the guest is still there, besides the question. A guest that has booted again meanwhile answers
    /// this alone, or resets the connection.
    fn ping(&mut self) -> Result<(), SessionError> {
        self.send(&Request::Ping { number: self.next_ping })?;
        self.next_ping += 1;
        Ok(())
    }

    /// One question with the time and the bytes of a step of its own: a trace may ask for hours.
    pub(crate) fn ask_step(&mut self, request: &Request) -> Result<Response, SessionError> {
        self.ask_step_noting(request, || ()).map(|(answer, ())| answer)
    }

    /// The same, with what `note` says when the answer is there and not read yet.
    pub(crate) fn ask_step_noting<T>(
        &mut self,
        request: &Request,
        note: impl Fn() -> T,
    ) -> Result<(Response, T), SessionError> {
        self.begin_question(self.limits.time);
        self.ask_noting(request, &note)
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<Response, SessionError> {
        self.ask_noting(request, &|| ()).map(|(answer, ())| answer)
    }

    fn ask_noting<T>(
        &mut self,
        request: &Request,
        note: &impl Fn() -> T,
    ) -> Result<(Response, T), SessionError> {
        self.is_requested = false;
        self.first_ping = self.next_ping;
        self.send(request)?;
        self.is_requested = true;
        self.answer(note)
    }

    fn send(&self, request: &Request) -> Result<(), SessionError> {
        let bytes = frame::encode(self.number, request, MAX_REQUEST_BYTES).map_err(nonsense)?;
        self.link.send(&bytes, self.deadline).map_err(|source| self.failed(source))
    }

    fn answer<T>(&mut self, note: &impl Fn() -> T) -> Result<(Response, T), SessionError> {
        loop {
            let content = self.receive(self.deadline)?;
            let noted = note();
            match self.reader.read(content)? {
                Response::Error(text) => return Err(SessionError::Refused(bounded(&text))),
                // To an earlier question, which was answered late.
                Response::Pong { number } if number < self.first_ping => {}
                Response::Pong { .. } => return Err(SessionError::Forgotten),
                Response::Hello { .. } if 0 < self.owed_greetings => self.owed_greetings -= 1,
                response => return Ok((response, noted)),
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<Vec<u8>, SessionError> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            if let Some(frame) = self.decoder.next().map_err(nonsense)? {
                return Ok(frame.content);
            }
            let length =
                self.link.receive(&mut chunk, deadline).map_err(|source| self.failed(source))?;
            self.bytes_left = self
                .bytes_left
                .checked_sub(length as u64)
                .ok_or(SessionError::TooMuch(self.most_bytes))?;
            self.decoder.push(&chunk[..length]);
        }
    }

    fn failed(&self, source: LinkError) -> SessionError {
        SessionError::Link { channel: self.channel.clone(), source }
    }
}

/// What a guest is at work on; `None`: nothing that takes long.
fn name(question: &Request) -> Option<&'static str> {
    match question {
        Request::StartLog { .. } => Some("its log of processes"),
        Request::Changes { .. } | Request::WindowEnd | Request::Snapshot => Some("its map"),
        Request::Symbols { .. } => Some("the functions of a file"),
        Request::AddCode(_) => Some("the tasks that samples hit"),
        _ => None,
    }
}
