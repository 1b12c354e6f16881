//! `vmscope exits`.

use std::process::ExitCode;

use analysis::report::ExitsBy;
use anyhow::Context;
use clap::ValueEnum;

use cli::TimeRange;
use cli::print;
use cli::{Format, Source};

const EXAMPLE: &str = "Examples:
  vmscope record -o day1 --exits --duration 20
                              count VM exits while sampling
  vmscope exits day1          count and time of each exit reason
  vmscope exits day1 --vm web --by function
                              the guest functions that cause exits
  vmscope exits day1 --vm web --by stack
                              the same with their callers";

/// Print VM exits: counts and time by exit reason, and the guest functions that cause them.
///
/// Counts need a recording made with --exits, and cover all of it: --from and --to hide them. Times and functions come
/// from the samples. docs/steal.md explains columns and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    range: TimeRange,
    /// Rows of the table
    #[arg(long, value_enum, default_value_t = By::Reason)]
    by: By,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// The exit reason
    Reason,
    /// The guest function that was running at the exit
    Function,
    /// The same with its callers; needs record --call-graph
    Stack,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (recording, axis) = match args.by {
        By::Stack => args.source.open_with_callers(args.range)?,
        _ => args.source.open(args.range)?,
    };
    let vms = recording.vms(args.source.vm.as_deref())?;
    let by = match args.by {
        By::Reason => ExitsBy::Reason,
        By::Function => ExitsBy::Function,
        By::Stack => ExitsBy::Stack,
    };
    let report = analysis::report::exits(&recording.vcpu_time(&axis), &vms, by);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
