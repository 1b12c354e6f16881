//! What sampling costs: instructions per sample of vmscope, of perf and of an empty BPF program, counted by
//! a virtual host whose time is its own instructions.
//!
//! Prints a table and writes `target/overhead.json` and `target/figures/overhead.toml`; compares with
//! `tests/perf/overhead.json`. Exit code 1 when vmscope costs more than it may.

use std::path::PathBuf;
use std::process::ExitCode;

use acceptance::{root, vmscope};
use anyhow::{Context, bail};
use clap::Parser;
use experiments::overhead::{self, Collector, Configuration, Measured};
use serde_json::{Value, json};

/// Measure what sampling costs, and compare it with the checked-in figures.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  overhead --only 'edges samples at 1 ms'")]
struct Args {
    /// Only what has this in its name, and the floor beneath it; compares nothing
    #[arg(long, value_name = "TEXT", conflicts_with = "update")]
    only: Option<String>,
    /// Make these the checked-in figures
    #[arg(long)]
    update: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("overhead: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let measured = overhead::measure(&vmscope()?, &wanted(args.only.as_deref())?)?;
    print(&measured);
    if args.only.is_some() {
        return Ok(true);
    }
    let rows: Vec<Value> = measured.iter().map(|m| m.json(&measured)).collect();
    let figures = json!({ "rows": rows });
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    write(&target.join("overhead.json"), &figures)?;
    overhead::table(&measured).write_new("overhead")?;
    let checked_in = root().join("tests/perf/overhead.json");
    if args.update {
        write(&checked_in, &figures)?;
        return Ok(true);
    }
    let text = std::fs::read(&checked_in).context("failed to read tests/perf/overhead.json")?;
    let before = serde_json::from_slice(&text).context("tests/perf/overhead.json is not JSON")?;
    let mut wrong = overhead::regressions(&measured, &before);
    wrong.extend(overhead::broken_promises(&measured));
    wrong.iter().for_each(|line| eprintln!("overhead: {line}"));
    Ok(wrong.is_empty())
}

fn wanted(only: Option<&str>) -> anyhow::Result<Vec<Configuration>> {
    let all = overhead::all();
    let Some(only) = only else { return Ok(all) };
    let chosen = |c: &&Configuration| c.name().contains(only);
    let periods: Vec<u32> = all.iter().filter(chosen).map(|c| c.period.ns).collect();
    if periods.is_empty() {
        let names: Vec<_> = all.iter().map(Configuration::name).collect();
        bail!("nothing is called so: there is\n{}", names.join("\n"));
    }
    let beneath =
        |c: &Configuration| c.collector == Collector::Floor && periods.contains(&c.period.ns);
    Ok(all.into_iter().filter(|c| chosen(&c) || beneath(c)).collect())
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn print(all: &[Measured]) {
    println!(
        "{:>6}  {:46} {:>12} {:>7} {:>9} {:>10}",
        "ms", "collector", "instructions", "above", "per cent", "original"
    );
    for m in all {
        let above = m.above_floor(all).map_or_else(String::new, |above| format!("{above:.0}"));
        println!(
            "{:>6}  {:46} {:>12.0} {:>7} {:>9.3} {:>10}",
            m.configuration.period_ms(),
            m.configuration.label(),
            m.instructions,
            above,
            m.per_cent(),
            m.configuration.period.original,
        );
    }
    println!("instructions: per sample, all included; above: less those of the empty program;");
    println!("per cent: of a CPU that runs one per ns; original: what the thesis published");
    if let Some(spread) = overhead::spread(all) {
        println!("measured twice in one run, the same came out {spread:.0} instructions apart");
    }
}

fn write(file: &std::path::Path, figures: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(figures)? + "\n";
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
