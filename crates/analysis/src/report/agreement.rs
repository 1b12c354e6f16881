//! `vmscope report --offcpu-source both`: how well gaps found by samples and by switches agree.

use model::{Tables, Vcpu};
use serde_json::{Value, json};
use table::{Cell, Column, Report, Table, clean, cleaned, seconds};

use crate::Selection;
use crate::report::profile::VERSION;
use crate::vcpu_timeline::{Agreement, VcpuAgreement};

/// How well the two ways agree, for each vCPU that is selected.
#[must_use]
pub fn agreement(
    tables: &Tables,
    selection: &Selection,
    found: &Agreement,
    period_ns: u64,
) -> Report {
    let rows = found.vcpus.iter().filter_map(|v| Some((tables.vcpus.get(v.vcpu.index())?, v)));
    let mut rows: Vec<_> = rows.filter(|(row, _)| is_selected(tables, selection, row)).collect();
    rows.sort_by_key(|(row, _)| (row.vm, row.number));
    let mut report = Report::default();
    let mut vcpus = Vec::new();
    for (row, found) in rows {
        let vm = tables.vms.get(row.vm.index()).map_or("[unknown]", |vm| vm.name.as_str());
        let table = table(vm, row.number, found, period_ns);
        vcpus.push(vcpu_json(vm, row.number, found, &table, period_ns));
        report.parts.push(table.into());
    }
    if report.parts.is_empty() {
        report.parts.push("No vCPU in this recording.".to_owned().into());
    }
    report.json = json!({ "version": VERSION, "period_ns": period_ns, "vcpus": vcpus });
    report
}

fn is_selected(tables: &Tables, selection: &Selection, row: &Vcpu) -> bool {
    selection.vm().is_none_or(|vm| tables.is_same_vm(vm, row.vm))
        && selection.vcpu().is_none_or(|number| number == row.number)
}

fn table(vm: &str, vcpu: u32, found: &VcpuAgreement, period_ns: u64) -> Table {
    let columns = vec![
        Column::json_only("account"),
        Column::json_only("samples_ns"),
        Column::json_only("switches_ns"),
        Column::name("  % of its time"),
        Column::number("samples"),
        Column::number("switches"),
        Column::number("points").json("points"),
    ];
    let gaps = &found.gaps;
    let mut title = format!("{} vcpu{vcpu}: {} s", clean(vm), seconds(found.wall_ns, 3));
    title += &match gaps.count {
        0 => ", no gap of more than two periods".to_owned(),
        n => format!(
            ", {n} gap{} of more than two periods\n\
             Lengths of gaps differ by {:.2} periods on average, {:.2} at most; {} of {n} by one at most",
            if n == 1 { "" } else { "s" },
            periods(gaps.mean_ns(), period_ns),
            periods(gaps.largest_ns, period_ns),
            gaps.within_period
        ),
    };
    let mut table = Table::new(title, columns);
    let wall_ns = found.wall_ns.max(1);
    for (account, pair) in &found.accounts {
        let times = [pair.samples_ns, pair.switches_ns];
        let [samples, switches] = times.map(|ns| Cell::Share(ns, wall_ns));
        let data = [account.name().into()].into_iter().chain(times.map(Cell::ns));
        let name = format!("  {}", account.words()).into();
        let points = Cell::RealChange(rounded(pair.points(found.wall_ns)));
        table.row(data.chain([name, samples, switches, points]));
    }
    table
}

fn vcpu_json(vm: &str, vcpu: u32, found: &VcpuAgreement, table: &Table, period_ns: u64) -> Value {
    json!({
        "vm": cleaned(vm),
        "vcpu": vcpu,
        "wall_ns": found.wall_ns,
        "accounts": table.json(),
        "gaps": found.gaps.count,
        "gaps_within_period": found.gaps.within_period,
        "largest_gap_periods": periods(found.gaps.largest_ns, period_ns),
        "mean_gap_periods": periods(found.gaps.mean_ns(), period_ns),
        "largest_points": rounded(found.largest_points()),
    })
}

fn periods(ns: u64, period_ns: u64) -> f64 {
    rounded(ns as f64 / period_ns.max(1) as f64)
}

/// To four decimals.
fn rounded(number: f64) -> f64 {
    // No negative zero.
    (number * 1e4).round() / 1e4 + 0.0
}
