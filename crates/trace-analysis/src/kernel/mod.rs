//! Kernel time: what CPUs executed, by class of system call, page fault, interrupt and kernel task; per process, command
//! name and system call.
//!
//! A timeline's slices say what is innermost, so nothing counts twice: an interrupt in a page fault in a system call is
//! an interrupt. Over all CPUs the classes, user code and idle add up to CPUs times wall time, to the nanosecond.

mod calls;
mod class;
#[cfg(test)]
mod tests;
mod time;

pub(crate) use calls::syscall_number;
pub use calls::{CallClass, syscall_class, syscall_label, syscall_name};
pub use class::{Class, ClassGroup, interrupt_name};
pub use time::{CallRow, KernelTime, Times, TimesRow};
