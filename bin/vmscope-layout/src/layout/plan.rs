//! `vmscope layout plan` and `vmscope layout apply`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use layout::report::{MeasuredVm, MovedVm};
use layout::{Activity, Load, Options, Outcome, Plan, Source, Vm};
use model::Pid;
use numa::{Applied, AppliedPlan, Host, HostVm, Roots, VmProcess, Watched};
use probes::{FoundVm, VmFinder};

use super::exec_policy;
use super::file::{read, wrong};
use cli::{Format, Usage, print, size, stop_on_signals};

pub(super) const PROC: &str = "/proc";
const SYS: &str = "/sys";

const PLAN_EXAMPLE: &str = "Examples:
  vmscope layout plan                          count for 10 s, show what would move
  vmscope layout plan --policy asymsched --format json
  vmscope layout plan --counters vms.toml      with counters from a file
  vmscope layout plan --policy exec:./mine     a program chooses: question and choices in JSON
  vmscope layout plan --format json > plan.json                   for apply --plan plan.json";

const APPLY_EXAMPLE: &str = "Examples:
  vmscope layout apply --policy dino
  vmscope layout apply --plan plan.json        a plan made before, if it still fits
  vmscope layout apply --rate 64M              at 64 MiB per second
  vmscope layout apply --measure 30            measured gain beside the predicted one";

/// Plan on which NUMA nodes this host's VMs should be; changes nothing.
///
/// Measures each VM's memory accesses for some seconds: by performance counters, else by a resctrl group of the VM's
/// threads, else by an estimate from DAMON. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = PLAN_EXAMPLE)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    how: How,
}

/// Move this host's VMs to the planned NUMA nodes.
///
/// Makes the plan of `vmscope layout plan`, binds vCPU threads to the CPUs of their nodes, moves memory at a limited
/// rate, and checks its place in /proc/PID/numa_maps. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = APPLY_EXAMPLE)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    how: How,
    /// Measure VMs this many seconds before and after the moves, and print the gain beside the predicted one
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    measure: Option<u32>,
    /// Carry out the plan in this file, the JSON of `vmscope layout plan`; refused if it no longer fits this host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["policy", "seconds", "counters"])]
    plan: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Policy: simple, dino, asymsched, or exec:PROGRAM, which reads a question in JSON and writes its choices
    #[arg(long, default_value = "asymsched", value_parser = super::plan_policy)]
    policy: String,
    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Read memory counters from this TOML file, keyed by VM name
    #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
    counters: Option<PathBuf>,
    /// Maximum rate of memory moves, in bytes per second
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = rate)]
    rate: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

fn rate(text: &str) -> Result<u64, String> {
    match size(text)? {
        0..0x10_0000 => Err("1M at least".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A plan for this host.
struct Planned {
    host: Host,
    found: Vec<FoundVm>,
    load: Load,
    plan: Plan,
}

pub(super) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let planned = planned(&args.how, &*stop_on_signals()?)?;
    show(&args.how, &planned)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn apply(args: &ApplyArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let planned = match &args.plan {
        Some(path) => planned_before(&args.how, path)?,
        None => planned(&args.how, &stop)?,
    };
    // One object is enough for programs.
    let is_shown = args.how.format == Format::Text && args.plan.is_none();
    if is_shown || !is_worth_it(&planned.plan) {
        show(&args.how, &planned)?;
    }
    if !is_worth_it(&planned.plan) {
        return Ok(ExitCode::SUCCESS);
    }
    let Planned { host, found, plan, .. } = &planned;
    let stop_now = || is_set(&stop);
    let proc = Path::new(PROC);
    let measured =
        || args.measure.map(|seconds| measure(host, found, seconds, &stop)).unwrap_or_default();
    let before = measured();
    let roots = Roots { sys: Path::new(SYS), proc };
    let done = numa::apply_plan(roots, &host.topology, &host.vms, plan, args.how.rate, &stop_now);
    for failure in &done.failures {
        say!("vmscope: {}", table::clean(&failure.to_string()));
    }
    let after =
        numa::read(Path::new(SYS), proc, found).context("failed to read the layout again")?;
    let moved: Vec<MovedVm> = done.vms.iter().map(|vm| moved(vm, &after)).collect();
    let took_ns = u64::try_from(done.took.as_nanos()).unwrap_or(u64::MAX);
    let measured_again = if stop_now() { BTreeMap::new() } else { measured() };
    let activities = Activities { before, after: measured_again };
    let report = layout::report::apply(
        &host.topology,
        &moved,
        took_ns,
        &activities.of_vms(&planned, &after),
    );
    print(&args.how.format.render(&report)).context("failed to write to standard output")?;
    let AppliedPlan { failures, stopped, .. } = done;
    Ok(ExitCode::from(u8::from(stopped || !failures.is_empty())))
}

/// What VMs did, by process.
struct Activities {
    before: BTreeMap<Pid, Activity>,
    after: BTreeMap<Pid, Activity>,
}

fn measure(
    host: &Host,
    found: &[FoundVm],
    seconds: u32,
    stop: &AtomicBool,
) -> BTreeMap<Pid, Activity> {
    let vms: Vec<_> = host.vms.iter().map(|vm| vm.process.clone()).collect();
    numa::measure(&watched(&vms, found), seconds, &|| is_set(stop))
}

fn watched<'a>(vms: &'a [VmProcess], found: &'a [FoundVm]) -> Watched<'a> {
    Watched { sys: Path::new(SYS), proc: Path::new(PROC), vms, found }
}

impl Activities {
    fn of_vms(mut self, planned: &Planned, after: &Host) -> Vec<MeasuredVm> {
        let of_vm = |vm: &HostVm| {
            let name = &vm.process.name;
            let before = self.before.remove(&vm.process.pid)?;
            let plan = planned.plan.vms.iter().find(|plan| plan.id == vm.process.pid.0)?;
            let topology = &planned.host.topology;
            let now = after.vms.iter().find(|now| now.process == vm.process);
            let remote = |vm: &HostVm| vm.remote(topology);
            Some(MeasuredVm {
                name: name.clone(),
                before,
                after: self.after.remove(&vm.process.pid),
                predicted: (0.0 < plan.speed_before)
                    .then(|| plan.speed_after / plan.speed_before - 1.0),
                placed_remote: [Some(remote(vm)), now.map(remote)],
            })
        };
        planned.host.vms.iter().filter_map(of_vm).collect()
    }
}

fn moved(done: &Applied, after: &Host) -> MovedVm {
    let now = after.vms.iter().find(|vm| vm.process.pid == done.pid);
    MovedVm {
        name: done.name.clone(),
        vcpus: done.vcpus as u64,
        wanted: done.wanted,
        moved: done.moved,
        stays: done.stays.clone(),
        now: now.map(|vm| vm.placed.clone()),
        remote: now.map(|vm| vm.remote(&after.topology)),
    }
}

fn is_worth_it(plan: &Plan) -> bool {
    matches!(plan.outcome, Outcome::Move { .. })
}

fn planned(how: &How, stop: &AtomicBool) -> anyhow::Result<Planned> {
    let found = VmFinder::load()?.find(None)?;
    let mut host = numa::read(Path::new(SYS), Path::new(PROC), &found)?;
    let mut load = match &how.counters {
        Some(path) => {
            let counters =
                layout::read_counters(&read(path)?).map_err(|error| wrong(path, &error))?;
            let recorded = |vm: &HostVm| match counters.get(&vm.process.name) {
                Some(samples) if !samples.is_empty() => (Source::Recorded, samples.clone()),
                _ => (Source::None, Vec::new()),
            };
            host.load(how.rate, recorded)
        }
        None => {
            let stop = || is_set(stop);
            let vms: Vec<_> = host.vms.iter().map(|vm| vm.process.clone()).collect();
            let mut counted = numa::count(&watched(&vms, &found), how.seconds, &stop);
            host.notes.append(&mut counted.notes);
            let samples = |vm: &HostVm| counted.samples.get(&vm.process.pid).cloned();
            host.load(how.rate, |vm| samples(vm).unwrap_or_default())
        }
    };
    if host.vms.is_empty() {
        host.notes.push("no VM runs on this host".to_owned());
    }
    for vm in host.vms.iter().filter(|vm| vm.has_policy) {
        let note = "its VMM set a memory policy: new pages stay where that says";
        host.notes.push(format!("{}: {note}", vm.process.name));
    }
    for vm in host.vms.iter().filter(|vm| vm.process.threads.is_empty()) {
        let note = "its vCPUs have not run yet: it is left out";
        host.notes.push(format!("{}: {note}", vm.process.name));
    }
    let left_out = load.leave_out_unsound(&host.topology);
    host.notes.extend(left_out.iter().map(ToString::to_string));
    let plan = match exec_policy::program(&how.policy) {
        Some(program) => exec_policy::plan(&host.topology, &load, &program)?,
        None => {
            let mut policy =
                layout::policy_named(&how.policy).context("there is no such policy")?;
            layout::plan(&host.topology, &load, policy.as_mut(), &Options::default())
        }
    };
    Ok(Planned { host, found, load, plan })
}

/// The plan of a file, for the VMs as they are now.
fn planned_before(how: &How, path: &Path) -> anyhow::Result<Planned> {
    let saved = layout::read_plan(&read(path)?)
        .map_err(|error| Usage(format!("{}: {error}", path.display())))?;
    let found = VmFinder::load()?.find(None)?;
    let host = numa::read(Path::new(SYS), Path::new(PROC), &found)?;
    let mut load = host.load(how.rate, |_| (Source::None, Vec::new()));
    load.leave_out_unsound(&host.topology);
    let (started, options) = (|vm: &Vm| began(&host, vm), Options::default());
    let plan = Plan::again(&host.topology, &load, started, &saved, &options)
        .map_err(|misfit| table::clean(&misfit.to_string()).into_owned())
        .map_err(|misfit| anyhow::anyhow!("{} no longer fits: {misfit}", path.display()))?;
    Ok(Planned { host, found, load, plan })
}

/// When the process of a VM began.
fn began(host: &Host, vm: &Vm) -> u64 {
    let of_vm = host.vms.iter().find(|other| other.process.pid.0 == vm.id);
    of_vm.map_or(0, |vm| vm.process.started)
}

fn show(how: &How, planned: &Planned) -> anyhow::Result<()> {
    let Planned { host, load, plan, .. } = planned;
    let mut report = layout::report::plan(&host.topology, load, plan);
    report.notes.extend(host.notes.iter().cloned());
    report.json["notes"] =
        report.notes.iter().map(|note| table::clean(note).into_owned()).collect();
    let placement = plan.saved(&host.topology, load, |vm| began(host, vm));
    report.json["placement"] = serde_json::to_value(placement)?;
    report.parts.push(layout::report::nodes(&host.topology).into());
    print(&how.format.render(&report)).context("failed to write to standard output")
}

fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}
