//! `vmscope correct`.

use std::process::ExitCode;
use std::time::Duration;

use analysis::ProcessFilter;
use analysis::report::{CorrectQuery, TakenExceedsRun, VcpuTime};
use analysis::steal::{AttributionLevel, Target, Window, correction, victims};
use anyhow::Context;
use table::{Report, clean, seconds};

use cli::Usage;
use cli::print;
use cli::{Format, Source};
use cli::{TimeRange, duration_in_seconds};

const EXAMPLE: &str = "Examples:
  vmscope correct day1 --vm web     each process: its run time without steal
  vmscope correct day1 --vm web --process shor --apparent 12.5 --from 3 --to 16
                                    the guest measured 12.5 s for a run between
                                    3 s and 16 s after the recording's start
  vmscope correct day1 --vm web --process shor --function quantum_toffoli
  vmscope correct day1 --vm web --process mysqld --callees do_command
  vmscope correct day1 --vm web --process mysqld --thread ib_io_rd-1";

/// Estimate a guest run time without steal, with an error bound.
///
/// Subtracts steal type 1 (another thread had the CPU), steal type 2 (in the VMM) and throttling (a CPU quota).
/// --apparent is the time that was measured inside the guest; without it, the recorded run time is used. Choose
/// --from and --to so that this run, and no other, lies between them. docs/steal.md explains the numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Only this guest process, by name or id
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Only this guest thread, by name or id, of that process or of all
    #[arg(long, value_name = "NAME|TID")]
    thread: Option<String>,
    /// Only this function, of that process or thread or of all
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only this function with what it calls; needs record --call-graph
    #[arg(long, value_name = "NAME", conflicts_with = "function")]
    callees: Option<String>,
    /// Run time measured in the guest [default: the recorded run time]
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    apparent: Option<Duration>,
    #[command(flatten)]
    range: TimeRange,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (recording, axis) = match args.callees {
        Some(_) => args.source.open_with_callers(TimeRange::ALL)?,
        None => args.source.open(TimeRange::ALL)?,
    };
    let vm = recording.vm(args.source.vm.as_deref())?;
    let time = recording.vcpu_time(&axis);
    let query = CorrectQuery {
        vm,
        window: window(time.evidence.all(), args)?,
        process: args.process.as_deref(),
        thread: args.thread.as_deref(),
        function: args.function.as_deref(),
        callees: args.callees.as_deref(),
        measured_ns: args.apparent.map(in_ns),
    };
    let report = report(&time, &query)?;
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn report(time: &VcpuTime<'_>, query: &CorrectQuery<'_>) -> anyhow::Result<Report> {
    let (vm, window, evidence) = (query.vm, query.window, &time.evidence);
    let named = [query.process, query.thread, query.function, query.callees];
    if query.measured_ns.is_none() && named == [None; 4] {
        let mut victims = victims(evidence, vm, AttributionLevel::Process, window);
        victims.rows.sort_by_key(|(_, time)| std::cmp::Reverse(time.apparent_ns()));
        return Ok(analysis::report::correct_all(time, query, &victims));
    }
    let process = query.process.map(ProcessFilter::new);
    let thread = query.thread.map(ProcessFilter::new);
    let (process, thread) = (process.as_ref(), thread.as_ref());
    let (function, callees) = (query.function, query.callees);
    let target = Target { vm, process, thread, function, callees };
    let found = correction(evidence, &time.names, &target, window)
        .map_err(|unknown| anyhow::anyhow!(clean(&unknown.to_string()).into_owned()))?;
    analysis::report::correct(time, query, &found).map_err(|TakenExceedsRun { stolen_ns, apparent_ns }| {
        let (stolen, apparent) = (seconds(stolen_ns, 6), seconds(apparent_ns, 6));
        anyhow::anyhow!(
            "{stolen} s were stolen, more than the {apparent} s of --apparent: set --from and --to to the time of that measurement"
        )
    })
}

/// The time requested, on the host's axis.
fn window(all: Window, args: &Args) -> Result<Window, Usage> {
    let range = args.range.within(all.from..all.to)?.unwrap_or(all.from..all.to);
    if range.is_empty() {
        return Err(Usage("the recording has no time".to_owned()));
    }
    Ok(Window { from: range.start, to: range.end })
}

fn in_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
