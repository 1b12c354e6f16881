//! Facts about a trace as a whole.

use std::collections::BTreeMap;

use model::{HostNs, Note};

/// Facts about a trace as a whole, as `trace.json` has them. What belongs to one machine is in `model::Machine`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceHeader {
    /// The writer.
    pub vmscope_version: String,
    /// The host.
    pub hostname: String,
    /// First instant covered, on the host's clock.
    pub begin: HostNs,
    /// Last instant covered.
    pub end: HostNs,
    /// `CLOCK_REALTIME` at `begin`, ns since 1970.
    pub begin_unix_ns: u64,
    /// False while it is written, and for ever when the writer is killed. Writers need not set it.
    pub complete: bool,
    /// What it was limited to, in the user's words (`--pid 42`); empty: everything.
    pub filters: Vec<String>,
    /// Everything dropped, truncated or missed that no machine's `lost` counts, by name; absent is 0.
    pub counters: BTreeMap<String, u64>,
    /// What the user should know.
    pub notes: Vec<Note>,
}
