//! The spool of one CPU: blocks of events (see `record`), whose keys are the times of the first and the last.

use std::path::{Path, PathBuf};

use model::{HostNs, MachineId, TraceEvent};

use super::record::{Before, EVENT_BYTES, decode, encode};
use crate::blocks::{BlockFile, BlockHeader, BlockReader, length};
use crate::error::Error;
use crate::files;
use crate::merge::Source;

const EVENTS: u32 = u32::from_le_bytes(*b"VTE1");
/// Bytes of a block's payload at most: a reader holds one block of every CPU of every machine.
const PAYLOAD_BYTES: usize = 16 << 10;

/// Whose events a spool has: a machine and a CPU of it.
pub(super) type Place = (MachineId, u32);

/// Takes the events of one CPU of one machine while tracing.
#[derive(Debug)]
pub struct TraceSpool {
    blocks: BlockFile,
    place: Place,
    payload: Vec<u8>,
}

impl TraceSpool {
    pub(super) fn create(dir: &Path, place: Place) -> Result<Self, Error> {
        Ok(Self { blocks: BlockFile::create(&path(dir, place))?, place, payload: Vec::new() })
    }

    /// Appends events of this CPU, in time order. They are in the file when this returns; after an error none of the
    /// block that failed is.
    ///
    /// # Errors
    /// When one is of another CPU or machine, or they can't be written.
    pub fn append(&mut self, events: &[TraceEvent]) -> Result<(), Error> {
        let mut rest = events;
        while !rest.is_empty() {
            let count = self.encode_block(rest)?;
            let (block, after) = rest.split_at(count);
            let header = BlockHeader {
                kind: EVENTS,
                cpu: self.place.1,
                count: length(count),
                payload: length(self.payload.len()),
                keys: span(block),
            };
            self.blocks.append(&header, &self.payload).map_err(Error::of_trace)?;
            rest = after;
        }
        Ok(())
    }

    /// Encodes as many events as fill a block.
    fn encode_block(&mut self, events: &[TraceEvent]) -> Result<usize, Error> {
        self.payload.clear();
        let mut before = Before::default();
        for (count, event) in events.iter().enumerate() {
            if PAYLOAD_BYTES < self.payload.len() + EVENT_BYTES {
                return Ok(count);
            }
            if (event.machine, event.cpu) != self.place {
                let reason = format!(
                    "an event of machine {}, CPU {} is in the wrong spool",
                    event.machine.0, event.cpu
                );
                return Err(Error::Encode { path: self.blocks.path.clone(), reason });
            }
            encode(event.time, &event.kind, &mut before, &mut self.payload);
        }
        Ok(events.len())
    }
}

/// The events of one spool, as far as it is whole. Holds one block.
#[derive(Debug)]
pub(super) struct SpooledEvents {
    blocks: BlockReader,
    place: Place,
    payload: Vec<u8>,
    events: Vec<TraceEvent>,
    at: usize,
}

/// What a killed trace's spool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Survey {
    pub(super) events: u64,
    /// The earliest and the latest time; meaningful when there are events.
    pub(super) first: HostNs,
    pub(super) last: HostNs,
    pub(super) lost_bytes: u64,
}

impl SpooledEvents {
    pub(super) fn open(path: &Path, place: Place) -> Result<Self, Error> {
        let blocks = BlockReader::open(path)?;
        Ok(Self { blocks, place, payload: Vec::new(), events: Vec::new(), at: 0 })
    }

    /// Passes over all blocks.
    pub(super) fn survey(mut self) -> Result<Survey, Error> {
        let mut survey = Survey { first: HostNs(u64::MAX), ..Survey::default() };
        while self.next_block()? {
            survey.events += self.events.len() as u64;
            for event in &self.events {
                survey.first = survey.first.min(event.time);
                survey.last = survey.last.max(event.time);
            }
        }
        survey.lost_bytes = self.lost_bytes();
        Ok(survey)
    }

    /// Reads the next block's events; false at the end of what is readable.
    fn next_block(&mut self) -> Result<bool, Error> {
        self.at = 0;
        self.events.clear();
        let Some(header) = self.blocks.next(&mut self.payload)? else { return Ok(false) };
        let good = header.kind == EVENTS
            && header.cpu == self.place.1
            && self.payload.len() <= PAYLOAD_BYTES
            && self.decode_block(header.count).is_some()
            && !self.events.is_empty()
            && header.keys == span(&self.events);
        if !good {
            self.events.clear();
            self.blocks.reject(&header);
        }
        Ok(good)
    }

    /// `None` when the payload is not exactly that many events.
    fn decode_block(&mut self, count: u32) -> Option<()> {
        let (machine, cpu) = self.place;
        let (mut bytes, mut before) = (self.payload.as_slice(), Before::default());
        for _ in 0..count {
            let (time, kind) = decode(&mut bytes, &mut before)?;
            self.events.push(TraceEvent { time, machine, cpu, kind });
        }
        bytes.is_empty().then_some(())
    }
}

impl Source for SpooledEvents {
    type Item = TraceEvent;

    fn advance(&mut self) -> Result<bool, Error> {
        self.at += 1;
        if self.at < self.events.len() {
            return Ok(true);
        }
        self.next_block()
    }

    fn time(&self) -> u64 {
        self.events[self.at].time.0
    }

    fn item(&self) -> TraceEvent {
        self.events[self.at]
    }

    fn lost_bytes(&self) -> u64 {
        self.blocks.lost_bytes()
    }
}

/// The spools there are, by machine and CPU.
pub(super) fn find(dir: &Path) -> Result<Vec<(Place, PathBuf)>, Error> {
    files::spools(dir, place_of, |place| path(dir, place))
}

pub(super) fn open(spools: &[(Place, PathBuf)]) -> Result<Vec<SpooledEvents>, Error> {
    spools.iter().map(|(place, path)| SpooledEvents::open(path, *place)).collect()
}

fn path(dir: &Path, (machine, cpu): Place) -> PathBuf {
    dir.join(format!("machine{}-cpu{cpu}.raw", machine.0))
}

fn place_of(name: &str) -> Option<Place> {
    let (machine, cpu) = name.strip_prefix("machine")?.strip_suffix(".raw")?.split_once("-cpu")?;
    Some((MachineId(machine.parse().ok()?), cpu.parse().ok()?))
}

/// Times of the first and the last of some events.
fn span(block: &[TraceEvent]) -> [u64; 2] {
    let time = |event: Option<&TraceEvent>| event.map_or(0, |event| event.time.0);
    [time(block.first()), time(block.last())]
}
