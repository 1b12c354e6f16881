//! Columns of the small tables to and from Parquet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::error::Error;
use crate::files::{Digest, DurableFile};

/// Rows of one table at most: bounds what a small file can blow up to.
const MAX_ROWS: usize = 1 << 26;
/// Bytes of one column of text at most.
const MAX_TEXT: usize = 1 << 30;
const CHUNK: usize = 1 << 16;

/// One column with its values.
#[derive(Debug)]
pub(crate) struct Column {
    name: &'static str,
    shape: Shape,
    data: Data,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Required,
    Optional,
    List,
}

#[derive(Debug)]
enum Data {
    Bool(Vec<bool>),
    U32(Vec<i32>),
    U64(Vec<i64>),
    I64(Vec<i64>),
    Text(Vec<ByteArray>),
}

impl Column {
    pub(crate) fn bool(name: &'static str, values: impl Iterator<Item = bool>) -> Self {
        Self::required(name, Data::Bool(values.collect()))
    }

    pub(crate) fn u32(name: &'static str, values: impl Iterator<Item = u32>) -> Self {
        Self::required(name, Data::U32(values.map(u32::cast_signed).collect()))
    }

    pub(crate) fn u64(name: &'static str, values: impl Iterator<Item = u64>) -> Self {
        Self::required(name, Data::U64(values.map(u64::cast_signed).collect()))
    }

    pub(crate) fn text<'a>(name: &'static str, values: impl Iterator<Item = &'a str>) -> Self {
        Self::required(name, Data::Text(values.map(ByteArray::from).collect()))
    }

    pub(crate) fn optional_u32(
        name: &'static str,
        values: impl Iterator<Item = Option<u32>>,
    ) -> Self {
        Self::optional(name, values.map(|v| v.map(u32::cast_signed)), Data::U32)
    }

    pub(crate) fn optional_u64(
        name: &'static str,
        values: impl Iterator<Item = Option<u64>>,
    ) -> Self {
        Self::optional(name, values.map(|v| v.map(u64::cast_signed)), Data::U64)
    }

    pub(crate) fn optional_i64(
        name: &'static str,
        values: impl Iterator<Item = Option<i64>>,
    ) -> Self {
        Self::optional(name, values, Data::I64)
    }

    pub(crate) fn optional_text<'a>(
        name: &'static str,
        values: impl Iterator<Item = Option<&'a str>>,
    ) -> Self {
        Self::optional(name, values.map(|v| v.map(ByteArray::from)), Data::Text)
    }

    pub(crate) fn u64_list<'a>(name: &'static str, rows: impl Iterator<Item = &'a [u64]>) -> Self {
        Self::list(name, rows, |value| value.cast_signed(), Data::U64)
    }

    pub(crate) fn text_list<'a>(
        name: &'static str,
        rows: impl Iterator<Item = &'a [String]>,
    ) -> Self {
        Self::list(name, rows, |text| text.as_str().into(), Data::Text)
    }

    fn list<'a, T: 'a, U>(
        name: &'static str,
        rows: impl Iterator<Item = &'a [T]>,
        convert: fn(&T) -> U,
        data: fn(Vec<U>) -> Data,
    ) -> Self {
        let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            repetition.push(0);
            repetition.extend(std::iter::repeat_n(1, row.len().saturating_sub(1)));
            definition.extend(std::iter::repeat_n(i16::from(!row.is_empty()), row.len().max(1)));
            values.extend(row.iter().map(convert));
        }
        Self { name, shape: Shape::List, data: data(values), definition, repetition }
    }

    fn required(name: &'static str, data: Data) -> Self {
        let (definition, repetition) = (Vec::new(), Vec::new());
        Self { name, shape: Shape::Required, data, definition, repetition }
    }

    fn optional<T>(
        name: &'static str,
        values: impl Iterator<Item = Option<T>>,
        data: fn(Vec<T>) -> Data,
    ) -> Self {
        let mut definition = Vec::new();
        let present = values.inspect(|value| definition.push(i16::from(value.is_some()))).flatten();
        let data = data(present.collect());
        Self { name, shape: Shape::Optional, data, definition, repetition: Vec::new() }
    }

    fn rows(&self) -> usize {
        match (self.shape, &self.data) {
            (Shape::Optional, _) => self.definition.len(),
            (Shape::List, _) => self.repetition.iter().filter(|level| **level == 0).count(),
            (Shape::Required, Data::Bool(values)) => values.len(),
            (Shape::Required, Data::U32(values)) => values.len(),
            (Shape::Required, Data::U64(values) | Data::I64(values)) => values.len(),
            (Shape::Required, Data::Text(values)) => values.len(),
        }
    }

    fn schema(&self) -> String {
        let kind = match &self.data {
            Data::Bool(_) => "",
            Data::U32(_) => "(INTEGER(32,false))",
            Data::U64(_) => "(INTEGER(64,false))",
            Data::I64(_) => "(INTEGER(64,true))",
            Data::Text(_) => "(STRING)",
        };
        let physical = match &self.data {
            Data::Bool(_) => "boolean",
            Data::U32(_) => "int32",
            Data::U64(_) | Data::I64(_) => "int64",
            Data::Text(_) => "binary",
        };
        let name = self.name;
        match self.shape {
            Shape::Required => format!("required {physical} {name} {kind};"),
            Shape::Optional => format!("optional {physical} {name} {kind};"),
            Shape::List => format!(
                "required group {name} (LIST) {{ repeated group list {{ \
                 required {physical} element {kind}; }} }}"
            ),
        }
    }

    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let definition = (self.shape != Shape::Required).then_some(self.definition.as_slice());
        let repetition = (self.shape == Shape::List).then_some(self.repetition.as_slice());
        match &self.data {
            Data::Bool(values) => {
                writer.typed::<BoolType>().write_batch(values, definition, repetition)?
            }
            Data::U32(values) => {
                writer.typed::<Int32Type>().write_batch(values, definition, repetition)?
            }
            Data::U64(values) | Data::I64(values) => {
                writer.typed::<Int64Type>().write_batch(values, definition, repetition)?
            }
            Data::Text(values) => {
                writer.typed::<ByteArrayType>().write_batch(values, definition, repetition)?
            }
        };
        Ok(())
    }
}

/// What every file of a recording is written with.
pub(crate) fn properties() -> Result<WriterPropertiesBuilder, ParquetError> {
    Ok(WriterProperties::builder()
        .set_created_by(concat!("vmscope ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true))
}

/// Writes a table: its digest and its number of rows.
pub(crate) fn write_table(path: &Path, columns: &[Column]) -> Result<(Digest, u64), Error> {
    let file = DurableFile::create(path)?;
    let file = write_columns(file, columns).map_err(|error| Error::writing(path, error))?;
    let rows = columns.first().map_or(0, Column::rows);
    Ok((file.commit()?, rows as u64))
}

fn write_columns(file: DurableFile, columns: &[Column]) -> Result<DurableFile, ParquetError> {
    let fields: String = columns.iter().map(Column::schema).collect();
    let schema = parse_message_type(&format!("message table {{ {fields} }}"))?;
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties()?.build()))?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        let mut out =
            group.next_column()?.ok_or_else(|| ParquetError::General("columns".into()))?;
        column.write(&mut out)?;
        out.close()?;
    }
    group.close()?;
    writer.into_inner()
}

/// A table's file, open for reading columns by name. Columns nobody asks for are passed over.
pub(crate) struct TableReader {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    rows: usize,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TableReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::io("read", path, source))?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        let rows = count_rows(reader.metadata())
            .filter(|rows| *rows <= MAX_ROWS)
            .ok_or_else(|| Error::damaged(path, "its number of rows can't be"))?;
        Ok(Self { path: path.to_owned(), reader, rows })
    }

    pub(crate) fn damaged(&self, reason: &str) -> Error {
        Error::damaged(&self.path, reason)
    }

    /// Whether there is a column of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        has_column(self.reader.metadata(), name)
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Vec<bool>, Error> {
        Ok(self.read::<BoolType>(name, Shape::Required)?.values)
    }

    pub(crate) fn u32(&self, name: &str) -> Result<Vec<u32>, Error> {
        let raw = self.read::<Int32Type>(name, Shape::Required)?;
        Ok(raw.values.into_iter().map(i32::cast_unsigned).collect())
    }

    pub(crate) fn u64(&self, name: &str) -> Result<Vec<u64>, Error> {
        let raw = self.read::<Int64Type>(name, Shape::Required)?;
        Ok(raw.values.into_iter().map(i64::cast_unsigned).collect())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Vec<String>, Error> {
        let raw = self.read::<ByteArrayType>(name, Shape::Required)?;
        self.strings(raw.values)
    }

    pub(crate) fn optional_u32(&self, name: &str) -> Result<Vec<Option<u32>>, Error> {
        let raw = self.read::<Int32Type>(name, Shape::Optional)?;
        Ok(raw.spread(i32::cast_unsigned))
    }

    pub(crate) fn optional_u64(&self, name: &str) -> Result<Vec<Option<u64>>, Error> {
        let raw = self.read::<Int64Type>(name, Shape::Optional)?;
        Ok(raw.spread(i64::cast_unsigned))
    }

    pub(crate) fn optional_i64(&self, name: &str) -> Result<Vec<Option<i64>>, Error> {
        Ok(self.read::<Int64Type>(name, Shape::Optional)?.spread(|value| value))
    }

    pub(crate) fn optional_text(&self, name: &str) -> Result<Vec<Option<String>>, Error> {
        let Raw { values, definition, repetition } =
            self.read::<ByteArrayType>(name, Shape::Optional)?;
        let values = self.strings(values)?;
        Ok(Raw { values, definition, repetition }.spread(|value| value))
    }

    pub(crate) fn u64_list(&self, name: &str) -> Result<Vec<Vec<u64>>, Error> {
        let raw = self.read::<Int64Type>(name, Shape::List)?;
        self.lists(raw.spread_lists(i64::cast_unsigned))
    }

    pub(crate) fn text_list(&self, name: &str) -> Result<Vec<Vec<String>>, Error> {
        let Raw { values, definition, repetition } =
            self.read::<ByteArrayType>(name, Shape::List)?;
        let values = self.strings(values)?;
        self.lists(Raw { values, definition, repetition }.spread_lists(|value| value))
    }

    fn lists<T>(&self, lists: Option<Vec<Vec<T>>>) -> Result<Vec<Vec<T>>, Error> {
        lists.ok_or_else(|| self.damaged("a list without a row"))
    }

    fn strings(&self, values: Vec<ByteArray>) -> Result<Vec<String>, Error> {
        let total: usize = values.iter().map(ByteArray::len).sum();
        if MAX_TEXT < total {
            return Err(self.damaged("its text is too large"));
        }
        let text = |value: ByteArray| value.as_utf8().map(str::to_owned);
        let strings: Result<_, ParquetError> = values.into_iter().map(text).collect();
        strings.map_err(|error| Error::reading(&self.path, &error))
    }

    fn read<T: DataType>(&self, name: &str, shape: Shape) -> Result<Raw<T::T>, Error> {
        let raw = guarded(&self.path, || self.read_column::<T>(name, shape))?;
        let rows = match shape {
            Shape::Required => raw.values.len(),
            Shape::Optional => raw.definition.len(),
            Shape::List => raw.repetition.iter().filter(|level| **level == 0).count(),
        };
        let present = raw.definition.iter().filter(|level| **level == 1).count();
        if rows != self.rows || (shape != Shape::Required && present != raw.values.len()) {
            return Err(self.damaged(&format!("column {name} has not the table's number of rows")));
        }
        Ok(raw)
    }

    fn read_column<T: DataType>(
        &self,
        name: &str,
        shape: Shape,
    ) -> Result<Raw<T::T>, ParquetError> {
        let column = find_column::<T>(self.reader.metadata(), name, shape.levels())?;
        let mut raw = Raw { values: Vec::new(), definition: Vec::new(), repetition: Vec::new() };
        for idx in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(idx)?;
            let mut reader = get_typed_column_reader::<T>(group.get_column_reader(column)?);
            let (definition, repetition) = (&mut raw.definition, &mut raw.repetition);
            while let (1.., ..) =
                reader.read_records(CHUNK, Some(definition), Some(repetition), &mut raw.values)?
            {
                if MAX_ROWS < raw.values.len().max(definition.len()) {
                    return Err(ParquetError::General(format!("column {name} is too large")));
                }
            }
        }
        Ok(raw)
    }
}

/// What a column reader gives: the values that are there, and the levels that place them.
struct Raw<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<T> Raw<T> {
    fn spread<U>(self, convert: impl Fn(T) -> U) -> Vec<Option<U>> {
        let mut values = self.values.into_iter();
        let row = |level| if level == 1 { values.next() } else { None };
        self.definition.into_iter().map(row).map(|value| value.map(&convert)).collect()
    }

    /// `None` when a value is in no row.
    fn spread_lists<U>(self, convert: impl Fn(T) -> U) -> Option<Vec<Vec<U>>> {
        let mut values = self.values.into_iter().map(convert);
        let mut rows: Vec<Vec<U>> = Vec::new();
        for (definition, repetition) in self.definition.into_iter().zip(self.repetition) {
            if repetition == 0 {
                rows.push(Vec::new());
            }
            let row = rows.last_mut()?;
            if definition == 1 {
                row.extend(values.next());
            }
        }
        Some(rows)
    }
}

impl Shape {
    /// Highest definition and repetition level.
    fn levels(self) -> (i16, i16) {
        match self {
            Self::Required => (0, 0),
            Self::Optional => (1, 0),
            Self::List => (1, 1),
        }
    }
}

/// The rows of all row groups; `None` when that is no number.
pub(crate) fn count_rows(metadata: &ParquetMetaData) -> Option<usize> {
    metadata
        .row_groups()
        .iter()
        .try_fold(0_usize, |sum, group| sum.checked_add(usize::try_from(group.num_rows()).ok()?))
}

/// The index of a column, when it has the expected type and (definition, repetition) levels.
pub(crate) fn find_column<T: DataType>(
    metadata: &ParquetMetaData,
    name: &str,
    levels: (i16, i16),
) -> Result<usize, ParquetError> {
    let column = position(metadata, name)
        .ok_or_else(|| ParquetError::General(format!("no column {name}")))?;
    let columns = metadata.file_metadata().schema_descr().columns();
    let found = &columns[column];
    let expected = (T::get_physical_type(), levels);
    if (found.physical_type(), (found.max_def_level(), found.max_rep_level())) != expected {
        return Err(ParquetError::General(format!("column {name} has another type")));
    }
    Ok(column)
}

/// Whether a file has a column of this name, of whatever type.
pub(crate) fn has_column(metadata: &ParquetMetaData, name: &str) -> bool {
    position(metadata, name).is_some()
}

fn position(metadata: &ParquetMetaData, name: &str) -> Option<usize> {
    let mut columns = metadata.file_metadata().schema_descr().columns().iter();
    columns.position(|column| column.path().parts().first().is_some_and(|part| part == name))
}

/// Reads with the Parquet crate. Some corrupt bytes make it panic (in 60.1: a column chunk of negative
/// length, a page of indices without its dictionary): to a reader of recordings that is a damaged file
/// like any other.
pub(crate) fn guarded<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, Error> {
    match catch_panic::catch_panic(read) {
        Some(result) => result.map_err(|error| Error::reading(path, &error)),
        None => Err(Error::damaged(path, "not even its structure can be followed")),
    }
}
