//! The lines that the program writes to a serial port: one JSON object each (docs/boot.md).
//!
//! A log is whatever came out of a serial port: the firmware's words before, between and in front of ours, bytes lost,
//! an end that never came, the machine starting again.
//!
//! ```text
//!             +------------------------ header: it started again ------------------------+
//!             v                                                                          |
//!  header --> condition --> begin --> result --> begin --> ... --> end                    |
//!                             |                                                          |
//!                             +--> (another begin: its result was lost)                  |
//!                             +--> (nothing more: it hung) ------------------------------+
//! ```

mod boot;
mod understand;

use std::fmt;

use serde_json::Value;

use self::boot::{Boot, merge};
#[cfg(test)]
pub(crate) use self::understand::is_name;
use self::understand::{Said, understand};
use crate::bounded::Notes;
use crate::condition::Condition;
use crate::results::Results;

/// Longer lines are not ours.
const LINE_BYTES: usize = 1 << 16;
/// More objects in a line are not ours either.
const OBJECTS: usize = 64;
/// A machine that starts more often is in a loop.
const BOOTS: usize = 64;

/// What a program on the other end of a serial line said so far.
#[derive(Debug, Default)]
pub struct Log {
    boots: Vec<Boot>,
    lines: usize,
    notes: Notes,
    /// The version of lines that could not be read.
    unknown_version: Option<u64>,
}

/// A line's content, for progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// The program started; so many operations are to come.
    Started(Option<u32>),
    Began(String, Condition),
    Outcome,
    /// It can't do what was requested.
    Refused,
    Ended,
}

/// Why there are no results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoResults {
    /// No line of the program.
    NothingOfOurs,
    Version(u64),
    /// The program refused to measure.
    Refused {
        error: String,
        /// What it can do instead.
        choices: Vec<String>,
    },
    /// It said what machine it is, and no more.
    NothingMeasured,
}

impl Log {
    /// Takes one line, with or without its end; its content, in order.
    pub fn push(&mut self, line: &[u8]) -> Vec<Heard> {
        self.lines += 1;
        if LINE_BYTES < line.len() {
            self.notes.add(&format!("line {}: {} bytes, ignored", self.lines, line.len()));
            return Vec::new();
        }
        let line = String::from_utf8_lossy(line);
        let found = objects(&line);
        for start in &found.damaged {
            self.notes.add(&format!("line {}: damaged: {start}", self.lines));
        }
        let mut heard = Vec::new();
        for value in found.values {
            match understand(&value) {
                Some(Ok(said)) => heard.extend(self.take(said)),
                Some(Err(why)) => self.notes.add(&format!("line {}: damaged: {why}", self.lines)),
                None => {}
            }
        }
        heard
    }

    /// The operation that began, and has no outcome.
    #[must_use]
    pub fn pending(&self) -> Option<(&str, Condition)> {
        self.boots.last().and_then(Boot::pending)
    }

    /// Whether the last start came to its end, or was refused.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.boots.last().is_some_and(|boot| boot.has_ended() || boot.is_refused())
    }

    /// How many times the program has started.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.boots.len()
    }

    /// The machine does not come back from the pending operation.
    pub fn hang(&mut self, reason: &str) {
        if let Some(boot) = self.boots.last_mut() {
            boot.hang(reason);
        }
    }

    /// Something that the reader of the results should know.
    pub fn note(&mut self, note: &str) {
        self.notes.add(note);
    }

    /// All starts of one machine taken together; a later outcome replaces an earlier one.
    ///
    /// # Errors
    /// Why there are no results.
    pub fn results(self) -> Result<Results, NoResults> {
        if let Some(version) = self.unknown_version {
            return Err(NoResults::Version(version));
        }
        merge(self.boots, self.notes)
    }

    fn take(&mut self, said: Said) -> Option<Heard> {
        match said {
            Said::Header(header) if header.version != 1 => {
                self.unknown_version = Some(header.version);
                return None;
            }
            Said::Header(header) => {
                let planned = header.machine.planned;
                self.start(Boot::with_header(*header));
                return Some(Heard::Started(planned));
            }
            _ => {}
        }
        if self.boots.is_empty() {
            self.notes.add("the header is lost: machine and clock are not known");
            self.start(Boot::default());
        }
        let boot = self.boots.last_mut()?;
        match said {
            Said::Header(_) => None,
            Said::Condition(found) => {
                boot.enter(found);
                None
            }
            Said::Begin(operation, condition) => {
                boot.begin(&operation, condition);
                Some(Heard::Began(operation, condition))
            }
            Said::Result(measurement) => {
                boot.finish(measurement);
                Some(Heard::Outcome)
            }
            Said::Warning(text) => {
                self.notes.add(&text);
                None
            }
            Said::Error(error, choices) => {
                boot.refuse(error, choices);
                Some(Heard::Refused)
            }
            Said::End(end) => {
                boot.end(end);
                Some(Heard::Ended)
            }
        }
    }

    fn start(&mut self, boot: Boot) {
        if let Some(before) = self.boots.last_mut()
            && !before.has_ended()
        {
            before.hang("the machine started again");
        }
        if self.boots.len() == BOOTS {
            self.boots.remove(0);
        }
        self.boots.push(boot);
    }
}

/// Reads a whole log.
///
/// # Errors
/// Why there are no results in it.
pub fn parse(log: &[u8]) -> Result<Results, NoResults> {
    let mut said = Log::default();
    for line in log.split(|byte| *byte == b'\n') {
        said.push(line);
    }
    said.hang("the log ends there");
    said.results()
}

impl fmt::Display for NoResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingOfOurs => f.write_str("no benchmark output in this file"),
            Self::Version(version) => write!(
                f,
                "its lines have version {version}, this vmscope reads version 1: use the vmscope that the image was \
                 built with"
            ),
            Self::Refused { error, choices } if choices.is_empty() => {
                write!(f, "the image says: {error}")
            }
            Self::Refused { error, choices } => {
                write!(f, "the image says: {error}; it knows: {}", choices.join(", "))
            }
            Self::NothingMeasured => f.write_str("the benchmark started, and measured nothing"),
        }
    }
}

impl std::error::Error for NoResults {}

/// The objects in a line, and the starts of those that are ours and don't end as JSON.
#[derive(Default)]
struct Found {
    values: Vec<Value>,
    damaged: Vec<String>,
}

fn objects(line: &str) -> Found {
    let mut found = Found::default();
    let mut rest = line;
    for _ in 0..OBJECTS {
        let Some(at) = rest.find("{\"") else { return found };
        rest = &rest[at..];
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                rest = &rest[stream.byte_offset()..];
                found.values.push(value);
            }
            _ => {
                if understand::is_ours(rest) {
                    found.damaged.push(rest.chars().take(60).collect());
                }
                rest = &rest[2..];
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
