//! `vmscope bench compare`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use export::bench::Chart;
use microbench::compare::Unit;
use microbench::{Comparison, Condition, Labelled, json, report};

use super::file;
use cli::Usage;
use cli::width;
use cli::{print, write_file};

const EXAMPLE: &str = "Examples:
  vmscope bench compare real.json kvm.json                    the tables, and what exits to the VMM
  vmscope bench compare real.json kvm.json xen.json --unit ns
  vmscope bench compare real.json kvm.json --format html -o compared.html
  vmscope bench compare real.json kvm.json --svg latency.svg --chart latency";

/// Compare a real machine's results with those of VMs.
///
/// The first file is the baseline. Machines are named after their files. docs/bench.md explains how vmscope
/// decides whether an operation exits to the VMM.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The real machine's result file, then the VMs'
    #[arg(required = true, num_args = 2.., value_names = ["REAL.json", "VM.json"])]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Unit of the costs; json and csv have all units
    #[arg(long, value_enum, default_value = "ticks")]
    unit: UnitArg,
    /// Only these operations
    #[arg(long, value_name = "OP,...", value_delimiter = ',')]
    ops: Vec<String>,
    /// Only these conditions
    #[arg(long, value_name = "COND,...", value_delimiter = ',')]
    cond: Vec<Condition>,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write a chart as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Chart to write
    #[arg(long, value_enum, default_value = "bars", requires = "svg")]
    chart: ChartArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/bench.md
    Json,
    /// RFC 4180, a line per operation, condition and machine
    Csv,
    /// One page with charts, for any browser
    Html,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UnitArg {
    /// Ticks of each machine's TSC
    Ticks,
    /// Nanoseconds
    Ns,
    /// ADD instructions on the same machine under the same condition
    Add,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ChartArg {
    /// A bar per operation and machine
    Bars,
    /// The latency of memory by size
    Latency,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machines = load(&args.files)?;
    let mut comparison = microbench::compare(&machines);
    select(&mut comparison, args)?;
    let unit = match args.unit {
        UnitArg::Ticks => Unit::Ticks,
        UnitArg::Ns => Unit::Ns,
        UnitArg::Add => Unit::Adds,
    };
    if let Some(path) = &args.svg {
        let (chart, what) = match args.chart {
            ChartArg::Bars => (Chart::Bars, "no operation has a cost"),
            ChartArg::Latency => (Chart::Latency, "no latency-* operations in the results"),
        };
        let drawing = export::bench::svg(&comparison, chart)
            .with_context(|| format!("there is nothing to draw: {what}"))?;
        save(path, &drawing)?;
    }
    let out = match args.format {
        Format::Text => report::comparison(&comparison, unit).text(width()),
        Format::Csv => report::comparison(&comparison, unit).csv(),
        Format::Json => json::comparison(&comparison, unit)?,
        Format::Html => {
            let mut page = Vec::new();
            export::bench::html(&comparison, unit, &mut page)
                .context("failed to write the page")?;
            String::from_utf8(page).context("the page is not UTF-8")?
        }
    };
    match &args.output {
        Some(path) => save(path, &out)?,
        None => print(&out).context("failed to write to standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn save(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    write_file(path, |out| out.write_all(text.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))?;
    say!("wrote {}", path.display());
    Ok(())
}

/// The results, each under a name of its own.
fn load(files: &[PathBuf]) -> anyhow::Result<Vec<Labelled>> {
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    let mut machines = Vec::new();
    for path in files {
        let name = file::label(path)?;
        let times = used.entry(name.clone()).or_default();
        *times += 1;
        let label = if *times == 1 { name } else { format!("{name}.{times}") };
        machines.push(Labelled { label, results: file::read(path)? });
    }
    Ok(machines)
}

/// Leaves the selection. Verdicts are of the whole comparison.
fn select(comparison: &mut Comparison<'_>, args: &Args) -> Result<(), Usage> {
    comparison.rows.retain(|row| {
        (args.ops.is_empty() || args.ops.contains(&row.operation))
            && (args.cond.is_empty() || args.cond.contains(&row.condition))
    });
    if comparison.rows.is_empty() {
        return Err(Usage("no result matches --ops and --cond".to_owned()));
    }
    Ok(())
}
