//! pcap files: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>.

use super::clock::{Clock, Unit};
use super::input::{Fields, Input, Order, RecordError};
use super::{Block, LONGEST_RECORD};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Each record has eight bytes more, of an interface and a protocol.
const MODIFIED: u32 = 0xa1b2_cd34;

/// What a file says of all its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    order: Order,
    unit: Unit,
    record_header: usize,
    pub(super) link: u16,
}

impl Header {
    /// By the magic number that `bytes` begin with; the rest of the header is read.
    pub(super) fn read(input: &mut Input<'_>, bytes: &mut Vec<u8>) -> Result<Self, RecordError> {
        let of = |order| Fields::new(bytes, order).u32();
        let is_known =
            |order: &Order| matches!(of(*order), Some(MICROSECONDS | NANOSECONDS | MODIFIED));
        let order = [Order::Little, Order::Big].into_iter().find(is_known);
        let order = order.ok_or(RecordError::Malformed)?;
        input.more(20, bytes)?;
        let mut fields = Fields::new(bytes, order);
        let mut read = || {
            let (magic, major, minor) = (fields.u32()?, fields.u16()?, fields.u16()?);
            // A time zone and an accuracy that no program sets, and how much of packets is kept.
            fields.bytes(12)?;
            // The upper half tells of checksums at the end of frames.
            let link = u16::try_from(fields.u32()? & 0xffff).ok()?;
            Some((magic, (major, minor), link))
        };
        let (magic, version, link) = read().ok_or(RecordError::Malformed)?;
        if version.0 != 2 || version.1 < 4 {
            return Err(RecordError::Version(version.0, version.1));
        }
        let unit = if magic == NANOSECONDS { Unit::NANOSECOND } else { Unit::MICROSECOND };
        let record_header = if magic == MODIFIED { 24 } else { 16 };
        Ok(Self { order, unit, record_header, link })
    }

    /// Reads the next packet; `None`: there is none.
    pub(super) fn packet<'b>(
        &self,
        input: &mut Input<'_>,
        bytes: &'b mut Vec<u8>,
    ) -> Result<Option<Block<'b>>, RecordError> {
        bytes.clear();
        if !input.begin(self.record_header, bytes)? {
            return Ok(None);
        }
        let mut fields = Fields::new(bytes, self.order);
        let mut read = || Some((fields.u32()?, fields.u32()?, fields.size()?, fields.u32()?));
        let (seconds, fraction, kept, length) = read().ok_or(RecordError::Malformed)?;
        if LONGEST_RECORD < kept {
            return Err(RecordError::Malformed);
        }
        bytes.clear();
        input.more(kept, bytes)?;
        let clock = Clock { unit: self.unit, offset_s: i64::from(seconds) };
        // A fraction of more than a second is in a unit that the file does not name.
        let second = if self.unit == Unit::NANOSECOND { 1_000_000_000 } else { 1_000_000 };
        let at = if fraction < second { clock.time(u64::from(fraction)) } else { None };
        Ok(Some(Block::Packet {
            interface: Some(0),
            at,
            tick_ns: clock.tick_ns(),
            length,
            data: bytes,
        }))
    }
}
