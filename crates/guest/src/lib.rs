//! Guest maps: which process, thread, module and function of a guest an address and a CR3 mean.
//!
//! Both ends of the protocol in `api::guest`: the host's session and the checks that everything a
//! guest says must pass (`merge`), and, with the feature `inside`, the reader that runs in the guest.
//! The walker over kernel memory is in crate `linux`: it reads through a trait.
//!
//! Design constraints: whatever comes from a guest is bounded in bytes, time, count and depth before
//! anything is built from it, and only ever adds rows of that guest's VM. This crate must never
//! trust a length, index, address or text of a guest, and must never wait without a deadline on one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod check;
#[cfg(any(feature = "inside", feature = "outside"))]
mod elf;
mod file;
mod frame;
mod functions;
#[cfg(feature = "inside")]
pub mod inside;
mod known;
mod link;
mod merge;
#[cfg(feature = "outside")]
pub mod outside;
mod session;
mod session_error;
mod stacks;
mod trace;
mod vsock;

pub use answer::{AnswerError, AnswerReader, decode_answer};
pub use file::{SnapshotError, read_snapshot};
pub use frame::FrameError;
pub use functions::functions;
pub use known::{CachedMap, MAX_KEPT_BYTES};
pub use link::{Channel, LinkError};
pub use merge::{KernelFunctions, MapSpan, Merged, ReportedMap, SampleKey, merge};
pub use session::{Limits, LogStart, Session};
pub use session_error::SessionError;
pub use trace::printable_output;

/// Now, `CLOCK_MONOTONIC`, ns.
fn now_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Monotonic)
}

fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// For tests that feed bytes: frames without a link, and answers that are read without a child.
#[doc(hidden)]
pub mod fuzzing {
    use api::guest::{MAX_ANSWER_BYTES, Response};

    use crate::frame::{Decoder, encode};
    use crate::{AnswerError, AnswerReader, decode_answer};

    /// Reads answers in this process.
    #[derive(Debug, Clone, Copy)]
    pub struct Here;

    impl AnswerReader for Here {
        fn read(&mut self, content: Vec<u8>) -> Result<Response, AnswerError> {
            decode_answer(&content).map_err(AnswerError::Invalid)
        }
    }

    /// A response as a guest would send it.
    #[must_use]
    pub fn frame(response: &Response) -> Vec<u8> {
        encode(0, response, MAX_ANSWER_BYTES).unwrap_or_default()
    }

    /// What a trace's answer is taken for; `None`: for nonsense.
    #[must_use]
    pub fn check_trace(response: Response) -> Option<Response> {
        crate::trace::check(response)
    }

    /// The responses in a stream of bytes, until it makes no sense.
    #[must_use]
    pub fn responses(bytes: &[u8]) -> Vec<Response> {
        let mut decoder = Decoder::any_session(MAX_ANSWER_BYTES);
        let mut responses = Vec::new();
        decoder.push(bytes);
        while let Ok(Some(frame)) = decoder.next() {
            responses.extend(decode_answer(&frame.content));
        }
        responses
    }
}
