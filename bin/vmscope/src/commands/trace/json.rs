//! `vmscope trace report` as the published JSON type. Names are cleaned: they may come from guests.

use analysis::clean;
use api::trace as json;
use trace_analysis::critical_path::Category;
use trace_analysis::findings::Path;
use trace_analysis::gantt::{LaneOf, View as Drawing, pieces};
use trace_analysis::kernel::{CallRow, Class, Times, TimesRow, syscall_label};
use trace_analysis::profile::FourWay;
use trace_analysis::states::Table;
use trace_analysis::timeline::{Disk, Task, TaskId};
use trace_analysis::waits::{Cause, Detail, Life, Sum};

use super::super::Usage;
use super::doubt;
use super::gantt::Chart;
use super::kernel::Kernel;
use super::process::Process;
use super::report::{Findings, View};
use super::scene::Scene;
use super::waits::Waits;
use super::words;

/// Pieces of a lane are no finer than this part of what is drawn.
const COLUMNS: usize = 2000;

/// The trace, its machine and a view; of the overview those that its text is of.
///
/// # Errors
/// When a critical path is asked for, and there is nothing to explain.
pub(super) fn report(findings: &Findings<'_>, view: View) -> Result<json::Report, Usage> {
    let mut report = heading(findings.scene);
    report.whose = cleaned(&findings.whose());
    let overview = view == View::Overview;
    if overview || view == View::Kernel || view == View::Process {
        report.host_side = super::host_side::report(findings);
    }
    if overview || view == View::Profile {
        report.profile = Some(profile(findings));
    }
    if overview || view == View::States {
        report.states = Some(states(findings));
    }
    if overview || view == View::Waits {
        report.waits = Some(waits(findings));
    }
    if overview || view == View::Kernel {
        report.kernel = Some(kernel(findings));
    }
    match view {
        View::Overview => {
            report.critical_path = findings.path().map(|path| critical_path(findings, path));
        }
        View::CriticalPath => {
            report.critical_path = Some(critical_path(findings, findings.some_path()?))
        }
        View::Process => report.processes = Some(processes(findings)),
        View::Gantt => report.gantt = Some(gantt(findings, &Chart::of(findings))),
        View::Profile | View::States | View::Waits | View::Kernel => {}
    }
    Ok(report)
}

/// The trace and its machine.
pub(super) fn heading(scene: &Scene) -> json::Report {
    json::Report {
        version: json::VERSION,
        trace: trace(scene),
        machine: machine(scene),
        command: command(scene),
        ..json::Report::default()
    }
}

fn trace(scene: &Scene) -> json::Trace {
    let header = &scene.trace.header;
    let note = |note: &model::Note| cleaned(&format!("{}: {}", note.subject, note.text));
    json::Trace {
        vmscope_version: cleaned(&header.vmscope_version),
        hostname: cleaned(&header.hostname),
        begin_unix_ns: header.begin_unix_ns,
        duration_ns: header.end.since(header.begin),
        complete: header.complete,
        filters: header.filters.iter().map(|filter| cleaned(filter)).collect(),
        machines: scene.traced().map(|row| cleaned(&row.name)).collect(),
        counters: header.counters.iter().map(|(name, n)| (cleaned(name), *n)).collect(),
        notes: header.notes.iter().map(note).collect(),
    }
}

fn machine(scene: &Scene) -> json::Machine {
    let row = scene.machine();
    let lost = |lost: &model::LostEvents| json::Lost {
        cpu: lost.cpu,
        kind: cleaned(&lost.kind),
        count: lost.count,
    };
    let missing = |(probe, reason): &(String, String)| json::Missing {
        probe: cleaned(probe),
        reason: cleaned(reason),
    };
    json::Machine {
        name: cleaned(&row.name),
        kernel: cleaned(&row.kernel),
        cpus: row.cpus.clone(),
        path: cleaned(&row.path),
        wall_ns: scene.wall_ns(),
        events: scene.events,
        lost: row.lost.iter().map(lost).collect(),
        missing: row.missing.iter().map(missing).collect(),
        doubtful: doubt::problems(scene),
        fault_estimate_ns: row.fault_estimate_ns,
        clock_error_ns: row.clock_error_ns,
        ended_early: row.ended_early.as_deref().map(cleaned),
    }
}

fn command(scene: &Scene) -> Option<json::Command> {
    let (scope, command) = (scene.command()?, scene.trace.tables.command.as_ref()?);
    Some(json::Command {
        words: command.words.iter().map(|word| cleaned(word)).collect(),
        pid: command.task.0,
        exit_code: command.exit_code,
        wall_ns: scope.end.since(scope.begin),
    })
}

fn profile(findings: &Findings<'_>) -> json::Profile {
    let timeline = &findings.scene.timeline;
    let (found, range) = (findings.profile(), findings.range());
    let four_way = |split: &FourWay| json::FourWay {
        wall_ns: split.total_ns(),
        cpu_only_ns: split.cpu_only_ns,
        both_ns: split.both_ns,
        disk_only_ns: split.disk_only_ns,
        neither_ns: split.neither_ns,
        unknown_ns: split.unknown_ns,
        unknown_and_disk_ns: split.unknown_and_disk_ns,
    };
    let disk = |(disk, split): (&Disk, &FourWay)| json::DiskProfile {
        disk: cleaned(&disk.name),
        requests: disk.requests,
        read_bytes: disk.bytes[0],
        written_bytes: disk.bytes[1],
        time: four_way(split),
    };
    let cpu = |(cpu, split): &(u32, FourWay)| json::CpuProfile { cpu: *cpu, time: four_way(split) };
    json::Profile {
        begin_ns: range.start.since(timeline.begin),
        end_ns: range.end.since(timeline.begin),
        machine: four_way(&found.machine),
        cpus: found.cpus.iter().map(cpu).collect(),
        disks: timeline.disks.iter().zip(&found.disks).map(disk).collect(),
    }
}

fn states(findings: &Findings<'_>) -> json::States {
    let (found, limit) = (findings.states(), findings.limit.unwrap_or(usize::MAX));
    let name = |named: &trace_analysis::states::Named| json::NameStates {
        name: cleaned(&named.name),
        processes: named.n_processes,
        time: state_table(&named.table),
    };
    let process = |(leader, table): &(TaskId, Table)| {
        let task = findings.scene.task(*leader);
        let (name, pid) = (cleaned(task.name()), task.pid.0);
        json::ProcessStates { name, pid, time: state_table(table) }
    };
    let mut processes: Vec<_> = found.processes.iter().map(process).collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.time.life_ns));
    processes.truncate(limit);
    json::States {
        tasks: found.tasks.len() as u64,
        total: state_table(&found.total),
        names: found.names.iter().take(limit).map(name).collect(),
        processes,
    }
}

fn state_table(table: &Table) -> json::StateTable {
    let [[rr, rw, rn], [wr, ww, wn], [nr, nw, nn]] = table.cells;
    json::StateTable {
        life_ns: table.total_ns(),
        cpu_running_disk_running_ns: rr,
        cpu_running_disk_waiting_ns: rw,
        cpu_running_disk_none_ns: rn,
        cpu_waiting_disk_running_ns: wr,
        cpu_waiting_disk_waiting_ns: ww,
        cpu_waiting_disk_none_ns: wn,
        cpu_none_disk_running_ns: nr,
        cpu_none_disk_waiting_ns: nw,
        cpu_none_disk_none_ns: nn,
        unknown_ns: table.unknown_ns,
    }
}

fn waits(findings: &Findings<'_>) -> json::Waits {
    let (found, limit) = (Waits::of(findings), findings.limit.unwrap_or(usize::MAX));
    let row = |row: &trace_analysis::waits::Row| json::NameLife {
        name: cleaned(&row.key.name),
        pid: row.key.pid.map(|pid| pid.0),
        kernel: row.key.kernel,
        life: life(&row.life),
    };
    let waker = |((cause, by), sum): &((Cause, Option<String>), Sum)| json::Waker {
        cause: cause.name().to_owned(),
        by: by.as_deref().map(cleaned),
        ns: sum.ns,
        count: sum.count,
    };
    json::Waits {
        tasks: findings.tasks.len() as u64,
        total: life(&found.total),
        names: found.names.iter().take(limit).map(row).collect(),
        processes: found.processes.iter().take(limit).map(row).collect(),
        details: found.details.iter().take(limit).map(wait_detail).collect(),
        wakers: found.wakers.iter().take(limit).map(waker).collect(),
    }
}

fn wait_detail((detail, sum): &(Detail, Sum)) -> json::WaitDetail {
    let lock = detail.lock.as_ref();
    let holder = lock.and_then(|lock| lock.holder.as_ref());
    json::WaitDetail {
        cause: detail.cause.name().to_owned(),
        function: cleaned(&detail.function),
        evidence: words::evidence(detail.evidence).to_owned(),
        lock: lock.map(|lock| format!("{:#x}", lock.address)),
        holder: holder.map(|holder| cleaned(&holder.name)),
        holder_syscall: holder.and_then(|holder| holder.syscall).map(syscall_label),
        ns: sum.ns,
        count: sum.count,
        longest_ns: sum.longest_ns,
    }
}

fn life(life: &Life) -> json::Life {
    let cause = |(cause, sum): (Cause, Sum)| json::Cause {
        cause: cause.name().to_owned(),
        group: cause.group().name().to_owned(),
        ns: sum.ns,
        count: sum.count,
        longest_ns: sum.longest_ns,
    };
    json::Life {
        life_ns: life.total_ns(),
        running_ns: life.running.ns,
        waiting_ns: life.waiting().ns,
        unknown_ns: life.unknown().ns,
        causes: life.by_time().into_iter().map(cause).collect(),
    }
}

fn kernel(findings: &Findings<'_>) -> json::Kernel {
    let (found, limit) = (Kernel::of(findings), findings.limit.unwrap_or(usize::MAX));
    let row = |row: &TimesRow| json::NameTime {
        name: cleaned(&row.key.name),
        pid: row.key.pid.map(|pid| pid.0),
        kernel_ns: row.times.kernel_ns(),
        classes: classes(&row.times),
    };
    let call = |row: &CallRow| json::Call {
        number: row.number,
        name: row.name.clone(),
        class: row.class.name().to_owned(),
        count: row.calls.count,
        failed: row.calls.failed,
        on_cpu_ns: row.on_cpu_ns,
        ns: row.calls.ns,
        longest_ns: row.calls.longest_ns,
    };
    let cpu = |(cpu, times): &(u32, Times)| json::CpuTime { cpu: *cpu, classes: classes(times) };
    json::Kernel {
        machine: classes(&found.time.total()),
        cpus: found.time.cpus.iter().map(cpu).collect(),
        tasks: classes(&found.tasks),
        names: found.names.iter().take(limit).map(row).collect(),
        processes: found.processes.iter().take(limit).map(row).collect(),
        calls: found.calls.iter().take(limit).map(call).collect(),
    }
}

fn classes(times: &Times) -> Vec<json::ClassTime> {
    let class = |(class, ns): (Class, u64)| json::ClassTime {
        class: class.name().to_owned(),
        group: class.group().name().to_owned(),
        ns,
    };
    times.classes().into_iter().map(class).collect()
}

fn processes(findings: &Findings<'_>) -> Vec<json::Process> {
    let begin = findings.scene.timeline.begin;
    let process = |process: &Process| json::Process {
        name: cleaned(&process.key.name),
        pid: process.key.pid.map_or(0, |pid| pid.0),
        parent_pid: process.parent.0,
        kernel: process.key.kernel,
        threads: process.threads,
        begin_ns: process.begin.since(begin),
        end_ns: process.end.since(begin),
        before: process.before,
        exited: process.exited,
        user_ns: process.user_ns(),
        kernel_ns: process.times.kernel_ns(),
        life: life(&process.life),
        calls: process.calls,
        requests: process.requests,
        request_bytes: process.request_bytes,
    };
    let limit = findings.limit.unwrap_or(usize::MAX);
    super::process::of(findings).iter().take(limit).map(process).collect()
}

fn critical_path(findings: &Findings<'_>, found: &Path) -> json::CriticalPath {
    let Path { path, summary } = found;
    let scene = findings.scene;
    let of = |id| task(scene.task(id));
    let category = |share: &trace_analysis::critical_path::Share<Category>| json::PathCategory {
        category: cleaned(&share.of.to_string()),
        ns: share.ns,
        share: self::share(share.ns, summary.wall_ns),
        segments: share.segments,
    };
    let name = |share: &trace_analysis::critical_path::NameShare| json::PathName {
        name: cleaned(&share.name),
        processes: share.processes,
        ns: share.ns,
        user_ns: share.user_ns,
        kernel_ns: share.kernel_ns,
        cpu_wait_ns: share.cpu_wait_ns,
        disk_ns: share.disk_ns,
        other_ns: share.other_ns,
    };
    let improvement = |gain: &trace_analysis::critical_path::Improvement| json::Improvement {
        what: cleaned(&gain.target.to_string()),
        on_path_ns: gain.on_path_ns,
        at_best_ns: gain.at_best_ns,
        factor: gain.factor(),
    };
    let sides = super::host_side::segment_reports(findings, found);
    let segment = |(segment, host_side): (&trace_analysis::critical_path::PathSegment, _)| {
        json::PathSegment {
            begin_ns: segment.begin.since(scene.timeline.begin),
            ns: segment.length_ns(),
            task: of(segment.task),
            doing: words::activity(&segment.activity),
            host_side,
        }
    };
    let limit = findings.limit.unwrap_or(usize::MAX);
    json::CriticalPath {
        task: of(path.scope.task),
        wall_ns: summary.wall_ns,
        categories: summary.categories.iter().map(category).collect(),
        names: summary.names.iter().map(name).collect(),
        host_side: super::host_side::path_report(findings, found),
        improvements: summary.improvements.iter().map(improvement).collect(),
        segments: path.segments.iter().zip(sides).map(segment).take(limit).collect(),
    }
}

fn gantt(findings: &Findings<'_>, chart: &Chart) -> json::Gantt {
    let subject = findings.subject();
    let timeline = subject.timeline;
    let view = Drawing { range: chart.range.clone(), columns: COLUMNS };
    let piece = |piece: trace_analysis::gantt::Piece| json::Piece {
        begin_ns: piece.begin.since(timeline.begin),
        end_ns: piece.end.since(timeline.begin),
        shares: piece
            .shares
            .iter()
            .map(|(activity, ns)| (super::gantt::activity(*activity).to_owned(), *ns))
            .collect(),
    };
    let lane = |lane: &trace_analysis::gantt::Lane| json::Lane {
        kind: match lane.of {
            LaneOf::Cpu(_) => "cpu".to_owned(),
            LaneOf::Vcpu(_) => "vcpu".to_owned(),
            LaneOf::Disk(_) => "disk".to_owned(),
            LaneOf::Task(_) => "task".to_owned(),
        },
        name: cleaned(&super::gantt::name(findings, lane)),
        depth: lane.depth,
        pieces: pieces(subject, lane, &view).into_iter().map(piece).collect(),
    };
    json::Gantt {
        begin_ns: chart.range.start.since(timeline.begin),
        end_ns: chart.range.end.since(timeline.begin),
        lanes: chart.lanes.lanes.iter().map(lane).collect(),
        idle_tasks: chart.lanes.idle_tasks,
        left_out: chart.lanes.left_out,
    }
}

fn task(task: &Task) -> json::Task {
    json::Task { name: cleaned(task.name()), tid: task.tid.0, pid: task.pid.0 }
}

pub(super) fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}

/// A part as a fraction, to six decimals.
pub(super) fn share(part: u64, all: u64) -> f64 {
    (part as f64 / all.max(1) as f64 * 1e6).round() / 1e6
}
