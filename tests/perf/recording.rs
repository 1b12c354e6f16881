//! Recordings: records appended, converted and read per second on one core, memory they take. Prints,
//! asserts nothing: `cargo bench -p recording`.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod synthetic;

use std::hint::black_box;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use model::{CpuId, Switch};
use recording::{RECORD_SIZE, Recording, Summary, Writer, encode};
use synthetic::Host;

const HOST: Host = Host { cpus: 2, vms: 3, period_ns: 1_000_000, seed: 1 };
const PER_CPU: usize = 500_000;
const TOTAL: u64 = HOST.cpus as u64 * PER_CPU as u64;
/// Records a collector drains from a ring at once.
const DRAIN: usize = 100;

fn raw() -> Vec<Vec<u8>> {
    let cpu = |cpu| HOST.samples(cpu, PER_CPU).iter().flat_map(encode).collect();
    (0..HOST.cpus).map(cpu).collect()
}

fn spool(path: &Path, raw: &[Vec<u8>]) -> Writer {
    let writer = Writer::create(path, &HOST.header()).unwrap();
    for (cpu, raw) in (0..).zip(raw) {
        let mut spool = writer.spool(CpuId(cpu)).unwrap();
        raw.chunks(DRAIN * RECORD_SIZE).for_each(|drained| spool.append(drained).unwrap());
    }
    writer
}

fn spool_switches(path: &Path, drains: &[Vec<Switch>]) -> Writer {
    let writer = Writer::create(path, &HOST.header()).unwrap();
    let mut spool = writer.switch_spool().unwrap();
    drains.iter().for_each(|drained| spool.append(drained).unwrap());
    writer
}

fn read_switches(path: &Path) {
    let recording = Recording::open(path).unwrap();
    recording
        .for_each_switch_batch(&mut |batch| {
            black_box(batch.last());
        })
        .unwrap();
}

fn read(path: &Path) {
    let recording = Recording::open(path).unwrap();
    recording
        .for_each_batch(&mut |batch| {
            black_box(batch.last());
        })
        .unwrap();
}

/// Peak of resident memory so far, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The peak that `action` adds to what is resident now (writing 5 resets the peak, see proc(5)).
fn added_peak_kib(action: impl FnOnce()) -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_kib();
    action();
    peak_kib().saturating_sub(before)
}

fn recording(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("recording"), dir.path().join("copy"));
    let raw = raw();
    let writer = spool(&path, &raw);
    let mut summary: Option<Summary> = None;
    let writing = added_peak_kib(|| {
        summary = Some(writer.finish(&HOST.header(), &HOST.tables()).unwrap());
    });
    let reading = added_peak_kib(|| read(&path));
    let summary = summary.unwrap();
    println!(
        "{} samples: {:.2} bytes per sample on disk",
        summary.samples,
        summary.bytes_per_sample()
    );
    println!("peak memory added by converting them {writing} KiB, by reading them {reading} KiB");

    let mut group = criterion.benchmark_group("recording");
    group.sample_size(10).throughput(Throughput::Elements(TOTAL));
    group.bench_function("read", |bencher| bencher.iter(|| read(&path)));
    group.bench_function("append", |bencher| {
        bencher.iter(|| spool(&copy, &raw).discard().unwrap());
    });
    group.bench_function("finish", |bencher| {
        bencher.iter_batched(
            || {
                let _ = std::fs::remove_dir_all(&copy);
                spool(&copy, &raw)
            },
            |writer| writer.finish(&HOST.header(), &HOST.tables()).unwrap(),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Events of vCPUs' threads alone, without samples.
fn switches(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("recording"), dir.path().join("copy"));
    let drains = HOST.switches(100_000_000_000);
    let total = drains.iter().map(Vec::len).sum::<usize>() as u64;
    spool_switches(&path, &drains).finish(&HOST.header(), &HOST.tables()).unwrap();
    let bytes = path.join("switches.parquet").metadata().unwrap().len();
    println!("{total} events: {:.2} bytes per event on disk", bytes as f64 / total as f64);

    let mut group = criterion.benchmark_group("switches");
    group.sample_size(10).throughput(Throughput::Elements(total));
    group.bench_function("read", |bencher| bencher.iter(|| read_switches(&path)));
    group.bench_function("append", |bencher| {
        bencher.iter(|| spool_switches(&copy, &drains).discard().unwrap());
    });
    group.bench_function("finish", |bencher| {
        bencher.iter_batched(
            || {
                let _ = std::fs::remove_dir_all(&copy);
                spool_switches(&copy, &drains)
            },
            |writer| writer.finish(&HOST.header(), &HOST.tables()).unwrap(),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, recording, switches);
criterion_main!(benches);
