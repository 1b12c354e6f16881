//! What is written comes back.

use std::path::Path;

use model::{
    HostNs, Machine, MachineId, Pid, TaskName, Tid, TraceEvent, TraceEventKind, TraceFilter,
    TraceTables,
};
use recording::trace::{FOLDER_IN_RECORDING, MAX_EVENTS, Trace, TraceHeader, TraceWriter};
use recording::{Error, Recording};

use crate::common::Wild;
use crate::common::traces::{merged, small_events, small_header, small_tables, spool, write};

/// Writes a trace and reads it back; the trace for more.
fn check(header: &TraceHeader, tables: &TraceTables, cpus: &[Vec<TraceEvent>]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let summary = write(&path, header, tables, cpus);
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.header, *header);
    assert_eq!(trace.tables, *tables);
    assert!(trace.events().unwrap() == merged(cpus), "events differ");
    assert_eq!(summary.events, cpus.iter().map(Vec::len).sum::<usize>() as u64);
    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|f| f.unwrap()).collect();
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    let n_files = 8 + usize::from(!tables.files.is_empty());
    assert_eq!((files.len(), bytes), (n_files, summary.bytes), "{files:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn any_tables_and_events() {
    for seed in 0..60_u32 {
        let mut wild = Wild::new(seed.into());
        let (header, tables) = (wild.trace_header(), wild.trace_tables());
        let machines = u32::try_from(tables.machines.len()).unwrap();
        let cpus: Vec<_> = (0..seed % 5)
            .map(|n| ((n * 5 % machines), n * 3))
            .map(|place| wild.events(place, 60, &tables))
            .collect();
        check(&header, &tables, &cpus);
    }
}

/// Format 1 has filters as options of the command line.
#[test]
fn a_trace_of_format_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    write(&path, &small_header(), &small_tables(), &small_events());
    let json = path.join("trace.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let words = ["--vm a b", "--only-command", "--tree 7", "--cgroup x y", "--tree x", ""];
    manifest["version"] = 1.into();
    manifest["filters"] = words.to_vec().into();
    std::fs::write(&json, manifest.to_string()).unwrap();
    let read = Trace::open(&path).unwrap().header;
    let filters = vec![
        TraceFilter::Vm("a b".into()),
        TraceFilter::Command,
        TraceFilter::Tree(Pid(7)),
        TraceFilter::Cgroup("x y".into()),
        TraceFilter::Other("--tree x".into()),
        TraceFilter::Other(String::new()),
    ];
    let shown: Vec<_> = read.filters.iter().map(ToString::to_string).collect();
    assert_eq!(shown, words);
    assert_eq!(read, TraceHeader { filters, ..small_header() });
}

/// The folder of a recording that holds a trace of the same seconds opens as either.
#[test]
fn a_trace_in_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("both");
    let (header, tables, cpus) = crate::common::small();
    let samples = crate::common::spool(&path, &header, &cpus);
    let inside = samples.partial_path().join(FOLDER_IN_RECORDING);
    let mut wild = Wild::new(3);
    let trace_tables = wild.trace_tables();
    let events = [wild.events((0, 0), 60, &trace_tables)];
    let trace = spool(&inside, &wild.trace_header(), &trace_tables, &events);
    let open = || Trace::open(&path).unwrap();
    assert!(!open().header.complete, "both are still written");
    trace.finish(&wild.trace_header(), &trace_tables).unwrap();
    assert!(open().header.complete, "only the recording is still written");
    samples.finish(&header, &tables).unwrap();
    assert!(Recording::open(&path).unwrap().header.complete);
    assert!(open().events().unwrap() == merged(&events));
}

#[test]
fn nothing_at_all() {
    check(&TraceHeader { complete: true, ..TraceHeader::default() }, &TraceTables::default(), &[]);
}

#[test]
fn more_events_than_a_row_group_holds() {
    let mut wild = Wild::new(7);
    let tables = wild.trace_tables();
    let cpus: Vec<_> = (0..3).map(|cpu| wild.events((0, cpu), 50_000, &tables)).collect();
    check(&wild.trace_header(), &tables, &cpus);
}

#[test]
fn one_machine_far_ahead_of_the_others() {
    let mut wild = Wild::new(8);
    let mut tables = wild.trace_tables();
    tables.machines.resize(3, Machine::default());
    (tables.tasks, tables.disks, tables.command) = (vec![], vec![], None);
    tables.stacks.retain(|(machine, ..)| machine.0 < 3);
    let mut cpus: Vec<_> =
        (0..3).map(|machine| wild.events((machine, 0), 3_000, &tables)).collect();
    cpus[1].truncate(2);
    cpus[2].iter_mut().for_each(|event| event.time.0 /= 1 << 20);
    check(&wild.trace_header(), &tables, &cpus);
}

/// A CPU whose clock went backwards: its events stay in their order, and none is lost.
#[test]
fn events_out_of_order_stay_as_they_came() {
    let mut wild = Wild::new(9);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let cpus: Vec<_> = (0..2).map(|cpu| wild.unordered_events((0, cpu), 2_000, &tables)).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    write(&path, &header, &tables, &cpus);
    let read = Trace::open(&path).unwrap().events().unwrap();
    for (cpu, events) in (0..).zip(&cpus) {
        let of_cpu: Vec<_> = read.iter().filter(|event| event.cpu == cpu).copied().collect();
        assert!(of_cpu == *events, "CPU {cpu}");
    }
    assert_eq!(read.len(), 4_000);
}

#[test]
fn names_that_are_no_text_become_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let tables = TraceTables { machines: vec![Machine::default()], ..TraceTables::default() };
    let (machine, task) = (MachineId::HOST, Tid(1));
    let exec = |name: &[u8]| {
        let what = TraceEventKind::Exec { task, name: TaskName::new(name) };
        TraceEvent { time: HostNs(0), machine, cpu: 0, kind: what }
    };
    write(&path, &TraceHeader::default(), &tables, &[vec![exec(b"a\xffb"), exec(&[0xff; 15])]]);
    let read = Trace::open(&path).unwrap().events().unwrap();
    assert_eq!(read, [exec("a\u{fffd}b".as_bytes()), exec("\u{fffd}".repeat(5).as_bytes())]);
}

#[test]
fn an_event_of_another_cpu_is_refused() {
    let mut wild = Wild::new(6);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &header, &tables, &[]);
    let mut own = writer.spool(MachineId::HOST, 1).unwrap();
    let events = wild.events((0, 1), 5, &tables);
    for foreign in [(0, 2), (1, 1)] {
        let foreign = wild.unordered_events(foreign, 1, &tables);
        let error = own.append(&[&events[..2], &foreign].concat()).unwrap_err();
        assert!(matches!(error, Error::Encode { .. }), "{error}");
    }
    own.append(&events).unwrap();
    writer.finish(&header, &tables).unwrap();
    assert_eq!(
        Trace::open(&path).unwrap().events().unwrap(),
        events,
        "nothing of what was refused"
    );
}

#[test]
fn events_that_refer_to_no_row_are_counted() {
    let mut wild = Wild::new(3);
    let (header, mut tables) = (wild.trace_header(), wild.trace_tables());
    tables.stacks.iter_mut().for_each(|stack| stack.0 = MachineId::HOST);
    let cpus = [wild.events((0, 0), 400, &tables), wild.events((1, 0), 300, &tables)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let fewer = TraceTables {
        machines: tables.machines[..1].to_vec(),
        stacks: vec![],
        tasks: vec![],
        disks: vec![],
        files: vec![],
        command: None,
    };
    write(&path, &header, &fewer, &cpus);
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.events().unwrap(), cpus[0]);
    assert_eq!(trace.header.counters["events_without_machine_row"], 300);
    let has_stack = |event: &&TraceEvent| match event.kind {
        TraceEventKind::Switch { stack, user_stack, .. } => stack.or(user_stack).is_some(),
        TraceEventKind::LockBegin { stack, .. } => stack.is_some(),
        _ => false,
    };
    let with_stack = cpus[0].iter().filter(has_stack).count() as u64;
    assert!(0 < with_stack);
    assert_eq!(trace.header.counters["events_without_stack_row"], with_stack);
}

#[test]
fn stacks_are_in_order_whatever_order_they_came_in() {
    let mut wild = Wild::new(10);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let mut mixed = tables.clone();
    mixed.stacks.reverse();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    write(&path, &header, &mixed, &[]);
    assert_eq!(Trace::open(&path).unwrap().tables, tables);
}

#[test]
fn events_are_read_up_to_a_limit() {
    assert_eq!(MAX_EVENTS, 1 << 27);
    assert_eq!(size_of::<TraceEvent>(), 56, "Trace::events says so");
    let mut wild = Wild::new(11);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let cpus = [wild.events((0, 0), 100, &tables)];
    let dir = tempfile::tempdir().unwrap();
    let check = |path: &Path| {
        let trace = Trace::open(path).unwrap();
        let mut batches = trace.batches_up_to(100).unwrap();
        assert_eq!(batches.next_batch().unwrap().unwrap(), cpus[0]);
        assert_eq!(batches.next_batch().unwrap(), None);
        let error = trace.batches_up_to(99).unwrap_err().to_string();
        let said =
            "has more than 99 events, too many to report: trace a shorter time, or fewer processes";
        assert!(error.ends_with(said), "{error}");
    };
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    write(&whole, &header, &tables, &cpus);
    drop(spool(&cut, &header, &tables, &cpus));
    check(&whole);
    check(&cut);
}

#[test]
fn names_that_are_taken_are_refused() {
    let mut wild = Wild::new(4);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let refused = |path: &Path| TraceWriter::create(path, &header, &tables).unwrap_err();
    let first = spool(&path, &header, &tables, &[]);
    assert!(matches!(refused(&path), Error::PartialExists(_)));
    first.finish(&header, &tables).unwrap();
    assert!(matches!(refused(&path), Error::Exists(_)));
    let nameless = "/ can't be the name of a trace: give the path of a folder to create";
    assert_eq!(refused("/".as_ref()).to_string(), nameless);
}

#[test]
fn discarding_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut wild = Wild::new(5);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    spool(&dir.path().join("trace"), &header, &tables, &[]).discard().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_recording_is_distinguished_from_a_trace() {
    let mut wild = Wild::new(12);
    let dir = tempfile::tempdir().unwrap();
    let (trace, samples) = (dir.path().join("trace"), dir.path().join("samples"));
    write(&trace, &wild.trace_header(), &wild.trace_tables(), &[]);
    crate::common::write(&samples, &wild.header(), &wild.tables(), &[]);
    assert_eq!(
        Recording::open(&trace).unwrap_err().to_string(),
        format!("{} is a trace: read it with `vmscope trace report`", trace.display())
    );
    assert_eq!(
        Trace::open(&samples).unwrap_err().to_string(),
        format!("{} is a recording: read it with `vmscope report`", samples.display())
    );
}
