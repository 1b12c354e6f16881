//! The table of what a recording counts. Names are stable: `recording.json` and the result table `health` have them.

use crate::Header;

macro_rules! counters {
    ($( $(#[$doc:meta])* $variant:ident $name:literal, )*) => {
        /// What a recording counts. Counters of a CPU have its number behind their name: `samples_dropped_cpu0`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All that this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name, without a CPU.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Samples taken and lost, by CPU.
    SamplesDropped "samples_dropped",
    /// Interrupts that never came, by CPU.
    SamplesMissed "samples_missed",
    /// Samples in the recording, by CPU, in older recordings: not a loss.
    SamplesWritten "samples_written",
    /// Samples with a call stack that is in no table.
    SamplesWithoutStackRow "samples_without_stack_row",
    /// Samples whose vCPU is in no table.
    SamplesWithoutVcpuRow "samples_without_vcpu_row",
    /// Events of vCPUs' threads that were lost, by CPU.
    SwitchesDropped "switches_dropped",
    /// Events of vCPUs that are in no table.
    SwitchesWithoutVcpuRow "switches_without_vcpu_row",
    /// Reads of a vCPU's registers that failed, by CPU.
    VcpuReadErrors "vcpu_read_errors",
    /// Searches for vCPUs that failed.
    VcpuLooksFailed "vcpu_looks_failed",
    /// vCPUs without recorded switches.
    VcpusNotWatched "vcpus_not_watched",
    /// Throttled queues that were lost.
    ThrottledQueuesDropped "throttled_queues_dropped",
    /// Begins and ends of processes that were lost.
    ProcessEventsLost "process_events_lost",
    /// Call stacks that were longer than the kernel stores.
    StacksTruncated "stacks_truncated",
    /// Damaged bytes of a spool.
    SpoolBytesLost "spool_bytes_lost",
}

impl Counter {
    /// Its name of a CPU.
    #[must_use]
    pub fn of_cpu(self, cpu: u32) -> String {
        format!("{}_cpu{cpu}", self.name())
    }

    /// The counter of a name, and its CPU. `None`: another version's.
    #[must_use]
    pub fn parse(name: &str) -> Option<(Self, Option<u32>)> {
        let known = |name: &str| Self::ALL.iter().copied().find(|known| known.name() == name);
        if let Some(counter) = known(name) {
            return Some((counter, None));
        }
        let (name, cpu) = name.rsplit_once("_cpu")?;
        Some((known(name)?, Some(cpu.parse().ok()?)))
    }

    /// Whether it counts what the kernel had no room for.
    #[must_use]
    pub fn is_drop(self) -> bool {
        matches!(self, Self::SamplesDropped | Self::SwitchesDropped | Self::ThrottledQueuesDropped)
    }

    /// Whether it counts samples by what became of them, which reports show as a fact of its own.
    fn is_of_samples(self) -> bool {
        matches!(self, Self::SamplesDropped | Self::SamplesMissed | Self::SamplesWritten)
    }
}

impl Header {
    /// What a counter has counted, by CPU if it has one.
    pub fn counts(&self, counter: Counter) -> impl Iterator<Item = (Option<u32>, u64)> {
        self.counters.iter().filter_map(move |(name, count)| {
            let (found, cpu) = Counter::parse(name)?;
            (found == counter).then_some((cpu, *count))
        })
    }

    /// What a counter has counted on all CPUs.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts(counter).fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// All counters except those of dropped, missed and written samples. Counters of other versions are among them.
    pub fn other_counters(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_other =
            |name: &str| Counter::parse(name).is_none_or(|(found, _)| !found.is_of_samples());
        self.counters
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
            .filter(move |(name, _)| is_other(name))
    }

    /// Whether the recording lacks samples: interrupts never came, or their samples were dropped.
    #[must_use]
    pub fn lacks_samples(&self) -> bool {
        [Counter::SamplesMissed, Counter::SamplesDropped]
            .into_iter()
            .any(|counter| 0 < self.count(counter))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_parse() {
        let check = |name: &str, expected| assert_eq!(Counter::parse(name), expected, "{name}");
        for counter in Counter::ALL {
            check(counter.name(), Some((*counter, None)));
            check(&counter.of_cpu(17), Some((*counter, Some(17))));
        }
        check("samples_dropped_cpux", None);
        check("samples_dropped_cpu", None);
        check("_cpu1", None);
        check("a_counter_of_a_later_version", None);
        let drops: Vec<_> = Counter::ALL.iter().filter(|counter| counter.is_drop()).collect();
        assert!(drops.iter().all(|counter| counter.name().ends_with("_dropped")));
        let ends = Counter::ALL.iter().filter(|counter| counter.name().ends_with("_dropped"));
        assert_eq!(ends.count(), drops.len());
    }
}
