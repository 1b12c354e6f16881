//! Paths through drawn timelines (see `crate::test_timelines`), and through random ones.

use model::{HostNs, Interrupt, MachineId, Tid, TraceTables, TracedCommand, Vector};

use super::*;
use crate::span;
use crate::test_timelines::{By, DrawnTimeline, Random, at_random};
use crate::timeline::build::random::senseless;
use crate::timeline::{Cpu, State};

const TIMER: By = By::Interrupt(Interrupt::Soft(1));
const PACKET: By = By::Interrupt(Interrupt::Soft(3));

/// Per column whose it is (the name's first letter), and what: u user code, k kernel, r waits for a CPU, w is woken,
/// q in the disk's queue, D disk, i sleeps until an interrupt, L lock, d unknown disk, s stopped, e asleep when the trace ends, ? unknown.
fn letters(drawn: &DrawnTimeline, path: &CriticalPath) -> [String; 2] {
    let mut out = [String::new(), String::new()];
    for segment in &path.segments {
        let name = &drawn.timeline.tasks[segment.task.index()].names[0].1;
        let columns = usize::try_from(segment.length_ns() / 10).unwrap();
        out[0].push_str(&name[..1].repeat(columns));
        out[1].push_str(&match &segment.activity {
            PathActivity::Running { work, .. } => work
                .iter()
                .map(|(work, ns)| {
                    let letter = if *work == Work::User { "u" } else { "k" };
                    letter.repeat(usize::try_from(ns / 10).unwrap())
                })
                .collect::<String>(),
            PathActivity::CpuWait { .. } => "r".repeat(columns),
            PathActivity::WakingUp => "w".repeat(columns),
            PathActivity::DiskQueue { .. } => "q".repeat(columns),
            PathActivity::Disk { .. } => "D".repeat(columns),
            PathActivity::Interrupt(_) => "i".repeat(columns),
            PathActivity::Lock => "L".repeat(columns),
            PathActivity::UnknownDisk => "d".repeat(columns),
            PathActivity::Stopped => "s".repeat(columns),
            PathActivity::NotOver { .. } => "e".repeat(columns),
            PathActivity::UnknownSleep { .. } | PathActivity::Unknown => "?".repeat(columns),
        });
    }
    out
}

/// The path of the first task's life.
#[track_caller]
pub(super) fn check(lines: &[(&str, &str, &str)], wakers: &[(char, By)], who: &str, what: &str) {
    check_locks(Locks::ThroughHolder, lines, wakers, who, what);
}

#[track_caller]
fn check_locks(
    locks: Locks,
    lines: &[(&str, &str, &str)],
    wakers: &[(char, By)],
    who: &str,
    what: &str,
) {
    let drawn = DrawnTimeline::new(lines, wakers);
    let scope = Scope { locks, ..Scope::life(&drawn.timeline, drawn.id(lines[0].0)).unwrap() };
    let path = critical_path(&drawn.timeline, scope);
    assert!(path.covers_scope());
    assert!(leaves_only_to_wait(&drawn.timeline, &path));
    assert_eq!(letters(&drawn, &path), [who, what], "{lines:?}");
}

/// Whether the path is in the task that it explains wherever that task does not sleep or stop, but for its work between
/// waits that are one: a small part of them.
fn leaves_only_to_wait(timeline: &Timeline, path: &CriticalPath) -> bool {
    let Some(task) = timeline.tasks.get(path.scope.task.index()) else { return true };
    let apart = |it: &&[PathSegment]| it[0].task != path.scope.task;
    let elsewhere = path.segments.chunk_by(|a, b| a.task == b.task).filter(apart);
    let [mut worked_ns, mut slept_ns] = [0, 0];
    let mut other = false;
    for stretch in elsewhere {
        let range = stretch[0].begin..stretch[stretch.len() - 1].end;
        for (range, own) in span::segments(task, range) {
            let ns = range.end.since(range.start);
            match own.state {
                State::Asleep(_) | State::Stopped { .. } => slept_ns += ns,
                State::Running { .. } => worked_ns += ns,
                State::Runnable { .. } => {}
                State::Unknown => other = true,
            }
        }
    }
    !other && worked_ns * 10 <= slept_ns
}

#[test]
fn a_task_alone() {
    check(&[("make", "", "0k0..0?ss1")], &[], "mmmmmmmmmm", "uukrru?ssu");
    check(&[("make", "", "0aaaw.0")], &[('a', TIMER)], "mmmmmmm", "uiiiwru");
    check(&[("make", "", "0aaa0")], &[('a', PACKET)], "mmmmm", "uiiiu");
    check(&[("make", "", "0aaa0")], &[('a', By::Unknown)], "mmmmm", "u???u");
    check(&[("make", "", "0aaa0")], &[('a', By::UnknownIo)], "mmmmm", "udddu");
    check(&[("make", "", "0xxxx")], &[], "mmmmm", "ueeee");
}

#[test]
fn a_child_that_is_waited_for() {
    check(
        &[("make", "", "000aaaaaw.00"), ("cc1", "make", "   .1111    ")],
        &[('a', By::Task("cc1"))],
        "mmmcccccmmmm",
        "uuuruuuuwruu",
    );
    // Two: the one that ended last.
    check(
        &[("make", "", "000aaaaa0"), ("cc1", "make", "  .11    "), ("as", "make", "   ..111 ")],
        &[('a', By::Task("as"))],
        "mmmaaaaam",
        "uuurruuuu",
    );
    // Both: it waits for the other one again, and did nothing else.
    check(
        &[
            ("make", "", "0aaaaaaaaaa0bbbbbb0"),
            ("cc1", "make", " 0tttttttt0        "),
            ("as", "make", " .11111111111111111"),
        ],
        &[('a', By::Task("cc1")), ('b', By::Task("as")), ('t', TIMER)],
        "maaaaaaaaaaaaaaaaam",
        "uruuuuuuuuuuuuuuuuu",
    );
    // It made another in between, or worked.
    check(
        &[("make", "", "0aaaaa0bb0"), ("cc1", "make", " .1111    "), ("as", "make", " .....111 ")],
        &[('a', By::Task("cc1")), ('b', By::Task("as"))],
        "mcccccmaam",
        "uruuuuuuuu",
    );
    check(
        &[
            ("make", "", "0aaaaa000bb0"),
            ("cc1", "make", " .1111      "),
            ("as", "make", " .....11111 "),
        ],
        &[('a', By::Task("cc1")), ('b', By::Task("as"))],
        "mcccccmmmaam",
        "uruuuuuuuuuu",
    );
    // A timer of its own is another wait.
    check(
        &[("sh", "", "0aaaaatttt0"), ("cc1", "sh", " .1111     ")],
        &[('a', By::Task("cc1")), ('t', TIMER)],
        "scccccsssss",
        "uruuuuiiiiu",
    );
    // A child's child.
    check(
        &[("make", "", "0aaaaaaa0"), ("sh", "make", " .0bbbb0 "), ("cc1", "sh", "   .111  ")],
        &[('a', By::Task("sh")), ('b', By::Task("cc1"))],
        "mssccccsm",
        "ururuuuuu",
    );
}

#[test]
fn disks() {
    let lines: &[_] = &[("tar", "", "00aaaaaw0")];
    check(lines, &[('a', By::Disk("tar", 2, 4, 7))], "ttttttttt", "uuqqDDDwu");
    // Done before the wake-up began.
    check(lines, &[('a', By::Disk("tar", 2, 4, 6))], "ttttttttt", "uuqqDDwwu");
    // Woken for a request before it slept: what it did meanwhile did not hold it up.
    check(lines, &[('a', By::Disk("tar", 1, 2, 7))], "ttttttttt", "uuDDDDDwu");
    // Requested after it was woken: no.
    check(lines, &[('a', By::Disk("tar", 8, 8, 8))], "ttttttttt", "uu?????wu");
    // Requested by another.
    check(
        &[("tar", "", "00aaaaaa0"), ("kworker", "", "xx.11xxxx")],
        &[('a', By::Disk("kworker", 4, 5, 8))],
        "ttkkkkkkt",
        "uuruqDDDu",
    );
}

/// A loop device's request is a request to the disk below, which a worker makes.
#[test]
fn loop_devices() {
    let loops = By::Loop([("dd", 2, 8), ("kworker", 4, 7)]);
    check(
        &[("dd", "", "00aaaaaaw0"), ("kworker", "", "xxb1xxxxxx")],
        &[('a', loops), ('b', By::Task("dd"))],
        "ddkkkkkddd",
        "uu?uDDDwwu",
    );
}

/// Who sends SIGCONT is on the path for as long as the task is stopped.
#[test]
fn stops() {
    check(
        &[("make", "", "00aaaaa0"), ("sh", "", "11tttt11")],
        &[('a', By::Continue("sh")), ('t', TIMER)],
        "mmssssSm".to_lowercase().as_str(),
        "uuiiiiuu",
    );
}

/// A packet from another machine, and one from another task: what the CPU did before it received says which.
#[test]
fn packets() {
    let mut drawn =
        DrawnTimeline::new(&[("client", "", "0aaw0"), ("server", "", "11111")], &[('a', PACKET)]);
    let mut check = |works: [[Work; 2]; 2], who: &str, what: &str| {
        for (cpu, works) in drawn.timeline.cpus.iter_mut().zip(works) {
            let [two, three] = [2, 3].map(|row| cpu.slices.get(row).unwrap().task);
            cpu.slices.set(2, two, works[0]);
            cpu.slices.set(3, three, works[1]);
        }
        let life = Scope::life(&drawn.timeline, drawn.id("client")).unwrap();
        assert_eq!(letters(&drawn, &critical_path(&drawn.timeline, life)), [who, what]);
    };
    let idle = [Work::Idle; 2];
    let receives = Work::Interrupt(Interrupt::Soft(3));
    let device = Work::Interrupt(Interrupt::Device(9));
    let sends = Work::Syscall(44);
    check([idle, [sends, receives]], "csscc", "uukwu");
    check([idle, [device, receives]], "ccccc", "uiiwu");
    check([idle, [Work::User, receives]], "ccccc", "uiiwu");
    check([idle, [sends, sends]], "ccccc", "uiiwu");
    // The other CPU's is unattributed.
    check([[sends, receives], [sends, receives]], "csscc", "uukwu");
    let client = Some(drawn.id("client"));
    drawn.timeline.cpus[0].slices.set(2, client, sends);
    drawn.timeline.cpus[0].slices.set(3, client, receives);
    let life = Scope::life(&drawn.timeline, drawn.id("client")).unwrap();
    assert_eq!(letters(&drawn, &critical_path(&drawn.timeline, life)), ["ccccc", "uiiwu"]);
}

/// A packet that the sender's CPU handed to that of the task which waits for it.
#[test]
fn steered_packets() {
    let lines: &[_] = &[("client", "", "0aaaaw0"), ("server", "", "1111111")];
    let mut drawn = DrawnTimeline::new(lines, &[('a', PACKET)]);
    let third = Cpu { number: 2, ..drawn.timeline.cpus[1].clone() };
    drawn.timeline.cpus.push(third);
    // Of each CPU what it does from 20 to 60; the packet wakes the client at 50.
    let mut check = |works: [[Work; 4]; 3], is_found: bool| {
        for (cpu, works) in drawn.timeline.cpus.iter_mut().zip(works) {
            for (row, work) in (2..).zip(works) {
                let task = cpu.slices.get(row).unwrap().task;
                cpu.slices.set(row, task, work);
            }
        }
        let life = Scope::life(&drawn.timeline, drawn.id("client")).unwrap();
        let expected = match is_found {
            true => ["csssscc", "ukkukwu"],
            false => ["ccccccc", "uiiiiwu"],
        };
        let found = letters(&drawn, &critical_path(&drawn.timeline, life));
        assert_eq!(found, expected, "{works:?}");
    };
    let receives = Work::Interrupt(Interrupt::Soft(3));
    let call = Work::Interrupt(Interrupt::Vector(Vector::CallFunctionSingle));
    let device = Work::Interrupt(Interrupt::Device(9));
    let sends = Work::Syscall(44);
    let after = |work| [Work::Idle, Work::Idle, work, receives];
    let sender = [sends, receives, sends, sends];
    let user = [Work::User; 4];
    check([after(call), sender, user], true);
    check([after(Work::Idle), sender, user], true);
    // From a device, or in a task's time without a request by another CPU.
    check([after(device), sender, user], false);
    check([after(Work::User), sender, user], false);
    // Two may have sent it, or none did: what the CPU handed over came from a device.
    check([after(call), sender, sender], false);
    check([after(call), [device, receives, sends, sends], user], false);
    check([after(call), user, user], false);
}

#[test]
fn locks() {
    // A futex that names no holder may be a condition, or the end of a thread.
    let lines: &[_] = &[("first", "", "0aaaa0"), ("holder", "", "111111")];
    check_locks(Locks::Stay, lines, &[('a', By::Futex("holder"))], "fhhhhf", "uuuuuu");
    let lines: &[_] = &[("first", "", "0aaaa0"), ("holder", "", "111111")];
    let wakers: &[_] = &[('a', By::Unlock("holder"))];
    check(lines, wakers, "fhhhhf", "uuuuuu");
    check_locks(Locks::Stay, lines, wakers, "ffffff", "uLLLLu");
}

#[test]
fn contradictions() {
    // The waker did not run.
    let sleeps: &[_] = &[("first", "", "0aaa0"), ("other", "", "1xxxx")];
    check(sleeps, &[('a', By::Task("other"))], "fffff", "u???u");
    // Nothing is known of it, or nothing for a while.
    let unknown: &[_] = &[("first", "", "0aaa0"), ("other", "", "1????")];
    check(unknown, &[('a', By::Task("other"))], "fffff", "u???u");
    let lost: &[_] = &[("first", "", "0aaa0"), ("other", "", "111??")];
    check(lost, &[('a', By::Task("other"))], "fooof", "uuu?u");
    // Two woke each other.
    let circle: &[_] = &[("first", "", "0aa0"), ("other", "", "1bb1")];
    check(circle, &[('a', By::Task("other")), ('b', By::Task("first"))], "ffff", "u??u");
    // Its own parent.
    let orphan: &[_] = &[("first", "", "0aaa0"), ("child", "child", "  11 ")];
    check(orphan, &[('a', By::Task("child"))], "fcccf", "u?uuu");
}

#[test]
fn why_the_path_goes_on_elsewhere() {
    let drawn = DrawnTimeline::new(
        &[("make", "", "00aaaaaw0"), ("cc1", "make", "  .1bb11 ")],
        &[('a', By::Task("cc1")), ('b', By::Disk("cc1", 4, 5, 6))],
    );
    let scope = Scope::life(&drawn.timeline, drawn.id("make")).unwrap();
    let path = critical_path(&drawn.timeline, scope);
    assert_eq!(letters(&drawn, &path), ["mmcccccmm", "uuruqDuwu"]);
    let woken = Via::Woken { asleep_since: HostNs(20), syscall: None, lock: false };
    let vias = [
        Via::Itself,
        Via::Before,
        Via::Itself,
        Via::Requested,
        Via::Itself,
        Via::Completed,
        woken,
        Via::Itself,
    ];
    assert!(path.segments.iter().map(|segment| segment.via).eq(vias), "{path:?}");
}

#[test]
fn a_range_of_it() {
    let drawn = DrawnTimeline::new(
        &[("make", "", "000aaaaaw.00"), ("cc1", "make", "   .1111    ")],
        &[('a', By::Task("cc1"))],
    );
    let check = |task: &str, [begin, end]: [u64; 2], who: &str, what: &str| {
        let range = HostNs(begin)..HostNs(end);
        let life = Scope::life(&drawn.timeline, drawn.id(task)).unwrap();
        let path =
            critical_path(&drawn.timeline, Scope { begin: range.start, ..life }.within(range));
        assert_eq!(letters(&drawn, &path), [who, what], "{task}");
    };
    check("make", [50, 110], "cccmmm", "uuuwru");
    check("make", [50, 100], "cccmm", "uuuwr");
    // From before it was made: its parent's.
    check("cc1", [10, 60], "mmccc", "uuruu");
    check("make", [110, 110], "", "");
    check("make", [110, 50], "", "");
    // Not yet woken then.
    check("make", [10, 60], "mmmmm", "uu???");
}

#[test]
fn who_had_the_cpu() {
    let drawn = DrawnTimeline::new(&[("make", "", "0....0"), ("cc1", "", "?0???.")], &[]);
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let behind = vec![(None, 30), (Some(drawn.id("cc1")), 10)];
    assert_eq!(path.segments[1].activity, PathActivity::CpuWait { cpu: Some(0), behind });
}

#[test]
fn what_it_consists_of() {
    let drawn = DrawnTimeline::new(
        &[
            ("make", "", "00aaaaaaaw.0"),
            ("cc1", "make", "  .1bb111   "),
            ("idle", "", "000         "),
        ],
        &[('a', By::Task("cc1")), ('b', By::Disk("cc1", 4, 5, 6))],
    );
    let scope = Scope::life(&drawn.timeline, drawn.id("make")).unwrap();
    let path = critical_path(&drawn.timeline, scope);
    assert_eq!(letters(&drawn, &path), ["mmcccccccmmm", "uuruqDuuuwru"]);
    let summary = summary(&drawn.timeline, &path);
    let categories: Vec<_> = summary
        .categories
        .iter()
        .map(|share| (share.of.clone(), share.ns, share.segments))
        .collect();
    let vda = || "vda".to_owned();
    assert_eq!(
        categories,
        [
            (Category::User("cc1".to_owned()), 40, 2),
            (Category::User("make".to_owned()), 30, 2),
            (Category::CpuWait, 20, 2),
            (Category::WakingUp, 10, 1),
            (Category::DiskQueue(vda()), 10, 1),
            (Category::Disk(vda(), model::BlockOp::Read), 10, 1),
        ]
    );
    let names: Vec<_> =
        summary.names.iter().map(|it| (it.name.as_str(), it.ns, it.disk_ns)).collect();
    assert_eq!(names, [("cc1", 70, 20), ("make", 50, 0)]);
    let bounds: Vec<_> =
        summary.improvements.iter().map(|it| (it.on_path_ns, it.without_ns)).collect();
    assert_eq!(bounds, [(40, 80), (30, 90), (20, 100), (20, 100), (10, 110), (10, 110), (10, 110)]);
    assert_eq!(summary.improvements[0].factor(), Some(1.5));
}

/// Without its own work, `make` would not have been preempted there; without `cc1`, the CPU would have been free.
#[test]
fn waits_for_a_cpu_go_with_the_work_that_needs_it() {
    let drawn = DrawnTimeline::new(
        &[
            ("make", "", "00...0aaww...0"),
            ("cc1", "", "??000?????0..?"),
            ("as", "", "???????????00?"),
            ("true", "make", "      11      "),
        ],
        &[('a', By::Task("true"))],
    );
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let summary = summary(&drawn.timeline, &path);
    let improvements: Vec<_> = summary
        .improvements
        .iter()
        .map(|it| (it.target.to_string(), it.on_path_ns, it.cpu_waits_ns, it.without_ns))
        .collect();
    let [make, child] = ["make", "true"].map(|name| format!("own code of {name}"));
    assert_eq!(
        improvements,
        [
            (make, 40, 30, 70),
            ("waiting for a CPU".to_owned(), 60, 0, 80),
            ("own code of cc1".to_owned(), 0, 40, 100),
            ("own code of as".to_owned(), 0, 20, 120),
            (child, 20, 0, 120),
            ("being woken".to_owned(), 20, 0, 120),
        ]
    );
}

#[test]
fn time_outside_the_command() {
    let drawn = DrawnTimeline::new(
        &[("make", "", "00aaaaa0"), ("cc1", "make", "  0bb00 "), ("rustc", "", "111111xx")],
        &[('a', By::Task("cc1")), ('b', By::Task("rustc"))],
    );
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    assert_eq!(letters(&drawn, &path), ["mmcrrccm", "uuuuuuuu"]);
    assert_eq!(summary(&drawn.timeline, &path).outside, [("rustc".to_owned(), 20)]);
}

#[test]
fn programs_one_after_another_in_one_task() {
    let mut drawn = DrawnTimeline::new(&[("sh", "", "00000")], &[]);
    drawn.timeline.tasks[0].names.push((HostNs(20), "cc1".to_owned()));
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let summary = summary(&drawn.timeline, &path);
    let names: Vec<_> =
        summary.names.iter().map(|it| (it.name.as_str(), it.ns, it.processes)).collect();
    assert_eq!(names, [("cc1", 30, 1), ("sh", 20, 1)]);
}

#[test]
fn a_command_begins_when_it_is_released() {
    let mut drawn = DrawnTimeline::new(
        &[("make", "", "00000000"), ("vmscope", "", "xxx     "), ("make", "", "   00000")],
        &[],
    );
    for task in &mut drawn.timeline.tasks[1..] {
        task.tid = Tid(2);
    }
    let scope = |timeline: &Timeline, machine, task| {
        let command = TracedCommand {
            machine: MachineId(machine),
            task: Tid(task),
            words: vec![],
            before: false,
            exit_code: None,
        };
        let tables = TraceTables { command: Some(command), ..TraceTables::default() };
        Scope::command(&tables, timeline).map(|scope| (scope.task, scope.begin.0, scope.end.0))
    };
    assert_eq!(scope(&drawn.timeline, 0, 1), Some((TaskId(0), 0, 80)));
    assert_eq!(scope(&drawn.timeline, 0, 2), Some((TaskId(2), 30, 80)));
    assert_eq!(scope(&drawn.timeline, 0, 3), None);
    assert_eq!(scope(&drawn.timeline, 1, 2), None);
    // Another of the same id.
    drawn.timeline.tasks[2].begin = HostNs(31);
    assert_eq!(scope(&drawn.timeline, 0, 2), Some((TaskId(1), 0, 30)));
}

/// Sums hold and the walk ends, whatever woke whom, and whatever the events.
#[test]
fn random_timelines() {
    let random = &mut Random(5);
    let timelines: Vec<_> = (0..3000).map(|_| at_random(random)).chain(senseless()).collect();
    for timeline in timelines {
        let rows = u32::try_from(timeline.tasks.len()).unwrap();
        for task in (0..=rows).map(TaskId) {
            let locks = if random.below(2) == 0 { Locks::Stay } else { Locks::ThroughHolder };
            let length = timeline.end.since(timeline.begin) + 50;
            let [begin, end] = [0; 2].map(|_| HostNs(timeline.begin.0 + random.below(length)));
            let path = critical_path(&timeline, Scope { task, begin, end, locks });
            assert!(path.covers_scope(), "{path:?}");
            assert!(leaves_only_to_wait(&timeline, &path), "{path:?}");
            let summary = summary(&timeline, &path);
            assert!(summary.adds_up(), "{summary:?}");
            let is_within = |it: &Improvement| {
                it.on_path_ns + it.cpu_waits_ns <= summary.wall_ns
                    && it.without_ns <= summary.wall_ns
            };
            assert!(summary.improvements.iter().all(is_within));
            assert!(summary.outside_ns() <= summary.wall_ns);
        }
    }
}
