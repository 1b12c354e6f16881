//! Bytes of a hostile file: read on demand, never mapped, and only so many. A file that shrinks meanwhile, or is not
//! all in memory, is an error for what is missing.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ops::Range;

use object::ReadRef;

use crate::page_cache::CachedFile;

/// Most pieces that are kept of one file: headers, notes, names of sections.
const MAX_PIECES: usize = 4096;

/// Most bytes of all pieces that are kept of one file.
const MAX_KEPT_BYTES: u64 = 16 << 20;

/// Longer strings are cut.
const MAX_STRING_BYTES: usize = 4096;

/// Pages of a file are in memory, or are not.
const PAGE_BYTES: u64 = crate::memory::PAGE_BYTES;

/// Something that can be read at any place.
pub trait ReadAt {
    /// Fills `buffer` with the bytes at `at`; `None` if any of them can't be read.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()>;
    /// How many bytes there are.
    fn n_bytes(&self) -> u64;
}

impl ReadAt for &[u8] {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let start = usize::try_from(at).ok()?;
        buffer.copy_from_slice(self.get(start..start.checked_add(buffer.len())?)?);
        Some(())
    }

    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl ReadAt for CachedFile<'_> {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        self.read(at, buffer)
    }

    fn n_bytes(&self) -> u64 {
        self.size
    }
}

/// A file, and how much of it may still be read.
pub struct Bytes<'f> {
    file: &'f dyn ReadAt,
    n_bytes: u64,
    left: Cell<u64>,
    /// What the headers' reader refers to: a list that only grows.
    pieces: OnceCell<Box<Piece>>,
    kept: Cell<u64>,
}

struct Piece {
    bytes: Vec<u8>,
    next: OnceCell<Box<Piece>>,
}

/// Nothing more is read: the end of the file, or of what may be read of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoBytes;

impl<'f> Bytes<'f> {
    /// `limit`: how many bytes may be read, in all.
    #[must_use]
    pub fn new(file: &'f dyn ReadAt, limit: u64) -> Self {
        let n_bytes = file.n_bytes();
        let (left, kept) = (Cell::new(limit), Cell::new(0));
        Self { file, n_bytes, left, pieces: OnceCell::new(), kept }
    }

    /// How many bytes may still be read.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// The part of the file at `range`, as far as there is one.
    #[must_use]
    pub fn window(&self, (offset, size): (u64, u64)) -> Window<'_> {
        let offset = offset.min(self.n_bytes);
        Window { bytes: self, offset, size: size.min(self.n_bytes.saturating_sub(offset)) }
    }

    fn fill(&self, at: u64, buffer: &mut [u8]) -> Result<(), NoBytes> {
        let left = self.left.get().checked_sub(buffer.len() as u64).ok_or(NoBytes)?;
        self.left.set(left);
        self.file.read_at(at, buffer).ok_or(NoBytes)
    }

    fn keep(&self, bytes: Vec<u8>) -> Result<&[u8], NoBytes> {
        let mut slot = &self.pieces;
        for _ in 0..MAX_PIECES {
            match slot.get() {
                Some(piece) => slot = &piece.next,
                None => {
                    let piece = Box::new(Piece { bytes, next: OnceCell::new() });
                    return Ok(&slot.get_or_init(|| piece).bytes);
                }
            }
        }
        Err(NoBytes)
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Bytes").field("n_bytes", &self.n_bytes).field("left", &self.left).finish()
    }
}

impl Drop for Bytes<'_> {
    /// Piece by piece: the list's own way would need a stack as deep as the list is long.
    fn drop(&mut self) {
        let mut next = self.pieces.take();
        while let Some(mut piece) = next {
            next = piece.next.take();
        }
    }
}

/// How `object` reads headers.
impl<'a> ReadRef<'a> for &'a Bytes<'_> {
    fn len(self) -> Result<u64, ()> {
        Ok(self.n_bytes)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let kept = self.kept.get().saturating_add(size);
        let within = offset.checked_add(size).is_some_and(|end| end <= self.n_bytes);
        if !within || MAX_KEPT_BYTES < kept {
            return Err(());
        }
        self.kept.set(kept);
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| ())?];
        self.fill(offset, &mut bytes).map_err(|_| ())?;
        self.keep(bytes).map_err(|_| ())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let size = range.end.min(self.n_bytes).checked_sub(range.start).ok_or(())?;
        let bytes = self.read_bytes_at(range.start, size.min(64))?;
        let end = bytes.iter().position(|byte| *byte == delimiter).ok_or(())?;
        bytes.get(..end).ok_or(())
    }
}

/// A part of a file.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    bytes: &'a Bytes<'a>,
    offset: u64,
    /// How many bytes it has.
    pub size: u64,
}

impl Window<'_> {
    /// The `N` bytes at `at`.
    ///
    /// # Errors
    /// Some of them are not there.
    pub fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], NoBytes> {
        let mut array = [0; N];
        self.fill(at, &mut array)?;
        Ok(array)
    }

    /// Fills `buffer` with the bytes at `at`.
    ///
    /// # Errors
    /// Some of them are not there.
    pub fn fill(&self, at: u64, buffer: &mut [u8]) -> Result<(), NoBytes> {
        let end = at.checked_add(buffer.len() as u64).ok_or(NoBytes)?;
        let start = self.offset.checked_add(at).ok_or(NoBytes)?;
        if self.size < end { Err(NoBytes) } else { self.bytes.fill(start, buffer) }
    }

    /// All of it, if that is at most `limit` bytes.
    ///
    /// # Errors
    /// It has more, or not all of it is there.
    pub fn all(&self, limit: u64) -> Result<Vec<u8>, NoBytes> {
        if limit.min(self.bytes.left()) < self.size {
            return Err(NoBytes);
        }
        let mut bytes = vec![0; usize::try_from(self.size).map_err(|_| NoBytes)?];
        self.fill(0, &mut bytes)?;
        Ok(bytes)
    }

    /// All that is there of its first `limit` bytes.
    #[must_use]
    pub fn present(&self, limit: u64) -> Present {
        let wanted = self.size.min(limit).min(self.bytes.left());
        let mut bytes = vec![0; usize::try_from(wanted).unwrap_or_default()];
        let mut missing = Vec::new();
        if self.fill(0, &mut bytes).is_err() {
            let mut at = 0_usize;
            // Pages are those of the file.
            let mut rest = bytes.as_mut_slice();
            while !rest.is_empty() {
                let within = self.offset.wrapping_add(at as u64) % PAGE_BYTES;
                let in_page = usize::try_from(PAGE_BYTES.saturating_sub(within)).unwrap_or(1);
                let (page, more) = rest.split_at_mut(in_page.min(rest.len()));
                let end = at.saturating_add(page.len());
                if self.fill(at as u64, page).is_err() {
                    missing.push(at..end);
                }
                (at, rest) = (end, more);
            }
        }
        Present { is_cut: wanted < self.size, bytes, missing }
    }

    /// The string at `at`, up to its zero byte.
    ///
    /// # Errors
    /// Some of it is not there, or it does not end.
    pub fn string(&self, at: u64) -> Result<String, NoBytes> {
        let mut text: Vec<u8> = Vec::new();
        while text.len() < MAX_STRING_BYTES {
            let at = at.checked_add(text.len() as u64).ok_or(NoBytes)?;
            let left = self.size.checked_sub(at).filter(|left| 0 < *left).ok_or(NoBytes)?;
            // A page that is there may be followed by one that is not.
            let within = self.offset.wrapping_add(at) % PAGE_BYTES;
            let left = left.min(128).min(PAGE_BYTES.saturating_sub(within));
            let mut chunk = vec![0; usize::try_from(left).map_err(|_| NoBytes)?];
            self.fill(at, &mut chunk)?;
            let end = chunk.iter().position(|byte| *byte == 0);
            text.extend_from_slice(chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default());
            if end.is_some() {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// A part of a file in which pages may be missing.
#[derive(Debug)]
pub struct Present {
    bytes: Vec<u8>,
    /// By place.
    missing: Vec<Range<usize>>,
    /// There is more of it.
    is_cut: bool,
}

impl Present {
    /// Whether none is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && !self.is_cut
    }

    /// The pieces of `size` bytes each that are there.
    pub fn pieces(&self, size: usize) -> impl Iterator<Item = &[u8]> {
        let pieces = self.bytes.chunks_exact(size).zip((0..).step_by(size));
        pieces.filter(move |(_, at)| self.is_present(*at..at.saturating_add(size))).map(|it| it.0)
    }

    /// The string at `at`, without its zero byte.
    pub(super) fn string(&self, at: u64) -> Option<&[u8]> {
        let start = usize::try_from(at).ok()?;
        let rest = self.bytes.get(start..)?;
        let length = rest.iter().take(MAX_STRING_BYTES).position(|byte| *byte == 0)?;
        let end = start.checked_add(length)?;
        self.is_present(start..end.checked_add(1)?).then(|| rest.get(..length))?
    }

    /// All bytes; those of missing pages are 0.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether none of the bytes in this range is missing.
    #[must_use]
    pub fn is_present(&self, range: Range<usize>) -> bool {
        let next = self.missing.partition_point(|missing| missing.end <= range.start);
        self.missing.get(next).is_none_or(|missing| range.end <= missing.start)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn windows_end_where_they_end() {
        let file: &[u8] = b"0123abc\0tail";
        let bytes = Bytes::new(&file, 1000);
        let window = bytes.window((4, 6));
        assert_eq!(window.string(0).unwrap(), "abc");
        assert_eq!(window.string(1).unwrap(), "bc");
        assert_eq!(window.string(4), Err(NoBytes), "no zero byte within");
        assert_eq!(window.string(6), Err(NoBytes));
        assert_eq!(window.string(u64::MAX), Err(NoBytes));
        assert_eq!(window.array::<2>(4), Ok(*b"ta"));
        assert_eq!(window.array::<2>(5), Err(NoBytes));
        assert_eq!(bytes.window((u64::MAX, u64::MAX)).size, 0);
        assert_eq!(bytes.window((8, u64::MAX)).all(4).unwrap(), b"tail");
        assert_eq!(bytes.window((0, u64::MAX)).all(4), Err(NoBytes));
    }

    #[test]
    fn no_more_is_read_than_the_limit() {
        let file = vec![b'a'; 1 << 20];
        let file = file.as_slice();
        let bytes = Bytes::new(&file, 10_000);
        let window = bytes.window((0, 1 << 20));
        assert_eq!(window.string(0).unwrap().len(), MAX_STRING_BYTES);
        assert_eq!(bytes.left(), 10_000 - MAX_STRING_BYTES as u64);
        assert!(window.string(0).is_ok());
        assert_eq!(window.string(0), Err(NoBytes));
    }

    #[test]
    fn pieces_are_bounded() {
        let file = vec![0; 1 << 20];
        let file = file.as_slice();
        let bytes = Bytes::new(&file, u64::MAX);
        let n = (0..10_000).take_while(|at| (&bytes).read_bytes_at(*at, 1).is_ok()).count();
        assert_eq!(n, MAX_PIECES);
        let bytes = Bytes::new(&file, u64::MAX);
        let n = (0..10_000).take_while(|_| (&bytes).read_bytes_at(0, 1 << 20).is_ok()).count();
        assert_eq!(n, 16);
    }
}
