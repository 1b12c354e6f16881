//! Processes' events between two looks: the kernel's side-band records of names, executable
//! mappings, forks and exits, collected in one ring per CPU, so that nothing runs until they are drained;
//! a ring that is half full wakes its reader. Needs no PMU: the event is perf's software dummy.

mod parse;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use model::BuildId;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

use parse::{Record, parse_record};

/// Why side-band records can't be collected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused the event.
    #[error("failed to open the process side-band event on CPU {cpu}: {source}")]
    Open { cpu: u32, source: io::Error },
    /// The kernel refused the ring.
    #[error("failed to map a ring of {bytes} bytes for side-band records of CPU {cpu}: {source}")]
    Map {
        cpu: u32,
        /// Requested size.
        bytes: usize,
        source: io::Error,
    },
}

/// Something a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// The process (of a fork: the new one).
    pub pid: u32,
    /// The thread (of a fork: the new one).
    pub tid: u32,
    pub kind: EventKind,
}

/// What a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// It took a name.
    Comm {
        name: String,
        /// Whether by exec: all mappings before this are gone, those after belong to the new program.
        exec: bool,
    },
    Map {
        start: u64,
        /// Bytes.
        length: u64,
        /// File offset of `start`.
        offset: u64,
        /// Path as the process sees it, `[vdso]`, `//anon`.
        path: String,
        /// GNU build id of the file.
        build_id: Option<BuildId>,
    },
    /// A process (`tid == pid`) or thread was made by process `parent`.
    Fork {
        /// The parent process; for a new thread, its own process.
        parent: u32,
    },
    /// A thread ended.
    Exit,
}

/// The open rings. Dropping it closes them.
pub struct Sideband {
    rings: Vec<(u32, Sampler)>,
    /// Taken from the rings, not handed over yet.
    held: Vec<Event>,
    lost: u64,
}

impl Sideband {
    /// Begins to collect on `cpus`, in rings of about `ring_bytes` each (rounded up to a power of
    /// two). CPUs that are offline are passed over.
    ///
    /// # Errors
    /// If the kernel refuses an event or ring: mostly for want of privileges.
    pub fn open(cpus: &[u32], ring_bytes: usize) -> Result<Self, Error> {
        let mut sideband = Self { rings: Vec::new(), held: Vec::new(), lost: 0 };
        sideband.set_cpus(cpus, ring_bytes)?;
        Ok(sideband)
    }

    /// From now on collects on `cpus`: on new ones, and no longer on those that are not among them, whose last events are
    /// kept. A CPU that went offline and came back needs a new ring. Whether there are new ones.
    ///
    /// # Errors
    /// As `open`.
    pub fn set_cpus(&mut self, cpus: &[u32], ring_bytes: usize) -> Result<bool, Error> {
        const ENODEV: i32 = 19;
        if !self.rings.iter().all(|(cpu, _)| cpus.contains(cpu)) {
            self.take_from_rings();
            self.rings.retain(|(cpu, _)| cpus.contains(cpu));
        }
        let before = self.rings.len();
        for cpu in cpus {
            if self.rings.iter().any(|(known, _)| known == cpu) {
                continue;
            }
            match open_ring(*cpu, ring_bytes) {
                Ok(ring) => self.rings.push((*cpu, ring)),
                Err(Error::Open { source, .. }) if source.raw_os_error() == Some(ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(before < self.rings.len())
    }

    /// Readable when a ring has become half full: it is time to drain them.
    pub fn half_full(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // SAFETY: the ring keeps its descriptor open, and outlives the borrow.
        self.rings.iter().map(|(_, ring)| unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    /// Hands over all that was collected since the last call, in time order, and frees the rings.
    pub fn drain(&mut self, sink: &mut dyn FnMut(Event)) {
        self.drain_before(u64::MAX, sink);
    }

    /// Hands over what happened before `time_ns` and keeps the rest for the next call. The rings are
    /// read one after another: of what happens meanwhile, an effect may be read before its cause, so
    /// who goes on collecting passes a time a little before now.
    pub fn drain_before(&mut self, time_ns: u64, sink: &mut dyn FnMut(Event)) {
        self.take_from_rings();
        self.held.sort_by_key(|event| event.time_ns);
        let settled = self.held.partition_point(|event| event.time_ns < time_ns);
        self.held.drain(..settled).for_each(sink);
    }

    /// Each CPU's events stop being taken after one ring's worth, so the call ends however busy the
    /// machine is.
    fn take_from_rings(&mut self) {
        for (_, ring) in &mut self.rings {
            let mut bytes_left = MAX_DRAIN_BYTES;
            while let Some(record) = ring.next_record() {
                match parse_record(record.ty(), record.misc(), &record.to_contiguous()) {
                    Record::Event(event) => self.held.push(event),
                    Record::Lost(count) => self.lost = self.lost.saturating_add(count),
                    Record::Other => {}
                }
                bytes_left = bytes_left.saturating_sub(record.len() + HEADER_BYTES);
                if bytes_left == 0 {
                    break;
                }
            }
        }
    }

    /// Records that found no room, as far as drained.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl std::fmt::Debug for Sideband {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sideband")
            .field("rings", &self.rings.len())
            .field("lost", &self.lost)
            .finish()
    }
}

/// Bounds one drain of one CPU.
const MAX_DRAIN_BYTES: usize = 256 << 20;
const HEADER_BYTES: usize = 8;

fn open_ring(cpu: u32, ring_bytes: usize) -> Result<Sampler, Error> {
    let counter = Builder::new(Software::DUMMY)
        .any_pid()
        .one_cpu(cpu as usize)
        .exclude_kernel(false)
        .exclude_hv(false)
        .mmap(true)
        .mmap2(true)
        .build_id(true)
        .comm(true)
        .comm_exec(true)
        .task(true)
        .sample_id_all(true)
        .sample(SampleFlag::TID | SampleFlag::TIME)
        .clockid(Clock::MONOTONIC)
        .wakeup_watermark(ring_bytes / 2)
        .enabled(true)
        .build()
        .map_err(|source| Error::Open { cpu, source })?;
    counter.sampled(ring_bytes).map_err(|source| Error::Map { cpu, bytes: ring_bytes, source })
}

#[cfg(test)]
mod test;
