//! The order of packets.

use std::collections::BTreeMap;

use crate::CaptureNs;
use crate::packet::Link;

/// Packets that were read ahead, by time: several CPUs take packets, and the order in a file may be another one.
#[derive(Default)]
pub(super) struct Ahead {
    /// By when it has its turn and in the file's order.
    packets: BTreeMap<(CaptureNs, u64), Held>,
    bytes: usize,
    latest: CaptureNs,
}

/// A packet that was read.
pub(super) struct Held {
    pub(super) at: CaptureNs,
    pub(super) interface: usize,
    pub(super) link: Link,
    pub(super) length: u32,
    pub(super) data: Vec<u8>,
}

impl Ahead {
    const MAX_PACKETS: usize = 256;
    const MAX_BYTES: usize = 4 << 20;
    /// Packets that are later than that are not put in order: the clock was set.
    const LATEST_NS: u64 = 1_000_000_000;

    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < Self::MAX_PACKETS && self.bytes < Self::MAX_BYTES
    }

    pub(super) fn add(&mut self, number: u64, held: Held) {
        let at = held.at;
        let turn = if Self::LATEST_NS < self.latest.since(at) { self.latest } else { at };
        self.latest = self.latest.max(at);
        self.bytes += held.data.len();
        self.packets.insert((turn, number), held);
    }

    pub(super) fn next(&mut self) -> Option<Held> {
        let (_, held) = self.packets.pop_first()?;
        self.bytes -= held.data.len();
        Some(held)
    }
}
