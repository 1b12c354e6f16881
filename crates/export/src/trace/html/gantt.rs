//! The Gantt chart's data: lanes of pieces for `timeline.js`, of bounded size whatever the trace's length.

use model::HostNs;
use serde_json::{Value, json};
use trace_analysis::critical_path::{CriticalPath, PathActivity, PathSegment};
use trace_analysis::findings::{Findings, OnHost, Path};
use trace_analysis::gantt::{Activity, Lane, LaneOf, Lanes, Piece, fold, lanes, pyramid};
use trace_analysis::kernel::{interrupt_name, syscall_label};
use trace_analysis::timeline::{State, Task, TaskId, Work};
use trace_analysis::waits::Classifier;

use super::super::Run;
use super::super::host_side::{stolen_by, vcpu};
use super::super::names::{Names, short, work_name};
use crate::page;
use crate::page::lanes::{Part, Words, push_piece};

/// Lanes of tasks at most, for each machine.
const MAX_TASKS: usize = 5_000;
/// Pieces at most, of all machines of a run.
const MAX_PIECES: usize = 300_000;
/// Stretches of the critical path that its lane shows as they are; of more it has as many pieces.
const MAX_PATH: usize = 50_000;
/// How deep a lane is shown at most: tables of a guest may nest without end.
const MAX_DEPTH: u32 = 100;

/// What can be done, in the order of legend and stack, with its style's name.
pub(super) const ACTIVITIES: [(Activity, &str, &str); 18] = [
    (Activity::User, "program's own code", "user"),
    (Activity::Kernel, "kernel for a task", "kernel"),
    (Activity::Interrupt, "interrupt", "interrupt"),
    (Activity::CpuWait, "waits for a CPU", "cpu-wait"),
    (Activity::DiskWait, "waits for a disk", "disk-wait"),
    (Activity::LockWait, "waits for a lock", "lock-wait"),
    (Activity::Asleep, "asleep for anything else", "asleep"),
    (Activity::Stopped, "stopped or traced", "stopped"),
    (Activity::Reads, "disk reads", "reads"),
    (Activity::Writes, "disk writes", "writes"),
    (Activity::ReadsAndWrites, "disk reads and writes", "reads-writes"),
    (Activity::Queued, "queued only", "queued"),
    (Activity::Ran, "vCPU runs", "ran"),
    (Activity::Stolen, "vCPU stolen", "preempted"),
    (Activity::AsleepInVmm, "vCPU asleep in the VMM", "vmm-waiting"),
    (Activity::Halted, "vCPU halted", "idle"),
    (Activity::Idle, "idle", "idle"),
    (Activity::Unknown, "unknown", "unknown"),
];

/// What pieces' words are made from.
struct Known<'a> {
    names: Names<'a>,
    classifier: &'a Classifier,
    on_host: Option<&'a OnHost<'a>>,
    /// The command's tasks, or all; ascending.
    who: &'a [TaskId],
}

/// The chart of `runs`, with what was found out about each machine of each.
pub(super) fn data(runs: &[Run<'_>], found: &[&[Findings<'_>]]) -> Value {
    let mut words = Words::default();
    let runs = runs.iter().zip(found);
    let runs: Vec<Value> = runs.map(|(run, found)| self::run(*run, found, &mut words)).collect();
    page::lanes::data(&ACTIVITIES.map(|(_, name, style)| (name, style)), runs, words)
}

fn run(run: Run<'_>, found: &[Findings<'_>], words: &mut Words) -> Value {
    let begin = run.begin();
    let most = MAX_PIECES / found.len().max(1);
    let machine = |findings| self::machine(findings, begin, most, words);
    let machines: Vec<Value> = found.iter().map(machine).collect();
    json!({ "label": short(run.label), "length": run.end().since(begin), "machines": machines })
}

fn machine(findings: &Findings<'_>, begin: HostNs, max_pieces: usize, words: &mut Words) -> Value {
    let names = Names::new(findings);
    let timeline = names.timeline;
    let range = timeline.begin..timeline.end;
    let subject = findings.subject();
    let all = lanes(subject, &range, MAX_TASKS);
    let pyramid = pyramid(subject, &all.lanes, &range, max_pieces);
    let finest = pyramid.levels.last();
    let known = Known {
        names,
        classifier: &findings.classifier,
        on_host: findings.host.as_ref(),
        who: &findings.tasks,
    };
    let lane = |(row, lane): (usize, &Lane)| {
        let pieces = finest.and_then(|level| level.pieces.get(row)).map_or(&[][..], Vec::as_slice);
        self::lane(lane, pieces, &known, begin, words)
    };
    let mut lanes: Vec<Value> = all.lanes.iter().enumerate().map(lane).collect();
    if let Some(Path { path, .. }) = findings.path() {
        lanes.insert(0, self::path(path, names, begin, words));
    }
    let resolution_ns = finest.filter(|_| !pyramid.exact).map(|level| level.resolution_ns);
    json!({
        "name": names.machine_name(),
        "begin": timeline.begin.since(begin),
        "end": timeline.end.since(begin),
        "about": about_machine(&all, resolution_ns),
        "lanes": lanes,
    })
}

/// What its lanes leave out.
fn about_machine(all: &Lanes, resolution_ns: Option<u64>) -> String {
    let left_out = (0 < all.left_out).then(|| format!("{} more were left out", all.left_out));
    let merged = resolution_ns.map(|ns| format!("pieces below {} are merged", table::length(ns)));
    let idle = format!("{} tasks never had a CPU and have no lane", all.idle_tasks);
    [Some(idle), left_out, merged].into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn lane(
    lane: &Lane,
    pieces: &[Piece],
    known: &Known<'_>,
    begin: HostNs,
    words: &mut Words,
) -> Value {
    let from = pieces.first().map_or(lane.life.start, |piece| piece.begin);
    let mut row = Vec::with_capacity(pieces.len() * 3);
    for piece in pieces {
        let word = match piece.shares[..] {
            [(activity, _)] => known.word(lane.of, piece, activity),
            _ => None,
        };
        write_piece(piece, word.and_then(|word| words.id(word)), &mut row);
    }
    let (kind, name, about) = known.title(lane.of);
    json!({
        "kind": kind,
        "name": name,
        "about": about,
        "depth": lane.depth.min(MAX_DEPTH),
        "line": lane.line,
        "requested": known.is_requested(lane.of),
        "from": from.since(begin),
        "pieces": row,
    })
}

/// Appends a piece's numbers; the word is of one that is exactly this.
fn write_piece(piece: &Piece, word: Option<usize>, row: &mut Vec<Value>) {
    let part = |(activity, ns): &(Activity, u64)| (index(*activity), *ns, word);
    let parts: Vec<Part> = piece.shares.iter().map(part).collect();
    push_piece(row, piece.end.since(piece.begin), &parts);
}

/// The critical path as a lane; one that is too long in mixtures.
fn path(path: &CriticalPath, names: Names<'_>, begin: HostNs, words: &mut Words) -> Value {
    let mut segments = path.segments.iter();
    let length_ns: u64 = segments.clone().map(PathSegment::length_ns).sum();
    let resolution_ns = match path.segments.len() <= MAX_PATH {
        true => 0,
        false => length_ns.div_ceil(MAX_PATH as u64 / 2),
    };
    let activities = segments.clone().map(|it| (it.begin..it.end, path_activity(&it.activity)));
    let mut row = Vec::new();
    for piece in fold(activities, resolution_ns) {
        let first = segments.next();
        for _ in 1..piece.segments {
            segments.next();
        }
        let word = first
            .filter(|_| piece.segments == 1)
            .and_then(|it| words.id(format!("{}: {}", names.task(it.task), path_word(it, names))));
        write_piece(&piece, word, &mut row);
    }
    let from = path.segments.first().map_or(names.timeline.begin, |segment| segment.begin);
    json!({
        "kind": "path",
        "name": "critical path",
        "about": "what the command's length is made of",
        "depth": 0,
        "from": from.since(begin),
        "pieces": row,
    })
}

fn path_activity(activity: &PathActivity) -> Activity {
    match activity {
        PathActivity::Running { work, .. } => {
            match work.iter().max_by_key(|(_, ns)| *ns).map(|(work, _)| *work) {
                Some(Work::User) => Activity::User,
                Some(Work::Vcpu) => Activity::Ran,
                Some(Work::Interrupt(_)) => Activity::Interrupt,
                Some(Work::Unknown | Work::Idle) | None => Activity::Unknown,
                Some(Work::Syscall(_) | Work::Fault { .. } | Work::KernelTask) => Activity::Kernel,
            }
        }
        PathActivity::CpuWait { .. } | PathActivity::WakingUp => Activity::CpuWait,
        PathActivity::DiskQueue { .. } | PathActivity::Disk { .. } | PathActivity::UnknownDisk => {
            Activity::DiskWait
        }
        PathActivity::Lock => Activity::LockWait,
        PathActivity::Interrupt(_) | PathActivity::NotOver { .. } => Activity::Asleep,
        PathActivity::Stopped => Activity::Stopped,
        PathActivity::UnknownSleep { .. } | PathActivity::Unknown => Activity::Unknown,
    }
}

fn path_word(segment: &PathSegment, names: Names<'_>) -> String {
    let disk = |row: u32| {
        let disk = names.timeline.disks.get(row as usize);
        disk.map_or_else(|| "disk".to_owned(), |disk| short(&disk.name))
    };
    match &segment.activity {
        PathActivity::Running { work, .. } => match work.iter().max_by_key(|(_, ns)| *ns) {
            Some((work, _)) => format!("runs, mostly {}", work_name(*work)),
            None => "runs".to_owned(),
        },
        PathActivity::CpuWait { behind, .. } => match behind.first() {
            Some((Some(task), _)) => format!("waits for a CPU behind {}", names.task(*task)),
            _ => "waits for a CPU".to_owned(),
        },
        PathActivity::WakingUp => "being woken".to_owned(),
        PathActivity::DiskQueue { disk: row, .. } => format!("queue of {}", disk(*row)),
        PathActivity::Disk { disk: row, .. } => format!("request to {}", disk(*row)),
        PathActivity::UnknownDisk => "unknown request to a disk".to_owned(),
        PathActivity::Interrupt(interrupt) => format!("until {}", interrupt_name(*interrupt)),
        PathActivity::Lock => "lock".to_owned(),
        PathActivity::Stopped => "stopped".to_owned(),
        PathActivity::NotOver { .. } => "asleep, not over".to_owned(),
        PathActivity::UnknownSleep { .. } | PathActivity::Unknown => "unknown".to_owned(),
    }
}

fn about(task: &Task, names: Names<'_>) -> String {
    let what = if task.kernel { "the kernel's own" } else { "process" };
    let made_by = match task.parent {
        Some(parent) => format!(", made by {}", names.task(parent)),
        None if task.parent_pid.0 != 0 => format!(", parent process {}", task.parent_pid.0),
        None => String::new(),
    };
    let before: Vec<String> = match task.names.split_last() {
        Some((_, before)) if !before.is_empty() => {
            before.iter().rev().take(3).rev().map(|(_, name)| short(name)).collect()
        }
        _ => Vec::new(),
    };
    let before =
        if before.is_empty() { String::new() } else { format!(", before: {}", before.join(", ")) };
    format!("thread {} of {what} {}{made_by}{before}", task.tid.0, task.pid.0)
}

impl Known<'_> {
    /// Kind, name and what else there is to say about a lane.
    fn title(&self, of: LaneOf) -> (&'static str, String, String) {
        let names = self.names;
        let timeline = names.timeline;
        match of {
            LaneOf::Cpu(row) => {
                let number = timeline.cpus.get(row as usize).map_or(row, |cpu| cpu.number);
                ("cpu", format!("cpu {number}"), String::new())
            }
            LaneOf::Vcpu(row) => {
                let (name, about) = self.on_host.map(|host| vcpu(host, row)).unwrap_or_default();
                ("vcpu", name, about)
            }
            LaneOf::Disk(row) => match timeline.disks.get(row as usize) {
                Some(disk) => {
                    let [read, written] = disk.bytes;
                    let about =
                        format!("{} requests, {read} bytes read, {written} written", disk.requests);
                    ("disk", short(&disk.name), about)
                }
                None => ("disk", "[unknown]".to_owned(), String::new()),
            },
            LaneOf::Task(id) => {
                let about = timeline.tasks.get(id.index()).map(|task| about(task, names));
                ("task", names.task(id), about.unwrap_or_default())
            }
        }
    }

    /// Whether a lane is about the requested tasks: CPUs, disks, and the command's tasks.
    fn is_requested(&self, of: LaneOf) -> bool {
        match of {
            LaneOf::Task(id) => self.who.binary_search(&id).is_ok(),
            LaneOf::Cpu(_) | LaneOf::Vcpu(_) | LaneOf::Disk(_) => true,
        }
    }

    /// What to add to a piece's activity: the cause of a wait, the system call, who has the CPU.
    fn word(&self, of: LaneOf, piece: &Piece, activity: Activity) -> Option<String> {
        match of {
            LaneOf::Task(id) => match activity {
                Activity::User => None,
                Activity::Kernel | Activity::Interrupt => {
                    Some(work_name(self.executed(id, piece.begin)?))
                }
                _ => self.cause(id, piece.begin),
            },
            LaneOf::Cpu(row) => self.on_cpu(row, piece),
            LaneOf::Vcpu(_) => {
                let host = self.on_host.filter(|_| activity == Activity::Stolen)?;
                Some(stolen_by(host, piece.task))
            }
            LaneOf::Disk(_) => None,
        }
    }

    fn on_cpu(&self, row: u32, piece: &Piece) -> Option<String> {
        let cpu = self.names.timeline.cpus.get(row as usize)?;
        let slice = cpu.slices.at(piece.begin)?;
        let who = piece.task.map(|id| self.names.task(id));
        let work = match slice.work {
            Work::Idle | Work::User | Work::KernelTask | Work::Unknown => None,
            work => Some(work_name(work)),
        };
        let parts: Vec<String> = who.into_iter().chain(work).collect();
        (!parts.is_empty()).then(|| parts.join(": "))
    }

    /// What is executed for a task that has a CPU.
    fn executed(&self, id: TaskId, at: HostNs) -> Option<Work> {
        let timeline = self.names.timeline;
        let State::Running { cpu } = timeline.tasks.get(id.index())?.segments.at(at)?.state else {
            return None;
        };
        let row = timeline.cpus.binary_search_by_key(&cpu, |cpu| cpu.number).ok()?;
        Some(timeline.cpus[row].slices.at(at)?.work)
    }

    /// What a task waits for at an instant, and who ended that: `child in wait4, woken by cc1 (812)`.
    fn cause(&self, id: TaskId, at: HostNs) -> Option<String> {
        let timeline = self.names.timeline;
        let task = timeline.tasks.get(id.index())?;
        let segment = task.segments.at(at)?;
        let mut text = self.classifier.wait(timeline, task, &segment)?.cause.name().to_owned();
        if let State::Asleep(sleep) = &segment.state {
            let call = sleep.syscall.map(|call| format!(" in {}", syscall_label(call)));
            let lock = sleep.lock.as_ref().map(|wait| format!(", {}", self.names.lock(wait)));
            let woken = sleep.woken_by.map(|waker| self.names.woken_by(waker.by));
            let woken = woken.map(|by| format!(", woken by {by}"));
            text.extend([call, lock, woken].into_iter().flatten());
        }
        Some(text)
    }
}

fn index(activity: Activity) -> usize {
    let place = ACTIVITIES.iter().position(|(known, ..)| *known == activity);
    place.expect("ACTIVITIES has every one, which a test checks")
}

#[cfg(test)]
mod test {
    use model::TraceTables;
    use trace_analysis::critical_path::{Locks, Scope, Via};
    use trace_analysis::timeline::Timeline;

    use super::*;

    #[test]
    fn every_activity_has_its_place() {
        for (row, (activity, ..)) in ACTIVITIES.into_iter().enumerate() {
            assert_eq!(index(activity), row);
        }
    }

    /// Waits of 1 and 2 ns, and at the end one that is long enough to be seen.
    #[test]
    fn a_long_path_is_shown_to_its_end() {
        let (timeline, tables) = (Timeline::default(), TraceTables::default());
        let names = Names { tables: &tables, timeline: &timeline };
        let check = |n: usize, at_most: usize| {
            let mut at = 0;
            let segments = (0..n).map(|row| {
                let (begin, last) = (HostNs(at), row + 1 == n);
                at += if last { n as u64 } else { 1 + row as u64 % 2 };
                let activity =
                    if row % 2 == 0 { PathActivity::Lock } else { PathActivity::WakingUp };
                PathSegment { begin, end: HostNs(at), task: TaskId(0), via: Via::Itself, activity }
            });
            let segments: Vec<_> = segments.collect();
            let scope =
                Scope { task: TaskId(0), begin: HostNs(0), end: HostNs(at), locks: Locks::Stay };
            let mut words = Words::default();
            let lane = path(&CriticalPath { scope, segments }, names, HostNs(0), &mut words);
            let row: Vec<i64> =
                lane["pieces"].as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect();
            let (mut sum, mut pieces, mut rest) = (0, 0, row.as_slice());
            while let [length, kind, after @ ..] = rest {
                (sum, pieces) = (sum + length, pieces + 1);
                rest = &after[usize::try_from((-3 * kind).max(1)).unwrap()..];
            }
            assert_eq!(u64::try_from(sum).unwrap(), at);
            assert!(pieces <= at_most, "{pieces} pieces of {n}");
            // The last piece is exact.
            assert!(0 <= row[row.len() - 1] && row[row.len() - 3] == i64::try_from(n).unwrap());
        };
        check(3, 3);
        check(MAX_PATH, MAX_PATH);
        check(3 * MAX_PATH, MAX_PATH + 1);
    }
}
