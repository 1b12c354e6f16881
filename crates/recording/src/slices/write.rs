//! Slices of rows to row groups.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::Schema;
use crate::columns::properties;
use crate::error::Error;
use crate::files::DurableFile;
use crate::manifest::FileEntry;

/// Writes slices of rows, one row group each.
pub(crate) struct SliceWriter {
    path: PathBuf,
    writer: SerializedFileWriter<DurableFile>,
    rows: u64,
}

impl SliceWriter {
    pub(crate) fn create(path: &Path, schema: &Schema) -> Result<Self, Error> {
        let file = DurableFile::create(path)?;
        let writer = open(file, schema).map_err(|error| Error::writing(path, error))?;
        Ok(Self { path: path.to_owned(), writer, rows: 0 })
    }

    /// Appends a slice; `columns` writes its columns in the schema's order.
    pub(crate) fn write<T>(
        &mut self,
        rows: &[&T],
        columns: impl FnOnce(&mut GroupWriter<'_, '_, T>) -> Result<(), ParquetError>,
    ) -> Result<(), Error> {
        self.rows += rows.len() as u64;
        self.write_group(rows, columns).map_err(|error| Error::writing(&self.path, error))
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        let file = self.writer.into_inner().map_err(|error| Error::writing(&self.path, error))?;
        Ok(FileEntry::new(self.rows, file.commit()?))
    }

    fn write_group<T>(
        &mut self,
        rows: &[&T],
        columns: impl FnOnce(&mut GroupWriter<'_, '_, T>) -> Result<(), ParquetError>,
    ) -> Result<(), ParquetError> {
        let mut group = GroupWriter { group: self.writer.next_row_group()?, rows };
        columns(&mut group)?;
        group.group.close()?;
        Ok(())
    }
}

impl std::fmt::Debug for SliceWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SliceWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open(
    file: DurableFile,
    schema: &Schema,
) -> Result<SerializedFileWriter<DurableFile>, ParquetError> {
    let message = parse_message_type(&schema.message())?;
    SerializedFileWriter::new(file, Arc::new(message), Arc::new(slice_properties(schema)?))
}

fn slice_properties(schema: &Schema) -> Result<WriterProperties, ParquetError> {
    let mut properties = properties()?;
    for (name, encoding) in schema.encodings {
        let column = ColumnPath::from(*name);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, *encoding);
    }
    Ok(properties.build())
}

/// A row group that takes its columns one after the other.
pub(crate) struct GroupWriter<'a, 'b, T> {
    group: SerializedRowGroupWriter<'a, DurableFile>,
    rows: &'b [&'b T],
}

impl<T> GroupWriter<'_, '_, T> {
    pub(crate) fn u64(&mut self, value: impl Fn(&T) -> u64) -> Result<(), ParquetError> {
        let values: Vec<_> = self.rows.iter().map(|row| value(row).cast_signed()).collect();
        self.column::<Int64Type>(&values, None)
    }

    pub(crate) fn u32(&mut self, value: impl Fn(&T) -> u32) -> Result<(), ParquetError> {
        let values: Vec<_> = self.rows.iter().map(|row| value(row).cast_signed()).collect();
        self.column::<Int32Type>(&values, None)
    }

    pub(crate) fn bool(&mut self, value: impl Fn(&T) -> bool) -> Result<(), ParquetError> {
        let values: Vec<_> = self.rows.iter().map(|row| value(row)).collect();
        self.column::<BoolType>(&values, None)
    }

    pub(crate) fn text(&mut self, value: impl Fn(&T) -> &'static str) -> Result<(), ParquetError> {
        let mut words = Words::default();
        let values: Vec<_> = self.rows.iter().map(|row| words.get(value(row))).collect();
        self.column::<ByteArrayType>(&values, None)
    }

    pub(crate) fn optional_u64(
        &mut self,
        value: impl Fn(&T) -> Option<u64>,
    ) -> Result<(), ParquetError> {
        self.optional::<Int64Type>(|row| value(row).map(u64::cast_signed))
    }

    pub(crate) fn optional_u32(
        &mut self,
        value: impl Fn(&T) -> Option<u32>,
    ) -> Result<(), ParquetError> {
        self.optional::<Int32Type>(|row| value(row).map(u32::cast_signed))
    }

    pub(crate) fn optional_bool(
        &mut self,
        value: impl Fn(&T) -> Option<bool>,
    ) -> Result<(), ParquetError> {
        self.optional::<BoolType>(value)
    }

    pub(crate) fn optional_text(
        &mut self,
        value: impl Fn(&T) -> Option<&'static str>,
    ) -> Result<(), ParquetError> {
        let mut words = Words::default();
        self.optional::<ByteArrayType>(|row| value(row).map(|word| words.get(word)))
    }

    pub(crate) fn optional_string(
        &mut self,
        value: impl Fn(&T) -> Option<String>,
    ) -> Result<(), ParquetError> {
        self.optional::<ByteArrayType>(|row| value(row).map(|text| text.into_bytes().into()))
    }

    fn optional<D: DataType>(
        &mut self,
        mut value: impl FnMut(&T) -> Option<D::T>,
    ) -> Result<(), ParquetError> {
        let mut levels = Vec::with_capacity(self.rows.len());
        let values = self.rows.iter().map(|row| value(row));
        let present = values.inspect(|value| levels.push(i16::from(value.is_some()))).flatten();
        let values: Vec<_> = present.collect();
        self.column::<D>(&values, Some(&levels))
    }

    fn column<D: DataType>(
        &mut self,
        values: &[D::T],
        levels: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let mut column =
            self.group.next_column()?.ok_or_else(|| ParquetError::General("columns".into()))?;
        column.typed::<D>().write_batch(values, levels, None)?;
        column.close()
    }
}

/// The few texts of a column, each allocated once.
#[derive(Debug, Default)]
struct Words(Vec<(&'static str, ByteArray)>);

impl Words {
    fn get(&mut self, word: &'static str) -> ByteArray {
        if let Some((_, bytes)) = self.0.iter().find(|(known, _)| *known == word) {
            return bytes.clone();
        }
        let bytes = ByteArray::from(word);
        self.0.push((word, bytes.clone()));
        bytes
    }
}

impl<T> std::fmt::Debug for GroupWriter<'_, '_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupWriter").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}
