//! A recording that was taken on a trace's host at the same time: both use the host's clock (`CLOCK_MONOTONIC`).

use std::path::Path;

use model::{Header, HostNs};
use recording::Recording;
use recording::trace::TraceHeader;

use super::super::export::Loaded;
use cli::Usage;

/// How far two estimates of one boot time may be apart: the real-time clock may be corrected between them, and two
/// boots of one machine are further apart than this.
const SAME_BOOT_NS: u64 = 1_000_000_000;

/// The recording in `dir`, when it can be shown with the trace.
///
/// # Errors
/// A usage error when its host, boot or time is not the trace's; or it can't be read.
pub(super) fn load(dir: &Path, trace: &TraceHeader) -> anyhow::Result<Loaded> {
    let recording = Recording::open(dir)?;
    let (a, b) = (Taken::recording(&recording.header), Taken::trace(trace));
    if let Some(why) = mismatch(&a, &b) {
        let text = format!("{} can't be shown with this trace: {why}", dir.display());
        return Err(Usage(table::clean(&text).into_owned()).into());
    }
    Loaded::in_time(recording)
}

/// Where and when a recording or a trace was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken<'a> {
    hostname: &'a str,
    begin: HostNs,
    end: HostNs,
    /// `CLOCK_REALTIME` at `begin`, ns since 1970.
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

    /// `CLOCK_REALTIME` when the host's clock was 0, ns since 1970: differs between boots.
    fn boot_unix_ns(&self) -> u64 {
        self.begin_unix_ns.saturating_sub(self.begin.0)
    }
}

/// Why a recording and a trace have no moment in common; `None`: they have one.
fn mismatch(recording: &Taken<'_>, trace: &Taken<'_>) -> Option<String> {
    if recording.hostname != trace.hostname {
        let (theirs, ours) = (recording.hostname, trace.hostname);
        return Some(format!("it was taken on host {theirs}, the trace on {ours}"));
    }
    let between_boots = recording.boot_unix_ns().abs_diff(trace.boot_unix_ns());
    if SAME_BOOT_NS < between_boots {
        let between = table::seconds(between_boots, 3);
        return Some(format!(
            "their boot times differ by {between} s (another boot of {}, or its clock was set)",
            trace.hostname
        ));
    }
    if recording.end <= trace.begin {
        let by = table::seconds(trace.begin.since(recording.end), 3);
        return Some(format!("it ended {by} s before the trace began"));
    }
    if trace.end <= recording.begin {
        let by = table::seconds(recording.begin.since(trace.end), 3);
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
    fn only_a_recording_of_the_same_time_is_accepted() {
        let trace = taken("kvm1", 1_000_000, 100, 110);
        let check = |recording: Taken<'_>, expected: Option<&str>| {
            assert_eq!(mismatch(&recording, &trace).as_deref(), expected);
        };
        check(taken("kvm1", 1_000_000, 90, 101), None);
        check(taken("kvm1", 1_000_000, 109, 200), None);
        check(taken("kvm1", 1_000_000, 102, 103), None);
        check(taken("kvm1", 1_000_001, 99, 120), None);
        let elsewhere = taken("kvm2", 1_000_000, 100, 110);
        check(elsewhere, Some("it was taken on host kvm2, the trace on kvm1"));
        let why =
            "their boot times differ by 7200.000 s (another boot of kvm1, or its clock was set)";
        check(taken("kvm1", 1_007_200, 100, 110), Some(why));
        check(taken("kvm1", 992_800, 100, 110), Some(why));
        let before = taken("kvm1", 1_000_000, 90, 98);
        check(before, Some("it ended 2.000 s before the trace began"));
        check(taken("kvm1", 1_000_000, 90, 100), Some("it ended 0.000 s before the trace began"));
        let after = taken("kvm1", 1_000_000, 113, 120);
        check(after, Some("it began 3.000 s after the trace ended"));
    }
}
