//! Checksums of a stored Parquet file, in the file itself.
//!
//! ```text
//!  data | MAGIC, CRC-32 of each 64 KiB of the data, CRC-32 of the tail, length of the data, MAGIC | footer, its length, PAR1
//!       '----------------------------------- the tail, which begins with the seal -----------------------------------------'
//! ```
//! The seal lies between the data and the footer, where readers of Parquet do not look: every engine reads a sealed file.
//! A reader of ranges can check each of them, the footer included, without reading the rest, and needs no second
//! object. Checksums of Parquet's own are of pages only: damage of the footer, of statistics or offsets would go unseen.
//!
//! Design constraints: eight changed bytes never make a sealed file one without a seal.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use crc32fast::Hasher;

/// Length of what has a checksum of its own.
pub const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCK_BYTES: usize = 1 << 16;

const MAGIC: [u8; 8] = *b"VMSCsum1";
/// Bytes of it that are enough to know it by.
const ENOUGH: usize = 4;
const END: [u8; 4] = *b"PAR1";
/// The footer's length, and the end.
const LAST: usize = 8;
/// Behind the blocks' checksums: the tail's, the data's length, the magic number.
const BEHIND: usize = 4 + 8 + MAGIC.len();

/// The checksums of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    data: u64,
    size: u64,
    blocks: Vec<u32>,
}

/// What the end of a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It has checksums, and its tail is as it was written.
    Sealed(Seal),
    /// It was written without.
    Unsealed,
    /// Bytes at its end that must be read.
    More(u64),
    /// It is not what was written.
    Damaged,
}

/// Seals a Parquet file.
///
/// # Errors
/// When it is none, or can't be read or written.
pub fn seal(file: &mut (impl Read + Write + Seek)) -> io::Result<()> {
    let no_parquet = || io::Error::new(io::ErrorKind::InvalidData, "the file is not Parquet");
    let size = file.seek(SeekFrom::End(0))?;
    let mut last = [0; LAST];
    file.seek(SeekFrom::Start(size.checked_sub(LAST as u64).ok_or_else(no_parquet)?))?;
    file.read_exact(&mut last)?;
    let footer = footer_length(&last).ok_or_else(no_parquet)?;
    let data = size.checked_sub(footer + LAST as u64).ok_or_else(no_parquet)?;
    file.seek(SeekFrom::Start(0))?;
    let mut tail = MAGIC.to_vec();
    let mut block = Vec::new();
    for start in (0..data).step_by(BLOCK_BYTES) {
        block.clear();
        Read::take(&mut *file, BLOCK.min(data - start)).read_to_end(&mut block)?;
        tail.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
    }
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    let end = [&data.to_le_bytes()[..], &MAGIC, &rest].concat();
    let sum = sum_of_tail(&tail, &end);
    tail.extend_from_slice(&sum.to_le_bytes());
    tail.extend_from_slice(&end);
    file.seek(SeekFrom::Start(data))?;
    file.write_all(&tail)
}

/// Whether a whole file is what was written; of one without a seal nothing is known.
#[must_use]
pub fn is_intact(file: &[u8]) -> bool {
    match Seal::find(file, file.len() as u64) {
        Found::Sealed(seal) => seal.is_intact(0, file),
        Found::Unsealed => true,
        Found::More(_) | Found::Damaged => false,
    }
}

fn footer_length(last: &[u8; LAST]) -> Option<u64> {
    let [a, b, c, d, end @ ..] = *last;
    (end == END).then_some(u32::from_le_bytes([a, b, c, d]).into())
}

fn sum_of_tail(before: &[u8], behind: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(before);
    hasher.update(behind);
    hasher.finalize()
}

fn is_magic(bytes: &[u8]) -> bool {
    ENOUGH <= bytes.iter().zip(MAGIC).filter(|(a, b)| **a == *b).count()
}

impl Seal {
    /// From the last bytes of a file of this size.
    #[must_use]
    pub fn find(end: &[u8], size: u64) -> Found {
        let all = end.len() as u64 == size;
        let Some(last) = end.last_chunk::<LAST>() else {
            return if all { Found::Damaged } else { Found::More(size.min(LAST as u64)) };
        };
        let footer = footer_length(last);
        let Some(data_end) = footer.and_then(|footer| size.checked_sub(footer + LAST as u64))
        else {
            return Found::Damaged;
        };
        // Where the footer begins in `end`.
        let behind = size - data_end;
        let needed = (behind + BEHIND as u64).min(size);
        if (end.len() as u64) < needed {
            return Found::More(needed);
        }
        let (before, _) = end.split_at(end.len() - usize::try_from(behind).unwrap_or(0));
        match before.last_chunk::<BEHIND>() {
            Some(fields) if is_magic(&fields[BEHIND - MAGIC.len()..]) => {
                Self::parse(end, size, data_end, fields)
            }
            // The footer's length may be what is wrong.
            _ if end.windows(MAGIC.len()).any(|bytes| bytes == MAGIC) => Found::Damaged,
            _ => Found::Unsealed,
        }
    }

    fn parse(end: &[u8], size: u64, footer_at: u64, fields: &[u8; BEHIND]) -> Found {
        let [a, b, c, d, rest @ ..] = *fields;
        let sum = u32::from_le_bytes([a, b, c, d]);
        let Some((data, _)) = rest.split_first_chunk::<8>() else { return Found::Damaged };
        let data = u64::from_le_bytes(*data);
        let n_blocks = data.div_ceil(BLOCK);
        let length = (MAGIC.len() + BEHIND) as u64 + 4 * n_blocks;
        if footer_at.checked_sub(length) != Some(data) {
            return Found::Damaged;
        }
        if (end.len() as u64) < size - data {
            return Found::More(size - data);
        }
        let tail = &end[end.len() - usize::try_from(size - data).unwrap_or(0)..];
        let sums_end = MAGIC.len() + 4 * usize::try_from(n_blocks).unwrap_or(0);
        let (before, behind) = tail.split_at(sums_end);
        if sum_of_tail(before, &behind[4..]) != sum {
            return Found::Damaged;
        }
        let (sums, _) = before[MAGIC.len()..].as_chunks::<4>();
        let blocks = sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        Found::Sealed(Self { data, size, blocks })
    }

    /// The file's size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The blocks, or the tail, that a range lies in: what must be read to check it.
    #[must_use]
    pub fn around(&self, range: &Range<u64>) -> Range<u64> {
        let start = if range.start < self.data { range.start / BLOCK * BLOCK } else { self.data };
        let end = if range.end <= self.data {
            range.end.next_multiple_of(BLOCK).min(self.data)
        } else {
            self.size
        };
        start..end
    }

    /// Whether these bytes of the file, as [`Seal::around`] says, are what was written.
    #[must_use]
    pub fn is_intact(&self, start: u64, bytes: &[u8]) -> bool {
        let of_data = usize::try_from(self.data.saturating_sub(start)).unwrap_or(usize::MAX);
        let (data, tail) = bytes.split_at(of_data.min(bytes.len()));
        let first = usize::try_from(start / BLOCK).unwrap_or(usize::MAX);
        let mut sums = self.blocks.iter().skip(first);
        let is_block = |block: &[u8]| sums.next() == Some(&crc32fast::hash(block));
        data.chunks(BLOCK_BYTES).all(is_block) && (tail.is_empty() || self.is_tail(tail))
    }

    fn is_tail(&self, tail: &[u8]) -> bool {
        Self::find(tail, self.size) == Found::Sealed(self.clone())
    }
}

#[cfg(test)]
mod test {
    use std::io::Cursor;

    use super::*;

    /// Bytes that end as a Parquet file does.
    fn file(data: usize, footer: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..data + footer as usize).map(|i| (i * i / 7) as u8).collect();
        bytes.extend_from_slice(&footer.to_le_bytes());
        bytes.extend_from_slice(&END);
        bytes
    }

    fn sealed(data: usize, footer: u32) -> Vec<u8> {
        let mut bytes = Cursor::new(file(data, footer));
        seal(&mut bytes).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn every_range_of_a_sealed_file_can_be_checked() {
        for (data, footer) in [(0, 9), (70, 300), (65_536, 20), (200_000, 70_000)] {
            let bytes = sealed(data, footer);
            let size = bytes.len() as u64;
            assert!(bytes.ends_with(&file(data, footer)[data..]));
            let mut end = 8;
            let seal = loop {
                match Seal::find(&bytes[bytes.len() - end..], size) {
                    Found::Sealed(seal) => break seal,
                    Found::More(more) => end = more as usize,
                    other => panic!("{other:?}"),
                }
            };
            for range in [0..1, 0..size, 60_000..70_000, size - 8..size] {
                let range = range.start.min(size)..range.end.min(size);
                let around = seal.around(&range);
                assert!(around.start <= range.start && range.end <= around.end);
                let part = &bytes[around.start as usize..around.end as usize];
                assert!(seal.is_intact(around.start, part), "{range:?} of {data}");
            }
        }
        assert!(is_intact(&file(70, 300)), "a file of before has no seal");
    }

    #[test]
    fn eight_changed_bytes_are_always_seen() {
        let whole = sealed(70_000, 300);
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        // Anywhere; one after the other; and all of them in the tail.
        for round in 0..6_000 {
            let mut bytes = whole.clone();
            let begin = if round % 3 == 2 { 70_000 } else { 0 };
            let first = begin + random() % (bytes.len() - begin - 8);
            for number in 0..8 {
                let at = match round % 3 {
                    1 => first + number,
                    _ => begin + random() % (bytes.len() - begin),
                };
                bytes[at] ^= (1 + random() % 255) as u8;
            }
            assert!(bytes == whole || !is_intact(&bytes), "round {round}");
        }
        for length in 0..whole.len() {
            assert!(!is_intact(&whole[..length]), "{length} bytes");
        }
    }

    #[test]
    fn what_is_no_parquet_is_not_sealed() {
        for bytes in [&b""[..], b"PAR1", b"\xff\xff\xff\xffPAR1", b"0123456789abcdef"] {
            assert!(seal(&mut Cursor::new(bytes.to_vec())).is_err());
        }
    }
}
