//! `events.parquet`: its columns, and how events become them and come back.
//!
//! A row group is a slice of time: at most `SLICE` events of all machines in time order. Where one CPU's events are not in
//! time order they are kept as they came.

use std::path::Path;

use model::{
    EventColumn, FieldSink, FieldSource, HostNs, MachineId, TaskName, TraceEvent, TraceEventTag,
};
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

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
        let rows: Vec<_> = slice.iter().map(RowCells::new).collect();
        self.slices.write(&rows.iter().collect::<Vec<_>>(), write_columns)
    }

    /// Makes the file durable.
    pub(super) fn finish(self) -> Result<FileEntry, Error> {
        self.slices.finish()
    }
}

/// In the order of `SCHEMA`.
fn write_columns(group: &mut GroupWriter<'_, '_, RowCells<'_>>) -> Result<(), ParquetError> {
    group.u64(|row| row.event.time.0)?;
    group.u32(|row| row.event.machine.0)?;
    group.u32(|row| row.event.cpu)?;
    group.text(|row| row.event.kind.name())?;
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

/// An event's fields, by column: its fields are visited once, not once per column.
#[derive(Debug)]
struct RowCells<'a> {
    event: &'a TraceEvent,
    tid: Option<u32>,
    other_tid: Option<u32>,
    detail: Option<&'static str>,
    name: Option<TaskName>,
    number: Option<u32>,
    address: Option<u64>,
    stack: Option<u32>,
    sector: Option<u64>,
    bytes: Option<u32>,
}

impl<'a> RowCells<'a> {
    fn new(event: &'a TraceEvent) -> Self {
        let mut cells = Self {
            event,
            tid: None,
            other_tid: None,
            detail: None,
            name: None,
            number: None,
            address: None,
            stack: None,
            sector: None,
            bytes: None,
        };
        event.kind.put(&mut cells);
        cells
    }
}

impl FieldSink for RowCells<'_> {
    fn word(&mut self, index: usize, words: &'static [&'static str]) {
        self.detail = Some(words[index]).filter(|word| !word.is_empty());
    }

    fn presence(&mut self, _: EventColumn, _: bool) {}

    fn u32(&mut self, column: EventColumn, value: u32) {
        match column {
            EventColumn::Tid => self.tid = Some(value),
            EventColumn::OtherTid => self.other_tid = Some(value),
            EventColumn::Number => self.number = Some(value),
            EventColumn::Stack => self.stack = Some(value),
            EventColumn::Bytes => self.bytes = Some(value),
            _ => {}
        }
    }

    fn u64(&mut self, column: EventColumn, value: u64) {
        match column {
            EventColumn::Address => self.address = Some(value),
            EventColumn::Sector => self.sector = Some(value),
            _ => {}
        }
    }

    fn name(&mut self, name: TaskName) {
        self.name = Some(name);
    }
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
            let event = columns.event(row);
            let event = event.ok_or_else(|| slices.damaged("invalid event"))?;
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

    /// `None` when a column is missing that events of this kind have, or has a value that they can't have.
    fn event(&self, row: usize) -> Option<TraceEvent> {
        let tag = TraceEventTag::from_name(text(&self.kind[row])?)?;
        Some(TraceEvent {
            time: HostNs(self.time[row].cast_unsigned()),
            machine: MachineId(self.machine[row].cast_unsigned()),
            cpu: self.cpu[row].cast_unsigned(),
            kind: tag.take(&mut RowFields { columns: self, row })?,
        })
    }

    fn u32s(&self, column: EventColumn) -> Option<&Optional<i32>> {
        match column {
            EventColumn::Tid => Some(&self.tid),
            EventColumn::OtherTid => Some(&self.other_tid),
            EventColumn::Number => Some(&self.number),
            EventColumn::Stack => Some(&self.stack),
            EventColumn::Bytes => Some(&self.bytes),
            _ => None,
        }
    }

    fn u64s(&self, column: EventColumn) -> Option<&Optional<i64>> {
        match column {
            EventColumn::Address => Some(&self.address),
            EventColumn::Sector => Some(&self.sector),
            _ => None,
        }
    }
}

/// The fields of one row.
#[derive(Debug)]
struct RowFields<'a> {
    columns: &'a Columns,
    row: usize,
}

impl FieldSource for RowFields<'_> {
    fn word(&mut self, words: &'static [&'static str]) -> Option<usize> {
        let word = self.columns.detail.get(self.row).map_or(Some(""), text)?;
        words.iter().position(|known| *known == word)
    }

    fn presence(&mut self, column: EventColumn) -> Option<bool> {
        Some(self.columns.u32s(column)?.get(self.row).is_some())
    }

    fn u32(&mut self, column: EventColumn) -> Option<u32> {
        self.columns.u32s(column)?.get(self.row).map(|value| value.cast_unsigned())
    }

    fn u64(&mut self, column: EventColumn) -> Option<u64> {
        self.columns.u64s(column)?.get(self.row).map(|value| value.cast_unsigned())
    }

    fn name(&mut self) -> Option<TaskName> {
        self.columns.name.get(self.row).and_then(text).map(name_of)
    }
}

fn text(bytes: &ByteArray) -> Option<&str> {
    std::str::from_utf8(bytes.data()).ok()
}

/// A name from a column of text: at most 15 bytes of it, whole characters.
fn name_of(text: &str) -> TaskName {
    let end = (0..=15).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    TaskName::new(&text.as_bytes()[..end.min(text.len())])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_cut_between_characters() {
        let check = |text: &str, name: &str| assert_eq!(name_of(text).text(), name);
        check("make", "make");
        check("", "");
        check("a-very-long-name", "a-very-long-nam");
        check("aaaaaaaaaaaaaa\u{fffd}", "aaaaaaaaaaaaaa");
        check("aaaaaaaaaaaa\u{fffd}", "aaaaaaaaaaaa\u{fffd}");
        check(&"\u{fffd}".repeat(15), &"\u{fffd}".repeat(5));
    }

    /// A row group of one row: its kind, words of `detail`, and numbers by column.
    fn columns(
        kind: &str,
        detail: Option<&str>,
        [tid, other_tid, number]: [Option<u32>; 3],
    ) -> Columns {
        let number_of = |value: Option<u32>| Optional::one(value.map(u32::cast_signed));
        Columns {
            time: vec![0],
            machine: vec![0],
            cpu: vec![0],
            kind: vec![kind.into()],
            tid: number_of(tid),
            other_tid: number_of(other_tid),
            detail: Optional::one(detail.map(ByteArray::from)),
            name: Optional::one(None),
            number: number_of(number),
            address: Optional::one(None),
            stack: number_of(None),
            sector: Optional::one(None),
            bytes: number_of(None),
        }
    }

    #[test]
    fn rows_that_lack_something_are_no_events() {
        let check = |kind: &str, detail: Option<&str>, numbers, is_event: bool| {
            let event = columns(kind, detail, numbers).event(0);
            assert_eq!(event.is_some(), is_event, "{kind} {detail:?} {numbers:?}");
        };
        let (sleep, two) = (Some("sleep"), [Some(1), Some(2), None]);
        check("switch", sleep, two, true);
        check("switch", sleep, [None, Some(2), None], false);
        check("switch", sleep, [Some(1), None, None], false);
        check("switch", None, two, false);
        check("switch", Some("asleep"), two, false);
        check("swap", sleep, two, false);
        check("syscall_exit", None, [Some(1), None, Some(65_535)], true);
        check("syscall_exit", None, [Some(1), None, Some(65_536)], false);
        check("syscall_exit", Some("perhaps"), [Some(1), None, Some(1)], false);
        check("interrupt_enter", Some("irq_work"), [None; 3], true);
        check("interrupt_enter", Some("device"), [None; 3], false);
        check("interrupt_enter", None, [None; 3], false);
    }
}
