//! Perf events and BPF: the sampling interrupt, its rings, and the finder of vCPUs.
//!
//! Design constraints: the only crate that knows libbpf. The sampling path allocates nothing and
//! wakes nobody; reading the rings is the caller's business, at its own pace. Must never interpret
//! what a guest's registers mean, never block, and leave no program or perf event behind: everything
//! lives in file descriptors that die with the process.

mod abi;
mod clock;
mod error;
mod mapped;
mod perf;
mod ring;
mod sampler;

pub use abi::{RawStack, STACK_DEPTH, STACK_FIELD, VCPU_NONE, VCPU_UNKNOWN};
pub use clock::{now, unix_now_ns};
pub use error::ProbeError;
pub use ring::{Drained, RingCounters};
pub use sampler::{FoundVcpu, Options, Sampler, SamplingEvents, loaded_programs};
