//! The charts: CPU and disk, states, waits, CPU time by class, the critical path. Of two runs, both in each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use table::{Table, escape};

use trace_analysis::critical_path::Category;
use trace_analysis::findings::Findings;
use trace_analysis::group::By;
use trace_analysis::kernel::ClassGroup;
use trace_analysis::states;
use trace_analysis::waits::Group;

use super::bars::{Bar, Chart};
use super::vcpus;
use crate::page::section;
use crate::trace::Run;
use crate::trace::names::{Names, key_name, short};
use crate::trace::views::{self, FOUR_WAY, STATES, View, four_way, nine_states};

/// Bars of a chart with a bar per command, CPU or disk at most; what is cut off is one bar.
const BARS: usize = 14;
/// Rows of a table at most.
const ROWS: usize = 25;
/// Processes in the page's last table at most.
const PROCESSES: usize = 500;
/// Categories of the critical path with a part of their own.
const CATEGORIES: usize = 11;

/// What has a bar of its own.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) label: String,
    pub(super) findings: &'a Findings<'a>,
}

/// Every machine of every run.
pub(super) fn subjects<'a>(runs: &[Run<'a>], found: &[&'a [Findings<'a>]]) -> Vec<Subject<'a>> {
    let several_machines = runs.iter().any(|run| 1 < run.timelines.len());
    let of_run = |(run, found): (&Run<'a>, &&'a [Findings<'a>])| {
        let run_label = short(run.label);
        let several_runs = 1 < runs.len();
        found.iter().map(move |findings| {
            let machine = Names::new(findings).machine_name();
            let label = match (several_runs, several_machines) {
                (true, true) => format!("{run_label}: {machine}"),
                (true, false) => run_label.clone(),
                (false, _) => machine,
            };
            Subject { label, findings }
        })
    };
    runs.iter().zip(found).flat_map(of_run).collect()
}

/// All charts with their tables.
pub(super) fn figures(subjects: &[Subject<'_>]) -> String {
    [
        section("CPU and disk", &about(subjects), &profile(subjects)),
        vcpus::figures(subjects),
        section("States", STATES_NOTE, &states(subjects)),
        section("Waits", WAITS_NOTE, &waits(subjects)),
        section("Kernel time", KERNEL_NOTE, &kernel(subjects)),
        section("Critical path", PATH_NOTE, &path(subjects)),
    ]
    .concat()
}

/// The page's last section.
pub(super) fn processes(subjects: &[Subject<'_>]) -> String {
    let one = |subject: &Subject<'_>| {
        titled(subjects, subject, views::table(subject.findings, View::Process)).html(PROCESSES)
    };
    let body: String = subjects.iter().map(one).collect();
    section("Processes", "What each ran and waited for.", &body)
}

const STATES_NOTE: &str = "Every task's life: whether it had a CPU, waited for one or wanted none, and at the same time \
    whether a disk worked for it, had its request queued or had none.";
const WAITS_NOTE: &str = "All time in which tasks did not run, by what they waited for. Stopped tasks, and the kernel's own \
    without work, don't wait.";
const KERNEL_NOTE: &str = "What CPUs executed. Interrupts and page faults count for themselves, not for what they interrupted.";
const PATH_NOTE: &str =
    "The chain of work and waits that the command's length is made of, followed back from its end.";

fn about(subjects: &[Subject<'_>]) -> String {
    if subjects.iter().any(|subject| subject.findings.scope.is_some()) {
        "Wall time, by what was busy. Where a command was traced, this and all that follows is about the command's time and tasks."
            .to_owned()
    } else {
        "Wall time, by what was busy.".to_owned()
    }
}

/// One table per subject.
fn tables(subjects: &[Subject<'_>], view: View, most: usize) -> String {
    let one = |subject: &Subject<'_>| {
        titled(subjects, subject, views::table(subject.findings, view)).html(most)
    };
    subjects.iter().map(one).collect()
}

/// The table with its subject's name, where there is more than one subject.
pub(super) fn titled(subjects: &[Subject<'_>], subject: &Subject<'_>, mut table: Table) -> Table {
    if 1 < subjects.len() {
        table.title = format!("{}: {}", table.title, subject.label);
    }
    table
}

pub(super) fn chart(title: &str, whole: &str, parts: &[(&str, &'static str)]) -> Chart {
    let parts = parts.iter().map(|(name, style)| ((*name).to_owned(), *style)).collect();
    Chart { title: title.to_owned(), whole: whole.to_owned(), parts, bars: Vec::new() }
}

fn bars(subjects: &[Subject<'_>], ns: impl Fn(&Findings<'_>) -> Vec<u64>) -> Vec<Bar> {
    let bar =
        |subject: &Subject<'_>| Bar { label: subject.label.clone(), ns: ns(subject.findings) };
    subjects.iter().map(bar).collect()
}

/// The longest bars; the others as one.
pub(super) fn longest(mut bars: Vec<Bar>) -> Vec<Bar> {
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.total()));
    if bars.len() <= BARS {
        return bars;
    }
    let rest = bars.split_off(BARS - 1);
    let mut ns = vec![0; rest[0].ns.len()];
    for bar in &rest {
        ns.iter_mut().zip(&bar.ns).for_each(|(sum, ns)| *sum += ns);
    }
    bars.push(Bar { label: format!("{} others", rest.len()), ns });
    bars
}

fn profile(subjects: &[Subject<'_>]) -> String {
    let mut whole = chart("CPU and disk", "wall time", &FOUR_WAY);
    whole.bars = bars(subjects, |findings| four_way(&findings.profile().machine).to_vec());
    let mut out = whole.by_part();
    for subject in subjects {
        let profile = subject.findings.profile();
        let cpus = profile.cpus.iter().map(|(number, of)| (format!("cpu {number}"), of));
        let disks = subject.findings.timeline.disks.iter().zip(&profile.disks);
        let disks = disks.map(|(disk, of)| (format!("disk {}", short(&disk.name)), of));
        let mut each = chart("each CPU and disk", "wall time", &FOUR_WAY);
        let bar = |(label, of)| Bar { label, ns: four_way(of).to_vec() };
        each.bars = cpus.chain(disks).take(64).map(bar).collect();
        let _ = write!(
            out,
            "<details><summary>Each CPU against all disks, each disk against all CPUs{}</summary>\n{}</details>\n",
            if 1 < subjects.len() {
                format!(": {}", escape(&subject.label))
            } else {
                String::new()
            },
            each.by_bar()
        );
    }
    out
}

fn states(subjects: &[Subject<'_>]) -> String {
    let mut whole = chart("State", "lifetime of all tasks", &STATES);
    whole.bars = bars(subjects, |findings| nine_states(&findings.states().total));
    let mut out = whole.by_part();
    for subject in subjects {
        let mut each = chart("states by command", "lifetime", &STATES);
        let names = subject.findings.states().names.iter();
        let bar = |named: &states::Named| Bar {
            label: format!("{} × {}", named.n_processes, short(&named.name)),
            ns: nine_states(&named.table),
        };
        each.bars = longest(names.map(bar).collect());
        out += &format!("<h3>By command{}</h3>\n{}", of(subjects, subject), each.by_bar());
    }
    out
}

/// `: host` where there is more than one.
pub(super) fn of(subjects: &[Subject<'_>], subject: &Subject<'_>) -> String {
    if 1 < subjects.len() { format!(": {}", escape(&subject.label)) } else { String::new() }
}

/// The groups that are waiting, with their styles.
const GROUPS: [(Group, &str); 9] = [
    (Group::Cpu, "cpu-wait"),
    (Group::Disk, "disk-wait"),
    (Group::FileServer, "writes"),
    (Group::InodeLock, "lock-wait"),
    (Group::OtherLocks, "c3"),
    (Group::Others, "kernel"),
    (Group::Timer, "reads"),
    (Group::Kernel, "user"),
    (Group::Unknown, "unknown"),
];

fn by_group(life: &trace_analysis::waits::Life) -> Vec<u64> {
    let groups = life.groups();
    GROUPS.iter().map(|(group, _)| groups.get(group).map_or(0, |sum| sum.ns)).collect()
}

fn waits(subjects: &[Subject<'_>]) -> String {
    let parts = GROUPS.map(|(group, style)| (group.name(), style));
    let mut whole = chart("Waiting for", "waiting", &parts);
    whole.bars = bars(subjects, |findings| by_group(&findings.life()));
    let mut out = whole.by_part();
    out += &tables(subjects, View::Waits, ROWS);
    for subject in subjects {
        let mut each = chart("waits by command", "waiting", &parts);
        let rows = subject.findings.lives_by(By::Name);
        let bar = |row: &trace_analysis::waits::Row| Bar {
            label: key_name(&row.key),
            ns: by_group(&row.life),
        };
        each.bars = longest(rows.iter().map(bar).collect());
        out += &format!("<h3>By command{}</h3>\n{}", of(subjects, subject), each.by_bar());
    }
    out + &tables(subjects, View::WaitPlaces, ROWS)
}

/// All groups of classes, with their styles.
const CLASSES: [(ClassGroup, &str); 11] = [
    (ClassGroup::User, "writes"),
    (ClassGroup::FileCalls, "user"),
    (ClassGroup::ProcessCalls, "cpu-wait"),
    (ClassGroup::MemoryCalls, "reads"),
    (ClassGroup::OtherCalls, "lock-wait"),
    (ClassGroup::Faults, "disk-wait"),
    (ClassGroup::Interrupts, "interrupt"),
    (ClassGroup::KernelTasks, "kernel"),
    (ClassGroup::Vcpus, "ran"),
    (ClassGroup::Idle, "idle"),
    (ClassGroup::Unknown, "unknown"),
];

fn by_class(
    times: &trace_analysis::kernel::Times,
    wanted: impl Fn(ClassGroup) -> bool,
) -> Vec<u64> {
    let groups = times.groups();
    let ns = |group| groups.get(&group).copied().unwrap_or(0);
    CLASSES.iter().map(|(group, _)| if wanted(*group) { ns(*group) } else { 0 }).collect()
}

fn kernel(subjects: &[Subject<'_>]) -> String {
    let parts = CLASSES.map(|(group, style)| (group.name(), style));
    let in_kernel = |group| {
        !matches!(
            group,
            ClassGroup::User | ClassGroup::Vcpus | ClassGroup::Idle | ClassGroup::Unknown
        )
    };
    let mut kernel = chart("Kernel time", "kernel", &parts);
    kernel.bars = bars(subjects, |findings| {
        by_class(&findings.kernel().times_of(&findings.tasks), in_kernel)
    });
    let mut all = chart("All CPU time", "CPUs × wall time", &parts);
    all.bars = bars(subjects, |findings| by_class(&findings.kernel().total(), |_| true));
    let mut out = kernel.by_part();
    out += &format!("<h3>All CPUs, the whole trace</h3>\n{}", all.by_part());
    for subject in subjects {
        let findings = subject.findings;
        let mut each = chart("kernel time by command", "kernel", &parts);
        let rows = findings.kernel().rows(findings.timeline, By::Name, &findings.tasks);
        let bar = |row: &trace_analysis::kernel::TimesRow| Bar {
            label: key_name(&row.key),
            ns: by_class(&row.times, in_kernel),
        };
        each.bars = longest(rows.iter().map(bar).collect());
        out += &format!("<h3>By command{}</h3>\n{}", of(subjects, subject), each.by_bar());
    }
    out + &tables(subjects, View::Calls, ROWS)
}

/// What a category is in the page's other charts.
fn meaning(category: &Category) -> &'static str {
    match category {
        Category::User(_) => "user",
        Category::Kernel(_) => "kernel",
        Category::Vcpu => "ran",
        Category::CpuWait | Category::WakingUp => "cpu-wait",
        Category::DiskQueue(_) => "queued",
        Category::Disk(..) | Category::UnknownDisk => "disk-wait",
        Category::Lock => "lock-wait",
        Category::Timer
        | Category::Polling
        | Category::Network
        | Category::Interrupt(_)
        | Category::NotOver(_) => "asleep",
        Category::Stopped => "stopped",
        Category::Unknown => "unknown",
    }
}

/// Styles that mean nothing elsewhere: for the second category of a meaning, and further ones.
const MORE_STYLES: [&str; CATEGORIES] =
    ["c2", "c4", "c3", "writes", "interrupt", "c7", "s02", "s12", "s20", "s00", "s10"];

/// The longest categories of the path have the colours of their meanings, as far as that tells them apart.
fn path_styles(meanings: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let (mut styles, mut more) = (Vec::new(), MORE_STYLES.iter());
    for meaning in meanings {
        let style = if styles.contains(&meaning) { more.next() } else { Some(&meaning) };
        styles.extend(style);
    }
    styles
}

fn path(subjects: &[Subject<'_>]) -> String {
    let mut sums: BTreeMap<String, (u64, &'static str)> = BTreeMap::new();
    let categories = |findings: &Findings<'_>| -> Vec<(String, u64, &'static str)> {
        let parts = findings.path().into_iter().flat_map(|path| &path.summary.categories);
        parts.map(|part| (short(&part.of.to_string()), part.ns, meaning(&part.of))).collect()
    };
    for (name, ns, meaning) in subjects.iter().flat_map(|subject| categories(subject.findings)) {
        sums.entry(name).or_insert((0, meaning)).0 += ns;
    }
    if sums.is_empty() {
        return String::new();
    }
    let mut names: Vec<(String, (u64, &'static str))> = sums.into_iter().collect();
    names.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    names.truncate(CATEGORIES);
    let styles = path_styles(names.iter().map(|(_, (_, meaning))| *meaning));
    let mut parts: Vec<(&str, &'static str)> =
        names.iter().zip(styles).map(|((name, _), style)| (name.as_str(), style)).collect();
    parts.push(("everything else", "idle"));
    let mut whole = chart("Critical path", "the command's length", &parts);
    whole.bars = bars(subjects, |findings| {
        let mut ns = vec![0; parts.len()];
        for (name, part, _) in categories(findings) {
            let place = names.iter().position(|(known, _)| *known == name);
            ns[place.unwrap_or(names.len())] += part;
        }
        ns
    });
    whole.bars.retain(|bar| 0 < bar.total());
    whole.by_part()
        + &tables(subjects, View::Improvements, ROWS)
        + &tables(subjects, View::CriticalPath, ROWS)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn colours_of_a_path_mean_what_they_mean_elsewhere_and_differ() {
        let check = |meanings: &[&'static str], expected: &[&str]| {
            assert_eq!(path_styles(meanings.iter().copied()), expected);
        };
        check(&["cpu-wait", "user", "kernel"], &["cpu-wait", "user", "kernel"]);
        check(&["user", "user", "cpu-wait", "user"], &["user", "c2", "cpu-wait", "c4"]);
        let styles = path_styles(std::iter::repeat_n("user", CATEGORIES));
        let different: std::collections::BTreeSet<_> = styles.iter().collect();
        assert_eq!(different.len(), CATEGORIES);
    }
}
