//! `vmscope steal` as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use analysis::axis::Account;
use analysis::clean;
use analysis::steal::{ACCOUNTS, Balance, Thief, Victims, hundredths};

use super::super::grid::{Column, Grid};
use super::super::scene::{Scene, ms, percent, short_module, with_id};
use super::{By, Findings, VmTime};

/// Thieves with a column of their own in the matrix.
const COLUMNS: usize = 6;

pub(super) fn text(findings: &Findings<'_>) -> String {
    let mut out = findings.scene.heading();
    out.push('\n');
    out += &overview(findings);
    if findings.all {
        out += &matrix(findings);
    }
    for vm in &findings.vms {
        match findings.by {
            None if findings.all => {}
            None => {
                out += &thieves(findings, vm);
                out += &reasons(findings, vm);
            }
            Some(By::Thief) => out += &thieves(findings, vm),
            Some(By::Reason) => out += &reasons(findings, vm),
            Some(By::Process | By::Function) => {
                let victims = vm.victims.as_ref().map(|victims| suffered(findings, vm, victims));
                out += &victims.unwrap_or_default();
            }
        }
    }
    out
}

/// VMs and vCPUs, and what their time went to, in ms and in per cent which add up to 100.
fn overview(findings: &Findings<'_>) -> String {
    let mut grid = Grid::new(&[
        "",
        "",
        ">wall",
        ">guest",
        ">halt",
        ">polling",
        ">steal 1",
        ">steal 2",
        ">throttled",
        ">not sampled",
        ">unknown",
    ]);
    for vm in &findings.vms {
        lines(findings, vm).for_each(|(name, balance)| add_time(&mut grid, name, balance));
    }
    grid.text()
}

/// A VM, and its vCPUs if there are several.
fn lines<'f>(
    findings: &Findings<'_>,
    vm: &'f VmTime,
) -> impl Iterator<Item = (String, &'f Balance)> {
    let name = findings.scene.vm_row(vm.vm).name.clone();
    let several = if 1 < vm.vcpus.len() { &vm.vcpus[..] } else { &[] };
    let vcpus = several.iter().map(|(number, _, balance)| (format!("  vcpu{number}"), balance));
    std::iter::once((name, &vm.sum)).chain(vcpus)
}

fn add_time(grid: &mut Grid, name: String, balance: &Balance) {
    let parts = balance.accounts.all();
    let wall = balance.accounts.total();
    let times = [wall].into_iter().chain(parts).map(ms);
    grid.row([name, "ms".to_owned()].into_iter().chain(times));
    let shares = hundredths(&parts);
    let all: u64 = shares.iter().sum();
    let shares = [all].into_iter().chain(shares).map(|n| format!("{}.{:02}", n / 100, n % 100));
    grid.row([String::new(), "%".to_owned()].into_iter().chain(shares));
}

/// Who took the CPU of whom.
fn matrix(findings: &Findings<'_>) -> String {
    let names = findings.scene.thief_names();
    let vendor = findings.scene.recording.header.vendor;
    let columns = columns(findings);
    let mut grid = Grid::new(&["Victim"]);
    for thief in &columns {
        grid.push(Column::Number(names.name(*thief)));
    }
    grid.push(Column::Number("(others)".to_owned()));
    grid.push(Column::Number("[interrupts]".to_owned()));
    let mut add = |name: String, balance: &Balance| {
        let wall = balance.accounts.total();
        let cell = |ns: u64| match ns {
            0 => "-".to_owned(),
            ns => format!("{} ({})", ms(ns), percent(ns, wall)),
        };
        let of = |thief: &Thief| balance.thieves.get(thief).copied().unwrap_or(0);
        let shown: Vec<u64> = columns.iter().map(of).collect();
        let others = balance.accounts.get(Account::StealOutside) - shown.iter().sum::<u64>();
        let interrupts = balance.interrupts_ns(vendor);
        let cells = shown.into_iter().chain([others, interrupts]).map(cell);
        grid.row([name].into_iter().chain(cells));
    };
    for vm in &findings.vms {
        lines(findings, vm).for_each(|(name, balance)| add(name, balance));
    }
    let title = "Steal type 1, outside: whose CPU who had, ms (% of the victim's time); \
                 [interrupts] of the host are part of type 2";
    format!("\n{title}\n{}", grid.text())
}

/// The thieves with most time.
fn columns(findings: &Findings<'_>) -> Vec<Thief> {
    let mut all = Balance::default();
    findings.vms.iter().for_each(|vm| all.add(&vm.sum));
    let ranked: BTreeSet<_> =
        all.thieves.iter().map(|(thief, ns)| (std::cmp::Reverse(*ns), *thief)).collect();
    ranked.into_iter().take(COLUMNS).map(|(_, thief)| thief).collect()
}

fn thieves(findings: &Findings<'_>, vm: &VmTime) -> String {
    let names = findings.scene.thief_names();
    let wall = vm.sum.accounts.total();
    let mut rows: Vec<(String, u64)> =
        vm.sum.thieves.iter().map(|(thief, ns)| (names.name(*thief), *ns)).collect();
    rows.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let (rows, other) = limited(rows, findings.limit);
    let mut grid = Grid::new(&[">ms", ">%", "Thief"]);
    for (name, ns) in rows {
        grid.row([ms(ns), percent(ns, wall), name]);
    }
    let rest: u64 = other.iter().map(|(_, ns)| ns).sum();
    if let Some(name) = others(other.len()) {
        grid.row([ms(rest), percent(rest, wall), name]);
    }
    titled(findings.scene, vm, "type 1, outside", Account::StealOutside, &grid)
}

fn reasons(findings: &Findings<'_>, vm: &VmTime) -> String {
    let wall = vm.sum.accounts.total();
    let mut rows: Vec<_> = vm.sum.reasons.iter().map(|(reason, time)| (*reason, *time)).collect();
    rows.sort_by_key(|(_, time)| std::cmp::Reverse(time.total_ns()));
    let (rows, other) = limited(rows, findings.limit);
    let mut grid = Grid::new(&[">ms", ">%", ">waiting ms", "Exit reason"]);
    for (reason, time) in rows {
        let ns = time.total_ns();
        let name = findings.scene.reason(reason);
        grid.row([ms(ns), percent(ns, wall), ms(time.waiting_ns), name]);
    }
    if let Some(name) = others(other.len()) {
        let ns = other.iter().map(|(_, time)| time.total_ns()).sum();
        let waiting = other.iter().map(|(_, time)| time.waiting_ns).sum();
        grid.row([ms(ns), percent(ns, wall), ms(waiting), name]);
    }
    titled(findings.scene, vm, "type 2, in the VMM", Account::StealVmm, &grid)
}

fn titled(scene: &Scene, vm: &VmTime, kind: &str, account: Account, grid: &Grid) -> String {
    let (ns, wall) = (vm.sum.accounts.get(account), vm.sum.accounts.total());
    let name = clean(&scene.vm_row(vm.vm).name).into_owned();
    let mut out = format!("\nSteal {kind}, of {name}: {} ms ({} %)\n", ms(ns), percent(ns, wall));
    if 0 < ns {
        out += &grid.text();
    }
    out
}

/// Who suffered, and what nobody is known to have suffered.
fn suffered(findings: &Findings<'_>, vm: &VmTime, victims: &Victims) -> String {
    let by_function = findings.by == Some(By::Function);
    let mut titles = vec![">own ms", ">steal 1 ms", ">steal 2 ms", ">throttled ms"];
    titles.extend(if by_function { &["Function", "Process", "Module"][..] } else { &["Process"] });
    let mut grid = Grid::new(&titles);
    let (rows, other) = limited(victims.rows.clone(), findings.limit);
    for (victim, time) in rows {
        let process = with_id(&victim.process, victim.pid);
        let names = match victim.function {
            Some(function) => vec![function, process, short_module(victim.module.as_deref())],
            None => vec![process],
        };
        let own = ms(time.run_ns());
        grid.row([own].into_iter().chain(stolen(&time.stolen)).chain(names));
    }
    if let Some(name) = others(other.len()) {
        let mut sum = analysis::steal::VictimTime::default();
        other.iter().for_each(|(_, time)| sum.add(time));
        grid.row([ms(sum.run_ns())].into_iter().chain(stolen(&sum.stolen)).chain([name]));
    }
    let nobody = stolen(&victims.unattributed);
    let dash = "-".to_owned();
    grid.row([dash].into_iter().chain(nobody).chain(["(unattributed)".to_owned()]));
    let mut out = String::new();
    let kind = if by_function { "functions" } else { "processes" };
    let name = &findings.scene.vm_row(vm.vm).name;
    let _ = writeln!(out, "\nWhich {kind} of {} it was taken from", clean(name));
    out + &grid.text()
}

fn stolen(stolen: &analysis::steal::Stolen) -> [String; 3] {
    [stolen.outside_ns, stolen.vmm_ns, stolen.throttled_ns].map(ms)
}

/// The first rows, and those that the limit cuts off.
fn limited<T>(mut rows: Vec<T>, limit: Option<usize>) -> (Vec<T>, Vec<T>) {
    let other = rows.split_off(limit.map_or(rows.len(), |limit| limit.min(rows.len())));
    (rows, other)
}

fn others(rows: usize) -> Option<String> {
    match rows {
        0 => None,
        1 => Some("(other 1 row)".to_owned()),
        _ => Some(format!("(other {rows} rows)")),
    }
}

// The overview's columns are those of the accounts.
const _: () = assert!(ACCOUNTS.len() == 8);
