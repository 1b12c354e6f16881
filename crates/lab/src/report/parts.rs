//! Parts of captured requests' turnarounds, and what VMs did in them.

use model::TimeAccount;
use table::{Cell, Column, Table};

use super::{all_steps, percent_of, real, step_columns};
use crate::parts::{STOLEN, StepParts};
use crate::plan::Plan;
use crate::run::{PartTime, Run};

/// Accounts with columns of their own, beside those of who had the CPU, steal type 2 and throttling.
const OWN: [TimeAccount; 4] =
    [TimeAccount::Guest, TimeAccount::Halt, TimeAccount::HaltPolling, TimeAccount::StealOutside];

/// A row per part of each step; nothing where no packets were captured.
pub(super) fn parts(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        Column::name("Part").key("part"),
        Column::number("requests").key("requests"),
        Column::number("ms each").key("ms_each").decimals(2),
        real("%", "percent"),
        real("guest", "guest_percent"),
        real("halt", "halt_percent"),
        real("polling", "halt_polling_percent"),
        real("steal type 1", "steal_outside_percent"),
    ]);
    let keys = ["by_idle_percent", "by_loaded_percent", "by_others_percent", "steal_vmm_percent"];
    columns.extend(STOLEN.iter().zip(keys).map(|((title, _), key)| real(title, key)));
    columns.extend([real("throttled", "throttled_percent"), real("other", "other_percent")]);
    columns.push(Column::name("Most VMM time for").key("top_exit"));
    let mut table = Table::new("Captured turnarounds by parts, in % of each part", columns);
    for (treatment, step) in all_steps(plan, runs) {
        let Some(all) = StepParts::from_step(&step) else { continue };
        for (name, part) in &all.parts {
            let of = |ns: u64, whole: u64| Cell::Real(percent_of(ns as f64 / whole.max(1) as f64));
            let account = |account: TimeAccount| of(part.account_ns(account), part.ns());
            let first = [
                treatment.as_str().into(),
                step.vms.into(),
                (*name).into(),
                part.requests.into(),
                Cell::Real(part.ns() as f64 / 1e6 / all.requests as f64),
                of(part.ns(), all.ns()),
            ];
            let own = OWN.map(account);
            let stolen = STOLEN.iter().map(|(_, theft)| of(part.stolen_ns(*theft), part.ns()));
            let named = OWN.into_iter().chain([TimeAccount::StealVmm, TimeAccount::Throttled]);
            let named_ns = named.fold(0, |sum: u64, of| sum.saturating_add(part.account_ns(of)));
            let other = of(part.ns().saturating_sub(named_ns), part.ns());
            let last = [account(TimeAccount::Throttled), other, top_exit(part)];
            table.row(first.into_iter().chain(own).chain(stolen).chain(last));
        }
    }
    table.notes.push(
        "Of whole requests in the captures of all runs, from first to last byte. Ms each: of all these requests; its sum is their mean turnaround."
            .to_owned(),
    );
    table
}

fn top_exit(part: &PartTime) -> Cell {
    let top = part.exits.iter().max_by_key(|(_, ns)| **ns);
    top.map_or(Cell::NONE, |(name, _)| name.as_str().into())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::remedy::AS_IT_IS;
    use crate::run::{Load, RunKey};
    use crate::turnaround::Turnarounds;

    /// Names and milliseconds.
    type Times<'a> = &'a [(&'a str, u64)];

    /// Parts with their requests, accounts and thieves.
    fn run(repetition: u32, parts: &[(&str, u64, Times<'_>, Times<'_>)]) -> Run {
        let key = RunKey { vms: 2, treatment: AS_IT_IS.to_owned(), repetition };
        let turnarounds = Turnarounds::new();
        let load = Load { length_ns: 1, turnarounds, late_p99_ns: 0, cpu_ns: 0 };
        let mut run = Run::new(key, 1, load);
        let named = |all: &[(&str, u64)]| {
            all.iter().map(|(name, ms)| ((*name).to_owned(), ms * 1_000_000)).collect()
        };
        for (name, requests, accounts, thieves) in parts {
            let (requests, accounts, thieves) = (*requests, named(accounts), named(thieves));
            let part =
                PartTime { requests, accounts, thieves, exits: [("io".to_owned(), 1)].into() };
            run.parts.insert((*name).to_owned(), part);
        }
        run
    }

    #[test]
    fn parts_of_all_runs_add_up_to_the_mean_turnaround() {
        let text = "name = \"x\"\n[load]\nrate = 1\ncapture = true\n[ladder]\nvms = [2]\n[service]\nwithin_ms = 9\n";
        let plan = Plan::parse(text).unwrap();
        let stolen = [("guest", 2), ("steal_outside", 6), ("steal_vmm", 2)];
        let runs = [
            run(
                0,
                &[
                    ("D-W-C", 2, &stolen, &[("idle VMs", 4), ("vmscope", 1)]),
                    ("C-W-D", 2, &[("halt", 10)], &[]),
                ],
            ),
            run(1, &[("not split", 2, &[("guest", 20)], &[])]),
        ];
        let table = parts(&plan, &runs);
        let row = |row: &table::Row| {
            let cell = |cell: &Cell| match cell {
                Cell::Text(text) => text.clone(),
                Cell::Real(value) => format!("{value:.1}"),
                Cell::Number(n, _) => n.to_string(),
                _ => "-".to_owned(),
            };
            row[2..].iter().map(cell).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            table.rows.iter().map(row).collect::<Vec<_>>(),
            [
                "C-W-D 2 2.5 25.0 0.0 100.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 io",
                "D-W-C 2 2.5 25.0 20.0 0.0 0.0 60.0 40.0 0.0 20.0 20.0 0.0 0.0 io",
                "not split 2 5.0 50.0 100.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 io",
            ]
        );
        assert!(parts(&plan, &[run(0, &[])]).rows.is_empty());
        let stacks = crate::curves::stacks(&plan, &runs).pop().unwrap();
        let shown: Vec<String> = { stacks.parts.iter() }
            .zip(&stacks.stacks[0].1)
            .map(|(name, share)| format!("{name} {share:.2}"))
            .collect();
        assert_eq!(
            shown,
            [
                "C-W-D 0.25",
                "D-W-C 0.05",
                "not split 0.50",
                "by idle VMs 0.10",
                "by others 0.05",
                "in VMM 0.05"
            ]
        );
    }
}
