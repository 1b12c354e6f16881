//! `vmscope trace report`.

use std::ops::Range;
use std::process::ExitCode;

use analysis::{ProcessFilter, clean};
use anyhow::Context;
use clap::ValueEnum;
use model::{HostNs, Tid};
use trace_analysis::critical_path::Scope;
use trace_analysis::group::{By, grouped};
use trace_analysis::timeline::{TaskId, Timeline};
use trace_analysis::tree::{all, tree};
use trace_analysis::waits::{Classifier, Life, lives};

use super::super::Usage;
use super::super::output::{count, print, width};
use super::export::write_html;
use super::gantt::{self, Chart};
use super::kernel::{self, Kernel};
use super::path::{self, Path};
use super::patience::Patience;
use super::scene::{Scene, Source, wrapped};
use super::waits::{self, Waits};
use super::{json, overview, process, profile, states};

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

/// What is looked at.
#[derive(Debug)]
pub(super) struct Findings<'s> {
    pub(super) scene: &'s Scene,
    /// The tasks asked for, ascending.
    pub(super) tasks: Vec<TaskId>,
    asked: Asked,
    /// Whose critical path.
    explained: Option<Scope>,
    /// Says what tasks waited for.
    pub(super) classifier: Classifier,
    /// Of all tasks.
    pub(super) lives: Vec<Life>,
    pub(super) limit: Option<usize>,
}

/// Whose tasks were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Everyone,
    Command,
    /// Those that the trace's filter keeps.
    Tree(Tid),
    Process(String),
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
        View::Profile => profile::text(findings, &profile::of(findings), width),
        View::States => states::text(findings, &states::of(findings), width),
        View::Waits => waits::text(findings, &Waits::of(findings), width),
        View::Kernel => kernel::text(findings, &Kernel::of(findings), width),
        View::CriticalPath => path::text(findings, &findings.path()?, width),
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
        View::Profile => profile::csv(findings, &profile::of(findings)),
        View::States => states::csv(findings, &states::of(findings)),
        View::Waits => waits::csv(findings, &Waits::of(findings)),
        View::Kernel => kernel::csv(findings, &Kernel::of(findings)),
        View::CriticalPath => path::csv(findings, &findings.path()?),
        View::Process => process::csv(findings, &process::of(findings)),
        View::Gantt => gantt::csv(findings, &Chart::of(findings)),
    })
}

impl<'s> Findings<'s> {
    fn of(scene: &'s Scene, args: &Args) -> Result<Self, Usage> {
        let timeline = &scene.timeline;
        let mut explained = scene.command();
        let (mut asked, mut tasks) =
            if args.all { (Asked::Everyone, all(timeline)) } else { by_default(scene) };
        if let Some(process) = &args.process {
            let filter = ProcessFilter::new(process);
            tasks = processes(timeline, &tasks, &filter);
            let first = tasks.first().ok_or_else(|| no_process(scene, &filter, &asked))?;
            explained = Scope::life(timeline, *first);
            asked = Asked::Process(clean(process).into_owned());
        }
        let classifier = Classifier::new(&scene.trace.tables, timeline.machine);
        let lives = lives(timeline, &classifier);
        let limit = match (args.limit, args.format) {
            (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => None,
            (Some(limit), _) => Some(limit),
            (None, Format::Text) => Some(TEXT_LIMIT),
        };
        Ok(Self { scene, tasks, asked, explained, classifier, lives, limit })
    }

    /// Whether nothing was left out.
    pub(super) fn is_everyone(&self) -> bool {
        self.asked == Asked::Everyone
    }

    /// Whose tasks were asked for, in titles.
    pub(super) fn whose(&self) -> String {
        match &self.asked {
            Asked::Everyone => "all tasks".to_owned(),
            Asked::Command => "the command".to_owned(),
            Asked::Tree(root) => format!("the tree of {root}"),
            Asked::Process(process) => process.clone(),
        }
    }

    /// A line that says who was left out without having been asked for.
    fn shown(&self) -> String {
        let shown = match &self.asked {
            Asked::Command => "the command and all that it started".to_owned(),
            Asked::Tree(root) => format!("task {root} and all that it started"),
            Asked::Everyone | Asked::Process(_) => return String::new(),
        };
        format!("Shown: {shown} (--all: everyone)\n")
    }

    /// Whether a task is among those asked for.
    pub(super) fn admits(&self, task: TaskId) -> bool {
        self.tasks.binary_search(&task).is_ok()
    }

    /// Whose critical path is looked at: the process asked for, else the command.
    pub(super) fn explained(&self) -> Option<Scope> {
        self.explained
    }

    pub(super) fn path(&self) -> Result<Path, Usage> {
        Path::of(self).ok_or_else(|| no_command(self.scene))
    }

    /// The time looked at: of everyone all, of the command its own, of processes from their first begin to their last
    /// end.
    pub(super) fn range(&self) -> Range<HostNs> {
        let timeline = &self.scene.timeline;
        let all = timeline.begin..timeline.end;
        match (&self.asked, self.explained) {
            (Asked::Everyone, _) => all,
            (Asked::Command, Some(scope)) => scope.begin..scope.end,
            _ => {
                let lives = || self.tasks.iter().map(|task| self.scene.task(*task));
                let begin = lives().map(|task| task.begin).min().unwrap_or(all.start);
                begin..lives().map(|task| task.end).max().unwrap_or(all.end)
            }
        }
    }
}

/// The command's tasks; without one, those of the tree that the trace was limited to; else everyone's.
fn by_default(scene: &Scene) -> (Asked, Vec<TaskId>) {
    let timeline = &scene.timeline;
    if let Some(scope) = scene.command() {
        return (Asked::Command, tree(timeline, scope.task));
    }
    let of = |root: Tid| all(timeline).into_iter().find(|id| scene.task(*id).tid == root);
    match scene.tree().and_then(|root| Some((root, of(root)?))) {
        Some((root, first)) => (Asked::Tree(root), tree(timeline, first)),
        None => (Asked::Everyone, all(timeline)),
    }
}

/// The tasks of processes that have this id, or this name in the end. One that went on as another program is that one's.
fn processes(timeline: &Timeline, tasks: &[TaskId], filter: &ProcessFilter) -> Vec<TaskId> {
    let rows = grouped(timeline, By::Process, tasks).into_iter();
    let meant = rows.filter(|(key, _)| filter.matches(&key.name, key.pid.map(|pid| pid.0)));
    let mut tasks: Vec<TaskId> = meant.flat_map(|(_, tasks)| tasks).collect();
    tasks.sort_unstable();
    tasks
}

/// Nowhere, or not among those that are shown.
fn no_process(scene: &Scene, filter: &ProcessFilter, asked: &Asked) -> Usage {
    let (timeline, name) = (&scene.timeline, clean(filter.text()));
    let elsewhere = !processes(timeline, &all(timeline), filter).is_empty();
    Usage(match asked {
        Asked::Command if elsewhere => {
            format!("process {name} is in this trace, but not of the command: add --all")
        }
        Asked::Tree(root) if elsewhere => {
            format!("process {name} is in this trace, but not of the tree of {root}: add --all")
        }
        _ => format!("no process {name} in this trace: see --view process --all"),
    })
}

fn no_command(scene: &Scene) -> Usage {
    let machine = clean(&scene.machine().name).into_owned();
    Usage(format!("no command was traced on {machine}: say which process with --process"))
}
