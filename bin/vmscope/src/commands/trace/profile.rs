//! CPU and disk together: `--view profile`.

use analysis::Width;
use trace_analysis::profile::{FourWay, Profile};

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{length, percent, seconds};

pub(super) fn text(findings: &Findings<'_>, profile: &Profile, width: Width) -> String {
    let wall = length(profile.machine.total_ns());
    let title = format!(
        "CPU and disk, whoever used them: what was busy, in % of {wall}{}\n",
        when(findings)
    );
    let mut grid = columns("of");
    if is_unknown(&profile.machine) {
        grid.push(Column::Number("unknown".to_owned()));
    }
    for (name, split) in rows(findings, profile) {
        let wall = split.total_ns();
        let mut cells = parts(&split).map(|ns| percent(ns, wall)).to_vec();
        if is_unknown(&profile.machine) {
            cells.push(percent(split.unknown_ns + split.unknown_and_disk_ns, wall));
        }
        grid.row(std::iter::once(name).chain(cells));
    }
    let mut out =
        title + &grid.text(width) + "The machine: any CPU, any disk; a CPU: it and any disk\n";
    out += &format!("\nDisks, in all of the trace\n{}", disks(findings).text(width));
    out
}

/// The machine's figures are of the time in which those asked for lived.
fn when(findings: &Findings<'_>) -> String {
    match findings.is_everyone() {
        true => String::new(),
        false => format!(", the time of {}", findings.whose()),
    }
}

pub(super) fn csv(findings: &Findings<'_>, profile: &Profile) -> String {
    let titles = ["of", ">cpu_only_ns", ">both_ns", ">disk_only_ns", ">neither_ns"];
    let mut grid = Grid::new(&titles);
    grid.push(Column::Number("unknown_ns".to_owned()));
    grid.push(Column::Number("unknown_and_disk_ns".to_owned()));
    for (name, split) in rows(findings, profile) {
        let unknown = [split.unknown_ns, split.unknown_and_disk_ns];
        let cells = parts(&split).into_iter().chain(unknown).map(|ns| ns.to_string());
        grid.row(std::iter::once(name).chain(cells));
    }
    grid.csv()
}

/// `CPU only 80.0 %, both 5.0 %, ...`.
pub(super) fn line(split: &FourWay) -> String {
    let wall = split.total_ns();
    let names = ["CPU only", "both", "disk only", "neither", "unknown", "unknown and disk"];
    let unknown = [split.unknown_ns, split.unknown_and_disk_ns];
    let parts = parts(split).into_iter().chain(unknown).zip(names).enumerate();
    let shown = parts.filter(|(n, (ns, _))| *n < 4 || wall < ns.saturating_mul(2000));
    let shown = shown.map(|(_, (ns, name))| format!("{name} {} %", percent(ns, wall)));
    shown.collect::<Vec<_>>().join(", ")
}

fn columns(first: &str) -> Grid {
    Grid::new(&[first, ">CPU only", ">both", ">disk only", ">neither"])
}

fn parts(split: &FourWay) -> [u64; 4] {
    [split.cpu_only_ns, split.both_ns, split.disk_only_ns, split.neither_ns]
}

fn is_unknown(split: &FourWay) -> bool {
    0 < split.unknown_ns + split.unknown_and_disk_ns
}

fn rows(findings: &Findings<'_>, profile: &Profile) -> Vec<(String, FourWay)> {
    let mut rows = vec![("machine".to_owned(), profile.machine)];
    rows.extend(profile.cpus.iter().map(|(number, split)| (format!("CPU {number}"), *split)));
    let disks = findings.scene.timeline.disks.iter().zip(&profile.disks);
    rows.extend(disks.map(|(disk, split)| (format!("disk {}", disk.name), *split)));
    rows
}

fn disks(findings: &Findings<'_>) -> Grid {
    let mut grid = Grid::new(&["disk", ">requests", ">read, MB", ">written, MB", ">busy, s"]);
    for disk in &findings.scene.timeline.disks {
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let busy: u64 = disk.busy.iter().map(|(begin, end)| end.since(*begin)).sum();
        let [read, written] = disk.bytes.map(megabytes);
        grid.row([disk.name.clone(), disk.requests.to_string(), read, written, seconds(busy)]);
    }
    grid
}
