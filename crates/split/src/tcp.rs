//! One direction of a TCP connection: segments to bytes in order.
//!
//! No crate does this with what is needed here: bytes that the capture lacks must show as a gap of known length at the
//! right place, known by the receiver's acknowledgement, because a receiver acknowledges only what it has; the snapshot
//! length cuts bytes out of the middle; and memory is bounded over all connections.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::packet::Segment;
use crate::{CaptureNs, Counter, Counts};

/// What comes out, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Data(CaptureNs, Cow<'a, [u8]>),
    /// Bytes that are not in the capture, and since when they may have been there.
    Gap(CaptureNs, u64),
    /// The sender will send no more.
    End,
}

/// Bytes that may wait for earlier ones, of one direction.
const MAX_WAITING: usize = 4 << 20;
/// Segments that may.
const MAX_SEGMENTS: usize = 8192;
/// Further ahead nothing is expected: a window has 1 GiB at most.
const FURTHEST: u64 = 1 << 30;

/// Memory that all connections share.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Whether there was room.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.left = self.left.saturating_add(bytes);
    }
}

/// Bytes that came before earlier ones.
#[derive(Debug)]
struct Waiting {
    at: CaptureNs,
    data: Vec<u8>,
    cut: u32,
}

/// What is charged for a waiting segment beyond its bytes.
const OVERHEAD: usize = 64;

impl Waiting {
    fn length(&self) -> u64 {
        self.data.len() as u64 + u64::from(self.cut)
    }

    fn cost(&self) -> usize {
        self.data.capacity() + OVERHEAD
    }
}

/// One direction. Sequence numbers are unwrapped to 64 bits.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The next byte; `None`: nothing was seen yet.
    next: Option<u64>,
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    /// Where the stream ends, once that is known.
    end: Option<u64>,
    pub(crate) ended: bool,
    /// When the last bytes in order were there.
    last: CaptureNs,
    /// The SYN's number, if it was seen.
    first: Option<u32>,
}

impl Flow {
    /// A direction's first byte is known.
    pub(crate) fn start(&mut self, seq: u32, at: CaptureNs) {
        self.last = at;
        self.first = Some(seq);
        self.next = Some((1 << 32) + u64::from(seq.wrapping_add(1)));
    }

    /// Whether a SYN with this number is the one that was seen.
    pub(crate) fn began_at(&self, seq: u32) -> bool {
        self.first == Some(seq)
    }

    /// What a segment of this direction makes available.
    pub(crate) fn segment<'a>(
        &mut self,
        segment: &Segment<'a>,
        at: CaptureNs,
        budget: &mut Budget,
        counts: &mut Counts,
        out: &mut Vec<Piece<'a>>,
    ) {
        let seq = segment.seq.wrapping_add(u32::from(segment.flags.syn));
        let next = *self.next.get_or_insert((1 << 32) + u64::from(seq));
        let begin = unwrapped(next, seq);
        let end = begin + segment.payload.len() as u64 + u64::from(segment.cut);
        if begin.abs_diff(next) > FURTHEST {
            counts.one(Counter::BadHeaders);
            return;
        }
        if segment.flags.fin {
            self.end.get_or_insert(end);
        }
        counts.add(Counter::CutBytes, u64::from(segment.cut));
        if begin < end && end <= next {
            counts.one(Counter::Retransmitted);
        } else if next < begin && begin < end {
            counts.one(Counter::Reordered);
            self.wait(begin, segment, at, budget);
        } else if begin < end {
            self.pass(begin, at, Cow::Borrowed(segment.payload), segment.cut, out);
        }
        // The receiver could use what waits when this was there.
        self.drain(Some(at), budget, out);
        if self.waiting_bytes > MAX_WAITING || self.waiting.len() > MAX_SEGMENTS {
            self.skip_to_waiting(counts, out);
            self.drain(None, budget, out);
        }
    }

    /// The receiver has everything before `ack`.
    pub(crate) fn acknowledged<'a>(
        &mut self,
        ack: u32,
        budget: &mut Budget,
        counts: &mut Counts,
        out: &mut Vec<Piece<'a>>,
    ) {
        let next = *self.next.get_or_insert((1 << 32) + u64::from(ack));
        let ack = unwrapped(next, ack);
        // The end of the stream counts as a byte.
        let ack = self.end.map_or(ack, |end| ack.min(end));
        if ack <= next || FURTHEST < ack - next {
            return;
        }
        while let Some(next) = self.next.filter(|next| *next < ack) {
            let first = self.waiting.first_key_value().map_or(ack, |(begin, _)| ack.min(*begin));
            // An acknowledged FIN that is not in the capture looks like one byte that is lacking at the end.
            self.lose(first.saturating_sub(next), counts, out);
            // The receiver had it all in time.
            self.drain(None, budget, out);
        }
    }

    /// Nothing more will come: what waits is handed out with gaps.
    pub(crate) fn finish<'a>(
        &mut self,
        budget: &mut Budget,
        counts: &mut Counts,
        out: &mut Vec<Piece<'a>>,
    ) {
        while !self.waiting.is_empty() {
            self.skip_to_waiting(counts, out);
            self.drain(None, budget, out);
        }
        if !self.ended {
            self.ended = true;
            out.push(Piece::End);
        }
    }

    fn wait(&mut self, begin: u64, segment: &Segment<'_>, at: CaptureNs, budget: &mut Budget) {
        let waiting = Waiting { at, data: segment.payload.to_vec(), cut: segment.cut };
        let known = self.waiting.get(&begin).map_or(0, Waiting::length);
        if waiting.length() <= known || !budget.take(waiting.cost()) {
            // Without memory for it, it is lacking later on, and counted then.
            return;
        }
        self.waiting_bytes += waiting.cost();
        if let Some(old) = self.waiting.insert(begin, waiting) {
            self.waiting_bytes -= old.cost();
            budget.give_back(old.cost());
        }
    }

    /// Hands out what of `data` is new.
    fn pass<'a>(
        &mut self,
        begin: u64,
        at: CaptureNs,
        data: Cow<'a, [u8]>,
        cut: u32,
        out: &mut Vec<Piece<'a>>,
    ) {
        let next = self.next.unwrap_or(begin);
        let known = next.saturating_sub(begin);
        let end = begin + data.len() as u64 + u64::from(cut);
        if end <= next {
            return;
        }
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(data.len());
        let fresh = match data {
            Cow::Borrowed(data) => Cow::Borrowed(&data[known..]),
            Cow::Owned(mut data) => Cow::Owned(data.split_off(known)),
        };
        let lacking = end - next - fresh.len() as u64;
        if !fresh.is_empty() {
            out.push(Piece::Data(at, fresh));
        }
        if 0 < lacking {
            out.push(Piece::Gap(at, lacking));
        }
        self.next = Some(end);
        self.last = at;
    }

    /// Hands out what waits and has its turn: as of `at`, or of when it came.
    fn drain<'a>(&mut self, at: Option<CaptureNs>, budget: &mut Budget, out: &mut Vec<Piece<'a>>) {
        while let Some(entry) = self.waiting.first_entry() {
            if self.next.is_none_or(|next| next < *entry.key()) {
                break;
            }
            let (begin, waiting) = entry.remove_entry();
            self.waiting_bytes -= waiting.cost();
            budget.give_back(waiting.cost());
            self.pass(begin, at.unwrap_or(waiting.at), Cow::Owned(waiting.data), waiting.cut, out);
        }
        if !self.ended && self.end.is_some() && self.end <= self.next {
            self.ended = true;
            out.push(Piece::End);
        }
    }

    fn skip_to_waiting<'a>(&mut self, counts: &mut Counts, out: &mut Vec<Piece<'a>>) {
        let first = self.waiting.first_key_value().map(|(begin, _)| *begin);
        if let (Some(first), Some(next)) = (first, self.next) {
            self.lose(first.saturating_sub(next), counts, out);
        }
    }

    fn lose<'a>(&mut self, bytes: u64, counts: &mut Counts, out: &mut Vec<Piece<'a>>) {
        if bytes == 0 {
            return;
        }
        counts.one(Counter::LostPlaces);
        counts.add(Counter::LostBytes, bytes);
        self.next = self.next.map(|next| next + bytes);
        out.push(Piece::Gap(self.last, bytes));
    }
}

/// The 64-bit number near `next` of which this is the lower half.
fn unwrapped(next: u64, seq: u32) -> u64 {
    let next_low = u32::try_from(next & u64::from(u32::MAX)).unwrap_or(0);
    let ahead = seq.wrapping_sub(next_low);
    if ahead < 1 << 31 {
        next + u64::from(ahead)
    } else {
        // The first number is 1 << 32, and less than half of that is subtracted from what has moved on.
        next.saturating_sub(u64::from(ahead.wrapping_neg()))
    }
}

/// Times that never go back, of one connection.
#[derive(Debug, Default)]
pub(crate) struct Clock(CaptureNs);

impl Clock {
    pub(crate) fn at(&mut self, at: CaptureNs, counts: &mut Counts) -> CaptureNs {
        if at < self.0 {
            counts.one(Counter::TimeWentBack);
        }
        self.0 = self.0.max(at);
        self.0
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::packet::Flags;

    struct Case {
        flow: Flow,
        budget: Budget,
        counts: Counts,
        out: Vec<Piece<'static>>,
    }

    impl Case {
        fn new(seq: u32) -> Self {
            let mut flow = Flow::default();
            flow.start(seq, CaptureNs(0));
            let (counts, budget) = (Counts::default(), Budget::new(1 << 20));
            Self { flow, budget, counts, out: Vec::new() }
        }

        fn segment(mut self, seq: u32, text: &'static str, flags: &str) -> Self {
            let local = "127.0.0.1:1".parse().unwrap();
            let segment = Segment {
                at: CaptureNs(0),
                interface: 0,
                from: local,
                to: local,
                seq,
                ack: None,
                flags: Flags { fin: flags.contains('F'), ..Flags::default() },
                payload: text.as_bytes(),
                cut: flags.chars().filter(|flag| *flag == 'c').count() as u32,
            };
            self.flow.segment(
                &segment,
                CaptureNs(0),
                &mut self.budget,
                &mut self.counts,
                &mut self.out,
            );
            self
        }

        fn ack(mut self, ack: u32) -> Self {
            self.flow.acknowledged(ack, &mut self.budget, &mut self.counts, &mut self.out);
            self
        }

        fn check(mut self, expected: &str, [again, reordered, lost]: [u64; 3]) {
            self.flow.finish(&mut self.budget, &mut self.counts, &mut self.out);
            assert_eq!(self.out.iter().map(show).collect::<String>(), expected);
            let count = |counter| self.counts.get(counter);
            assert_eq!(
                [Counter::Retransmitted, Counter::Reordered, Counter::LostBytes].map(count),
                [again, reordered, lost]
            );
            assert_eq!(self.budget.left, 1 << 20, "all memory is given back");
        }
    }

    fn show(piece: &Piece<'_>) -> String {
        match piece {
            Piece::Data(_, data) => String::from_utf8(data.to_vec()).unwrap(),
            Piece::Gap(_, bytes) => format!("({bytes})"),
            Piece::End => ".".to_owned(),
        }
    }

    #[test]
    fn in_order_and_again() {
        Case::new(9).segment(10, "abc", "").segment(13, "de", "F").check("abcde.", [0, 0, 0]);
        Case::new(9).segment(10, "abc", "").segment(10, "abc", "").check("abc.", [1, 0, 0]);
        Case::new(9).segment(10, "abc", "").segment(11, "bcde", "").check("abcde.", [0, 0, 0]);
    }

    #[test]
    fn out_of_order() {
        let case = || Case::new(9).segment(13, "de", "F").segment(12, "cd", "");
        case().segment(10, "abc", "").check("abcde.", [0, 2, 0]);
        case().segment(10, "ab", "").check("abcde.", [0, 2, 0]);
        case().check("(2)cde.", [0, 2, 2]);
    }

    #[test]
    fn what_is_acknowledged_and_was_not_seen_is_lost() {
        Case::new(9)
            .segment(13, "de", "")
            .ack(15)
            .segment(10, "abc", "")
            .check("(3)de.", [1, 1, 3]);
        Case::new(9).segment(10, "ab", "").ack(13).segment(13, "d", "").check("ab(1)d.", [0, 0, 1]);
        Case::new(9).segment(10, "ab", "F").ack(13).check("ab.", [0, 0, 0]);
    }

    #[test]
    fn what_the_snapshot_length_cut_is_a_gap() {
        Case::new(9).segment(10, "ab", "cc").segment(14, "e", "").check("ab(2)e.", [0, 0, 0]);
        Case::new(9).segment(14, "e", "").segment(10, "ab", "cc").check("ab(2)e.", [0, 1, 0]);
    }

    #[test]
    fn numbers_wrap() {
        let end = u32::MAX;
        Case::new(end - 2)
            .segment(end - 1, "abcd", "")
            .segment(2, "e", "")
            .check("abcde.", [0, 0, 0]);
        Case::new(end - 2)
            .segment(0, "cd", "")
            .segment(end - 1, "ab", "")
            .check("abcd.", [0, 1, 0]);
    }
}
