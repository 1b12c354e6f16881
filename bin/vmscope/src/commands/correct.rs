//! `vmscope correct`.

use std::process::ExitCode;
use std::time::Duration;

use analysis::ProcessFilter;
use analysis::steal::{Target, Whose, Window, correction, victims};
use anyhow::Context;
use model::HostNs;
use view::{CorrectQuery, Report, TakenExceedsRun, VcpuTime, clean, seconds};

use super::Usage;
use super::open_recording::{Format, OpenRecording, Source};
use super::output::print;
use super::time::duration_in_seconds;

const EXAMPLE: &str = "Examples:
  vmscope correct day1 --vm web     each process: its run time without steal
  vmscope correct day1 --vm web --process shor --apparent 12.5 --from 3 --to 16
                                    12.5 s were measured in the guest, which
                                    began 3 s after the recording or later
  vmscope correct day1 --vm web --process shor --function quantum_toffoli";

/// Correct a run time: without what was stolen, and how sure that is.
///
/// Takes out steal type 1 (somebody else had the CPU), steal type 2 (in the VMM) and throttling (a CPU quota).
/// --apparent is the time measured inside the guest; without it, it is what the recording shows. Choose --from and
/// --to so that all of it, and no other run, lies between. docs/steal.md explains the numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Correct this process, by name or id in the guest
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Correct this function, of that process or of all
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// The run time measured in the guest [default: as the recording shows it]
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    apparent: Option<Duration>,
    /// Look only from this time on, counted from the recording's start
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    from: Option<Duration>,
    /// Look only up to this time
    #[arg(long, value_name = "SECONDS", value_parser = duration_in_seconds)]
    to: Option<Duration>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let recording = OpenRecording::open(&args.source)?;
    let vm = recording.vm(args.source.vm.as_deref())?;
    let time = recording.vcpu_time();
    let query = CorrectQuery {
        vm,
        window: window(time.evidence.all(), args)?,
        process: args.process.as_deref(),
        function: args.function.as_deref(),
        measured_ns: args.apparent.map(in_ns),
    };
    let report = report(&time, &query)?;
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn report(time: &VcpuTime<'_>, query: &CorrectQuery<'_>) -> anyhow::Result<Report> {
    let (vm, window, evidence) = (query.vm, query.window, &time.evidence);
    if query.measured_ns.is_none() && query.process.is_none() && query.function.is_none() {
        let mut victims = victims(evidence, vm, Whose::Process, window);
        victims.rows.sort_by_key(|(_, time)| std::cmp::Reverse(time.apparent_ns()));
        return Ok(view::correct_all(time, query, &victims));
    }
    let process = query.process.map(ProcessFilter::new);
    let target = Target { vm, process: process.as_ref(), function: query.function };
    let found = correction(evidence, &time.names, &target, window)
        .map_err(|unknown| anyhow::anyhow!(clean(&unknown.to_string()).into_owned()))?;
    view::correct(time, query, &found).map_err(|TakenExceedsRun { stolen_ns, apparent_ns }| {
        let (stolen, apparent) = (seconds(stolen_ns, 6), seconds(apparent_ns, 6));
        anyhow::anyhow!(
            "{stolen} s were taken from it, more than the {apparent} s of --apparent: say with --from and --to when \
             those were measured"
        )
    })
}

/// The time asked for, on the host's axis.
fn window(all: Window, args: &Args) -> Result<Window, Usage> {
    let at = |time: Duration| HostNs(all.from.0.saturating_add(in_ns(time))).min(all.to);
    let from = args.from.map_or(all.from, at);
    let to = args.to.map_or(all.to, at);
    if from < to {
        return Ok(Window { from, to });
    }
    let length = seconds(all.to.since(all.from), 3);
    let text = format!("no time between --from and --to: the recording is {length} s long");
    Err(Usage(text))
}

fn in_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
