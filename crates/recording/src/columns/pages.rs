//! The pages of a table's file, whose headers are looked at before the Parquet crate believes them: a page of a kilobyte
//! can unpack to 2 GB, a dictionary can claim any number of values.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::Budget;

/// Of one page, packed or not. The writer's have 1 MiB; beyond that, the longest texts of 1024 rows.
const MAX_PAGE: i64 = 64 << 20;
/// Of one dictionary. The writer's have 1 MiB.
const MAX_DICTIONARY_VALUES: i64 = 1 << 20;
/// Longer headers are not ours.
const MAX_HEADER: u64 = 4096;
/// Numbers of the encodings that `vmscope` writes, and what PLAIN dictionaries were called before. The others unpack
/// again.
const ENCODINGS: [i64; 5] = [0, 2, 3, 5, 8];

/// A row group that is being read.
pub(crate) struct RowGroup<'a> {
    pub(crate) file: &'a Arc<File>,
    pub(crate) metadata: &'a RowGroupMetaData,
    /// For unpacked pages of the whole file: row groups may claim the same ones.
    pub(crate) unpacked: &'a Budget,
}

impl RowGroup<'_> {
    pub(crate) fn rows(&self) -> usize {
        usize::try_from(self.metadata.num_rows()).unwrap_or(usize::MAX)
    }

    /// The pages of a column. `texts`: what those take that stay with their texts.
    pub(super) fn pages(
        &self,
        column: usize,
        texts: Option<&Budget>,
    ) -> Result<Box<dyn PageReader>> {
        let budgets = [Some(self.unpacked), texts].into_iter().flatten().cloned().collect();
        let pages = Pages { file: Arc::clone(self.file), budgets };
        let chunk = self.metadata.column(column);
        Ok(Box::new(SerializedPageReader::new(Arc::new(pages), chunk, self.rows(), None)?))
    }
}

#[derive(Clone)]
struct Pages {
    file: Arc<File>,
    budgets: Vec<Budget>,
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Pages {
    type T = HeaderReader;

    /// Nothing but the headers of pages is read this way where there is no index of pages.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(HeaderReader { pages: self.clone(), start, header: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.file.get_bytes(start, length)
    }
}

impl Pages {
    /// The bytes of a page's header, and some more.
    fn header(&self, start: u64) -> Result<Bytes> {
        let length = self.len().saturating_sub(start).min(MAX_HEADER);
        let bytes = self.file.get_bytes(start, usize::try_from(length)?)?;
        let mut header = Header::default();
        let damaged = || ParquetError::General("the header of a page is damaged".into());
        header.read(&mut &bytes[..]).ok_or_else(damaged)?;
        let unpacked = header.check()?;
        self.budgets.iter().try_for_each(|budget| budget.take(unpacked, 1))?;
        Ok(bytes)
    }
}

/// Where a page's header is, if one is read there: the Parquet crate asks for a reader of what it has looked at before,
/// too.
struct HeaderReader {
    pages: Pages,
    start: u64,
    header: Option<Cursor<Bytes>>,
}

impl Read for HeaderReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(header) = &mut self.header {
            return header.read(buffer);
        }
        let header = self.pages.header(self.start).map_err(io::Error::other)?;
        self.header.insert(Cursor::new(header)).read(buffer)
    }
}

/// What a page's header says of its size.
#[derive(Debug, Default)]
struct Header {
    unpacked: i64,
    packed: i64,
    encoding: i64,
    dictionary_values: i64,
}

/// Structs within structs.
const MAX_DEPTH: usize = 3;
const I32: u8 = 5;
const STRUCT: u8 = 12;

impl Header {
    /// Reads Thrift's compact encoding. `None`: it is none that a writer makes, or one that another reader may take for
    /// something else, such as the same field twice.
    fn read(&mut self, input: &mut &[u8]) -> Option<()> {
        self.read_struct(input, &mut Vec::with_capacity(MAX_DEPTH))
    }

    fn read_struct(&mut self, input: &mut &[u8], path: &mut Vec<u8>) -> Option<()> {
        let mut id = 0_u8;
        loop {
            let field = byte(input)?;
            if field == 0 {
                return Some(());
            }
            let (step, kind) = (field >> 4, field & 15);
            id = id.checked_add(step).filter(|_| 0 < step)?;
            path.push(id);
            match (path.as_slice(), kind) {
                ([1..=4], I32) | ([5, 1..=4] | [7, 1..=2] | [8, 1..=6], I32) => {
                    let value = varint(input)?;
                    // Zigzag: the lowest bit is the sign.
                    (value & 1 == 0).then_some(())?;
                    self.note(path, i64::try_from(value >> 1).ok()?);
                }
                ([5..=8] | [5, 5] | [8, 8], STRUCT) if path.len() < MAX_DEPTH => {
                    self.read_struct(input, path)?;
                }
                ([1..=8] | [5, 1..=5] | [7, 1..=2] | [8, 1..=6] | [8, 8], _) => return None,
                (_, 1 | 2) => {}
                (_, 4..=6) => drop(varint(input)?),
                (_, 8) => {
                    let length = usize::try_from(varint(input)?).ok()?;
                    input.split_off(..length)?;
                }
                _ => return None,
            }
            path.pop();
        }
    }

    fn note(&mut self, path: &[u8], value: i64) {
        match path {
            [2] => self.unpacked = value,
            [3] => self.packed = value,
            [7, 1] => self.dictionary_values = value,
            [5 | 7, 2] | [8, 4] => self.encoding = value,
            _ => {}
        }
    }

    /// How many bytes it unpacks to.
    fn check(&self) -> Result<usize> {
        let bytes = self.unpacked.max(self.packed);
        let too_large = if MAX_PAGE < bytes {
            format!("a page of {} MiB is too large", bytes >> 20)
        } else if MAX_DICTIONARY_VALUES < self.dictionary_values {
            format!("a dictionary of {} values is too large", self.dictionary_values)
        } else if !ENCODINGS.contains(&self.encoding) {
            format!("pages of encoding {} are not read", self.encoding)
        } else {
            return Ok(usize::try_from(bytes)?);
        };
        Err(ParquetError::General(too_large))
    }
}

fn byte(input: &mut &[u8]) -> Option<u8> {
    input.split_off_first().copied()
}

fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..56).step_by(7) {
        let byte = byte(input)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod test {
    use std::io::Write;

    use super::*;

    /// A field of a number.
    fn number(step: u8, value: i32) -> Vec<u8> {
        let (mut bytes, mut left) =
            (vec![step << 4 | I32], ((value << 1) ^ (value >> 31)).cast_unsigned());
        while 0x7f < left {
            bytes.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes
    }

    fn page(unpacked: i32, packed: i32, rest: &[u8]) -> Vec<u8> {
        [number(1, 0), number(1, unpacked), number(1, packed), rest.to_vec(), vec![0]].concat()
    }

    fn data(encoding: i32) -> Vec<u8> {
        let levels = [number(1, 3), number(1, 3)].concat();
        // With statistics: a text, a number, a boolean.
        let statistics = [&[0x18, 2][..], b"ab", &[0x26, 8, 0x11, 0]].concat();
        [vec![0x2c], number(1, 7), number(1, encoding), levels, vec![0x1c], statistics, vec![0]]
            .concat()
    }

    fn dictionary(values: i32) -> Vec<u8> {
        [vec![0x4c], number(1, values), number(1, 2), vec![0x11, 0]].concat()
    }

    fn check(header: &[u8], expected: std::result::Result<usize, &str>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(header).unwrap();
        let budget = Budget::new(1 << 20);
        let pages = Pages { file: Arc::new(file), budgets: vec![budget.clone()] };
        let mut first = [0];
        let found = pages.get_read(0).unwrap().read(&mut first).map(|n| {
            assert_eq!((n, first.first()), (1, header.first()));
            (1 << 20) - budget.left()
        });
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, expected) => panic!("{found:?}, {expected:?}"),
        }
    }

    #[test]
    fn headers_that_claim_too_much_are_refused() {
        check(&page(5000, 300, &data(0)), Ok(5000));
        check(&page(300, 5000, &data(8)), Ok(5000));
        check(&page(5000, 300, &dictionary(20)), Ok(5000));
        check(&page(i32::MAX, 300, &data(0)), Err("a page of 2047 MiB is too large"));
        check(&page(300, i32::MAX, &data(0)), Err("a page of 2047 MiB is too large"));
        check(&page(2 << 20, 300, &data(0)), Err("it takes more than 1 MiB of memory"));
        check(&page(20, 20, &dictionary(i32::MAX)), Err("2147483647 values is too large"));
        // Lengths that are packed again can claim any number, too.
        check(&page(20, 20, &data(6)), Err("encoding 6"));
    }

    /// A check that reads the file differently from the Parquet crate is useless.
    #[test]
    fn headers_that_can_be_read_in_two_ways_are_refused() {
        let damaged = Err("the header of a page is damaged");
        check(b"", damaged);
        check(&page(5000, 300, &data(0))[..12], damaged);
        check(&page(-1, 300, &data(0)), damaged);
        check(&page(5000, -1, &data(0)), damaged);
        // A field's number again, and written in full.
        let again = [&[5][..], &number(0, 2), &number(0, i32::MAX)].concat();
        check(&page(5000, 300, &again), damaged);
        // A size that is a text.
        check(&[number(1, 0), vec![0x18, 1, 0, 0]].concat(), damaged);
        // Longer than a number can be.
        check(&[&number(1, 0)[..], &[0x15], &[0x80; 11], &[0]].concat(), damaged);
        check(&page(5000, 300, &[0x2c; 200]), damaged);
    }
}
