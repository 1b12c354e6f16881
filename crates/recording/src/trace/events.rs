//! `events.parquet`: its columns, and how events become them and come back.
//!
//! A row group is a slice of time: at most `SLICE` events of all machines in time order. Where one CPU's events are not in
//! time order they are kept as they came.

use std::path::Path;

use model::TraceEvent;
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::row::{Row, name_of};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::slices::{GroupReader, GroupWriter, Kind, Optional, Schema, SliceReader, SliceWriter};

/// Events of one row group at most.
pub(super) const SLICE: usize = 1 << 16;

const TIME: &str = "time_ns";
const MACHINE: &str = "machine";
const CPU: &str = "cpu";
const KIND: &str = "kind";
const TID: &str = "tid";
const OTHER_TID: &str = "other_tid";
const DETAIL: &str = "detail";
const NAME: &str = "name";
const NUMBER: &str = "number";
const ADDRESS: &str = "address";
const STACK: &str = "stack";
const SECTOR: &str = "sector";
const BYTES: &str = "bytes";

/// The encodings are measured, see `docs/formats.md`.
const SCHEMA: Schema = Schema {
    name: "events",
    columns: &[
        ("required", Kind::U64, TIME),
        ("required", Kind::U32, MACHINE),
        ("required", Kind::U32, CPU),
        ("required", Kind::Text, KIND),
        ("optional", Kind::U32, TID),
        ("optional", Kind::U32, OTHER_TID),
        ("optional", Kind::Text, DETAIL),
        ("optional", Kind::Text, NAME),
        ("optional", Kind::U32, NUMBER),
        ("optional", Kind::U64, ADDRESS),
        ("optional", Kind::U32, STACK),
        ("optional", Kind::U64, SECTOR),
        ("optional", Kind::U32, BYTES),
    ],
    encodings: &[(TIME, Encoding::DELTA_BINARY_PACKED), (ADDRESS, Encoding::PLAIN)],
};

/// Writes slices of events, one row group each.
#[derive(Debug)]
pub(super) struct EventWriter {
    slices: SliceWriter,
}

impl EventWriter {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { slices: SliceWriter::create(path, &SCHEMA)? })
    }

    /// Appends a slice in time order, later than those before.
    pub(super) fn write(&mut self, slice: &[TraceEvent]) -> Result<(), Error> {
        let rows: Vec<_> = slice.iter().map(Row::of).collect();
        self.slices.write(&rows.iter().collect::<Vec<_>>(), write_columns)
    }

    /// Makes the file durable.
    pub(super) fn finish(self) -> Result<FileEntry, Error> {
        self.slices.finish()
    }
}

/// In the order of `SCHEMA`.
fn write_columns(group: &mut GroupWriter<'_, '_, Row<'static>>) -> Result<(), ParquetError> {
    group.u64(|row| row.time_ns)?;
    group.u32(|row| row.machine)?;
    group.u32(|row| row.cpu)?;
    group.text(|row| row.kind)?;
    group.optional_u32(|row| row.tid)?;
    group.optional_u32(|row| row.other_tid)?;
    group.optional_text(|row| row.detail)?;
    group.optional_string(|row| row.name.map(|name| name.text()))?;
    group.optional_u32(|row| row.number)?;
    group.optional_u64(|row| row.address)?;
    group.optional_u32(|row| row.stack)?;
    group.optional_u64(|row| row.sector)?;
    group.optional_u32(|row| row.bytes)
}

/// Reads `events.parquet` row group by row group.
#[derive(Debug)]
pub(super) struct EventReader {
    slices: SliceReader,
    columns: Columns,
    machines: usize,
}

impl EventReader {
    /// `machines`: how many there are to refer to.
    pub(super) fn open(path: &Path, machines: usize) -> Result<Self, Error> {
        Ok(Self { slices: SliceReader::open(path)?, columns: Columns::default(), machines })
    }

    /// Fills `batch` with the next slice; false at the end.
    pub(super) fn next_batch(&mut self, batch: &mut Vec<TraceEvent>) -> Result<bool, Error> {
        batch.clear();
        let Self { slices, columns, machines } = self;
        if !slices.next(|group| columns.read(group))? {
            return Ok(false);
        }
        batch.reserve(columns.time.len());
        for row in 0..columns.time.len() {
            let event = columns.row(row).and_then(|row| row.event());
            let event = event.ok_or_else(|| slices.damaged("an event that can't be"))?;
            if *machines <= event.machine.index() {
                return Err(slices.damaged("an event refers to a row that does not exist"));
            }
            batch.push(event);
        }
        Ok(true)
    }
}

/// The columns of one row group; the buffers are used again for the next.
#[derive(Debug, Default)]
struct Columns {
    time: Vec<i64>,
    machine: Vec<i32>,
    cpu: Vec<i32>,
    kind: Vec<ByteArray>,
    tid: Optional<i32>,
    other_tid: Optional<i32>,
    detail: Optional<ByteArray>,
    name: Optional<ByteArray>,
    number: Optional<i32>,
    address: Optional<i64>,
    stack: Optional<i32>,
    sector: Optional<i64>,
    bytes: Optional<i32>,
}

impl Columns {
    fn read(&mut self, group: &GroupReader<'_>) -> Result<(), ParquetError> {
        group.required::<Int64Type>(TIME, &mut self.time)?;
        group.required::<Int32Type>(MACHINE, &mut self.machine)?;
        group.required::<Int32Type>(CPU, &mut self.cpu)?;
        group.required::<ByteArrayType>(KIND, &mut self.kind)?;
        group.optional::<Int32Type>(TID, &mut self.tid)?;
        group.optional::<Int32Type>(OTHER_TID, &mut self.other_tid)?;
        group.optional::<ByteArrayType>(DETAIL, &mut self.detail)?;
        group.optional::<ByteArrayType>(NAME, &mut self.name)?;
        group.optional::<Int32Type>(NUMBER, &mut self.number)?;
        group.optional::<Int64Type>(ADDRESS, &mut self.address)?;
        group.optional::<Int32Type>(STACK, &mut self.stack)?;
        group.optional::<Int64Type>(SECTOR, &mut self.sector)?;
        group.optional::<Int32Type>(BYTES, &mut self.bytes)
    }

    /// `None` when a text is none.
    fn row(&self, row: usize) -> Option<Row<'_>> {
        let u32_at = |column: &Optional<i32>| column.get(row).map(|value| value.cast_unsigned());
        let u64_at = |column: &Optional<i64>| column.get(row).map(|value| value.cast_unsigned());
        Some(Row {
            time_ns: self.time[row].cast_unsigned(),
            machine: self.machine[row].cast_unsigned(),
            cpu: self.cpu[row].cast_unsigned(),
            kind: text(&self.kind[row])?,
            tid: u32_at(&self.tid),
            other_tid: u32_at(&self.other_tid),
            detail: present(self.detail.get(row).map(text))?,
            name: present(self.name.get(row).map(text))?.map(name_of),
            number: u32_at(&self.number),
            address: u64_at(&self.address),
            stack: u32_at(&self.stack),
            sector: u64_at(&self.sector),
            bytes: u32_at(&self.bytes),
        })
    }
}

fn text(bytes: &ByteArray) -> Option<&str> {
    std::str::from_utf8(bytes.data()).ok()
}

/// Nothing there is fine, something that is no text is not.
fn present(text: Option<Option<&str>>) -> Option<Option<&str>> {
    text.map_or(Some(None), |text| text.map(Some))
}
