//! What `vmscope` asks a child process about the rings of a guest, and what that answers: it reads them in the memory of the
//! VM's process, whose descriptor (`/proc/PID/mem`) comes with each question, and may wait there for ever.
//!
//! An answer is hostile: the guest writes the rings. No list grows beyond the limit its field names here.

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::guest::{MAX_OTHERS, at_most};

/// Most bytes of slots in one answer.
pub const MAX_TAKEN_BYTES: usize = 4 << 20;

/// The request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingQuestion {
    /// Remember where the rings lie. Answer: `Heads`.
    Open {
        rings: u32,
        slots_per_ring: u32,
        /// Addresses of the pages of the rings' heads, in the VM's process.
        heads: Vec<u64>,
        /// The same of the slots.
        slots: Vec<u64>,
    },
    /// Read all rings' heads. Answer: `Heads`.
    Heads,
    /// Copy what came in on a ring. Answer: `Taken`.
    Take {
        ring: u32,
        /// From this position on.
        from: u64,
        /// Slots.
        at_most: u32,
    },
    /// Frees the slots before a position: the probes may overwrite them. Answer: `Freed`.
    Free { ring: u32, to: u64 },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingAnswer {
    /// Words of all rings' heads (`struct trace_ring` of bpf/abi/trace.h).
    Heads(#[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")] Vec<RingHead>),
    Taken {
        /// Where the probes write next.
        head: u64,
        /// Whole slots.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<_, MAX_TAKEN_BYTES>"
        )]
        slots: Vec<u8>,
    },
    Freed,
    /// The memory can't be read or written.
    Failed(RingFailure),
}

/// The head of a ring, as its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingHead {
    #[serde(deserialize_with = "at_most::<_, _, 64>")]
    pub words: Vec<u64>,
}

/// Why the memory can't be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingFailure {
    /// The VM's process is gone.
    Gone,
    /// The memory is not where it was.
    Moved,
    /// The kernel says so: `errno`.
    Other(i32),
}
