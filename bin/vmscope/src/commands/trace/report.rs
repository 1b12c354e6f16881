//! `vmscope trace report`.

use std::process::ExitCode;

use analysis::{ProcessFilter, clean};
use anyhow::Context;
use clap::ValueEnum;
use trace_analysis::findings::{Path, Selection};
use trace_analysis::group::Key;

use super::super::Usage;
use super::super::output::{count, print, width};
use super::export::write_html;
use super::gantt::{self, Chart};
use super::kernel::{self, Kernel};
use super::patience::Patience;
use super::scene::{Scene, Source, wrapped};
use super::waits::{self, Waits};
use super::{json, overview, path, process, profile, states};

/// Lines of a text table unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 20;

const EXAMPLE: &str = "Examples:
  vmscope trace report seq                            why did it take so long?
  vmscope trace report seq --view critical-path       what to improve
  vmscope trace report seq --view states --all        not the command's tasks only
  vmscope trace report seq --view waits --process cc1
  vmscope trace report seq --format html >seq.html    charts for a browser";

/// Report a trace: what CPUs, disks and processes did, and what they waited for.
///
/// docs/trace.md explains views, figures and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// What to show
    #[arg(long, value_enum, default_value_t = View::Overview)]
    view: View,
    /// Only processes that have this id, or this name in the end
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Everyone's tasks [default: the command's and of all it started; without one, those of --tree]
    #[arg(long)]
    all: bool,
    /// Lines of a table at most, 0 for all [default: 20 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum View {
    /// Why it took so long, on one page
    Overview,
    /// CPU and disk together: one, both or neither at work
    Profile,
    /// Each process: CPU running, waiting or neither, by disk running, waiting or neither
    States,
    /// What was waited for, and who waited
    Waits,
    /// Where kernel time went: system calls, page faults, interrupts
    Kernel,
    /// What the command's length is made of, and what would make it faster
    CriticalPath,
    /// Every process: its life, CPU time, waits and disk requests
    Process,
    /// What everyone did when, drawn in characters
    Gantt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/trace.md
    Json,
    /// RFC 4180
    Csv,
    /// A page for a browser with all charts, whatever --view and --limit say
    Html,
}

/// What was found out, and how much of it to show.
#[derive(Debug)]
pub(super) struct Findings<'s> {
    pub(super) scene: &'s Scene,
    found: trace_analysis::findings::Findings<'s>,
    pub(super) limit: Option<usize>,
}

impl<'s> std::ops::Deref for Findings<'s> {
    type Target = trace_analysis::findings::Findings<'s>;

    fn deref(&self) -> &Self::Target {
        &self.found
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.source.dir, args.source.machine.as_deref())?;
    let patience = Patience::begin("working it out", 0);
    let findings = Findings::of(&scene, args)?;
    let out = match args.format {
        Format::Text => {
            wrapped(&(scene.heading() + &findings.shown()), width())
                + "\n"
                + &text(&findings, args.view)?
        }
        Format::Csv => csv(&findings, args.view)?,
        Format::Json => serde_json::to_string_pretty(&json::report(&findings, args.view)?)? + "\n",
        Format::Html => {
            let mut page = Vec::new();
            write_html(&[(&args.source.dir, &scene)], &mut page)?;
            String::from_utf8(page).context("failed to write the page")?
        }
    };
    drop(patience);
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn text(findings: &Findings<'_>, view: View) -> Result<String, Usage> {
    let width = width();
    Ok(match view {
        View::Overview => overview::text(findings, width),
        View::Profile => profile::text(findings, findings.profile(), width),
        View::States => states::text(findings, findings.states(), width),
        View::Waits => waits::text(findings, &Waits::of(findings), width),
        View::Kernel => kernel::text(findings, &Kernel::of(findings), width),
        View::CriticalPath => path::text(findings, findings.some_path()?, width),
        View::Process => process::text(findings, &process::of(findings), width),
        View::Gantt => gantt::text(findings, &Chart::of(findings), width),
    })
}

fn csv(findings: &Findings<'_>, view: View) -> Result<String, Usage> {
    Ok(match view {
        View::Overview => {
            let text = "the overview has no table: give --view with --format csv";
            return Err(Usage(text.to_owned()));
        }
        View::Profile => profile::csv(findings, findings.profile()),
        View::States => states::csv(findings, findings.states()),
        View::Waits => waits::csv(findings, &Waits::of(findings)),
        View::Kernel => kernel::csv(findings, &Kernel::of(findings)),
        View::CriticalPath => path::csv(findings, findings.some_path()?),
        View::Process => process::csv(findings, &process::of(findings)),
        View::Gantt => gantt::csv(findings, &Chart::of(findings)),
    })
}

impl<'s> Findings<'s> {
    fn of(scene: &'s Scene, args: &Args) -> Result<Self, Usage> {
        let mut found = scene.findings();
        match scene.tree() {
            _ if args.all => found = found.of_everyone(),
            Some(root) if found.is_everyone() => found = found.of_tree(root),
            _ => {}
        }
        if let Some(process) = &args.process {
            let filter = ProcessFilter::new(process);
            found = found
                .of_processes(&clean(process), |key| is_meant(&filter, key))
                .map_err(|found| no_process(&found, &filter))?;
        }
        let limit = match (args.limit, args.format) {
            (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => None,
            (Some(limit), _) => Some(limit),
            (None, Format::Text) => Some(TEXT_LIMIT),
        };
        Ok(Self { scene, found, limit })
    }

    /// Whose tasks are looked at, in titles.
    pub(super) fn whose(&self) -> String {
        self.selection.to_string()
    }

    /// A line that says who was left out without having been asked for.
    fn shown(&self) -> String {
        let shown = match &self.selection {
            Selection::Command => "the command and all that it started".to_owned(),
            Selection::Tree(root) => format!("task {root} and all that it started"),
            Selection::Everyone | Selection::Process(_) => return String::new(),
        };
        format!("Shown: {shown} (--all: everyone)\n")
    }

    /// The critical path, or why there is none.
    pub(super) fn some_path(&self) -> Result<&Path, Usage> {
        self.path().ok_or_else(|| no_command(self.scene))
    }
}

fn is_meant(filter: &ProcessFilter, key: &Key) -> bool {
    filter.matches(&key.name, key.pid.map(|pid| pid.0))
}

/// Nowhere, or not among those that are shown.
fn no_process(found: &trace_analysis::findings::Findings<'_>, filter: &ProcessFilter) -> Usage {
    let name = clean(filter.text());
    let elsewhere = found.has_process(|key| is_meant(filter, key));
    Usage(match &found.selection {
        Selection::Command if elsewhere => {
            format!("process {name} is in this trace, but not of the command: add --all")
        }
        Selection::Tree(root) if elsewhere => {
            format!("process {name} is in this trace, but not of the tree of {root}: add --all")
        }
        _ => format!("no process {name} in this trace: see --view process --all"),
    })
}

fn no_command(scene: &Scene) -> Usage {
    let machine = clean(&scene.machine().name).into_owned();
    Usage(format!("no command was traced on {machine}: say which process with --process"))
}
