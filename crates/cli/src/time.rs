//! Times on the command line: one way to write them for all subcommands.

use std::ops::Range;
use std::time::Duration;

use model::HostNs;
use table::seconds;

use crate::Usage;

/// More than anyone waits; every instant plus this much is a valid time.
const MAX: Duration = Duration::from_secs(10_000 * 3600);

/// `20`, `1.5`, `500ms`, `100us`, `2m`; plain numbers are seconds.
pub fn duration_in_seconds(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let no_time = || format!("{text:?} is not a time");
    let number: f64 = digits.parse().map_err(|_| no_time())?;
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit {other:?}: use us, ms, s, m or h")),
    };
    let time = Duration::try_from_secs_f64(number * unit).map_err(|_| no_time())?;
    if time <= MAX { Ok(time) } else { Err("at most 10000h".to_owned()) }
}

/// A part of a recording or a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct TimeRange {
    /// Start of the part to show, in seconds since the recording or trace began
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    from: Option<Duration>,
    /// End of the part to show, in seconds since the recording or trace began
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    to: Option<Duration>,
}

impl TimeRange {
    /// The whole recording.
    pub const ALL: Self = Self { from: None, to: None };

    /// On the host's axis; `None`: all of it.
    ///
    /// # Errors
    /// A usage error when nothing of `all` lies in it.
    pub fn within(&self, all: Range<HostNs>) -> Result<Option<Range<HostNs>>, Usage> {
        if self.from.is_none() && self.to.is_none() {
            return Ok(None);
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = |time: Duration| HostNs(all.start.0.saturating_add(ns(time))).min(all.end);
        let (from, to) = (self.from.map_or(all.start, at), self.to.map_or(all.end, at));
        if (from..to) == all {
            return Ok(None);
        }
        if from < to {
            return Ok(Some(from..to));
        }
        let length = seconds(all.end.since(all.start), 3);
        Err(Usage(format!("no time between --from and --to: {length} s were recorded")))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times() {
        let check = |text, expected: Option<u128>| {
            let nanos = duration_in_seconds(text).ok().map(|d| d.as_nanos());
            assert_eq!(nanos, expected, "{text}");
        };
        check("20", Some(20_000_000_000));
        check("1.5s", Some(1_500_000_000));
        check("500ms", Some(500_000_000));
        check("100us", Some(100_000));
        check("2m", Some(120_000_000_000));
        check("10000h", Some(36_000_000_000_000_000));
        check("10001h", None);
        check("-1", None);
        check("1y", None);
        check("", None);
    }
}
