//! Tables of few bytes and many rows.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;

/// Rows that are written at a time.
const CHUNK: usize = 1 << 16;

/// A table with the columns of the one at `path`, whose rows are all the same. Texts have so many bytes.
pub(crate) fn table(path: &Path, rows: usize, text_bytes: usize) -> Vec<u8> {
    let honest = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let schema = honest.metadata().file_metadata().schema_descr();
    let mut writer = writer_like(&honest);
    let mut group = writer.next_row_group().unwrap();
    let mut columns = schema.columns().iter();
    while let Some(mut column) = group.next_column().unwrap() {
        let level = columns.next().unwrap().max_def_level();
        let text = ByteArray::from(vec![b'x'; text_bytes]);
        for first in (0..rows).step_by(CHUNK) {
            let n = CHUNK.min(rows - first);
            match column.untyped() {
                ColumnWriter::BoolColumnWriter(column) => write(column, false, n, level),
                ColumnWriter::Int32ColumnWriter(column) => write(column, 0, n, level),
                ColumnWriter::Int64ColumnWriter(column) => write(column, 0, n, level),
                ColumnWriter::DoubleColumnWriter(column) => write(column, 0.0, n, level),
                ColumnWriter::ByteArrayColumnWriter(column) => {
                    write(column, text.clone(), n, level);
                }
                _ => panic!("{} has a column of a kind that is not written", path.display()),
            }
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// Writes a table with the columns and facts of another.
pub(crate) fn writer_like(honest: &SerializedFileReader<File>) -> SerializedFileWriter<Vec<u8>> {
    let metadata = honest.metadata().file_metadata();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(metadata.key_value_metadata().cloned())
        .set_data_page_row_count_limit(1 << 22);
    let root = metadata.schema_descr().root_schema_ptr();
    SerializedFileWriter::new(Vec::new(), root, Arc::new(properties.build())).unwrap()
}

/// The same value again and again; of lists, lists of one.
fn write<T: DataType>(column: &mut ColumnWriterImpl<'_, T>, value: T::T, n: usize, level: i16) {
    let (values, levels) = (vec![value; n], vec![level; n]);
    column.write_batch(&values, Some(&levels), Some(&vec![0; n])).unwrap();
}
