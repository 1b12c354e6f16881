//! `vmscope meter`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use analysis::Resolver;
use analysis::report::Gap;
use analysis::results::{ResultsBuilder, SLICE_NS};
use anyhow::Context;
use model::{Header, Results, WindowKey};
use recording::Recording;
use table::clean;

use cli::{Format, Usage, count, print};

/// Lines of a text table unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 30;

const EXAMPLE: &str = "Lines, whose apparent and not charged time adds up to the time of all vCPUs:
  process       time of a guest's process
  unattributed  different processes before and after
  idle          the guest wanted nothing, or the VMM had paused it
  unknown       no data
  gap           time of the host between recordings

Examples:
  vmscope meter day1                       by VM and process
  vmscope meter hour1 hour2 --format csv   for accounting, in ns
  vmscope query run metering --from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z
                                           the same of a fleet";

/// Print CPU time to charge for: corrected and apparent, by day, VM, label and process.
///
/// Corrected time is without steal and throttling. docs/steal.md explains the columns.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Folders of recordings that do not overlap
    #[arg(required = true, value_name = "RECORDING")]
    folders: Vec<PathBuf>,
    /// Maximum number of lines, 0 for all [default: 30 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut windows = Vec::new();
    let mut headers = Vec::new();
    for folder in &args.folders {
        let recording = Recording::open(folder)?;
        windows.push(results(&recording)?);
        headers.push(recording.header);
    }
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv) => None,
        (limit, _) => limit.or(Some(TEXT_LIMIT)),
    };
    let report = analysis::report::meter(&windows, &gaps(headers)?, limit);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn results(recording: &Recording) -> anyhow::Result<Results> {
    let header = &recording.header;
    let resolver = Resolver::new(&recording.tables);
    let mut builder = ResultsBuilder::new(&resolver, header);
    recording.replay(&mut [&mut builder])?;
    Ok(builder.finish(&Arc::new(WindowKey::new(header.hostname.clone(), header)), SLICE_NS))
}

/// Time between the recordings of each host, by one clock where they are of one boot.
fn gaps(mut headers: Vec<Header>) -> Result<Vec<Gap>, Usage> {
    headers.sort_by(|a, b| (&a.hostname, a.start_unix_ns).cmp(&(&b.hostname, b.start_unix_ns)));
    let mut gaps = Vec::new();
    for pair in headers.windows(2) {
        let [before, after] = pair else { continue };
        if before.hostname != after.hostname {
            continue;
        }
        let one_boot = before.boot.is_some() && before.boot == after.boot;
        let (end, start) = if one_boot {
            (before.end.0, after.start.0)
        } else {
            let length_ns = before.end.since(before.start);
            (before.start_unix_ns.saturating_add(length_ns), after.start_unix_ns)
        };
        let host = after.hostname.clone();
        let Some(ns) = start.checked_sub(end) else {
            let text = format!("recordings of {} overlap: give each time once", clean(&host));
            return Err(Usage(text));
        };
        gaps.push(Gap { host, ns });
    }
    Ok(gaps)
}
