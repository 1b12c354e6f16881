//! Spools: what is appended to while recording, one file per CPU or for all. Samples, switch events, trace events and
//! call stacks differ only in their `Codec`.

use std::path::Path;

use model::{HostNs, MachineId};

use crate::blocks::{BLOCK_BYTES, BlockFile, BlockHeader, BlockReader, length};
use crate::error::Error;

/// Whose records a spool has: a machine and a CPU of it; zeros where they are of all.
pub(crate) type Place = (MachineId, u32);
pub(crate) const EVERYWHERE: Place = (MachineId::HOST, 0);

/// How the records of a kind are stored.
pub(crate) trait Codec {
    /// The type that is appended.
    type Record;
    /// The type that is read back.
    type Item: Clone + std::fmt::Debug;
    /// What a record is encoded relative to: of the one before in the block.
    type Before: Default;
    /// Begins a block.
    const KIND: [u8; 4];
    /// Began a block when its records were others.
    const OLDER: &[[u8; 4]] = &[];
    /// Bytes of a record at most.
    const BYTES: usize;
    /// Records of a block at most: bounds what a reader holds per spool.
    const RECORDS: usize = BLOCK_BYTES / Self::BYTES;

    /// Writes a record to the start of `room`, which has at least `BYTES`. Returns its length.
    fn encode(record: &Self::Record, before: &mut Self::Before, room: &mut [u8]) -> usize;
    /// The next record: `encode` undone, and `bytes` moved on. `None` when they are none.
    fn decode(bytes: &mut &[u8], place: Place, before: &mut Self::Before) -> Option<Self::Item>;
    /// When it happened; 0 of what has no time.
    fn record_time(record: &Self::Record) -> HostNs;
    /// The same of what came back.
    fn time(item: &Self::Item) -> HostNs;
}

/// Takes records while recording.
#[derive(Debug)]
pub(crate) struct SpoolWriter<C> {
    blocks: BlockFile,
    place: Place,
    codec: std::marker::PhantomData<C>,
}

impl<C: Codec> SpoolWriter<C> {
    pub(crate) fn create(path: &Path, place: Place) -> Result<Self, Error> {
        let blocks = BlockFile::create(path)?;
        Ok(Self { blocks, place, codec: std::marker::PhantomData })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.blocks.path
    }

    /// Appends records. They are in the file when this returns; after an error none of the block that failed is.
    pub(crate) fn append(&mut self, records: &[C::Record]) -> Result<(), Error> {
        let mut rest = records;
        while !rest.is_empty() {
            let (mut before, mut count, mut keys) = (C::Before::default(), 0, NO_KEYS);
            let payload = self.blocks.payload();
            let mut taken = 0;
            for record in rest.iter().take(C::RECORDS) {
                let room = &mut payload[taken..];
                if room.len() < C::BYTES {
                    break;
                }
                taken += C::encode(record, &mut before, room);
                widen(&mut keys, C::record_time(record));
                count += 1;
            }
            let kind = u32::from_le_bytes(C::KIND);
            self.blocks.append([kind, self.place.1, length(count)], keys, taken)?;
            rest = &rest[count..];
        }
        Ok(())
    }
}

/// The earliest and the latest time of no records.
const NO_KEYS: [u64; 2] = [u64::MAX, 0];

fn widen(keys: &mut [u64; 2], HostNs(time): HostNs) {
    *keys = [keys[0].min(time), keys[1].max(time)];
}

/// The records of one spool, as far as it is whole. Holds one block.
#[derive(Debug)]
pub(crate) struct SpoolReader<C: Codec> {
    blocks: BlockReader,
    place: Place,
    payload: Vec<u8>,
    items: Vec<C::Item>,
    at: usize,
}

/// What a killed writer's spools hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Survey {
    pub(crate) records: u64,
    /// The earliest and the latest time; meaningful when there are records.
    pub(crate) keys: [u64; 2],
    pub(crate) lost_bytes: u64,
}

impl Default for Survey {
    fn default() -> Self {
        Self { records: 0, keys: NO_KEYS, lost_bytes: 0 }
    }
}

impl Survey {
    /// Adds what another spool holds.
    pub(crate) fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.lost_bytes += other.lost_bytes;
        self.keys = [self.keys[0].min(other.keys[0]), self.keys[1].max(other.keys[1])];
    }
}

impl<C: Codec> SpoolReader<C> {
    pub(crate) fn open(path: &Path, place: Place) -> Result<Self, Error> {
        let blocks = BlockReader::open(path)?;
        Ok(Self { blocks, place, payload: Vec::new(), items: Vec::new(), at: 0 })
    }

    /// Goes to the next record, at first to the first; false at the end of what is readable.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        self.at += 1;
        Ok(self.at < self.items.len() || self.next_block()?)
    }

    /// The record it is at.
    pub(crate) fn item(&self) -> &C::Item {
        &self.items[self.at]
    }

    /// Bytes after the last readable block; meaningful at the end.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.blocks.lost_bytes()
    }

    /// Passes over all records and shows them, block by block.
    pub(crate) fn survey(mut self, see: &mut dyn FnMut(&[C::Item])) -> Result<Survey, Error> {
        let mut survey = Survey::default();
        while self.next_block()? {
            survey.records += self.items.len() as u64;
            self.items.iter().for_each(|item| widen(&mut survey.keys, C::time(item)));
            see(&self.items);
        }
        survey.lost_bytes = self.lost_bytes();
        Ok(survey)
    }

    fn next_block(&mut self) -> Result<bool, Error> {
        self.at = 0;
        self.items.clear();
        let Some(header) = self.blocks.next(&mut self.payload)? else { return Ok(false) };
        if C::OLDER.contains(&header.kind.to_le_bytes()) {
            return Err(Error::OlderSpool(self.blocks.path.clone()));
        }
        let good = header.kind == u32::from_le_bytes(C::KIND)
            && header.cpu == self.place.1
            && (1..=C::RECORDS).contains(&(header.count as usize))
            && self.decode_block(&header).is_some();
        if !good {
            self.items.clear();
            self.blocks.reject(&header);
        }
        Ok(good)
    }

    /// `None` when the payload is not exactly what the header says.
    fn decode_block(&mut self, header: &BlockHeader) -> Option<()> {
        let (mut bytes, mut before) = (self.payload.as_slice(), C::Before::default());
        let mut keys = NO_KEYS;
        for _ in 0..header.count {
            let item = C::decode(&mut bytes, self.place, &mut before)?;
            widen(&mut keys, C::time(&item));
            self.items.push(item);
        }
        (bytes.is_empty() && keys == header.keys).then_some(())
    }
}
