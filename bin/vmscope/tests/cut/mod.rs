//! Tables that are cut short.

use std::fs::File;
use std::path::Path;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::DataType;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::amplified::writer_like;

/// The table at `path` without its last rows: `keep` says how many of the rows to keep.
pub(crate) fn table(path: &Path, keep: impl FnOnce(usize) -> usize) -> Vec<u8> {
    let honest = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = honest.metadata().file_metadata().num_rows();
    let mut left = keep(usize::try_from(rows).unwrap());
    let mut writer = writer_like(&honest);
    for number in 0..honest.num_row_groups() {
        let from = honest.get_row_group(number).unwrap();
        let rows = left.min(usize::try_from(from.metadata().num_rows()).unwrap());
        left -= rows;
        let mut group = writer.next_row_group().unwrap();
        let mut columns = 0..;
        while let Some(mut column) = group.next_column().unwrap() {
            let reader = from.get_column_reader(columns.next().unwrap()).unwrap();
            match (reader, column.untyped()) {
                (ColumnReader::BoolColumnReader(from), ColumnWriter::BoolColumnWriter(to)) => {
                    copy(from, to, rows);
                }
                (ColumnReader::Int32ColumnReader(from), ColumnWriter::Int32ColumnWriter(to)) => {
                    copy(from, to, rows);
                }
                (ColumnReader::Int64ColumnReader(from), ColumnWriter::Int64ColumnWriter(to)) => {
                    copy(from, to, rows);
                }
                (ColumnReader::DoubleColumnReader(from), ColumnWriter::DoubleColumnWriter(to)) => {
                    copy(from, to, rows);
                }
                (
                    ColumnReader::ByteArrayColumnReader(from),
                    ColumnWriter::ByteArrayColumnWriter(to),
                ) => copy(from, to, rows),
                _ => panic!("{} has a column of a kind that is not written", path.display()),
            }
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// The first rows of a column.
fn copy<T: DataType>(mut from: ColumnReaderImpl<T>, to: &mut ColumnWriterImpl<'_, T>, rows: usize) {
    let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let more =
            from.read_records(rows - read, Some(&mut defined), Some(&mut repeated), &mut values);
        let (records, ..) = more.unwrap();
        assert!(0 < records, "the column is as long as the table");
        read += records;
    }
    // Columns that always have one value have no levels.
    let levels = |levels: &[i16]| (!levels.is_empty()).then(|| levels.to_vec());
    let (defined, repeated) = (levels(&defined), levels(&repeated));
    to.write_batch(&values, defined.as_deref(), repeated.as_deref()).unwrap();
}
