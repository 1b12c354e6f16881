//! Files from others: recordings, traces, results of the micro-benchmark.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use analysis::vcpu_timeline::VcpuTimelinesBuilder;
use analysis::{Aggregator, By, Query, Resolver, Selection, View};
use microbench::compare::{Labelled, compare};
use microbench::{json, lines, qr, report};
use model::MachineId;
use recording::Recording;
use recording::trace::Trace;
use table::Width;
use trace_analysis::findings::Findings;
use trace_analysis::timeline;

use super::{MIB, Target};

// The recordings of the reader's own tests, honest and wild.
#[path = "../../../crates/recording/tests/common/mod.rs"]
#[allow(clippy::unwrap_used, unreachable_pub, unused_imports)]
mod common;

/// Bytes of an input before a table's: which of them it is.
const CHOICE: usize = 1;

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { budget: 1024 * MIB, ..Target::new(name, run, seeds) };
    vec![
        target("recording", recording, || seeds(&RECORDING)),
        target("trace", trace, || seeds(&TRACE)),
        Target {
            words: &[b"ustar\x0000", b"recording.json"],
            ..target("window", window, seed_windows)
        },
        Target { longest: 8, ..target("written", written, seed_numbers) },
        Target { longest: 8, ..target("written-trace", written_trace, seed_numbers) },
        Target {
            words: &[
                b"VMB1:",
                b"{\"result\":",
                b"\"condition\":\"long.cpl0\"",
                b"null",
                b"1e308",
                b"[",
                b"{",
            ],
            budget: 64 * MIB,
            ..target("bench", bench, seed_logs)
        },
    ]
}

/// An honest folder, of which one file at a time is replaced.
struct Honest {
    path: PathBuf,
    manifest: &'static str,
    files: Vec<PathBuf>,
    json: String,
}

static RECORDING: OnceLock<Honest> = OnceLock::new();
static TRACE: OnceLock<Honest> = OnceLock::new();

fn honest(of: &'static OnceLock<Honest>) -> &'static Honest {
    of.get_or_init(|| {
        let is_recording = std::ptr::eq(of, &raw const RECORDING);
        let (name, manifest) =
            if is_recording { ("recording", "recording.json") } else { ("trace", "trace.json") };
        let path = super::folder().join(name);
        if is_recording {
            common::write_with_switches(&path, &common::small(), &common::small_switches());
        } else {
            let (header, tables) = (common::traces::small_header(), common::traces::small_tables());
            common::traces::write(&path, &header, &tables, &common::traces::small_events());
        }
        let entries = std::fs::read_dir(&path).expect("it was written");
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "parquet"));
        files.sort();
        files.push(path.join(manifest));
        let json = std::fs::read_to_string(path.join(manifest)).expect("it was written");
        Honest { path, manifest, files, json }
    })
}

fn seeds(of: &'static OnceLock<Honest>) -> Vec<Vec<u8>> {
    let numbered = (0_u8..).zip(&honest(of).files);
    let seed = |(number, file): (u8, &PathBuf)| {
        [vec![number], std::fs::read(file).expect("it was written")].concat()
    };
    numbered.map(seed).collect()
}

/// With the input's bytes in place of one file, and the right checksum.
fn changed(of: &'static OnceLock<Honest>, input: &[u8], read: impl FnOnce(&Path)) {
    let honest = honest(of);
    let Some((choice, bytes)) = input.split_at_checked(CHOICE) else { return };
    let file = &honest.files[usize::from(choice[0]) % honest.files.len()];
    let whole = std::fs::read(file).expect("it was written");
    std::fs::write(file, bytes).expect("the folder is ours");
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let manifest = honest.path.join(honest.manifest);
    if name != honest.manifest {
        let json = common::damage::with_checksum(&honest.json, name, &whole, bytes);
        std::fs::write(&manifest, json).expect("the folder is ours");
    }
    read(&honest.path);
    std::fs::write(file, whole).expect("the folder is ours");
    std::fs::write(&manifest, &honest.json).expect("the folder is ours");
}

fn recording(input: &[u8]) {
    changed(&RECORDING, input, |path| {
        if let Ok(recording) = Recording::open(path) {
            reports(&recording);
        }
    });
}

fn seed_windows() -> Vec<Vec<u8>> {
    let file = super::folder().join("seed.window");
    recording::window::pack(&honest(&RECORDING).path, &file).expect("it is complete");
    vec![std::fs::read(&file).expect("it was written")]
}

/// What the server does with what an agent sends.
fn window(input: &[u8]) {
    let path = super::folder().join("window");
    let mut input = input.to_vec();
    input.chunks_exact_mut(512).for_each(with_tar_checksum);
    if recording::window::unpack(&*input, &path, MIB as u64).is_ok() {
        if let Ok(recording) = Recording::open(&path) {
            reports(&recording);
        }
        std::fs::remove_dir_all(&path).expect("the folder is ours");
    }
    assert!(!path.exists(), "what is refused leaves nothing");
}

/// A mutant's header is not refused for its checksum alone.
fn with_tar_checksum(block: &mut [u8]) {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    if &block[257..262] == b"ustar" {
        block[CHECKSUM].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// What `report` and `steal` do.
fn reports(recording: &Recording) {
    let (header, tables) = (&recording.header, &recording.tables);
    let Ok(selection) = Selection::new(tables, View::Unified, None, None, None) else { return };
    let resolver = Resolver::new(tables);
    let query = Query { selection, by: By::Function, limit: Some(20) };
    let mut aggregator = Aggregator::new(&resolver, header, query);
    let mut builder = VcpuTimelinesBuilder::new(&resolver, header, header.off_cpu_source);
    let samples = recording.for_each_batch(&mut |batch| {
        batch.iter().for_each(|sample| aggregator.push(sample));
    });
    if samples.is_err() || recording.replay(&mut [&mut builder]).is_err() {
        return;
    }
    let profile = aggregator.finish_on(&builder.finish());
    let report = analysis::report::profile(&profile, Width::Unlimited);
    let texts = [report.text(Width::Unlimited), report.csv(), table::pretty(&report.json)];
    assert!(texts.iter().all(|text| !text.contains('\u{1b}')));
}

fn trace(input: &[u8]) {
    changed(&TRACE, input, |path| {
        if let Ok(trace) = Trace::open(path) {
            views(&trace);
        }
    });
}

fn views(trace: &Trace) {
    let Ok(events) = trace.events() else { return };
    for (machine, _) in (0..).zip(&trace.tables.machines) {
        let timeline = timeline::build(&trace.tables, MachineId(machine), &events);
        let findings = Findings::new(&trace.tables, &timeline, None);
        let _ = (findings.profile(), findings.states(), findings.kernel(), findings.path());
        let _ = findings.life();
    }
}

fn seed_numbers() -> Vec<Vec<u8>> {
    (0..64_u64).map(|seed| seed.to_le_bytes().to_vec()).collect()
}

/// Any tables: what is written is read again.
fn written(input: &[u8]) {
    let mut wild = common::Wild::new(super::Numbers(input).u64() | 1);
    let (mut header, tables) = (wild.header(), wild.tables());
    let cpus: Vec<_> = (0..2).map(|cpu| wild.samples(cpu, 20, &tables)).collect();
    let switches = wild.switches(20, &tables);
    if wild.below(4_u32) == 0 {
        (header.start, header.end) = (model::HostNs(0), model::HostNs(model::HostNs::MAX.0));
    }
    let path = super::folder().join("written");
    common::write_with_switches(&path, &(header, tables, cpus), &[switches]);
    reports(&Recording::open(&path).expect("what is written is read"));
    std::fs::remove_dir_all(&path).expect("the folder is ours");
}

fn written_trace(input: &[u8]) {
    let mut wild = common::Wild::new(super::Numbers(input).u64() | 1);
    let (header, tables) = (wild.trace_header(), wild.trace_tables());
    let events: Vec<_> = (0..2).map(|cpu| wild.events((0, cpu), 30, &tables)).collect();
    let path = super::folder().join("written-trace");
    common::traces::write(&path, &header, &tables, &events);
    views(&Trace::open(&path).expect("what is written is read"));
    std::fs::remove_dir_all(&path).expect("the folder is ours");
}

fn seed_logs() -> Vec<Vec<u8>> {
    let lines = include_bytes!("../../../boot/tests/golden/lines.jsonl");
    let codes = include_bytes!("../../../boot/tests/golden/qr.txt");
    let results = lines::parse(lines).expect("it is good");
    let file = json::result_file(&results, "serial").expect("its keys are strings");
    vec![lines.to_vec(), codes.to_vec(), file.into_bytes()]
}

fn bench(input: &[u8]) {
    let mut machines = Vec::new();
    for results in
        [lines::parse(input).ok(), qr::parse(input).ok(), json::parse_result_file(input).ok()]
            .into_iter()
            .flatten()
    {
        let text = report::results(&results).text(Width::Unlimited);
        assert!(!text.contains('\u{1b}'));
        let again = json::result_file(&results, "serial").expect("its keys are strings");
        let read = json::parse_result_file(again.as_bytes());
        machines.push(Labelled { label: "a".into(), results: read.expect("it is read again") });
    }
    if let Some(first) = machines.pop() {
        let other = Labelled { label: "b".into(), results: first.results.clone() };
        let both = [first, other];
        drop(report::comparison(&compare(&both), microbench::compare::Unit::Ticks));
    }
}
