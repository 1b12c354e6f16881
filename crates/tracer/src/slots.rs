//! Rings of slots as `bpf/abi/trace.h` has them. What slots mean is said by the table of events in `model`.

use model::{
    HostNs, LostEvents, MachineId, N_SLOT_KINDS, SLOT_KINDS, SLOT_MORE, TraceEvent, TraceEventKind,
    TraceEventTag, record_slots,
};
pub use model::{SLOT_BYTES, Slot};

/// Bytes of `struct trace_ring`, and where its words lie.
pub(crate) const RING_BYTES: usize = 512;
pub(crate) const RING_HEAD: usize = 0;
/// By which a guest's ring is known from outside.
pub(crate) const RING_MARK: usize = 8;
pub(crate) const RING_FIRST: usize = 16;
pub(crate) const RING_ROOM: usize = 24;
pub(crate) const RING_TAIL: usize = 64;
pub(crate) const RING_LOST: usize = 128;

/// Kinds of slots that begin a record, and 0 which is none.
pub const KINDS: usize = N_SLOT_KINDS;

/// What a ring's events have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingId {
    pub machine: MachineId,
    pub cpu: u32,
}

/// What no probe writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No record begins with this kind.
    #[error("unknown event kind {0}")]
    Kind(u8),
    /// A record goes on with a slot that is none of its own.
    #[error("a record of kind {0} is cut")]
    Cut(u8),
    /// A value out of its range.
    #[error("a record of kind {0} has a value out of range")]
    Value(u8),
}

/// The generation of the slot at `position` of a ring of `slots`: no slot of the first round looks written before it is.
#[must_use]
pub fn generation(position: u64, slots: usize) -> u8 {
    (!(position / slots as u64)).to_le_bytes()[0]
}

/// The event that a record's slots hold; `time` is that of its first slot, on the host's clock.
///
/// # Errors
/// If no probe writes such slots.
pub fn decode(record: &[Slot], ring: RingId, time: HostNs) -> Result<TraceEvent, DecodeError> {
    let first = record.first().ok_or(DecodeError::Cut(0))?;
    let kind = first.kind();
    let slots = record_slots(kind).ok_or(DecodeError::Kind(kind))?;
    let more = record[1..].iter().take_while(|slot| slot.kind() == SLOT_MORE).count();
    if record.len() != slots || more + 1 != slots {
        return Err(DecodeError::Cut(kind));
    }
    let event = TraceEventKind::from_slots(record).ok_or(DecodeError::Value(kind))?;
    Ok(TraceEvent { time, machine: ring.machine, cpu: ring.cpu, kind: event })
}

/// A ring's counters of losses as rows: kinds that lost none are left out.
#[must_use]
pub fn lost_events(cpu: u32, lost: &[u64; KINDS]) -> Vec<LostEvents> {
    let mut rows: Vec<LostEvents> = Vec::new();
    for (kind, &count) in lost.iter().enumerate().filter(|(_, count)| 0 < **count) {
        let kind = event_of(kind);
        match rows.iter_mut().find(|row| row.kind == kind) {
            Some(row) => row.count = row.count.saturating_add(count),
            None => rows.push(LostEvents { cpu, kind, count }),
        }
    }
    rows
}

/// The events that a counter counts. No program counts under a number that is no kind, but a guest may.
fn event_of(number: usize) -> Option<TraceEventTag> {
    let kind = SLOT_KINDS.iter().find(|kind| usize::from(kind.number) == number);
    kind.map(|kind| kind.event)
}

#[cfg(test)]
mod test;
