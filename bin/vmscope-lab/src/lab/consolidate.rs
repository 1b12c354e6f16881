//! `vmscope lab consolidate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use consolidate::Job;
use lab::{Attached, Plan};
use recording::output::OutputFolder;
use testbed::{Boot, HostChoice, seen_from_inside};

use super::inside::carry_out;
use cli::Usage;
use cli::duration_in_seconds;

const EXAMPLE: &str = "Examples:
  vmscope lab consolidate plan.toml -o result            measure, step by step
  vmscope lab consolidate plan.toml -o result --resume   continue
  vmscope lab consolidate plan.toml --dry-run            list measurements, run none
  vmscope lab consolidate --attach web=10.0.0.2,db       running VMs under external load
  vmscope lab report result                              capacity, limits, remedies";

/// Virtual hosts that may end by themselves: now and then an emulated CPU faults.
const MAX_CRASHES: u32 = 10;

/// Measure turnarounds with more and more VMs under load, until they are too slow.
///
/// The VMs start in seconds from one template. They run on this machine if its KVM runs guests and the user is root,
/// else in a virtual host. Ctrl-C stops the experiment and keeps its measurements. docs/lab.md has example plans.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Plan of the experiment, a TOML file
    #[arg(required_unless_present = "attach", conflicts_with = "attach")]
    plan: Option<PathBuf>,
    /// Measure running VMs under external load; with its address, a VM's requests are captured
    #[arg(long, value_name = "VM[=ADDRESS],...", value_delimiter = ',')]
    attach: Vec<Attached>,
    /// Folder for the results; must not exist unless with --resume
    #[arg(short, long, value_name = "DIR", default_value = "vmscope-lab")]
    output: PathBuf,
    /// Continue the experiment in the folder
    #[arg(long)]
    resume: bool,
    /// Print the measurements and their duration, and exit
    #[arg(long)]
    dry_run: bool,
    /// Machine that runs the VMs
    #[arg(long, value_enum, default_value = "auto")]
    host: Host,
    /// Time limit of the whole experiment in a virtual host
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = duration_in_seconds)]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Host {
    /// This machine if its KVM runs guests and the user is root, else a virtual host
    Auto,
    /// A virtual host
    Virtual,
    /// This machine
    Direct,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, text) = args.plan()?;
    if args.dry_run {
        return dry_run(&plan);
    }
    let held = prepare_folder(args, &plan, &text)?;
    let folder = held.path();
    let shown = args.output.display();
    let runs = consolidate::runs_folder(&folder);
    let done = consolidate::read_runs(&runs)?;
    if plan.ladders().iter().all(|rungs| lab::ladder::left(&plan, rungs, &done).is_none()) {
        say!("lab: {shown} is complete; next: vmscope lab report {shown}");
        return Ok(ExitCode::SUCCESS);
    }
    let runs_here = match args.host {
        _ if !plan.attach.is_empty() => true,
        Host::Auto => testbed::runs_here(HostChoice::Auto)?,
        Host::Virtual => false,
        Host::Direct => true,
    };
    let vmscope = cli::find_program("vmscope")?;
    let boots = boots(&plan, &vmscope)?;
    if runs_here {
        let plan = consolidate::plan_file(&folder);
        carry_out(&Job { plan, boots, done: Some(runs.clone()), out: runs })?;
    } else {
        let folder =
            args.output.canonicalize().with_context(|| format!("failed to find {shown}"))?;
        in_virtual_host(args, &plan, &folder, boots, &vmscope)?;
    }
    say!("lab: {shown} is complete; next: vmscope lab report {shown}");
    Ok(ExitCode::SUCCESS)
}

/// What guests of each ladder boot, if any are to be started.
fn boots(plan: &Plan, vmscope: &Path) -> anyhow::Result<Vec<Boot>> {
    if !plan.attach.is_empty() {
        return Ok(Vec::new());
    }
    say!("lab: preparing kernels and images");
    let guests = plan.ladders().into_iter().map(|rungs| consolidate::guest(plan, &rungs.guest));
    let boots = guests.map(|guest| testbed::prepare_guest(&guest, vmscope));
    Ok(boots.collect::<Result<_, _>>()?)
}

impl Args {
    /// The plan and its text.
    fn plan(&self) -> anyhow::Result<(Plan, String)> {
        let Some(path) = &self.plan else {
            let text = Plan::text_for_attached(&self.attach);
            let plan = Plan::parse(&text).map_err(|error| Usage(error.to_string()))?;
            return Ok((plan, text));
        };
        let plan =
            consolidate::read_plan(path).map_err(|error| Usage(model::error_chain(&error)))?;
        let text = fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        Ok((plan, text))
    }
}

/// The folder of the results, with the plan in it. It is held: another user may give its name to something else.
fn prepare_folder(args: &Args, plan: &Plan, text: &str) -> anyhow::Result<OutputFolder> {
    let shown = args.output.display();
    let file = consolidate::plan_file(&args.output);
    let (parent, name) =
        OutputFolder::of_file(&args.output).with_context(|| format!("failed to create {shown}"))?;
    match (parent.has(name), args.resume) {
        (true, false) => {
            let text = format!("{shown} exists already: choose another name with -o, or --resume");
            Err(Usage(text).into())
        }
        (false, true) => Err(Usage(format!("{shown} does not exist")).into()),
        (true, true) => {
            let held =
                parent.own_folder(name).with_context(|| format!("failed to open {shown}"))?;
            let before = consolidate::read_plan(&consolidate::plan_file(&held.path()))?;
            if before != *plan {
                let text = format!("the plan differs from that of {shown}");
                return Err(Usage(text).into());
            }
            Ok(held)
        }
        (false, false) => {
            let held =
                parent.create_folder(name).with_context(|| format!("failed to create {shown}"))?;
            let runs = consolidate::runs_folder(&held.path());
            fs::create_dir(&runs).with_context(|| format!("failed to create {shown}"))?;
            fs::write(consolidate::plan_file(&held.path()), text)
                .with_context(|| format!("failed to write {}", file.display()))?;
            Ok(held)
        }
    }
}

/// Goes on in another virtual host when one ends by itself.
fn in_virtual_host(
    args: &Args,
    plan: &Plan,
    folder: &Path,
    boots: Vec<Boot>,
    vmscope: &Path,
) -> anyhow::Result<()> {
    let own = tempfile::tempdir().context("failed to create a temporary folder")?;
    let scenario = own.path().join("lab.toml");
    fs::write(&scenario, host_scenario(plan)).context("failed to write a scenario")?;
    let file = own.path().join("job.json");
    let job = Job {
        plan: seen_from_inside(&consolidate::plan_file(folder)),
        boots: boots.into_iter().map(Boot::seen_from_inside).collect(),
        done: Some(seen_from_inside(&consolidate::runs_folder(folder))),
        // This machine sees it at once: it stays whatever becomes of the virtual host.
        out: testbed::shared_folder().join("runs"),
    };
    job.write(&file)?;
    let command = ["vmscope", "lab", "inside"].map(str::to_owned).into_iter();
    let command: Vec<String> =
        command.chain([seen_from_inside(&file).display().to_string()]).collect();
    for crashes in 0.. {
        let collected = folder.join(".collected");
        let ended = testbed::run(&testbed::Run {
            scenario: scenario.clone(),
            command: command.clone(),
            out: Some(collected.clone()),
            timeout: args.timeout,
            host: HostChoice::Virtual,
            vmscope: vmscope.to_owned(),
            narrates: false,
        });
        take_in(&collected, &consolidate::runs_folder(folder))?;
        match ended {
            Ok(0) => return Ok(()),
            Ok(_) => bail!("the experiment ended early: continue with --resume"),
            Err(error @ testbed::Error::Host { .. }) if crashes < MAX_CRASHES => {
                say!("lab: {error}; going on in another one");
            }
            Err(error) => {
                return Err(error).context("the experiment ended early: continue with --resume");
            }
        }
    }
    Ok(())
}

/// Moves complete measurements to where they belong.
fn take_in(collected: &Path, runs: &Path) -> anyhow::Result<()> {
    let entries = fs::read_dir(collected.join("runs")).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
        let place = runs.join(entry.file_name());
        fs::rename(entry.path(), &place)
            .with_context(|| format!("failed to rename to {}", place.display()))?;
    }
    if collected.exists() {
        fs::remove_dir_all(collected)
            .with_context(|| format!("failed to remove {}", collected.display()))?;
    }
    Ok(())
}

fn host_scenario(plan: &Plan) -> String {
    let lab::HostPlan { cpus, memory, kernel } = &plan.host;
    let kernel =
        kernel.as_ref().map_or_else(String::new, |kernel| format!("kernel = \"{kernel}\"\n"));
    format!(
        "name = \"lab\"\n[host]\ncpus = {cpus}\nmemory = \"{memory}\"\n{kernel}reliable_tsc = true\n"
    )
}

fn dry_run(plan: &Plan) -> anyhow::Result<ExitCode> {
    let report = lab::report::dry_run(plan);
    cli::print(&report.text(cli::width())).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
