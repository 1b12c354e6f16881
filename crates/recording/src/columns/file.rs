//! Tables to and from Parquet files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::pages::RowGroup;
use super::{Budget, Column, Table, WHOLE_TABLES};
use crate::error::Error;
use crate::files::{self, DurableFile};
use crate::manifest::FileEntry;
use crate::schema::{ColumnSchema, TableSchema};

/// Rows of one row group of a sliced table at most.
pub(crate) const SLICE: usize = 1 << 16;
/// The same, whatever wrote it: bounds what is held at a time.
const MAX_SLICE: i64 = 1 << 20;
/// Rows of any table may be so many, however few bytes it has, and one more for each byte.
const FREE_ROWS: i64 = 1 << 20;
/// Bytes of a value in an unpacked page at most, with its level; texts are counted by themselves.
const MAX_VALUE: usize = 16;

/// Writes a table, slice by slice.
pub(crate) struct TableWriter<T> {
    path: PathBuf,
    writer: SerializedFileWriter<DurableFile>,
    columns: T,
    rows: u64,
}

impl<T: Table> TableWriter<T> {
    pub(crate) fn create(dir: &Path) -> Result<Self, Error> {
        Self::create_file(dir.join(T::SCHEMA.file))
    }

    /// The same under another name than the schema's.
    pub(crate) fn create_file(path: PathBuf) -> Result<Self, Error> {
        let file = DurableFile::create(&path)?;
        let writer = open(file, &T::SCHEMA).map_err(|error| Error::writing(&path, error))?;
        Ok(Self { path, writer, columns: T::default(), rows: 0 })
    }

    /// Appends rows as one row group.
    pub(crate) fn write<'a>(
        &mut self,
        rows: impl IntoIterator<Item = &'a T::Row>,
    ) -> Result<(), Error>
    where
        T::Row: 'a,
    {
        self.columns.columns().into_iter().for_each(Column::clear);
        let mut number = 0;
        for row in rows {
            self.columns.push(number, row);
            number = number.saturating_add(1);
        }
        self.rows += u64::from(number);
        self.write_group().map_err(|error| Error::writing(&self.path, error))
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in self.columns.columns() {
            let lacks = || ParquetError::General("the schema has fewer columns".into());
            let mut writer = group.next_column()?.ok_or_else(lacks)?;
            column.write(&mut writer)?;
            writer.close()?;
        }
        group.close().map(drop)
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        let file = self.writer.into_inner().map_err(|error| Error::writing(&self.path, error))?;
        Ok(FileEntry::new(self.rows, file.commit()?))
    }
}

/// The column that rows of long tables are ordered by.
const TIME: &str = "time_ns";

fn open(
    file: DurableFile,
    schema: &TableSchema,
) -> Result<SerializedFileWriter<DurableFile>, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("vmscope ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        // Least and greatest values of long tables serve searches by time, others nothing.
        .set_statistics_enabled(match schema.is_sliced {
            true => EnabledStatistics::None,
            false => EnabledStatistics::Chunk,
        })
        .set_offset_index_disabled(true);
    for column in schema.columns {
        let path = ColumnPath::from(column.name);
        if column.name == TIME {
            let chunk = EnabledStatistics::Chunk;
            properties = properties.set_column_statistics_enabled(path.clone(), chunk);
        }
        let Some(encoding) = column.encoding else { continue };
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, encoding);
    }
    let message = parse_message_type(&schema.message())?;
    SerializedFileWriter::new(file, Arc::new(message), Arc::new(properties.build()))
}

/// Writes a whole table.
pub(crate) fn write_table<'a, T: Table<Row: 'a>>(
    dir: &Path,
    rows: impl IntoIterator<Item = &'a T::Row>,
) -> Result<(&'static str, FileEntry), Error> {
    let mut writer = TableWriter::<T>::create(dir)?;
    writer.write(rows)?;
    Ok((T::SCHEMA.file, writer.finish()?))
}

/// Reads a table, row group by row group. Columns that it does not know are passed over.
pub(crate) struct TableReader<T> {
    path: PathBuf,
    file: Arc<File>,
    metadata: ParquetMetaData,
    /// For unpacked pages.
    unpacked: Budget,
    next: usize,
    columns: T,
    order: Vec<u32>,
}

impl<T: Table> TableReader<T> {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = files::open(path)?;
        let bytes = file.metadata().map_err(|source| Error::io("read", path, source))?.len();
        let metadata = guarded(path, || ParquetMetaDataReader::new().parse_and_finish(&file))?;
        let rows = metadata.row_groups().iter().map(|group| group.num_rows());
        // Row groups may claim the same bytes: reading would not end.
        let most = i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(FREE_ROWS);
        let rows = rows.fold(0, i64::saturating_add);
        if most < rows {
            return Err(Error::damaged(path, "it has more rows than its bytes can hold"));
        }
        let values = usize::try_from(rows).unwrap_or(0).saturating_mul(T::SCHEMA.columns.len());
        let unpacked = Budget::new(values.saturating_mul(MAX_VALUE).saturating_add(WHOLE_TABLES));
        let (path, file) = (path.to_owned(), Arc::new(file));
        let (columns, order) = (T::default(), Vec::new());
        Ok(Self { path, file, metadata, unpacked, next: 0, columns, order })
    }

    /// Fills `batch` with the next row group, in the order of the table's times; false at the end.
    pub(crate) fn next_batch(&mut self, batch: &mut Vec<T::Row>) -> Result<bool, Error> {
        batch.clear();
        self.append_group(batch, &Budget::of_row_group())
    }

    fn append_group(&mut self, rows: &mut Vec<T::Row>, budget: &Budget) -> Result<bool, Error> {
        let Self { path, file, metadata, unpacked, next, columns, order } = self;
        let Some(group) = metadata.row_groups().get(*next) else { return Ok(false) };
        let group = RowGroup { file, metadata: group, unpacked };
        let n_rows = guarded(path, || read_group(&group, columns, budget))?;
        *next += 1;
        order.clear();
        order.extend(0..n_rows);
        // Of a sample table the sort finds each thread's run and merges them.
        order.sort_by_key(|row| columns.time(*row as usize));
        rows.reserve(order.len());
        for row in order.iter() {
            let row = columns.row(*row);
            rows.push(row.map_err(|reason| Error::damaged(path, reason))?);
        }
        Ok(true)
    }
}

/// Reads a whole table.
pub(crate) fn read_table<T: Table>(path: &Path, budget: &Budget) -> Result<Vec<T::Row>, Error> {
    let mut reader = TableReader::<T>::open(path)?;
    let mut rows = Vec::new();
    while reader.append_group(&mut rows, budget)? {}
    Ok(rows)
}

/// Fills `columns` with a row group; how many rows it has.
fn read_group<T: Table>(
    group: &RowGroup<'_>,
    columns: &mut T,
    budget: &Budget,
) -> Result<u32, ParquetError> {
    let n_rows = group.metadata.num_rows();
    let too_large = || ParquetError::General("a row group is too large".into());
    let is_short = |rows: &u32| !T::SCHEMA.is_sliced || i64::from(*rows) <= MAX_SLICE;
    let n_rows = u32::try_from(n_rows).ok().filter(is_short).ok_or_else(too_large)?;
    budget.take(n_rows as usize, size_of::<T::Row>())?;
    for (schema, column) in T::SCHEMA.columns.iter().zip(columns.columns()) {
        let index = find_column(group, schema, column.physical_type())?;
        let named = |error| ParquetError::General(format!("column {}: {error}", schema.name));
        column.read(group, index, budget).map_err(named)?;
    }
    Ok(n_rows)
}

/// The number of a column in the file; `None`: a file from before there was such a column.
fn find_column(
    group: &RowGroup<'_>,
    schema: &ColumnSchema,
    physical: parquet::basic::Type,
) -> Result<Option<usize>, ParquetError> {
    let columns = group.metadata.columns();
    let is_it = |column: &ColumnChunkMetaData| {
        column.column_path().parts().first().is_some_and(|part| part == schema.name)
    };
    let Some(index) = columns.iter().position(is_it) else {
        let missing = ParquetError::General(format!("no column {}", schema.name));
        return if schema.is_added { Ok(None) } else { Err(missing) };
    };
    let found = columns[index].column_descr();
    let levels = (found.max_def_level(), found.max_rep_level());
    if (found.physical_type(), levels) != (physical, schema.levels()) {
        return Err(ParquetError::General(format!("column {} has another type", schema.name)));
    }
    Ok(Some(index))
}

/// Reads with the Parquet crate. Some corrupt bytes make it panic (in 60.1: a column chunk of negative
/// length, a page of indices without its dictionary): to a reader of recordings that is a damaged file
/// like any other.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    match catch_panic::catch_panic(read) {
        Some(result) => result.map_err(|error| Error::reading(path, &error)),
        None => Err(Error::damaged(path, "not even its structure can be followed")),
    }
}

impl<T> std::fmt::Debug for TableWriter<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for TableReader<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader").field("path", &self.path).finish_non_exhaustive()
    }
}
