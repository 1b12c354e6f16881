//! Where an interpreter keeps the frames of the code that it runs.

use serde::{Deserialize, Serialize};

/// Where a process of CPython keeps its frames, in the order of `struct interpreter` of `bpf/abi/sample.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interpreter {
    /// Guest-virtual address of the pointer to the interpreter.
    pub runtime: u64,
    /// Offset of the pointer to the first thread state in it.
    pub threads: u32,
    /// Offsets in a thread state: of the next one, of `pthread_self()`, and of the pointer to its innermost frame.
    pub next: u32,
    pub thread: u32,
    pub frame: u32,
    /// Where `frame` leads to, if that is not the frame but has the pointer to it: the offset of that.
    pub inner: Option<u32>,
    /// Words of a frame: its code object, and its caller.
    pub code: u8,
    pub caller: u8,
    /// The byte of a frame that tells whether C code called it.
    pub mark: u8,
}
