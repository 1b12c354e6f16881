//! Packets of a pcap or pcapng file.

mod ahead;
mod clock;
mod input;
mod pcap;
mod section;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};

use crate::packet::{Link, Packet};
use crate::{CaptureNs, Counter, Counts};
use ahead::{Ahead, Held};
use input::{Fields, Input, Order, RecordError};
use section::{SECTION_HEADER, Section};

/// A block or a packet may be as long: longer ones are damaged.
const LONGEST_RECORD: usize = 16 << 20;
const MAX_INTERFACES: usize = 4096;

/// A file that is read packet by packet. Its memory does not depend on its length.
pub struct CaptureFile<'r> {
    input: Input<'r>,
    format: Format,
    interfaces: Interfaces,
    first_interface: u32,
    ahead: Ahead,
    /// The record that was read last.
    record: Vec<u8>,
    /// The packet that is handed out.
    packet: Option<Held>,
    n_read: u64,
    /// There is nothing more to read, and why.
    end: Option<Result<(), CaptureError>>,
    counts: Counts,
    tick_ns: u64,
    is_cut: bool,
}

#[derive(Debug)]
enum Format {
    Pcap(pcap::Header),
    Pcapng(Section),
}

/// What a record of a file has.
enum Block<'b> {
    Packet {
        /// The number of its interface; `None`: the file does not describe it.
        interface: Option<usize>,
        /// `None`: it has no time, or none that can be.
        at: Option<CaptureNs>,
        /// How exact its time is.
        tick_ns: u64,
        length: u32,
        data: &'b [u8],
    },
    /// Known, without a packet.
    Other,
    /// Of a type that is not known.
    Unknown,
}

/// Where packets were captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `tap0`; empty if the file does not say.
    pub name: String,
    /// What its packets begin with; `None`: nothing that is known here.
    pub link: Option<Link>,
}

/// All interfaces of a file, each once.
#[derive(Debug, Default)]
struct Interfaces {
    all: Vec<Interface>,
    /// Numbers of those with the same name and link type.
    alike: BTreeMap<(String, u16), Vec<usize>>,
}

impl Interfaces {
    /// The number of a section's nth interface with this name and link type. Files of several sections have the same
    /// interfaces in each. `None`: there are too many.
    fn number(&mut self, key: &(String, u16), nth: usize) -> Option<usize> {
        if let Some(number) = self.alike.get(key).and_then(|numbers| numbers.get(nth)) {
            return Some(*number);
        }
        let number = self.all.len();
        if MAX_INTERFACES <= number {
            return None;
        }
        self.all.push(Interface { name: key.0.clone(), link: Link::from_number(key.1) });
        self.alike.entry(key.clone()).or_default().push(number);
        Some(number)
    }
}

/// Why a file can't be read, or no further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Its beginning is no capture's.
    #[error("it is neither a pcap nor a pcapng file")]
    NotCapture,
    /// Another version of the format.
    #[error("its format version {0}.{1} is unknown")]
    Version(u16, u16),
    /// What follows is not in the format.
    #[error("it is damaged after packet {0}")]
    Damaged(u64),
    #[error("it can't be read: {0}")]
    Read(ErrorKind),
}

impl std::fmt::Debug for CaptureFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureFile").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

impl<'r> CaptureFile<'r> {
    /// Its interfaces are numbered from `first_interface` on.
    ///
    /// # Errors
    /// When it is no capture.
    pub fn new(reader: impl Read + Send + 'r, first_interface: u32) -> Result<Self, CaptureError> {
        let mut input = Input::new(reader);
        let mut interfaces = Interfaces::default();
        let mut record = Vec::new();
        let format = begin(&mut input, &mut record, &mut interfaces);
        let format = format.map_err(|error| match error {
            RecordError::Cut | RecordError::Malformed => CaptureError::NotCapture,
            RecordError::Version(major, minor) => CaptureError::Version(major, minor),
            RecordError::Read(kind) => CaptureError::Read(kind),
        })?;
        Ok(Self {
            input,
            format,
            interfaces,
            first_interface,
            ahead: Ahead::default(),
            record,
            packet: None,
            n_read: 0,
            end: None,
            counts: Counts::default(),
            tick_ns: 0,
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
            match self.read(&mut spare) {
                Ok(true) => {}
                Ok(false) => self.end = Some(Ok(())),
                Err(RecordError::Cut) => {
                    self.is_cut = true;
                    self.end = Some(Ok(()));
                }
                Err(RecordError::Malformed) => {
                    self.end = Some(Err(CaptureError::Damaged(self.n_read)));
                }
                Err(RecordError::Version(major, minor)) => {
                    self.end = Some(Err(CaptureError::Version(major, minor)));
                }
                Err(RecordError::Read(kind)) => self.end = Some(Err(CaptureError::Read(kind))),
            }
        }
        self.packet = self.ahead.next();
        match (&self.packet, &self.end) {
            (None, Some(Err(error))) => Err(error.clone()),
            (packet, _) => Ok(packet.is_some()),
        }
    }

    /// Reads a record, and keeps or counts its packet; `false`: there is none.
    fn read(&mut self, spare: &mut Option<Vec<u8>>) -> Result<bool, RecordError> {
        let block = match &mut self.format {
            Format::Pcap(header) => header.packet(&mut self.input, &mut self.record)?,
            Format::Pcapng(section) => {
                section.block(&mut self.input, &mut self.record, &mut self.interfaces)?
            }
        };
        let (interface, at, tick_ns, length, data) = match block {
            None => return Ok(false),
            Some(Block::Packet { interface, at, tick_ns, length, data }) => {
                (interface, at, tick_ns, length, data)
            }
            Some(Block::Other) => return Ok(true),
            Some(Block::Unknown) => {
                self.counts.one(Counter::UnknownBlocks);
                return Ok(true);
            }
        };
        let place = interface.and_then(|number| Some((number, self.interfaces.all.get(number)?)));
        let known = match (place, at) {
            (None, _) => Err(Counter::UnknownInterface),
            (Some((_, Interface { link: None, .. })), _) => Err(Counter::LeftOut),
            (Some(_), None) => Err(Counter::WithoutTime),
            (Some((interface, Interface { link: Some(link), .. })), Some(at)) => {
                Ok((interface, *link, at))
            }
        };
        match known {
            Err(counter) => self.counts.one(counter),
            Ok((interface, link, at)) => {
                let mut kept = spare.take().unwrap_or_default();
                kept.clear();
                kept.extend_from_slice(data);
                self.n_read += 1;
                self.tick_ns = self.tick_ns.max(tick_ns);
                self.ahead.add(self.n_read, Held { at, interface, link, length, data: kept });
            }
        }
        Ok(true)
    }

    /// The packet that `advance` went to.
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        let Held { at, interface, link, length, ref data } = *self.packet.as_ref()?;
        let interface = self.first_interface.saturating_add(u32::try_from(interface).ok()?);
        Some(Packet { at, interface, link, data, length })
    }

    /// Its interfaces, as far as it was read.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces.all
    }

    /// Packets so far that the capture has dropped, as the file says, and those that are not handed out.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        if let Format::Pcapng(section) = &self.format {
            counts.add(Counter::DroppedByCapture, section.dropped());
        }
        counts
    }

    /// How exact the times of its packets are; 0: to less than a nanosecond.
    #[must_use]
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Whether it ends in the middle of a packet.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// Reads a file's beginning.
fn begin(
    input: &mut Input<'_>,
    record: &mut Vec<u8>,
    interfaces: &mut Interfaces,
) -> Result<Format, RecordError> {
    input.more(4, record)?;
    if Fields::new(record, Order::Little).u32() == Some(SECTION_HEADER) {
        return Section::begin(input, record, interfaces).map(Format::Pcapng);
    }
    let header = pcap::Header::read(input, record)?;
    interfaces.number(&(String::new(), header.link), 0);
    Ok(Format::Pcap(header))
}
