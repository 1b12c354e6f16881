//! Samples beside a trace: one loop serves both.
//!
//! ```text
//!  Attaching --attach--> Sampling --poll_if_due ...--> end --> Sampled
//! ```

use crate::CollectError;
use crate::plan::Control;
use crate::record::{Recorder, SampledWindow};

/// A recording that runs beside a trace.
#[derive(Debug)]
pub(crate) enum ConcurrentSampler {
    Nothing,
    /// Samples, when the trace has begun.
    Attaching(Box<Recorder>),
    Sampling(Box<Recorder>),
    /// Samples up to the trace's end.
    Sampled(Box<SampledWindow>),
}

impl ConcurrentSampler {
    /// The trace has begun.
    pub(crate) fn attach(&mut self) -> Result<(), CollectError> {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Attaching(mut recorder) => match recorder.attach() {
                Ok(()) => Self::Sampling(recorder),
                Err(error) => {
                    *self = Self::Attaching(recorder);
                    return Err(error);
                }
            },
            other => other,
        };
        Ok(())
    }

    /// Drains the rings if it is time.
    pub(crate) fn poll_if_due(&mut self, control: &mut dyn Control) -> Result<(), CollectError> {
        match self {
            Self::Sampling(recorder) => recorder.poll_if_due(control),
            _ => Ok(()),
        }
    }

    /// The trace is about to end.
    pub(crate) fn end(&mut self) -> Result<(), CollectError> {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Sampling(recorder) => Self::Sampled(Box::new(recorder.end_recording()?)),
            other => other,
        };
        Ok(())
    }

    /// The trace failed. Before it had begun nothing was recorded: then the folder goes, too. Else what was recorded stays.
    pub(crate) fn give_up(self, error: CollectError) -> CollectError {
        match self {
            Self::Attaching(recorder) | Self::Sampling(recorder) => recorder.discard(error),
            Self::Sampled(sampled) if matches!(error, CollectError::Discarded) => {
                sampled.discard().err().unwrap_or(error)
            }
            _ => error,
        }
    }

    /// The window that was sampled until the trace ended.
    pub(crate) fn into_sampled(self) -> Option<SampledWindow> {
        match self {
            Self::Sampled(sampled) => Some(*sampled),
            _ => None,
        }
    }
}
