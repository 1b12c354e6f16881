//! Critical paths of commands, from events.

use model::{Interrupt, MachineId, PrevState, Tid, TraceEventKind, TracedCommand};

use super::*;
use crate::span::name_at;
use crate::timeline::build::testing::{
    Scene, done, enter, exec, exit, fork, irq, irq_end, leave, request, switch, wakeup, waking,
};

const DEVICE: Interrupt = Interrupt::Device(9);

/// `make` on CPU 0 makes `cc1` on CPU 1, which reads from a disk.
fn make() -> Vec<(u64, u32, TraceEventKind)> {
    let disk = PrevState::Uninterruptible { io: true };
    vec![
        (2, 0, switch(1, PrevState::Sleep, 10)),
        (10, 0, exec(10, "make")),
        (12, 0, enter(10, 58)),
        (14, 0, fork(10, 11)),
        (15, 0, waking(11, 10)),
        (16, 0, wakeup(11)),
        (18, 1, switch(0, PrevState::Runnable, 11)),
        (20, 0, leave(10, 58)),
        (22, 0, enter(10, 61)),
        (25, 0, switch(10, PrevState::Sleep, 0)),
        (28, 1, leave(11, 58)),
        (29, 1, exec(11, "cc1")),
        (30, 1, enter(11, 0)),
        (32, 1, TraceEventKind::BlockInsert(request(1, 11))),
        (34, 1, TraceEventKind::BlockIssue(request(1, 11))),
        (36, 1, switch(11, disk, 0)),
        (50, 1, irq(DEVICE)),
        (51, 1, done(1)),
        (52, 1, waking(11, 0)),
        (54, 1, wakeup(11)),
        (55, 1, irq_end(DEVICE)),
        (57, 1, switch(0, PrevState::Runnable, 11)),
        (60, 1, leave(11, 0)),
        (70, 1, enter(11, 231)),
        (72, 1, exit(11)),
        (74, 1, waking(10, 11)),
        (76, 1, wakeup(10)),
        (78, 1, switch(11, PrevState::Dead, 0)),
        (80, 0, switch(0, PrevState::Runnable, 10)),
        (82, 0, leave(10, 61)),
        (90, 0, enter(10, 231)),
        (92, 0, exit(10)),
        (95, 0, switch(10, PrevState::Dead, 0)),
    ]
}

#[track_caller]
fn check(events: &[(u64, u32, TraceEventKind)], expected: &str) {
    let mut scene = Scene::new(events).task(10, "vmscope");
    let (machine, task) = (MachineId::HOST, Tid(10));
    scene.tables.command =
        Some(TracedCommand { machine, task, words: vec![], before: false, exit_code: Some(0) });
    let timeline = scene.build();
    let path = critical_path(&timeline, Scope::command(&scene.tables, &timeline).unwrap());
    let mut text = String::new();
    for segment in &path.segments {
        let task = &timeline.tasks[segment.task.index()];
        let activity = match &segment.activity {
            PathActivity::Running { .. } => "runs".to_owned(),
            PathActivity::CpuWait { .. } => "waits".to_owned(),
            PathActivity::DiskQueue { .. } => "queue".to_owned(),
            PathActivity::Disk { .. } => "disk".to_owned(),
            activity => format!("{activity:?}"),
        };
        let (begin, end) = (segment.begin.0, segment.end.0);
        text += &format!("{begin}-{end} {} {activity}\n", name_at(task, segment.begin));
    }
    assert_eq!(text, expected);
}

#[test]
fn a_command_and_its_child() {
    check(
        &make(),
        "10-25 make runs
25-29 make runs
29-36 cc1 runs
36-51 cc1 disk
51-54 cc1 WakingUp
54-57 cc1 waits
57-74 cc1 runs
74-76 make WakingUp
76-80 make waits
80-95 make runs
",
    );
}

/// The trace ends while `make` waits for a child that sleeps.
#[test]
fn a_command_that_is_not_over() {
    let mut events = make();
    events.truncate(12);
    events.extend([(30, 1, enter(11, 35)), (36, 1, switch(11, PrevState::Sleep, 0))]);
    events.push((90, 1, irq(DEVICE)));
    check(
        &events,
        "10-25 make runs
25-29 make runs
29-36 cc1 runs
36-100 cc1 NotOver { syscall: Some(35) }
",
    );
}

/// It had the CPU again when it woke `make`.
#[test]
fn a_switch_to_the_waker_was_missed() {
    let mut events = make();
    events.insert(25, (73, 1, switch(11, PrevState::Runnable, 1)));
    check(
        &events,
        "10-25 make runs
25-29 make runs
29-36 cc1 runs
36-51 cc1 disk
51-54 cc1 WakingUp
54-57 cc1 waits
57-73 cc1 runs
73-74 cc1 Unknown
74-76 make WakingUp
76-80 make waits
80-95 make runs
",
    );
}
