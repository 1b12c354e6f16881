//! `vmscope trace`.

mod compare;
mod export;
mod open_trace;
mod paired_recording;
pub(super) mod progress;
mod record;
mod report;

use std::process::ExitCode;

pub(crate) use progress::Beginning;
pub(crate) use record::{End, buffer, code, host_plan, not_executed, passed_on};

use clap::Subcommand;

/// Trace a command, and show what it waited for and what would make it faster.
///
/// docs/trace.md explains views, figures and JSON.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope trace record -o seq -- make         every event while make runs
  vmscope trace report seq                    why did it take so long?
  vmscope trace report seq --view waits       what its processes waited for
  vmscope trace compare seq par               two traces side by side
  vmscope trace export seq --format html -o seq.html";

#[derive(Debug, Subcommand)]
enum Action {
    Record(record::Args),
    Report(report::Args),
    Compare(compare::Args),
    Export(export::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Record(args) => record::run(args),
        Action::Report(args) => report::run(args),
        Action::Compare(args) => compare::run(args),
        Action::Export(args) => export::run(args),
    }
}
