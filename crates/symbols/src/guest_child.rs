//! The process without privileges that reads what one guest sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::guest::Response;
use api::symbols::{SymbolAnswer, SymbolQuestion};
use guest::{AnswerError, AnswerReader};
use sandbox::{Failure, Sandbox};

use crate::SymbolReader;

/// Reads the answers of one guest, and its mangled names, in a child, which is started by the first question. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct GuestChild(Arc<Mutex<Sandbox<SymbolReader>>>);

impl GuestChild {
    /// With a sandbox that is not the usual one, for tests.
    #[must_use]
    pub fn with_sandbox(sandbox: Sandbox<SymbolReader>) -> Self {
        Self(Arc::new(Mutex::new(sandbox)))
    }

    /// The child's process id, while there is one.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.sandbox().child()
    }

    pub(crate) fn ask(&self, question: &SymbolQuestion) -> Result<SymbolAnswer, Failure> {
        self.sandbox().ask(question, &[])
    }

    /// A question that panicked has no part in the next one.
    fn sandbox(&self) -> MutexGuard<'_, Sandbox<SymbolReader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AnswerReader for GuestChild {
    fn read(&mut self, content: Vec<u8>) -> Result<Response, AnswerError> {
        match self.ask(&SymbolQuestion::GuestAnswer(content)) {
            Ok(SymbolAnswer::GuestAnswer(answer)) => answer.map_err(AnswerError::Invalid),
            Ok(_) => Err(AnswerError::Unread(Failure::Nonsense.to_string())),
            Err(failure) => Err(AnswerError::Unread(failure.to_string())),
        }
    }
}
