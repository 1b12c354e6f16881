//! Blocks: what spools are made of.
//!
//! A spool is a row of blocks, each written by one `write(2)`:
//!
//! ```text
//!  0      4      8       12             16          24         32
//!  | kind | cpu  | count | payload len  | first key | last key | payload ... | !kind |
//! ```
//!
//! all little-endian. A block counts only when all of it is there, with its end mark, and its keys match
//! its payload: so the end of a killed writer's file, or the zeros a crashed machine leaves there, are
//! distinguished from data.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::{self, owners};

const HEADER: usize = 32;
const END: usize = 4;
/// Bytes of payload at most: bounds what a reader holds per CPU.
pub(crate) const BLOCK_BYTES: usize = 84 << 10;

/// What stands before a block's payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockHeader {
    pub(crate) kind: u32,
    pub(crate) cpu: u32,
    pub(crate) count: u32,
    pub(crate) payload: u32,
    pub(crate) keys: [u64; 2],
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

/// A spool that grows.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: File,
    pub(crate) path: PathBuf,
    length: u64,
    buffer: Vec<u8>,
}

impl BlockFile {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let file = owners().create_new(true).open(path);
        let file = file.map_err(|source| Error::io("create", path, source))?;
        Ok(Self { file, path: path.to_owned(), length: 0, buffer: Vec::new() })
    }

    /// The room for the next block's payload.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer = vec![0; HEADER + BLOCK_BYTES + END];
        }
        &mut self.buffer[HEADER..][..BLOCK_BYTES]
    }

    /// Appends a block to the file, with the first `payload` bytes of its room.
    pub(crate) fn append(
        &mut self,
        [kind, cpu, count]: [u32; 3],
        keys: [u64; 2],
        payload: usize,
    ) -> Result<(), Error> {
        let header = BlockHeader { kind, cpu, count, payload: length(payload), keys };
        let end = HEADER + payload;
        self.buffer[..HEADER].copy_from_slice(&header.encode());
        self.buffer[end..][..END].copy_from_slice(&(!kind).to_le_bytes());
        let block = &self.buffer[..end + END];
        if let Err(source) = self.file.write_all(block) {
            self.forget_half_a_block();
            return Err(Error::io("write", &self.path, source));
        }
        self.length += block.len() as u64;
        Ok(())
    }

    /// Should even this fail, readers stop at the half block and lose what follows.
    fn forget_half_a_block(&mut self) {
        let _ = self.file.set_len(self.length);
        let _ = self.file.seek(SeekFrom::Start(self.length));
    }
}

/// A spool's blocks, as far as they are whole.
#[derive(Debug)]
pub(crate) struct BlockReader {
    file: BufReader<File>,
    pub(crate) path: PathBuf,
    length: u64,
    /// Bytes of whole blocks read.
    good: u64,
    ended: bool,
}

impl BlockReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::io("read", path, source);
        let file = files::open(path)?;
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self {
            file: BufReader::new(file),
            path: path.to_owned(),
            length,
            good: 0,
            ended: false,
        })
    }

    /// Fills `payload` with the next block's; `None` at the end of what is whole.
    pub(crate) fn next(&mut self, payload: &mut Vec<u8>) -> Result<Option<BlockHeader>, Error> {
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
    pub(crate) fn reject(&mut self, header: &BlockHeader) {
        self.good -= (HEADER + END) as u64 + u64::from(header.payload);
        self.ended = true;
    }

    /// Bytes after the last whole block; meaningful at the end.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.length - self.good
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        match self.file.read_exact(bytes) {
            Err(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                Err(Error::io("read", &self.path, source))
            }
            // Shorter than a moment ago: it is truncated while we read.
            Err(_) => Err(Error::damaged(&self.path, "it shrank while it was read")),
            Ok(()) => Ok(()),
        }
    }
}

/// A length or number of things in a block.
pub(crate) fn length(length: usize) -> u32 {
    u32::try_from(length).expect("blocks are bounded by BLOCK_BYTES")
}
