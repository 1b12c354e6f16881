//! The experiments: each runs scenario files, and is compared with the original's published figure.
//!
//! Prints a table, and writes each experiment's results to `target/figures/MARK.toml`, in the form of `docs/figures`.
//! Exit code 1 when one fails.

use std::process::ExitCode;

use acceptance::figures::Figures;
use anyhow::{Context, bail};
use clap::Parser;
use experiments::marks::{MARKS, Mark, Outcome};

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
        let load = load_average();
        match (mark.experiment)(&files) {
            Ok(more) => {
                figures(mark.name, &load, &more).write_new(mark.name)?;
                outcomes.extend(more);
            }
            Err(error) => {
                eprintln!("experiments: {} failed: {error:#}", mark.name);
                failed.push(mark.name);
            }
        }
    }
    std::fs::remove_dir_all(&folder).context("failed to remove the recordings")?;
    print(&outcomes);
    if !failed.is_empty() {
        bail!("without a result: {}", failed.join(", "));
    }
    Ok(outcomes.iter().all(|outcome| outcome.pass))
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn print(outcomes: &[Outcome]) {
    println!("{:5} {:46} {:36} {:60} {:18} pass", "mark", "what", "original", "ours", "limit");
    for o in outcomes {
        let pass = if o.pass { "yes" } else { "NO" };
        println!(
            "{:5} {:46} {:36} {:60} {:18} {pass}",
            o.mark, o.what, o.original, o.ours, o.limit
        );
    }
}

/// The first number of /proc/loadavg; empty where there is none.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Results in the form of docs/figures.
fn figures(name: &str, load: &str, outcomes: &[Outcome]) -> Figures {
    Figures {
        command: format!("make experiments ONLY={name}"),
        conditions: format!("load {load} at the beginning"),
        columns: ["what", "measured", "original", "limit"].map(str::to_owned).to_vec(),
        rows: outcomes.iter().map(row).collect(),
        ..Figures::default()
    }
}

fn row(outcome: &Outcome) -> Vec<String> {
    let known = |text: &str| if text == "-" { String::new() } else { text.to_owned() };
    let missed = if outcome.pass { "" } else { " (missed)" };
    let limit = format!("{}{missed}", outcome.limit);
    vec![outcome.what.clone(), outcome.ours.clone(), known(outcome.original), limit]
}
