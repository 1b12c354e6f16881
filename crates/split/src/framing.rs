//! Messages with a header that says how long they are: PostgreSQL's and MySQL's.

use crate::CaptureNs;

/// What a header looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A length of four bytes, itself included: PostgreSQL before a connection is set up.
    PostgresStartup,
    /// A type, and the same.
    Postgres,
    /// A length of three bytes, and a number.
    MySql,
}

/// Bytes of a message that are kept; the rest is skipped.
pub(crate) const KEPT: usize = 256;
const MAX_STARTUP: u32 = 1 << 16;
const MAX_POSTGRES: u32 = 1 << 30;

impl Framing {
    fn header(self) -> usize {
        match self {
            Self::PostgresStartup | Self::MySql => 4,
            Self::Postgres => 5,
        }
    }

    /// How many bytes come after the header; `None`: no such message exists.
    fn body(self, header: &[u8]) -> Option<u32> {
        let length = |at: usize| {
            let bytes = header.get(at..at + 4)?;
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).checked_sub(4)
        };
        match self {
            Self::PostgresStartup => length(0).filter(|body| (4..=MAX_STARTUP).contains(body)),
            Self::Postgres => length(1).filter(|body| *body <= MAX_POSTGRES),
            Self::MySql => Some(u32::from_le_bytes([header[0], header[1], header[2], 0])),
        }
    }
}

/// A whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) header: &'a [u8],
    /// The first bytes after the header.
    pub(crate) body: &'a [u8],
    /// How many there were.
    pub(crate) length: u32,
    /// When its first byte was there.
    pub(crate) begin: CaptureNs,
    /// When its last byte was there.
    pub(crate) end: CaptureNs,
}

/// No message begins like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadMessage;

/// Cuts one direction's bytes into messages.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    /// Header and first bytes of the message that is under way.
    kept: Vec<u8>,
    /// Its bytes still to come that are not kept.
    skip: u32,
    /// Its bytes still to come that are kept; `None`: the header is not whole yet.
    wanted: Option<usize>,
    header: usize,
    length: u32,
    begin: CaptureNs,
}

impl Framer {
    /// The next message that ends in `data`, which is taken from it.
    pub(crate) fn next<'a>(
        &'a mut self,
        framing: Framing,
        at: CaptureNs,
        data: &mut &[u8],
    ) -> Result<Option<Message<'a>>, BadMessage> {
        if data.is_empty() {
            return Ok(None);
        }
        if self.is_between() {
            self.begin = at;
            self.kept.clear();
        }
        if self.wanted.is_none() {
            self.header = framing.header();
            self.keep(self.header.saturating_sub(self.kept.len()), data);
            if self.kept.len() < self.header {
                return Ok(None);
            }
            self.length = framing.body(&self.kept).ok_or(BadMessage)?;
            let wanted = KEPT.min(self.length as usize);
            self.skip = self.length.saturating_sub(u32::try_from(wanted).unwrap_or(u32::MAX));
            self.wanted = Some(wanted);
        }
        let wanted = self.wanted.unwrap_or(0);
        let taken = self.keep(wanted, data);
        self.wanted = Some(wanted - taken);
        let skipped = data.len().min(self.skip as usize);
        *data = &data[skipped..];
        self.skip -= u32::try_from(skipped).unwrap_or(self.skip);
        if self.wanted != Some(0) || self.skip != 0 {
            return Ok(None);
        }
        self.wanted = None;
        let (header, body) = self.kept.split_at(self.header);
        let message = Message { header, body, length: self.length, begin: self.begin, end: at };
        // The message borrows what is kept: it is cleared when the next one begins.
        Ok(Some(message))
    }

    fn keep(&mut self, most: usize, data: &mut &[u8]) -> usize {
        let taken = most.min(data.len());
        self.kept.extend_from_slice(&data[..taken]);
        *data = &data[taken..];
        taken
    }

    /// Whether no message is under way.
    pub(crate) fn is_between(&self) -> bool {
        self.wanted.is_none() && (self.kept.is_empty() || self.header <= self.kept.len())
    }

    /// Bytes are lacking; inside of what is skipped they are no loss. Gives whether they were there.
    pub(crate) fn gap(&mut self, bytes: u64) -> bool {
        let inside = self.wanted == Some(0) && bytes < u64::from(self.skip);
        if inside {
            self.skip -= u32::try_from(bytes).unwrap_or(0);
        }
        inside
    }

    /// Forgets the message that is under way.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Whether `data` is whole messages, of types that `is_known` (of header and body) says yes to; gives the last one's header.
pub(crate) fn whole_messages(
    framing: Framing,
    data: &[u8],
    is_known: impl Fn(&[u8], &[u8]) -> bool,
) -> Option<&[u8]> {
    let mut rest = data;
    let mut last = None;
    while !rest.is_empty() {
        let header = rest.get(..framing.header())?;
        let body = framing.body(header)? as usize;
        let whole = rest.get(header.len()..header.len() + body)?;
        if !is_known(header, whole) {
            return None;
        }
        last = Some(header);
        rest = &rest[header.len() + body..];
    }
    last
}

#[cfg(test)]
mod test {
    use super::*;

    fn lengths(framing: Framing, pieces: &[&[u8]]) -> Vec<(u64, u64, u32)> {
        let mut framer = Framer::default();
        let mut found = Vec::new();
        for (at, piece) in (0..).zip(pieces) {
            let mut data = *piece;
            while let Some(message) = framer.next(framing, CaptureNs(at), &mut data).unwrap() {
                found.push((message.begin.0, message.end.0, message.length));
            }
        }
        found
    }

    #[test]
    fn messages_in_pieces() {
        let mut long = vec![b'D', 0, 0, 4, 4];
        long.resize(5 + 1024, 7);
        let all = [b"Z\0\0\0\x05I".as_slice(), &long, b"n\0\0\0\x04", b"Z\0\0\0\x05T"].concat();
        let expected = [1, 1024, 0, 1];
        for size in [1, 2, 3, 5, 6, 7, 300, 2000] {
            let pieces: Vec<&[u8]> = all.chunks(size).collect();
            let found = lengths(Framing::Postgres, &pieces);
            assert_eq!(found.iter().map(|message| message.2).collect::<Vec<_>>(), expected);
            let mut at = 0;
            for (begin, end, length) in found {
                assert_eq!(begin, (at / size) as u64);
                at += 5 + length as usize;
                assert_eq!(end, ((at - 1) / size) as u64);
            }
        }
        let mysql = b"\x01\0\0\0\x0e\0\0\0\x01\x02\0\0\x02ab";
        assert_eq!(lengths(Framing::MySql, &[mysql]), [(0, 0, 1), (0, 0, 0), (0, 0, 2)]);
    }

    #[test]
    fn what_lacks_inside_a_long_message_is_no_loss() {
        let mut framer = Framer::default();
        let mut data = b"D\0\0\x10\0".as_slice();
        assert_eq!(framer.next(Framing::Postgres, CaptureNs(0), &mut data), Ok(None));
        assert!(!framer.gap(10), "its first bytes are wanted");
        let mut data = [7_u8; KEPT].as_slice();
        assert_eq!(framer.next(Framing::Postgres, CaptureNs(0), &mut data), Ok(None));
        assert!(framer.gap(4000 - KEPT as u64));
        let mut data = [7_u8; 92 + 3].as_slice();
        let message = framer.next(Framing::Postgres, CaptureNs(9), &mut data).unwrap();
        assert_eq!(message.map(|message| message.length), Some(4092));
        assert_eq!(data.len(), 3);
    }

    #[test]
    fn a_length_that_no_message_has() {
        let mut framer = Framer::default();
        let mut data = b"Z\0\0\0\x03".as_slice();
        assert_eq!(framer.next(Framing::Postgres, CaptureNs(0), &mut data), Err(BadMessage));
    }
}
