//! For how long CPU quotas throttled the queues of CPUs (`struct quota_event` of bpf/abi/quota.h).

use std::sync::atomic::Ordering;

use libbpf_rs::{Link, MapCore, MapFlags, Object};
use model::{CpuId, HostNs};

use crate::abi::{RINGS, field};
use crate::ring::Rings;
use crate::{ProbeError, object};
use bpf::Mapped;

/// Bytes of `struct quota_event`.
const EVENT_BYTES: usize = 24;

/// `QUOTA_GROUPS`.
const GROUPS: u32 = 512;

/// `QUEUE_UNKNOWN` and `QUEUE_FREE`; else since when.
const UNKNOWN: u64 = 0;
const FREE: u64 = 1;

/// Room for each CPU: a busy one ends the throttling of all CPUs' queues.
const SLOTS: u32 = 1 << 13;

/// The attached programs; they stop when this is dropped.
#[derive(Debug)]
pub struct QuotaTracer {
    rings: Rings,
    since: Mapped,
    /// The highest CPU's number + 1.
    cpus: u32,
    _links: Vec<Link>,
    object: Object,
}

/// A CPU's queue of a group was throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaEvent {
    pub group: u32,
    /// Whose queue.
    pub cpu: CpuId,
    /// `None`: before the group was watched.
    pub from: Option<HostNs>,
    /// First instant after it.
    pub to: HostNs,
}

impl QuotaTracer {
    /// Most groups that are watched: they have the numbers below this.
    pub const MAX_GROUPS: u32 = GROUPS;

    /// Loads and attaches the programs; no group is watched yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(cpus: &[u32]) -> Result<Self, ProbeError> {
        let cpus = object::rings_for(cpus)?;
        let sizes = [("events", cpus * SLOTS), ("since", GROUPS * cpus)];
        let mut open = object::open(bpf::QUOTAS)?;
        object::configure(&mut open, &sizes, &[SLOTS - 1, cpus])?;
        let object = object::load(open)?;
        let rings = Rings {
            heads: object::memory(&object, RINGS, object::RING_HEADS_BYTES)?,
            records: object::memory(&object, "events", (cpus * SLOTS) as usize * EVENT_BYTES)?,
            record_bytes: EVENT_BYTES,
            slots: SLOTS as usize,
        };
        let since = object::memory(&object, "since", (GROUPS * cpus) as usize * 8)?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(Self { rings, since, cpus, _links: links.map_err(ProbeError::Trace)?, object })
    }

    /// From now on the queues of this control group are watched, under a number that no other has.
    ///
    /// # Errors
    /// When there is no room.
    pub fn watch(&self, group: u64, number: u32) -> Result<(), ProbeError> {
        for cpu in 0..self.cpus {
            self.since.word(self.slot(number, cpu)).store(UNKNOWN, Ordering::Relaxed);
        }
        let groups = object::find_map(&self.object, "groups")?;
        let set = groups.update(&group.to_ne_bytes(), &number.to_ne_bytes(), MapFlags::ANY);
        set.map_err(|error| {
            let source = std::io::Error::other(error.to_string());
            ProbeError::Map { map: "groups", source }
        })
    }

    /// This control group is not watched any more.
    pub fn forget(&self, group: u64) {
        if let Ok(groups) = object::find_map(&self.object, "groups") {
            // It is not there: as wanted.
            let _ = groups.delete(&group.to_ne_bytes());
        }
    }

    /// Appends what `cpu` has published since the last call: any CPU's queues.
    pub fn drain(&self, cpu: u32, events: &mut Vec<QuotaEvent>) {
        let take = |_: usize, records: &[u8]| {
            events.extend(records.chunks_exact(EVENT_BYTES).map(decode));
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.rings.drain(cpu as usize, take);
    }

    /// Since when a CPU's queue of a group is throttled, if it is.
    #[must_use]
    pub fn throttled_since(&self, number: u32, cpu: u32) -> Option<HostNs> {
        let since = self.since.load(self.slot(number, cpu));
        (since != UNKNOWN && since != FREE).then_some(HostNs(since))
    }

    /// Events of `cpu` that found no room.
    #[must_use]
    pub fn dropped(&self, cpu: u32) -> u64 {
        self.rings.counters(cpu as usize).dropped
    }

    fn slot(&self, number: u32, cpu: u32) -> usize {
        (number.min(GROUPS - 1) * self.cpus + cpu.min(self.cpus - 1)) as usize * 8
    }
}

fn decode(bytes: &[u8]) -> QuotaEvent {
    let long = |at| u64::from_ne_bytes(field(bytes, at));
    let word = |at| u32::from_ne_bytes(field(bytes, at));
    let from = Some(long(0)).filter(|from| *from != UNKNOWN).map(HostNs);
    QuotaEvent { group: word(16), cpu: CpuId(word(20)), from, to: HostNs(long(8)) }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn events_are_read_as_the_header_says() {
        let check = |from: u64, expected| {
            let mut bytes = Vec::new();
            [from, 0x12].iter().for_each(|value| bytes.extend(value.to_ne_bytes()));
            [0x21_u32, 0x22].iter().for_each(|value| bytes.extend(value.to_ne_bytes()));
            assert_eq!(bytes.len(), EVENT_BYTES);
            let (to, cpu) = (HostNs(0x12), CpuId(0x22));
            assert_eq!(decode(&bytes), QuotaEvent { group: 0x21, cpu, from: expected, to });
        };
        check(0x11, Some(HostNs(0x11)));
        check(0, None);
    }
}
