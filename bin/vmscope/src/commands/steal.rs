//! `vmscope steal`.

use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use view::{StealBy, StealQuery};

use super::open_recording::{Format, OpenRecording, Source};
use super::output::{count, print};

/// Lines of a text table unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 30;

const EXAMPLE: &str = "Columns, which add up to 100 %:
  guest         ran its guest
  halt          slept: its guest had nothing to do
  halt polling  the same, while the host polled on the CPU for the halt's end
  steal type 1  could run, and somebody else (a thief) had the CPU
  steal type 2  was in the VMM (KVM or QEMU) for a VM exit, on a CPU or asleep
  throttled     was held back by a CPU quota
  not sampled   was on a CPU, and no sample says doing what
  unknown       nothing was seen of it

Examples:
  vmscope steal day1                    every VM's time; who took whose CPU
  vmscope steal day1 --vm web           one VM: its thieves, and its VM exits
  vmscope steal day1 --vm web --by process
                                        which of its processes suffered
  vmscope steal day1 --vm web --by function --format csv >suffered.csv";

/// Say where the time of VMs went: halts, steal, who stole it, who suffered.
///
/// docs/steal.md explains thieves, exit reasons and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// What a line of the table stands for [default: of one VM both thief and reason]
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Lines of a table at most, 0 for all [default: 30 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// Who had the CPU (type 1)
    Thief,
    /// The VM exit (type 2)
    Reason,
    /// The guest's function that suffered
    Function,
    /// The guest's process that suffered
    Process,
}

impl From<By> for StealBy {
    fn from(by: By) -> Self {
        match by {
            By::Thief => Self::Thief,
            By::Reason => Self::Reason,
            By::Function => Self::Function,
            By::Process => Self::Process,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let recording = OpenRecording::open(&args.source)?;
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
    let report = view::steal(&recording.vcpu_time(), &query, args.format.width());
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
