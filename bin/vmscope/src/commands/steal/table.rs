//! `vmscope steal` as CSV: one table whose lines add up, for each vCPU, to its time.

use analysis::axis::Account;
use analysis::steal::{ACCOUNTS, Balance, Victims, account_name};

use super::super::grid::Grid;
use super::super::scene::percent;
use super::{By, Findings, VmTime};

pub(super) fn csv(findings: &Findings<'_>) -> String {
    match findings.by {
        Some(By::Process | By::Function) => victims(findings),
        by => causes(findings, by),
    }
}

/// Every account of every vCPU; steal divided by who, or what, caused it.
fn causes(findings: &Findings<'_>, by: Option<By>) -> String {
    let mut grid = Grid::new(&["vm", "vcpu", "account", "cause", "ns", "percent"]);
    for vm in &findings.vms {
        for (number, _, balance) in &vm.vcpus {
            let name = &findings.scene.vm_row(vm.vm).name;
            let wall = balance.accounts.total();
            for (account, cause, ns) in parts(findings, balance, by) {
                let who = [name.clone(), number.to_string(), account_name(account).to_owned()];
                grid.row(who.into_iter().chain([cause, ns.to_string(), percent(ns, wall)]));
            }
        }
    }
    grid.csv()
}

fn parts(
    findings: &Findings<'_>,
    balance: &Balance,
    by: Option<By>,
) -> Vec<(Account, String, u64)> {
    let names = findings.scene.thief_names();
    let wanted = |account: &Account| match by {
        Some(By::Thief) => *account == Account::StealOutside,
        Some(By::Reason) => *account == Account::StealVmm,
        _ => true,
    };
    let mut parts = Vec::new();
    for account in ACCOUNTS.into_iter().filter(wanted) {
        match account {
            Account::StealOutside => parts.extend(
                balance.thieves.iter().map(|(thief, ns)| (account, names.name(*thief), *ns)),
            ),
            Account::StealVmm => {
                parts.extend(balance.reasons.iter().map(|(reason, time)| {
                    (account, findings.scene.reason(*reason), time.total_ns())
                }))
            }
            _ => parts.push((account, String::new(), balance.accounts.get(account))),
        }
    }
    parts
}

fn victims(findings: &Findings<'_>) -> String {
    let mut grid = Grid::new(&[
        "vm",
        "process",
        "pid",
        "function",
        "module",
        "own_ns",
        "not_sampled_ns",
        "steal_outside_ns",
        "steal_vmm_ns",
        "throttled_ns",
        "samples",
    ]);
    for vm in &findings.vms {
        if let Some(victims) = &vm.victims {
            add_victims(&mut grid, findings, vm, victims);
        }
    }
    grid.csv()
}

fn add_victims(grid: &mut Grid, findings: &Findings<'_>, vm: &VmTime, victims: &Victims) {
    let name = &findings.scene.vm_row(vm.vm).name;
    let limit = findings.limit.unwrap_or(usize::MAX);
    for (victim, time) in victims.rows.iter().take(limit) {
        let pid = victim.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let function = victim.function.clone().unwrap_or_default();
        let module = victim.module.clone().unwrap_or_default();
        let stolen = time.stolen;
        let times = [
            time.own_ns,
            time.not_sampled_ns,
            stolen.outside_ns,
            stolen.vmm_ns,
            stolen.throttled_ns,
            time.samples,
        ];
        let who = [name.clone(), victim.process.clone(), pid, function, module];
        grid.row(who.into_iter().chain(times.map(|n| n.to_string())));
    }
    let stolen = victims.unattributed;
    let times = [stolen.outside_ns, stolen.vmm_ns, stolen.throttled_ns].map(|n| n.to_string());
    let blank = String::new;
    let who = [name.clone(), "(unattributed)".to_owned(), blank(), blank(), blank()];
    grid.row(who.into_iter().chain([blank(), blank()]).chain(times).chain([blank()]));
}
