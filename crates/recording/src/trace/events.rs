//! `events.parquet`: its columns, and how events become them and come back.
//!
//! A row group is a slice of time: at most `SLICE` events of all machines in time order. Where one CPU's events are not in
//! time order they are kept as they came.

use model::{
    EventColumn, FieldSink, FieldSource, HostNs, MachineId, TaskName, TraceEvent, TraceEventTag,
};
use parquet::data_type::ByteArrayType;

use crate::columns::{Text, scalar, table};
use crate::files::EVENTS;

// The encodings are measured, see `docs/formats.md`.
table! {
    Events of TraceEvent, sliced EVENTS;
    write |number, event| {
        time_ns: HostNs [delta] = event.time,
        machine: MachineId = event.machine,
        cpu: u32 = event.cpu,
        kind: TraceEventTag = event.kind.tag(),
        tid: Option<u32> = None,
        other_tid: Option<u32> = None,
        detail: Option<Text> = None,
        name: Option<TaskName> = None,
        number: Option<u32> = None,
        address: Option<u64> [plain] = None,
        stack: Option<u32> = None,
        sector: Option<u64> = None,
        bytes: Option<u32> = None,
        user_stack: Option<u32> [added] = None,
    }
    then |columns| event.kind.put(columns);
    read |row, columns| {
        let kind = kind.take(&mut Fields { columns, row: row as usize }).ok_or("invalid event")?;
        Ok(TraceEvent { time: *time_ns, machine: *machine, cpu: *cpu, kind })
    }
}

scalar!(TaskName, ByteArrayType, Text, |name| name.text().into_bytes().into(), |name| {
    name.as_utf8().ok().map(name_of)
});

/// Puts a value into the last row.
fn set<T>(cells: &mut [Option<T>], value: T) {
    if let Some(cell) = cells.last_mut() {
        *cell = Some(value);
    }
}

impl FieldSink for Events {
    fn word(&mut self, index: usize, words: &'static [&'static str]) {
        if !words[index].is_empty() {
            set(&mut self.detail, Text::word(words[index]));
        }
    }

    fn presence(&mut self, _: EventColumn, _: bool) {}

    fn u32(&mut self, column: EventColumn, value: u32) {
        match column {
            EventColumn::Tid => set(&mut self.tid, value),
            EventColumn::OtherTid => set(&mut self.other_tid, value),
            EventColumn::Number => set(&mut self.number, value),
            EventColumn::Stack => set(&mut self.stack, value),
            EventColumn::UserStack => set(&mut self.user_stack, value),
            EventColumn::Bytes => set(&mut self.bytes, value),
            _ => {}
        }
    }

    fn u64(&mut self, column: EventColumn, value: u64) {
        match column {
            EventColumn::Address => set(&mut self.address, value),
            EventColumn::Sector => set(&mut self.sector, value),
            _ => {}
        }
    }

    fn name(&mut self, name: TaskName) {
        set(&mut self.name, name);
    }
}

/// The fields of one row.
#[derive(Debug)]
struct Fields<'a> {
    columns: &'a Events,
    row: usize,
}

impl FieldSource for Fields<'_> {
    fn word(&mut self, words: &'static [&'static str]) -> Option<usize> {
        let word = self.columns.detail[self.row].as_ref().map_or("", Text::as_str);
        words.iter().position(|known| *known == word)
    }

    fn presence(&mut self, column: EventColumn) -> Option<bool> {
        Some(self.u32(column).is_some())
    }

    fn u32(&mut self, column: EventColumn) -> Option<u32> {
        match column {
            EventColumn::Tid => self.columns.tid[self.row],
            EventColumn::OtherTid => self.columns.other_tid[self.row],
            EventColumn::Number => self.columns.number[self.row],
            EventColumn::Stack => self.columns.stack[self.row],
            EventColumn::UserStack => self.columns.user_stack[self.row],
            EventColumn::Bytes => self.columns.bytes[self.row],
            _ => None,
        }
    }

    fn u64(&mut self, column: EventColumn) -> Option<u64> {
        match column {
            EventColumn::Address => self.columns.address[self.row],
            EventColumn::Sector => self.columns.sector[self.row],
            _ => None,
        }
    }

    fn name(&mut self) -> Option<TaskName> {
        self.columns.name[self.row]
    }
}

/// A name from a column of text: at most 15 bytes of it, whole characters.
fn name_of(text: &str) -> TaskName {
    let end = (0..=15).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    TaskName::new(&text.as_bytes()[..end.min(text.len())])
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::columns::Table;

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
        kind: TraceEventTag,
        detail: Option<&str>,
        [tid, other_tid, number]: [Option<u32>; 3],
    ) -> Events {
        Events {
            time_ns: vec![HostNs(0)],
            machine: vec![MachineId(0)],
            cpu: vec![0],
            kind: vec![kind],
            tid: vec![tid],
            other_tid: vec![other_tid],
            detail: vec![Text::from_text(detail)],
            name: vec![None],
            number: vec![number],
            address: vec![None],
            stack: vec![None],
            user_stack: vec![None],
            sector: vec![None],
            bytes: vec![None],
        }
    }

    #[test]
    fn rows_that_lack_something_are_no_events() {
        let check = |kind: &str, detail: Option<&str>, numbers, is_event: bool| {
            let kind = TraceEventTag::from_name(kind).unwrap();
            let event = columns(kind, detail, numbers).row(0);
            assert_eq!(event.is_ok(), is_event, "{kind:?} {detail:?} {numbers:?}");
        };
        let (sleep, two) = (Some("sleep"), [Some(1), Some(2), None]);
        check("switch", sleep, two, true);
        check("switch", sleep, [None, Some(2), None], false);
        check("switch", sleep, [Some(1), None, None], false);
        check("switch", None, two, false);
        check("switch", Some("asleep"), two, false);
        check("syscall_exit", None, [Some(1), None, Some(65_535)], true);
        check("syscall_exit", None, [Some(1), None, Some(65_536)], false);
        check("syscall_exit", Some("perhaps"), [Some(1), None, Some(1)], false);
        check("interrupt_enter", Some("irq_work"), [None; 3], true);
        check("interrupt_enter", Some("device"), [None; 3], false);
        check("interrupt_enter", None, [None; 3], false);
    }
}
