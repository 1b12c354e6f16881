//! `vmscope steal`.

use std::process::ExitCode;

use analysis::report::{StealBy, StealQuery};
use anyhow::Context;
use clap::ValueEnum;

use cli::TimeRange;
use cli::{Format, Source};
use cli::{count, print};

/// Lines of a text table unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 30;

const EXAMPLE: &str = "Columns, which add up to 100 %:
  guest         executed guest code
  halt          slept because the guest was idle
  halt polling  guest idle, while KVM polled on the CPU for its wake-up
  steal type 1  runnable, but another thread (the thief) had the CPU
  steal type 2  in the VMM (KVM or QEMU) for a VM exit, running or asleep
  throttled     held back by a CPU quota
  paused        paused by the VMM: stopped, migrated, saved or debugged
  not sampled   on a CPU, but without a sample
  unknown       no data

Examples:
  vmscope steal day1                    every VM's time; who took whose CPU
  vmscope steal day1 --vm web           one VM: its thieves, and its VM exits
  vmscope steal day1 --from 12 --to 14.5
                                        only these two and a half seconds
  vmscope steal day1 --vm web --by process
                                        which of its processes lost time
  vmscope steal day1 --vm web --by stack
                                        by which calls their functions were reached
  vmscope steal day1 --vm web --by function --format csv >suffered.csv";

/// Print each VM's time by state, and who stole CPU time from which guest code.
///
/// docs/steal.md explains thieves, exit reasons and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    range: TimeRange,
    /// Rows of the table [default with --vm: thieves and exit reasons]
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Maximum number of lines in a table, 0 for all [default: 30 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// The thread that had the CPU (type 1)
    Thief,
    /// The exit reason (type 2)
    Reason,
    /// The guest function that lost the time
    Function,
    /// The same with its callers; needs record --call-graph
    Stack,
    /// The guest process that lost the time
    Process,
    /// The guest thread that lost the time
    Thread,
}

impl From<By> for StealBy {
    fn from(by: By) -> Self {
        match by {
            By::Thief => Self::Thief,
            By::Reason => Self::Reason,
            By::Function => Self::Function,
            By::Stack => Self::Stack,
            By::Process => Self::Process,
            By::Thread => Self::Thread,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (recording, axis) = match args.by {
        Some(By::Stack) => args.source.open_with_callers(args.range)?,
        _ => args.source.open(args.range)?,
    };
    let query = StealQuery {
        vms: recording.vms(args.source.vm.as_deref())?,
        all: args.source.vm.is_none(),
        by: args.by.map(StealBy::from),
        limit: match (args.limit, args.format) {
            (Some(0), _) | (None, Format::Json | Format::Csv) => None,
            (Some(limit), _) => Some(limit),
            (None, Format::Text) => Some(TEXT_LIMIT),
        },
    };
    let report = analysis::report::steal(&recording.vcpu_time(&axis), &query, args.format.width());
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
