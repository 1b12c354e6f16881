//! What `steal`, `exits` and `correct` have in common: a recording's vCPUs on the time axis.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::{OffCpuSource, VcpuId, Vm, VmId};
use serde_json::{Value, json};
use table::{Cell, Column, Report, Scale, Table, cleaned};

use crate::exit_reason;
use crate::report::recording::{INCOMPLETE, dropped, host, missed, sampling, vendor};
use crate::steal::{Stolen, Thief, ThiefNames, TimelineInput, VmmTime};
use crate::vcpu_timeline::VcpuTimeline;

/// Version of the JSON that docs/steal.md describes.
pub(crate) const VERSION: u32 = 1;

/// A recording's vCPUs on the time axis, and the names of who had their CPUs.
#[derive(Debug)]
pub struct VcpuTime<'a> {
    /// The axis, the recording's tables and header.
    pub evidence: TimelineInput<'a>,
    /// Who had a CPU.
    pub names: ThiefNames<'a>,
}

impl<'a> VcpuTime<'a> {
    /// Names for the thieves of the evidence.
    #[must_use]
    pub fn new(evidence: TimelineInput<'a>) -> Self {
        Self { evidence, names: ThiefNames::new(evidence.tables) }
    }

    /// The row of a VM.
    #[must_use]
    pub fn vm(&self, vm: VmId) -> &Vm {
        &self.evidence.tables.vms[vm.index()]
    }

    /// Number and row of a VM's vCPUs, in the order of their numbers.
    #[must_use]
    pub fn vcpus(&self, vm: VmId) -> Vec<(u32, VcpuId)> {
        let rows = self.evidence.tables.vcpus.iter().enumerate();
        let of_vm = rows.filter(|(_, row)| row.vm == vm);
        let mut vcpus: Vec<_> = of_vm.map(|(n, row)| (row.number, VcpuId::from_index(n))).collect();
        vcpus.sort_unstable();
        vcpus
    }

    /// All time of a VM's vCPUs.
    pub(crate) fn wall_ns(&self, vm: VmId) -> u64 {
        let vcpus = self.vcpus(vm);
        let of_vm = |timeline: &&VcpuTimeline| vcpus.iter().any(|(_, vcpu)| *vcpu == timeline.vcpu);
        self.evidence.axis.timelines.iter().filter(of_vm).map(VcpuTimeline::length_ns).sum()
    }

    /// An exit reason's name.
    pub(crate) fn reason(&self, reason: Option<u32>) -> String {
        let name = |reason| exit_reason::name(self.evidence.header.vendor, reason).into_owned();
        reason.map_or("[unknown]".to_owned(), name)
    }

    fn off_cpu_source(&self) -> &'static str {
        match self.evidence.axis.off_cpu_source {
            OffCpuSource::Samples => "samples",
            OffCpuSource::Switches => "switches",
        }
    }

    /// The recording's notes, and what made no sense on the axis.
    fn notes(&self) -> Vec<String> {
        let noted = self.evidence.header.notes.iter();
        let noted = noted.map(|note| format!("{}: {}", note.subject, note.text));
        let problems = self.evidence.axis.problems.iter();
        noted.chain(problems.map(|(what, n)| format!("time axis: {what}: {n}"))).collect()
    }

    /// A report with the lines above all, its parts still missing.
    #[must_use]
    pub fn report(&self) -> Report {
        let header = self.evidence.header;
        let mut report = Report { notes: self.notes(), ..Report::default() };
        report.fact("Host", host(header));
        report
            .fact("Recorded", format!("{}, edges by {}", sampling(header), self.off_cpu_source()));
        report.fact("Dropped", dropped(header));
        report.fact("Missed", missed(header));
        if !header.complete {
            report.fact("Incomplete", INCOMPLETE);
        }
        report
    }

    /// What the report is of, for JSON.
    #[must_use]
    pub fn recording(&self) -> Value {
        let header = self.evidence.header;
        json!({
            "hostname": cleaned(&header.hostname),
            "kernel": cleaned(&header.kernel),
            "vendor": vendor(header),
            "period_ns": header.period_ns,
            "duration_ns": header.end.since(header.start),
            "edges": self.off_cpu_source(),
            "complete": header.complete,
            "notes": self.notes().iter().map(|note| cleaned(note)).collect::<Value>(),
        })
    }

    /// Who had the CPU, most time first.
    #[must_use]
    pub fn thieves(&self, thieves: &BTreeMap<Thief, u64>, wall_ns: u64) -> Table {
        let columns = vec![
            Column::json_only("kind"),
            Column::json_only("name"),
            Column::json_only("vm"),
            Column::number("ms").json("ns").scale(Scale::Ms).adds_up(),
            Column::number("%").json("share").adds_up(),
            Column::name("Thief"),
        ];
        let mut table = Table::new("", columns);
        for (thief, ns) in most_first(thieves, |ns| *ns) {
            let name = self.names.name(*thief);
            let vm = self.names.vm(*thief).map(|vm| self.vm(vm).name.clone());
            let (ns, share) = (Cell::ns(*ns), Cell::Share(*ns, wall_ns.max(1)));
            table.row([
                thief.kind().name().into(),
                name.as_str().into(),
                vm.into(),
                ns,
                share,
                name.into(),
            ]);
        }
        table
    }

    /// Time in the VMM by exit reason, most first.
    #[must_use]
    pub fn reasons(&self, reasons: &BTreeMap<Option<u32>, VmmTime>, wall_ns: u64) -> Table {
        let columns = vec![
            Column::json_only("reason"),
            Column::json_only("name"),
            Column::number("ms").json("ns").scale(Scale::Ms).adds_up(),
            Column::number("%").adds_up(),
            Column::number("waiting ms").json("waiting_ns").scale(Scale::Ms).adds_up(),
            Column::json_only("share"),
            Column::name("Exit reason"),
        ];
        let mut table = Table::new("", columns);
        for (reason, time) in most_first(reasons, |time| time.total_ns()) {
            let (ns, waiting) = (time.total_ns(), Cell::ns(time.waiting_ns));
            let (name, share) = (self.reason(*reason), Cell::Share(ns, wall_ns.max(1)));
            let of_json = [Cell::from(*reason), name.as_str().into()];
            table.row(of_json.into_iter().chain([
                Cell::ns(ns),
                share.clone(),
                waiting,
                share,
                name.into(),
            ]));
        }
        table
    }
}

fn most_first<K, V>(map: &BTreeMap<K, V>, ns: impl Fn(&V) -> u64) -> Vec<(&K, &V)> {
    let mut rows: Vec<_> = map.iter().collect();
    rows.sort_by_key(|(_, value)| Reverse(ns(value)));
    rows
}

/// Time taken, for JSON.
pub(crate) fn stolen_json(stolen: &Stolen) -> Value {
    json!({
        "outside_ns": stolen.outside_ns,
        "vmm_ns": stolen.vmm_ns,
        "throttled_ns": stolen.throttled_ns,
    })
}
