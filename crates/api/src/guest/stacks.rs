//! Stacks of a guest's threads: registers and bytes that the host copied, and the frames that they are.

use model::{Interpreter, StackEnd};
use serde::{Deserialize, Serialize};

use super::at_most;

/// Most stacks of one request.
pub const MAX_STACKS: usize = 1 << 10;

/// Most copies of one stack: of the kernel's stack, of one for interrupts, of the registers at its top, of the user's stack.
pub const MAX_STACK_COPIES: usize = 4;

/// Most bytes of one copy.
pub const MAX_STACK_BYTES: usize = 16 << 10;

/// A copy that begins here, at no address of x86-64, has the code objects of Python's frames (`PYTHON_FRAMES` of
/// `bpf/abi/sample.h`).
pub const PYTHON_FRAMES: u64 = 1 << 63;

/// Most frames of the kernel's part of a stack, and of the user's.
pub const MAX_STACK_FRAMES: usize = 127;

/// Most words that the frames of a part follow from.
pub const MAX_BASIS_WORDS: usize = 4 * MAX_STACK_FRAMES;

/// What was copied when a thread was sampled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StackSample {
    /// Thread group's id; 0 for a kernel thread.
    pub pid: u32,
    /// Raw page-table base: of two programs that a process executes one after the other each has its own. 0: unknown.
    pub cr3: u64,
    /// If it was in kernel mode.
    pub kernel: Option<StackRegisters>,
    /// If it is not a kernel thread. In kernel mode they serve where the kernel's part does not lead to them.
    pub user: Option<StackRegisters>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_STACK_COPIES>")]
    pub copies: Vec<StackBytes>,
}

/// Registers that stacks are unwound from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackRegisters {
    pub ip: u64,
    /// `None`: it can't be read.
    pub sp: Option<u64>,
    pub bp: u64,
    /// bx, r12, r13, r14, r15, if they are known.
    pub callee_saved: Option<[u64; 5]>,
}

/// Bytes of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StackBytes {
    /// Address of the first one.
    pub start: u64,
    #[serde(
        serialize_with = "crate::bytes::serialize",
        deserialize_with = "crate::bytes::at_most::<_, MAX_STACK_BYTES>"
    )]
    pub bytes: Vec<u8>,
}

/// Frames of all stacks of a request, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnwoundStacks {
    #[serde(deserialize_with = "at_most::<_, _, MAX_STACKS>")]
    pub stacks: Vec<UnwoundStack>,
    /// CPU time that unwinding took.
    pub cpu_ns: u64,
}

/// Frames of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnwoundStack {
    /// `None`: it was in user mode.
    pub kernel: Option<StackPart>,
    /// `None`: it is a kernel thread's.
    pub user: Option<StackPart>,
    /// What is to be copied with the process' next stacks. `None`: it was, or runs no interpreter that is known.
    pub interpreter: Option<Interpreter>,
}

/// A part of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackPart {
    /// Addresses of the instructions that are executed, the innermost first: of calls, not of what is behind them.
    #[serde(deserialize_with = "at_most::<_, _, MAX_STACK_FRAMES>")]
    pub frames: Vec<u64>,
    pub end: StackEnd,
    /// `None`: the same may not come of it once more.
    pub basis: Option<StackBasis>,
}

/// What the frames of a part follow from, as long as the process has its mappings: with the same first address, stack
/// pointer and words they are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackBasis {
    /// Addresses and values.
    #[serde(deserialize_with = "at_most::<_, _, MAX_BASIS_WORDS>")]
    pub words: Vec<(u64, u64)>,
    /// Whether the frame pointer must be the same, too.
    pub needs_bp: bool,
}
