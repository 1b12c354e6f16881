//! What vmscope costs its host: the collector's CPU and memory while recording, the programs' build time.
//!
//! Prints JSON; asserts nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use acceptance::{root, vmscope};
use anyhow::Context;
use clap::Parser;
use serde_json::{Value, json};

/// Measure the collector's CPU and memory while it records this machine, and clean build times.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  measure --seconds 20 --build")]
struct Args {
    /// How long to record
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Build each program from nothing as well (minutes)
    #[arg(long)]
    build: bool,
}

#[expect(clippy::print_stdout, reason = "the figures are what the program is for")]
fn main() -> ExitCode {
    let args = Args::parse();
    let measured = measure(&args);
    match measured {
        Ok(figures) => {
            println!("{figures:#}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("measure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<Value> {
    let folder = std::env::temp_dir().join(format!("vmscope-measure-{}", std::process::id()));
    std::fs::create_dir_all(&folder).context("failed to create a folder")?;
    let mut figures = json!({
        "collector": collector(&folder, args.seconds, &[])?,
        "collector_with_call_graphs": collector(&folder, args.seconds, &["--call-graph", "fp"])?,
    });
    if args.build {
        figures["clean_build_seconds"] = json!({
            "vmscope": clean_build(&folder, &["-p", "vmscope"])?,
            "vmscope-guest": clean_build(
                &folder,
                &["-p", "vmscope-guest", "--target", "x86_64-unknown-linux-musl"],
            )?,
        });
    }
    std::fs::remove_dir_all(&folder).context("failed to remove the folder")?;
    Ok(figures)
}

/// Watches a recording of this machine from outside, by /proc.
fn collector(folder: &Path, seconds: u32, arguments: &[&str]) -> anyhow::Result<Value> {
    let recording = folder.join(format!("recording{}", arguments.len()));
    let mut child = Command::new(vmscope()?)
        .args(["record", "--duration", &seconds.to_string(), "-o"])
        .arg(&recording)
        .args(arguments)
        .spawn()
        .context("failed to run vmscope record")?;
    let proc = PathBuf::from(format!("/proc/{}", child.id()));
    // By now it samples; what it does before and after is another figure.
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_ticks(&proc);
    let watched = Instant::now();
    std::thread::sleep(Duration::from_secs(u64::from(seconds.saturating_sub(4))));
    let ticks = cpu_ticks(&proc).zip(before).map(|(after, before)| after - before);
    let (watched, resident) = (watched.elapsed().as_secs_f64(), kib(&proc, "VmRSS:"));
    let mut peak = None;
    while child.try_wait().context("failed to wait for vmscope record")?.is_none() {
        peak = kib(&proc, "VmHWM:").max(peak);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(json!({
        "cpu_percent_while_sampling": ticks.map(|ticks| ticks as f64 / watched), // 100 ticks a second
        "resident_kib_while_sampling": resident,
        "peak_kib_to_the_end": peak,
    }))
}

/// utime + stime of /proc/PID/stat, in ticks of 10 ms.
fn cpu_ticks(proc: &Path) -> Option<u64> {
    let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn kib(proc: &Path, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(proc.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn clean_build(folder: &Path, arguments: &[&str]) -> anyhow::Result<f64> {
    let target = folder.join("target");
    let begun = Instant::now();
    let status = Command::new("cargo")
        .args(["build", "--locked", "--quiet"])
        .args(arguments)
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(root())
        .status()
        .context("failed to run cargo")?;
    anyhow::ensure!(status.success(), "the build failed");
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&target).context("failed to remove the built files")?;
    Ok(seconds)
}
