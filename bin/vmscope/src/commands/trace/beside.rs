//! A recording of the same moment as a trace: both have the host's clock (`CLOCK_MONOTONIC`).

use std::path::Path;

use model::{Header, HostNs};
use recording::Recording;
use recording::trace::TraceHeader;

use super::super::Usage;
use super::super::export::InTime;
use super::scene::seconds;

/// How far two readings of when a host was booted may be apart: the world's time may be corrected between them, and
/// two boots of one machine are further apart than this.
const SAME_BOOT_NS: u64 = 1_000_000_000;

/// The recording in `dir`, when it can stand beside a trace.
///
/// # Errors
/// A usage error when it is not of the trace's host, boot and time; or it can't be read.
pub(super) fn load(dir: &Path, trace: &TraceHeader) -> anyhow::Result<InTime> {
    let recording = Recording::open(dir)?;
    let (a, b) = (Taken::recording(&recording.header), Taken::trace(trace));
    if let Some(why) = apart(&a, &b) {
        let text = format!("{} can't stand beside this trace: {why}", dir.display());
        return Err(Usage(analysis::clean(&text).into_owned()).into());
    }
    InTime::load(recording)
}

/// Where and when something was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken<'a> {
    hostname: &'a str,
    begin: HostNs,
    end: HostNs,
    /// The world's time at `begin`, ns since 1970.
    begin_unix_ns: u64,
}

impl<'a> Taken<'a> {
    fn recording(header: &'a Header) -> Self {
        let Header { hostname, start, end, start_unix_ns, .. } = header;
        Self { hostname, begin: *start, end: *end, begin_unix_ns: *start_unix_ns }
    }

    fn trace(header: &'a TraceHeader) -> Self {
        let TraceHeader { hostname, begin, end, begin_unix_ns, .. } = header;
        Self { hostname, begin: *begin, end: *end, begin_unix_ns: *begin_unix_ns }
    }

    /// The world's time when the host's clock was 0, ns since 1970: no two boots have the same.
    fn boot_unix_ns(&self) -> u64 {
        self.begin_unix_ns.saturating_sub(self.begin.0)
    }
}

/// Why a recording and a trace have no moment in common; `None`: they have.
fn apart(recording: &Taken<'_>, trace: &Taken<'_>) -> Option<String> {
    if recording.hostname != trace.hostname {
        let (theirs, ours) = (recording.hostname, trace.hostname);
        return Some(format!("it is of host {theirs}, the trace of {ours}"));
    }
    let between_boots = recording.boot_unix_ns().abs_diff(trace.boot_unix_ns());
    if SAME_BOOT_NS < between_boots {
        let between = seconds(between_boots);
        return Some(format!(
            "their clocks begin {between} s apart (another boot of {}, or its clock was set)",
            trace.hostname
        ));
    }
    if recording.end <= trace.begin {
        let by = seconds(trace.begin.since(recording.end));
        return Some(format!("it ended {by} s before the trace began"));
    }
    if trace.end <= recording.begin {
        let by = seconds(recording.begin.since(trace.end));
        return Some(format!("it began {by} s after the trace ended"));
    }
    None
}

#[cfg(test)]
mod test {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Taken on a host that was booted at `boot`, both in s, from `begin` to `end` after it.
    fn taken(hostname: &str, boot: u64, begin: u64, end: u64) -> Taken<'_> {
        let begin_unix_ns = (boot + begin) * S;
        Taken { hostname, begin: HostNs(begin * S), end: HostNs(end * S), begin_unix_ns }
    }

    #[test]
    fn only_what_has_a_moment_in_common_stands_together() {
        let trace = taken("kvm1", 1_000_000, 100, 110);
        let check = |recording: Taken<'_>, expected: Option<&str>| {
            assert_eq!(apart(&recording, &trace).as_deref(), expected);
        };
        check(taken("kvm1", 1_000_000, 90, 101), None);
        check(taken("kvm1", 1_000_000, 109, 200), None);
        check(taken("kvm1", 1_000_000, 102, 103), None);
        check(taken("kvm1", 1_000_001, 99, 120), None);
        let elsewhere = taken("kvm2", 1_000_000, 100, 110);
        check(elsewhere, Some("it is of host kvm2, the trace of kvm1"));
        let why =
            "their clocks begin 7200.000 s apart (another boot of kvm1, or its clock was set)";
        check(taken("kvm1", 1_007_200, 100, 110), Some(why));
        check(taken("kvm1", 992_800, 100, 110), Some(why));
        let before = taken("kvm1", 1_000_000, 90, 98);
        check(before, Some("it ended 2.000 s before the trace began"));
        check(taken("kvm1", 1_000_000, 90, 100), Some("it ended 0.000 s before the trace began"));
        let after = taken("kvm1", 1_000_000, 113, 120);
        check(after, Some("it began 3.000 s after the trace ended"));
    }
}
