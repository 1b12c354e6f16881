//! What is written comes back.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Wild, merged, read, spool, write};
use model::{CpuId, Header, Sample, Tables, VcpuState};
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
    assert_eq!((files.len(), bytes), (10, summary.bytes), "{files:?}");
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

#[test]
fn references_to_no_row_are_cut_and_counted() {
    let mut wild = Wild::new(3);
    let (header, tables) =
        (Header { counters: Default::default(), ..wild.header() }, wild.tables());
    let cpus = vec![wild.samples(0, 400, &tables)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    write(&path, &header, &Tables { vcpus: vec![], stacks: vec![], ..tables }, &cpus);

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
    assert!(matches!(refused("/".as_ref()), Error::BadName(_)));
    let nowhere = "failed to create /nosuch/x.partial: No such file or directory (os error 2): give an \
                   existing folder";
    assert_eq!(refused("/nosuch/x".as_ref()).to_string(), nowhere);
    assert!(matches!(refused(&dir.path().join("no/such")), Error::NoFolder { .. }));

    let late = dir.path().join("late");
    let writer = spool(&late, &header, &[]);
    std::fs::write(&late, "somebody else's").unwrap();
    let error = writer.finish(&header, &Tables::default()).unwrap_err();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    assert_eq!(std::fs::read(&late).unwrap(), b"somebody else's");
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
