//! The experiments: each runs scenario files, and is compared with the original's published figure.
//!
//! Prints a table and writes `target/experiments.json` with the same. Exit code 1 when one fails.

use std::path::PathBuf;
use std::process::ExitCode;

use acceptance::root;
use anyhow::{Context, bail};
use clap::Parser;
use experiments::marks::{MARKS, Mark, Outcome};
use serde_json::{Value, json};

/// Run the experiments on the virtual host and compare them with the published marks.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  experiments --only S0.1 S0.4")]
struct Args {
    /// Only these marks
    #[arg(long, value_name = "MARK", num_args = 1..)]
    only: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("experiments: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let wanted =
        |mark: &&Mark| args.only.is_empty() || args.only.iter().any(|only| only == mark.name);
    let chosen: Vec<&Mark> = MARKS.iter().filter(wanted).collect();
    if chosen.len() < args.only.len() || chosen.is_empty() {
        let known: Vec<_> = MARKS.iter().map(|mark| mark.name).collect();
        bail!("there is no such experiment: choose one of {}", known.join(", "));
    }
    let folder = std::env::temp_dir().join(format!("vmscope-experiments-{}", std::process::id()));
    let mut outcomes = Vec::new();
    let mut failed = Vec::new();
    for mark in chosen {
        let files = folder.join(mark.name);
        std::fs::create_dir_all(&files).context("failed to create a folder for the recordings")?;
        match (mark.experiment)(&files) {
            Ok(more) => outcomes.extend(more),
            Err(error) => {
                eprintln!("experiments: {} failed: {error:#}", mark.name);
                failed.push(mark.name);
            }
        }
    }
    std::fs::remove_dir_all(&folder).context("failed to remove the recordings")?;
    publish(&outcomes)?;
    if !failed.is_empty() {
        bail!("without a result: {}", failed.join(", "));
    }
    Ok(outcomes.iter().all(|outcome| outcome.pass))
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn publish(outcomes: &[Outcome]) -> anyhow::Result<()> {
    println!("{:5} {:46} {:36} {:60} {:18} pass", "mark", "what", "original", "ours", "limit");
    for o in outcomes {
        let pass = if o.pass { "yes" } else { "NO" };
        println!(
            "{:5} {:46} {:36} {:60} {:18} {pass}",
            o.mark, o.what, o.original, o.ours, o.limit
        );
    }
    let rows: Vec<Value> = outcomes
        .iter()
        .map(|o| {
            json!({"mark": o.mark, "what": o.what, "original": o.original, "ours": o.ours,
                   "limit": o.limit, "pass": o.pass})
        })
        .collect();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    let file = target.join("experiments.json");
    std::fs::write(&file, serde_json::to_string_pretty(&rows)?)
        .with_context(|| format!("failed to write {}", file.display()))?;
    println!("written to {}", file.display());
    Ok(())
}
