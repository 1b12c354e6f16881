//! `vmscope exits` as text.

use std::collections::BTreeMap;

use analysis::steal::{Cause, ExitRow, Exits};
use analysis::{Width, clean};

use super::super::grid::Grid;
use super::super::scene::{Scene, ms, percent, with_id};
use super::{By, VmExits};

/// Functions named after a reason, reasons named after a function.
const NAMED: usize = 3;

pub(super) fn text(scene: &Scene, found: &[VmExits], by: By, width: Width) -> String {
    let mut out = scene.heading();
    if !found.iter().any(|(_, exits)| exits.counted) {
        out += "Note: exits were not counted: record with --exits; times are from samples\n";
    }
    for (vm, exits) in found {
        let ns: u64 = exits.rows.iter().map(|row| row.time.total_ns()).sum();
        let name = clean(&scene.vm_row(*vm).name).into_owned();
        let count: u64 = exits.rows.iter().filter_map(|row| row.count).sum();
        let counted = if exits.counted { format!("{count} exits, ") } else { String::new() };
        let share = percent(ns, scene.wall_ns(*vm));
        out += &format!("\nVM {name}: {counted}{} ms in the VMM ({share} % of its time)\n", ms(ns));
        if exits.rows.is_empty() {
            continue;
        }
        out += &match by {
            By::Reason => by_reason(scene, exits).text(width),
            By::Function => by_function(scene, exits).text(width),
        };
    }
    out
}

fn by_reason(scene: &Scene, exits: &Exits) -> Grid {
    let mut grid = Grid::new(&[
        ">Count",
        ">ms",
        ">waiting\nms",
        ">us\neach",
        "Exit reason",
        "Guest functions (ms)",
    ]);
    for row in &exits.rows {
        let numbers = [
            row.count.map_or("-".to_owned(), |n| n.to_string()),
            ms(row.time.total_ns()),
            ms(row.time.waiting_ns),
            row.mean_ns().map_or("-".to_owned(), |ns| format!("{:.3}", ns as f64 / 1e3)),
        ];
        grid.row(numbers.into_iter().chain([scene.reason(row.reason), causes(row)]));
    }
    grid
}

/// By name: several processes may run the same function.
fn causes(row: &ExitRow) -> String {
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    for (cause, ns) in &row.causes {
        *functions.entry(cause.function.as_deref().unwrap_or("[unknown]")).or_default() += ns;
    }
    named(functions.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect())
}

/// The same the other way round.
fn by_function(scene: &Scene, exits: &Exits) -> Grid {
    let mut functions: BTreeMap<&Cause, Vec<(String, u64)>> = BTreeMap::new();
    for row in &exits.rows {
        for (cause, ns) in &row.causes {
            functions.entry(cause).or_default().push((scene.reason(row.reason), *ns));
        }
    }
    let sum = |reasons: &[(String, u64)]| reasons.iter().map(|(_, ns)| ns).sum::<u64>();
    let mut rows: Vec<_> = functions.into_iter().collect();
    rows.sort_by_key(|(_, reasons)| std::cmp::Reverse(sum(reasons)));
    let mut grid = Grid::new(&[">ms", "Function", "Process", "Exit reasons (ms)"]);
    for (cause, reasons) in rows {
        let text = |name: &Option<String>| name.clone().unwrap_or("[unknown]".to_owned());
        let process = with_id(&text(&cause.process), cause.pid);
        grid.row([ms(sum(&reasons)), text(&cause.function), process, named(reasons)]);
    }
    grid
}

/// `a 1.500, b 0.500, 3 more`.
fn named(mut parts: Vec<(String, u64)>) -> String {
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let more = parts.len().saturating_sub(NAMED);
    let mut names: Vec<String> =
        parts.iter().take(NAMED).map(|(name, ns)| format!("{name} {}", ms(*ns))).collect();
    if 0 < more {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
