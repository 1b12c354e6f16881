//! `vmscope steal` as text.

use std::collections::BTreeSet;

use analysis::axis::Account;
use analysis::steal::{ACCOUNTS, Balance, Stolen, Thief, VictimTime, Victims, hundredths};
use analysis::{Width, clean};

use super::super::grid::{Column, Grid};
use super::super::scene::{Scene, in_words, ms, percent, seconds, short_module, with_id};
use super::{By, Findings, VmTime};

/// Thieves with a column of their own in the matrix, if they fit.
const THIEVES: usize = 6;
/// Titles in the matrix are broken into lines of this.
const TITLE_CHARS: usize = 14;
/// Accounts that are left out of the overview where they are nobody's.
const RARE: [Account; 4] =
    [Account::HaltPolling, Account::Throttled, Account::NotSampled, Account::Unknown];

pub(super) fn text(findings: &Findings<'_>, width: Width) -> String {
    let mut out = findings.scene.heading();
    out.push('\n');
    out += &overview(findings, width);
    if findings.all {
        out += &matrix(findings, width);
    }
    for vm in &findings.vms {
        match findings.by {
            None if findings.all => {}
            None => {
                out += &thieves(findings, vm, width);
                out += &reasons(findings, vm, width);
            }
            Some(By::Thief) => out += &thieves(findings, vm, width),
            Some(By::Reason) => out += &reasons(findings, vm, width),
            Some(By::Process | By::Function) => {
                let victims = vm.victims.as_ref();
                out += &victims
                    .map(|victims| suffered(findings, vm, victims, width))
                    .unwrap_or_default();
            }
        }
    }
    out
}

/// VMs and vCPUs, and what their time went to, in per cent which add up to 100. What is rare has a column when
/// it happened.
fn overview(findings: &Findings<'_>, width: Width) -> String {
    let rows: Vec<(String, &Balance)> =
        findings.vms.iter().flat_map(|vm| lines(findings, vm)).collect();
    let happened = |account| rows.iter().any(|(_, balance)| 0 < balance.accounts.get(account));
    let shown = ACCOUNTS.map(|account| !RARE.contains(&account) || happened(account));
    let mut grid = Grid::new(&["VM", ">s"]);
    for (account, _) in ACCOUNTS.into_iter().zip(shown).filter(|(_, shown)| *shown) {
        grid.push(Column::Number(in_words(account).replacen(' ', "\n", 1)));
    }
    for (name, balance) in rows {
        let shares = hundredths(&balance.accounts.all()).into_iter().zip(shown);
        let shares = shares.filter(|(_, shown)| *shown);
        let shares = shares.map(|(n, _)| format!("{}.{:02}", n / 100, n % 100));
        grid.row([name, seconds(balance.accounts.total(), 3)].into_iter().chain(shares));
    }
    format!("What the time of vCPUs went to, in %\n{}", grid.text(width))
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

/// Who took the CPU of whom.
fn matrix(findings: &Findings<'_>, width: Width) -> String {
    let mut thieves = ranked_thieves(findings);
    thieves.truncate(THIEVES);
    let mut grid = matrix_of(findings, &thieves);
    while !grid.fits(width) && 1 < thieves.len() {
        thieves.pop();
        grid = matrix_of(findings, &thieves);
    }
    let title = "Steal type 1: who had the CPU, in % of the victim's time\n\
                 ([interrupts]: the host's own, a part of steal type 2)";
    format!("\n{title}\n{}", grid.text(width))
}

fn matrix_of(findings: &Findings<'_>, thieves: &[Thief]) -> Grid {
    let names = findings.scene.thief_names();
    let vendor = findings.scene.recording.header.vendor;
    let mut grid = Grid::new(&["Victim"]);
    let named = thieves.iter().map(|thief| wrapped(&clean(&names.name(*thief))));
    let titles = named.chain(["(others)".to_owned(), "[interrupts]".to_owned()]);
    titles.for_each(|title| grid.push(Column::Number(title)));
    let mut add = |name: String, balance: &Balance| {
        let wall = balance.accounts.total();
        let cell = |ns: u64| if ns == 0 { "-".to_owned() } else { percent(ns, wall) };
        let of = |thief: &Thief| balance.thieves.get(thief).copied().unwrap_or(0);
        let shown: Vec<u64> = thieves.iter().map(of).collect();
        let others = balance.accounts.get(Account::StealOutside) - shown.iter().sum::<u64>();
        let interrupts = balance.interrupts_ns(vendor);
        let cells = shown.into_iter().chain([others, interrupts]).map(cell);
        grid.row([name].into_iter().chain(cells));
    };
    for vm in &findings.vms {
        lines(findings, vm).for_each(|(name, balance)| add(name, balance));
    }
    grid
}

/// Those with most time first.
fn ranked_thieves(findings: &Findings<'_>) -> Vec<Thief> {
    let mut all = Balance::default();
    findings.vms.iter().for_each(|vm| all.add(&vm.sum));
    let ranked: BTreeSet<_> =
        all.thieves.iter().map(|(thief, ns)| (std::cmp::Reverse(*ns), *thief)).collect();
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

fn thieves(findings: &Findings<'_>, vm: &VmTime, width: Width) -> String {
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
    titled(findings.scene, vm, "type 1, outside", Account::StealOutside, &grid.text(width))
}

fn reasons(findings: &Findings<'_>, vm: &VmTime, width: Width) -> String {
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
    titled(findings.scene, vm, "type 2, in the VMM", Account::StealVmm, &grid.text(width))
}

fn titled(scene: &Scene, vm: &VmTime, kind: &str, account: Account, rows: &str) -> String {
    let (ns, wall) = (vm.sum.accounts.get(account), vm.sum.accounts.total());
    let name = clean(&scene.vm_row(vm.vm).name).into_owned();
    let mut out = format!("\nSteal {kind}, of {name}: {} ms ({} %)\n", ms(ns), percent(ns, wall));
    if 0 < ns {
        out += rows;
    }
    out
}

/// Who suffered, and what nobody is known to have suffered.
fn suffered(findings: &Findings<'_>, vm: &VmTime, victims: &Victims, width: Width) -> String {
    let by_function = findings.by == Some(By::Function);
    let mut titles = vec![">own", ">steal\ntype 1", ">steal\ntype 2", ">throttled"];
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
        let mut sum = VictimTime::default();
        other.iter().for_each(|(_, time)| sum.add(time));
        grid.row([ms(sum.run_ns())].into_iter().chain(stolen(&sum.stolen)).chain([name]));
    }
    let nobody = stolen(&victims.unattributed);
    grid.row(["-".to_owned()].into_iter().chain(nobody).chain(["(unattributed)".to_owned()]));
    let name = clean(&findings.scene.vm_row(vm.vm).name);
    let (kind, why_nobody) = match by_function {
        true => ("functions", "function before and after; --by process knows more"),
        false => ("processes", "process before and after"),
    };
    let mut out =
        format!("\nWhich {kind} of {name} it was taken from, in ms\n{}", grid.text(width));
    if 0 < victims.unattributed.total_ns() {
        out += &format!("(unattributed): not the same {why_nobody}\n");
    }
    out
}

fn stolen(stolen: &Stolen) -> [String; 3] {
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
