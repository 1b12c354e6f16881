//! What a plan would measure.

use table::{Cell, Column, Report, Table};

use crate::plan::{Plan, Targets};

/// What would be measured, and for how long.
#[must_use]
pub fn dry_run(plan: &Plan) -> Report {
    let mut report = Report::default();
    let (treatments, ladders) = (plan.treatments(), plan.ladders());
    let ladder = &plan.ladder;
    let runs = treatments.len() * ladder.vms.len() * ladder.repetitions as usize;
    let seconds = runs as f64 * (ladder.warm_up_s + ladder.measure_s);
    report.fact("Plan", plan.name.clone());
    let vms: Vec<String> = ladder.vms.iter().map(u32::to_string).collect();
    report.fact("VMs", vms.join(", "));
    let requested = match plan.load.targets {
        Targets::All => "each VM".to_owned(),
        Targets::First(n) => table::counted(u64::from(n), "VM"),
    };
    let load = match plan.attach.as_slice() {
        [] => format!("{requested} is loaded, {}", pace(plan)),
        vms => {
            let names: Vec<String> = vms.iter().map(ToString::to_string).collect();
            format!("by others, of {}", names.join(", "))
        }
    };
    report.fact("Load", load);
    report.fact(
        "Service level",
        format!("{} % within {} ms", plan.service.percentile, plan.service.within_ms),
    );
    report.fact(
        "Measurements",
        format!("{runs} at most, {:.0} minutes without starting VMs", (seconds / 60.0).ceil()),
    );
    let columns = vec![
        Column::name("Remedy").key("treatment"),
        Column::number("Ladder").key("ladder"),
        Column::name("Guests").key("guests"),
    ];
    let mut table = Table::new("What is measured at each step", columns);
    for (number, treatment) in treatments.iter().enumerate() {
        let of = ladders.iter().position(|rungs| rungs.treatments.contains(&number));
        table.row([
            treatment.name.as_str().into(),
            of.map_or(Cell::NONE, |of| Cell::count(of as u64 + 1)),
            treatment.guest.to_string().into(),
        ]);
    }
    report.parts.push(table.into());
    report
}

fn pace(plan: &Plan) -> String {
    match (plan.load.rate, plan.load.clients) {
        (Some(rate), _) => format!("{rate} requests a second in all"),
        (None, clients) => {
            format!("by {} clients who think {} s", clients.unwrap_or(1), plan.load.think_s)
        }
    }
}
