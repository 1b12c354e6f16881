//! What is written comes back.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Wild, merged, read, read_switches, spool, write, write_with_switches};
use model::{CpuId, GuestStack, Header, OffCpuSource, Sample, Switch, Tables, VcpuState};
use recording::{Error, Recording, Writer, encode};

fn check(header: &Header, tables: &Tables, cpus: &[Vec<Sample>]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let summary = write(&path, header, tables, cpus);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.header, *header);
    check_tables(&recording.tables, tables);
    assert!(read(&recording) == merged(cpus), "samples differ");
    assert_eq!(summary.samples, cpus.iter().map(Vec::len).sum::<usize>() as u64);
    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|f| f.unwrap()).collect();
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    let if_any = [
        tables.cpu_nodes.is_empty(),
        tables.memory.is_empty(),
        tables.quota_members.is_empty(),
        tables.throttled_queues.is_empty(),
    ];
    let expected = 13 + if_any.into_iter().filter(|is_empty| !is_empty).count();
    assert_eq!((files.len(), bytes), (expected, summary.bytes), "{files:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

fn check_tables(read: &Tables, written: &Tables) {
    fn table<T: PartialEq + std::fmt::Debug>(name: &str, read: &[T], written: &[T]) {
        assert_eq!(read.len(), written.len(), "{name}");
        for (row, (read, written)) in read.iter().zip(written).enumerate() {
            assert_eq!(read, written, "{name}, row {row}");
        }
    }
    table("vms", &read.vms, &written.vms);
    table("vcpus", &read.vcpus, &written.vcpus);
    table("images", &read.images, &written.images);
    table("threads", &read.threads, &written.threads);
    table("mappings", &read.mappings, &written.mappings);
    table("modules", &read.modules, &written.modules);
    table("symbols", &read.symbols, &written.symbols);
    table("stacks", &read.stacks, &written.stacks);
    table("throttling", &read.throttling, &written.throttling);
    table("exits", &read.exits, &written.exits);
    table("cpu_nodes", &read.cpu_nodes, &written.cpu_nodes);
    table("memory", &read.memory, &written.memory);
    table("quota_members", &read.quota_members, &written.quota_members);
    table("throttled_queues", &read.throttled_queues, &written.throttled_queues);
}

#[test]
fn any_tables_and_samples() {
    for seed in 0..60_u32 {
        let mut wild = Wild::new(seed.into());
        let (header, tables) = (wild.header(), wild.tables());
        let cpus: Vec<_> = (0..seed % 5).map(|cpu| wild.samples(cpu * 3, 50, &tables)).collect();
        check(&header, &tables, &cpus);
    }
}

#[test]
fn nothing_at_all() {
    check(&Wild::new(1).header(), &Tables::default(), &[]);
}

#[test]
fn more_samples_than_a_row_group_holds() {
    let mut wild = Wild::new(7);
    let tables = wild.tables();
    let cpus: Vec<_> = (0..3).map(|cpu| wild.samples(cpu, 50_000, &tables)).collect();
    check(&wild.header(), &tables, &cpus);
}

#[test]
fn one_cpu_far_ahead_of_the_others() {
    let mut wild = Wild::new(8);
    let tables = wild.tables();
    let mut cpus: Vec<_> = (0..3).map(|cpu| wild.samples(cpu, 3_000, &tables)).collect();
    cpus[1].truncate(2);
    cpus[2].iter_mut().for_each(|sample| sample.time.0 /= 1 << 20);
    cpus[2].dedup_by_key(|sample| sample.time);
    check(&wild.header(), &tables, &cpus);
}

#[test]
fn large_tables() {
    let mut tables = Wild::new(9).tables();
    let symbols = tables.symbols.clone();
    tables.symbols = symbols.into_iter().cycle().take(200_000).collect();
    tables.stacks = tables.stacks.into_iter().cycle().take(70_000).collect();
    check(&Wild::new(9).header(), &tables, &[]);
}

/// Writes events in drains of `drained` and reads them back; the recording for more.
fn check_switches(tables: &Tables, switches: &[Switch], drained: usize) -> Recording {
    let mut wild = Wild::new(10);
    let header = Header { counters: Default::default(), ..wild.header() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let cpus = vec![wild.samples(0, 20, tables)];
    let drains: Vec<_> = switches.chunks(drained).map(<[_]>::to_vec).collect();
    write_with_switches(&path, &(header, tables.clone(), cpus), &drains);

    let recording = Recording::open(&path).unwrap();
    let mut read = Vec::new();
    let mut see = |batch: &[Switch]| {
        assert!(batch.len() <= 1 << 16, "{}", batch.len());
        assert!(batch.is_sorted_by_key(|switch| switch.time));
        read.extend_from_slice(batch);
    };
    recording.for_each_switch_batch(&mut see).unwrap();
    let mut expected = switches.to_vec();
    expected.retain(|switch| switch.vcpu.index() < tables.vcpus.len());
    for all in [&mut read, &mut expected] {
        all.sort_by_key(|switch| (switch.time, format!("{switch:?}")));
    }
    assert!(read == expected, "switches differ");
    recording
}

#[test]
fn any_switches() {
    for seed in 0..30_usize {
        let mut wild = Wild::new(seed as u64);
        let tables = wild.tables();
        let switches = wild.switches(seed * 7, &tables);
        let recording = check_switches(&tables, &switches, 1 + seed);
        assert!(recording.header.counters.is_empty(), "{:?}", recording.header.counters);
    }
}

#[test]
fn more_switches_than_a_row_group_holds() {
    let mut wild = Wild::new(12);
    let tables = wild.tables();
    let switches = wild.switches(150_000, &tables);
    check_switches(&tables, &switches, 10_000);
}

#[test]
fn switches_of_no_vcpu_are_left_out_and_counted() {
    let mut wild = Wild::new(13);
    let mut tables = wild.tables();
    tables.exits.clear();
    tables.quota_members.clear();
    let switches = wild.switches(500, &tables);
    for vcpus in [tables.vcpus.len() / 2, 0] {
        tables.vcpus.truncate(vcpus);
        let recording = check_switches(&tables, &switches, 100);
        let lost = switches.iter().filter(|switch| vcpus <= switch.vcpu.index()).count();
        assert_eq!(recording.header.counters["switches_without_vcpu_row"], lost as u64);
    }
}

/// The small recording as the version before waits, switches, exits, throttling and kernel threads wrote it.
#[test]
fn a_recording_from_before_waits_opens() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/recording/before-waits");
    let recording = Recording::open(path.as_ref()).unwrap();
    let (header, mut tables, mut cpus) = common::small();
    assert_eq!(recording.header, Header { off_cpu_source: OffCpuSource::Samples, ..header });
    tables.images.retain(|image| image.kernel_stack.is_none());
    tables.stacks.iter_mut().for_each(|stack| stack.guest = GuestStack::default());
    let (throttling, exits, cpu_nodes, memory) = (vec![], vec![], vec![], vec![]);
    let (quota_members, throttled_queues) = (vec![], vec![]);
    let later =
        Tables { throttling, exits, cpu_nodes, memory, quota_members, throttled_queues, ..tables };
    assert_eq!(recording.tables, later);
    for sample in cpus.iter_mut().flatten() {
        if let VcpuState::Vmm(vcpu) | VcpuState::Guest(vcpu) = &mut sample.vcpu {
            (vcpu.waits, vcpu.cpl, vcpu.kernel_stack) = (None, 3, None);
        }
    }
    assert_eq!(read(&recording), merged(&cpus));
    assert_eq!(read_switches(&recording), []);
}

#[test]
fn references_to_no_row_are_cut_and_counted() {
    let mut wild = Wild::new(3);
    let (header, tables) =
        (Header { counters: Default::default(), ..wild.header() }, wild.tables());
    let cpus = vec![wild.samples(0, 400, &tables)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    write(
        &path,
        &header,
        &Tables { vcpus: vec![], exits: vec![], stacks: vec![], quota_members: vec![], ..tables },
        &cpus,
    );

    let recording = Recording::open(&path).unwrap();
    let with =
        |has: fn(&Sample) -> bool| cpus[0].iter().filter(|sample| has(sample)).count() as u64;
    let vcpus = with(|s| matches!(s.vcpu, VcpuState::Vmm(_) | VcpuState::Guest(_)));
    let stacks = with(|s| s.stack.is_some());
    let expected = [("samples_without_stack_row", stacks), ("samples_without_vcpu_row", vcpus)];
    let expected: Vec<_> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(recording.header.counters.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn names_that_are_taken_are_refused() {
    let mut wild = Wild::new(4);
    let header = wild.header();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let refused = |path: &std::path::Path| Writer::create(path, &header).unwrap_err();

    let first = spool(&path, &header, &[]);
    assert!(matches!(refused(&path), Error::PartialExists(_)));
    first.finish(&header, &Tables::default()).unwrap();
    assert!(matches!(refused(&path), Error::Exists(_)));
    assert!(matches!(refused("/".as_ref()), Error::BadName(..)));
    let nowhere = "failed to create /nosuch/x.partial: No such file or directory (os error 2): give an \
                   existing folder";
    assert_eq!(refused("/nosuch/x".as_ref()).to_string(), nowhere);
    assert!(matches!(refused(&dir.path().join("no/such")), Error::NoFolder { .. }));

    let late = dir.path().join("late");
    let writer = spool(&late, &header, &[]);
    std::fs::write(&late, "another's").unwrap();
    let error = writer.finish(&header, &Tables::default()).unwrap_err();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    assert_eq!(std::fs::read(&late).unwrap(), b"another's");
}

#[test]
fn discarding_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut wild = Wild::new(5);
    spool(&dir.path().join("recording"), &wild.header(), &[]).discard().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn half_a_record_is_refused() {
    let mut wild = Wild::new(6);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let samples = wild.samples(0, 2, &Tables::default());
    let writer = spool(&path, &wild.header(), &[]);
    let mut spool = writer.spool(CpuId(0)).unwrap();
    let records: Vec<u8> = samples.iter().flat_map(encode).collect();
    assert!(matches!(spool.append(&records[..100]), Err(Error::Encode { .. })));
    spool.append(&records).unwrap();
    writer.finish(&wild.header(), &Tables::default()).unwrap();
    assert_eq!(read(&Recording::open(&path).unwrap()), samples);
}
