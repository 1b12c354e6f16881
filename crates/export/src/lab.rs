//! Results of the consolidation laboratory on a page: verdicts, charts against the number of VMs, tables.

use std::io::{self, Write};

use ::lab::curves::{Curves, Stacks, curves, stacks};
use ::lab::{Plan, Run};
use table::{Part, Report};

use crate::drawing::Drawing;
use crate::page::Page;

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
const PLOT: (f64, f64) = (860.0, 230.0);

/// Writes the page; `problems`: what could not be read.
///
/// # Errors
/// Only the writer's.
pub fn html(plan: &Plan, runs: &[Run], problems: &[String], mut out: impl Write) -> io::Result<()> {
    let report = ::lab::report::results(plan, runs, problems);
    let mut page = Page::new(&format!("vmscope lab: {}", plan.name));
    page.header(&header(&report));
    page.notes(&report.notes);
    let charts: String = curves(plan, runs).iter().filter_map(curve_chart).collect();
    page.section("Against the number of VMs", "", &charts);
    let charts: String = stacks(plan, runs).iter().map(stack_chart).collect();
    page.section("CPUs and requests", "", &charts);
    for part in report.parts {
        let Part::Table(mut table) = part else { continue };
        let title = std::mem::take(&mut table.title);
        page.section(&title, &table.notes.join(" "), &table.html(usize::MAX));
    }
    page.write(&mut out)
}

/// Facts and verdicts.
fn header(report: &Report) -> String {
    let facts = report.facts.iter().map(|fact| format!("{}: {}", fact.title, fact.text));
    let verdicts = report.parts.iter().filter_map(|part| match part {
        Part::Prose(text) => Some(text.clone()),
        Part::Table(_) | Part::Text(_) => None,
    });
    facts.chain(verdicts).map(|text| format!("<p>{}</p>\n", table::escape(&text))).collect()
}

/// `None`: there is nothing to draw a curve through.
fn curve_chart(curves: &Curves) -> Option<String> {
    let points = || curves.series.iter().flat_map(|series| &series.points);
    let last = points().map(|(vms, _)| *vms).max()?;
    let highest = points().fold(0.0, |high: f64, (_, value)| high.max(*value));
    let top = round_up(highest);
    let x = |vms: u32| LEFT + PLOT.0 * f64::from(vms) / f64::from(last.max(1));
    let y = |value: f64| TOP + PLOT.1 * (1.0 - value / top);
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &curves.title);
    drawing.text((0.0, 16.0), "head", &curves.title);
    drawing.legend(curves.series.iter().map(|series| series.name.as_str()), (0.0, 40.0));
    for quarter in 0..=4 {
        let value = top * f64::from(quarter) / 4.0;
        drawing.line((LEFT, y(value)), (LEFT + PLOT.0, y(value)));
        let label = format!("{} {}", table::figure(value), curves.unit);
        drawing.text((LEFT - 8.0, y(value) + 4.0), "faint end", label.trim_end());
    }
    for vms in marks(points().map(|(vms, _)| *vms)) {
        drawing.text((x(vms), TOP + PLOT.1 + 20.0), "faint middle", &vms.to_string());
    }
    drawing.text((LEFT + PLOT.0, TOP + PLOT.1 + 40.0), "faint end", "VMs");
    for (n, series) in curves.series.iter().enumerate() {
        let line: Vec<(f64, f64)> =
            series.points.iter().map(|(vms, value)| (x(*vms), y(*value))).collect();
        drawing.curve(&line, n);
        for (vms, value) in &series.points {
            let says =
                format!("{}, {vms} VMs: {} {}", series.name, table::figure(*value), curves.unit);
            drawing.point((x(*vms), y(*value)), n, &says);
        }
    }
    Some(drawing.inline())
}

fn stack_chart(stacks: &Stacks) -> String {
    let step = PLOT.0 / stacks.stacks.len().max(1) as f64;
    let width = (0.7 * step).min(90.0);
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &stacks.title);
    drawing.text((0.0, 16.0), "head", &stacks.title);
    drawing.legend(stacks.parts.iter().map(String::as_str), (0.0, 40.0));
    for percent in [0_u32, 50, 100] {
        let y = TOP + PLOT.1 * (1.0 - f64::from(percent) / 100.0);
        drawing.line((LEFT, y), (LEFT + PLOT.0, y));
        drawing.text((LEFT - 8.0, y + 4.0), "faint end", &format!("{percent} %"));
    }
    for (place, (vms, parts)) in stacks.stacks.iter().enumerate() {
        let middle = LEFT + step * (place as f64 + 0.5);
        let mut y = TOP + PLOT.1;
        for (n, part) in parts.iter().enumerate() {
            let height = PLOT.1 * part;
            y -= height;
            let says = format!("{vms} VMs, {}: {:.1} %", stacks.parts[n], 100.0 * part);
            drawing.bar((middle - width / 2.0, y), (width, height), n, &says);
        }
        let label = format!("{vms} VMs");
        drawing.text((middle, TOP + PLOT.1 + 20.0), "faint middle", &label);
    }
    drawing.inline()
}

/// The next of 1, 2, 4, 5, 10 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| value <= *step).unwrap_or(10.0 * power)
}

/// Numbers of VMs that stand below a chart: each once, without those that would touch.
fn marks(vms: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut all: Vec<u32> = vms.collect();
    all.sort_unstable();
    all.dedup();
    let room = all.last().map_or(1, |last| last.div_ceil(30).max(1));
    let mut marks: Vec<u32> = Vec::new();
    for vms in all {
        if marks.last().is_none_or(|last| last + room <= vms) {
            marks.push(vms);
        }
    }
    marks
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let check = |value: f64, expected: f64| {
            assert!((round_up(value) - expected).abs() < 1e-9 * expected, "{value}");
        };
        check(0.0, 1.0);
        check(0.3, 0.4);
        check(99.0, 100.0);
        check(100.0, 100.0);
        check(2100.0, 4000.0);
    }

    #[test]
    fn marks_do_not_touch() {
        assert_eq!(marks([4, 1, 2, 4].into_iter()), [1, 2, 4]);
        assert_eq!(marks([1, 2, 3, 100].into_iter()), [1, 100]);
        assert!(marks(std::iter::empty()).is_empty());
    }

    #[test]
    fn a_page_has_charts_of_what_was_measured() {
        let text =
            "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2]\n[service]\nwithin_ms = 9\n";
        let plan = Plan::parse(text).unwrap();
        let run = |vms: u32, ms: u64| {
            let treatment = ::lab::AS_IT_IS.to_owned();
            let key = ::lab::RunKey { vms, treatment, repetition: 0 };
            let mut turnarounds = ::lab::Turnarounds::new();
            turnarounds.add(ms * 1_000_000);
            let load = ::lab::Load { length_ns: 1, turnarounds, late_p99_ns: 0, cpu_ns: 0 };
            let mut run = Run::new(key, 1, load);
            run.notes.push("<b>".to_owned());
            run
        };
        let mut page = Vec::new();
        html(&plan, &[run(1, 5), run(2, 50)], &[], &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("This host takes 1 of these VMs."), "{page}");
        assert!(page.contains("as it is, 2 VMs: 50"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("<script"));
    }
}
