//! Address translation on the host: one connection that a capture shows on both sides of it, with other addresses.
//!
//! ```text
//!  client 10.9.9.9:4 --> host 192.0.2.1:8080   seq 7 ack 3     the copy that is seen first is nearer to the sender,
//!  client 10.9.9.9:4 --> web  10.0.0.2:80      seq 7 ack 3     the later one nearer to the receiver
//! ```
//! Translation keeps both sequence numbers and the bytes (the kernel's nf_nat changes them for FTP and SIP only).

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use rustc_hash::FxHasher;

use crate::CaptureNs;
use crate::packet::Segment;

/// Both addresses of a connection, the lower one first.
pub(crate) type Key = (SocketAddr, SocketAddr);

pub(crate) fn key(from: SocketAddr, to: SocketAddr) -> Key {
    (from.min(to), from.max(to))
}

/// A host passes a packet on within that.
const LONGEST_NS: u64 = 100_000_000;
const MAX_SIGHTINGS: usize = 1 << 16;
/// Copies that are remembered.
const MAX_COPIES: usize = 1 << 16;
/// A longer way is a damaged one: a packet is translated once or twice.
const MAX_STEPS: usize = 8;

/// What translation leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Mark {
    seq: u32,
    ack: u32,
    is_syn: bool,
    payload: u64,
}

/// The first copy of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    at: CaptureNs,
}

/// Segments that were seen just now, and connections that are copies of others.
#[derive(Debug, Default)]
pub(crate) struct Translations {
    seen: HashMap<Mark, Sighting>,
    order: VecDeque<(CaptureNs, Mark)>,
    copies: HashMap<Key, Key>,
}

impl Translations {
    /// The segment's first copy, if that has other addresses. Segments without bytes may be alike by chance.
    pub(crate) fn first_copy(&mut self, segment: &Segment<'_>) -> Option<Sighting> {
        let ack = segment.ack?;
        if segment.payload.is_empty() && !segment.flags.syn {
            return None;
        }
        let mut hasher = FxHasher::default();
        segment.payload.hash(&mut hasher);
        let payload = hasher.finish();
        let mark = Mark { seq: segment.seq, ack, is_syn: segment.flags.syn, payload };
        self.forget_before(segment.at);
        if let Some(first) = self.seen.get(&mark) {
            return first.may_be(segment).then_some(*first);
        }
        self.seen.insert(mark, Sighting { from: segment.from, to: segment.to, at: segment.at });
        self.order.push_back((segment.at, mark));
        None
    }

    fn forget_before(&mut self, now: CaptureNs) {
        while let Some((at, mark)) = self.order.front().copied() {
            if now.since(at) <= LONGEST_NS && self.order.len() < MAX_SIGHTINGS {
                break;
            }
            self.order.pop_front();
            self.seen.remove(&mark);
        }
    }

    /// The connection that is followed in place of this one.
    pub(crate) fn original(&self, copy: Key) -> Option<Key> {
        let steps = std::iter::successors(self.copies.get(&copy), |key| self.copies.get(key));
        steps.take(MAX_STEPS).last().copied()
    }

    pub(crate) fn add_copy(
        &mut self,
        copy: Key,
        original: Key,
        is_followed: impl Fn(&Key) -> bool,
    ) {
        if MAX_COPIES <= self.copies.len() {
            self.retain(is_followed);
        }
        if MAX_COPIES <= self.copies.len() {
            // Forged: each of so many connections has one copy.
            self.copies.clear();
        }
        self.copies.insert(copy, original);
    }

    /// The addresses are another connection's now.
    pub(crate) fn forget_copy(&mut self, copy: Key) {
        self.copies.remove(&copy);
    }

    /// Keeps copies of connections that are still followed.
    pub(crate) fn retain(&mut self, is_followed: impl Fn(&Key) -> bool) {
        self.copies.retain(|_, original| is_followed(original));
    }
}

impl Sighting {
    /// Whether a segment with the same numbers and bytes is this one after translation: that changes an address, and a port
    /// with it or not, but no port alone.
    fn may_be(&self, segment: &Segment<'_>) -> bool {
        let is_kept = |old: SocketAddr, new: SocketAddr| old == new || old.ip() != new.ip();
        segment.at.since(self.at) <= LONGEST_NS
            && key(self.from, self.to) != key(segment.from, segment.to)
            && is_kept(self.from, segment.from)
            && is_kept(self.to, segment.to)
    }
}
