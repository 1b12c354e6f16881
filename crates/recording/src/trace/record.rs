//! An event in a spool, byte by byte.
//!
//! ```text
//!  | tag: kind and word in bits 0-5, 6: owner or user stack there, 7: stack there | time | the kind's fields ...
//! ```
//! Kinds, their tags and fields are those of the table of events in `model`. Numbers take 7 bits a byte, lowest first, bit 7
//! set in all bytes but the last. Times and addresses are differences to those of the event before in the block, at first
//! to 0: twice the difference, or for one below 0 its complement.

use model::{EventColumn, FieldSink, FieldSource, HostNs, TaskName, TraceEventKind, TraceEventTag};

/// Bytes of one event at most.
pub(super) const EVENT_BYTES: usize = 64;

/// No kind has both.
const OWNER_OR_USER_STACK: u8 = 0x40;
const STACK: u8 = 0x80;
const TAG: u8 = 0x3f;

/// For each tag its kind, and which of the kind's tags it is.
const KINDS: [Option<(TraceEventTag, usize)>; TAG as usize + 1] = {
    let mut kinds = [None; TAG as usize + 1];
    let mut kind = 0;
    while kind < TraceEventTag::ALL.len() {
        let tags = TraceEventTag::ALL[kind].spool_tags();
        let mut i = 0;
        while i < tags.len() {
            kinds[tags[i] as usize] = Some((TraceEventTag::ALL[kind], i));
            i += 1;
        }
        kind += 1;
    }
    kinds
};

/// What the next event's differences are to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Before {
    time: u64,
    address: u64,
}

/// Writes an event to the start of `room`, which has at least `EVENT_BYTES`. Returns its length.
pub(super) fn encode(
    time: HostNs,
    event: &TraceEventKind,
    before: &mut Before,
    room: &mut [u8],
) -> usize {
    let tags = event.tag().spool_tags();
    let mut encoder = Encoder { room, length: 0, before, tags };
    encoder.push(tags[0]);
    encoder.difference(time.0, |before| &mut before.time);
    event.put(&mut encoder);
    encoder.length
}

struct Encoder<'a> {
    room: &'a mut [u8],
    length: usize,
    before: &'a mut Before,
    tags: &'static [u8],
}

impl Encoder<'_> {
    fn push(&mut self, byte: u8) {
        self.room[self.length] = byte;
        self.length += 1;
    }

    fn varint(&mut self, mut value: u64) {
        while 0x80 <= value {
            self.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.push(value.to_le_bytes()[0]);
    }

    fn difference(&mut self, value: u64, to: fn(&mut Before) -> &mut u64) {
        let difference = value.wrapping_sub(*to(self.before)).cast_signed();
        *to(self.before) = value;
        self.varint((difference << 1 ^ difference >> 63).cast_unsigned());
    }
}

impl FieldSink for Encoder<'_> {
    fn word(&mut self, index: usize, words: &'static [&'static str]) {
        let last = self.tags.len() - 1;
        self.room[0] = self.tags[index.min(last)];
        if self.tags.len() < words.len() && last <= index {
            self.push((index - last).to_le_bytes()[0]);
        }
    }

    fn presence(&mut self, column: EventColumn, is_present: bool) {
        if is_present {
            self.room[0] |= presence_bit(column);
        }
    }

    fn u32(&mut self, _: EventColumn, value: u32) {
        self.varint(value.into());
    }

    fn u64(&mut self, column: EventColumn, value: u64) {
        if column == EventColumn::Address {
            self.difference(value, |before| &mut before.address);
        } else {
            self.varint(value);
        }
    }

    fn name(&mut self, name: TaskName) {
        name.0.into_iter().for_each(|byte| self.push(byte));
    }
}

/// The next event: `encode` undone, and `bytes` moved on. `None` when they are none.
pub(super) fn decode(bytes: &mut &[u8], before: &mut Before) -> Option<(HostNs, TraceEventKind)> {
    let (tag, rest) = bytes.split_first()?;
    *bytes = rest;
    let (kind, index) = KINDS[usize::from(tag & TAG)]?;
    let n_tags = kind.spool_tags().len();
    let mut decoder = Decoder { bytes, before, index, n_tags, presence: tag & !TAG };
    let time = HostNs(decoder.difference(|before| &mut before.time)?);
    let event = kind.take(&mut decoder)?;
    (decoder.presence == 0).then_some((time, event))
}

/// A tag's bit for a field that may be absent.
fn presence_bit(column: EventColumn) -> u8 {
    if column == EventColumn::Stack { STACK } else { OWNER_OR_USER_STACK }
}

struct Decoder<'a, 'b> {
    bytes: &'a mut &'b [u8],
    before: &'a mut Before,
    /// Which of the kind's tags the event has.
    index: usize,
    n_tags: usize,
    /// The bits of fields that are there and still to come.
    presence: u8,
}

impl Decoder<'_, '_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        *self.bytes = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn difference(&mut self, to: fn(&mut Before) -> &mut u64) -> Option<u64> {
        let twice = self.varint()?;
        let difference = twice >> 1 ^ (twice & 1).wrapping_neg();
        let value = to(self.before).wrapping_add(difference);
        *to(self.before) = value;
        Some(value)
    }
}

impl FieldSource for Decoder<'_, '_> {
    fn word(&mut self, words: &'static [&'static str]) -> Option<usize> {
        let is_followed = self.n_tags < words.len() && self.index + 1 == self.n_tags;
        let index = self.index + if is_followed { usize::from(self.byte()?) } else { 0 };
        (index < words.len()).then_some(index)
    }

    fn presence(&mut self, column: EventColumn) -> Option<bool> {
        let bit = presence_bit(column);
        let is_present = self.presence & bit != 0;
        self.presence &= !bit;
        Some(is_present)
    }

    fn u32(&mut self, _: EventColumn) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    fn u64(&mut self, column: EventColumn) -> Option<u64> {
        if column == EventColumn::Address {
            self.difference(|before| &mut before.address)
        } else {
            self.varint()
        }
    }

    fn name(&mut self) -> Option<TaskName> {
        let (name, rest) = self.bytes.split_first_chunk()?;
        *self.bytes = rest;
        Some(TaskName(*name))
    }
}

#[cfg(test)]
mod test {
    use model::{BlockOp, BlockRequest, PrevState, Tid, TraceStack};

    use super::*;

    /// Encodes events one after the other and decodes them; how many bytes the last takes.
    fn check(events: &[(u64, TraceEventKind)], last: usize) {
        let (mut bytes, mut before, mut begin) = (Vec::new(), Before::default(), 0);
        for (time, what) in events {
            begin = bytes.len();
            bytes.resize(begin + EVENT_BYTES, 0);
            let length = encode(HostNs(*time), what, &mut before, &mut bytes[begin..]);
            bytes.truncate(begin + length);
        }
        assert_eq!(bytes.len() - begin, last, "{:?}", events.last());
        let (mut rest, mut before) = (bytes.as_slice(), Before::default());
        for (time, what) in events {
            assert_eq!(decode(&mut rest, &mut before), Some((HostNs(*time), *what)));
        }
        assert!(rest.is_empty());
        let (mut cut, mut before) = (&bytes[..bytes.len() - 1], Before::default());
        let decoded = std::iter::from_fn(|| decode(&mut cut, &mut before)).count();
        assert_eq!(decoded, events.len() - 1, "an event that is cut off is none");
    }

    #[test]
    fn an_event_takes_few_bytes() {
        let at = 5_000_000_000_000;
        let exit = TraceEventKind::Exit { task: Tid(70_000) };
        let (prev, next, prev_state) = (Tid(1000), Tid(70_000), PrevState::Sleep);
        check(&[(at, exit)], 1 + 7 + 3);
        let switch = |stack, user_stack| {
            let kind = TraceEventKind::Switch { prev, prev_state, stack, user_stack, next };
            [(at, exit), (at + 8_000, kind)]
        };
        check(&switch(None, None), 8);
        check(&switch(Some(TraceStack(900)), None), 10);
        check(&switch(Some(TraceStack(900)), TraceStack::of_user(900)), 15);
        check(
            &[(at, exit), (at + 500, TraceEventKind::SyscallEnter { task: next, number: 257 })],
            8,
        );
        check(&[(at, exit), (at - 1, TraceEventKind::FaultExit { major: true })], 2);
        let address = 0x7fff_1234_5000;
        let fault = TraceEventKind::FaultEnter { address, user: true };
        let next_page = TraceEventKind::FaultEnter { address: address + 4096, user: true };
        check(&[(at, fault), (at + 900, next_page)], 1 + 2 + 2);
    }

    #[test]
    fn the_largest_event_has_room() {
        let request = BlockRequest {
            request: 1 << 63,
            disk: u32::MAX,
            sector: u64::MAX,
            bytes: u32::MAX,
            op: BlockOp::Other,
            task: Tid(u32::MAX),
        };
        check(&[(1 << 63, TraceEventKind::BlockIssue(request))], 47);
        const { assert!(47 <= EVENT_BYTES) };
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let check = |bytes: &[u8]| {
            assert_eq!(decode(&mut &bytes[..], &mut Before::default()), None, "{bytes:x?}");
        };
        let tag = |kind: TraceEventTag| kind.spool_tags()[0];
        let (exit, enter) = (tag(TraceEventTag::Exit), tag(TraceEventTag::SyscallEnter));
        let vector = TraceEventTag::InterruptEnter.spool_tags()[2];
        check(&[]);
        check(&[TAG, 0]);
        check(&[exit | STACK, 0, 1, 1]);
        check(&[tag(TraceEventTag::Switch) | OWNER_OR_USER_STACK, 0, 1, 1]);
        check(&[exit, 0, 0xff, 0xff, 0xff, 0xff, 0x1f]);
        check(&[exit, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1]);
        check(&[enter, 0, 1, 0xff, 0xff, 0x04]);
        check(&[vector, 0, 6]);
    }

    /// Every tag with fields of zeros is an event that is encoded as it was.
    #[test]
    fn every_tag_is_that_of_its_event() {
        for tag in (0..=TAG).filter(|tag| KINDS[usize::from(*tag)].is_some()) {
            let mut zeros = [0; EVENT_BYTES];
            zeros[0] = tag;
            let mut rest = &zeros[..];
            let (time, event) = decode(&mut rest, &mut Before::default()).unwrap();
            let (mut room, length) = ([0; EVENT_BYTES], EVENT_BYTES - rest.len());
            assert_eq!(encode(time, &event, &mut Before::default(), &mut room), length);
            assert_eq!(room[..length], zeros[..length], "{event:?}");
        }
    }
}
