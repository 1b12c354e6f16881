//! `vmscope migrate`: what came of a migration, and where the destination's VMs are.

use serde_json::json;

use crate::layout::{both, memory_by_node, size, vcpus_by_node};
use crate::recording::cleaned;
use crate::{Cell, Column, Report, Table};

const VERSION: u32 = 1;

/// A migration that is over.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigrationFigures {
    /// The VM.
    pub vm: String,
    /// Its destination, if that is known.
    pub to: Option<String>,
    /// Whether it runs there now.
    pub moved: bool,
    /// Why not.
    pub reason: Option<String>,
    /// How long the destination took to be ready.
    pub prepared_ns: u64,
    /// How long QEMU took.
    pub total_ms: u64,
    /// How long the VM stood still.
    pub downtime_ms: u64,
    /// Bytes that QEMU sent.
    pub sent_bytes: u64,
    /// What counted how the VM uses memory, in words.
    pub counted_by: String,
    /// How many samples there were.
    pub samples: u64,
    /// How old the last one was, in seconds.
    pub age_s: f64,
    /// What was done for the layout.
    pub layout: Option<MigrationLayout>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// What a destination did, and where its VMs are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigrationLayout {
    /// The policy; `None`: the kernel chose.
    pub policy: Option<String>,
    /// Why, or what came of it.
    pub outcome: String,
    /// The part by which all VMs together are predicted to become faster.
    pub gain: Option<f64>,
    /// Bytes of residents that were moved.
    pub moved_bytes: u64,
    /// How long that took.
    pub moved_ns: u64,
    /// The VMs.
    pub vms: Vec<MigrationVm>,
}

/// A VM of the destination.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigrationVm {
    /// Its name.
    pub name: String,
    /// Whether it is the one that was migrated.
    pub arrives: bool,
    /// Where it was, or where the kernel would be expected to put it.
    pub before: NodePlace,
    /// Where it was to be; `None`: not planned.
    pub planned: Option<NodePlace>,
    /// Where it was while the VM still ran at its source.
    pub at_switch_over: Option<NodePlace>,
    /// Where it is now.
    pub now: Option<NodePlace>,
    /// Its speed before, as the memory model has it.
    pub speed_before: f64,
    /// Its speed as planned.
    pub speed_planned: f64,
    /// Bytes of it that were moved from node to node.
    pub moved_bytes: u64,
}

/// Nodes with vCPUs and memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodePlace {
    /// Nodes and how many vCPUs are bound to each; `None`: to none.
    pub vcpus: Vec<(Option<u32>, u32)>,
    /// Nodes and bytes on each.
    pub memory: Vec<(u32, u64)>,
    /// The part of accesses that go to another node, if all memory is used alike.
    pub remote: f64,
}

/// What came of a migration.
#[must_use]
pub fn migration(figures: &MigrationFigures) -> Report {
    let mut report = Report::default();
    let to = figures.to.as_deref().unwrap_or("another host");
    let took_ns = figures.total_ms.saturating_mul(1_000_000);
    if figures.moved {
        let MigrationFigures { vm, downtime_ms, sent_bytes, .. } = figures;
        let (took, sent) = (crate::length(took_ns), size(*sent_bytes));
        let text = format!("{vm} to {to} in {took}, stood still for {downtime_ms} ms, {sent} sent");
        report.fact("Migrated", text);
    } else {
        let reason = figures.reason.as_deref().unwrap_or("without a reason");
        report.fact("Not migrated", format!("{} runs where it was: {reason}", figures.vm));
    }
    let MigrationFigures { samples, age_s, .. } = figures;
    let counters = match samples {
        0 => "none".to_owned(),
        _ => format!("{samples} samples of {}, {age_s:.1} s old", figures.counted_by),
    };
    report.fact("Counters", counters);
    report.notes = figures.notes.clone();
    let table = figures.layout.as_ref().map(|layout| {
        report.fact("Layout", layout.outcome.clone());
        let ready = crate::length(figures.prepared_ns);
        let moved = size(layout.moved_bytes);
        let took = crate::length(layout.moved_ns);
        report
            .fact("Prepared", format!("in {ready}, of which {took} to move {moved} of other VMs"));
        vms(layout)
    });
    let layout = figures.layout.as_ref();
    report.json = json!({
        "version": VERSION,
        "vm": cleaned(&figures.vm),
        "to": figures.to.as_deref().map(cleaned),
        "moved": figures.moved,
        "reason": figures.reason.as_deref().map(cleaned),
        "prepared_ns": figures.prepared_ns,
        "total_ms": figures.total_ms,
        "downtime_ms": figures.downtime_ms,
        "sent_bytes": figures.sent_bytes,
        "counted_by": figures.counted_by,
        "samples": figures.samples,
        "counters_age_s": figures.age_s,
        "policy": layout.and_then(|layout| layout.policy.as_deref()).map(cleaned),
        "layout": layout.map(|layout| cleaned(&layout.outcome)),
        "gain": layout.and_then(|layout| layout.gain),
        "residents_moved_bytes": layout.map(|layout| layout.moved_bytes),
        "residents_moved_ns": layout.map(|layout| layout.moved_ns),
        "notes": figures.notes.iter().map(|note| cleaned(note)).collect::<Vec<_>>(),
        "vms": table.as_ref().map(Table::json),
    });
    report.parts.extend(table.map(Into::into));
    report
}

fn vms(layout: &MigrationLayout) -> Table {
    let real = |title: &str, key: &'static str| Column::number(title).key(key).decimals(1);
    let columns = vec![
        Column::name("VM"),
        Column::data("vm"),
        Column::data("arrives"),
        Column::name("vCPUs").key("vcpus_before"),
        Column::name("planned").key("vcpus_planned"),
        Column::data("vcpus_at_switch_over"),
        Column::name("now").key("vcpus_now"),
        Column::name("Memory").key("memory_before"),
        Column::name("planned").key("memory_planned"),
        Column::name("at switch-over").key("memory_at_switch_over"),
        Column::name("now").key("memory_now"),
        real("Remote %", "remote_before"),
        real("planned", "remote_planned"),
        real("now", "remote_now"),
        real("Speed %", "speed_before"),
        real("planned", "speed_planned"),
        Column::number("Moved MiB"),
        Column::data("moved_bytes"),
    ];
    let mut table = Table::new("VMs of the destination, by node", columns);
    let hundred = |part: f64| Cell::Real(100.0 * part);
    let vcpus = |place: &NodePlace| -> Cell {
        vcpus_by_node(place.vcpus.iter().map(|(node, n)| (*node, u64::from(*n)))).into()
    };
    let memory =
        |place: &NodePlace| -> Cell { memory_by_node(place.memory.iter().copied()).into() };
    for vm in &layout.vms {
        let sign = if vm.arrives { " (arrives)" } else { "" };
        let of = |place: &Option<NodePlace>, cell: &dyn Fn(&NodePlace) -> Cell| -> Cell {
            place.as_ref().map(cell).into()
        };
        let remote = |place: &NodePlace| hundred(place.remote);
        let [moved, moved_bytes] = both(vm.moved_bytes);
        table.row([
            format!("{}{sign}", vm.name).into(),
            vm.name.as_str().into(),
            Cell::Flag(vm.arrives),
            vcpus(&vm.before),
            of(&vm.planned, &vcpus),
            of(&vm.at_switch_over, &vcpus),
            of(&vm.now, &vcpus),
            memory(&vm.before),
            of(&vm.planned, &memory),
            of(&vm.at_switch_over, &memory),
            of(&vm.now, &memory),
            remote(&vm.before),
            of(&vm.planned, &remote),
            of(&vm.now, &remote),
            hundred(vm.speed_before),
            hundred(vm.speed_planned),
            moved,
            moved_bytes,
        ]);
    }
    table.notes.push("vCPUs, Memory: node:how much. Of the VM that arrives, the first is what the kernel is expected to do".to_owned());
    table.notes.push("at switch-over, now: by numa_maps; at switch-over: the last look while the VM ran at its source".to_owned());
    table.notes.push("Speed: predicted by the memory model, relative to being alone with local memory; not measured".to_owned());
    table
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Width;

    fn figures() -> MigrationFigures {
        let place = |node: u32| NodePlace {
            vcpus: vec![(Some(node), 2)],
            memory: vec![(node, 1 << 30)],
            remote: 0.0,
        };
        let vm = MigrationVm {
            name: "web\u{1b}".to_owned(),
            arrives: true,
            before: NodePlace { vcpus: vec![(None, 2)], memory: vec![(0, 1 << 30)], remote: 0.75 },
            planned: Some(place(2)),
            at_switch_over: Some(place(2)),
            now: None,
            speed_before: 0.5,
            speed_planned: 1.0,
            moved_bytes: 0,
        };
        let layout = MigrationLayout {
            policy: Some("simple".to_owned()),
            outcome: "planned: VMs become 20.0 % faster in all".to_owned(),
            gain: Some(0.2),
            moved_bytes: 64 << 20,
            moved_ns: 1_500_000_000,
            vms: vec![vm],
        };
        MigrationFigures {
            vm: "web\u{1b}".to_owned(),
            to: Some("kvm2".to_owned()),
            moved: true,
            prepared_ns: 2_000_000_000,
            total_ms: 3210,
            downtime_ms: 120,
            sent_bytes: 105 << 20,
            counted_by: "performance counters".to_owned(),
            samples: 10,
            age_s: 0.8,
            layout: Some(layout),
            ..MigrationFigures::default()
        }
    }

    #[test]
    fn a_migration_with_its_layout() {
        let report = migration(&figures());
        let text = report.text(Width::Unlimited);
        let heading = "Migrated: web\\u{1b} to kvm2 in 3.210 s, stood still for 120 ms, 105M sent\n\
                       Counters: 10 samples of performance counters, 0.8 s old\n\
                       Layout: planned: VMs become 20.0 % faster in all\n\
                       Prepared: in 2.000 s, of which 1.500 s to move 64M of other VMs\n";
        assert!(text.starts_with(heading), "{text}");
        assert!(text.contains("web\\u{1b} (arrives)  any:2  2:2"), "{text}");
        let row = &report.json["vms"][0];
        assert_eq!((&row["memory_planned"], &row["memory_now"]), (&json!("2:1G"), &json!(null)));
        assert_eq!(row["vm"], json!("web\\u{1b}"));
        assert_eq!(report.json["downtime_ms"], json!(120));
    }

    #[test]
    fn a_vm_that_stays() {
        let stays = MigrationFigures {
            moved: false,
            reason: Some("kvm2 refused: no".to_owned()),
            samples: 0,
            layout: None,
            ..figures()
        };
        let report = migration(&stays);
        let text = report.text(Width::Unlimited);
        assert_eq!(
            text,
            "Not migrated: web\\u{1b} runs where it was: kvm2 refused: no\nCounters: none\n"
        );
        assert_eq!((&report.json["moved"], &report.json["vms"]), (&json!(false), &json!(null)));
    }
}
