//! A Linux kernel in any memory: where its symbols, types, tasks, mappings and cached files lie, and what they say.
//! The memory is a guest's RAM seen from its host (`PhysicalMemory`), or the running kernel's own (`KernelMemory`
//! over `/proc/kcore`).
//!
//! Design constraints: all of it may be a hostile guest's, and changes while it is read. Every list, tree and table is
//! bounded in steps, depth and bytes; what does not add up is left out, with a reason.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cpus;
pub mod elf;
mod fields;
pub mod files;
pub mod kallsyms;
mod kallsyms_search;
pub mod kernel;
pub mod mappings;
pub mod memory;
pub mod modules;
pub mod page_cache;
pub mod paging;
pub mod tasks;
#[cfg(test)]
mod test;
pub mod types;
pub mod vmcoreinfo;
