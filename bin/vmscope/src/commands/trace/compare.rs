//! `vmscope trace compare`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::clean;
use anyhow::Context;
use api::trace as json;
use clap::ValueEnum;
use trace_analysis::compare::{Compared, Comparison, Row, Side, Unit, compare};
use trace_analysis::waits::Classifier;

use super::super::grid::Grid;
use super::super::output::{count, print, width};
use super::export::{label, write_html};
use super::json::{cleaned, heading, share};
use super::patience::Patience;
use super::scene::{Scale, Scene, grouped, indented};

/// Rows of a group in text unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 12;

const EXAMPLE: &str = "Examples:
  vmscope trace record -o seq -- make
  make clean
  vmscope trace record -o par -- make -j2
  vmscope trace compare seq par
  vmscope trace compare seq par --format html >seq-par.html";

/// Put two traces side by side: wall time, CPU and disk, states, waits, kernel time, critical path.
///
/// Of two traces with a command: the commands' tasks, and the machines while they ran. Otherwise the whole machine of both.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The first trace
    a: PathBuf,
    /// The second
    b: PathBuf,
    /// Which machine's [default: where the command ran, else the host if it was traced, else the first VM]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Lines of a group at most, 0 for all [default: 12 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/trace.md
    Json,
    /// RFC 4180
    Csv,
    /// A page for a browser with the charts of both
    Html,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = args.machine.as_deref();
    let (a, b) = (Scene::open(&args.a, machine)?, Scene::open(&args.b, machine)?);
    let patience = Patience::begin("comparing", 0);
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => usize::MAX,
        (Some(limit), _) => limit,
        (None, Format::Text) => TEXT_LIMIT,
    };
    let out = match args.format {
        Format::Text => text(args, (&a, &b), &compared(&a, &b), limit),
        Format::Csv => csv(&compared(&a, &b), limit),
        Format::Json => {
            let object = object(args, (&a, &b), compared(&a, &b), limit);
            serde_json::to_string_pretty(&object)? + "\n"
        }
        Format::Html => {
            let mut page = Vec::new();
            write_html(&[(&args.a, &a), (&args.b, &b)], &mut page)?;
            String::from_utf8(page).context("failed to write the page")?
        }
    };
    drop(patience);
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn compared(a: &Scene, b: &Scene) -> Comparison {
    let classifiers =
        [a, b].map(|scene| Classifier::new(&scene.trace.tables, scene.timeline.machine));
    let [of_a, of_b] = &classifiers;
    compare(
        &Side { timeline: &a.timeline, classifier: of_a, scope: a.command() },
        &Side { timeline: &b.timeline, classifier: of_b, scope: b.command() },
    )
}

fn text(args: &Args, (a, b): (&Scene, &Scene), found: &Comparison, limit: usize) -> String {
    let name = |path: &Path| clean(&label(path)).into_owned();
    let (name_a, name_b) = (name(&args.a), name(&args.b));
    let heading = |scene: &Scene| indented(&scene.heading(), width());
    let mut out = format!("a: {name_a}\n{}\nb: {name_b}\n{}", heading(a), heading(b));
    out += &format!("\n{}\n", who(a, b, found.of));
    for group in &found.groups {
        let scale = scale(&group.rows);
        let unit = scale.map_or(String::new(), |scale| format!(", in {}", scale.unit()));
        let scale = scale.unwrap_or(Scale::S);
        out += &format!("\n{}{unit}\n", capital(group.kind.name()));
        let mut grid = Grid::new(&["", ">a", ">b", ">b - a", ">b / a"]);
        for row in group.rows.iter().take(limit) {
            grid.row([
                row.name.clone(),
                figure(row.unit, row.a, scale),
                figure(row.unit, row.b, scale),
                signed(row, scale),
                row.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        out += &grid.text(width());
        out += &super::states::left_out(group.rows.len(), limit, "row");
    }
    out
}

/// Who is compared, and why no less than that.
fn who(a: &Scene, b: &Scene, of: Compared) -> String {
    let why = match (of, a.command(), b.command()) {
        (Compared::Commands, ..) => {
            return "Compared: the commands' tasks, and the machines while they ran".to_owned();
        }
        (Compared::Machines, None, None) => "neither has a command",
        (Compared::Machines, None, Some(_)) => "a has no command",
        (Compared::Machines, Some(_), _) => "b has no command",
    };
    format!("Compared: all tasks of both machines, as {why}")
}

fn capital(name: &str) -> String {
    let name = name.replace("cpu", "CPU");
    let mut letters = name.chars();
    let first = letters.next().map_or(String::new(), |first| first.to_uppercase().collect());
    first + letters.as_str()
}

/// What the figures are in, when they are times.
fn scale(rows: &[Row]) -> Option<Scale> {
    let longest = rows.iter().map(|row| row.a.max(row.b)).max()?;
    rows.iter().all(|row| row.unit == Unit::Ns).then(|| Scale::of(longest))
}

fn figure(unit: Unit, n: u64, scale: Scale) -> String {
    match unit {
        Unit::Ns => scale.show(n),
        Unit::Count | Unit::Bytes => grouped(n),
    }
}

fn signed(row: &Row, scale: Scale) -> String {
    let sign = if row.b < row.a { "-" } else { "+" };
    format!("{sign}{}", figure(row.unit, row.a.abs_diff(row.b), scale))
}

fn csv(found: &Comparison, limit: usize) -> String {
    let mut grid = Grid::new(&["group", "what", "unit", ">a", ">b", ">difference"]);
    for group in &found.groups {
        for row in group.rows.iter().take(limit) {
            let names = [group.kind.name(), &row.name, unit_name(row.unit)].map(str::to_owned);
            let numbers = [row.a.to_string(), row.b.to_string(), row.difference().to_string()];
            grid.row(names.into_iter().chain(numbers));
        }
    }
    grid.csv()
}

fn object(args: &Args, (a, b): (&Scene, &Scene), found: Comparison, limit: usize) -> json::Compare {
    let side = |path: &Path, scene: &Scene| {
        let json::Report { trace, machine, command, .. } = heading(scene);
        json::Side { name: cleaned(&label(path)), trace, machine, command }
    };
    let row = |row: &Row| json::CompareRow {
        what: cleaned(&row.name),
        unit: unit_name(row.unit).to_owned(),
        a: row.a,
        b: row.b,
        difference: i64::try_from(row.difference()).unwrap_or(i64::MAX),
        ratio: (0 < row.a).then(|| share(row.b, row.a)),
    };
    let groups = found.groups.iter().map(|group| json::CompareGroup {
        group: group.kind.name().to_owned(),
        rows: group.rows.iter().take(limit).map(row).collect(),
    });
    let of = match found.of {
        Compared::Commands => "commands",
        Compared::Machines => "machines",
    };
    json::Compare {
        version: json::VERSION,
        of: of.to_owned(),
        a: side(&args.a, a),
        b: side(&args.b, b),
        groups: groups.collect(),
    }
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Ns => "ns",
        Unit::Count => "count",
        Unit::Bytes => "bytes",
    }
}
