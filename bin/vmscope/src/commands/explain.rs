//! `vmscope explain`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use analysis::Resolver;
use analysis::results::{ResultsBuilder, SLICE_NS};
use anyhow::Context;
use api::http::{FindingEntry, FindingList};
use detect::{Finding, Summary};
use model::WindowKey;
use recording::Recording;
use table::clean;

use super::query::{usage, user};
use cli::Format;
use cli::Usage;
use cli::duration_in_seconds;
use cli::print;

const EXAMPLE: &str = "Examples:
  vmscope explain day1 web                 CPU time that VM web lost, and what helps
  vmscope explain day1                     the same for every VM
  vmscope explain web --since 2h           a server's findings of the last two hours
  vmscope explain kvm1/web --since 2h      where several hosts have a VM web
  vmscope explain day1 web --format json";

/// Print how much CPU time a VM lost, to whom, and what helps.
///
/// Each advice has the number of CPUs that it gives back. With --since, the findings come from the server of `vmscope
/// query login`, which knows what is normal for a VM. docs/detection.md explains the causes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The recording's folder; with --since the VM, as VM or HOST/VM
    #[arg(value_name = "RECORDING|VM")]
    subject: PathBuf,
    /// The VM [default: all]
    #[arg(conflicts_with = "since")]
    vm: Option<String>,
    /// Show the server's findings of this time until now, in seconds (or with a unit: 2h)
    #[arg(long, value_name = "TIME", value_parser = duration_in_seconds)]
    since: Option<Duration>,
    /// Folder with the server's address and token, as `query login` wrote it [default: $XDG_CONFIG_HOME/vmscope/server]
    #[arg(long, value_name = "DIR", requires = "since")]
    login: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let findings = match args.since {
        Some(since) => of_server(args, since)?,
        None => of_recording(args)?,
    };
    let report = detect::report::findings(&findings);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// What a server found about a VM that was still so after a time.
fn of_server(args: &Args, since: Duration) -> anyhow::Result<Vec<Finding>> {
    let subject = args.subject.to_str().context("the VM's name is not UTF-8")?;
    let names = match subject.split_once('/') {
        Some((host, vm)) => vec![("host", host), ("vm", vm)],
        None => vec![("vm", subject)],
    };
    let answer = user(args.login.as_ref())?.get("/v1/findings", &names).map_err(usage)?;
    let list: FindingList =
        serde_json::from_str(&answer).context("failed to read the server's findings")?;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let from_s = now.saturating_sub(since).as_secs();
    let is_recent = |found: &FindingEntry| found.over_unix_s.is_none_or(|over_s| from_s <= over_s);
    let findings = list.findings.into_iter().filter(is_recent).map(Finding::try_from);
    findings.collect::<Result<_, _>>().context("the server sent invalid findings")
}

/// What each VM, or one, lost in a recording.
fn of_recording(args: &Args) -> anyhow::Result<Vec<Finding>> {
    let window = summary(&Recording::open(&args.subject)?)?;
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
    Ok(vms.iter().flat_map(|vm| detect::explain(&window, vm)).collect())
}

/// The whole recording as one window.
fn summary(recording: &Recording) -> anyhow::Result<Summary> {
    let header = &recording.header;
    let resolver = Resolver::new(&recording.tables);
    let mut builder = ResultsBuilder::new(&resolver, header);
    recording.replay(&mut [&mut builder])?;
    let window = WindowKey::new(header.hostname.clone(), header);
    let results = builder.finish(&Arc::new(window), SLICE_NS);
    let mut summary = Summary::from_results(&results).context("the recording has no host")?;
    summary.take_quotas(&recording.tables);
    Ok(summary)
}
