//! Long tables on their way: from spools to files, and back from whichever there is.

use std::path::{Path, PathBuf};

use crate::columns::{SLICE, Table, TableReader, TableWriter};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::merge::Merge;
use crate::spool::{Codec, Place};

/// Where the rows of a long table are.
#[derive(Debug)]
pub(crate) enum Source {
    Table(PathBuf),
    Spools(Vec<(Place, PathBuf)>),
}

/// The rows of a long table in time order, batch by batch.
#[derive(Debug)]
pub(crate) enum Batches<T, C: Codec> {
    Table(Box<TableReader<T>>),
    Spools(Merge<C>),
}

impl<T: Table<Row = C::Item>, C: Codec> Batches<T, C> {
    pub(crate) fn open(source: &Source) -> Result<Self, Error> {
        Ok(match source {
            Source::Table(path) => Self::Table(Box::new(TableReader::open(path)?)),
            Source::Spools(spools) => Self::Spools(Merge::open(spools)?),
        })
    }

    /// Fills `batch` with the next rows; false at the end.
    pub(crate) fn next(&mut self, batch: &mut Vec<T::Row>) -> Result<bool, Error> {
        match self {
            Self::Table(reader) => reader.next_batch(batch),
            Self::Spools(merge) => merge.next_batch(SLICE, batch),
        }
    }
}

/// Turns spools into a table. `write` writes each slice, in time order; the other result is how many bytes of the spools
/// were lost.
pub(crate) fn convert<T: Table<Row = C::Item>, C: Codec>(
    dir: &Path,
    spools: &[(Place, PathBuf)],
    mut write: impl FnMut(&mut Vec<T::Row>, &mut TableWriter<T>) -> Result<(), Error>,
) -> Result<(FileEntry, u64), Error> {
    let mut merge = Merge::<C>::open(spools)?;
    let mut writer = TableWriter::create(dir)?;
    let mut slice = Vec::new();
    while merge.next_batch(SLICE, &mut slice)? {
        write(&mut slice, &mut writer)?;
    }
    Ok((writer.finish()?, merge.lost_bytes()))
}
