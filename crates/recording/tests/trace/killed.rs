//! A writer that is killed, at any point.

use std::fs;
use std::path::Path;

use model::{HostNs, Machine, MachineId, TraceEvent, TraceTables};
use recording::trace::{Trace, TraceHeader};

use crate::common::folders::{copy_files, copy_into, half_finished, tear_last_block};
use crate::common::traces::{merged, small_events, small_header, small_tables, spool};
use crate::common::{Wild, texts};

/// Opens what a killed writer left and checks that its events are these.
fn check(path: &Path, expected: &[TraceEvent]) -> Trace {
    let trace = Trace::open(path).unwrap();
    assert!(!trace.header.complete);
    assert!(trace.events().unwrap() == expected, "events differ");
    trace
}

fn notes(trace: &Trace) -> Vec<&str> {
    texts(&trace.header.notes)
}

/// What is known when a trace begins.
fn early() -> (TraceHeader, TraceTables) {
    let machine = |machine: &Machine| Machine {
        end: machine.begin,
        cpus: vec![],
        lost: vec![],
        missing: vec![],
        ended_early: None,
        ..machine.clone()
    };
    let machines = small_tables().machines.iter().map(machine).collect();
    let header = TraceHeader { end: small_header().begin, notes: vec![], ..small_header() };
    (header, TraceTables { machines, ..TraceTables::default() })
}

#[test]
fn while_tracing() {
    let (header, tables) = early();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    drop(spool(&path, &header, &tables, &small_events()));
    let trace = check(&path, &merged(&small_events()));
    let (last, vm) = (HostNs(5_000_145_000), HostNs(5_000_110_500));
    assert_eq!(
        (trace.header.begin, trace.header.end),
        (header.begin, last),
        "the last event's time"
    );
    let [host, guest] = trace.tables.machines.as_slice() else { panic!("{:?}", trace.tables) };
    assert_eq!((host.begin, host.end, &host.cpus), (header.begin, last, &vec![0, 1]));
    assert_eq!(
        (guest.begin, guest.end, &guest.cpus),
        (vm, vm.max(HostNs(5_000_400_000)), &vec![0])
    );
    assert_eq!(
        notes(&trace),
        [
            "56 events read from the spools",
            "its writer is still running or was killed; its tables are those of the last checkpoint: names may \
             be missing",
        ]
    );
    let partial = dir.path().join("trace.partial");
    assert_eq!(trace.header.notes[0].subject, partial.display().to_string());
    check(&partial, &merged(&small_events()));
}

#[test]
fn after_a_checkpoint() {
    let (header, tables) = early();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &header, &tables, &small_events());
    writer.checkpoint(&small_header(), &small_tables()).unwrap();
    drop(writer);
    let trace = check(&path, &merged(&small_events()));
    assert_eq!((trace.header.begin, trace.header.end), (small_header().begin, small_header().end));
    let begun = |mut tables: TraceTables| {
        tables.machines[1].begin = HostNs(5_000_110_500);
        tables
    };
    assert_eq!(
        trace.tables,
        begun(small_tables()),
        "an event before its machine's begin widens it"
    );
}

/// A VM that joined and was not yet in a table; a table that is not there.
#[test]
fn what_is_missing_is_said() {
    let (header, mut tables) = early();
    tables.machines.truncate(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &header, &tables, &small_events());
    fs::remove_file(writer.partial_path().join("tasks.parquet")).unwrap();
    fs::write(writer.partial_path().join("machine4294967295-cpu0.raw"), "").unwrap();
    drop(writer);
    let trace = check(&path, &merged(&small_events()[..2]));
    assert_eq!(
        notes(&trace),
        [
            "55 events read from the spools",
            "2 spools of machines that no table has were left out",
            "its writer is still running or was killed; missing tables: tasks",
        ]
    );
}

#[test]
fn in_the_middle_of_a_block() {
    let mut wild = Wild::new(2);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let events = wild.events((0, 0), 7 * 3, &tables);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &header, &tables, std::slice::from_ref(&events));
    tear_last_block(&writer.partial_path().join("machine0-cpu0.raw"), |blocks| {
        let read = check(&path, &events[..blocks * 7]);
        notes(&read).into_iter().map(str::to_owned).collect()
    });
}

/// A copy of the folder at every step of finishing that a kill can separate.
#[test]
fn while_finishing() {
    let (header, tables) = (small_header(), small_tables());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let (early_header, early_tables) = early();
    let writer = spool(&path, &early_header, &early_tables, &small_events());
    let spools = copy_files(writer.partial_path(), &dir.path().join("spools"));
    writer.finish(&header, &tables).unwrap();
    let state = |name: &str, files: &[&str]| half_finished(name, &spools, &path, files);
    let written = ["machines", "lost", "missing", "tasks", "disks", "stacks", "files", "events"];
    let written = written.map(|table| format!("{table}.parquet"));
    let written = written.each_ref().map(String::as_str);
    let events = merged(&small_events());
    for count in 0..=written.len() {
        let state = state(&format!("tables{count}"), &written[..count]);
        fs::write(state.join("events.parquet.tmp"), "half").unwrap();
        check(&state, &events);
    }
    // Only the rename is missing: complete in all but its name.
    let state = state("renamed", &written);
    fs::remove_file(state.join("machine0-cpu1.raw")).unwrap();
    copy_into(&path.join("trace.json"), &state);
    let trace = Trace::open(&state).unwrap();
    assert_eq!((trace.events().unwrap(), &trace.header, &trace.tables), (events, &header, &tables));
}

#[test]
fn with_nothing_in_it() {
    let (header, tables) = early();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &header, &tables, &[]);
    drop(writer.spool(MachineId::HOST, 0).unwrap());
    let trace = check(&path, &[]);
    assert_eq!((trace.header.begin, trace.header.end), (header.begin, header.end));
    assert_eq!(trace.tables.machines[0].cpus, [0]);
}
