//! `vmscope migrate`: the outcome of a migration, and the layout of the destination's VMs.

use api::layout::{HostLayout, Migrated, NodePlacement, VmLayout};
use layout::report::{memory_by_node, vcpus_by_node};
use serde_json::json;
use table::{Cell, Column, Report, Table, clean, length, size};

use crate::source_in_words;

const VERSION: u32 = 1;

/// What the destination said of its VMs, before the switch-over and after it.
struct Layouts<'m> {
    before: Option<&'m HostLayout>,
    after: Option<&'m HostLayout>,
    last: &'m HostLayout,
}

impl<'m> Layouts<'m> {
    fn new(migrated: &'m Migrated) -> Option<Self> {
        let (before, after) = (migrated.before.as_ref(), migrated.after.as_ref());
        Some(Self { before, after, last: after.or(before)? })
    }

    /// Where a VM was while the one that moves still ran at its source.
    fn at_switch_over(&self, vm: &VmLayout) -> Option<&'m NodePlacement> {
        let before = self.before.filter(|layout| layout.before_switch_over)?;
        before.vms.iter().find(|other| other.name == vm.name)?.now.as_ref()
    }

    fn now(&self, vm: &'m VmLayout) -> Option<&'m NodePlacement> {
        self.after.and(vm.now.as_ref())
    }
}

/// What came of a migration.
#[must_use]
pub fn report(migrated: &Migrated) -> Report {
    let mut report = Report::default();
    outcome(&mut report, migrated);
    let layouts = Layouts::new(migrated);
    let last = layouts.as_ref().map(|layouts| layouts.last);
    report.notes = migrated.notes.clone();
    report.notes.extend(last.iter().flat_map(|layout| layout.notes.iter().cloned()));
    report.notes.dedup();
    let table = layouts.as_ref().map(|layouts| {
        let layout = layouts.last;
        report.fact("Layout", layout.outcome.clone());
        let ready = length(migrated.prepared_ns);
        let (moved, took) = (size(layout.moved_bytes), length(layout.moved_ns));
        report
            .fact("Prepared", format!("in {ready}, of which {took} to move {moved} of other VMs"));
        vms(layouts)
    });
    let counters = migrated.counters.as_ref();
    report.json = json!({
        "version": VERSION,
        "vm": clean(&migrated.vm),
        "to": migrated.to.as_deref().map(clean),
        "moved": migrated.moved,
        "reason": migrated.reason.as_deref().map(clean),
        "prepared_ns": migrated.prepared_ns,
        "total_ms": migrated.total_ms,
        "downtime_ms": migrated.downtime_ms,
        "sent_bytes": migrated.sent_bytes,
        "counted_by": counted_by(migrated),
        "samples": migrated.samples,
        "counters_age_s": counters.map_or(0.0, |counters| counters.age_s),
        "policy": last.and_then(|layout| layout.policy.as_deref()).map(clean),
        "layout": last.map(|layout| clean(&layout.outcome)),
        "gain": last.and_then(|layout| layout.gain),
        "residents_moved_bytes": last.map(|layout| layout.moved_bytes),
        "residents_moved_ns": last.map(|layout| layout.moved_ns),
        "notes": report.notes.iter().map(|note| clean(note)).collect::<Vec<_>>(),
        "vms": table.as_ref().map(Table::json),
    });
    report.parts.extend(table.map(Into::into));
    report
}

/// Whether the VM moved, and what its plan was made from.
fn outcome(report: &mut Report, migrated: &Migrated) {
    let Migrated { vm, downtime_ms, samples, .. } = migrated;
    if migrated.moved {
        let to = migrated.to.as_deref().unwrap_or("another host");
        let took = length(migrated.total_ms.saturating_mul(1_000_000));
        let sent = size(migrated.sent_bytes);
        let text = format!("{vm} to {to} in {took}, stood still for {downtime_ms} ms, {sent} sent");
        report.fact("Migrated", text);
    } else {
        let reason = migrated.reason.as_deref().unwrap_or("without a reason");
        report.fact("Not migrated", format!("{vm} runs where it was: {reason}"));
    }
    let age_s = migrated.counters.as_ref().map_or(0.0, |counters| counters.age_s);
    let counters = match samples {
        0 => "none".to_owned(),
        _ => format!("{samples} samples of {}, {age_s:.1} s old", counted_by(migrated)),
    };
    report.fact("Counters", counters);
}

/// What counted how the VM uses memory, in words.
fn counted_by(migrated: &Migrated) -> &'static str {
    source_in_words(migrated.counters.as_ref().map_or("", |counters| &counters.source))
}

fn vms(layouts: &Layouts<'_>) -> Table {
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
    let vcpus = |place: &NodePlacement| -> Cell {
        vcpus_by_node(place.vcpus.iter().map(|(node, n)| (*node, u64::from(*n)))).into()
    };
    let memory =
        |place: &NodePlacement| -> Cell { memory_by_node(place.memory.iter().copied()).into() };
    for vm in &layouts.last.vms {
        let (planned, then, now) =
            (vm.planned.as_ref(), layouts.at_switch_over(vm), layouts.now(vm));
        let sign = if vm.arrives { " (arrives)" } else { "" };
        let of = |place: Option<&NodePlacement>, cell: &dyn Fn(&NodePlacement) -> Cell| -> Cell {
            place.map(cell).into()
        };
        let remote = |place: &NodePlacement| hundred(place.remote);
        let [moved, moved_bytes] = Cell::mib_and_bytes(vm.moved_bytes);
        table.row([
            format!("{}{sign}", vm.name).into(),
            vm.name.as_str().into(),
            Cell::Flag(vm.arrives),
            vcpus(&vm.before),
            of(planned, &vcpus),
            of(then, &vcpus),
            of(now, &vcpus),
            memory(&vm.before),
            of(planned, &memory),
            of(then, &memory),
            of(now, &memory),
            remote(&vm.before),
            of(planned, &remote),
            of(now, &remote),
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
    use api::layout::Counters;
    use table::Width;

    use super::*;

    fn migrated() -> Migrated {
        let place = |node: u32| NodePlacement {
            vcpus: vec![(Some(node), 2)],
            memory: vec![(node, 1 << 30)],
            remote: 0.0,
        };
        let vm = VmLayout {
            name: "web\u{1b}".to_owned(),
            arrives: true,
            before: NodePlacement {
                vcpus: vec![(None, 2)],
                memory: vec![(0, 1 << 30)],
                remote: 0.75,
            },
            planned: Some(place(2)),
            now: Some(place(2)),
            speed_before: 0.5,
            speed_planned: 1.0,
            moved_bytes: 0,
        };
        let layout = HostLayout {
            policy: Some("simple".to_owned()),
            outcome: "planned: VMs become 20.0 % faster in all".to_owned(),
            gain: Some(0.2),
            moved_bytes: 64 << 20,
            moved_ns: 1_500_000_000,
            before_switch_over: true,
            vms: vec![vm],
            notes: vec!["a note".to_owned()],
        };
        Migrated {
            vm: "web\u{1b}".to_owned(),
            to: Some("kvm2".to_owned()),
            moved: true,
            reason: None,
            prepared_ns: 2_000_000_000,
            total_ms: 3210,
            downtime_ms: 120,
            sent_bytes: 105 << 20,
            counters: Some(Counters { source: "perf".to_owned(), age_s: 0.8, samples: Vec::new() }),
            samples: 10,
            before: Some(layout),
            after: None,
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn a_migration_with_its_layout() {
        let report = report(&migrated());
        let text = report.text(Width::Unlimited);
        let heading = "Migrated: web\\u{1b} to kvm2 in 3.210 s, stood still for 120 ms, 105M sent\n\
                       Counters: 10 samples of performance counters, 0.8 s old\n\
                       Layout: planned: VMs become 20.0 % faster in all\n\
                       Prepared: in 2.000 s, of which 1.500 s to move 64M of other VMs\n";
        assert!(text.starts_with(heading), "{text}");
        assert!(text.contains("web\\u{1b} (arrives)  any:2  2:2"), "{text}");
        assert_eq!(report.json["notes"], json!(["a note"]));
        let row = &report.json["vms"][0];
        assert_eq!((&row["memory_planned"], &row["memory_now"]), (&json!("2:1G"), &json!(null)));
        assert_eq!(row["memory_at_switch_over"], json!("2:1G"));
        assert_eq!(row["vm"], json!("web\\u{1b}"));
        assert_eq!(report.json["downtime_ms"], json!(120));
    }

    #[test]
    fn a_vm_that_stays() {
        let stays = Migrated {
            moved: false,
            reason: Some("kvm2 refused: no".to_owned()),
            samples: 0,
            before: None,
            notes: Vec::new(),
            ..migrated()
        };
        let report = report(&stays);
        let text = report.text(Width::Unlimited);
        assert_eq!(
            text,
            "Not migrated: web\\u{1b} runs where it was: kvm2 refused: no\nCounters: none\n"
        );
        assert_eq!((&report.json["moved"], &report.json["vms"]), (&json!(false), &json!(null)));
    }
}
