//! Bytes of a file, and the numbers in them.

use std::io::{BufReader, ErrorKind, Read};

const BUFFER: usize = 256 << 10;
/// Memory for a record grows by this much, so that a length alone takes none.
const PIECE: usize = 64 << 10;

/// Why a record can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordError {
    /// The file ends in the middle of it.
    Cut,
    /// It is not in the format.
    Malformed,
    /// Its format has a version that is not known.
    Version(u16, u16),
    /// The system can't read on.
    Read(ErrorKind),
}

/// A file that is read from its beginning to its end.
pub(super) struct Input<'r>(BufReader<Box<dyn Read + Send + 'r>>);

impl<'r> Input<'r> {
    pub(super) fn new(reader: impl Read + Send + 'r) -> Self {
        Self(BufReader::with_capacity(BUFFER, Box::new(reader)))
    }

    /// Appends the first bytes of a record; `false`: the file is over.
    pub(super) fn begin(&mut self, n: usize, bytes: &mut Vec<u8>) -> Result<bool, RecordError> {
        match self.append(n, bytes)? {
            0 => Ok(false),
            read if read < n => Err(RecordError::Cut),
            _ => Ok(true),
        }
    }

    /// Appends more bytes of a record.
    pub(super) fn more(&mut self, n: usize, bytes: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.append(n, bytes)? < n { Err(RecordError::Cut) } else { Ok(()) }
    }

    fn append(&mut self, n: usize, bytes: &mut Vec<u8>) -> Result<usize, RecordError> {
        let mut n_read = 0;
        while n_read < n {
            let begin = bytes.len();
            bytes.resize(begin + (n - n_read).min(PIECE), 0);
            let read = match self.0.read(&mut bytes[begin..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
                other => other.map(Some).map_err(|error| RecordError::Read(error.kind())),
            };
            bytes.truncate(begin + read.ok().flatten().unwrap_or(0));
            match read? {
                Some(0) => break,
                Some(more) => n_read += more,
                None => {}
            }
        }
        Ok(n_read)
    }
}

/// Which byte of a number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

/// Fields of a record, one after the other. `None`: the record is too short.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'b> {
    bytes: &'b [u8],
    order: Order,
}

impl<'b> Fields<'b> {
    pub(super) fn new(bytes: &'b [u8], order: Order) -> Self {
        Self { bytes, order }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn rest(self) -> &'b [u8] {
        self.bytes
    }

    pub(super) fn bytes(&mut self, n: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(bytes)
    }

    /// Bytes that are followed by others up to a multiple of four.
    pub(super) fn padded(&mut self, n: usize) -> Option<&'b [u8]> {
        let bytes = self.bytes(n)?;
        let padding = n.next_multiple_of(4) - n;
        self.bytes = self.bytes.get(padding..).unwrap_or_default();
        Some(bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(match self.order {
            Order::Little => u16::from_le_bytes(self.array()?),
            Order::Big => u16::from_be_bytes(self.array()?),
        })
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(match self.order {
            Order::Little => u32::from_le_bytes(self.array()?),
            Order::Big => u32::from_be_bytes(self.array()?),
        })
    }

    /// A length or a number of something in memory.
    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(match self.order {
            Order::Little => u64::from_le_bytes(self.array()?),
            Order::Big => u64::from_be_bytes(self.array()?),
        })
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
}
