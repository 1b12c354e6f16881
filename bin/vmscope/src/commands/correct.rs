//! `vmscope correct`.

mod json;
mod text;

use std::process::ExitCode;
use std::time::Duration;

use analysis::ProcessFilter;
use analysis::steal::{
    Correction, Target, VictimTime, Victims, Whose, Window, correction, share_bound_ns, victims,
};
use anyhow::Context;
use model::{HostNs, VmId};

use super::Usage;
use super::output::{print, width};
use super::scene::{Format, Scene, Source, cleaned, seconds};
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

/// All that is shown.
struct Findings<'s> {
    scene: &'s Scene,
    args: &'s Args,
    vm: VmId,
    window: Window,
    answer: Answer,
}

enum Answer {
    /// What was asked for.
    One(Corrected),
    /// Each process of the VM.
    Processes(Victims),
}

/// A corrected run time.
struct Corrected {
    found: Correction,
    apparent_ns: u64,
    corrected_ns: u64,
    bound_ns: u64,
    /// Taken from it, and possibly before or after what was measured.
    beyond_ns: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.source)?;
    let vm = scene.vm(args.source.vm.as_deref())?;
    let window = window(&scene, args)?;
    let answer = answer(&scene, args, vm, window)?;
    let findings = Findings { scene: &scene, args, vm, window, answer };
    let out = match args.format {
        Format::Text => text::text(&findings, width()),
        Format::Csv => text::csv(&findings),
        Format::Json => serde_json::to_string_pretty(&json::correct(&findings))? + "\n",
    };
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The time asked for, on the host's axis.
fn window(scene: &Scene, args: &Args) -> Result<Window, Usage> {
    let all = scene.evidence().all();
    let at = |time: Duration| {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        HostNs(all.from.0.saturating_add(ns)).min(all.to)
    };
    let from = args.from.map_or(all.from, at);
    let to = args.to.map_or(all.to, at);
    if from < to {
        return Ok(Window { from, to });
    }
    let length = seconds(all.to.since(all.from), 3);
    let text = format!("no time between --from and --to: the recording is {length} s long");
    Err(Usage(text))
}

fn answer(scene: &Scene, args: &Args, vm: VmId, window: Window) -> anyhow::Result<Answer> {
    if args.apparent.is_none() && args.process.is_none() && args.function.is_none() {
        let evidence = scene.evidence();
        let mut victims = victims(&evidence, vm, Whose::Process, window);
        victims.rows.sort_by_key(|(_, time)| std::cmp::Reverse(time.apparent_ns()));
        return Ok(Answer::Processes(victims));
    }
    let process = args.process.as_deref().map(ProcessFilter::new);
    let target = Target { vm, process: process.as_ref(), function: args.function.as_deref() };
    let found = correction(&scene.evidence(), &scene.thief_names(), &target, window)
        .map_err(|unknown| anyhow::anyhow!(cleaned(&unknown.to_string())))?;
    let period_ns = scene.recording.header.period_ns;
    let (apparent_ns, bound_ns) = match args.apparent {
        Some(time) => (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), found.bound_ns),
        None => (found.time.apparent_ns(), run_bound_ns(period_ns, &found.time, found.all_samples)),
    };
    let stolen = found.time.stolen.total_ns();
    let Some(corrected_ns) = apparent_ns.checked_sub(stolen) else {
        let (stolen, apparent) = (seconds(stolen, 6), seconds(apparent_ns, 6));
        anyhow::bail!(
            "{stolen} s were taken from it, more than the {apparent} s of --apparent: say with --from and --to when \
             those were measured"
        );
    };
    // What the axis shows of it between --from and --to may be more than was measured.
    let beyond_ns = found.time.apparent_ns().saturating_sub(apparent_ns).min(stolen);
    let bound_ns = rounded(bound_ns);
    Ok(Answer::One(Corrected { found, apparent_ns, corrected_ns, bound_ns, beyond_ns }))
}

/// A run time seen on the axis is a share of the VM's samples.
fn run_bound_ns(period_ns: u64, time: &VictimTime, all_samples: u64) -> f64 {
    share_bound_ns(period_ns, time.samples, all_samples)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn rounded(ns: f64) -> u64 {
    // Not negative, and `as` saturates.
    ns.round() as u64
}
