//! A writer that is killed, at any point.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::folders::{TABLES, copy_files, copy_into, half_finished, tear_last_block};
use common::{Wild, merged, read, read_switches, small, small_switches, spool, texts};
use model::{Header, HostNs, Sample, Stack, Tables, VcpuState};
use recording::Recording;

/// Opens what a killed writer left and checks that its samples are these.
fn check(path: &Path, expected: &[Sample]) -> Recording {
    let recording = Recording::open(path).unwrap();
    assert!(!recording.header.complete);
    assert_eq!(read(&recording), expected);
    recording
}

fn notes(recording: &Recording) -> Vec<&str> {
    texts(&recording.header.notes)
}

#[test]
fn while_sampling() {
    let (mut header, _, cpus) = small();
    (header.end, header.notes) = (header.start, vec![]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &cpus);
    writer.switch_spool().unwrap().append(&small_switches()[0]).unwrap();
    let mut stacks = writer.stack_spool().unwrap();
    let stack = |n| Stack {
        kernel: vec![model::HostVirt(n)],
        user: vec![model::HostVirt(n); 3],
        ..Stack::default()
    };
    stacks.append(&[stack(1), stack(2)]).unwrap();
    stacks.append(&[stack(3)]).unwrap();
    drop(writer);

    // Without the vCPUs' table a guest is one whose vCPU was not found; nothing else is lost.
    let without = |sample: Sample| match sample.vcpu {
        VcpuState::Guest(_) => Sample { vcpu: VcpuState::Unknown, ..sample },
        VcpuState::Vmm(_) => Sample { vcpu: VcpuState::None, ..sample },
        _ => sample,
    };
    let expected: Vec<_> = merged(&cpus).into_iter().map(without).collect();
    let recording = check(&path, &expected);
    assert_eq!(recording.tables.stacks, [stack(1), stack(2), stack(3)]);
    assert_eq!(recording.header.end, HostNs(5_001_600_001), "the last sample's time");
    let missing = "vms, vcpus, images, threads, modules, mappings, symbols, stacks, \
                   throttling, exits";
    assert_eq!(
        notes(&recording),
        [
            "4 samples read from the spools",
            "6 events of vCPUs read from the spools",
            &format!("its writer is still running or was killed; missing tables: {missing}"),
        ]
    );
    assert_eq!(read_switches(&recording), [], "of vCPUs not known");
    assert_eq!(recording.header.counters["switches_without_vcpu_row"], 6);
    let partial = dir.path().join("recording.partial");
    assert_eq!(recording.header.notes[0].subject, partial.display().to_string());
    check(&partial, &expected);
}

#[test]
fn after_a_checkpoint() {
    let (header, tables, cpus) = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &cpus);
    let early =
        Tables { vms: tables.vms.clone(), vcpus: tables.vcpus.clone(), ..Tables::default() };
    writer.checkpoint(&header, &early).unwrap();
    writer.checkpoint(&header, &tables).unwrap();
    drop(writer);
    let recording = check(&path, &merged(&cpus));
    assert_eq!(recording.tables, tables);
    assert_eq!(
        notes(&recording)[1..],
        [
            "4 samples read from the spools",
            "its writer is still running or was killed; its tables are those of the last checkpoint: \
             names may be missing"
        ]
    );
}

#[test]
fn in_the_middle_of_a_block() {
    let mut wild = Wild::new(2);
    let (header, tables) = (wild.header(), wild.tables());
    let samples = wild.samples(0, 7 * 3, &tables);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, std::slice::from_ref(&samples));
    writer.checkpoint(&header, &tables).unwrap();
    tear_last_block(&writer.partial_path().join("cpu0.raw"), |blocks| {
        let read = check(&path, &samples[..blocks * 7]);
        notes(&read).into_iter().map(str::to_owned).collect()
    });
}

#[test]
fn in_the_middle_of_a_block_of_switches() {
    let mut wild = Wild::new(14);
    let tables = wild.tables();
    let header = Header { end: HostNs(0), ..wild.header() };
    let switches = wild.switches(7 * 3, &tables);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &[]);
    writer.checkpoint(&header, &tables).unwrap();
    let mut events = writer.switch_spool().unwrap();
    switches.chunks(7).for_each(|drained| events.append(drained).unwrap());
    tear_last_block(&writer.partial_path().join("switches.raw"), |blocks| {
        let recording = Recording::open(&path).unwrap();
        let mut expected = switches[..blocks * 7].to_vec();
        expected.sort_by_key(|switch| switch.time);
        assert_eq!(read_switches(&recording), expected);
        let last = expected.last().map_or(HostNs(0), |switch| switch.time);
        assert_eq!(recording.header.end, last, "the last event's time");
        let read = format!("{} events of vCPUs read from the spools", expected.len());
        let notes = notes(&recording);
        assert!(notes.iter().any(|note| note.starts_with(&read)), "{notes:?}");
        notes.into_iter().map(str::to_owned).collect()
    });
}

/// A copy of the folder at every step of finishing that a kill can separate.
#[test]
fn while_finishing() {
    let (header, tables, cpus) = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &cpus);
    let mut events = writer.switch_spool().unwrap();
    small_switches().iter().for_each(|drained| events.append(drained).unwrap());
    let spools = copy_files(writer.partial_path(), &dir.path().join("spools"));
    writer.finish(&header, &tables).unwrap();
    let state = |name: &str, files: &[&str]| half_finished(name, &spools, &path, files);
    let tables_written = &TABLES[..TABLES.len() - 2];
    for count in 0..tables_written.len() {
        let state = state(&format!("tables{count}"), &tables_written[..count]);
        fs::write(state.join("symbols.parquet.tmp"), "half").unwrap();
        assert_eq!(read(&Recording::open(&state).unwrap()).len(), 4);
    }
    let mut switches = small_switches().concat();
    switches.sort_by_key(|switch| switch.time);
    let check = |state: &Path| {
        let recording = check(state, &merged(&cpus));
        assert_eq!(read_switches(&recording), switches);
    };
    let before_switches = state("before_switches", tables_written);
    fs::write(before_switches.join("switches.parquet.tmp"), "half").unwrap();
    check(&before_switches);

    let before_samples = state("before_samples", tables_written);
    copy_into(&path.join("switches.parquet"), &before_samples);
    fs::remove_file(before_samples.join("switches.raw")).unwrap();
    fs::write(before_samples.join("samples.parquet.tmp"), "half").unwrap();
    check(&before_samples);

    let after_samples = state("after_samples", tables_written);
    copy_into(&path.join("switches.parquet"), &after_samples);
    copy_into(&path.join("samples.parquet"), &after_samples);
    fs::remove_file(after_samples.join("cpu1.raw")).unwrap();
    check(&after_samples);

    // Only the rename is missing: complete in all but its name.
    copy_into(&path.join("recording.json"), &after_samples);
    let recording = Recording::open(&after_samples).unwrap();
    assert_eq!((recording.header, recording.tables), (header, tables));
}

#[test]
fn what_was_left_becomes_a_recording() {
    let (header, tables, cpus) = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &cpus);
    writer.checkpoint(&header, &tables).unwrap();
    drop(writer);
    assert_eq!(recording::finish_killed(&path).unwrap(), path);
    let recording = Recording::open(&path).unwrap();
    assert!(recording.header.complete && recording.tables == tables);
    assert_eq!(read(&recording), merged(&cpus));
    assert_eq!(texts(&recording.header.notes), texts(&header.notes), "nothing is missing");
    // It was killed when only its spools were still to be removed.
    let partial = dir.path().join("recording.partial");
    fs::rename(&path, &partial).unwrap();
    fs::write(partial.join("cpu0.raw"), "rest").unwrap();
    assert_eq!(recording::finish_killed(&path).unwrap(), path);
    assert!(!path.join("cpu0.raw").exists());
    assert!(matches!(recording::finish_killed(&path), Err(recording::Error::NotFound(..))));
}

/// What was left before names were requested says why it has none.
#[test]
fn what_was_left_without_names_says_why() {
    let (header, Tables { vms, vcpus, .. }, cpus) = small();
    let not_requested = |vm: &model::Vm| model::Vm {
        guest: model::Guest::Unmapped { reason: "it was not queried".to_owned() },
        ..vm.clone()
    };
    let early = Tables { vms: vms.iter().map(not_requested).collect(), vcpus, ..Tables::default() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    spool(&path, &header, &cpus).checkpoint(&header, &early).unwrap();
    let recording = Recording::open(&recording::finish_killed(&path).unwrap()).unwrap();
    let reason = "its recorder was killed, or the disk was full, before names were found";
    let note = format!("functions and host processes have no names: {reason}");
    assert_eq!(notes(&recording).last(), Some(&note.as_str()));
    assert_eq!(recording.header.notes.last().unwrap().subject, "host");
    assert!(!notes(&recording).iter().any(|note| note.contains("still running")));
    for vm in &recording.tables.vms {
        assert_eq!(vm.guest, model::Guest::Unmapped { reason: reason.to_owned() });
    }
    // What was lost counts once.
    let path = dir.path().join("lost");
    let writer = spool(&path, &header, &cpus);
    writer.switch_spool().unwrap().append(&small_switches()[0]).unwrap();
    drop(writer);
    let recording = Recording::open(&recording::finish_killed(&path).unwrap()).unwrap();
    assert_eq!(recording.header.counters["switches_without_vcpu_row"], 6);
}
