//! Stacks of programs, where their tasks fell asleep: `struct user_stack` of `bpf/abi/trace.h`.

use std::sync::atomic::Ordering;

use bpf::Mapped;
use model::{HostNs, Pid, TraceStack};

/// Bytes of `struct user_stack`, and where its fields lie.
pub(crate) const USER_STACK_BYTES: usize = 280;
const TIME: usize = 8;
const PROCESS: usize = 16;
const STACK_DEPTH: usize = 20;
const ADDRESSES: usize = 24;
/// Addresses of a stack at most.
const DEPTH: usize = 32;

const _: () = assert!(ADDRESSES + 8 * DEPTH == USER_STACK_BYTES, "as in the header");

/// The stack of a program where one of its tasks fell asleep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserStack {
    /// The number by which events name it.
    pub number: TraceStack,
    /// Whose it is: addresses mean what they do in this process.
    pub process: Pid,
    /// When it was seen first, on the host's clock.
    pub first_seen: HostNs,
    /// Addresses, innermost first.
    pub addresses: Vec<u64>,
    /// Whether it has more functions than are kept.
    pub is_cut: bool,
}

/// The stacks that a tracer's programs have stored.
#[derive(Debug)]
pub struct UserStacks {
    pub(crate) rows: Mapped,
    pub(crate) lost: Mapped,
    /// `CLOCK_MONOTONIC` that their times count from.
    pub(crate) base_ns: u64,
}

impl UserStacks {
    /// All of them. One that is just being stored may lack addresses: ask after the trace.
    pub fn all(&self) -> impl Iterator<Item = UserStack> + '_ {
        self.stored().map(|(number, at, depth)| UserStack {
            number,
            process: self.process(at),
            first_seen: HostNs(self.base_ns.saturating_add(self.rows.load(at + TIME))),
            addresses: (0..depth).map(|n| self.rows.load(at + ADDRESSES + 8 * n)).collect(),
            is_cut: depth == DEPTH,
        })
    }

    /// The processes whose stacks are stored.
    pub fn processes(&self) -> impl Iterator<Item = Pid> + '_ {
        self.stored().map(|(_, at, _)| self.process(at))
    }

    /// Sleeps whose stack found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(0)
    }

    /// Rows that are in use, where they begin, and their depths.
    fn stored(&self) -> impl Iterator<Item = (TraceStack, usize, usize)> + '_ {
        let rows = (0..).zip((0..).step_by(USER_STACK_BYTES));
        rows.take(self.rows.bytes() / USER_STACK_BYTES).filter_map(|(row, at)| {
            let depth = self.rows.half_word(at + STACK_DEPTH).load(Ordering::Relaxed) as usize;
            (depth != 0).then_some((TraceStack::of_user(row)?, at, depth.min(DEPTH)))
        })
    }

    fn process(&self, at: usize) -> Pid {
        Pid(self.rows.half_word(at + PROCESS).load(Ordering::Relaxed))
    }
}
