//! `vmscope exits`.

mod text;

use std::process::ExitCode;

use analysis::steal::{Cause, ExitRow, Exits, exits};
use anyhow::Context;
use api::steal as json;
use clap::ValueEnum;
use model::VmId;

use super::grid::Grid;
use super::output::{print, width};
use super::scene::json::recording;
use super::scene::{Format, Scene, Source, cleaned};

const EXAMPLE: &str = "Examples:
  vmscope record -o day1 --exits --duration 20
                              counts VM exits while sampling
  vmscope exits day1          how often VMs exit, for what, for how long
  vmscope exits day1 --vm web --by function
                              which of its functions cause the exits";

/// Say what VMs exit for: how often, how long it takes, and the guest functions that cause it.
///
/// Counts need a recording made with --exits; times and functions come from the samples. docs/steal.md
/// explains columns and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// What a line stands for
    #[arg(long, value_enum, default_value_t = By::Reason)]
    by: By,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// The exit reason
    Reason,
    /// The guest's function at the exit
    Function,
}

type VmExits = (VmId, Exits);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.source)?;
    let vms = scene.vms(args.source.vm.as_deref())?;
    let found: Vec<VmExits> =
        vms.into_iter().map(|vm| (vm, exits(&scene.evidence(), vm))).collect();
    let out = match args.format {
        Format::Text => text::text(&scene, &found, args.by, width()),
        Format::Csv => csv(&scene, &found, args.by),
        Format::Json => serde_json::to_string_pretty(&published(&scene, &found))? + "\n",
    };
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn csv(scene: &Scene, found: &[VmExits], by: By) -> String {
    let of_reason = ["vm", "exit_reason", "count", "ns", "waiting_ns", "samples", "mean_ns"];
    let of_function = ["vm", "exit_reason", "process", "pid", "function", "module", "ns"];
    let mut grid = Grid::new(if by == By::Reason { &of_reason } else { &of_function });
    for (vm, row) in found.iter().flat_map(|(vm, exits)| exits.rows.iter().map(move |r| (vm, r))) {
        let who = [scene.vm_row(*vm).name.clone(), scene.reason(row.reason)];
        let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        if by == By::Reason {
            let (ns, waiting) = (Some(row.time.total_ns()), Some(row.time.waiting_ns));
            let cells = [row.count, ns, waiting, Some(row.samples), row.mean_ns()].map(number);
            grid.row(who.into_iter().chain(cells));
            continue;
        }
        for (cause, ns) in &row.causes {
            let Cause { process, pid, function, module } = cause;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let pid = pid.map(|pid| pid.to_string()).unwrap_or_default();
            let names = [text(process), pid, text(function), text(module), ns.to_string()];
            grid.row(who.clone().into_iter().chain(names));
        }
    }
    grid.csv()
}

/// The published JSON. Names are cleaned: they may come from guests.
fn published(scene: &Scene, found: &[VmExits]) -> json::Exits {
    let exit = |row: &ExitRow| json::Exit {
        reason: row.reason,
        name: scene.reason(row.reason),
        count: row.count,
        ns: row.time.total_ns(),
        waiting_ns: row.time.waiting_ns,
        samples: row.samples,
        mean_ns: row.mean_ns(),
        causes: row.causes.iter().map(|(cause, ns)| published_cause(cause, *ns)).collect(),
    };
    json::Exits {
        version: json::VERSION,
        recording: recording(scene),
        counted: found.iter().any(|(_, exits)| exits.counted),
        vms: found
            .iter()
            .map(|(vm, exits)| json::VmExits {
                name: cleaned(&scene.vm_row(*vm).name),
                exits: exits.rows.iter().map(exit).collect(),
            })
            .collect(),
    }
}

fn published_cause(cause: &Cause, ns: u64) -> json::Cause {
    let name = |name: &Option<String>| name.as_deref().map(cleaned);
    json::Cause {
        process: name(&cause.process),
        pid: cause.pid,
        function: name(&cause.function),
        module: name(&cause.module),
        ns,
    }
}
