//! What the host knows: its processes and their mappings, its VMs, its abilities.
//!
//! Design constraints: parsers take text or bytes, readers take the root of the file system they
//! read, so that tests need neither root nor KVM. Also used inside guests, so it stays light. Must
//! never know BPF, and never fail where a process merely ended meanwhile.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capabilities;
pub mod cpusets;
pub mod disks;
pub mod identity;
pub mod machine;
pub mod numa;
pub mod open_file;
pub mod processes;
pub mod procfs;
pub mod quotas;
pub mod sideband;
pub mod sockets;
pub mod tasks;
pub mod vms;
