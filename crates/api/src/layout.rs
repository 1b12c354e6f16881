//! What the layout daemons of two hosts say to each other about a VM that is migrated, and what `vmscope migrate` and the
//! daemon of its own host say.
//!
//! ```text
//!  vmscope migrate       source's daemon              destination's daemon
//!   | -- Migrate ----------> |                             |
//!   |                        | -- Hello -----------------> |   answer: Hello
//!   |                        | -- Offer, Counters -------> |   plans, moves residents, has the VM's QEMU started
//!   | <-------- Progress --- | <------------- Progress --- |   as often as something long begins
//!   |                        | <---- Ready, or Refused --- |
//!   |                        |    (QEMU sends the VM)      |
//!   |                        | -- Look ------------------> |   most memory has arrived; answer: Layout
//!   |                        |    (the VM runs there)      |
//!   |                        | -- Arrived ---------------> |   checks and repairs; answer: Layout
//!   | <-------- Migrated --- |                             |
//! ```
//!
//! A frame is a length (little-endian `u32`) and that many bytes of JSON. Within a version fields are only added. Between
//! hosts frames go over TLS, of which each side knows the other's certificate.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Version of this protocol.
pub const VERSION: u32 = 1;

/// Bytes of a frame before its content.
pub const HEADER_BYTES: usize = 4;

/// Longest content of a frame.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// From the host that a VM leaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SourceMessage {
    /// First message.
    Hello {
        /// The source's version.
        version: u32,
    },
    /// A VM is to be migrated, or is being.
    Offer(Offer),
    /// After `Offer`: how the VM uses memory. If it does not come, or can't be read, nothing is planned.
    Counters(Counters),
    /// Say where everything is now.
    Look,
    /// The VM runs at the destination.
    Arrived,
    /// The VM stays at the source.
    Abandoned { reason: String },
}

/// From the host that a VM goes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DestinationMessage {
    Hello {
        /// The destination's version.
        version: u32,
    },
    /// Something began that takes its time.
    Progress {
        text: String,
    },
    /// The VM may come.
    Ready {
        /// Where its QEMU waits for it; `None`: another program started that QEMU.
        address: Option<SocketAddr>,
        /// What was done for it.
        layout: HostLayout,
    },
    /// The VM may not come.
    Refused {
        reason: String,
    },
    Layout(HostLayout),
}

/// A VM that is to be migrated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    pub vm: String,
    /// Its UUID, if it has one.
    pub uuid: Option<String>,
    pub vcpus: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Seconds that it has run.
    pub ran_s: f64,
    /// The policy to plan by; `None`: the destination's.
    pub policy: Option<String>,
    pub started_by: StartedBy,
}

/// Who starts the QEMU that a VM is migrated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartedBy {
    /// The destination's daemon.
    Daemon,
    /// Another program: it is there.
    Others,
}

/// Counters of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// What counted: `perf`, `resctrl`, `damon`, `recorded` or `none`.
    pub source: String,
    /// Seconds since the last sample ended, when this was sent.
    pub age_s: f64,
    /// The oldest first. All ended before the migration began.
    pub samples: Vec<Sample>,
}

/// Counters of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub seconds: f64,
    /// Misses of the last level cache.
    pub misses: f64,
    pub instructions: Option<f64>,
    /// The part of its accesses that went to another node.
    pub remote: Option<f64>,
}

/// Where a host's VMs were, are to be and are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostLayout {
    /// The policy that chose it; `None`: the kernel did.
    pub policy: Option<String>,
    /// Why the layout is the kernel's, or what came of the plan.
    pub outcome: String,
    /// Predicted speed-up of all VMs together, as a fraction.
    pub gain: Option<f64>,
    /// Bytes of residents that were moved.
    pub moved_bytes: u64,
    /// How long that took.
    pub moved_ns: u64,
    /// Whether the VM did not run here yet, when it was read where everything is.
    pub before_switch_over: bool,
    pub vms: Vec<VmLayout>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Where a VM was, is to be and is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VmLayout {
    pub name: String,
    /// Whether it is the migrating VM.
    pub arrives: bool,
    /// Where it was; of the one that arrives: where the kernel would be expected to put it.
    pub before: NodePlacement,
    /// Where it is to be; `None`: not planned.
    pub planned: Option<NodePlacement>,
    /// Where it is: as `/proc/PID/numa_maps` and its threads' affinities say.
    pub now: Option<NodePlacement>,
    /// Its speed before, relative to being alone with local memory, as the memory model has it.
    pub speed_before: f64,
    /// Its speed as planned.
    pub speed_planned: f64,
    /// Bytes of it that were moved from node to node.
    pub moved_bytes: u64,
}

/// Nodes with vCPUs and memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodePlacement {
    /// Nodes and how many vCPUs are bound to each; `None`: not bound to one node.
    pub vcpus: Vec<(Option<u32>, u32)>,
    /// Nodes and bytes on each.
    pub memory: Vec<(u32, u64)>,
    /// The part of accesses that go to another node, if all memory is used alike.
    pub remote: f64,
}

/// From `vmscope migrate` to its host's daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Order {
    Migrate(MigrateOrder),
    /// Prepare the destinations of migrations that others start.
    Watch {
        policy: Option<String>,
        /// The only peer to query.
        to: Option<String>,
    },
    /// Don't migrate it after all.
    Cancel,
}

/// What to migrate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigrateOrder {
    pub vm: String,
    /// The peer.
    pub to: String,
    /// The policy to plan by; `None`: the destination's.
    pub policy: Option<String>,
    /// Where a QEMU waits that another program started; `None`: the destination's daemon starts one.
    pub uri: Option<String>,
}

/// From a daemon to `vmscope migrate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DaemonEvent {
    /// Something began that takes its time.
    Progress {
        text: String,
    },
    /// The order can't be carried out.
    Failed {
        reason: String,
        /// Whether the order itself is wrong.
        is_usage: bool,
    },
    Migrated(Box<Migrated>),
}

/// What came of a migration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Migrated {
    pub vm: String,
    /// The peer; `None`: none that we know.
    pub to: Option<String>,
    /// Whether the VM runs there now. If not, it runs where it was.
    pub moved: bool,
    /// Why it did not move.
    pub reason: Option<String>,
    /// From the order to QEMU's beginning, in which the destination made itself ready.
    pub prepared_ns: u64,
    /// How long QEMU took.
    pub total_ms: u64,
    /// How long the VM stood still.
    pub downtime_ms: u64,
    /// Bytes that QEMU sent.
    pub sent_bytes: u64,
    /// What the plan was made from; without the samples themselves.
    pub counters: Option<Counters>,
    /// How many samples there were.
    pub samples: u64,
    /// The layout before the VM was handed over.
    pub before: Option<HostLayout>,
    /// The layout once it had arrived.
    pub after: Option<HostLayout>,
    /// What the reader should know.
    pub notes: Vec<String>,
}
