//! `vmscope lab inside`: carries out a job on the KVM host that it runs on.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Context;
use consolidate::{Experiment, Job};

use cli::stop_on_signals;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The job's file
    job: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let job = Job::read(&args.job)?;
    carry_out(&job)?;
    Ok(ExitCode::SUCCESS)
}

/// Carries out a job here.
pub(super) fn carry_out(job: &Job) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    let plan = consolidate::read_plan(&job.plan)?;
    let done = match &job.done {
        Some(folder) => consolidate::read_runs(folder)?,
        None => Vec::new(),
    };
    let experiment = Experiment {
        plan: &plan,
        boots: job.boots.clone(),
        out: job.out.clone(),
        done,
        vmscope: std::env::current_exe().context("failed to find this program")?,
        symbols: symbols::Store::default_path(),
        interrupted: &|| stop.load(Ordering::Relaxed),
        say: &|line| say!("lab: {line}"),
    };
    consolidate::run(&experiment)?;
    Ok(())
}
