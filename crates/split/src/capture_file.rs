//! Packets of a pcap or pcapng file.

use std::collections::BTreeMap;
use std::io::Read;

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};

use crate::CaptureNs;
use crate::packet::{Link, Packet};

const BUFFER: usize = 256 << 10;
/// A block may be as long: longer ones are no packets.
const LONGEST_BLOCK: usize = 16 << 20;
const MOST_INTERFACES: usize = 4096;
const NS_PER_S: u64 = 1_000_000_000;
/// Of an interface, in reports.
const MOST_NAME: usize = 64;

/// A file that is read packet by packet. Its memory does not depend on its length.
pub struct CaptureFile<'r> {
    reader: Box<dyn PcapReaderIterator + Send + 'r>,
    buffer: usize,
    interfaces: Vec<Interface>,
    /// The first interface of the section that is being read.
    section: usize,
    first_interface: u32,
    ahead: Ahead,
    /// The packet that was read last, on its way to `ahead`, and the one that is handed out.
    data: Vec<u8>,
    packet: Option<Held>,
    /// Packets that were read.
    n_read: u64,
    /// There is nothing more to read, and why.
    end: Option<Result<(), CaptureError>>,
    dropped: u64,
    left_out: u64,
    is_cut: bool,
}

/// Packets that were read ahead, by time: several CPUs take packets, and the order in a file may be another one.
#[derive(Default)]
struct Ahead {
    /// By when it has its turn and in the file's order.
    packets: BTreeMap<(CaptureNs, u64), Held>,
    bytes: usize,
    latest: CaptureNs,
}

struct Held {
    current: Current,
    data: Vec<u8>,
}

impl Ahead {
    const MOST_PACKETS: usize = 256;
    const MOST_BYTES: usize = 4 << 20;
    /// Packets that are later than that are not put in order: somebody has set the clock.
    const LATEST_NS: u64 = 1_000_000_000;

    fn has_room(&self) -> bool {
        self.packets.len() < Self::MOST_PACKETS && self.bytes < Self::MOST_BYTES
    }

    fn add(&mut self, number: u64, held: Held) {
        let at = held.current.at;
        let turn = if Self::LATEST_NS < self.latest.since(at) { self.latest } else { at };
        self.latest = self.latest.max(at);
        self.bytes += held.data.len();
        self.packets.insert((turn, number), held);
    }

    fn next(&mut self) -> Option<Held> {
        let (_, held) = self.packets.pop_first()?;
        self.bytes -= held.data.len();
        Some(held)
    }
}

impl std::fmt::Debug for CaptureFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureFile").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

/// Where packets were captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `tap0`; empty if the file does not say.
    pub name: String,
    /// What its packets begin with; `None`: nothing that is known here.
    pub link: Option<Link>,
    units_per_s: u64,
    offset_s: i64,
    /// What the file said last.
    dropped: u64,
    /// Its place among all interfaces; that of an earlier section's if it is the same one again.
    number: usize,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    at: CaptureNs,
    interface: usize,
    link: Link,
    length: u32,
}

/// Why a file can't be read, or no further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Its beginning is no capture's.
    #[error("it is neither a pcap nor a pcapng file")]
    NotCapture,
    /// What follows is not in the format.
    #[error("it is damaged after packet {0}")]
    Damaged(u64),
    /// The system says no.
    #[error("it can't be read")]
    Read,
}

/// Reads as much as there is room for, so that a pipe's small pieces are no different from a file.
struct Filling<R>(R);

impl<R: Read> Read for Filling<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut n = 0;
        while n < buffer.len() {
            match self.0.read(&mut buffer[n..]) {
                Ok(0) => break,
                Ok(more) => n += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(n)
    }
}

impl<'r> CaptureFile<'r> {
    /// Its interfaces are numbered from `first_interface` on.
    ///
    /// # Errors
    /// When it is no capture.
    pub fn new(reader: impl Read + Send + 'r, first_interface: u32) -> Result<Self, CaptureError> {
        let reader = create_reader(BUFFER, Filling(reader)).map_err(|error| match error {
            PcapError::ReadError => CaptureError::Read,
            _ => CaptureError::NotCapture,
        })?;
        Ok(Self {
            reader,
            buffer: BUFFER,
            interfaces: Vec::new(),
            section: 0,
            first_interface,
            ahead: Ahead::default(),
            data: Vec::new(),
            packet: None,
            n_read: 0,
            end: None,
            dropped: 0,
            left_out: 0,
            is_cut: false,
        })
    }

    /// Goes to the next packet by time; `false`: there is none.
    ///
    /// # Errors
    /// When the file is damaged from here on. What was read up to here is as good as it was.
    pub fn advance(&mut self) -> Result<bool, CaptureError> {
        let mut spare = self.packet.take().map(|held| held.data);
        while self.end.is_none() && self.ahead.has_room() {
            match self.read() {
                Ok(Some(current)) => {
                    let data = std::mem::replace(&mut self.data, spare.take().unwrap_or_default());
                    self.n_read += 1;
                    self.ahead.add(self.n_read, Held { current, data });
                }
                Ok(None) => self.end = Some(Ok(())),
                Err(error) => self.end = Some(Err(error)),
            }
        }
        self.packet = self.ahead.next();
        match (&self.packet, &self.end) {
            (None, Some(Err(error))) => Err(error.clone()),
            (packet, _) => Ok(packet.is_some()),
        }
    }

    /// The file's next packet, whose bytes are then in `data`.
    fn read(&mut self) -> Result<Option<Current>, CaptureError> {
        loop {
            let (used, found) = match self.reader.next() {
                Ok((used, PcapBlockOwned::NG(block))) => {
                    let section = Section {
                        interfaces: &mut self.interfaces,
                        first: &mut self.section,
                        dropped: &mut self.dropped,
                        left_out: &mut self.left_out,
                    };
                    (used, section.block(&block, &mut self.data))
                }
                Ok((used, PcapBlockOwned::LegacyHeader(header))) => {
                    let units_per_s =
                        if header.is_nanosecond_precision() { NS_PER_S } else { 1_000_000 };
                    self.interfaces.push(Interface {
                        name: String::new(),
                        // The upper half tells of checksums at the end of frames.
                        link: Link::from_number(header.network.0 & 0xffff),
                        units_per_s,
                        offset_s: 0,
                        dropped: 0,
                        number: 0,
                    });
                    (used, None)
                }
                Ok((used, PcapBlockOwned::Legacy(block))) => {
                    let units = self.interfaces.first().map_or(1, |first| first.units_per_s);
                    let fraction = u64::from(block.ts_usec) * (NS_PER_S / units);
                    let at = u64::from(block.ts_sec) * NS_PER_S + fraction;
                    self.data.clear();
                    self.data.extend_from_slice(block.data);
                    (used, Some((0, CaptureNs(at), block.origlen)))
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_) | PcapError::UnexpectedEof) => {
                    if self.reader.reader_exhausted() {
                        self.is_cut |= !self.reader.data().is_empty();
                        return Ok(None);
                    }
                    self.reader.refill().map_err(|_| CaptureError::Read)?;
                    continue;
                }
                Err(PcapError::BufferTooSmall) => {
                    self.grow()?;
                    continue;
                }
                Err(PcapError::ReadError) => return Err(CaptureError::Read),
                Err(_) => return Err(CaptureError::Damaged(self.n_read)),
            };
            self.reader.consume(used);
            let Some((interface, at, length)) = found else { continue };
            let Some(link) = self.interfaces.get(interface).and_then(|one| one.link) else {
                self.left_out += 1;
                continue;
            };
            return Ok(Some(Current { at, interface, link, length }));
        }
    }

    /// The packet that `advance` went to.
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        let Held { current, data } = self.packet.as_ref()?;
        let Current { at, interface, link, length } = *current;
        let number = self.interfaces.get(interface)?.number;
        let interface = self.first_interface.saturating_add(u32::try_from(number).ok()?);
        Some(Packet { at, interface, link, data, length })
    }

    /// Its interfaces, as far as it was read.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Packets that the capture has dropped, as the file says so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let now: u64 = self.interfaces.iter().map(|one| one.dropped).fold(0, u64::saturating_add);
        self.dropped.saturating_add(now)
    }

    /// Packets so far that are not handed out: what they begin with is not known here, or they have no time.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether it ends in the middle of a packet.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn grow(&mut self) -> Result<(), CaptureError> {
        self.buffer *= 2;
        if LONGEST_BLOCK < self.buffer || !self.reader.grow(self.buffer) {
            return Err(CaptureError::Damaged(self.n_read));
        }
        self.reader.refill().map_err(|_| CaptureError::Read)
    }
}

/// A pcapng section, as far as it was read.
struct Section<'a> {
    interfaces: &'a mut Vec<Interface>,
    first: &'a mut usize,
    dropped: &'a mut u64,
    left_out: &'a mut u64,
}

impl Section<'_> {
    /// The number of the section's next interface. A file that goes on in another section has the same ones in each.
    fn number(&self, name: &str, link: Option<Link>) -> usize {
        let (earlier, own) = self.interfaces.split_at((*self.first).min(self.interfaces.len()));
        let is_taken = |number: usize| own.iter().any(|one| one.number == number);
        let same = earlier
            .iter()
            .find(|one| one.name == name && one.link == link && !is_taken(one.number));
        same.map_or(self.interfaces.len(), |one| one.number)
    }

    /// The interface, time and length of the block's packet, which is copied to `data`; `None`: it has none.
    fn block(self, block: &Block<'_>, data: &mut Vec<u8>) -> Option<(usize, CaptureNs, u32)> {
        match block {
            Block::SectionHeader(_) => *self.first = self.interfaces.len(),
            Block::InterfaceDescription(header) if self.interfaces.len() < MOST_INTERFACES => {
                let name = header.if_name().and_then(Result::ok).unwrap_or_default();
                let name: String = name.trim_end_matches('\0').chars().take(MOST_NAME).collect();
                let link = Link::from_number(header.linktype.0);
                let number = self.number(&name, link);
                self.interfaces.push(Interface {
                    name,
                    link,
                    units_per_s: header
                        .ts_resolution()
                        .filter(|units| *units != 0)
                        .unwrap_or(1_000_000),
                    offset_s: header.ts_offset(),
                    dropped: 0,
                    number,
                });
            }
            Block::InterfaceStatistics(statistics) => {
                let of = |count: Option<Result<u64, _>>| count.and_then(Result::ok).unwrap_or(0);
                let dropped =
                    of(statistics.isb_ifdrop()).saturating_add(of(statistics.isb_osdrop()));
                let at = self.first.saturating_add(statistics.if_id as usize);
                match self.interfaces.get_mut(at) {
                    Some(interface) => interface.dropped = dropped,
                    None => *self.dropped = self.dropped.saturating_add(dropped),
                }
            }
            Block::EnhancedPacket(packet) => {
                let at = self.first.saturating_add(packet.if_id as usize);
                let Some(interface) = self.interfaces.get(at) else {
                    *self.left_out += 1;
                    return None;
                };
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                data.clear();
                data.extend_from_slice(packet.packet_data());
                return Some((at, interface.time(units), packet.origlen));
            }
            // It has no time.
            Block::SimplePacket(_) => *self.left_out += 1,
            _ => {}
        }
        None
    }
}

impl Interface {
    fn time(&self, units: u64) -> CaptureNs {
        let ns = u128::from(units) * u128::from(NS_PER_S) / u128::from(self.units_per_s);
        let offset = i128::from(self.offset_s) * i128::from(NS_PER_S);
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset);
        CaptureNs(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }
}
