//! How well real faults are found: `replay_faults FOLDER`, with recordings of a virtual host.
//!
//! FOLDER has a recording `quiet` and one of each fault (`scenarios/faults.sh`), which are cut into windows of 5 s. A run
//! plays quiet windows, drawn at random, on five hosts. On one of them, from a random window on, it plays those of a fault.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use analysis::Resolver;
use analysis::results::ResultsBuilder;
use detect::{Cause, Change, Detector, Finding, FindingId, Owner, Summary};
use model::{ResultRow, Results, WindowKey};
use recording::Recording;

const WINDOW_S: u32 = 5;
const WINDOW_NS: u64 = WINDOW_S as u64 * 1_000_000_000;
const HOSTS: usize = 5;
const RUNS: u64 = 20;
/// Windows of a fault.
const LASTS: u32 = 12;
/// 2026-02-02 00:00 UTC.
const START_S: u32 = 1_769_990_400;

/// Its recording, and whether a cause is the right one.
type Fault = (&'static str, fn(&Cause) -> bool);

const FAULTS: [Fault; 6] = [
    ("vm", |cause| {
        matches!(cause, Cause::Thief { owner: Owner::Vm(vm), functions, .. }
            if vm == "batch" && functions.iter().any(|(code, _)| code.function == "compute_a"))
    }),
    ("build", |cause| {
        matches!(cause, Cause::Function { code, build: Some((before, after)), .. }
            if code.function == "look_up" && before != after)
    }),
    ("exits", |cause| {
        matches!(cause, Cause::Exits { reason, functions, .. }
            if ["io", "cpuid", "msr"].iter().any(|known| reason.starts_with(known)) && !functions.is_empty())
    }),
    ("quota", |cause| matches!(cause, Cause::Quota { .. })),
    (
        "convoy",
        |cause| matches!(cause, Cause::Function { is_lock: true, code, .. } if code.process == "convoy"),
    ),
    (
        "kthread",
        |cause| matches!(cause, Cause::Thief { owner: Owner::KernelThread(name), .. } if name.starts_with("kpktgend")),
    ),
];

fn main() -> ExitCode {
    let folder = std::env::args().nth(1).unwrap();
    let folder = Path::new(&folder);
    let quiet = windows(&folder.join("quiet"));
    println!(
        "{} quiet windows of {WINDOW_S} s; {RUNS} runs of each fault on {HOSTS} hosts\n",
        quiet.len()
    );
    println!(
        "| fault | windows | in 3 windows | right cause | delay: median, most | other findings |"
    );
    println!("|---|---|---|---|---|---|");
    let mut is_good = true;
    for (name, is_right) in FAULTS {
        let faulty = windows(&folder.join(name));
        let runs: Vec<Run> = (0..RUNS).map(|seed| run(seed, &quiet, &faulty, is_right)).collect();
        let mut delays: Vec<u32> = runs.iter().filter_map(|run| run.delay).collect();
        delays.sort_unstable();
        let in_three = delays.iter().filter(|delay| **delay <= 3).count();
        let right = runs.iter().filter(|run| run.is_right).count();
        let others: usize = runs.iter().map(|run| run.others).sum();
        let (median, most) = (delays.get(delays.len() / 2), delays.last());
        println!(
            "| {name} | {} | {in_three} of {RUNS} | {right} | {}, {} | {others} |",
            faulty.len(),
            median.copied().unwrap_or(0),
            most.copied().unwrap_or(0),
        );
        if let Some(wrong) = runs.iter().find(|run| !run.is_right) {
            eprintln!("{name}: {:#?}", wrong.finding);
        }
        is_good &= 19 <= in_three && 19 <= right;
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Run {
    /// Windows after the first of the fault.
    delay: Option<u32>,
    is_right: bool,
    others: usize,
    finding: Option<Finding>,
}

fn run(seed: u64, quiet: &[Summary], faulty: &[Summary], is_right: fn(&Cause) -> bool) -> Run {
    let mut random = Random(seed * 1009 + 17);
    let (host, begin) = (random.below(HOSTS), 70 + u32::try_from(random.below(130)).unwrap_or(0));
    let mut detector = Detector::new();
    let mut opened: Vec<(u32, FindingId)> = Vec::new();
    let mut others = 0;
    for number in 0..begin + LASTS {
        for n in 0..HOSTS {
            let is_fault = n == host && begin <= number;
            let all = if is_fault { faulty } else { quiet };
            let window = Summary {
                host: format!("kvm{n}"),
                window_ns: u64::from(number) * WINDOW_NS,
                start_s: START_S + number * WINDOW_S,
                ..all[random.below(all.len())].clone()
            };
            for change in detector.take(window) {
                match change {
                    // Samples are missing on an emulated host all the time, and it says so of each.
                    Change::Opened(finding) if matches!(finding.cause, Cause::Collection(_)) => {}
                    Change::Opened(finding) if is_fault => opened.push((number, finding.id)),
                    Change::Opened(_) => others += 1,
                    _ => {}
                }
            }
        }
    }
    let named = |id: FindingId| detector.open().find(|finding| finding.id == id).cloned();
    let first = opened.first().copied();
    let finding = first.and_then(|(_, id)| named(id));
    Run {
        delay: first.map(|(number, _)| number - begin),
        is_right: finding.as_ref().is_some_and(|finding| is_right(&finding.cause)),
        others: others + opened.len().saturating_sub(1),
        finding,
    }
}

/// A recording's whole windows.
fn windows(folder: &Path) -> Vec<Summary> {
    let recording = Recording::open(folder).unwrap();
    let header = &recording.header;
    let resolver = Resolver::new(&recording.tables);
    let mut builder = ResultsBuilder::new(&resolver, header);
    recording.replay(&mut [&mut builder]).unwrap();
    let window = Arc::new(WindowKey::new(header.hostname.clone(), header));
    let results = builder.finish(&window, WINDOW_NS);
    let mut slices: Vec<i64> = results.vcpu_time.iter().map(|row| row.slice_unix_us).collect();
    slices.sort_unstable();
    slices.dedup();
    // The first and the last lie partly outside.
    let whole = slices.get(1..slices.len().saturating_sub(1)).unwrap_or_default();
    whole.iter().map(|slice| Summary::from_results(&slice_of(&results, *slice)).unwrap()).collect()
}

/// The rows of a slice, as if it had been a window.
fn slice_of(results: &Results, slice_us: i64) -> Results {
    fn rows<T: Clone>(rows: &[ResultRow<T>], slice_us: i64) -> Vec<ResultRow<T>> {
        rows.iter().filter(|row| row.slice_unix_us == slice_us).cloned().collect()
    }
    let mut hosts = results.hosts.clone();
    for host in hosts.iter_mut().map(|row| &mut row.row) {
        let part = |n: u64| n * WINDOW_NS / host.length_ns.max(1);
        let [taken, lost, missed] =
            [host.samples, host.samples_lost, host.samples_missed].map(part);
        (host.samples, host.samples_lost, host.samples_missed) = (taken, lost, missed);
        host.length_ns = WINDOW_NS;
    }
    Results {
        vcpu_time: rows(&results.vcpu_time, slice_us),
        cpu_time: rows(&results.cpu_time, slice_us),
        exits: rows(&results.exits, slice_us),
        hosts,
        vms: results.vms.clone(),
        health: Vec::new(),
    }
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((b ^ (b >> 31)) % n as u64).unwrap_or(0)
    }
}
