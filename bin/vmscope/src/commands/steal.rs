//! `vmscope steal`.

mod json;
mod table;
mod text;

use std::collections::BTreeMap;
use std::process::ExitCode;

use analysis::steal::{Balance, Victims, Whose, balances, victims};
use anyhow::Context;
use clap::ValueEnum;
use model::{VcpuId, VmId};

use super::output::{count, print, width};
use super::scene::{Format, Scene, Source};

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

/// All that is shown.
struct Findings<'s> {
    scene: &'s Scene,
    vms: Vec<VmTime>,
    by: Option<By>,
    /// Whether all VMs are looked at.
    all: bool,
    limit: Option<usize>,
}

/// A VM's time.
struct VmTime {
    vm: VmId,
    sum: Balance,
    /// By their numbers.
    vcpus: Vec<(u32, VcpuId, Balance)>,
    /// When `--by` asks for them.
    victims: Option<Victims>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.source)?;
    let findings = Findings::of(&scene, args)?;
    let out = match args.format {
        Format::Text => text::text(&findings, width()),
        Format::Csv => table::csv(&findings),
        Format::Json => serde_json::to_string_pretty(&json::steal(&findings))? + "\n",
    };
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

impl<'s> Findings<'s> {
    fn of(scene: &'s Scene, args: &Args) -> anyhow::Result<Self> {
        let vms = scene.vms(args.source.vm.as_deref())?;
        let mut balances = balances(&scene.evidence(), &scene.thief_names());
        let vms = vms.into_iter().map(|vm| VmTime::of(scene, vm, args.by, &mut balances)).collect();
        let limit = match (args.limit, args.format) {
            (Some(0), _) | (None, Format::Json | Format::Csv) => None,
            (Some(limit), _) => Some(limit),
            (None, Format::Text) => Some(TEXT_LIMIT),
        };
        Ok(Self { scene, vms, by: args.by, all: args.source.vm.is_none(), limit })
    }
}

impl VmTime {
    fn of(
        scene: &Scene,
        vm: VmId,
        by: Option<By>,
        balances: &mut BTreeMap<VcpuId, Balance>,
    ) -> Self {
        let mut sum = Balance::default();
        let mut vcpus = Vec::new();
        for (number, vcpu) in scene.vcpus(vm) {
            let balance = balances.remove(&vcpu).unwrap_or_default();
            sum.add(&balance);
            vcpus.push((number, vcpu, balance));
        }
        let whose = match by {
            Some(By::Process) => Some(Whose::Process),
            Some(By::Function) => Some(Whose::Function),
            Some(By::Thief | By::Reason) | None => None,
        };
        let evidence = scene.evidence();
        let victims = whose.map(|whose| victims(&evidence, vm, whose, evidence.all()));
        Self { vm, sum, vcpus, victims }
    }
}
