//! Packets of several interfaces in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use split::CaptureNs;

/// Bytes that are held; with more, the earliest packets go on before others can come in between.
const MAX_BYTES: usize = 256 << 20;

/// A packet that waits for earlier ones.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) at: CaptureNs,
    /// Packets with equal times stay in order of arrival.
    number: u64,
    pub(crate) interface: u32,
    pub(crate) length: u32,
    pub(crate) data: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Order {
    held: BinaryHeap<Reverse<Held>>,
    bytes: usize,
    number: u64,
}

impl Order {
    pub(crate) fn add(&mut self, interface: u32, at: CaptureNs, data: Vec<u8>, length: u32) {
        self.bytes += data.len();
        self.number += 1;
        self.held.push(Reverse(Held { at, number: self.number, interface, length, data }));
    }

    /// The earliest packet, if it is from before `limit`.
    pub(crate) fn next_before(&mut self, limit: CaptureNs) -> Option<Held> {
        let first = self.held.peek()?;
        if limit <= first.0.at && self.bytes <= MAX_BYTES {
            return None;
        }
        let Reverse(held) = self.held.pop()?;
        self.bytes -= held.data.len();
        Some(held)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn by_time_then_as_they_came() {
        let mut order = Order::default();
        for (interface, at) in [(0, 5), (1, 3), (0, 9), (1, 5)] {
            order.add(interface, CaptureNs(at), Vec::new(), 0);
        }
        let mut next =
            |limit| order.next_before(CaptureNs(limit)).map(|held| (held.interface, held.at.0));
        assert_eq!([9, 9, 9, 9].map(&mut next), [Some((1, 3)), Some((0, 5)), Some((1, 5)), None]);
        assert_eq!([10, 10].map(&mut next), [Some((0, 9)), None]);
    }
}
