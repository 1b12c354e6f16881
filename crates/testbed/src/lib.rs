//! The virtual KVM host: a machine with real KVM inside emulation, and the guests a scenario names.
//!
//! ```text
//!  this machine                    virtual host (QEMU, TCG with SVM)         guests (QEMU, KVM)
//!  launch: kernels, images, --->   init script --> `vmscope testbed inside`
//!          run folder, QEMU          inside: starts guests, pins vCPUs  ---> init script: workloads,
//!     ^                              runs the command when all are ready     vmscope-guest, exec loop
//!     +---- output, events, files <---+
//! ```
//!
//! On a machine whose KVM really runs guests the middle step can be left out: `inside` is then called
//! directly. QEMU emulates no VMX: a host with an Intel CPU runs in Bochs (`bochs.rs`), with disk images and serial
//! ports in place of shared folders and virtio's ports.
//!
//! Design constraints: everything waits for events, nothing for a fixed time; every process started
//! here ends with the run, whatever ends the run. The machine's root is only ever shared read-only.
//! It must never touch a process it did not start, nor the network beyond the virtual hosts.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bare;
mod bochs;
mod cache;
mod debian;
mod direct;
mod error;
mod exec;
#[cfg(test)]
mod golden;
mod guest_vm;
mod images;
mod initramfs;
mod inside;
mod kernel;
mod kernel_build;
mod kvm_probe;
mod launch;
mod libraries;
mod link;
mod plan;
mod process;
mod progress;
mod qemu;
mod quota;
mod scenario;
mod shell;
mod steps;
mod template;
mod virtual_host;
mod vmlinux;
mod workload;

pub use bare::{Accelerator, Bare, BareEnd, Listen, Patience, boot_bare, is_inside};
pub use direct::reload_module;
pub use error::Error;
pub use exec::{ExecOutput, end, exec, on, shared_folder};
pub use inside::inside;
pub use kvm_probe::{KvmVerdict, probe_kvm};
pub use launch::{HostChoice, Run, prepare_guest, run, runs_here};
pub use plan::{Boot, seen_from_inside};
pub use process::spawn_bound_alone as spawn_bound;
pub use scenario::{
    Action, Channel, Guest, GuestKernel, Host, HostCpu, Native, Node, Scenario, Size, Step, When,
};
pub use shell::shell;
pub use steps::{Done, steps};
pub use template::{Bridge, Identity, Instance, Template};
pub use workload::Workload;
