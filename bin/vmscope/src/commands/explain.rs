//! `vmscope explain`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use analysis::Resolver;
use analysis::results::{ResultsBuilder, SLICE_NS};
use anyhow::Context;
use detect::Summary;
use model::WindowKey;
use recording::Recording;
use view::clean;

use super::Usage;
use super::open_recording::Format;
use super::output::print;

const EXAMPLE: &str = "Examples:
  vmscope explain day1 web                 what VM web lost, to whom, what to do
  vmscope explain day1                     the same of every VM
  vmscope explain day1 web --format json";

/// Show what a VM lost, to whom, and what to do about it.
///
/// Each piece of advice says how many CPUs it would give back. docs/detection.md explains the causes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The recording's folder
    dir: PathBuf,
    /// The VM [default: all]
    vm: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let window = summary(&Recording::open(&args.dir)?)?;
    let vms: Vec<&String> = match &args.vm {
        Some(name) if !window.vms.contains_key(name) => {
            let text = format!("this recording has no VM `{}`", clean(name));
            return Err(Usage(text).into());
        }
        Some(name) => vec![name],
        None if window.vms.is_empty() => {
            let text = "this recording has no VM: record while one runs";
            return Err(Usage(text.to_owned()).into());
        }
        None => window.vms.keys().collect(),
    };
    let findings: Vec<_> = vms.iter().flat_map(|vm| detect::explain(&window, vm)).collect();
    let report = view::findings(&findings);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The whole recording as one window.
fn summary(recording: &Recording) -> anyhow::Result<Summary> {
    let header = &recording.header;
    let resolver = Resolver::new(&recording.tables);
    let mut builder = ResultsBuilder::new(&resolver, header);
    recording.for_each_switch_batch(&mut |batch| {
        batch.iter().for_each(|switch| builder.push_switch(switch));
    })?;
    recording.for_each_batch(&mut |batch| {
        batch.iter().for_each(|sample| builder.push_sample(sample));
    })?;
    let window = WindowKey::new(header.hostname.clone(), header);
    let results = builder.finish(&Arc::new(window), SLICE_NS);
    Summary::from_results(&results).context("the recording has no host")
}
