//! What a recording's counters are about, by their names.

use model::Header;

/// `NAME_cpuN`.
pub(crate) const DROPPED: &str = "samples_dropped_cpu";
/// `NAME_cpuN`.
pub(crate) const MISSED: &str = "samples_missed_cpu";
/// `NAME_cpuN`, in older recordings.
const WRITTEN: &str = "samples_written_cpu";

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Samples taken and lost.
    Dropped,
    /// Interrupts that never came.
    Missed,
    /// Samples in the recording: not a loss.
    Written,
    /// Anything else, lost or cut.
    Other,
}

impl Counter {
    /// The counter of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let known = [(DROPPED, Self::Dropped), (MISSED, Self::Missed), (WRITTEN, Self::Written)];
        let found = known.into_iter().find(|(prefix, _)| name.starts_with(prefix));
        found.map_or(Self::Other, |(_, counter)| counter)
    }
}

/// Whether the recording lacks samples: interrupts never came, or their samples were dropped.
#[must_use]
pub fn lacks_samples(header: &Header) -> bool {
    let lost = |name| matches!(Counter::of(name), Counter::Missed | Counter::Dropped);
    header.counters.iter().any(|(name, count)| lost(name) && 0 < *count)
}
