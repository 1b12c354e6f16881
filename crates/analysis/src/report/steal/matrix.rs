//! Who took the CPU of whom.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use model::TimeAccount;
use table::{Cell, Column, Table, Width, clean};

use super::VmTime;
use crate::report::vcpu_time::VcpuTime;
use crate::steal::{Thief, TimeBreakdown};

/// Thieves with a column of their own, if they fit.
const THIEVES: usize = 6;
/// Titles are broken into lines of this.
const TITLE_CHARS: usize = 14;

pub(super) fn matrix(source: &VcpuTime<'_>, vms: &[VmTime], width: Width) -> Table {
    let mut thieves = ranked_thieves(vms);
    thieves.truncate(THIEVES);
    let mut table = table(source, vms, &thieves);
    while !table.fits(width) && 1 < thieves.len() {
        thieves.pop();
        table = self::table(source, vms, &thieves);
    }
    table
}

fn table(source: &VcpuTime<'_>, vms: &[VmTime], thieves: &[Thief]) -> Table {
    let named = thieves.iter().map(|thief| wrapped(&clean(&source.names.name(*thief))));
    let titles = named.chain(["(others)".to_owned(), "[interrupts]".to_owned()]);
    let columns = std::iter::once(Column::name("Victim")).chain(titles.map(Column::number));
    let title = "Steal type 1: who had the CPU, in % of the victim's time\n\
                 ([interrupts]: the host's own, a part of steal type 2)";
    let mut table = Table::new(title, columns.collect());
    let vendor = source.evidence.header.vendor;
    for (name, balance) in vms.iter().flat_map(|vm| vm.lines(source)) {
        let wall_ns = balance.accounts.total();
        let of = |thief: &Thief| balance.thieves.get(thief).copied().unwrap_or(0);
        let shown: Vec<u64> = thieves.iter().map(of).collect();
        let others = balance.accounts.get(TimeAccount::StealOutside) - shown.iter().sum::<u64>();
        let times = shown.into_iter().chain([others, balance.interrupts_ns(vendor)]);
        let shares = times.map(|ns| Cell::Share(ns, wall_ns).or_none());
        table.row(std::iter::once(name.into()).chain(shares));
    }
    table
}

/// Those with most time first.
fn ranked_thieves(vms: &[VmTime]) -> Vec<Thief> {
    let mut all = TimeBreakdown::default();
    vms.iter().for_each(|vm| all.add(&vm.sum));
    let ranked: BTreeSet<_> =
        all.thieves.iter().map(|(thief, ns)| (Reverse(*ns), *thief)).collect();
    ranked.into_iter().map(|(_, thief)| thief).collect()
}

/// A name as a narrow title: its words on lines of their own, long ones broken.
fn wrapped(name: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        lines.extend(letters.chunks(TITLE_CHARS).map(|line| line.iter().collect::<String>()));
    }
    lines.join("\n")
}
