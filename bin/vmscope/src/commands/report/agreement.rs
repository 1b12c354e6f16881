//! `vmscope report --edges both`.

use std::fmt::Write as _;

use analysis::axis::{VcpuAgreement, agreement};
use analysis::steal::{ACCOUNTS, account_name};
use analysis::{Resolver, Selection, View, clean};
use api::report as json;
use model::{OffCpuSource, Tables, Vcpu};
use recording::Recording;

use super::super::grid::Grid;
use super::super::output::width;
use super::super::scene::in_words;
use super::super::{Usage, axis};
use super::{Args, Format};

/// How well the two ways to find gaps agree, as asked for.
pub(super) fn rendered(args: &Args) -> anyhow::Result<String> {
    if matches!(args.format, Format::Csv | Format::Html) || args.select.process.is_some() {
        let text = "--edges both compares whole vCPUs, as text or json: leave out --process and --format csv or html";
        return Err(Usage(text.to_owned()).into());
    }
    let recording = Recording::open(&args.dir)?;
    let agreement = compared(&recording, args)?;
    match args.format {
        Format::Json => Ok(serde_json::to_string_pretty(&agreement)? + "\n"),
        Format::Text | Format::Csv | Format::Html => Ok(text(&agreement)),
    }
}

fn compared(recording: &Recording, args: &Args) -> anyhow::Result<json::Agreement> {
    let tables = &recording.tables;
    let selection = args.select.selection_in(tables, View::Unified)?;
    let resolver = Resolver::new(tables);
    let switches = axis::load(recording, &resolver, Some(OffCpuSource::Switches))?;
    let samples = axis::load(recording, &resolver, Some(OffCpuSource::Samples))?;
    let period_ns = recording.header.period_ns;
    let both = agreement(&samples, &switches, period_ns);
    let rows = both.vcpus.iter().filter_map(|v| Some((tables.vcpus.get(v.vcpu.index())?, v)));
    let mut rows: Vec<_> = rows.filter(|(row, _)| is_selected(&selection, row)).collect();
    rows.sort_by_key(|(row, _)| (row.vm, row.number));
    let vcpus = rows.into_iter().map(|(row, v)| vcpu(tables, row, v, period_ns)).collect();
    Ok(json::Agreement { version: json::VERSION, period_ns, vcpus })
}

fn is_selected(selection: &Selection, row: &Vcpu) -> bool {
    selection.vm().is_none_or(|vm| vm == row.vm)
        && selection.vcpu().is_none_or(|number| number == row.number)
}

fn vcpu(tables: &Tables, row: &Vcpu, both: &VcpuAgreement, period_ns: u64) -> json::VcpuAgreement {
    let vm = tables.vms.get(row.vm.index()).map_or("[unknown]", |vm| vm.name.as_str());
    let periods = |ns: u64| rounded(ns as f64 / period_ns.max(1) as f64);
    let accounts = both.accounts.iter().map(|(account, pair)| json::AccountAgreement {
        account: account_name(*account).to_owned(),
        samples_ns: pair.samples_ns,
        switches_ns: pair.switches_ns,
        points: rounded(pair.points(both.wall_ns)),
    });
    json::VcpuAgreement {
        vm: clean(vm).into_owned(),
        vcpu: row.number,
        wall_ns: both.wall_ns,
        accounts: accounts.collect(),
        gaps: both.gaps.count,
        gaps_within_period: both.gaps.within_period,
        largest_gap_periods: periods(both.gaps.largest_ns),
        mean_gap_periods: periods(both.gaps.mean_ns()),
        largest_points: rounded(both.largest_points()),
    }
}

/// To four decimals.
fn rounded(number: f64) -> f64 {
    // No negative zero.
    (number * 1e4).round() / 1e4 + 0.0
}

fn text(agreement: &json::Agreement) -> String {
    if agreement.vcpus.is_empty() {
        return "No vCPU in this recording.\n".to_owned();
    }
    let parts: Vec<String> = agreement.vcpus.iter().map(vcpu_text).collect();
    parts.join("\n")
}

fn vcpu_text(vcpu: &json::VcpuAgreement) -> String {
    let (seconds, gaps) = (vcpu.wall_ns as f64 / 1e9, vcpu.gaps);
    let mut out = format!("{} vcpu{}: {seconds:.3} s", vcpu.vm, vcpu.vcpu);
    let _ = match gaps {
        0 => writeln!(out, ", no gap of more than two periods"),
        _ => writeln!(
            out,
            ", {gaps} gap{} of more than two periods\n\
             Lengths of gaps differ by {:.2} periods on average, {:.2} at most; {} of {gaps} by one at most",
            if gaps == 1 { "" } else { "s" },
            vcpu.mean_gap_periods,
            vcpu.largest_gap_periods,
            vcpu.gaps_within_period
        ),
    };
    let mut grid = Grid::new(&["  % of its time", ">samples", ">switches", ">points"]);
    let per_cent = |ns: u64| format!("{:.2}", 100.0 * ns as f64 / vcpu.wall_ns.max(1) as f64);
    for json::AccountAgreement { account, samples_ns, switches_ns, points } in &vcpu.accounts {
        let known = ACCOUNTS.into_iter().find(|known| account_name(*known) == account);
        let name = known.map_or_else(|| account.clone(), |known| in_words(known).to_owned());
        let name = format!("  {name}");
        let cells = [name, per_cent(*samples_ns), per_cent(*switches_ns), format!("{points:+.2}")];
        grid.row(cells);
    }
    out + &grid.text(width())
}
