//! Feeds mutated bytes to the parsers of what guests, host processes and files say: `make fuzz TARGET=... SECONDS=...`.
//!
//! ```text
//!   seeds (made by our own writers, and seeds/TARGET/*) --> corpus --> mutate --> target
//!                                                             ^                     |  reached something new
//!                                                             +---------------------+
//! ```
//! A target may not panic, take longer than `SECONDS_EACH`, or allocate more than its budget. What does is written to
//! `target/fuzz/TARGET-*`, and can be fed again by its path.
//!
//! Design constraints: a stable compiler and no dependencies; the coverage of `-C instrument-coverage` where it is
//! compiled in; the same seed gives the same inputs.

#![allow(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a program that tells figures"
)]

mod coverage;
mod memory;
mod mutate;
mod targets;

use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use self::coverage::Coverage;
use self::mutate::Random;
use self::targets::Target;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Of CPU, for one input.
const SECONDS_EACH: u64 = 20;
/// Inputs kept for mutation.
const CORPUS: usize = 4096;

/// The input that is being fed, and its target; it is written down at the program's end.
static CURRENT: Mutex<(&str, Vec<u8>)> = Mutex::new(("", Vec::new()));
/// Which input is being fed; 0: none.
static RUN: AtomicU64 = AtomicU64::new(0);

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let names = || targets::all().iter().map(|target| target.name).collect::<Vec<_>>().join(" ");
    let usage = || format!("usage: fuzz TARGET SECONDS|FILE... or --list; targets: {}", names());
    let name = arguments.next().with_context(usage)?;
    if name == "--list" {
        println!("{}", names());
        return Ok(ExitCode::SUCCESS);
    }
    let targets = targets::all();
    let target = targets.iter().find(|target| target.name == name).with_context(usage)?;
    watch();
    hide_panics();
    let rest: Vec<String> = arguments.collect();
    match rest.as_slice() {
        [seconds] if seconds.parse::<u64>().is_ok() => {
            fuzz(target, Duration::from_secs(seconds.parse()?))
        }
        [] => anyhow::bail!(usage()),
        files => {
            for file in files {
                let input =
                    std::fs::read(file).with_context(|| format!("failed to read {file}"))?;
                let (outcome, peak) = feed(target, &input);
                println!("{file}: {outcome:?}, {} KiB", peak >> 10);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn fuzz(target: &Target, time: Duration) -> anyhow::Result<ExitCode> {
    let mut corpus = (target.seeds)();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    for file in std::fs::read_dir(&folder).into_iter().flatten() {
        corpus.push(std::fs::read(file?.path())?);
    }
    anyhow::ensure!(!corpus.is_empty(), "{} has no seeds", target.name);
    let (mut coverage, mut random) = (Coverage::new(), Random::new(0x9e37_79b9_7f4a_7c15));
    let (mut found, mut highest) = (BTreeSet::new(), 0);
    let (began, mut runs) = (Instant::now(), 0_u64);
    let seeds = corpus.len();
    while began.elapsed() < time {
        let input = next_input(target, &corpus, runs, seeds, &mut random);
        coverage.begin();
        let (outcome, peak) = feed(target, &input);
        let is_new = coverage.is_new();
        runs += 1;
        highest = highest.max(peak);
        match outcome {
            Outcome::Fine if is_new && runs > seeds as u64 => keep(&mut corpus, input, &mut random),
            Outcome::Fine => {}
            Outcome::Panicked(place) => {
                if found.insert(place.clone()) {
                    println!(
                        "{}: panicked at {place}: {}",
                        target.name,
                        leave(target.name, &input).display()
                    );
                }
            }
        }
    }
    println!(
        "{:10} {runs:>9} inputs in {:>4} s, {:>6} places reached, corpus {seeds} -> {}, at most {} KiB, {} findings",
        target.name,
        began.elapsed().as_secs(),
        coverage.reached(),
        corpus.len(),
        highest >> 10,
        found.len()
    );
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The seeds as they are, then mutants; the latest of the corpus are likelier.
fn next_input(
    target: &Target,
    corpus: &[Vec<u8>],
    runs: u64,
    seeds: usize,
    random: &mut Random,
) -> Vec<u8> {
    if let Some(seed) = usize::try_from(runs).ok().filter(|run| *run < seeds) {
        return corpus[seed].clone();
    }
    let half = corpus.len() / 2;
    let chosen = if random.below(2) == 0 {
        random.below(corpus.len())
    } else {
        half + random.below(corpus.len() - half)
    };
    let mut input = corpus[chosen].clone();
    let other = &corpus[random.below(corpus.len())];
    mutate::mutate(random, &mut input, other, target.words, target.longest);
    input
}

fn keep(corpus: &mut Vec<Vec<u8>>, input: Vec<u8>, random: &mut Random) {
    if corpus.len() < CORPUS {
        corpus.push(input);
    } else {
        corpus[random.below(CORPUS)] = input;
    }
}

#[derive(Debug)]
enum Outcome {
    Fine,
    Panicked(String),
}

fn feed(target: &Target, input: &[u8]) -> (Outcome, usize) {
    if let Ok(mut current) = CURRENT.lock() {
        current.0 = target.name;
        current.1.clear();
        current.1.extend_from_slice(input);
    }
    static RUNS: AtomicU64 = AtomicU64::new(0);
    RUN.store(RUNS.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    let live = memory::begin(target.budget);
    let result = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let peak = memory::peak_since(live);
    RUN.store(0, Ordering::Relaxed);
    let outcome = match result {
        Ok(()) => Outcome::Fine,
        Err(_) => Outcome::Panicked(PLACE.lock().map(|place| place.clone()).unwrap_or_default()),
    };
    (outcome, peak)
}

/// Where the last panic was.
static PLACE: Mutex<String> = Mutex::new(String::new());

fn hide_panics() {
    panic::set_hook(Box::new(|info| {
        if let Ok(mut place) = PLACE.lock() {
            *place = info.location().map_or_else(String::new, ToString::to_string);
        }
    }));
}

/// Ends the program when an input takes too long.
fn watch() {
    std::thread::spawn(|| {
        let mut last = (0, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let run = RUN.load(Ordering::Relaxed);
            last = if run != 0 && run == last.0 { (run, last.1 + 1) } else { (run, 0) };
            if SECONDS_EACH < last.1 {
                give_up("takes longer than it may");
            }
        }
    });
}

/// Writes the current input down and ends the program.
fn give_up(why: &str) -> ! {
    let (name, input) = match CURRENT.try_lock() {
        Ok(current) => (current.0, current.1.clone()),
        Err(_) => ("unknown", Vec::new()),
    };
    println!("{name}: {why}: {}", leave(name, &input).display());
    std::process::abort();
}

/// Writes an input where it can be found again.
fn leave(name: &str, input: &[u8]) -> PathBuf {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz-findings");
    let path = folder.join(format!("{name}-{hash:016x}"));
    // Nothing else could be done about it.
    let _ = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    path
}
