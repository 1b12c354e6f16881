//! Bytes per sample of a realistic recording.

#![allow(clippy::unwrap_used)]

mod common;

use model::CpuId;
use recording::{Recording, Writer, encode};

/// A minute of two CPUs at 1 ms with three VMs.
#[test]
fn a_sample_takes_less_than_eight_bytes() {
    let host = common::synthetic::Host { cpus: 2, vms: 3, period_ns: 1_000_000, seed: 1 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("minute");
    let writer = Writer::create(&path, &host.header()).unwrap();
    for cpu in 0..host.cpus {
        let mut spool = writer.spool(CpuId(cpu)).unwrap();
        for drained in host.samples(cpu, 60_000).chunks(100) {
            spool.append(&drained.iter().flat_map(encode).collect::<Vec<_>>()).unwrap();
        }
    }
    let summary = writer.finish(&host.header(), &host.tables()).unwrap();
    eprintln!("{summary:?} {:.2} bytes per sample", summary.bytes_per_sample());
    assert_eq!(summary.samples, 120_000);
    assert!(summary.bytes_per_sample() < 8.0, "{summary:?}");

    let mut seen = 0;
    let recording = Recording::open(&path).unwrap();
    recording.for_each_batch(&mut |batch| seen += batch.len()).unwrap();
    assert_eq!(seen, 120_000);
}
