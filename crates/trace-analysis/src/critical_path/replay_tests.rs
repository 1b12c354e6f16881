//! Programs without a part: drawn timelines (see `crate::test_timelines`), of which all else takes as long as it did.

use model::{HostNs, Interrupt};

use super::*;
use crate::test_timelines::{By, DrawnTimeline};

const TIMER: By = By::Interrupt(Interrupt::Soft(1));

/// How many columns the first task would take without parts; those that nothing says about are not there.
#[track_caller]
fn check(lines: &[(&str, &str, &str)], wakers: &[(char, By)], expected: &[(&str, Option<u64>)]) {
    let drawn = DrawnTimeline::new(lines, wakers);
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let improvements = summary(&drawn.timeline, &path).improvements;
    let without = |part: &str| {
        let found = improvements.iter().find(|it| it.target.to_string() == part);
        found.map(|it| it.without_ns / 10)
    };
    let found: Vec<_> = expected.iter().map(|(part, _)| (*part, without(part))).collect();
    assert_eq!(found, expected, "{lines:?}");
}

#[test]
fn children_side_by_side() {
    check(
        &[
            ("sh", "", "0aaaaaaaa0bbbb0"),
            ("sleep", "sh", " 1tttttt1      "),
            ("burn", "sh", "  111111111111 "),
        ],
        &[('a', By::Task("sleep")), ('b', By::Task("burn")), ('t', TIMER)],
        &[("own code of burn", Some(11)), ("timer", None)],
    );
    check(
        &[
            ("sh", "", "0aaaaaaaa0bbbb0"),
            ("burn", "sh", " 11111111      "),
            ("sleep", "sh", " tttttttttttt1 "),
        ],
        &[('a', By::Task("burn")), ('b', By::Task("sleep")), ('t', TIMER)],
        &[("timer", Some(11)), ("own code of burn", None)],
    );
}

/// The second child ended while the parent waited for the first, which it joined then.
#[test]
fn children_that_ended_meanwhile() {
    check(
        &[
            ("main", "", "0aaaaaaaaa0"),
            ("long", "main", " 111111111 "),
            ("short", "main", " 11111     "),
        ],
        &[('a', By::Task("long"))],
        &[("own code of long", Some(2))],
    );
}

/// The name that a task has then counts, also where it changes while the task has a CPU.
#[test]
fn one_program_after_another() {
    let mut drawn = DrawnTimeline::new(&[("sh", "", "00000")], &[]);
    drawn.timeline.tasks[0].names.push((HostNs(20), "cc1".to_owned()));
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let found: Vec<_> = summary(&drawn.timeline, &path)
        .improvements
        .iter()
        .map(|it| (it.target.to_string(), it.without_ns))
        .collect();
    assert_eq!(found, [("own code of cc1".to_owned(), 20), ("own code of sh".to_owned(), 30)]);
}

/// A worker beside it is waited for even if nothing else remains.
#[test]
fn work_beside_a_worker() {
    check(
        &[("main", "", "0000000aa0"), ("worker", "main", "1111111111")],
        &[('a', By::Task("worker"))],
        &[("own code of main", Some(9)), ("own code of worker", Some(8))],
    );
}

/// What a stranger does is by its own clock: a wait for it is as long as it was.
#[test]
fn a_stranger_that_is_waited_for() {
    check(
        &[("main", "", "0000000aaa0"), ("stranger", "", "11111111111")],
        &[('a', By::Task("stranger"))],
        &[("own code of main", Some(3)), ("own code of stranger", Some(8))],
    );
}

/// A reader of a disk whose request was made before it computed.
#[test]
fn a_request_made_ahead() {
    check(
        &[("tar", "", "0000aaaa0")],
        &[('a', By::Disk("tar", 1, 1, 8))],
        &[("own code of tar", Some(7)), ("disk vda: read", Some(5))],
    );
}

#[test]
fn locks_and_conditions() {
    let lines: &[_] = &[("main", "", "00aaaa0"), ("other", "main", " 11111 ")];
    check(lines, &[('a', By::Unlock("other"))], &[("all waiting for locks", Some(3))]);
    check(lines, &[('a', By::Futex("other"))], &[("all waiting for locks", None)]);
    check(lines, &[('a', By::FileLock("other"))], &[("all waiting for locks", Some(3))]);
}

/// The timer would find the CPU idle.
#[test]
fn an_interrupt_goes_with_the_work_that_it_interrupts() {
    check(
        &[("main", "", "00I0I0kIk")],
        &[],
        &[("own code of main", Some(3)), ("kernel: local timer", Some(6))],
    );
}

/// What a loop of short sleeps waits for is not known.
#[test]
fn polling() {
    let lines = &[("sh", "", "0aba ba0".replace(' ', "a").repeat(5))];
    let lines: Vec<_> =
        lines.iter().map(|(name, parent, line)| (*name, *parent, line.as_str())).collect();
    let drawn = DrawnTimeline::new(&lines, &[('a', TIMER), ('b', TIMER)]);
    let path = critical_path(&drawn.timeline, Scope::life(&drawn.timeline, TaskId(0)).unwrap());
    let summary = summary(&drawn.timeline, &path);
    assert_eq!(summary.categories[0].of, Category::Polling);
    let targets: Vec<_> = summary.improvements.iter().map(|it| it.target.to_string()).collect();
    assert_eq!(targets, ["own code of sh"]);
}

/// The sender of SIGCONT comes later without what it did first.
#[test]
fn a_stop() {
    check(
        &[("main", "", "0aaaaa0"), ("kill", "main", " tttt1 ")],
        &[('a', By::Continue("kill")), ('t', TIMER)],
        &[("timer", Some(3))],
    );
}
