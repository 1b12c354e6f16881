//! Messages between the fleet's server and its child processes that answer queries: `postcard` of these, some of them
//! followed by bytes.

use serde::{Deserialize, Serialize};

use crate::http::AnswerColumn;

/// A message to a child.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToChild {
    /// Answer this. Never before the answer to the one before, and `FromChild::Idle`.
    Ask(Question),
    /// The objects that hold a table's rows.
    Files {
        /// The question's number.
        id: u64,
        /// They, or why not.
        found: Result<Vec<Object>, String>,
    },
    /// A range of an object: the bytes follow.
    Bytes {
        /// The question's number.
        id: u64,
        /// Why nothing was.
        failed: Option<String>,
    },
    /// The time is over: answer with what there is.
    Stop { seconds: u64 },
}

/// A query for the sandboxed engine.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// One `SELECT`.
    pub sql: String,
    /// Values of its parameters, by name.
    pub values: Vec<(String, Value)>,
    /// Rows of the answer at most.
    pub rows: usize,
}

/// A parameter's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    Text(String),
    /// An instant, µs since 1970.
    Instant(i64),
}

/// An object of the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Object {
    pub name: String,
    pub bytes: u64,
    /// When it was made, µs since 1970.
    pub made_us: i64,
}

/// A message of a child.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromChild {
    /// Which objects hold this table's rows?
    Files {
        /// The question's number.
        id: u64,
        table: String,
    },
    /// Which bytes does this object have in this range?
    Read {
        /// The question's number.
        id: u64,
        object: String,
        start: u64,
        /// The byte after the last.
        end: u64,
    },
    /// The answer: the rows follow, JSON, or there is none.
    Answer(Result<Found, Unanswered>),
    /// Nothing of the query is left.
    Idle {
        /// It has kept memory, or has used most of its processor time.
        is_spent: bool,
    },
}

/// Of an answer all but its rows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// Names and types of a row's values.
    pub columns: Vec<AnswerColumn>,
    pub rows: usize,
    /// Why the answer is incomplete.
    pub partial: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Unanswered {
    /// The question is to blame.
    Invalid(String),
    /// It took too long before there was a row.
    Late,
    /// It took too much memory.
    Memory,
    /// The results in this object can't be read.
    Damaged(String),
    /// The store does not answer.
    Store(String),
}
