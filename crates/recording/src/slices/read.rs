//! Row groups to slices of rows.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use crate::columns::{find_column, guarded, has_column};
use crate::error::Error;

/// Rows of one row group at most, whoever wrote it: bounds what is held at a time.
const MAX_SLICE: usize = 1 << 20;

/// Reads a table row group by row group.
pub(crate) struct SliceReader {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    next: usize,
}

impl SliceReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::io("read", path, source))?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        Ok(Self { path: path.to_owned(), reader, next: 0 })
    }

    /// Reads the next row group with `columns`; false at the end.
    pub(crate) fn next(
        &mut self,
        columns: impl FnOnce(&GroupReader<'_>) -> Result<(), ParquetError>,
    ) -> Result<bool, Error> {
        if self.next == self.reader.num_row_groups() {
            return Ok(false);
        }
        guarded(&self.path, || {
            let group = self.reader.get_row_group(self.next)?;
            let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
            if MAX_SLICE < rows {
                return Err(ParquetError::General("a row group is too large".into()));
            }
            columns(&GroupReader { file: &self.reader, group: group.as_ref(), rows })
        })?;
        self.next += 1;
        Ok(true)
    }

    pub(crate) fn damaged(&self, reason: &str) -> Error {
        Error::damaged(&self.path, reason)
    }
}

impl std::fmt::Debug for SliceReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SliceReader").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A column with absent values: the value where the level is 1.
#[derive(Debug, Default)]
pub(crate) struct Optional<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

#[cfg(test)]
impl<T: Default> Optional<T> {
    /// A column of one row.
    pub(crate) fn one(value: Option<T>) -> Self {
        Self { levels: vec![value.is_some().into()], values: vec![value.unwrap_or_default()] }
    }
}

impl<T: Clone + Default> Optional<T> {
    pub(crate) fn get(&self, row: usize) -> Option<&T> {
        (self.levels[row] == 1).then(|| &self.values[row])
    }

    /// Moves each value to its row.
    fn spread(&mut self) {
        let mut from = self.values.len();
        self.values.resize(self.levels.len(), T::default());
        for row in (0..self.levels.len()).rev() {
            if self.levels[row] == 1 {
                from -= 1;
                self.values.swap(row, from);
            }
        }
    }
}

/// A row group whose columns are read by name.
pub(crate) struct GroupReader<'a> {
    file: &'a SerializedFileReader<File>,
    group: &'a (dyn RowGroupReader + 'a),
    rows: usize,
}

impl GroupReader<'_> {
    pub(crate) fn required<D: DataType>(
        &self,
        name: &str,
        values: &mut Vec<D::T>,
    ) -> Result<(), ParquetError> {
        self.read::<D>(name, values, None)
    }

    pub(crate) fn optional<D: DataType>(
        &self,
        name: &str,
        column: &mut Optional<D::T>,
    ) -> Result<(), ParquetError> {
        self.read::<D>(name, &mut column.values, Some(&mut column.levels))?;
        let present = column.levels.iter().filter(|level| **level == 1).count();
        if present != column.values.len() {
            return Err(ParquetError::General(format!("column {name} lacks values")));
        }
        column.spread();
        Ok(())
    }

    /// A column that older files lack: all its values are then absent.
    pub(crate) fn added<D: DataType>(
        &self,
        name: &str,
        column: &mut Optional<D::T>,
    ) -> Result<(), ParquetError> {
        if has_column(self.file.metadata(), name) {
            return self.optional::<D>(name, column);
        }
        column.values.clear();
        column.levels.clear();
        column.levels.resize(self.rows, 0);
        column.spread();
        Ok(())
    }

    fn read<D: DataType>(
        &self,
        name: &str,
        values: &mut Vec<D::T>,
        mut levels: Option<&mut Vec<i16>>,
    ) -> Result<(), ParquetError> {
        values.clear();
        if let Some(levels) = &mut levels {
            levels.clear();
        }
        let shape = (i16::from(levels.is_some()), 0);
        let column = find_column::<D>(self.file.metadata(), name, shape)?;
        let mut reader = get_typed_column_reader::<D>(self.group.get_column_reader(column)?);
        let (rows, ..) = reader.read_records(self.rows, levels, None, values)?;
        if rows != self.rows {
            return Err(ParquetError::General(format!("column {name} lacks rows")));
        }
        Ok(())
    }
}

impl std::fmt::Debug for GroupReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupReader").field("rows", &self.rows).finish_non_exhaustive()
    }
}
