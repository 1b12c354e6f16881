//! Storing what is known so far beside the rings: to make files durable takes a busy disk seconds, in which rings fill.

use std::sync::Arc;
use std::thread::JoinHandle;

use model::TraceTables;
use recording::Error;
use recording::trace::{TraceHeader, TraceWriter};

/// A trace's writer, and the thread that stores a checkpoint, if one does.
#[derive(Debug)]
pub(super) struct Checkpoints {
    writer: Arc<TraceWriter>,
    under_way: Option<JoinHandle<Result<(), Error>>>,
}

impl Checkpoints {
    pub(super) fn new(writer: TraceWriter) -> Self {
        Self { writer: Arc::new(writer), under_way: None }
    }

    pub(super) fn writer(&self) -> &TraceWriter {
        &self.writer
    }

    /// Whether the last one is not stored yet: the next has to wait.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Has a checkpoint stored, after the last one. The error is the last one's.
    pub(super) fn store(&mut self, header: TraceHeader, tables: TraceTables) -> Result<(), Error> {
        self.settle()?;
        let writer = Arc::clone(&self.writer);
        self.under_way = Some(std::thread::spawn(move || writer.checkpoint(&header, &tables)));
        Ok(())
    }

    /// The writer, after the last checkpoint.
    pub(super) fn end(mut self) -> Result<TraceWriter, Error> {
        self.settle()?;
        Ok(Arc::into_inner(self.writer).expect("the thread has ended"))
    }

    fn settle(&mut self) -> Result<(), Error> {
        match self.under_way.take().map(JoinHandle::join) {
            Some(Ok(stored)) => stored,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}
