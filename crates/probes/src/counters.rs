//! Counting what a thread does with memory, its guest's time included.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd, OwnedFd};

use model::Tid;
use perf_event_open_sys as sys;

use crate::ProbeError;

/// Counters of a thread, which count from the moment they are opened.
#[derive(Debug)]
pub struct ThreadCounters {
    misses: File,
    instructions: File,
    /// Loads from memory, and those from other nodes' memory; not every CPU counts them.
    loads: Option<(File, File)>,
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
        use sys::bindings as b;
        let hardware = |config, name| open(tid, b::PERF_TYPE_HARDWARE, u64::from(config), name);
        let node = |result: u32| {
            let read = u64::from(b::PERF_COUNT_HW_CACHE_OP_READ) << 8;
            let config = u64::from(b::PERF_COUNT_HW_CACHE_NODE) | read | u64::from(result) << 16;
            open(tid, b::PERF_TYPE_HW_CACHE, config, "node-loads")
        };
        let loads = node(b::PERF_COUNT_HW_CACHE_RESULT_ACCESS)
            .and_then(|all| Ok((all, node(b::PERF_COUNT_HW_CACHE_RESULT_MISS)?)));
        Ok(Self {
            misses: hardware(b::PERF_COUNT_HW_CACHE_MISSES, "cache-misses")?,
            instructions: hardware(b::PERF_COUNT_HW_INSTRUCTIONS, "instructions")?,
            loads: loads.ok(),
        })
    }

    /// Reads them.
    ///
    /// # Errors
    /// If the kernel has put a counter into its error state.
    pub fn read(&self) -> io::Result<ThreadCounts> {
        let loads =
            self.loads.as_ref().map(|(all, far)| Ok::<_, io::Error>((read(all)?, read(far)?)));
        Ok(ThreadCounts {
            misses: read(&self.misses)?,
            instructions: read(&self.instructions)?,
            loads: loads.transpose()?,
        })
    }
}

fn open(tid: Tid, kind: u32, config: u64, event: &'static str) -> Result<File, ProbeError> {
    let mut attr = sys::bindings::perf_event_attr::default();
    attr.size = u32::try_from(size_of_val(&attr)).expect("the struct is small");
    attr.type_ = kind;
    attr.config = config;
    attr.read_format = u64::from(sys::bindings::PERF_FORMAT_TOTAL_TIME_ENABLED)
        | u64::from(sys::bindings::PERF_FORMAT_TOTAL_TIME_RUNNING);
    let thread = i32::try_from(tid.0).expect("thread ids are below 2^22");
    let flags = u64::from(sys::bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is a valid, initialised structure of the size it states.
    let fd = unsafe { sys::perf_event_open(&mut attr, thread, -1, -1, flags) };
    if fd < 0 {
        let source = io::Error::last_os_error();
        return Err(ProbeError::Counter { event, tid: tid.0, source });
    }
    // SAFETY: the kernel just gave us this descriptor and it has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The count, scaled to the time that the counter was wanted.
fn read(mut counter: &File) -> io::Result<f64> {
    let mut bytes = [0_u8; 24];
    counter.read_exact(&mut bytes)?;
    let value = |at: usize| {
        let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
        u64::from_ne_bytes(bytes)
    };
    Ok(scaled(value(0), value(8), value(16)))
}

fn scaled(count: u64, enabled_ns: u64, running_ns: u64) -> f64 {
    if running_ns == 0 {
        0.0
    } else {
        count as f64 * (enabled_ns as f64 / running_ns as f64).max(1.0)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn counts_are_scaled_to_the_time_wanted() {
        let check = |count, enabled, running, expected: f64| {
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
            Ok(counters) => {
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
