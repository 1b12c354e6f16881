//! The intervals of vCPUs as a Parquet table for other tools. No recording contains it.

use std::path::PathBuf;

use model::IntervalRow;

use crate::columns::{Micros, SLICE, TableWriter, Text, table};
use crate::error::Error;

const INTERVALS: &str = "intervals.parquet";

/// Writes the table.
pub struct IntervalsWriter {
    table: TableWriter<Intervals>,
    /// Rows of the next row group.
    rows: Vec<IntervalRow>,
}

impl std::fmt::Debug for IntervalsWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntervalsWriter").finish_non_exhaustive()
    }
}

impl IntervalsWriter {
    /// Replaces the file when it is finished.
    ///
    /// # Errors
    /// When the file can't be created.
    pub fn create(path: PathBuf) -> Result<Self, Error> {
        Ok(Self { table: TableWriter::create_file(path)?, rows: Vec::new() })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&mut self, row: IntervalRow) -> Result<(), Error> {
        self.rows.push(row);
        if SLICE <= self.rows.len() {
            self.table.write(&self.rows)?;
            self.rows.clear();
        }
        Ok(())
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.table.write(&self.rows)?;
        self.table.finish().map(drop)
    }
}

table! {
    Intervals of IntervalRow, sliced INTERVALS;
    write |number, interval|
    let time = &interval.time;
    let (code, thief) = (&time.code, time.thief_is.as_ref()); {
        from_ns: u64 = interval.from_ns,
        ns: u64 = time.ns,
        begin: Micros = Micros(interval.from_unix_us),
        vm: Text = time.vm.as_str().into(),
        vcpu: u32 = time.vcpu,
        state: Text = time.state.as_str().into(),
        process: Option<Text> = Text::from_text(code.process.as_deref()),
        pid: Option<u32> = code.pid,
        thread: Option<Text> = Text::from_text(code.thread.as_deref()),
        tid: Option<u32> = code.tid,
        function: Option<Text> = Text::from_text(code.function.as_deref()),
        module: Option<Text> = Text::from_text(code.module.as_deref()),
        build_id: Option<Text> = Text::from_text(code.build_id.as_deref()),
        exit_reason: Option<Text> = Text::from_text(time.exit_reason.as_deref()),
        thief: Option<Text> = Text::from_text(time.thief.as_deref()),
        thief_kind: Option<Text> = Text::from_text(thief.map(|thief| thief.kind.name())),
        thief_vm: Option<Text> = Text::from_text(time.thief_vm.as_deref()),
        thief_pid: Option<u32> = thief.and_then(|thief| thief.pid),
        samples: u64 = time.samples,
    }
    read |number, columns| Err("it is read by other tools only")
}

#[cfg(test)]
mod test {
    use super::*;
    use model::VcpuTimeRow;

    #[test]
    fn all_rows_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.parquet");
        let mut writer = IntervalsWriter::create(path.clone()).unwrap();
        let rows = SLICE as u64 + 3;
        for from_ns in 0..rows {
            let time = VcpuTimeRow { vm: "web".to_owned(), ns: 1, ..VcpuTimeRow::default() };
            writer.write(IntervalRow { from_ns, from_unix_us: 7, time }).unwrap();
        }
        assert!(!path.exists(), "half of it is never seen");
        writer.finish().unwrap();
        let file = std::fs::File::open(path).unwrap();
        let mut reader = parquet::file::metadata::ParquetMetaDataReader::new();
        reader.try_parse(&file).unwrap();
        let metadata = reader.finish().unwrap();
        assert_eq!(u64::try_from(metadata.file_metadata().num_rows()).unwrap(), rows);
        assert_eq!(metadata.num_row_groups(), 2);
    }
}
