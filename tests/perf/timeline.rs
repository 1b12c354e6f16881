//! Traces: events brought onto the time axis per second on one core, and the memory that a timeline and the analyses of it
//! take. Prints, asserts nothing: `cargo bench -p trace-analysis`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods
)]

#[expect(dead_code, reason = "samples are others' matter")]
mod synthetic;
mod synthetic_trace;

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use model::MachineId;
use recording::trace::{Trace, TraceWriter};
use synthetic_trace::Build;
use trace_analysis::gantt::{Subject, lanes, pyramid};
use trace_analysis::kernel::KernelTime;
use trace_analysis::profile::profile;
use trace_analysis::states::states;
use trace_analysis::timeline::{Survey, Timeline};
use trace_analysis::tree::all;
use trace_analysis::waits::{Classifier, lives};

const BUILD: Build = Build { cpus: 2, seed: 1 };
const PER_CPU: usize = 2_000_000;
const TOTAL: u64 = BUILD.cpus as u64 * PER_CPU as u64;

fn write(path: &Path) {
    let writer = TraceWriter::create(path, &BUILD.header(), &BUILD.tables()).unwrap();
    for cpu in 0..BUILD.cpus {
        let events = BUILD.events(cpu, PER_CPU);
        writer.spool(MachineId::HOST, cpu).unwrap().append(&events).unwrap();
    }
    writer.finish(&BUILD.header(), &BUILD.tables()).unwrap();
}

/// As `vmscope trace report` does it.
fn timeline(trace: &Trace) -> Timeline {
    let mut survey = Survey::new(&trace.tables, MachineId::HOST);
    trace.for_each_batch(&mut |batch| survey.see(batch)).unwrap();
    let mut builder = survey.builder();
    trace.for_each_batch(&mut |batch| builder.see(batch)).unwrap();
    builder.finish()
}

/// A line of `/proc/self/status`, KiB.
fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Prints the peak that `action` adds to what is resident now (writing 5 resets the peak, see proc(5)).
fn added_peak<T>(what: &str, action: impl FnOnce() -> T) -> T {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_kib("VmRSS:");
    let result = action();
    let added = status_kib("VmHWM:").saturating_sub(before);
    println!("{what}: {:.1} bytes per event at most", added as f64 * 1024.0 / TOTAL as f64);
    result
}

fn traces(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    write(&path);
    let trace = Trace::open(&path).unwrap();
    println!("{TOTAL} events");
    let found = added_peak("timeline", || timeline(&trace));
    let (everyone, range) = (all(&found), found.begin..found.end);
    let classifier = Classifier::new(&trace.tables, MachineId::HOST);
    let subject = Subject { timeline: &found, host_side: None };
    let chart = || pyramid(subject, &lanes(subject, &range, 5_000).lanes, &range, 300_000);
    added_peak("profile", || black_box(profile(&found)));
    added_peak("states", || black_box(states(&found, &everyone)));
    added_peak("waits", || black_box(lives(&found, &classifier)));
    added_peak("kernel", || black_box(KernelTime::new(&found)));
    added_peak("gantt", || black_box(chart()));

    let mut group = criterion.benchmark_group("trace");
    group.sample_size(10).throughput(Throughput::Elements(TOTAL));
    group.bench_function("timeline", |bencher| bencher.iter(|| timeline(&trace)));
    group.bench_function("profile", |bencher| bencher.iter(|| profile(&found)));
    group.bench_function("states", |bencher| bencher.iter(|| states(&found, &everyone)));
    group.bench_function("waits", |bencher| bencher.iter(|| lives(&found, &classifier)));
    group.bench_function("kernel", |bencher| bencher.iter(|| KernelTime::new(&found)));
    group.bench_function("gantt", |bencher| bencher.iter(chart));
    group.finish();
}

criterion_group!(benches, traces);
criterion_main!(benches);
