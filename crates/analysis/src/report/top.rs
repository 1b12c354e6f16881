//! `vmscope top --once`: a window's vCPUs.

use model::TimeAccount;
use serde_json::{Value, json};
use table::{Cell, Column, Report, Table, clean, cleaned};

use crate::overview::{Overview, Share};

/// Thieves, exits and functions that JSON has of each vCPU.
const LEADERS: usize = 10;

/// A thief that no sample shows.
const UNKNOWN: &str = "[unknown]";

/// A window, by VM and number.
#[must_use]
pub fn top(hostname: &str, n_cpus: usize, window_ns: u64, vcpus: &[Overview]) -> Report {
    let table = table(vcpus);
    let mut objects = table.json();
    for (n, vcpu) in vcpus.iter().enumerate() {
        let lists =
            [("thieves", &vcpu.thieves), ("exits", &vcpu.exits), ("functions", &vcpu.functions)];
        for (key, shares) in lists {
            objects[n][key] = leaders(shares, vcpu.wall_ns);
        }
    }
    let json = json!({
        "hostname": cleaned(hostname),
        "cpus": n_cpus,
        "window_ns": window_ns,
        "vcpus": objects,
    });
    Report { parts: vec![table.into()], json, ..Report::default() }
}

fn table(vcpus: &[Overview]) -> Table {
    let share = |title: &str| Column::number(title).decimals(1);
    let paused = match vcpus.iter().any(|vcpu| 0 < vcpu.ns(TimeAccount::Paused)) {
        true => share("PAUSE").key("paused"),
        false => Column::data("paused"),
    };
    let columns = vec![
        Column::name("VCPU"),
        Column::data("vm"),
        Column::data("vcpu"),
        Column::data("wall_ns"),
        share("GUEST"),
        share("USER").key("guest_user"),
        share("KERN").key("guest_kernel"),
        share("HALT"),
        Column::data("halt"),
        Column::data("halt_polling"),
        share("STEAL1").key("steal_outside"),
        share("STEAL2").key("steal_vmm"),
        share("QUOTA").key("throttled"),
        paused,
        share("?"),
        Column::data("not_sampled"),
        Column::data("unknown"),
        Column::name("THIEF"),
    ];
    let mut table = Table::new("", columns);
    for vcpu in vcpus {
        let share = |ns: u64| Cell::Share(ns, vcpu.wall_ns.max(1));
        let of = |account| vcpu.ns(account);
        let (halt, polling) = (of(TimeAccount::Halt), of(TimeAccount::HaltPolling));
        let (not_sampled, unknown) = (of(TimeAccount::NotSampled), of(TimeAccount::Unknown));
        let who = [format!("{} vcpu{}", vcpu.vm, vcpu.vcpu).into(), vcpu.vm.as_str().into()];
        let shares = [
            of(TimeAccount::Guest),
            vcpu.guest_user_ns,
            vcpu.guest_kernel_ns,
            halt + polling,
            halt,
            polling,
            of(TimeAccount::StealOutside),
            of(TimeAccount::StealVmm),
            of(TimeAccount::Throttled),
            of(TimeAccount::Paused),
            not_sampled + unknown,
            not_sampled,
            unknown,
        ];
        let who = who.into_iter().chain([vcpu.vcpu.into(), Cell::ns(vcpu.wall_ns)]);
        let thief = vcpu.thieves.first().map_or(String::new(), |thief| top_thief(vcpu, thief));
        table.row(who.chain(shares.map(share)).chain([thief.into()]));
    }
    let is_unknown = |vcpu: &Overview| vcpu.thieves.first().is_some_and(|t| t.name == UNKNOWN);
    if vcpus.iter().any(is_unknown) {
        table.notes.push(format!("{UNKNOWN}: no sample shows who had the CPU then"));
    }
    table
}

/// `db vcpu0 98%`: who had the CPU most, and how much of the steal of type 1 that was.
#[must_use]
pub fn top_thief(vcpu: &Overview, thief: &Share) -> String {
    let part = 100 * thief.ns / vcpu.ns(TimeAccount::StealOutside).max(1);
    format!("{} {part}%", clean(&thief.name))
}

fn leaders(shares: &[Share], wall_ns: u64) -> Value {
    let columns = ["name", "process", "share"].map(Column::json_only);
    let mut table = Table::new("", columns.to_vec());
    for share in shares.iter().take(LEADERS) {
        let process = Some(share.process.as_str()).filter(|process| !process.is_empty());
        table.row([
            share.name.as_str().into(),
            process.into(),
            Cell::Share(share.ns, wall_ns.max(1)),
        ]);
    }
    table.json()
}

#[cfg(test)]
mod test {
    use super::*;
    use table::Width;

    #[test]
    fn a_window() {
        use TimeAccount::{Guest, Halt, HaltPolling, StealOutside};
        let accounts = [(Guest, 600), (Halt, 150), (HaltPolling, 50), (StealOutside, 200)];
        let share = |name: &str, ns| Share { name: name.to_owned(), process: String::new(), ns };
        let vcpu = Overview {
            vm: "web".to_owned(),
            wall_ns: 1000,
            guest_user_ns: 500,
            guest_kernel_ns: 100,
            accounts: accounts.into(),
            thieves: vec![share("db\u{1b} vcpu0", 150)],
            ..Overview::default()
        };
        let report = top("host1", 2, 1000, &[vcpu]);
        let expected = "VCPU       GUEST  USER  KERN  HALT  STEAL1  STEAL2  QUOTA    ?  THIEF\n\
                        web vcpu0   60.0  50.0  10.0  20.0    20.0     0.0    0.0  0.0  db\\u{1b} vcpu0 75%\n";
        assert_eq!(report.text(Width::Unlimited), expected);
        let json = &report.json["vcpus"][0];
        assert_eq!((&json["halt"], &json["steal_outside"]), (&json!(0.15), &json!(0.2)));
        let thief = json!([{ "name": "db\\u{1b} vcpu0", "process": null, "share": 0.15 }]);
        assert_eq!(json["thieves"], thief);
    }
}
