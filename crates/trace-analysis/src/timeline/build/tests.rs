//! Each rule of the builder, on a trace made for it.

use model::{
    HostNs, Interrupt, LockKind, MachineId, Pid, PrevState, Tid, TraceEventKind, TracedCommand,
    Vector,
};

use super::testing::{
    Scene, done, enter, exec, exit, fault, fault_end, fork, irq, irq_end, leave, lock, lock_end,
    request, switch, wakeup, waking,
};
use crate::timeline::{Calls, Problem, TaskId};

const DISK: PrevState = PrevState::Uninterruptible { io: true };
const TIMER: Interrupt = Interrupt::Vector(Vector::LocalTimer);
const BLOCK: Interrupt = Interrupt::Soft(4);
const LINE: Interrupt = Interrupt::Device(9);

#[test]
fn a_sleeper_is_woken_waits_and_runs() {
    let scene = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (20, 0, enter(1, 7)),
        (25, 0, switch(1, PrevState::Sleep, 0)),
        (30, 1, enter(5, 1)),
        (40, 1, waking(1, 5)),
        (42, 1, wakeup(1)),
        (50, 0, switch(0, PrevState::Runnable, 1)),
        (60, 0, leave(1, 7)),
        (70, 0, switch(1, PrevState::Runnable, 0)),
    ])
    .task(5, "other");
    scene.check_task(
        1,
        "0-10 preempted, 10-25 cpu0, 25-42 asleep stack7 call7 by=task5@40, 42-50 queued, 50-70 cpu0, \
         70-100 preempted",
    );
    scene.check_cpu(
        0,
        "0-10 idle, 10-20 1:user, 20-25 1:call7, 25-50 idle, 50-60 1:call7, 60-70 1:user, 70-100 idle",
    );
    scene.check_cpu(1, "0-30 5:user, 30-100 5:call1");
    scene.check_problems(&[]);
    let calls = scene.build().calls;
    let of = |count, ns| Calls { count, failed: 0, ns, longest_ns: ns };
    assert_eq!(calls[&(TaskId(0), 7)], of(1, 40));
    assert_eq!(calls[&(TaskId(2), 1)], of(1, 70));
}

/// Woken at 20, it begins its program at 30, and runs another one at 60.
#[test]
fn a_command_is_another_task_once_it_is_released() {
    let mut scene = Scene::new(&[
        (20, 1, wakeup(5)),
        (22, 0, switch(0, PrevState::Runnable, 5)),
        (25, 0, leave(5, 0)),
        (27, 0, enter(5, 59)),
        (30, 0, exec(5, "sh")),
        (35, 0, leave(5, 59)),
        (60, 0, exec(5, "make")),
    ])
    .task(5, "vmscope");
    let command = TracedCommand {
        machine: MachineId::HOST,
        task: Tid(5),
        words: vec![],
        before: false,
        exit_code: None,
    };
    scene.tables.command = Some(command);
    scene.check_task(5, "0-20 asleep call0 by=unknown@20, 20-22 queued, 22-30 cpu0 | 30-100 cpu0");
    scene.check_cpu(
        0,
        "0-22 idle, 22-25 5:call0, 25-27 5:user, 27-30 5:call59, 30-35 5:call59, 35-100 5:user",
    );
    scene.check_problems(&[]);
    let timeline = scene.build();
    let names = |row: usize| timeline.tasks[row].names.iter().map(|(_, name)| name.as_str());
    assert!(names(2).eq(["vmscope"]) && names(3).eq(["sh", "make"]), "{:?}", timeline.tasks);
    let calls = [(TaskId(3), 59, 1, 5)].map(|(task, number, count, ns)| {
        ((task, number), Calls { count, failed: 0, ns, longest_ns: ns })
    });
    assert!(timeline.calls.into_iter().eq(calls));
}

#[test]
fn a_wake_up_that_races_with_the_sleep() {
    // Both before the switch: it goes on running, and its next sleep is another matter.
    let before = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (20, 1, waking(1, 0)),
        (21, 1, wakeup(1)),
        (30, 0, switch(1, PrevState::Sleep, 0)),
    ]);
    before.check_task(1, "0-10 preempted, 10-30 cpu0, 30-100 asleep stack7");
    // The waker is seen before the sleep, which ends as soon as the task is off its CPU.
    let amid = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (29, 1, waking(1, 0)),
        (30, 0, switch(1, PrevState::Sleep, 0)),
        (33, 1, wakeup(1)),
        (40, 0, switch(0, PrevState::Runnable, 1)),
    ]);
    amid.check_task(
        1,
        "0-10 preempted, 10-30 cpu0, 30-33 asleep stack7 by=unknown@30, 33-40 queued, 40-100 cpu0",
    );
    // Waking alone: it waits from then on.
    let alone = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (30, 0, switch(1, PrevState::Sleep, 0)),
        (33, 1, waking(1, 0)),
        (40, 0, switch(0, PrevState::Runnable, 1)),
    ]);
    alone.check_task(
        1,
        "0-10 preempted, 10-30 cpu0, 30-33 asleep stack7 by=unknown@33, 33-40 queued, 40-100 cpu0",
    );
}

#[test]
fn what_the_first_event_tells_of_the_time_before() {
    let mut scene = Scene::new(&[
        (10, 0, irq(TIMER)),
        (12, 0, irq_end(TIMER)),
        (20, 0, leave(1, 3)),
        (30, 1, wakeup(5)),
        (40, 1, switch(0, PrevState::Runnable, 5)),
        (50, 1, leave(5, 4)),
    ])
    .task(5, "sleeper")
    .task(6, "silent");
    scene.check_task(1, "0-100 cpu0");
    scene.check_cpu(0, "0-10 1:call3, 10-12 1:Vector(LocalTimer), 12-20 1:call3, 20-100 1:user");
    scene.check_task(5, "0-30 asleep call4 by=unknown@30, 30-40 queued, 40-100 cpu1");
    scene.check_cpu(1, "0-40 idle, 40-50 5:call4, 50-100 5:user");
    scene.check_task(6, "0-100 ?");
    // The tables may know.
    scene.tables.tasks[3].asleep_in = Some("poll".to_owned());
    scene.check_task(6, "0-100 asleep");
    // It may have been woken after they were read.
    let mut ran = Scene::new(&[(30, 0, switch(0, PrevState::Runnable, 6))]).task(6, "runs");
    ran.tables.tasks[2].asleep_in = Some("poll".to_owned());
    ran.check_task(6, "0-30 preempted, 30-100 cpu0");
    ran.check_problems(&[]);
    // Not when an event may be missing.
    let lost = model::LostEvents { cpu: 0, kind: Some(model::TraceEventTag::Switch), count: 2 };
    let scene = scene.machine(|machine| machine.lost.push(lost));
    scene.check_task(1, "0-20 ?, 20-100 cpu0");
    scene.check_cpu(0, "0-10 ?, 10-12 Vector(LocalTimer), 12-20 ?, 20-100 1:user");
    scene.check_task(5, "0-30 ?, 30-40 queued, 40-100 cpu1");
    scene.check_problems(&[(Problem::LostEvents, 2)]);
}

#[test]
fn a_process_is_made_runs_a_program_and_ends() {
    let scene = Scene::new(&[
        (10, 0, enter(1, 57)),
        (12, 0, fork(1, 9)),
        (13, 0, wakeup(9)),
        (15, 0, leave(1, 57)),
        (20, 0, switch(1, PrevState::Runnable, 9)),
        (22, 0, leave(9, 57)),
        (25, 0, enter(9, 59)),
        (30, 0, exec(9, "cc1")),
        (35, 0, leave(9, 59)),
        (40, 0, enter(9, 231)),
        (44, 0, exit(9)),
        (50, 0, switch(9, PrevState::Dead, 1)),
        (60, 0, enter(1, 57)),
        (62, 0, fork(1, 9)),
    ]);
    scene.check_task(9, "12-20 queued, 20-50 cpu0 | 62-100 queued");
    scene.check_cpu(
        0,
        "0-10 1:user, 10-15 1:call57, 15-20 1:user, 20-22 9:call57, 22-25 9:user, 25-35 9:call59, \
         35-40 9:user, 40-50 9:call231, 50-60 1:user, 60-100 1:call57",
    );
    scene.check_problems(&[]);
    let timeline = scene.build();
    let [first, second] = [&timeline.tasks[2], &timeline.tasks[3]];
    let names: Vec<_> = first.names.iter().map(|(time, name)| (time.0, name.as_str())).collect();
    assert_eq!(names, [(12, "init"), (30, "cc1")]);
    assert_eq!((first.parent, first.parent_pid), (Some(TaskId(0)), Pid(1)));
    assert_eq!([first.exited, first.before, second.exited], [true, false, false]);
}

#[test]
fn the_kernel_s_own_tasks_and_programs_they_start() {
    let scene = Scene::new(&[
        (0, 0, switch(0, PrevState::Runnable, 2)),
        (10, 0, fork(2, 8)),
        (20, 0, switch(2, PrevState::Sleep, 8)),
        (30, 0, exec(8, "modprobe")),
        (40, 0, leave(8, 59)),
    ]);
    scene.check_cpu(0, "0-20 2:kernel, 20-30 8:kernel, 30-40 8:call59, 40-100 8:user");
    let kernel: Vec<bool> = scene.build().tasks.iter().map(|task| task.kernel).collect();
    assert_eq!(kernel, [false, true, false]);
}

/// vhost's thread, made in the VMM's `ioctl`.
#[test]
fn what_works_for_a_program_in_the_kernel_is_in_no_call() {
    let worker = TraceEventKind::Fork { parent: Tid(1), child: Tid(9), pid: Pid(1), kernel: true };
    let scene = Scene::new(&[
        (0, 0, enter(1, 16)),
        (10, 0, worker),
        (20, 0, switch(1, PrevState::Runnable, 9)),
        (30, 0, switch(9, PrevState::Sleep, 1)),
        (40, 0, leave(1, 16)),
    ]);
    scene.check_cpu(0, "0-20 1:call16, 20-30 9:kernel, 30-40 1:call16, 40-100 1:user");
    scene.check_task(9, "10-20 queued, 20-30 cpu0, 30-100 asleep stack7");
}

#[test]
fn a_thread_that_runs_a_program_takes_its_process_s_id() {
    let scene = Scene::new(&[
        (10, 0, enter(1, 56)),
        (12, 0, TraceEventKind::Fork { parent: Tid(1), child: Tid(5), pid: Pid(1), kernel: false }),
        (20, 0, switch(1, PrevState::Runnable, 5)),
        (25, 0, exec(5, "")),
        (25, 0, switch(5, PrevState::Sleep, 1)),
        (30, 0, exit(1)),
        (40, 0, switch(1, PrevState::Dead, 5)),
        (50, 0, exec(1, "sh")),
        (60, 0, switch(1, PrevState::Runnable, 0)),
        (70, 0, wakeup(5)),
    ]);
    // The task that was thread 5 is thread 1 now; it slept without a wake-up, which is a problem of this trace.
    scene.check_task(1, "0-20 cpu0, 20-25 preempted, 25-40 cpu0 | 12-20 queued, 20-25 cpu0, 25-40 ?, 40-60 cpu0, 60-100 preempted");
    scene.check_problems(&[(Problem::UnseenTask, 2)]);
}

#[test]
fn the_innermost_counts() {
    let scene = Scene::new(&[
        (0, 0, switch(0, PrevState::Runnable, 1)),
        (0, 0, leave(1, 2)),
        (10, 0, enter(1, 0)),
        (20, 0, fault(false)),
        (30, 0, irq(BLOCK)),
        (35, 0, irq(LINE)),
        (40, 0, irq_end(LINE)),
        (45, 0, irq_end(BLOCK)),
        (50, 0, fault_end()),
        (60, 0, switch(1, PrevState::Runnable, 0)),
        (65, 0, irq(TIMER)),
        (70, 0, irq_end(TIMER)),
        (80, 0, switch(0, PrevState::Runnable, 1)),
        (90, 0, leave(1, 0)),
    ]);
    scene.check_cpu(
        0,
        "0-10 1:user, 10-20 1:call0, 20-30 1:fault, 30-35 1:Soft(4), 35-40 1:Device(9), \
         40-45 1:Soft(4), 45-50 1:fault, 50-60 1:call0, 60-65 idle, 65-70 Vector(LocalTimer), \
         70-80 idle, 80-90 1:call0, 90-100 1:user",
    );
}

#[test]
fn faults_whose_ends_are_seen_last_over_sleeps() {
    let scene = Scene::new(&[
        (0, 0, leave(1, 2)),
        (10, 0, fault(true)),
        (20, 0, switch(1, DISK, 0)),
        (30, 0, waking(1, 0)),
        (30, 0, wakeup(1)),
        (40, 0, switch(0, PrevState::Runnable, 1)),
        (50, 0, fault_end()),
    ]);
    scene.check_cpu(0, "0-10 1:user, 10-20 1:fault, 20-40 idle, 40-50 1:fault, 50-100 1:user");
    let asleep = "20-30 asleep stack7 deep io fault by=unknown@30";
    scene.check_task(1, &format!("0-20 cpu0, {asleep}, 30-40 queued, 40-100 cpu0"));
}

#[test]
fn faults_whose_ends_are_missed_do_not_last() {
    const MS: u64 = 1_000_000;
    let check = |events: &[(u64, TraceEventKind)], cpu: &str, missed| {
        let seen = [(0, leave(1, 2)), (1, fault(true)), (2, fault_end())];
        let events = seen.iter().chain(events);
        let events: Vec<_> = events.map(|(ms, what)| (ms * MS, 0, *what)).collect();
        let scene = Scene::new(&events).machine(|machine| machine.end = HostNs(30 * MS));
        let all = format!("0-1M 1:user, 1M-2M 1:fault, 2M-3M 1:user, {cpu}");
        scene.check_cpu(0, &all.replace('M', "000000"));
        let problems = (0 < missed).then_some((Problem::EndWithoutBegin, missed));
        scene.check_problems(problems.as_slice());
    };
    // Only its own time with a CPU counts, however it is cut.
    check(
        &[
            (3, fault(true)),
            (4, irq(TIMER)),
            (6, irq_end(TIMER)),
            (7, switch(1, PrevState::Runnable, 0)),
            (9, switch(0, PrevState::Runnable, 1)),
            (20, enter(1, 7)),
        ],
        "3M-4M 1:fault, 4M-6M 1:Vector(LocalTimer), 6M-7M 1:fault, 7M-9M idle, 9M-17M 1:fault, 17M-20M 1:user, \
         20M-30M 1:call7",
        1,
    );
    // One that sleeps goes on.
    check(
        &[
            (3, fault(true)),
            (11, switch(1, DISK, 0)),
            (12, wakeup(1)),
            (13, switch(0, PrevState::Runnable, 1)),
            (22, fault_end()),
        ],
        "3M-11M 1:fault, 11M-13M idle, 13M-22M 1:fault, 22M-30M 1:user",
        0,
    );
    // In a system call the rest is the call's.
    check(
        &[(3, enter(1, 0)), (4, fault(false)), (20, leave(1, 0))],
        "3M-4M 1:call0, 4M-14M 1:fault, 14M-20M 1:call0, 20M-30M 1:user",
        1,
    );
    // The next fault of the program's code shows it, too.
    check(
        &[(3, fault(true)), (5, fault(true)), (6, fault_end())],
        "3M-6M 1:fault, 6M-30M 1:user",
        1,
    );
}

#[test]
fn faults_whose_ends_are_not_seen_are_estimated() {
    let scene = |estimate: Option<u64>| {
        Scene::new(&[
            (0, 0, leave(1, 2)),
            (10, 0, fault(true)),
            (30, 0, fault(true)),
            (32, 0, irq(TIMER)),
            (33, 0, irq_end(TIMER)),
            (40, 0, fault(true)),
            (43, 0, switch(1, DISK, 0)),
        ])
        .machine(move |machine| machine.fault_estimate_ns = estimate)
    };
    scene(Some(5)).check_cpu(
        0,
        "0-10 1:user, 10-15 1:fault~, 15-30 1:user, 30-32 1:fault~, 32-33 1:Vector(LocalTimer), \
         33-40 1:user, 40-43 1:fault~, 43-100 idle",
    );
    // Asleep in the fault, although its estimated time is over.
    scene(Some(1)).check_task(1, "0-43 cpu0, 43-100 asleep stack7 deep io fault");
    let none = "0-32 1:user, 32-33 1:Vector(LocalTimer), 33-43 1:user, 43-100 idle";
    scene(None).check_cpu(0, none);
}

#[test]
fn a_request_wakes_who_waits_for_it() {
    let scene = Scene::new(&[
        (0, 0, switch(0, PrevState::Runnable, 1)),
        (5, 0, enter(1, 0)),
        (10, 0, TraceEventKind::BlockInsert(request(77, 1))),
        (12, 0, TraceEventKind::BlockIssue(request(77, 1))),
        (15, 0, switch(1, DISK, 0)),
        (50, 1, irq(BLOCK)),
        (52, 1, done(77)),
        (54, 1, irq(LINE)),
        (55, 1, waking(5, 0)),
        (56, 1, irq_end(LINE)),
        (57, 1, waking(1, 0)),
        (58, 1, wakeup(1)),
        (60, 1, irq_end(BLOCK)),
        (62, 1, irq(TIMER)),
        (63, 1, waking(6, 0)),
        (64, 1, irq_end(TIMER)),
    ])
    .task(5, "other")
    .task(6, "later");
    let asleep = "15-58 asleep stack7 deep io call0 by=request0of1@57";
    scene.check_task(1, &format!("0-15 cpu0, {asleep}, 58-100 queued"));
    scene.check_task(5, "0-100 asleep by=Device(9)@55");
    scene.check_task(6, "0-100 asleep by=Vector(LocalTimer)@63");
    scene.check_requests("1 10 12 52");
    scene.check_disk(0, &[(12, 52)]);
    let timeline = scene.build();
    let disk = &timeline.disks[0];
    assert_eq!((disk.name.as_str(), disk.requests, disk.bytes), ("8:16", 1, [4096, 0]));
}

#[test]
fn disks_are_busy_while_something_is_issued() {
    let scene = Scene::new(&[
        (5, 0, enter(1, 0)),
        (10, 0, TraceEventKind::BlockIssue(request(1, 1))),
        (15, 0, TraceEventKind::BlockInsert(request(2, 1))),
        (20, 0, TraceEventKind::BlockIssue(request(2, 1))),
        (25, 1, done(1)),
        (30, 1, TraceEventKind::BlockRequeue { request: 2 }),
        (35, 1, TraceEventKind::BlockInsert(request(2, 1))),
        (40, 1, TraceEventKind::BlockIssue(request(2, 9))),
        (50, 1, done(2)),
        (55, 1, done(2)),
        (56, 1, TraceEventKind::BlockComplete { request: 8, bytes: 0 }),
        (60, 1, TraceEventKind::BlockIssue(request(3, 0))),
        (70, 1, TraceEventKind::BlockInsert(request(4, 1))),
        (72, 1, TraceEventKind::BlockInsert(model::BlockRequest { sector: 8, ..request(4, 1) })),
        (75, 1, TraceEventKind::BlockIssue(request(3, 1))),
    ])
    .task(9, "worker");
    // The first that was named 4 was merged into another; the idle task's is unattributed.
    scene.check_requests("1 10 10 25, 1 15 40 50, 1 70 - 70, 1 72 - -, 1 75 75 -");
    scene.check_disk(0, &[(10, 30), (40, 50), (60, 100)]);
    scene.check_problems(&[(Problem::EndWithoutBegin, 2)]);
}

#[test]
fn a_request_that_is_merged_waits_no_longer() {
    let scene = Scene::new(&[
        (10, 0, TraceEventKind::BlockInsert(request(1, 1))),
        (12, 0, TraceEventKind::BlockInsert(request(2, 1))),
        (14, 0, TraceEventKind::BlockInsert(request(3, 1))),
        (20, 0, TraceEventKind::BlockMerge { request: 2 }),
        (25, 0, TraceEventKind::BlockMerge { request: 7 }),
        (30, 0, TraceEventKind::BlockIssue(request(1, 1))),
        (40, 0, TraceEventKind::BlockMerge { request: 1 }),
        (50, 1, done(1)),
    ]);
    scene.check_requests("1 10 30 50, 1 12 - 20, 1 14 - -");
    scene.check_disk(0, &[(30, 50)]);
    scene.check_problems(&[]);
}

#[test]
fn of_too_many_disks_the_last_are_one() {
    let of = |disk| model::BlockRequest { disk, ..request(u64::from(disk), 1) };
    let issues = (0..1000).map(|disk| (10, 0, TraceEventKind::BlockIssue(of(disk))));
    let ends = (0..1000_u32).map(|disk| (20 + u64::from(disk) % 7, 0, done(disk.into())));
    let timeline = Scene::new(&issues.chain(ends).collect::<Vec<_>>()).build();
    let disks: Vec<_> = timeline.disks.iter().map(|it| (it.name.as_str(), it.requests)).collect();
    assert_eq!((disks.len(), disks[255]), (257, ("0:255", 1)));
    assert_eq!(disks[256], ("other disks", 1000 - 256));
    assert_eq!(timeline.disks[256].busy, [(HostNs(10), HostNs(26))]);
    let rows: Vec<_> = timeline.tasks[0].requests.iter().map(|it| it.disk).collect();
    assert!((0..1000).map(|disk| disk.min(256)).eq(rows));
}

#[test]
fn locks_that_tasks_sleep_for() {
    let scene = |kind| {
        Scene::new(&[
            (5, 1, enter(5, 82)),
            (10, 0, enter(1, 87)),
            (12, 0, lock(1, 4, kind, Some(5))),
            (13, 0, lock(1, 6, LockKind::Spin, None)),
            (14, 0, lock_end(1, 6)),
            (15, 0, switch(1, DISK, 0)),
            (20, 1, waking(1, 5)),
            (22, 1, wakeup(1)),
            (30, 0, switch(0, PrevState::Runnable, 1)),
            (31, 0, lock_end(1, 4)),
            (40, 0, switch(1, PrevState::Sleep, 0)),
        ])
        .task(5, "holder")
    };
    let rest = "call87 by=task5@20, 22-30 queued, 30-40 cpu0, 40-100 asleep stack7 call87";
    let locked = rest.replace(" by=", " lock=4:5:Some(82) by=");
    scene(LockKind::SemWrite)
        .check_task(1, &format!("0-15 cpu0, 15-22 asleep stack7 deep io {locked}"));
    scene(LockKind::Spin).check_task(1, &format!("0-15 cpu0, 15-22 asleep stack7 deep io {rest}"));
}

#[test]
fn a_wait_for_a_lock_is_over_with_its_call() {
    let check = |reported: TraceEventKind, asleep: &str| {
        let scene = Scene::new(&[
            (5, 0, enter(1, 87)),
            (10, 0, lock(1, 4, LockKind::Mutex, None)),
            (20, 0, reported),
            (30, 0, switch(1, PrevState::Sleep, 0)),
        ]);
        scene.check_task(1, &format!("0-30 cpu0, 30-100 asleep stack7{asleep}"));
    };
    check(leave(1, 87), "");
    check(enter(1, 7), " call7");
    check(lock_end(1, 6), " call87 lock=4");
}

#[test]
fn lost_events_leave_what_they_contradict_unknown() {
    // Who came to CPU 0 after 1 is not known, nor where 5 was.
    let scene = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (15, 1, switch(0, PrevState::Runnable, 5)),
        (20, 0, enter(1, 0)),
        (25, 1, switch(5, PrevState::Sleep, 0)),
        (40, 0, switch(5, PrevState::Runnable, 0)),
        (60, 1, switch(0, PrevState::Runnable, 1)),
    ])
    .task(5, "other");
    scene.check_task(1, "0-10 ?, 10-20 cpu0, 20-60 ?, 60-100 cpu1");
    scene.check_task(5, "0-15 ?, 15-25 cpu1, 25-40 ?, 40-100 preempted");
    scene.check_cpu(0, "0-10 ?, 10-20 1:?, 20-40 ?, 40-100 idle");
    scene.check_problems(&[(Problem::SwitchFromAnother, 1)]);
    // Few such places do not make the rest doubtful: the CPU was idle until its first switch.
    let mut events =
        vec![(1, 0, switch(0, PrevState::Runnable, 5)), (2, 0, switch(1, PrevState::Runnable, 0))];
    for time in 3..60 {
        events.push((time, 1, switch(0, PrevState::Runnable, 0)));
    }
    Scene::new(&events).task(5, "other").check_cpu(0, "0-1 idle, 1-2 ?, 2-100 idle");
    // The same task on two CPUs: it must have left the first.
    let scene = Scene::new(&[
        (10, 0, switch(0, PrevState::Runnable, 1)),
        (20, 0, enter(1, 0)),
        (50, 1, switch(0, PrevState::Runnable, 1)),
    ]);
    scene.check_task(1, "0-10 preempted, 10-20 cpu0, 20-50 ?, 50-100 cpu1");
    scene.check_cpu(0, "0-10 idle, 10-20 1:user, 20-100 ?");
    scene.check_problems(&[(Problem::SwitchFromAnother, 1)]);
    // Run without a wake-up.
    let scene = Scene::new(&[
        (10, 0, switch(1, PrevState::Sleep, 0)),
        (50, 0, switch(0, PrevState::Runnable, 1)),
    ]);
    scene.check_task(1, "0-10 cpu0, 10-50 ?, 50-100 cpu0");
    scene.check_problems(&[(Problem::UnseenTask, 1)]);
    // Never seen before; an interrupt that ended unseen.
    let scene = Scene::new(&[
        (10, 0, irq(LINE)),
        (20, 0, switch(0, PrevState::Runnable, 33)),
        (30, 0, irq_end(LINE)),
    ]);
    scene.check_task(33, "20-100 cpu0");
    scene.check_cpu(0, "0-10 idle, 10-20 Device(9), 20-100 33:?");
    scene.check_problems(&[(Problem::UnseenTask, 1), (Problem::EndWithoutBegin, 2)]);
}

#[test]
fn what_a_filter_left_out_is_not_guessed() {
    let scene = Scene::new(&[
        (10, 0, switch(5, PrevState::Runnable, 1)),
        (15, 0, enter(1, 0)),
        (20, 0, switch(1, PrevState::Runnable, 5)),
        (25, 0, fork(5, 6)),
        (30, 0, switch(5, PrevState::Runnable, 1)),
        (40, 0, leave(1, 0)),
        (50, 0, switch(1, PrevState::Runnable, 0)),
    ])
    .task(5, "other");
    scene.check_cpu(
        0,
        "0-10 5:?, 10-15 1:user, 15-20 1:call0, 20-30 5:?, 30-40 1:call0, 40-50 1:user, 50-100 idle",
    );
    let scene = scene.filtered();
    // Another may have had the CPU between the moments that tell of task 5, and after the last.
    scene.check_cpu(
        0,
        "0-10 ?, 10-15 1:?, 15-20 1:call0, 20-30 ?, 30-40 1:call0, 40-50 1:user, 50-100 ?",
    );
    scene.check_task(1, "0-10 ?, 10-20 cpu0, 20-30 preempted, 30-50 cpu0, 50-100 preempted");
    scene.check_task(5, "0-10 ?, 10-20 preempted, 20-30 ?, 30-100 preempted");
    scene.check_problems(&[]);
}

#[test]
fn time_goes_on_only() {
    let scene = Scene::new(&[
        (20, 0, switch(0, PrevState::Runnable, 1)),
        (15, 0, enter(1, 0)),
        (40, 0, leave(1, 0)),
        (700, 0, switch(1, PrevState::Runnable, 0)),
    ]);
    scene.check_cpu(0, "0-20 idle, 20-40 1:call0, 40-100 1:user");
    scene.check_problems(&[(Problem::Backwards, 2)]);
}

#[test]
fn a_task_of_the_tables_that_was_made_after_the_begin() {
    let scene = Scene::new(&[(30, 0, fork(1, 9)), (35, 0, wakeup(9))]).task(9, "child");
    scene.check_task(9, "30-100 queued");
    assert_eq!(scene.build().tasks[2].parent, Some(TaskId(0)));
}
