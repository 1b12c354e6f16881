//! Parts of turnarounds beside a recording: what the VM that worked did meanwhile.

use std::collections::BTreeMap;
use std::net::IpAddr;

use analysis::report::{RARE, VcpuTime, time_json};
use analysis::steal::hundredths;
use model::{TimeAccount, VmId};
use serde_json::{Value, json};
use table::{Cell, Column, Report, Scale, Table, length, seconds};

use crate::{Part, PartSum, Split, TimeAxis, TimeSpent, WorkTime};

/// A recording of the time of a capture.
#[derive(Debug, Clone, Copy)]
pub struct SplitRecording<'a> {
    /// What its VMs did.
    pub source: &'a VcpuTime<'a>,
    /// Its VMs by address.
    pub vms: &'a BTreeMap<IpAddr, VmId>,
}

/// A part and a VM, and what such times went to.
type Sum = (Option<Part>, Option<VmId>, PartSum);

impl SplitRecording<'_> {
    fn axis(&self) -> TimeAxis<'_> {
        TimeAxis { evidence: self.source.evidence, names: &self.source.names, vms: self.vms }
    }

    fn vm_name(&self, vm: Option<VmId>) -> Option<&str> {
        Some(&self.source.vm(vm?).name)
    }

    /// Adds what the recording tells of all requests.
    pub(super) fn add(&self, report: &mut Report, split: &Split) {
        let (axis, header) = (self.axis(), self.source.evidence.header);
        let sums = axis.sums(split.requests.iter());
        let own = self.source.report();
        report.facts.extend(own.facts);
        report.notes.extend(own.notes);
        if let Some(first) = split.first {
            report.fact("Clocks", clocks(axis.begins_after_ns(first)));
        }
        let (all, outside) = sums.iter().fold((0, 0), |(all, outside), (_, _, sum)| {
            (all + sum.spent.total_ns(), outside + sum.spent.outside_ns)
        });
        if 0 < outside {
            report.notes.push(format!(
                "{} of {} of turnaround are outside of the recording, which has {} s",
                length(outside),
                length(all),
                seconds(header.end.since(header.start), 3)
            ));
        }
        let tables = [self.times(&sums), self.thieves(&sums), self.reasons(&sums)];
        report.parts.extend(tables.into_iter().filter(|t| !t.rows.is_empty()).map(Into::into));
        if let Some(json) = report.json.as_object_mut() {
            json.insert("recording".to_owned(), self.source.recording());
            json.insert("time".to_owned(), sums.iter().map(|sum| self.sum_json(sum)).collect());
        }
    }

    /// What parts went to, in per cent which add up to 100. What is rare has a column when it happened.
    fn times(&self, sums: &[Sum]) -> Table {
        let all = |of: &dyn Fn(&TimeSpent) -> u64| sums.iter().any(|(.., sum)| 0 < of(&sum.spent));
        let mut shown: Vec<bool> = TimeAccount::ALL
            .map(|account| {
                !RARE.contains(&account) || all(&|spent| spent.balance.accounts.get(account))
            })
            .into();
        shown.extend([all(&|spent| spent.outside_ns), all(&|spent| spent.no_vm_ns)]);
        let titles = TimeAccount::ALL.map(|account| account.words().replacen(' ', "\n", 1));
        let titles = titles.into_iter().chain(["not\nrecorded".to_owned(), "no\n--vm".to_owned()]);
        let mut columns = vec![
            Column::name("Part"),
            Column::name("VM"),
            Column::number("Requests"),
            Column::number("Sum, ms").scale(Scale::Ms),
        ];
        let titles = titles.zip(&shown).filter(|(_, shown)| **shown);
        columns.extend(titles.map(|(title, _)| Column::number(title)));
        let mut table = Table::new("What the VMs did in each part, in %", columns);
        for (part, vm, sum) in sums {
            let shares = hundredths(&spent_ns(&sum.spent)).into_iter().zip(&shown);
            let shares = shares.filter(|(_, shown)| **shown).map(|(n, _)| Cell::Share(n, 10_000));
            let first = [
                name(*part).into(),
                self.vm_name(*vm).map(Cell::from).into(),
                Cell::count(sum.requests),
                Cell::ns(sum.spent.total_ns()),
            ];
            table.row(first.into_iter().chain(shares));
        }
        table.notes.push("The VM of the web server, in W-D-W that of the database. An instant is shared by those of its vCPUs that are not halted.".to_owned());
        table
    }

    fn thieves(&self, sums: &[Sum]) -> Table {
        let each = sums.iter().map(|(part, vm, sum)| {
            let all = self.source.thieves(&sum.spent.balance.thieves, sum.spent.total_ns());
            (*part, *vm, all)
        });
        self.causes("Steal type 1: who had the CPU, in ms and % of the part", each)
    }

    fn reasons(&self, sums: &[Sum]) -> Table {
        let each = sums.iter().map(|(part, vm, sum)| {
            let all = self.source.reasons(&sum.spent.balance.reasons, sum.spent.total_ns());
            (*part, *vm, all)
        });
        self.causes("Steal type 2: VM exits, in ms and % of the part", each)
    }

    /// Tables of one kind as one.
    fn causes(
        &self,
        title: &str,
        each: impl Iterator<Item = (Option<Part>, Option<VmId>, Table)>,
    ) -> Table {
        let mut all = Table::new(title, Vec::new());
        for (part, vm, table) in each {
            if all.columns.is_empty() {
                all.columns = vec![Column::name("Part"), Column::name("VM")];
                all.columns.extend(table.columns);
            }
            for row in table.rows {
                let first = [name(part).into(), self.vm_name(vm).map(Cell::from).into()];
                all.row(first.into_iter().chain(row));
            }
        }
        all
    }

    fn sum_json(&self, (part, vm, sum): &Sum) -> Value {
        let mut object = self.spent_json(*vm, &sum.spent);
        object["part"] = part.map(Part::name).into();
        object["requests"] = sum.requests.into();
        object
    }

    fn spent_json(&self, vm: Option<VmId>, spent: &TimeSpent) -> Value {
        json!({
            "vm": self.vm_name(vm).map(table::cleaned),
            "ns": spent.total_ns(),
            "outside_ns": spent.outside_ns,
            "no_vm_ns": spent.no_vm_ns,
            "time": time_json(self.source, &spent.balance),
        })
    }

    /// What a time of a request went to, for JSON.
    pub(super) fn time_json(&self, time: &WorkTime) -> Value {
        let axis = self.axis();
        self.spent_json(axis.vm(time), &axis.spent(time))
    }

    /// What CSV has of each time.
    pub(super) fn columns() -> impl Iterator<Item = Column> {
        let account =
            |account: TimeAccount| Column::csv_only("").csv(format!("{}_ns", account.name()));
        let others = ["outside_ns", "no_vm_ns"].map(Column::data);
        let accounts = TimeAccount::ALL.into_iter().map(account);
        std::iter::once(Column::data("vm")).chain(accounts).chain(others)
    }

    /// The cells of these columns.
    pub(super) fn cells(&self, time: &WorkTime) -> impl Iterator<Item = Cell> {
        let axis = self.axis();
        let vm = self.vm_name(axis.vm(time)).map(Cell::from).into();
        std::iter::once(vm).chain(spent_ns(&axis.spent(time)).into_iter().map(Cell::ns))
    }
}

/// Accounts in their order, then what no account has.
fn spent_ns(spent: &TimeSpent) -> Vec<u64> {
    let accounts = spent.balance.accounts.all().into_iter();
    accounts.chain([spent.outside_ns, spent.no_vm_ns]).collect()
}

/// What people and CSV see.
pub(super) fn name(part: Option<Part>) -> &'static str {
    part.map_or("not split", Part::name)
}

fn clocks(begins_after_ns: i128) -> String {
    let apart = u64::try_from(begins_after_ns.unsigned_abs()).unwrap_or(u64::MAX);
    let order = if begins_after_ns < 0 { "before" } else { "after" };
    format!(
        "the recording began {} {order} the capture's first packet, by the host's CLOCK_REALTIME",
        length(apart)
    )
}
