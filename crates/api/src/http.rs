//! The fleet's HTTP API, version 1: what agents and users say to `vmscope-server`. Its paths are in `docs/fleet.md` and, as
//! the server tells them, in `/openapi.json`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod convert;
mod finding;
mod handled;

pub use finding::{
    FindingAction, FindingAdvice, FindingBuild, FindingCause, FindingChange, FindingCode,
    FindingCounter, FindingDemand, FindingEntry, FindingFunction, FindingList, FindingMeasure,
    FindingOwner, FindingState, TimeRange,
};
pub use handled::{
    AcknowledgeRequest, Acknowledgement, RefusedMessage, Resent, SilenceEntry, SilenceRequest,
};
/// A token's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Enrol hosts, nothing else.
    Agent,
    /// Ask for everything that was recorded.
    Read,
    /// That, give and take tokens, acknowledge and silence findings.
    Admin,
}

/// An error, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReply {
    /// One sentence, lower case, no full stop.
    pub error: String,
    /// Of a window that was not taken: the `reason` of the metric `windows_refused_total`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ErrorReply {
    /// The reason of a window that is not taken because the host's or the server's clock is wrong. Other windows may be.
    pub const CLOCK: &str = "clock";
}

/// A host asks to be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollRequest {
    /// A token with the role `agent`.
    pub token: String,
    /// The host's name: 1 to 64 of `a-z A-Z 0-9 . _ -`, no dot first.
    #[schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")]
    pub host: String,
}

/// It is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnrollReply {
    /// With this, windows of this host can be sent. The server can't tell it again.
    pub host_token: String,
}

/// A browser logs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// A token with the role `read` or `admin`.
    pub token: String,
}

/// A request for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What for.
    pub role: Role,
    /// Whose it is, for the list of tokens.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// Days that it is good for, at most 36,500; absent: until it is deleted.
    #[serde(default)]
    #[schema(maximum = 36_500)]
    pub days: Option<u32>,
}

/// The token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenReply {
    /// The server can't tell it again.
    pub token: String,
    /// What it is called in the list of tokens: its SHA-256.
    pub id: String,
}

/// A token, as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenEntry {
    /// SHA-256 of the token.
    pub id: String,
    /// What it is for.
    pub role: Role,
    /// Whose it is.
    pub name: String,
    /// Seconds since 1970 until which it is good; absent: until it is deleted.
    #[serde(default)]
    pub expires_unix_s: Option<u64>,
}

/// A host that may send windows, as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostEntry {
    /// Its name.
    pub host: String,
    /// SHA-256 of its token.
    pub token_sha256: String,
    /// When it was enrolled, seconds since 1970.
    pub enrolled_unix_s: u64,
}

/// What became of a window that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowReply {
    /// `stored`, or `known`: it was there already.
    pub state: WindowState,
}

/// What became of a window that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WindowState {
    /// It is stored durably.
    Stored,
    /// It was there already.
    Known,
}

/// A stored window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowEntry {
    /// `HOST/BOOT/START`: behind `/v1/windows/` it can be downloaded.
    pub window: String,
    /// The day on which it begins, UTC: `YYYY-MM-DD`.
    pub day: String,
    /// Its size.
    pub bytes: u64,
}

/// A list, which says when it is not all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowList {
    /// Ordered by day, host and start.
    pub windows: Vec<WindowEntry>,
    /// Why some are missing; absent: none are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

/// A question in SQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlRequest {
    /// One `SELECT`.
    #[schema(min_length = 1)]
    pub sql: String,
    /// Look at windows of this time on only, RFC 3339. The `SELECT` has to say so itself for the rows.
    #[serde(default)]
    #[schema(format = "date-time")]
    pub from: Option<String>,
    /// Before this time.
    #[serde(default)]
    #[schema(format = "date-time")]
    pub to: Option<String>,
    /// Of this host.
    #[serde(default)]
    #[schema(pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$")]
    pub host: Option<String>,
}

/// A ready-made query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryEntry {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// Names of its parameters.
    pub parameters: Vec<String>,
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnswerColumn {
    /// Its name.
    pub name: String,
    /// Its type, in Arrow's words.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What the hosts and VMs of the fleet lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetAnswer {
    /// Start of the first slot, seconds since 1970.
    pub start_unix_s: u64,
    /// Length of a slot in seconds.
    pub slot_s: u64,
    /// The hosts, those that lost most first.
    pub hosts: Vec<HostTimes>,
    /// The VMs that lost most, at most 200.
    pub vms: Vec<VmTimes>,
    /// Windows whose results the server is still to read.
    pub reading: u64,
    /// Why the answer is incomplete, one sentence per reason; empty: it is complete.
    pub partial: Vec<String>,
}

/// What a host's VMs lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostTimes {
    /// Its name.
    pub host: String,
    /// Of each slot, the part of the vCPUs' time that was stolen, 0 to 1; null: no vCPU was there.
    pub stolen: Vec<Option<f64>>,
}

/// What a VM lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmTimes {
    /// Its host.
    pub host: String,
    /// Its name.
    pub vm: String,
    /// Time of its vCPUs.
    pub ns: u64,
    /// Of that, waiting for a CPU (steal type 1).
    pub outside_ns: u64,
    /// In the VMM (type 2).
    pub vmm_ns: u64,
    /// Held back by a quota.
    pub throttled_ns: u64,
}

/// What the agents of the fleet collected, and what they noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthAnswer {
    /// Hosts that sent windows.
    pub hosts: Vec<HostHealth>,
    /// What was lost or noted, that of most windows first; at most 2,000, and of the last 24 hours.
    pub notes: Vec<HealthNote>,
    /// Windows whose results the server is still to read.
    pub reading: u64,
    /// Why the answer is incomplete, one sentence per reason; empty: it is complete.
    pub partial: Vec<String>,
}

/// What a host's agent collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostHealth {
    /// The host.
    pub host: String,
    /// Windows that it sent.
    pub windows: u64,
    /// CPUs sampled.
    pub cpus: u32,
    /// Length of the windows together.
    pub covered_ns: u64,
    /// When the first one began, ms since 1970.
    pub first_unix_ms: u64,
    /// When the last one ended, ms since 1970.
    pub end_unix_ms: u64,
    /// Samples taken.
    pub samples: u64,
    /// Taken, and lost.
    pub samples_lost: u64,
    /// Sampling interrupts that never came.
    pub samples_missed: u64,
    /// The host's kernel in the last window.
    pub kernel: String,
    /// The agent's version in the last window.
    pub vmscope_version: String,
}

/// What windows of a host have lost, or what is noted in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthNote {
    /// The host.
    pub host: String,
    /// `host`, or the VM or file that it is about.
    pub subject: String,
    /// The counter, or the note.
    pub what: String,
    /// The counter's sum; null: it is a note.
    pub count: Option<u64>,
    /// In how many windows it is.
    pub windows: u64,
}

/// What a VM did in a window, second by second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecondsAnswer {
    /// The first second, since 1970.
    pub start_unix_s: u64,
    /// What its vCPUs did, as in the table `vcpu_time`.
    pub rows: Vec<SecondsRow>,
}

/// Something that a VM's vCPUs did. What is not known is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecondsRow {
    /// The vCPU's state.
    pub state: String,
    /// The guest's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Its module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The call path to it, the outermost function first, joined by `;`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// The last so many of its functions are the guest kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_frames: Option<u32>,
    /// Who had the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thief: Option<String>,
    /// The VM that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thief_vm: Option<String>,
    /// The VM exit's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_reason: Option<String>,
    /// Of each second that has any: its number from the first on, ns, corrected ns, samples.
    pub cells: Vec<[u64; 4]>,
}

/// An answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// What the values of a row are.
    pub columns: Vec<AnswerColumn>,
    /// Rows: numbers, texts, truth values, null. Integers are exact.
    #[schema(value_type = Vec<Vec<Object>>)]
    pub rows: Vec<Vec<serde_json::Value>>,
    /// Why the answer is incomplete, one sentence per reason; empty: it is complete.
    pub partial: Vec<String>,
    /// Windows whose results were looked at.
    pub windows: u64,
}
