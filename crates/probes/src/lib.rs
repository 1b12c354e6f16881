//! Perf events and BPF: the sampling interrupt, its rings, the finder of vCPUs, their switches and exits, CPU quotas.
//!
//! Design constraints: the only crate that knows libbpf. The sampling path allocates nothing and
//! wakes no task; reading the rings is the caller's business, at its own pace. Must never interpret
//! what a guest's registers mean, never block, and leave no program or perf event behind: everything
//! lives in file descriptors that die with the process.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod clock;
mod counters;
mod error;
mod exits;
mod found;
mod guest_views;
mod iter;
mod kicks;
mod object;
mod perf;
mod quotas;
mod ring;
mod sampler;
mod switches;
mod vcpus;
mod vms;

pub use abi::{
    RawGuestStack, RawRegisters, RawStack, STACK_DEPTH, STACK_FIELD, VCPU_FIELD, VCPU_NONE,
    VCPU_UNKNOWN,
};
pub use clock::{now, unix_now_ns};
pub use counters::{ThreadCounters, ThreadCounts};
pub use error::ProbeError;
pub use exits::{ExitCounter, ExitLink};
pub use found::{FoundVcpu, VcpuSnapshot};
pub use guest_views::GuestView;
pub use kicks::KickMarks;
pub use quotas::{QuotaEvent, QuotaTracer};
pub use ring::RingCounters;
pub use sampler::{Options, RecordBatch, Sampler, SamplingEvents, StackBytes, loaded_programs};
pub use switches::{SwitchLinks, SwitchTracer};
pub use vms::{FoundVm, MemorySlot, VcpuClock, VmFinder};
