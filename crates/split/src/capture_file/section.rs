//! Sections of pcapng files: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>.

use std::collections::BTreeMap;

use super::clock::{Clock, Unit};
use super::input::{Fields, Input, Order, RecordError};
use super::{Block, Interfaces, LONGEST_RECORD, MAX_INTERFACES};

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
/// The obsolete Packet Block.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const NAME_RESOLUTION: u32 = 4;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const JOURNAL: u32 = 9;
const SECRETS: u32 = 10;
const CUSTOM: [u32; 2] = [0x0bad, 0x4000_0bad];
const PROCESS: u32 = 0x8000_0001;

const END_OF_OPTIONS: u16 = 0;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;
const ISB_IFDROP: u16 = 5;
const ISB_OSDROP: u16 = 7;
const EPB_DROPCOUNT: u16 = 4;

/// A section, as far as it was read.
#[derive(Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Described>,
    /// How many of its interfaces have the same name and link type.
    alike: BTreeMap<(String, u16), usize>,
    /// Packets that were dropped, by statistics of interfaces that it does not describe and by earlier sections.
    dropped: u64,
}

/// An interface that the section describes.
#[derive(Debug)]
struct Described {
    /// Its number in the file; `None`: the file has too many.
    number: Option<usize>,
    clock: Clock,
    /// Dropped packets, by the file's latest statistics.
    dropped: u64,
    /// Dropped packets, by what the packets say that came after them.
    dropped_before: u64,
}

impl Section {
    /// `bytes` are the first four of a file, a section header's.
    pub(super) fn begin<'r>(
        input: &mut Input<'r>,
        bytes: &mut Vec<u8>,
        interfaces: &mut Interfaces,
    ) -> Result<Self, RecordError> {
        let mut section = Self {
            order: Order::Little,
            interfaces: Vec::new(),
            alike: BTreeMap::new(),
            dropped: 0,
        };
        input.more(4, bytes)?;
        section.rest_of_block(input, bytes, interfaces)?;
        Ok(section)
    }

    /// Reads the next block; `None`: there is none.
    pub(super) fn block<'b>(
        &mut self,
        input: &mut Input<'_>,
        bytes: &'b mut Vec<u8>,
        interfaces: &mut Interfaces,
    ) -> Result<Option<Block<'b>>, RecordError> {
        bytes.clear();
        if !input.begin(8, bytes)? {
            return Ok(None);
        }
        self.rest_of_block(input, bytes, interfaces).map(Some)
    }

    /// Its type and length are in `bytes`.
    fn rest_of_block<'b>(
        &mut self,
        input: &mut Input<'_>,
        bytes: &'b mut Vec<u8>,
        interfaces: &mut Interfaces,
    ) -> Result<Block<'b>, RecordError> {
        let malformed = RecordError::Malformed;
        if Fields::new(bytes, Order::Little).u32() == Some(SECTION_HEADER) {
            input.more(4, bytes)?;
            let is = |order: &Order| Fields::new(&bytes[8..], *order).u32() == Some(BYTE_ORDER);
            let order = [Order::Little, Order::Big].into_iter().find(is).ok_or(malformed)?;
            self.next(order);
        }
        let mut header = Fields::new(bytes, self.order);
        let kind = header.u32().ok_or(malformed)?;
        let length = header.size().filter(|length| *length <= LONGEST_RECORD).ok_or(malformed)?;
        input.more(length.checked_sub(bytes.len()).ok_or(malformed)?, bytes)?;
        let end = length.checked_sub(4).filter(|end| 8 <= *end).ok_or(malformed)?;
        if Fields::new(&bytes[end..], self.order).size() != Some(length) {
            return Err(malformed);
        }
        let body = Fields::new(&bytes[8..end], self.order);
        if kind == SECTION_HEADER {
            let version = version(body).ok_or(malformed)?;
            return match version {
                (1, _) => Ok(Block::Other),
                (major, minor) => Err(RecordError::Version(major, minor)),
            };
        }
        self.content(kind, body, interfaces).ok_or(malformed)
    }

    /// Another section begins.
    fn next(&mut self, order: Order) {
        self.dropped = self.dropped();
        self.order = order;
        self.interfaces.clear();
        self.alike.clear();
    }

    fn content<'b>(
        &mut self,
        kind: u32,
        body: Fields<'b>,
        interfaces: &mut Interfaces,
    ) -> Option<Block<'b>> {
        match kind {
            INTERFACE_DESCRIPTION => self.describe(body, interfaces)?,
            INTERFACE_STATISTICS => self.count_dropped(body)?,
            ENHANCED_PACKET => return self.enhanced_packet(body),
            PACKET => return self.packet(body),
            SIMPLE_PACKET => return self.simple_packet(body),
            NAME_RESOLUTION | JOURNAL | SECRETS | PROCESS => {}
            other if CUSTOM.contains(&other) => {}
            _ => return Some(Block::Unknown),
        }
        Some(Block::Other)
    }

    fn describe(&mut self, mut body: Fields<'_>, interfaces: &mut Interfaces) -> Option<()> {
        let (link, _, _) = (body.u16()?, body.u16()?, body.u32()?);
        let order = self.order;
        let mut name = String::new();
        let mut clock = Clock { unit: Unit::MICROSECOND, offset_s: 0 };
        each_option(body, |code, value| {
            match code {
                IF_NAME => name = interface_name(value),
                IF_TSRESOL => {
                    let [resolution] = value else { return None };
                    clock.unit = Unit::from_resolution(*resolution);
                }
                IF_TSOFFSET => {
                    clock.offset_s = Fields::new(value, order).u64()?.cast_signed();
                }
                _ => {}
            }
            Some(())
        })?;
        if self.interfaces.len() < MAX_INTERFACES {
            let key = (name, link);
            let nth = self.alike.get(&key).copied().unwrap_or(0);
            let number = interfaces.number(&key, nth);
            self.alike.insert(key, nth + 1);
            self.interfaces.push(Described { number, clock, dropped: 0, dropped_before: 0 });
        }
        Some(())
    }

    fn count_dropped(&mut self, mut body: Fields<'_>) -> Option<()> {
        let (id, _, _) = (body.size()?, body.u32()?, body.u32()?);
        let order = self.order;
        let mut dropped: u64 = 0;
        each_option(body, |code, value| {
            if matches!(code, ISB_IFDROP | ISB_OSDROP) {
                dropped = dropped.saturating_add(Fields::new(value, order).u64()?);
            }
            Some(())
        })?;
        match self.interfaces.get_mut(id) {
            Some(interface) => interface.dropped = dropped,
            None => self.dropped = self.dropped.saturating_add(dropped),
        }
        Some(())
    }

    fn enhanced_packet<'b>(&mut self, mut body: Fields<'b>) -> Option<Block<'b>> {
        let (id, order) = (body.size()?, self.order);
        let (block, options) = self.timed_packet(id, body)?;
        each_option(options, |code, value| {
            if code == EPB_DROPCOUNT {
                self.drop_before(id, Fields::new(value, order).u64()?);
            }
            Some(())
        })?;
        Some(block)
    }

    fn packet<'b>(&mut self, mut body: Fields<'b>) -> Option<Block<'b>> {
        let (id, dropped) = (usize::from(body.u16()?), body.u16()?);
        // All bits set: how many is not known.
        if dropped != u16::MAX {
            self.drop_before(id, u64::from(dropped));
        }
        let (block, options) = self.timed_packet(id, body)?;
        each_option(options, |_, _| Some(()))?;
        Some(block)
    }

    /// A packet from its time on, and what follows it.
    fn timed_packet<'b>(&self, id: usize, mut body: Fields<'b>) -> Option<(Block<'b>, Fields<'b>)> {
        let units = u64::from(body.u32()?) << 32 | u64::from(body.u32()?);
        let (kept, length) = (body.size()?, body.u32()?);
        let data = body.padded(kept)?;
        let described = self.interfaces.get(id);
        let interface = described.and_then(|interface| interface.number);
        let at = described.and_then(|interface| interface.clock.time(units));
        let tick_ns = described.map_or(0, |interface| interface.clock.tick_ns());
        Some((Block::Packet { interface, at, tick_ns, length, data }, body))
    }

    /// It is the first interface's, and has no time.
    fn simple_packet<'b>(&self, mut body: Fields<'b>) -> Option<Block<'b>> {
        let length = body.u32()?;
        let interface = self.interfaces.first().and_then(|interface| interface.number);
        Some(Block::Packet { interface, at: None, tick_ns: 0, length, data: body.rest() })
    }

    fn drop_before(&mut self, id: usize, packets: u64) {
        if let Some(interface) = self.interfaces.get_mut(id) {
            interface.dropped_before = interface.dropped_before.saturating_add(packets);
        }
    }

    /// Packets that were dropped in it and in earlier ones.
    pub(super) fn dropped(&self) -> u64 {
        // Statistics and packets may count the same ones.
        let own = self.interfaces.iter().map(|one| one.dropped.max(one.dropped_before));
        own.fold(self.dropped, u64::saturating_add)
    }
}

fn version(mut body: Fields<'_>) -> Option<(u16, u16)> {
    let (_, version, _) = (body.u32()?, (body.u16()?, body.u16()?), body.u64()?);
    each_option(body, |_, _| Some(()))?;
    Some(version)
}

/// Of an interface, in reports.
fn interface_name(value: &[u8]) -> String {
    const MAX_CHARS: usize = 64;
    let name = String::from_utf8_lossy(value);
    name.trim_end_matches('\0').chars().take(MAX_CHARS).collect()
}

/// Hands out the code and the value of each option.
fn each_option(
    mut fields: Fields<'_>,
    mut each: impl FnMut(u16, &[u8]) -> Option<()>,
) -> Option<()> {
    while !fields.is_empty() {
        let (code, length) = (fields.u16()?, fields.u16()?);
        if code == END_OF_OPTIONS {
            break;
        }
        each(code, fields.padded(usize::from(length))?)?;
    }
    Some(())
}
