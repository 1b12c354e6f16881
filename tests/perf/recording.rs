//! Recordings: records appended, converted and read per second on one core, memory they take. Prints,
//! asserts nothing: `cargo bench -p recording`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod synthetic;
mod synthetic_trace;

use std::hint::black_box;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use model::{CpuId, Switch, TraceEvent};
use recording::trace::{Trace, TraceWriter};
use recording::{RECORD_SIZE, Recording, Summary, Writer, encode};
use synthetic::Host;
use synthetic_trace::Build;

const HOST: Host = Host { cpus: 2, vms: 3, period_ns: 1_000_000, seed: 1 };
const PER_CPU: usize = 500_000;
const TOTAL: u64 = HOST.cpus as u64 * PER_CPU as u64;
const BUILD: Build = Build { cpus: 2, seed: 1 };
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

fn spool_events(path: &Path, cpus: &[Vec<TraceEvent>]) -> TraceWriter {
    let writer = TraceWriter::create(path, &BUILD.header(), &BUILD.tables()).unwrap();
    for events in cpus {
        let mut spool = writer.spool(events[0].machine, events[0].cpu).unwrap();
        events.chunks(10 * DRAIN).for_each(|drained| spool.append(drained).unwrap());
    }
    writer
}

fn read_events(path: &Path) {
    let trace = Trace::open(path).unwrap();
    trace
        .for_each_batch(&mut |batch| {
            black_box(batch.last());
        })
        .unwrap();
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

/// Events of a trace.
fn traces(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("trace"), dir.path().join("copy"));
    let cpus: Vec<_> = (0..BUILD.cpus).map(|cpu| BUILD.events(cpu, PER_CPU)).collect();
    let writer = spool_events(&path, &cpus);
    let mut summary = None;
    let writing = added_peak_kib(|| {
        summary = Some(writer.finish(&BUILD.header(), &BUILD.tables()).unwrap());
    });
    let reading = added_peak_kib(|| read_events(&path));
    println!("{TOTAL} events: {:.2} bytes per event on disk", summary.unwrap().bytes_per_event());
    println!("peak memory added by converting them {writing} KiB, by reading them {reading} KiB");

    let mut group = criterion.benchmark_group("trace");
    group.sample_size(10).throughput(Throughput::Elements(TOTAL));
    group.bench_function("read", |bencher| bencher.iter(|| read_events(&path)));
    group.bench_function("append", |bencher| {
        bencher.iter(|| spool_events(&copy, &cpus).discard().unwrap());
    });
    group.bench_function("finish", |bencher| {
        bencher.iter_batched(
            || {
                let _ = std::fs::remove_dir_all(&copy);
                spool_events(&copy, &cpus)
            },
            |writer| writer.finish(&BUILD.header(), &BUILD.tables()).unwrap(),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, recording, switches, traces);
criterion_main!(benches);
