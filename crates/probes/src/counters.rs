//! Counting what a thread does with memory, its guest's time included.

use std::io;
use std::time::Duration;

use model::Tid;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware};
use perf_event::{Builder, Counter};

use crate::ProbeError;

/// Counters of a thread, which count from the moment they are opened.
#[derive(Debug)]
pub struct ThreadCounters {
    misses: Counter,
    instructions: Counter,
    /// Loads from memory, and those from other nodes' memory; not every CPU counts them.
    loads: Option<(Counter, Counter)>,
}

/// What a thread has done so far. Where there are more counters than the CPU has, the kernel counts by turns, and these
/// are estimates.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadCounts {
    /// Misses of the last level cache.
    pub misses: f64,
    pub instructions: f64,
    /// Loads from memory, and those from other nodes' memory.
    pub loads: Option<(f64, f64)>,
}

impl ThreadCounters {
    /// Opens the counters of a thread. They are hardware events: the caller has queried
    /// `host::machine::cycles_are_safe`.
    ///
    /// # Errors
    /// When the kernel refuses, or the thread is gone.
    pub fn open(tid: Tid) -> Result<Self, ProbeError> {
        let node = |result| {
            let loads = Cache { which: CacheId::NODE, operation: CacheOp::READ, result };
            open(tid, loads, "node-loads")
        };
        let loads = node(CacheResult::ACCESS).and_then(|all| Ok((all, node(CacheResult::MISS)?)));
        Ok(Self {
            misses: open(tid, Hardware::CACHE_MISSES, "cache-misses")?,
            instructions: open(tid, Hardware::INSTRUCTIONS, "instructions")?,
            loads: loads.ok(),
        })
    }

    /// Reads them.
    ///
    /// # Errors
    /// If the kernel has put a counter into its error state.
    pub fn read(&mut self) -> io::Result<ThreadCounts> {
        let loads =
            self.loads.as_mut().map(|(all, far)| Ok::<_, io::Error>((read(all)?, read(far)?)));
        Ok(ThreadCounts {
            misses: read(&mut self.misses)?,
            instructions: read(&mut self.instructions)?,
            loads: loads.transpose()?,
        })
    }
}

fn open(tid: Tid, counted: impl Event, event: &'static str) -> Result<Counter, ProbeError> {
    let thread = i32::try_from(tid.0).expect("thread ids are below 2^22");
    let mut counter = Builder::new(counted);
    counter.observe_pid(thread).any_cpu().exclude_kernel(false).exclude_hv(false).enabled(true);
    counter.build().map_err(|source| ProbeError::Counter { event, tid: tid.0, source })
}

/// The count, scaled to the time that the counter was wanted.
fn read(counter: &mut Counter) -> io::Result<f64> {
    let read = counter.read_full()?;
    let (enabled, running) = (read.time_enabled(), read.time_running());
    Ok(scaled(read.count(), enabled.unwrap_or_default(), running.unwrap_or_default()))
}

fn scaled(count: u64, enabled: Duration, running: Duration) -> f64 {
    if running.is_zero() { 0.0 } else { count as f64 * enabled.div_duration_f64(running).max(1.0) }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn counts_are_scaled_to_the_time_wanted() {
        let check = |count, enabled, running, expected: f64| {
            let (enabled, running) = (Duration::from_nanos(enabled), Duration::from_nanos(running));
            assert!((scaled(count, enabled, running) - expected).abs() < 1e-9);
        };
        check(10, 100, 100, 10.0);
        check(10, 100, 25, 40.0);
        check(10, 100, 0, 0.0);
    }

    #[test]
    fn this_thread_is_counted() {
        let own = std::fs::read_link("/proc/thread-self").unwrap();
        let own = Tid(own.file_name().unwrap().to_str().unwrap().parse().unwrap());
        match ThreadCounters::open(own) {
            Ok(mut counters) => {
                let before = counters.read().unwrap().instructions;
                std::hint::black_box((0..100_000_u64).sum::<u64>());
                assert!(before < counters.read().unwrap().instructions);
            }
            Err(error) if !std::path::Path::new("/sys/bus/event_source/devices/cpu").exists() => {
                // No PMU: the message says which event was wanted.
                assert!(error.to_string().contains("cache-misses"), "{error}");
            }
            Err(error) => skip::skip_if_refused(error),
        }
    }
}
