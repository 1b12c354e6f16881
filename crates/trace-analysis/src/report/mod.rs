//! The views of a trace: why a job took so long, and what its CPUs, disks and processes did meanwhile.
//!
//! ```text
//!  About (the trace as a whole) --+
//!  Findings (one machine of it) --+--> Context --> text: a Report    CSV: one table    JSON: one object
//! ```
//!
//! docs/trace.md describes the views, their CSV and their JSON for users.

mod compare;
mod data_quality;
mod files;
mod gantt;
mod heading;
mod host_side;
mod kernel;
mod labels;
mod overview;
mod path;
mod process;
mod profile;
mod states;
mod waits;

use std::collections::BTreeMap;
use std::fmt;

use model::{HostNs, Machine, Note, TraceFilter};
use serde_json::{Map, Value};
use table::{Report, Table, Width, clean};

use crate::findings::Findings;

pub use compare::{Side, compare_csv, compare_json, compare_text, group_table};
pub use kernel::calls;
pub use path::{categories, improvements};
pub use process::processes;
pub use waits::{causes, details};

/// The version of the JSON.
pub const JSON_VERSION: u32 = 2;

/// A view of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Why it took so long, on one page.
    Overview,
    /// CPU and disk together: one, both or neither at work.
    Profile,
    /// Each process: CPU running, waiting or neither, by disk running, waiting or neither.
    States,
    /// What was waited for, and who waited.
    Waits,
    /// Where kernel time went.
    Kernel,
    /// What the command's length is made of.
    CriticalPath,
    /// Every process.
    Process,
    /// What was done with which file.
    Files,
    /// What everyone did when, drawn in characters.
    Gantt,
}

/// Facts about the trace as a whole.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    pub vmscope_version: &'a str,
    pub hostname: &'a str,
    /// First instant of the trace.
    pub begin: HostNs,
    pub end: HostNs,
    /// Its first instant in ns since 1970.
    pub begin_unix_ns: u64,
    /// False: the writer did not finish.
    pub complete: bool,
    /// What it was limited to.
    pub filters: &'a [TraceFilter],
    /// Other dropped data, by name.
    pub counters: &'a BTreeMap<String, u64>,
    /// What the user should know.
    pub notes: &'a [Note],
    /// Events of the machine that is looked at.
    pub n_events: u64,
    /// The part of it that is looked at; `None`: all.
    pub range: Option<[HostNs; 2]>,
}

/// What a view is made from.
#[derive(Debug)]
pub struct Context<'a> {
    pub about: About<'a>,
    /// One machine of it.
    pub findings: Findings<'a>,
    /// Rows of a table at most.
    pub limit: Option<usize>,
}

/// Why there is no such view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoView {
    /// There is no critical path: no command was traced on this machine.
    NoCommand(String),
    /// The trace does not say which files were used.
    NoFiles,
    /// The overview is several tables.
    OverviewAsCsv,
    /// The drawing is text.
    GanttAsData,
}

/// The view for a terminal.
///
/// # Errors
/// When the trace does not have it.
pub fn text(context: &Context<'_>, view: View, width: Width) -> Result<Report, NoView> {
    let parts = match view {
        View::Overview => overview::parts(context),
        View::Profile => profile::parts(context),
        View::States => states::parts(context),
        View::Waits => waits::parts(context),
        View::Kernel => kernel::parts(context),
        View::CriticalPath => path::parts(context, context.path()?),
        View::Process => process::parts(context),
        View::Files => files::parts(context.with_files()?),
        View::Gantt => gantt::parts(context, width),
    };
    Ok(Report { parts, ..heading::report(context) })
}

/// The view's figures, RFC 4180.
///
/// # Errors
/// When the view has no table.
pub fn csv(context: &Context<'_>, view: View) -> Result<String, NoView> {
    let table = match view {
        View::Overview => return Err(NoView::OverviewAsCsv),
        View::Gantt => return Err(NoView::GanttAsData),
        View::Profile => profile::table(context),
        View::States => states::processes(context),
        View::Waits => waits::data(context),
        View::Kernel => kernel::data(context),
        View::CriticalPath => path::segments(context, context.path()?),
        View::Process => processes(&context.findings, context.limit),
        View::Files => files::table(context.with_files()?),
    };
    Ok(table.csv())
}

/// The documented object; of the overview with all views that its text is made from.
///
/// # Errors
/// When the trace does not have the view, or it is a drawing.
pub fn json(context: &Context<'_>, view: View) -> Result<Value, NoView> {
    let mut object = heading::object(context);
    object.insert("whose".into(), clean(&context.whose()).into());
    let overview = view == View::Overview;
    if overview || view == View::Profile {
        object.insert("profile".into(), profile::json(context));
    }
    if overview || view == View::States {
        object.insert("states".into(), states::json(context));
    }
    if overview || view == View::Waits {
        object.insert("waits".into(), waits::json(context));
    }
    if overview || view == View::Kernel {
        object.insert("kernel".into(), kernel::json(context));
    }
    match (view, context.findings.path()) {
        (View::Overview, Some(path)) => {
            object.insert("critical_path".into(), path::json(context, path));
        }
        (View::CriticalPath, _) => {
            object.insert("critical_path".into(), path::json(context, context.path()?));
        }
        (View::Process, _) => {
            let table = processes(&context.findings, context.limit);
            object.insert("processes".into(), table.json());
        }
        (View::Files, _) => {
            object.insert("files".into(), files::json(context.with_files()?));
        }
        (View::Gantt, _) => return Err(NoView::GanttAsData),
        _ => {}
    }
    if matches!(view, View::Overview | View::Kernel | View::Process) {
        object.extend(host_side::json(context).map(|json| ("host_side".to_owned(), json)));
    }
    Ok(object.into())
}

impl Context<'_> {
    /// Whose tasks are looked at, in titles.
    fn whose(&self) -> String {
        self.findings.selection.to_string()
    }

    fn machine(&self) -> &Machine {
        &self.findings.tables.machines[self.findings.timeline.machine.index()]
    }

    fn wall_ns(&self) -> u64 {
        self.findings.timeline.length_ns()
    }

    fn with_files(&self) -> Result<&Self, NoView> {
        if self.findings.timeline.files.is_empty() { Err(NoView::NoFiles) } else { Ok(self) }
    }

    fn path(&self) -> Result<&crate::findings::Path, NoView> {
        let no_command = || NoView::NoCommand(self.machine().name.clone());
        self.findings.path().ok_or_else(no_command)
    }
}

impl fmt::Display for NoView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand(machine) => {
                let machine = clean(machine);
                write!(f, "no command was traced on {machine}: say which process with --process")
            }
            Self::NoFiles => f.write_str(
                "the trace does not say which files were used: record it with `trace record --files`",
            ),
            Self::OverviewAsCsv => {
                f.write_str("the overview has no table: give --view with --format csv")
            }
            Self::GanttAsData => f.write_str(
                "the Gantt chart is drawn as text only: --format html has it to zoom, \
                 `vmscope trace export --format csv` has its data",
            ),
        }
    }
}

impl std::error::Error for NoView {}

/// The first `limit` of the rows.
fn limited<T>(rows: &[T], limit: Option<usize>) -> &[T] {
    &rows[..limit.unwrap_or(rows.len()).min(rows.len())]
}

/// Says below the table how many of `n` rows it does not show.
fn note_cut(table: &mut Table, n: usize, what: &str) {
    table.n_cut = n.saturating_sub(table.rows.len());
    if 0 < table.n_cut {
        let cut = table::counted(table.n_cut as u64, what);
        table.notes.push(format!("({cut} not shown: --limit 0 shows all)"));
    }
}

/// An object of times.
fn object<'a>(members: impl IntoIterator<Item = (&'a str, u64)>) -> Value {
    let members = members.into_iter().map(|(key, ns)| (key.to_owned(), Value::from(ns)));
    Value::Object(Map::from_iter(members))
}
