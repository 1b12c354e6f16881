//! The child process that reads a guest's rings. Their memory may lie in a FUSE file system whose owner never answers: a
//! process that reads it then sleeps for ever, and can't be killed.

use std::fs::File;

use api::rings::{MAX_TAKEN_BYTES, RingAnswer, RingFailure, RingHead, RingQuestion};
use sandbox::Parser;
use tracer::SLOT_BYTES;
use tracer::outside::{Addresses, GuestRings, MemoryError};

/// Reads the rings of one guest, and tells its probes what was read.
#[derive(Debug, Default)]
pub struct RingReader {
    rings: u32,
    slots_per_ring: usize,
    addresses: Addresses,
}

impl Parser for RingReader {
    type Question = RingQuestion;
    type Answer = RingAnswer;
    const NAME: &'static str = "vmscope-rings";

    fn start() -> Self {
        Self::default()
    }

    fn answer(&mut self, question: &RingQuestion, files: &[&File]) -> RingAnswer {
        if let RingQuestion::Open { rings, slots_per_ring, heads, slots } = question {
            self.rings = *rings;
            self.slots_per_ring = *slots_per_ring as usize;
            self.addresses = Addresses { heads: heads.clone(), slots: slots.clone() };
        }
        let Some(memory) = files.first() else { return RingAnswer::Failed(RingFailure::Gone) };
        let (slots_per_ring, addresses) = (self.slots_per_ring, &self.addresses);
        let rings = GuestRings { memory, slots_per_ring, addresses };
        let answer = match question {
            RingQuestion::Open { .. } | RingQuestion::Heads => {
                let head = |ring| Ok(RingHead { words: rings.head(ring as usize)?.to_vec() });
                (0..self.rings).map(head).collect::<Result<_, _>>().map(RingAnswer::Heads)
            }
            RingQuestion::Take { ring, from, at_most } => {
                let at_most = (*at_most as usize).min(MAX_TAKEN_BYTES / SLOT_BYTES);
                let taken = rings.take(*ring as usize, *from, at_most);
                taken.map(|(head, slots)| RingAnswer::Taken { head, slots })
            }
            RingQuestion::Free { ring, to } => {
                rings.free(*ring as usize, *to).map(|()| RingAnswer::Freed)
            }
        };
        answer.unwrap_or_else(|error| RingAnswer::Failed(failure(error)))
    }
}

fn failure(error: MemoryError) -> RingFailure {
    match error {
        MemoryError::Gone => RingFailure::Gone,
        MemoryError::Other(errno) => RingFailure::Other(errno.raw_os_error()),
        MemoryError::Moved | MemoryError::Refused | MemoryError::Unreadable => RingFailure::Moved,
    }
}
