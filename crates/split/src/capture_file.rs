//! Packets of a pcap or pcapng file.

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
    packet: Option<Current>,
    data: Vec<u8>,
    dropped: u64,
    is_cut: bool,
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
            packet: None,
            data: Vec::new(),
            dropped: 0,
            is_cut: false,
        })
    }

    /// Goes to the next packet; `false`: there is none.
    ///
    /// # Errors
    /// When the file is damaged from here on. What was read up to here is as good as it was.
    pub fn advance(&mut self, n_read: u64) -> Result<bool, CaptureError> {
        self.packet = None;
        loop {
            let (used, found) = match self.reader.next() {
                Ok((used, PcapBlockOwned::NG(block))) => {
                    let section = Section {
                        interfaces: &mut self.interfaces,
                        first: &mut self.section,
                        dropped: &mut self.dropped,
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
                Err(PcapError::Eof) => return Ok(false),
                Err(PcapError::Incomplete(_) | PcapError::UnexpectedEof) => {
                    if self.reader.reader_exhausted() {
                        self.is_cut |= !self.reader.data().is_empty();
                        return Ok(false);
                    }
                    self.reader.refill().map_err(|_| CaptureError::Read)?;
                    continue;
                }
                Err(PcapError::BufferTooSmall) => {
                    self.grow(n_read)?;
                    continue;
                }
                Err(PcapError::ReadError) => return Err(CaptureError::Read),
                Err(_) => return Err(CaptureError::Damaged(n_read)),
            };
            self.reader.consume(used);
            if let Some((interface, at, length)) = found
                && let Some(link) = self.interfaces.get(interface).and_then(|one| one.link)
            {
                self.packet = Some(Current { at, interface, link, length });
                return Ok(true);
            }
        }
    }

    /// The packet that `advance` went to.
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        let Current { at, interface, link, length } = self.packet?;
        let interface = self.first_interface.saturating_add(u32::try_from(interface).ok()?);
        Some(Packet { at, interface, link, data: &self.data, length })
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

    /// Whether it ends in the middle of a packet.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn grow(&mut self, n_read: u64) -> Result<(), CaptureError> {
        self.buffer *= 2;
        if LONGEST_BLOCK < self.buffer || !self.reader.grow(self.buffer) {
            return Err(CaptureError::Damaged(n_read));
        }
        self.reader.refill().map_err(|_| CaptureError::Read)
    }
}

/// A pcapng section, as far as it was read.
struct Section<'a> {
    interfaces: &'a mut Vec<Interface>,
    first: &'a mut usize,
    dropped: &'a mut u64,
}

impl Section<'_> {
    /// The interface, time and length of the block's packet, which is copied to `data`; `None`: it has none.
    fn block(self, block: &Block<'_>, data: &mut Vec<u8>) -> Option<(usize, CaptureNs, u32)> {
        match block {
            Block::SectionHeader(_) => *self.first = self.interfaces.len(),
            Block::InterfaceDescription(header) if self.interfaces.len() < MOST_INTERFACES => {
                let name = header.if_name().and_then(Result::ok).unwrap_or_default();
                self.interfaces.push(Interface {
                    name: name.trim_end_matches('\0').chars().take(MOST_NAME).collect(),
                    link: Link::from_number(header.linktype.0),
                    units_per_s: header
                        .ts_resolution()
                        .filter(|units| *units != 0)
                        .unwrap_or(1_000_000),
                    offset_s: header.ts_offset(),
                    dropped: 0,
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
                let interface = self.interfaces.get(at)?;
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                data.clear();
                data.extend_from_slice(packet.packet_data());
                return Some((at, interface.time(units), packet.origlen));
            }
            // A simple packet has no time.
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
