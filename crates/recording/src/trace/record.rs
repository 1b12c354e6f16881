//! An event in a spool, byte by byte.
//!
//! ```text
//!  | tag: kind and variant in bits 0-5, 6: owner there, 7: stack there | time | the kind's fields ...
//! ```
//! Numbers take 7 bits a byte, lowest first, bit 7 set in all bytes but the last. Times and addresses are differences to
//! those of the event before in the block, at first to 0: twice the difference, or for one below 0 its complement.

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, LockKind, Pid, PrevState, TaskName, Tid,
    TraceEventKind, TraceStack, Vector,
};

/// Bytes of one event at most.
pub(super) const EVENT_BYTES: usize = 64;

const OWNER: u8 = 0x40;
const STACK: u8 = 0x80;
const TAG: u8 = 0x3f;

const PREV_STATES: [PrevState; 6] = [
    PrevState::Runnable,
    PrevState::Sleep,
    PrevState::Uninterruptible { io: false },
    PrevState::Uninterruptible { io: true },
    PrevState::Stopped,
    PrevState::Dead,
];
const OPS: [BlockOp; 5] =
    [BlockOp::Read, BlockOp::Write, BlockOp::Flush, BlockOp::Discard, BlockOp::Other];
const LOCKS: [LockKind; 5] =
    [LockKind::Spin, LockKind::Mutex, LockKind::SemRead, LockKind::SemWrite, LockKind::Other];
const VECTORS: [Vector; 6] = [
    Vector::LocalTimer,
    Vector::Reschedule,
    Vector::CallFunction,
    Vector::CallFunctionSingle,
    Vector::IrqWork,
    Vector::Other,
];

/// 0 to 5: why, by `OFF`.
const SWITCH: u8 = 0;
const WAKING: u8 = 6;
const WAKEUP: u8 = 7;
const FORK: u8 = 8;
const EXEC: u8 = 9;
const RENAME: u8 = 10;
const EXIT: u8 = 11;
const SYSCALL_ENTER: u8 = 12;
const SYSCALL_EXIT: u8 = 13;
const SYSCALL_FAILED: u8 = 14;
/// And the two after: of a device, a softirq, a vector.
const INTERRUPT_ENTER: u8 = 15;
const INTERRUPT_EXIT: u8 = 18;
const FAULT_USER: u8 = 21;
const FAULT_KERNEL: u8 = 22;
const FAULT_MINOR: u8 = 23;
const FAULT_MAJOR: u8 = 24;
const BLOCK_INSERT: u8 = 25;
const BLOCK_ISSUE: u8 = 26;
const BLOCK_REQUEUE: u8 = 27;
const BLOCK_COMPLETE: u8 = 28;
/// To 33: which, by `LOCKS`.
const LOCK_BEGIN: u8 = 29;
const LOCK_END: u8 = 34;
const FORK_KERNEL: u8 = 35;
const BLOCK_MERGE: u8 = 36;

/// What the next event's differences are to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Before {
    time: u64,
    address: u64,
}

/// Appends an event, `EVENT_BYTES` at most.
pub(super) fn encode(
    time: HostNs,
    what: &TraceEventKind,
    before: &mut Before,
    bytes: &mut Vec<u8>,
) {
    let mut event = Encoder { bytes, before };
    event.bytes.push(tag(what));
    event.difference(time.0, |before| &mut before.time);
    match *what {
        TraceEventKind::Switch { prev, stack, next, .. } => {
            event.u32s(&[prev.0, next.0]);
            event.stack(stack);
        }
        TraceEventKind::Waking { task, by } => event.u32s(&[task.0, by.0]),
        TraceEventKind::Wakeup { task, target_cpu } => event.u32s(&[task.0, target_cpu]),
        TraceEventKind::Fork { parent, child, pid, .. } => event.u32s(&[parent.0, child.0, pid.0]),
        TraceEventKind::Exec { task, name } | TraceEventKind::Rename { task, name } => {
            event.u32s(&[task.0]);
            event.bytes.extend_from_slice(&name.0);
        }
        TraceEventKind::Exit { task } => event.u32s(&[task.0]),
        TraceEventKind::SyscallEnter { task, number }
        | TraceEventKind::SyscallExit { task, number, .. } => {
            event.u32s(&[task.0, number.into()]);
        }
        TraceEventKind::InterruptEnter(interrupt) | TraceEventKind::InterruptExit(interrupt) => {
            match interrupt {
                Interrupt::Device(number) | Interrupt::Soft(number) => event.u32s(&[number]),
                Interrupt::Vector(vector) => event.bytes.push(place(&VECTORS, vector)),
            }
        }
        TraceEventKind::FaultEnter { address, .. } => event.address(address),
        TraceEventKind::FaultExit { .. } => (),
        TraceEventKind::BlockInsert(request) | TraceEventKind::BlockIssue(request) => {
            event.request(&request)
        }
        TraceEventKind::BlockRequeue { request } | TraceEventKind::BlockMerge { request } => {
            event.address(request)
        }
        TraceEventKind::BlockComplete { request, bytes } => {
            event.address(request);
            event.u32s(&[bytes]);
        }
        TraceEventKind::LockBegin { task, lock, owner, stack, .. } => {
            event.u32s(&[task.0]);
            event.address(lock);
            event.u32s(owner.map(|owner| owner.0).as_slice());
            event.stack(stack);
        }
        TraceEventKind::LockEnd { task, lock } => {
            event.u32s(&[task.0]);
            event.address(lock);
        }
    }
}

fn tag(what: &TraceEventKind) -> u8 {
    let stack = |stack: Option<TraceStack>| if stack.is_some() { STACK } else { 0 };
    match *what {
        TraceEventKind::Switch { prev_state, stack: at, .. } => {
            (SWITCH + place(&PREV_STATES, prev_state)) | stack(at)
        }
        TraceEventKind::Waking { .. } => WAKING,
        TraceEventKind::Wakeup { .. } => WAKEUP,
        TraceEventKind::Fork { kernel, .. } => {
            if kernel {
                FORK_KERNEL
            } else {
                FORK
            }
        }
        TraceEventKind::Exec { .. } => EXEC,
        TraceEventKind::Rename { .. } => RENAME,
        TraceEventKind::Exit { .. } => EXIT,
        TraceEventKind::SyscallEnter { .. } => SYSCALL_ENTER,
        TraceEventKind::SyscallExit { failed, .. } => {
            if failed {
                SYSCALL_FAILED
            } else {
                SYSCALL_EXIT
            }
        }
        TraceEventKind::InterruptEnter(interrupt) => INTERRUPT_ENTER + class(interrupt),
        TraceEventKind::InterruptExit(interrupt) => INTERRUPT_EXIT + class(interrupt),
        TraceEventKind::FaultEnter { user, .. } => {
            if user {
                FAULT_USER
            } else {
                FAULT_KERNEL
            }
        }
        TraceEventKind::FaultExit { major } => {
            if major {
                FAULT_MAJOR
            } else {
                FAULT_MINOR
            }
        }
        TraceEventKind::BlockInsert(_) => BLOCK_INSERT,
        TraceEventKind::BlockIssue(_) => BLOCK_ISSUE,
        TraceEventKind::BlockRequeue { .. } => BLOCK_REQUEUE,
        TraceEventKind::BlockMerge { .. } => BLOCK_MERGE,
        TraceEventKind::BlockComplete { .. } => BLOCK_COMPLETE,
        TraceEventKind::LockBegin { kind, owner, stack: at, .. } => {
            let owner = if owner.is_some() { OWNER } else { 0 };
            (LOCK_BEGIN + place(&LOCKS, kind)) | stack(at) | owner
        }
        TraceEventKind::LockEnd { .. } => LOCK_END,
    }
}

fn class(interrupt: Interrupt) -> u8 {
    match interrupt {
        Interrupt::Device(_) => 0,
        Interrupt::Soft(_) => 1,
        Interrupt::Vector(_) => 2,
    }
}

/// Where a value stands in its list.
fn place<T: PartialEq>(values: &[T], value: T) -> u8 {
    let found = (0..).zip(values).find(|(_, known)| **known == value);
    found.map(|(at, _)| at).expect("every value is in its list")
}

struct Encoder<'a> {
    bytes: &'a mut Vec<u8>,
    before: &'a mut Before,
}

impl Encoder<'_> {
    fn u64(&mut self, mut value: u64) {
        while 0x80 <= value {
            self.bytes.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.bytes.push(value.to_le_bytes()[0]);
    }

    fn u32s(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.u64((*value).into()));
    }

    fn difference(&mut self, value: u64, to: fn(&mut Before) -> &mut u64) {
        let difference = value.wrapping_sub(*to(self.before)).cast_signed();
        *to(self.before) = value;
        self.u64((difference << 1 ^ difference >> 63).cast_unsigned());
    }

    fn address(&mut self, address: u64) {
        self.difference(address, |before| &mut before.address);
    }

    fn stack(&mut self, stack: Option<TraceStack>) {
        self.u32s(stack.map(|stack| stack.0).as_slice());
    }

    fn request(&mut self, request: &BlockRequest) {
        self.address(request.request);
        self.u64(request.sector);
        self.u32s(&[request.disk, request.bytes, request.task.0]);
        self.bytes.push(place(&OPS, request.op));
    }
}

/// The next event: `encode` undone, and `bytes` moved on. `None` when they are none.
pub(super) fn decode(bytes: &mut &[u8], before: &mut Before) -> Option<(HostNs, TraceEventKind)> {
    let mut event = Decoder { bytes, before };
    let tag = event.u8()?;
    let time = HostNs(event.difference(|before| &mut before.time)?);
    event.what(tag & TAG, tag & OWNER != 0, tag & STACK != 0).map(|what| (time, what))
}

struct Decoder<'a, 'b> {
    bytes: &'a mut &'b [u8],
    before: &'a mut Before,
}

impl Decoder<'_, '_> {
    fn what(&mut self, kind: u8, owner: bool, stack: bool) -> Option<TraceEventKind> {
        let stacks = kind < WAKING || (LOCK_BEGIN..LOCK_END).contains(&kind);
        let owners = (LOCK_BEGIN..LOCK_END).contains(&kind);
        if stack && !stacks || owner && !owners {
            return None;
        }
        Some(match kind {
            SWITCH..WAKING => TraceEventKind::Switch {
                prev: self.tid()?,
                next: self.tid()?,
                prev_state: PREV_STATES[usize::from(kind - SWITCH)],
                stack: self.stack(stack)?,
            },
            WAKING => TraceEventKind::Waking { task: self.tid()?, by: self.tid()? },
            WAKEUP => TraceEventKind::Wakeup { task: self.tid()?, target_cpu: self.u32()? },
            FORK | FORK_KERNEL => TraceEventKind::Fork {
                parent: self.tid()?,
                child: self.tid()?,
                pid: Pid(self.u32()?),
                kernel: kind == FORK_KERNEL,
            },
            EXEC => TraceEventKind::Exec { task: self.tid()?, name: self.name()? },
            RENAME => TraceEventKind::Rename { task: self.tid()?, name: self.name()? },
            EXIT => TraceEventKind::Exit { task: self.tid()? },
            SYSCALL_ENTER => {
                TraceEventKind::SyscallEnter { task: self.tid()?, number: self.call()? }
            }
            SYSCALL_EXIT | SYSCALL_FAILED => TraceEventKind::SyscallExit {
                task: self.tid()?,
                number: self.call()?,
                failed: kind == SYSCALL_FAILED,
            },
            INTERRUPT_ENTER..INTERRUPT_EXIT => {
                TraceEventKind::InterruptEnter(self.interrupt(kind - INTERRUPT_ENTER)?)
            }
            INTERRUPT_EXIT..FAULT_USER => {
                TraceEventKind::InterruptExit(self.interrupt(kind - INTERRUPT_EXIT)?)
            }
            FAULT_USER | FAULT_KERNEL => {
                TraceEventKind::FaultEnter { address: self.address()?, user: kind == FAULT_USER }
            }
            FAULT_MINOR | FAULT_MAJOR => TraceEventKind::FaultExit { major: kind == FAULT_MAJOR },
            BLOCK_INSERT => TraceEventKind::BlockInsert(self.request()?),
            BLOCK_ISSUE => TraceEventKind::BlockIssue(self.request()?),
            BLOCK_REQUEUE => TraceEventKind::BlockRequeue { request: self.address()? },
            BLOCK_MERGE => TraceEventKind::BlockMerge { request: self.address()? },
            BLOCK_COMPLETE => {
                TraceEventKind::BlockComplete { request: self.address()?, bytes: self.u32()? }
            }
            LOCK_BEGIN..LOCK_END => TraceEventKind::LockBegin {
                kind: LOCKS[usize::from(kind - LOCK_BEGIN)],
                task: self.tid()?,
                lock: self.address()?,
                owner: if owner { Some(self.tid()?) } else { None },
                stack: self.stack(stack)?,
            },
            LOCK_END => TraceEventKind::LockEnd { task: self.tid()?, lock: self.address()? },
            _ => return None,
        })
    }

    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        *self.bytes = rest;
        Some(*first)
    }

    fn u64(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    fn difference(&mut self, to: fn(&mut Before) -> &mut u64) -> Option<u64> {
        let twice = self.u64()?;
        let difference = twice >> 1 ^ (twice & 1).wrapping_neg();
        let value = to(self.before).wrapping_add(difference);
        *to(self.before) = value;
        Some(value)
    }

    fn tid(&mut self) -> Option<Tid> {
        self.u32().map(Tid)
    }

    fn call(&mut self) -> Option<u16> {
        u16::try_from(self.u64()?).ok()
    }

    fn address(&mut self) -> Option<u64> {
        self.difference(|before| &mut before.address)
    }

    fn name(&mut self) -> Option<TaskName> {
        let (name, rest) = self.bytes.split_first_chunk()?;
        *self.bytes = rest;
        Some(TaskName(*name))
    }

    fn stack(&mut self, there: bool) -> Option<Option<TraceStack>> {
        if there { self.u32().map(|stack| Some(TraceStack(stack))) } else { Some(None) }
    }

    fn interrupt(&mut self, class: u8) -> Option<Interrupt> {
        Some(match class {
            0 => Interrupt::Device(self.u32()?),
            1 => Interrupt::Soft(self.u32()?),
            _ => Interrupt::Vector(*VECTORS.get(usize::from(self.u8()?))?),
        })
    }

    fn request(&mut self) -> Option<BlockRequest> {
        Some(BlockRequest {
            request: self.address()?,
            sector: self.u64()?,
            disk: self.u32()?,
            bytes: self.u32()?,
            task: self.tid()?,
            op: *OPS.get(usize::from(self.u8()?))?,
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Encodes events one after the other and decodes them; how many bytes the last takes.
    fn check(events: &[(u64, TraceEventKind)], last: usize) {
        let (mut bytes, mut before, mut begin) = (Vec::new(), Before::default(), 0);
        for (time, what) in events {
            begin = bytes.len();
            encode(HostNs(*time), what, &mut before, &mut bytes);
        }
        assert_eq!(bytes.len() - begin, last, "{:?}", events.last());
        let (mut rest, mut before) = (bytes.as_slice(), Before::default());
        for (time, what) in events {
            assert_eq!(decode(&mut rest, &mut before), Some((HostNs(*time), *what)));
        }
        assert!(rest.is_empty());
        let (mut cut, mut before) = (&bytes[..bytes.len() - 1], Before::default());
        let decoded = std::iter::from_fn(|| decode(&mut cut, &mut before)).count();
        assert_eq!(decoded, events.len() - 1, "an event that is cut off is none");
    }

    #[test]
    fn an_event_takes_few_bytes() {
        let at = 5_000_000_000_000;
        let exit = TraceEventKind::Exit { task: Tid(70_000) };
        let (prev, next, prev_state) = (Tid(1000), Tid(70_000), PrevState::Sleep);
        check(&[(at, exit)], 1 + 7 + 3);
        check(
            &[
                (at, exit),
                (at + 8_000, TraceEventKind::Switch { prev, prev_state, stack: None, next }),
            ],
            8,
        );
        let stack = Some(TraceStack(900));
        check(
            &[(at, exit), (at + 8_000, TraceEventKind::Switch { prev, prev_state, stack, next })],
            10,
        );
        check(
            &[(at, exit), (at + 500, TraceEventKind::SyscallEnter { task: next, number: 257 })],
            8,
        );
        check(&[(at, exit), (at - 1, TraceEventKind::FaultExit { major: true })], 2);
        let address = 0x7fff_1234_5000;
        let fault = TraceEventKind::FaultEnter { address, user: true };
        let next_page = TraceEventKind::FaultEnter { address: address + 4096, user: true };
        check(&[(at, fault), (at + 900, next_page)], 1 + 2 + 2);
    }

    #[test]
    fn the_largest_event_has_room() {
        let request = BlockRequest {
            request: 1 << 63,
            disk: u32::MAX,
            sector: u64::MAX,
            bytes: u32::MAX,
            op: BlockOp::Other,
            task: Tid(u32::MAX),
        };
        check(&[(1 << 63, TraceEventKind::BlockIssue(request))], 47);
        const { assert!(47 <= EVENT_BYTES) };
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let check = |bytes: &[u8]| {
            assert_eq!(decode(&mut &bytes[..], &mut Before::default()), None, "{bytes:x?}");
        };
        check(&[]);
        check(&[TAG, 0]);
        check(&[EXIT | STACK, 0, 1, 1]);
        check(&[SWITCH | OWNER, 0, 1, 1]);
        check(&[EXIT, 0, 0xff, 0xff, 0xff, 0xff, 0x1f]);
        check(&[EXIT, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1]);
        check(&[SYSCALL_ENTER, 0, 1, 0xff, 0xff, 0x04]);
        check(&[INTERRUPT_ENTER + 2, 0, 6]);
    }
}
