//! VMs' CPUs from the host's side: what they were, who had their pCPUs, and whose time that was.

use table::{Cell, Column, Table};
use trace_analysis::findings::{Findings, OnHost};
use trace_analysis::group::By;
use trace_analysis::host_side::{CpuSide, Share, SideRow, Thief};

use super::bars::{Bar, Chart};
use super::figures::{Subject, chart, longest, of, titled};
use crate::page::section;
use crate::trace::names::key_name;

/// Thieves in a table at most.
const THIEVES: usize = 25;
/// CPUs with a bar at most.
const CPUS: usize = 64;

const NOTE: &str = "What the host's threads did while the guest thought that its CPUs worked or idled. Stolen: the thread could \
    run, and had no pCPU. Asleep in the VMM: the guest had work, and its thread slept.";

/// What a guest's CPU can be, with its style.
const PARTS: [(&str, &str); 6] = [
    ("ran", "ran"),
    ("stolen", "preempted"),
    ("asleep in the VMM", "vmm-waiting"),
    ("halted", "idle"),
    ("asleep, why is not known", "asleep"),
    ("not known", "unknown"),
];

/// Nothing where no VM's host was traced.
pub(super) fn figures(subjects: &[Subject<'_>]) -> String {
    let guests: Vec<_> = subjects.iter().filter_map(with_host).collect();
    if guests.is_empty() {
        return String::new();
    }
    let mut whole = chart("From the host's side", "guest CPUs × wall time", &PARTS);
    let bar = |(subject, host): &(&Subject<'_>, &OnHost<'_>)| Bar {
        label: subject.label.clone(),
        ns: parts(&host.side.total()).to_vec(),
    };
    whole.bars = guests.iter().map(bar).collect();
    let each = guests.iter().map(|(subject, host)| one(subjects, subject, host));
    section("The host's side", NOTE, &(whole.by_part() + &each.collect::<String>()))
}

fn with_host<'a>(subject: &'a Subject<'a>) -> Option<(&'a Subject<'a>, &'a OnHost<'a>)> {
    Some((subject, subject.findings.host.as_ref()?))
}

/// A guest's CPUs, who stole, and from whom.
fn one(subjects: &[Subject<'_>], subject: &Subject<'_>, host: &OnHost<'_>) -> String {
    let (findings, of) = (subject.findings, of(subjects, subject));
    let mut cpus = chart("each vCPU", "wall time", &PARTS);
    let vcpus = host.side.cpus.iter().take(CPUS);
    let bar =
        |cpu: &CpuSide| Bar { label: format!("vcpu {}", cpu.number), ns: parts(cpu).to_vec() };
    cpus.bars = vcpus.map(bar).collect();
    let thieves = titled(subjects, subject, thieves(findings, host));
    format!(
        "<details><summary>Each vCPU{of}</summary>\n{}</details>\n{}<h3>By command, while it had a guest CPU{of}</h3>\n{}",
        cpus.by_bar(),
        thieves.html(THIEVES),
        by_command(findings, host).by_bar()
    )
}

/// In the order of `PARTS`; adds up to the CPU's time.
fn parts(cpu: &CpuSide) -> [u64; 6] {
    let all = cpu.total();
    let asleep = [&cpu.busy, &cpu.idle, &cpu.unknown].map(|share| share.asleep_ns);
    let [in_vmm, halted, why_unknown] = asleep;
    [all.running_ns, all.stolen_ns(), in_vmm, halted, why_unknown, all.unknown_ns]
}

fn by_command(findings: &Findings<'_>, host: &OnHost<'_>) -> Chart {
    let mut chart = chart("CPU time by command", "had a guest CPU", &PARTS);
    let bar = |row: &SideRow| {
        let busy = row.share.clone();
        Bar {
            label: key_name(&row.key),
            ns: parts(&CpuSide { busy, ..CpuSide::default() }).to_vec(),
        }
    };
    let rows = host.side.rows(findings.timeline, By::Name, &findings.tasks);
    chart.bars = longest(rows.iter().map(bar).collect());
    chart
}

fn thieves(findings: &Findings<'_>, host: &OnHost<'_>) -> Table {
    let columns = vec![
        Column::name("who"),
        Column::number("stolen"),
        Column::number("of all stolen"),
        Column::number("on the critical path"),
    ];
    let mut table = Table::new("Who had the pCPUs that were stolen", columns);
    let all = host.side.total().total();
    let on_path = findings.path().map_or_else(Share::default, |found| {
        let side = host.side.path(&found.path);
        let mut both = side.running;
        both.merge(&side.waiting);
        both
    });
    let on_path = host.thieves.sums(&on_path);
    let row = |(who, ns): (Thief, u64)| {
        let of_path = on_path.iter().find(|(other, _)| *other == who);
        vec![
            who.to_string().into(),
            Cell::ns(ns),
            Cell::Share(ns, all.stolen_ns()),
            Cell::ns(of_path.map_or(0, |(_, ns)| *ns)),
        ]
    };
    table.rows = host.thieves.sums(&all).into_iter().map(row).collect();
    table
}
