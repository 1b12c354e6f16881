//! Raw spools: what the collector appends to while it samples, one file per CPU and one of call stacks.
//!
//! Of samples a block's payload is `count` records, packed (see `words`), and the keys are the times of the
//! first and the last; of stacks the keys are the ids of the first and the last.

use std::path::{Path, PathBuf};

use model::{CpuId, HostVirt, Sample, Stack};

use crate::abi::{RECORD_SIZE, decode, time_of};
use crate::blocks::{BLOCK_BYTES, BlockFile, BlockHeader, BlockReader, length};
use crate::error::Error;
use crate::merge::Source;
use crate::words::{PACKED_SIZE, pack, unpack};

const SAMPLES: u32 = u32::from_le_bytes(*b"VSP2");
/// Samples without what their vCPUs waited for, 72 bytes each.
const SAMPLES_1: u32 = u32::from_le_bytes(*b"VSP1");
/// Records of a block at most.
const BLOCK_RECORDS: usize = BLOCK_BYTES / PACKED_SIZE;
const STACKS: u32 = u32::from_le_bytes(*b"VST1");
/// Addresses of one half of a stack at most.
const STACK_DEPTH: usize = 1024;

/// Takes the records of one CPU while sampling.
#[derive(Debug)]
pub struct Spool {
    blocks: BlockFile,
    cpu: CpuId,
    packed: Vec<u8>,
}

impl Spool {
    pub(crate) fn create(path: &Path, cpu: CpuId) -> Result<Self, Error> {
        Ok(Self { blocks: BlockFile::create(path)?, cpu, packed: vec![0; BLOCK_BYTES] })
    }

    /// Appends records as the sampler wrote them, in time order. They are in the file when this
    /// returns; after an error none of the block that failed is.
    ///
    /// # Errors
    /// When `records` is not a whole number of records, or can't be written.
    pub fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        let (records, rest) = records.as_chunks::<RECORD_SIZE>();
        if !rest.is_empty() {
            let reason = format!("{} bytes are no whole record of {RECORD_SIZE}", rest.len());
            return Err(Error::Encode { path: self.blocks.path.clone(), reason });
        }
        for block in records.chunks(BLOCK_RECORDS) {
            let (Some(first), Some(last)) = (block.first(), block.last()) else { continue };
            let bytes = pack(block, &mut self.packed);
            let header = BlockHeader {
                kind: SAMPLES,
                cpu: self.cpu.0,
                count: length(block.len()),
                payload: length(bytes),
                keys: [time_of(first).0, time_of(last).0],
            };
            self.blocks.append(&header, &self.packed[..bytes])?;
        }
        Ok(())
    }
}

/// Takes the call stacks while sampling, so that a killed recording has them. Optional: the tables
/// given to `Writer::finish` are what a complete recording holds.
#[derive(Debug)]
pub struct StackSpool {
    blocks: BlockFile,
    next: u64,
}

impl StackSpool {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { blocks: BlockFile::create(path)?, next: 0 })
    }

    /// Appends the next rows of `Tables::stacks`. Addresses beyond 1024 per half are left out.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append(&mut self, stacks: &[Stack]) -> Result<(), Error> {
        let mut payload = Vec::new();
        let mut first = self.next;
        for stack in stacks {
            if BLOCK_BYTES < payload.len() + stack_bytes(stack) {
                self.write(&payload, first)?;
                payload.clear();
                first = self.next;
            }
            encode_stack(&mut payload, stack);
            self.next += 1;
        }
        self.write(&payload, first)
    }

    fn write(&mut self, payload: &[u8], first: u64) -> Result<(), Error> {
        if payload.is_empty() {
            return Ok(());
        }
        let count = u32::try_from(self.next - first).expect("a stack is at least 8 bytes");
        let header = BlockHeader {
            kind: STACKS,
            cpu: 0,
            count,
            payload: length(payload.len()),
            keys: [first, self.next - 1],
        };
        self.blocks.append(&header, payload)
    }
}

/// Reads the blocks of one CPU's spool.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    blocks: BlockReader,
    cpu: CpuId,
    packed: Vec<u8>,
}

impl SpoolReader {
    pub(crate) fn open(path: &Path, cpu: CpuId) -> Result<Self, Error> {
        Ok(Self { blocks: BlockReader::open(path)?, cpu, packed: Vec::new() })
    }

    /// Fills `records` with the next block; false at the end of what is readable.
    pub(crate) fn next(&mut self, records: &mut Vec<u8>) -> Result<bool, Error> {
        records.clear();
        let Some(header) = self.blocks.next(&mut self.packed)? else { return Ok(false) };
        if header.kind == SAMPLES_1 {
            return Err(Error::OlderSpool(self.blocks.path.clone()));
        }
        let good = header.kind == SAMPLES
            && header.cpu == self.cpu.0
            && header.count as usize <= BLOCK_RECORDS
            && unpack(&self.packed, header.count as usize, records).is_some()
            && keys_of(records) == Some(header.keys);
        if !good {
            self.blocks.reject(&header);
        }
        Ok(good)
    }

    /// Passes over all blocks: (samples, time of the last, bytes that are no whole block).
    pub(crate) fn survey(mut self) -> Result<Survey, Error> {
        let mut survey = Survey::default();
        let mut records = Vec::new();
        while self.next(&mut records)? {
            survey.samples += (records.len() / RECORD_SIZE) as u64;
            let last = records.as_chunks::<RECORD_SIZE>().0.last().map_or(0, |r| time_of(r).0);
            survey.last_ns = survey.last_ns.max(last);
        }
        survey.lost_bytes = self.lost_bytes();
        Ok(survey)
    }

    /// Bytes after the last readable block; meaningful once `next` returned false.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.blocks.lost_bytes()
    }
}

/// The samples of one CPU's spool. Holds one block.
#[derive(Debug)]
pub(crate) struct SpooledSamples {
    spool: SpoolReader,
    block: Vec<u8>,
    record: usize,
}

impl SpooledSamples {
    fn records(&self) -> &[[u8; RECORD_SIZE]] {
        self.block.as_chunks::<RECORD_SIZE>().0
    }
}

impl Source for SpooledSamples {
    type Item = Sample;

    fn advance(&mut self) -> Result<bool, Error> {
        self.record += 1;
        if self.record < self.records().len() {
            return Ok(true);
        }
        self.record = 0;
        self.spool.next(&mut self.block)
    }

    fn time(&self) -> u64 {
        time_of(&self.records()[self.record]).0
    }

    fn item(&self) -> Sample {
        decode(&self.records()[self.record], self.spool.cpu)
    }

    fn lost_bytes(&self) -> u64 {
        self.spool.lost_bytes()
    }
}

/// Opens the spools of a recording, by CPU.
pub(crate) fn open_spools(paths: &[(CpuId, PathBuf)]) -> Result<Vec<SpooledSamples>, Error> {
    let open = |(cpu, path): &(CpuId, PathBuf)| {
        let spool = SpoolReader::open(path, *cpu)?;
        Ok(SpooledSamples { spool, block: Vec::new(), record: 0 })
    };
    paths.iter().map(open).collect()
}

/// Times of the first and the last of some records.
fn keys_of(records: &[u8]) -> Option<[u64; 2]> {
    let (records, _) = records.as_chunks::<RECORD_SIZE>();
    records.first().zip(records.last()).map(|(first, last)| [time_of(first).0, time_of(last).0])
}

/// What a killed recording's spool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Survey {
    pub(crate) samples: u64,
    pub(crate) last_ns: u64,
    pub(crate) lost_bytes: u64,
}

/// Reads a spool of stacks, as far as it is whole.
pub(crate) fn read_stacks(path: &Path) -> Result<Vec<Stack>, Error> {
    let mut blocks = BlockReader::open(path)?;
    let mut payload = Vec::new();
    let mut stacks = Vec::new();
    while let Some(header) = blocks.next(&mut payload)? {
        let before = stacks.len();
        let expected = [before as u64, before as u64 + u64::from(header.count).saturating_sub(1)];
        let whole = header.kind == STACKS
            && header.keys == expected
            && decode_stacks(&payload, &mut stacks).is_some()
            && stacks.len() - before == header.count as usize;
        if !whole {
            stacks.truncate(before);
            break;
        }
    }
    Ok(stacks)
}

fn stack_bytes(stack: &Stack) -> usize {
    8 * (1 + stack.kernel.len().min(STACK_DEPTH) + stack.user.len().min(STACK_DEPTH))
}

fn encode_stack(payload: &mut Vec<u8>, stack: &Stack) {
    let half = |addresses: &[HostVirt]| length(addresses.len().min(STACK_DEPTH));
    payload.extend_from_slice(&half(&stack.kernel).to_le_bytes());
    payload.extend_from_slice(&half(&stack.user).to_le_bytes());
    let halves = stack.kernel.iter().take(STACK_DEPTH).chain(stack.user.iter().take(STACK_DEPTH));
    for address in halves {
        payload.extend_from_slice(&address.0.to_le_bytes());
    }
}

/// `None` when the bytes are no stacks.
fn decode_stacks(payload: &[u8], stacks: &mut Vec<Stack>) -> Option<()> {
    let (words, rest) = payload.as_chunks::<8>();
    rest.is_empty().then_some(())?;
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    while let Some(lengths) = words.next() {
        let mut half = |length: u64| -> Option<Vec<HostVirt>> {
            (0..length).map(|_| words.next().map(HostVirt)).collect()
        };
        let kernel = half(lengths & 0xffff_ffff)?;
        let user = half(lengths >> 32)?;
        stacks.push(Stack { kernel, user });
    }
    Some(())
}
