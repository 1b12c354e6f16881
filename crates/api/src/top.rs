//! What `vmscope top --once --format json` prints. Shares are parts of `wall_ns`, 0 to 1.

use serde::Serialize;

/// A picture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopJson {
    /// The host.
    pub hostname: String,
    /// CPUs sampled.
    pub cpus: usize,
    /// How long it looked.
    pub window_ns: u64,
    /// By VM and number.
    pub vcpus: Vec<VcpuJson>,
}

/// A vCPU. The shares from `guest_user` to `unknown` add up to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VcpuJson {
    /// Its VM.
    pub vm: String,
    /// Its number in the VM.
    pub vcpu: u32,
    /// How long it was looked at.
    pub wall_ns: u64,
    /// Guest user code.
    pub guest_user: f64,
    /// Guest kernel.
    pub guest_kernel: f64,
    /// Halted.
    pub halt: f64,
    /// The host polled for the end of a halt.
    pub halt_polling: f64,
    /// Steal type 1.
    pub steal_outside: f64,
    /// Steal type 2.
    pub steal_vmm: f64,
    /// Held back by a CPU quota.
    pub throttled: f64,
    /// On a CPU, not sampled.
    pub not_sampled: f64,
    /// Not known.
    pub unknown: f64,
    /// Who had its CPU, most first, at most ten.
    pub thieves: Vec<ShareJson>,
    /// Exit reasons by time, at most ten.
    pub exits: Vec<ShareJson>,
    /// Guest functions, at most ten.
    pub functions: Vec<ShareJson>,
}

/// A part of a vCPU's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareJson {
    /// Of what.
    pub name: String,
    /// A function's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Part of `wall_ns`.
    pub share: f64,
}
