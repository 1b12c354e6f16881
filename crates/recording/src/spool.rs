//! Raw spools: what the collector appends to while it samples, one file per CPU.
//!
//! A spool is a row of blocks, each written by one `write(2)`:
//!
//! ```text
//!  0      4      8       12             16          24         32
//!  | kind | cpu  | count | payload len  | first key | last key | payload ... | !kind |
//! ```
//!
//! all little-endian. Of samples the payload is `count` records and the keys are the times of the
//! first and the last; of stacks the keys are the ids of the first and the last. A block counts only
//! when all of it is there, with its end mark, and its keys match its payload: so the end of a killed
//! writer's file, or the zeros a crashed machine leaves there, are told from data.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use model::{CpuId, HostVirt, Stack};

use crate::abi::{RECORD_SIZE, time_of};
use crate::error::Error;

const SAMPLES: u32 = u32::from_le_bytes(*b"VSP1");
const STACKS: u32 = u32::from_le_bytes(*b"VST1");
const HEADER: usize = 32;
const END: usize = 4;
/// Records of one block at most: bounds what a reader holds per CPU.
const BLOCK_RECORDS: usize = 896;
/// Bytes of payload at most.
const BLOCK_BYTES: usize = BLOCK_RECORDS * RECORD_SIZE;
/// Addresses of one half of a stack at most.
const STACK_DEPTH: usize = 1024;

/// Takes the records of one CPU while sampling.
#[derive(Debug)]
pub struct Spool {
    blocks: BlockFile,
    cpu: CpuId,
}

impl Spool {
    pub(crate) fn create(path: &Path, cpu: CpuId) -> Result<Self, Error> {
        Ok(Self { blocks: BlockFile::create(path)?, cpu })
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
            let header = BlockHeader {
                kind: SAMPLES,
                cpu: self.cpu.0,
                count: length(block.len()),
                payload: length(block.as_flattened().len()),
                keys: [time_of(first).0, time_of(last).0],
            };
            self.blocks.append(&header, block.as_flattened())?;
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
}

impl SpoolReader {
    pub(crate) fn open(path: &Path, cpu: CpuId) -> Result<Self, Error> {
        Ok(Self { blocks: BlockReader::open(path)?, cpu })
    }

    pub(crate) fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Fills `records` with the next block; false at the end of what is readable.
    pub(crate) fn next(&mut self, records: &mut Vec<u8>) -> Result<bool, Error> {
        let Some(header) = self.blocks.next(records)? else { return Ok(false) };
        let good =
            header.kind == SAMPLES && header.cpu == self.cpu.0 && self.matches(&header, records);
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

    fn matches(&self, header: &BlockHeader, payload: &[u8]) -> bool {
        let (records, rest) = payload.as_chunks::<RECORD_SIZE>();
        let keys = records.first().zip(records.last()).map(|(a, b)| [time_of(a).0, time_of(b).0]);
        rest.is_empty() && records.len() == header.count as usize && keys == Some(header.keys)
    }
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

#[derive(Debug, Clone, Copy)]
struct BlockHeader {
    kind: u32,
    cpu: u32,
    count: u32,
    payload: u32,
    keys: [u64; 2],
}

impl BlockHeader {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        for (at, value) in [self.kind, self.cpu, self.count, self.payload].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.keys[0].to_le_bytes());
        bytes[24..].copy_from_slice(&self.keys[1].to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Self {
        let word = |at: usize| {
            let (words, _) = bytes.as_chunks::<4>();
            u32::from_le_bytes(words[at])
        };
        let key = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        Self {
            kind: word(0),
            cpu: word(1),
            count: word(2),
            payload: word(3),
            keys: [key(4), key(6)],
        }
    }
}

#[derive(Debug)]
struct BlockFile {
    file: File,
    path: PathBuf,
    length: u64,
    buffer: Vec<u8>,
}

impl BlockFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create_new(path).map_err(|source| Error::io("create", path, source))?;
        Ok(Self { file, path: path.to_owned(), length: 0, buffer: Vec::new() })
    }

    fn append(&mut self, header: &BlockHeader, payload: &[u8]) -> Result<(), Error> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&header.encode());
        self.buffer.extend_from_slice(payload);
        self.buffer.extend_from_slice(&(!header.kind).to_le_bytes());
        if let Err(source) = self.file.write_all(&self.buffer) {
            self.forget_half_a_block();
            return Err(Error::io("write", &self.path, source));
        }
        self.length += self.buffer.len() as u64;
        Ok(())
    }

    /// Should even this fail, readers stop at the half block and lose what follows.
    fn forget_half_a_block(&mut self) {
        let _ = self.file.set_len(self.length);
        let _ = self.file.seek(SeekFrom::Start(self.length));
    }
}

#[derive(Debug)]
struct BlockReader {
    file: BufReader<File>,
    path: PathBuf,
    length: u64,
    /// Bytes of whole blocks read.
    good: u64,
    ended: bool,
}

impl BlockReader {
    fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::io("read", path, source);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self {
            file: BufReader::new(file),
            path: path.to_owned(),
            length,
            good: 0,
            ended: false,
        })
    }

    fn next(&mut self, payload: &mut Vec<u8>) -> Result<Option<BlockHeader>, Error> {
        let left = self.length - self.good;
        if self.ended || left < HEADER as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        self.read(&mut bytes)?;
        let header = BlockHeader::decode(&bytes);
        let size = header.payload as usize;
        if BLOCK_BYTES < size || left < (HEADER + size + END) as u64 {
            self.ended = true;
            return Ok(None);
        }
        payload.resize(size, 0);
        self.read(payload)?;
        let mut end = [0; END];
        self.read(&mut end)?;
        if u32::from_le_bytes(end) != !header.kind {
            self.ended = true;
            return Ok(None);
        }
        self.good += (HEADER + size + END) as u64;
        Ok(Some(header))
    }

    /// What was read last is no block: the readable part ends before it.
    fn reject(&mut self, header: &BlockHeader) {
        self.good -= (HEADER + END) as u64 + u64::from(header.payload);
        self.ended = true;
    }

    fn lost_bytes(&self) -> u64 {
        self.length - self.good
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        match self.file.read_exact(bytes) {
            Err(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                Err(Error::io("read", &self.path, source))
            }
            // Shorter than a moment ago: somebody truncates it while we read.
            Err(_) => Err(Error::damaged(&self.path, "it shrank while it was read")),
            Ok(()) => Ok(()),
        }
    }
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("blocks are bounded by BLOCK_BYTES")
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
