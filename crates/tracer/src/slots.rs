//! Rust twin of `bpf/abi/trace.h`, and the decoder from slots to events.

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, LockKind, LostEvents, MachineId, Pid, PrevState,
    TaskName, Tid, TraceEvent, TraceEventKind, TraceStack, Vector,
};

/// A slot of a ring: `struct trace_slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slot {
    /// Lap, kind, time or data.
    pub tag: u64,
    /// By kind.
    pub payload: u64,
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES, "as in the header");

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;
/// Bytes of `struct trace_ring`, and where its words lie.
pub(crate) const RING_BYTES: usize = 512;
pub(crate) const RING_HEAD: usize = 0;
/// By which a guest's ring is known from outside.
pub(crate) const RING_MARK: usize = 8;
pub(crate) const RING_FIRST: usize = 16;
pub(crate) const RING_ROOM: usize = 24;
pub(crate) const RING_TAIL: usize = 64;
pub(crate) const RING_LOST: usize = 128;

const KIND_SHIFT: u32 = 48;
const LOW_MASK: u64 = (1 << KIND_SHIFT) - 1;

const SWITCH_RUNNABLE: u8 = 1;
const SWITCH_SLEEP: u8 = 2;
const SWITCH_DISK: u8 = 3;
const SWITCH_STOPPED: u8 = 4;
const SWITCH_DEAD: u8 = 5;
const WAKING: u8 = 6;
const WAKEUP: u8 = 7;
const FORK: u8 = 8;
const EXEC: u8 = 9;
const RENAME: u8 = 10;
const EXIT: u8 = 11;
const SYSCALL_ENTER: u8 = 12;
const SYSCALL_EXIT: u8 = 13;
const IRQ_ENTER: u8 = 14;
const IRQ_EXIT: u8 = 15;
const SOFTIRQ_ENTER: u8 = 16;
const SOFTIRQ_EXIT: u8 = 17;
const VECTOR_ENTER: u8 = 18;
const VECTOR_EXIT: u8 = 19;
const FAULT_USER: u8 = 20;
const FAULT_KERNEL: u8 = 21;
const FAULT_END: u8 = 22;
const BLOCK_INSERT: u8 = 23;
const BLOCK_ISSUE: u8 = 24;
const BLOCK_REQUEUE: u8 = 25;
const BLOCK_COMPLETE: u8 = 26;
const LOCK_BEGIN: u8 = 27;
const LOCK_END: u8 = 28;
const BLOCK_MERGE: u8 = 29;
/// Kinds of records, and 0 which is none.
pub const KINDS: usize = 30;
const MORE: u8 = 255;

/// `TRACE_SYSCALL_EXIT`: it failed.
const FAILED: u32 = 1 << 31;

/// `LCB_F_*` of include/trace/events/lock.h.
const LOCK_SPIN: u64 = 1;
const LOCK_READ: u64 = 1 << 1;
const LOCK_WRITE: u64 = 1 << 2;
const LOCK_RT: u64 = 1 << 3;
const LOCK_PERCPU: u64 = 1 << 4;
const LOCK_MUTEX: u64 = 1 << 5;

/// What a ring's events have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingId {
    /// Whose ring.
    pub machine: MachineId,
    /// The ring's CPU.
    pub cpu: u32,
}

/// What no probe writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No record begins with this kind.
    #[error("no event has the kind {0}")]
    Kind(u8),
    /// A record goes on with a slot that is none of its own.
    #[error("a record of kind {0} is cut")]
    Cut(u8),
    /// A value out of its range.
    #[error("a record of kind {0} has a value out of range")]
    Value(u8),
}

/// The lap of the slot at `position` of a ring of `slots`: no slot of the first round looks written before it is.
#[must_use]
pub fn lap(position: u64, slots: usize) -> u8 {
    (!(position / slots as u64)).to_le_bytes()[0]
}

impl Slot {
    /// The slot's lap.
    #[must_use]
    pub fn lap(self) -> u8 {
        self.tag.to_be_bytes()[0]
    }

    /// The slot's kind.
    #[must_use]
    pub fn kind(self) -> u8 {
        self.tag.to_be_bytes()[1]
    }

    /// Time or data: 48 bits.
    #[must_use]
    pub fn low(self) -> u64 {
        self.tag & LOW_MASK
    }

    fn halves(self) -> (u32, u32) {
        let [a, b, c, d, e, f, g, h] = self.payload.to_be_bytes();
        (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
    }
}

/// Slots of a record that begins with this kind; `None`: no record does.
pub(crate) fn record_slots(kind: u8) -> Option<usize> {
    Some(match kind {
        SWITCH_SLEEP | SWITCH_DISK | FORK | EXEC | RENAME | BLOCK_COMPLETE | LOCK_END => 2,
        BLOCK_INSERT | BLOCK_ISSUE | LOCK_BEGIN => 3,
        SWITCH_RUNNABLE..=BLOCK_MERGE => 1,
        _ => return None,
    })
}

/// The event that a record's slots hold; `time` is that of its first slot, on the host's clock.
///
/// # Errors
/// If no probe writes such slots.
pub fn decode(record: &[Slot], base: RingId, time: HostNs) -> Result<TraceEvent, DecodeError> {
    let first = record.first().ok_or(DecodeError::Cut(0))?;
    let kind = first.kind();
    let slots = record_slots(kind).ok_or(DecodeError::Kind(kind))?;
    let more = record[1..].iter().take_while(|slot| slot.kind() == MORE).count();
    if record.len() != slots || more + 1 != slots {
        return Err(DecodeError::Cut(kind));
    }
    let what = what(kind, record).ok_or(DecodeError::Value(kind))?;
    Ok(TraceEvent { time, machine: base.machine, cpu: base.cpu, kind: what })
}

/// `record` has as many slots as its kind asks for. `None`: a value is out of range.
fn what(kind: u8, record: &[Slot]) -> Option<TraceEventKind> {
    let payload = record[0].payload;
    let (high, low) = record[0].halves();
    let task = Tid(low);
    Some(match kind {
        SWITCH_RUNNABLE => switch(record, PrevState::Runnable),
        SWITCH_SLEEP => switch(record, PrevState::Sleep),
        SWITCH_DISK => switch(record, PrevState::Uninterruptible { io: record[1].low() != 0 }),
        SWITCH_STOPPED => switch(record, PrevState::Stopped),
        SWITCH_DEAD => switch(record, PrevState::Dead),
        WAKING => TraceEventKind::Waking { task, by: Tid(high) },
        WAKEUP => TraceEventKind::Wakeup { task, target_cpu: high },
        FORK => TraceEventKind::Fork {
            parent: Tid(high),
            child: task,
            pid: Pid(whole(&record[1])?),
            kernel: record[1].low() != 0,
        },
        EXEC => TraceEventKind::Exec { task, name: name(&record[1]) },
        RENAME => TraceEventKind::Rename { task, name: name(&record[1]) },
        EXIT => TraceEventKind::Exit { task },
        SYSCALL_ENTER => TraceEventKind::SyscallEnter { task, number: number(high)? },
        SYSCALL_EXIT => TraceEventKind::SyscallExit {
            task,
            number: number(high & !FAILED)?,
            failed: high & FAILED != 0,
        },
        IRQ_ENTER => TraceEventKind::InterruptEnter(Interrupt::Device(whole(&record[0])?)),
        IRQ_EXIT => TraceEventKind::InterruptExit(Interrupt::Device(whole(&record[0])?)),
        SOFTIRQ_ENTER => TraceEventKind::InterruptEnter(Interrupt::Soft(whole(&record[0])?)),
        SOFTIRQ_EXIT => TraceEventKind::InterruptExit(Interrupt::Soft(whole(&record[0])?)),
        VECTOR_ENTER => TraceEventKind::InterruptEnter(Interrupt::Vector(vector(payload)?)),
        VECTOR_EXIT => TraceEventKind::InterruptExit(Interrupt::Vector(vector(payload)?)),
        FAULT_USER => TraceEventKind::FaultEnter { address: payload, user: true },
        FAULT_KERNEL => TraceEventKind::FaultEnter { address: payload, user: false },
        FAULT_END => TraceEventKind::FaultExit { major: payload != 0 },
        BLOCK_INSERT => TraceEventKind::BlockInsert(request(record)?),
        BLOCK_ISSUE => TraceEventKind::BlockIssue(request(record)?),
        BLOCK_REQUEUE => TraceEventKind::BlockRequeue { request: payload },
        BLOCK_MERGE => TraceEventKind::BlockMerge { request: payload },
        BLOCK_COMPLETE => {
            TraceEventKind::BlockComplete { request: payload, bytes: whole(&record[1])? }
        }
        LOCK_BEGIN => lock_begin(record)?,
        LOCK_END => TraceEventKind::LockEnd { task: Tid(whole(&record[1])?), lock: payload },
        _ => return None,
    })
}

/// A payload that is one 32-bit value.
fn whole(slot: &Slot) -> Option<u32> {
    u32::try_from(slot.payload).ok()
}

fn number(value: u32) -> Option<u16> {
    u16::try_from(value).ok()
}

fn switch(record: &[Slot], prev_state: PrevState) -> TraceEventKind {
    let (prev, next) = record[0].halves();
    let stack = record.get(1).and_then(|more| stack(more.halves().1));
    TraceEventKind::Switch { prev: Tid(prev), prev_state, stack, next: Tid(next) }
}

/// What `bpf_get_stackid()` returned: negative for none.
fn stack(id: u32) -> Option<TraceStack> {
    (id <= i32::MAX as u32).then_some(TraceStack(id))
}

fn name(more: &Slot) -> TaskName {
    let mut bytes = [0; 14];
    bytes[..6].copy_from_slice(&more.tag.to_le_bytes()[..6]);
    bytes[6..].copy_from_slice(&more.payload.to_le_bytes());
    TaskName::new(&bytes)
}

fn vector(value: u64) -> Option<Vector> {
    Some(match value {
        0 => Vector::LocalTimer,
        1 => Vector::Reschedule,
        2 => Vector::CallFunction,
        3 => Vector::CallFunctionSingle,
        4 => Vector::IrqWork,
        5 => Vector::Other,
        _ => return None,
    })
}

fn request(record: &[Slot]) -> Option<BlockRequest> {
    let (disk, task) = record[1].halves();
    let op = match record[2].low() {
        0 => BlockOp::Read,
        1 => BlockOp::Write,
        2 => BlockOp::Flush,
        3 => BlockOp::Discard,
        4 => BlockOp::Other,
        _ => return None,
    };
    Some(BlockRequest {
        request: record[0].payload,
        disk,
        sector: record[1].low(),
        bytes: whole(&record[2])?,
        op,
        task: Tid(task),
    })
}

fn lock_begin(record: &[Slot]) -> Option<TraceEventKind> {
    let (stack_id, owner) = record[1].halves();
    Some(TraceEventKind::LockBegin {
        task: Tid(whole(&record[2])?),
        lock: record[0].payload,
        kind: lock_kind(record[1].low()),
        owner: (owner != 0).then_some(Tid(owner)),
        stack: stack(stack_id),
    })
}

/// A mutex that is spun for carries both flags, and so do reader-writer spinlocks.
fn lock_kind(flags: u64) -> LockKind {
    let has = |flag| flags & flag != 0;
    if has(LOCK_MUTEX) {
        LockKind::Mutex
    } else if has(LOCK_PERCPU) || has(LOCK_RT) {
        LockKind::Other
    } else if has(LOCK_SPIN) {
        LockKind::Spin
    } else if has(LOCK_WRITE) {
        LockKind::SemWrite
    } else if has(LOCK_READ) {
        LockKind::SemRead
    } else {
        LockKind::Other
    }
}

/// Kind numbers, as `TraceEventKind::name` says them; several numbers may share one.
fn kind_name(kind: usize) -> &'static str {
    const NAMES: [&str; KINDS] = [
        "unknown",
        "switch",
        "switch",
        "switch",
        "switch",
        "switch",
        "waking",
        "wakeup",
        "fork",
        "exec",
        "rename",
        "exit",
        "syscall_enter",
        "syscall_exit",
        "interrupt_enter",
        "interrupt_exit",
        "interrupt_enter",
        "interrupt_exit",
        "interrupt_enter",
        "interrupt_exit",
        "fault_enter",
        "fault_enter",
        "fault_exit",
        "block_insert",
        "block_issue",
        "block_requeue",
        "block_complete",
        "lock_begin",
        "lock_end",
        "block_merge",
    ];
    NAMES[kind]
}

/// A ring's counters of losses as rows: kinds that lost none are left out.
#[must_use]
pub fn lost_events(cpu: u32, lost: &[u64; KINDS]) -> Vec<LostEvents> {
    let mut rows: Vec<LostEvents> = Vec::new();
    for (kind, &count) in lost.iter().enumerate().filter(|(_, count)| 0 < **count) {
        let name = kind_name(kind);
        match rows.iter_mut().find(|row| row.kind == name) {
            Some(row) => row.count = row.count.saturating_add(count),
            None => rows.push(LostEvents { cpu, kind: name.to_owned(), count }),
        }
    }
    rows
}

#[cfg(test)]
mod test;
