//! `vmscope layout`: plans for VMs on NUMA nodes, and simulated migrations.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use table::{Cell, Column, Part, Report, Table, cleaned, counted, size};

use crate::{
    Activity, Arrival, Case, Load, Outcome, Placed, Plan, Ranking, Simulation, Source, Topology,
    VmPlan, WayResult,
};

/// The version of the JSON of all reports here.
pub(crate) const VERSION: u32 = 1;

/// What a policy would do.
#[must_use]
pub fn plan(topology: &Topology, load: &Load, plan: &Plan) -> Report {
    let mut report = Report::default();
    report.fact("Policy", plan.policy);
    report.fact("Outcome", outcome(plan.outcome));
    report.notes = plan.notes.clone();
    let vms = vms(topology, load, plan);
    let moves = moves(topology, plan);
    report.json = json!({
        "version": VERSION,
        "policy": plan.policy,
        "outcome": outcome_key(plan.outcome),
        "gain": gain(plan.outcome),
        "moved_bytes": plan.moved_bytes(),
        "notes": plan.notes.iter().map(|note| cleaned(note)).collect::<Vec<_>>(),
        "vms": vms.json(),
        "moves": moves.json(),
        "nodes": nodes(topology).json(),
    });
    report.parts.push(vms.into());
    if !plan.moves.is_empty() {
        report.parts.push(moves.into());
    }
    report
}

/// What became of a VM that was to move.
#[derive(Debug, Clone, PartialEq)]
pub struct MovedVm {
    pub name: String,
    /// vCPUs that were bound to another node.
    pub vcpus: u64,
    /// Bytes that were to move.
    pub wanted: u64,
    /// Bytes that moved.
    pub moved: u64,
    /// Why nothing of it was changed.
    pub stays: Option<String>,
    /// Where it is by `numa_maps` afterwards; `None`: it has ended.
    pub now: Option<Placed>,
    /// The part of its accesses that then leaves the node.
    pub remote: Option<f64>,
}

/// What a VM did before and after everything was moved.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredVm {
    pub name: String,
    pub before: Activity,
    /// After; `None`: it has ended.
    pub after: Option<Activity>,
    /// How much faster it was to be.
    pub predicted: Option<f64>,
    /// The part of its accesses that leave the node as its memory lies, before and after, where nothing counts them.
    pub placed_remote: [Option<f64>; 2],
}

/// A plan that was carried out, how long that took, and what VMs did before and after.
#[must_use]
pub fn apply(
    topology: &Topology,
    moved: &[MovedVm],
    took_ns: u64,
    measured: &[MeasuredVm],
) -> Report {
    let columns = vec![
        Column::name("VM").key("vm"),
        Column::number("vCPUs bound").key("vcpus_bound"),
        Column::number("MiB to move"),
        Column::data("wanted_bytes"),
        Column::number("moved"),
        Column::data("moved_bytes"),
        Column::name("vCPUs now").key("vcpus"),
        Column::name("Memory now").key("memory"),
        Column::number("Remote %").key("remote").decimals(1),
        Column::data("stays"),
    ];
    let mut table = Table::new("Moved", columns);
    for vm in moved {
        let [wanted, wanted_bytes] = Cell::mib_and_bytes(vm.wanted);
        let [moved, moved_bytes] = Cell::mib_and_bytes(vm.moved);
        let now = vm.now.as_ref();
        table.row([
            vm.name.as_str().into(),
            vm.vcpus.into(),
            wanted,
            wanted_bytes,
            moved,
            moved_bytes,
            now.map(|now| Cell::from(vcpus(topology, now))).into(),
            now.map(|now| Cell::from(memory(topology, now))).into(),
            vm.remote.map(|remote| Cell::Real(100.0 * remote)).into(),
            vm.stays.as_deref().map(Cell::from).into(),
        ]);
    }
    let all = moved.iter().map(|vm| vm.moved).sum::<u64>();
    table.notes.push("Memory now: by numa_maps, read after the last page was moved".to_owned());
    let mut report = Report::default();
    report.fact("Moved", format!("{} in {}", size(all), table::length(took_ns)));
    let gains = gains(measured);
    report.json = json!({
        "version": VERSION,
        "moved_bytes": all,
        "took_ns": took_ns,
        "vms": table.json(),
        "measured": gains.json(),
    });
    report.parts.push(table.into());
    if !measured.is_empty() {
        report.parts.push(gains.into());
    }
    report
}

fn gains(measured: &[MeasuredVm]) -> Table {
    let real = |title: &str, key: &'static str| Column::number(title).key(key).decimals(1);
    let columns = vec![
        Column::name("VM").key("vm"),
        real("Remote %", "remote_before"),
        real("then", "remote_after"),
        real("CPUs busy", "guest_cpus_before").decimals(2),
        real("then", "guest_cpus_after").decimals(2),
        real("Million\ninstr./s", "instructions_before"),
        real("then", "instructions_after"),
        real("Gain %\npredicted", "predicted_gain"),
        real("measured", "measured_gain"),
    ];
    let mut table = Table::new("Before and after", columns);
    let cell = |value: Option<f64>, factor: f64| {
        value.map_or(Cell::NONE, |value| Cell::Real(factor * value))
    };
    for vm in measured {
        let (before, after) = (&vm.before, vm.after.as_ref());
        let [placed_before, placed_after] = vm.placed_remote;
        let of_after = |value: fn(&Activity) -> Option<f64>| after.and_then(value);
        table.row([
            vm.name.as_str().into(),
            cell(before.remote().or(placed_before), 100.0),
            cell(of_after(Activity::remote).or(placed_after), 100.0),
            cell(before.cpus(), 1.0),
            cell(of_after(Activity::cpus), 1.0),
            cell(before.instructions_per_guest_s(), 1e-6),
            cell(of_after(Activity::instructions_per_guest_s), 1e-6),
            cell(vm.predicted, 100.0),
            cell(after.and_then(|after| before.gain(after)), 100.0),
        ]);
    }
    table
        .notes
        .push("Remote: as counted, else as memory lies; CPUs busy: running the guest".to_owned());
    table.notes.push(
        "Instructions, of a second of guest time, give the measured gain; \"-\": nothing counts them"
            .to_owned(),
    );
    table
}

fn outcome(outcome: Outcome) -> String {
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    match outcome {
        Outcome::Move { gain } => format!("VMs become {} faster in all", percent(gain)),
        Outcome::NoCounters => "nothing is moved: nothing counts how the VMs use memory".to_owned(),
        Outcome::LittleTraffic { waiting } => {
            format!(
                "nothing is moved: no VM waits for memory more than {} of its time",
                percent(waiting)
            )
        }
        Outcome::InPlace => "nothing is moved: everything is where the policy wants it".to_owned(),
        Outcome::LittleGain { gain } => {
            format!("nothing is moved: VMs would only become {} faster", percent(gain))
        }
    }
}

fn outcome_key(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Move { .. } => "move",
        Outcome::NoCounters => "no_counters",
        Outcome::LittleTraffic { .. } => "little_traffic",
        Outcome::InPlace => "in_place",
        Outcome::LittleGain { .. } => "little_gain",
    }
}

fn gain(outcome: Outcome) -> Option<f64> {
    match outcome {
        Outcome::Move { gain } | Outcome::LittleGain { gain } => Some(gain),
        Outcome::NoCounters | Outcome::LittleTraffic { .. } | Outcome::InPlace => None,
    }
}

/// Where each VM is before and after the plan: vCPUs and memory by node, the part of its accesses to other nodes, and its
/// speed.
fn vms(topology: &Topology, load: &Load, plan: &Plan) -> Table {
    let real = |title: &str, key: &'static str| Column::number(title).key(key).decimals(1);
    let columns = vec![
        Column::name("VM").key("vm"),
        Column::data("arrives"),
        Column::data("fits"),
        Column::name("vCPUs").key("vcpus_before"),
        Column::name("then").key("vcpus_after"),
        Column::name("Memory").key("memory_before"),
        Column::name("then").key("memory_after"),
        real("Remote %", "remote_before"),
        real("then", "remote_after"),
        real("Speed %", "speed_before"),
        real("then", "speed_after"),
        Column::data("counted_by"),
        Column::name("Why").key("reason"),
    ];
    let mut table = Table::new("VMs by node", columns);
    let hundred = |part: f64| Cell::Real(100.0 * part);
    for (at, (vm, counted)) in plan.vms.iter().zip(&load.vms).enumerate() {
        let [remote_before, remote_after] = plan.remote(topology, at, counted);
        let VmPlan { before, after, .. } = vm;
        let arrives = vm.arrival == Arrival::Incoming;
        let sign = if arrives { " (arrives)" } else { "" };
        table.row([
            format!("{}{sign}", vm.name).into(),
            Cell::Flag(arrives),
            Cell::Flag(vm.fits),
            vcpus(topology, before).into(),
            vcpus(topology, after).into(),
            memory(topology, before).into(),
            memory(topology, after).into(),
            hundred(remote_before),
            hundred(remote_after),
            hundred(vm.speed_before),
            hundred(vm.speed_after),
            counted.source.name().into(),
            vm.reason.as_str().into(),
        ]);
    }
    table.notes.push("vCPUs, Memory: node:how much; Remote: accesses to other nodes, if all memory is used alike".to_owned());
    table.notes.push(
        "Speed: predicted by the memory model, relative to being alone with local memory"
            .to_owned(),
    );
    if load.vms.iter().any(|vm| vm.source == Source::Damon) {
        table.notes.push(
            "DAMON does not count cache misses: they are estimated from accessed memory and CPU time"
                .to_owned(),
        );
    }
    table
}

fn vcpus(topology: &Topology, placed: &Placed) -> String {
    let count = |wanted| placed.vcpus.iter().filter(|home| **home == wanted).count() as u64;
    let on = |(at, node): (usize, &crate::Node)| (Some(node.id), count(Some(at)));
    let nodes = topology.nodes().iter().enumerate().map(on);
    vcpus_by_node(nodes.chain(std::iter::once((None, count(None)))))
}

fn memory(topology: &Topology, placed: &Placed) -> String {
    memory_by_node(topology.nodes().iter().map(|node| node.id).zip(placed.memory.iter().copied()))
}

/// `0:2 3:1`; `any:2`: they run anywhere.
#[must_use]
pub fn vcpus_by_node(nodes: impl Iterator<Item = (Option<u32>, u64)>) -> String {
    let name = |node: Option<u32>| node.map_or("any".to_owned(), |node| node.to_string());
    let shown = nodes.filter(|(_, n)| 0 < *n).map(|(node, n)| format!("{}:{n}", name(node)));
    shown.collect::<Vec<_>>().join(" ")
}

/// `0:512M 3:4.50G`.
#[must_use]
pub fn memory_by_node(nodes: impl Iterator<Item = (u32, u64)>) -> String {
    let nodes = nodes.filter(|(_, bytes)| 0 < *bytes);
    let shown: Vec<String> = nodes.map(|(node, bytes)| format!("{node}:{}", size(bytes))).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(" ") }
}

fn moves(topology: &Topology, plan: &Plan) -> Table {
    let columns = vec![
        Column::name("VM").key("vm"),
        Column::number("From node").key("from"),
        Column::number("To node").key("to"),
        Column::number("MiB"),
        Column::data("bytes"),
    ];
    let mut table = Table::new("Memory to move, in this order", columns);
    for step in &plan.moves {
        let name = plan.vms.get(step.vm).map_or("", |vm| vm.name.as_str());
        let id = |node: usize| topology.nodes()[node].id;
        let [shown, bytes] = Cell::mib_and_bytes(step.bytes);
        table.row([name.into(), id(step.from).into(), id(step.to).into(), shown, bytes]);
    }
    table
}

/// The nodes of a host.
#[must_use]
pub fn nodes(topology: &Topology) -> Table {
    let columns = vec![
        Column::number("Node").key("node"),
        Column::number("CPUs").key("cpus"),
        Column::number("MiB"),
        Column::data("total_bytes"),
        Column::number("free"),
        Column::data("free_bytes"),
        Column::data("free_huge_bytes"),
        Column::name("Distances").key("distances"),
    ];
    let mut table = Table::new("Nodes", columns);
    for (at, node) in topology.nodes().iter().enumerate() {
        let [[total, total_bytes], [free, free_bytes]] =
            [node.total, node.free].map(Cell::mib_and_bytes);
        let distances = (0..topology.len()).map(|to| topology.distance(at, to).to_string());
        table.row([
            node.id.into(),
            Cell::count(node.cpus.len() as u64),
            total,
            total_bytes,
            free,
            free_bytes,
            Cell::count(
                node.huge_free.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes)),
            ),
            distances.collect::<Vec<_>>().join(" ").into(),
        ]);
    }
    table
}

/// Migrations to a host by several policies, and policies over random loads.
#[must_use]
pub fn simulation(case: &Case, simulations: &[Simulation], rankings: &[Ranking]) -> Report {
    let mut report = Report::default();
    if let Some(first) = simulations.first() {
        let name = if case.name.is_empty() { "migration" } else { &case.name };
        let migration = first.migration;
        report.fact("Case", name);
        let times = format!("from {} s to {} s", migration.start_s, migration.end_s);
        report.fact("Migration", times);
    }
    let ways = ways(simulations);
    if !simulations.is_empty() {
        report.notes = left_out(case, simulations);
    }
    report.json = json!({
        "version": VERSION,
        "case": cleaned(&case.name),
        "notes": report.notes.iter().map(|note| cleaned(note)).collect::<Vec<_>>(),
        "start_s": case.migration.start_s,
        "end_s": case.migration.end_s,
        "ways": ways.json(),
        "curves": simulations.iter().flat_map(curves).collect::<Vec<Value>>(),
        "rankings": rankings.iter().map(|ranking| json!({
            "loads": ranking.loads,
            "cases": ranking.cases,
            "policies": policies(ranking).json(),
        })).collect::<Vec<Value>>(),
    });
    if !simulations.is_empty() {
        report.parts.push(ways.into());
        report.data = Some(seconds(simulations));
    }
    report.parts.extend(rankings.iter().map(|ranking| Part::from(policies(ranking))));
    report
}

/// VMs that no plan is for.
fn left_out(case: &Case, simulations: &[Simulation]) -> Vec<String> {
    if case.load.vms.iter().all(|vm| vm.arrival == Arrival::Resident) {
        return vec!["no VM arrives: mark one with `incoming = true`".to_owned()];
    }
    let plans = simulations.iter().flat_map(|simulation| &simulation.ways);
    let vms = plans.filter_map(|way| way.plan.as_ref()).flat_map(|plan| &plan.vms);
    let names: BTreeSet<&str> = vms.filter(|vm| !vm.fits).map(|vm| vm.name.as_str()).collect();
    let note = |name: &str| format!("{name} does not fit: the host has too little free memory");
    names.into_iter().map(note).collect()
}

fn ways(simulations: &[Simulation]) -> Table {
    let columns = vec![
        Column::name("Policy").key("policy"),
        Column::name("Layout").key("way"),
        Column::name("Arrived VM").key("vm"),
        Column::number("Speed lost %").key("lost").decimals(1),
        Column::number("Repaired after s"),
        Column::data("repaired_s"),
        Column::name("Other VMs' worst").key("worst_vm"),
        Column::number("lost %").key("worst_lost").decimals(1),
        Column::number("Moved MiB"),
        Column::data("moved_bytes"),
    ];
    let mut table = Table::new("After the migration", columns);
    for simulation in simulations {
        for way in &simulation.ways {
            let others = way.curves.iter().filter(|curve| curve.arrival == Arrival::Resident);
            let worst = others.min_by(|a, b| a.last.total_cmp(&b.last));
            for curve in way.curves.iter().filter(|curve| curve.arrival == Arrival::Incoming) {
                let [moved, moved_bytes] = Cell::mib_and_bytes(way.moved_bytes);
                let at_first = curve.speeds.get(simulation.migration.end_s as usize + 1);
                table.row([
                    simulation.policy.into(),
                    way.way.name().into(),
                    curve.vm.as_str().into(),
                    lost(at_first.copied().unwrap_or(curve.last)),
                    way.repaired_s.map_or("never".to_owned(), |s| s.to_string()).into(),
                    way.repaired_s.into(),
                    worst.map(|worst| Cell::from(worst.vm.as_str())).into(),
                    worst.map(|worst| lost(worst.last)).into(),
                    moved,
                    moved_bytes,
                ]);
            }
        }
    }
    table.notes.push(
        "Speed lost: right after the migration, of its speed when it is alone with local memory"
            .to_owned(),
    );
    table.notes.push("Repaired: as fast as with the best of these layouts".to_owned());
    table
}

fn lost(speed: f64) -> Cell {
    Cell::Real((100.0 * (1.0 - speed)).max(0.0))
}

/// Each VM's speed in each second, for CSV.
fn seconds(simulations: &[Simulation]) -> Table {
    let columns = ["policy", "way", "vm", "second", "speed"].map(Column::csv_only);
    let mut table = Table::new("", columns.map(|column| column.decimals(4)).into());
    for simulation in simulations {
        for way in &simulation.ways {
            for curve in &way.curves {
                for (second, speed) in curve.speeds.iter().enumerate() {
                    table.row([
                        simulation.policy.into(),
                        way.way.name().into(),
                        curve.vm.as_str().into(),
                        Cell::count(second as u64),
                        Cell::Real(*speed),
                    ]);
                }
            }
        }
    }
    table
}

fn curves(simulation: &Simulation) -> Vec<Value> {
    let of = |way: &WayResult| -> Vec<Value> {
        let object = |curve: &crate::Curve| {
            json!({
                "policy": simulation.policy,
                "way": way.way.name(),
                "vm": cleaned(&curve.vm),
                "arrives": curve.arrival == Arrival::Incoming,
                "speeds": curve.speeds.iter().map(|s| (s * 1e4).round() / 1e4).collect::<Vec<f64>>(),
            })
        };
        way.curves.iter().map(object).collect()
    };
    simulation.ways.iter().flat_map(of).collect()
}

fn policies(ranking: &Ranking) -> Table {
    let columns = vec![
        Column::name("Policy").key("policy"),
        Column::number("Mean gain %").key("gain").decimals(2),
        Column::number("Mean place").key("place"),
        Column::number("Best in %").key("best").decimals(1),
        Column::number("Moved in %").key("moved").decimals(1),
        Column::number("MiB, mean"),
        Column::data("bytes"),
    ];
    let loads = counted(ranking.cases, "random load");
    let mut table = Table::new(format!("Policies over {loads}: {}", ranking.loads), columns);
    for rank in &ranking.policies {
        let share = |n: u64| Cell::Share(n, ranking.cases);
        let [shown, bytes] = Cell::mib_and_bytes(rank.mean_bytes);
        table.row([
            rank.policy.into(),
            Cell::Real(100.0 * rank.mean_gain),
            Cell::Real(rank.mean_place),
            share(rank.best),
            share(rank.moved),
            shown,
            bytes,
        ]);
    }
    table
}

#[cfg(test)]
mod test {
    use super::*;
    use table::Width;

    const HOST: &str = "[[node]]\ncpus = \"0-1\"\nmemory = \"8G\"\ndistances = [10, 22]\n\
                        [[node]]\ncpus = \"2-3\"\nmemory = \"8G\"\ndistances = [22, 10]\n";
    const VMS: &str = "[[vm]]\nname = \"a\\u001b\"\nmemory = \"2G\"\nnode = 0\nmemory_nodes = [1]\nwaiting = 0.57\n";

    fn case(more: &str) -> Case {
        let topology = crate::read_topology(HOST).unwrap();
        crate::read_case(&format!("{VMS}{more}"), &topology).unwrap()
    }

    #[test]
    fn a_plan() {
        let Case { topology, load, .. } = case("");
        let plan = crate::plan(&topology, &load, &mut crate::AsymSched, &Default::default());
        let report = super::plan(&topology, &load, &plan);
        let text = report.text(Width::Unlimited);
        let row = "a\\u{1b}  0:1    1:1   1:2G    1:2G     100.0   0.0     59.4  100.0  100 % remote accesses\n";
        assert!(text.contains(row), "{text}");
        assert!(
            text.starts_with("Policy: asymsched\nOutcome: VMs become 68.4 % faster in all\n"),
            "{text}"
        );
        assert_eq!(report.json["vms"][0]["memory_after"], json!("1:2G"));
        assert_eq!(report.json["moved_bytes"], json!(0));
        assert!(nodes(&topology).csv().contains("0,2,8589934592,8589934592,0,10 22"));
    }

    #[test]
    fn gains_of_a_plan_that_was_carried_out() {
        let Case { topology, .. } = case("");
        let sample = |instructions, remote| crate::Sample {
            seconds: 2.0,
            misses: 1.0,
            instructions,
            remote,
        };
        let activity = |instructions, remote| Activity {
            seconds: 2.0,
            guest_s: 1.0,
            samples: vec![sample(instructions, remote)],
        };
        let vm = |name: &str, before, after| MeasuredVm {
            name: name.to_owned(),
            before,
            after,
            predicted: Some(0.5),
            placed_remote: [Some(0.9), None],
        };
        let measured = [
            vm("a\u{1b}", activity(Some(1e9), Some(0.8)), Some(activity(Some(1.4e9), Some(0.0)))),
            vm("b", activity(None, None), None),
        ];
        let report = apply(&topology, &[], 1, &measured);
        let text = report.text(Width::Unlimited);
        let has = |row: &[&str]| {
            let is_it = |line: &str| line.split_whitespace().eq(row.iter().copied());
            assert!(text.lines().any(is_it), "{row:?}: {text}");
        };
        has(&["a\\u{1b}", "80.0", "0.0", "0.50", "0.50", "1000.0", "1400.0", "50.0", "40.0"]);
        has(&["b", "90.0", "-", "0.50", "-", "-", "-", "50.0", "-"]);
        assert!(
            (report.json["measured"][0]["measured_gain"].as_f64().unwrap() - 40.0).abs() < 1e-6
        );
        assert_eq!(apply(&topology, &[], 1, &[]).json["measured"], json!([]));
    }

    #[test]
    fn a_simulation() {
        let case = case("incoming = true\n");
        let options = Default::default();
        let simulations = [crate::simulate(&case, "asymsched", &options).unwrap()];
        let rankings = crate::rank_policies(&case.topology, 10, 1, &options);
        let report = simulation(&case, &simulations, &rankings);
        let way = |n: usize| {
            let way = &report.json["ways"][n];
            (way["way"].clone(), way["repaired_s"].clone())
        };
        assert_eq!(way(0), (json!("default"), Value::Null));
        assert_eq!(way(1), (json!("afterwards"), json!(10)));
        assert_eq!(way(2), (json!("ahead"), json!(0)));
        assert!(
            report.csv().starts_with("policy,way,vm,second,speed\r\nasymsched,default,a\\u{1b},0,")
        );
        assert!(report.text(Width::Unlimited).contains("Policies over 10 random loads: all\n"));
    }
}
