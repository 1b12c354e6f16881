//! Simulated migrations on a page: tables, and each VM's speed in time.

use std::io::{self, Write};

use layout::{Arrival, Case, Ranking, Simulation};

use crate::drawing::Drawing;
use crate::page::Page;

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 60.0;
const PLOT: (f64, f64) = (900.0, 160.0);
/// Charts of VMs that were there before, of each policy.
const MAX_OTHERS: usize = 8;
/// A VM whose speed differs by less between layouts has no chart.
const MIN_DIFFERENCE: f64 = 0.01;

/// Writes the page.
///
/// # Errors
/// Only the writer's.
pub fn html(
    case: &Case,
    simulations: &[Simulation],
    rankings: &[Ranking],
    mut out: impl Write,
) -> io::Result<()> {
    let report = layout::report::simulation(case, simulations, rankings);
    let mut page = Page::new(&format!("vmscope layout: {}", case.name));
    let mut tables = report.tables().cloned();
    if !simulations.is_empty() {
        page.header(&tables.next().map(|table| table.html(usize::MAX)).unwrap_or_default());
    }
    for simulation in simulations {
        let charts: String = charts(simulation).iter().map(Drawing::inline).collect();
        let title = format!("Policy {}", simulation.policy);
        page.section(&title, "Speed relative to being alone with local memory.", &charts);
    }
    for mut table in tables {
        let title = std::mem::take(&mut table.title);
        page.section(&title, "", &table.html(usize::MAX));
    }
    let host = layout::report::nodes(&case.topology);
    page.section(
        "Nodes",
        "Memory that is free is free before the migration.",
        &host.html(usize::MAX),
    );
    page.write(&mut out)
}

/// The VMs that arrive, then those that the layouts make slower or faster.
fn charts(simulation: &Simulation) -> Vec<Drawing> {
    let Some(first) = simulation.ways.first() else { return Vec::new() };
    let arrives = |n: &usize| first.curves[*n].arrival == Arrival::Incoming;
    let all = || 0..first.curves.len();
    let others = all().filter(|n| !arrives(n) && differs(simulation, *n)).take(MAX_OTHERS);
    all().filter(arrives).chain(others).map(|n| chart(simulation, n)).collect()
}

fn differs(simulation: &Simulation, vm: usize) -> bool {
    let speeds = simulation.ways.iter().flat_map(|way| &way.curves[vm].speeds);
    let (low, high) = speeds.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), speed| {
        (low.min(*speed), high.max(*speed))
    });
    MIN_DIFFERENCE < high - low
}

fn chart(simulation: &Simulation, vm: usize) -> Drawing {
    let curve = &simulation.ways[0].curves[vm];
    let seconds = curve.speeds.len().max(2) as f64;
    let x = |second: f64| LEFT + PLOT.0 * second / seconds;
    let y = |speed: f64| TOP + PLOT.1 * (1.0 - speed);
    let role = if curve.arrival == Arrival::Incoming { "migrates" } else { "is there before" };
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &format!("Speed of {}", curve.vm));
    drawing.text((0.0, 16.0), "head", &format!("{}, which {role}", curve.vm));
    drawing.legend(simulation.ways.iter().map(|way| way.way.name()), (0.0, 40.0));
    for percent in [0_u32, 50, 100] {
        let at = y(f64::from(percent) / 100.0);
        drawing.line((LEFT, at), (LEFT + PLOT.0, at));
        drawing.text((LEFT - 8.0, at + 4.0), "faint end", &format!("{percent} %"));
    }
    let times =
        [("migration", simulation.migration.start_s), ("arrival", simulation.migration.end_s)];
    for (name, second) in times {
        let at = x(f64::from(second));
        drawing.line((at, TOP), (at, TOP + PLOT.1));
        drawing.text((at, TOP + PLOT.1 + 20.0), "faint middle", &format!("{name}, {second} s"));
    }
    for (n, way) in simulation.ways.iter().enumerate() {
        let speeds = way.curves[vm].speeds.iter().enumerate();
        let points: Vec<(f64, f64)> =
            speeds.map(|(second, speed)| (x(second as f64), y(*speed))).collect();
        drawing.curve(&points, n);
    }
    drawing
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_page_has_a_chart_of_each_vm_that_arrives_and_no_markup_of_names() {
        let host = "[[node]]\ncpus = \"0-1\"\nmemory = \"8G\"\ndistances = [10, 22]\n\
                    [[node]]\ncpus = \"2-3\"\nmemory = \"8G\"\ndistances = [22, 10]\n";
        let vms = "[[vm]]\nname = \"<b>\"\nmemory = \"2G\"\nnode = 0\nmemory_nodes = [1]\nwaiting = 0.57\nincoming = true\n";
        let case = layout::read_case(vms, &layout::read_topology(host).unwrap()).unwrap();
        let options = layout::Options::default();
        let simulations: Vec<_> = ["simple", "dino"]
            .iter()
            .filter_map(|p| layout::simulate(&case, p, &options))
            .collect();
        let rankings = layout::rank_policies(&case.topology, 3, 1, &options);
        let mut page = Vec::new();
        html(&case, &simulations, &rankings, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert_eq!(page.matches("<polyline").count(), 6);
        assert_eq!(page.matches("migration, 20 s").count(), 2);
        assert!(!page.contains("<b>") && !page.contains("<script"));
    }
}
