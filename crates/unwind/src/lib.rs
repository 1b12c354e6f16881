//! Call stacks from registers and copied stack bytes: user code by its files' `.eh_frame` or by frame pointers, kernels
//! by their ORC tables.
//!
//! ```text
//!   registers --+                 .---------------------------- cache: address -> rule
//!               +--> frame --> rule of its address --> next frame --> ... --> why it ends
//!   stack bytes +                 '-- not cached: Code -- Process: mappings -> FrameTable (.eh_frame)
//!                                                      '- Kernel: OrcTable
//! ```
//!
//! Design constraints: registers, bytes and tables are a hostile guest's. A stack has `MAX_FRAMES` frames at most, the
//! work on tables is bounded by the caller, expressions are not evaluated but recognized: the forms that compilers and C
//! libraries use. Frames of CPython's code take the place of the interpreter's (`python`). An address outside of executable mappings ends a stack. This crate must never read memory itself.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cfi;
mod orc;
mod process;
pub mod python;
mod rule;
mod walk;

pub use cfi::{DescribedFunction, FrameTable, MAX_COMMON, Workspace, described_functions};
pub use orc::{Kernel, OrcFormat, OrcTable};
pub use process::{Area, AreaCode, Files, Process};
pub use rule::Rule;
pub use walk::{Basis, Code, MAX_FRAMES, Registers, StackCopy, Unwinder};
