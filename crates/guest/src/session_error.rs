//! Why a guest did not answer as it should.

use std::time::Duration;

use api::guest::{Response, VERSION};
use api::symbols::InvalidAnswer;

use crate::answer::AnswerError;
use crate::frame::FrameError;
use crate::link::{Channel, LinkError};

/// Why a guest did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The guest is gone, or can't be reached.
    #[error("{channel}: {source}")]
    Link { channel: Channel, source: LinkError },
    /// Its vmscope-guest speaks another version of the protocol.
    #[error(
        "its vmscope-guest speaks protocol version {theirs}, this vmscope speaks {VERSION}: install the same version in the guest"
    )]
    Version { theirs: u32 },
    /// It can't do what was requested.
    #[error("the guest failed: {0}")]
    Refused(String),
    /// The message is not an answer to the request.
    #[error("it sent {0}")]
    Nonsense(String),
    /// It sent more than it may.
    #[error("it sent more than {0} bytes")]
    TooMuch(u64),
    /// It is connected, and an answer did not come in time.
    #[error(
        "no answer in time: after {:.0} s it is still at work on {question}; its CPUs are busy, or wait for CPUs of the host. \
         Record longer, or give it more time (--guest-timeout)", waited.as_secs_f64()
    )]
    Late {
        /// What it is at work on.
        question: &'static str,
        /// Since the question.
        waited: Duration,
    },
    /// It answers, and does not know the earlier question.
    #[error("it has started anew: vmscope-guest, or its whole system")]
    Forgotten,
    /// The process that reads its answers failed.
    #[error("its answer was not read: {0}")]
    Unread(String),
}

impl From<AnswerError> for SessionError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Invalid(InvalidAnswer::Version(theirs)) => Self::Version { theirs },
            AnswerError::Invalid(InvalidAnswer::Garbled(reason)) => {
                Self::Nonsense(bounded(&reason))
            }
            AnswerError::Unread(reason) => Self::Unread(bounded(&reason)),
        }
    }
}

impl SessionError {
    /// Whether it answered, and not as it should: asking again will cost as much, and hardly help.
    #[must_use]
    pub fn is_nonsense(&self) -> bool {
        matches!(self, Self::Nonsense(_) | Self::TooMuch(_) | Self::Version { .. })
    }

    /// Whether there was no answer in time.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. } | Self::Link { source: LinkError::TimedOut, .. })
    }
}

pub(crate) fn check_version(theirs: u32) -> Result<(), SessionError> {
    if theirs == VERSION { Ok(()) } else { Err(SessionError::Version { theirs }) }
}

pub(crate) fn nonsense(error: FrameError) -> SessionError {
    SessionError::Nonsense(error.to_string())
}

pub(crate) fn unexpected(response: &Response) -> SessionError {
    let what = match response {
        Response::Hello { .. } => "a greeting",
        Response::LogStarted { .. } => "a log's begin",
        Response::Map(_) => "a map",
        Response::Symbols(_) => "symbols",
        Response::Error(_) => "an error",
        Response::TraceStarted(_) => "a trace's begin",
        Response::TraceSeen(_) => "a look at its clocks",
        Response::TraceSlots(_) => "events",
        Response::TraceStopped(_) => "a trace's end",
        Response::Pong { .. } => "an answer to a ping",
        Response::CurrentTasks(_) => "where tasks are",
        Response::CodeAdded => "that it has added code",
        Response::Stacks(_) => "stacks",
    };
    SessionError::Nonsense(format!("unrequested {what}"))
}

pub(crate) fn bounded(text: &str) -> String {
    crate::check::clean(text, 300)
}
