//! The JSON of `vmscope doctor --format json`, described for its readers in docs/operations.md.
//!
//! Stable: within a version fields and findings are only added.

use serde::{Deserialize, Serialize};

/// Version of this format.
pub const VERSION: u32 = 1;

/// What a machine can and can't do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// `VERSION` of the writer.
    pub version: u32,
    /// The machine's name.
    pub hostname: String,
    /// Its kernel's release.
    pub kernel: String,
    /// All that was looked at.
    pub findings: Vec<Finding>,
    /// What it comes to.
    pub verdict: Verdict,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `host` or `guests`: what it matters for.
    pub area: String,
    /// The thing.
    pub what: String,
    /// `works`, `limited` or `missing`.
    pub state: String,
    /// Why.
    pub reason: String,
    /// What to do; null if there is nothing to be done.
    pub advice: Option<String>,
}

/// What `vmscope record` will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it can record at all (the exit code is 0 then, else 1).
    pub record: bool,
    /// The host itself.
    pub host: AreaVerdict,
    /// Its guests.
    pub guests: AreaVerdict,
}

/// The worst of an area's findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaVerdict {
    /// `works`, `limited` or `missing`.
    pub state: String,
    /// What has this state, and why; empty if all works.
    pub reasons: Vec<String>,
}
