//! Drawn timelines. One line an event: `TIME PID[.TID] WHAT`; processes before and after the log as
//! `PID NAME CR3 [mapping...]`. A mapping is `START-END` (hexadecimal pages) of the module whose
//! number is its first page.

use super::*;

const STARTED: u64 = 10;
const ENDED: u64 = 90;

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn pid(text: &str) -> u32 {
    text.parse().unwrap()
}

fn mapping(text: &str) -> GuestMapping {
    let (start, end) = text.split_once('-').unwrap();
    let module = u32::try_from(number(start)).unwrap();
    GuestMapping { start: number(start), end: number(end), offset: 0, module }
}

fn process(line: &str, start_ns: Option<u64>) -> GuestImage {
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = words[1].to_owned();
    GuestImage {
        id: 0,
        pid: pid(words[0]),
        name: name.clone(),
        cr3: number(words[2]),
        start_ns,
        end_ns: None,
        threads: vec![GuestThread { tid: pid(words[0]), name, fs_base: 0x77 }],
        mappings: words[3..].iter().map(|text| mapping(text)).collect(),
    }
}

fn fork(parent: &str, cr3: Option<u64>) -> EventKind {
    EventKind::Fork { parent: pid(parent), name: String::new(), cr3, fs_base: 0x11 }
}

fn event(line: &str) -> Event {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (process, thread) = words[1].split_once('.').unwrap_or((words[1], words[1]));
    let kind = match words[2..] {
        ["fork", parent, cr3] => fork(parent, Some(number(cr3))),
        ["fork", parent] => fork(parent, None),
        ["comm-exec", name] => EventKind::Named { name: name.into(), exec: true },
        ["comm", name] => EventKind::Named { name: name.into(), exec: false },
        ["mmap", range] => EventKind::Mapped(mapping(range)),
        ["exec", name, cr3] => EventKind::Exec { name: name.into(), cr3: number(cr3) },
        ["exit"] => EventKind::Exit { fs_base: 0x22 },
        ["kernel-exit", name, stack, made] => EventKind::KernelExit {
            name: name.into(),
            stack: number(stack),
            start_ns: made.parse().unwrap(),
        },
        _ => panic!("unknown event in test: {line}"),
    };
    let time_ns = words[0].parse().unwrap();
    Event { time_ns, pid: pid(process), tid: pid(thread), kind }
}

/// `PID NAME CR3 START..END threads mappings`, times `-` where open.
fn draw(image: &GuestImage) -> String {
    let time = |time: Option<u64>| time.map_or("-".into(), |time| time.to_string());
    let threads: Vec<String> = image
        .threads
        .iter()
        .map(|thread| format!("{}:{}:{:x}", thread.tid, thread.name, thread.fs_base))
        .collect();
    let mappings: Vec<String> = image
        .mappings
        .iter()
        .map(|m| format!("{:x}-{:x}@{:x}+{:x}", m.start, m.end, m.module, m.offset))
        .collect();
    format!(
        "{} {} {:x} {}..{} {} {}",
        image.pid,
        image.name,
        image.cr3,
        time(image.start_ns),
        time(image.end_ns),
        threads.join(","),
        mappings.join(",")
    )
}

fn begin(before: &[&str]) -> Timeline {
    Timeline::begin(before.iter().map(|line| process(line, None)).collect(), STARTED)
}

/// Those made while logging are given the time 50.
fn after_of(before: &[&str], after: &[&str]) -> Vec<GuestImage> {
    let is_old =
        |line: &str| before.iter().any(|old| old.split(' ').next() == line.split(' ').next());
    after.iter().map(|line| process(line, Some(if is_old(line) { 5 } else { 50 }))).collect()
}

fn check(before: &[&str], events: &[&str], after: &[&str], expected: &[&str]) {
    let mut timeline = begin(before);
    timeline.follow(events.iter().map(|line| event(line)).collect());
    let ended = timeline.end(after_of(before, after), ENDED);
    let mut got: Vec<String> =
        ended.iter().map(|image| draw(image).trim_end().to_owned()).collect();
    got.sort();
    let mut expected: Vec<&str> = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(got, expected);
}

#[test]
fn kernel_threads_are_those_alive_and_those_that_ended() {
    let alive = |tid: u32, made_ns| GuestKernelThread {
        tid,
        name: "alive".into(),
        stack: 0xa000,
        start_ns: Some(made_ns),
        end_ns: None,
    };
    let mut timeline = begin(&[]);
    let events = ["20 8 kernel-exit old b000 5", "40 9 kernel-exit young b000 30", "50 7 exit"];
    timeline.follow(events.map(event).to_vec());
    // 9 ended after it was found alive.
    let alive = vec![alive(2, 1), alive(9, 30), alive(10, 45)];
    let drawn: Vec<_> = timeline
        .kernel_threads(alive)
        .into_iter()
        .map(|thread| (thread.tid, thread.name, thread.stack, thread.start_ns, thread.end_ns))
        .collect();
    let (alive, old, young) = ("alive".to_owned(), "old".to_owned(), "young".to_owned());
    assert_eq!(
        drawn,
        [
            (2, alive.clone(), 0xa000, None, None),
            (10, alive, 0xa000, Some(45), None),
            (9, young, 0xb000, Some(30), Some(40)),
            (8, old, 0xb000, None, Some(20)),
        ]
    );
}

#[test]
fn a_process_alive_before_and_after_has_no_times() {
    check(&["1 init a000 1-2"], &[], &["1 init a000 1-2"], &["1 init a000 -..- 1:init:77 1-2@1+0"]);
}

#[test]
fn a_process_alive_before_that_ends_has_an_end() {
    check(&["7 old c000 1-2"], &["30 7 exit"], &[], &["7 old c000 -..30 7:old:22 1-2@1+0"]);
}

/// The log's programs begin one after the other: the end of 7 was not seen, since 7 ended before the log was whole.
#[test]
fn what_came_before_the_log_was_whole_is_in_the_first_look() {
    check(
        &["1 sh a000 1-2"],
        &["5 7 fork 1 b000", "6 8 exec ls c000", "20 9 fork 1 b000", "30 9 exit"],
        &["1 sh a000 1-2"],
        &["1 sh a000 -..- 1:sh:77 1-2@1+0", "9 sh b000 20..30 9:sh:22 1-2@1+0"],
    );
}

#[test]
fn fork_and_exec_are_two_images() {
    check(
        &["1 sh a000 1-2"],
        &[
            "20 7 fork 1 b000",
            "21 7 comm-exec ls",
            "22 7 mmap 5-6",
            "23 7 mmap 8-9",
            "24 7 exec ls c000",
            "30 7 exit",
        ],
        &["1 sh a000 1-2"],
        &[
            "1 sh a000 -..- 1:sh:77 1-2@1+0",
            "7 sh b000 20..21 7:sh:11 1-2@1+0",
            "7 ls c000 21..30 7:ls:22 5-6@5+0,8-9@8+0",
        ],
    );
}

#[test]
fn a_fork_without_exec_keeps_the_parents_code_and_name() {
    check(
        &["1 make a000 1-2"],
        &["20 7 fork 1 b000", "25 7 comm worker", "30 7 exit"],
        &["1 make a000 1-2"],
        &["1 make a000 -..- 1:make:77 1-2@1+0", "7 worker b000 20..30 7:worker:22 1-2@1+0"],
    );
}

#[test]
fn a_vfork_child_has_no_image_until_it_execs() {
    check(
        &["1 sh a000 1-2"],
        &["20 7 fork 1 a000", "21 7 comm-exec ls", "24 7 exec ls c000", "30 7 exit"],
        &["1 sh a000 1-2"],
        &["1 sh a000 -..- 1:sh:77 1-2@1+0", "7 ls c000 21..30 7:ls:22"],
    );
    // It is still there, or ends without an exec.
    check(
        &["1 sh a000 1-2"],
        &["20 7 fork 1 a000", "21 8 fork 1 a000", "22 8 exit"],
        &["1 sh a000 1-2", "7 sh a000"],
        &["1 sh a000 -..- 1:sh:77 1-2@1+0"],
    );
}

#[test]
fn page_tables_used_again_are_distinguished_by_time() {
    check(
        &["1 sh a000"],
        &["20 7 fork 1 b000", "30 7 exit", "40 8 fork 1 b000", "50 8 exit", "60 7 fork 1 b000"],
        &["1 sh a000", "7 sh b000"],
        &[
            "1 sh a000 -..- 1:sh:77",
            "7 sh b000 20..30 7:sh:22",
            "8 sh b000 40..50 8:sh:22",
            "7 sh b000 60..- 7:sh:77",
        ],
    );
}

#[test]
fn a_process_ends_with_its_last_thread() {
    check(
        &["7 db c000"],
        &["20 7.8 fork 1 c000", "21 7.8 comm io", "30 7 exit", "40 7.8 exit"],
        &[],
        &["7 db c000 -..40 8:io:22"], // in this drawing both end with the same FS base
    );
    // A thread that ended before its process is still named.
    check(
        &["7 db c000"],
        &["20 7.8 fork 1 c000", "30 7.8 exit"],
        &["7 db c000"],
        &["7 db c000 -..- 7:db:77,8:db:22"],
    );
    // Of two that had the same FS base after each other, the last one.
    check(
        &["7 db c000"],
        &["20 7.8 fork 1 c000", "30 7.8 exit", "40 7.9 fork 1 c000", "50 7.9 exit"],
        &["7 db c000"],
        &["7 db c000 -..- 7:db:77,9:db:22"],
    );
}

#[test]
fn exec_without_the_name_event_still_changes_the_image() {
    check(
        &["7 sh b000 1-2"],
        &["20 7 exec ls c000"],
        &[],
        &["7 sh b000 -..20 7:sh:77 1-2@1+0", "7 ls c000 20..90 7:ls:0"],
    );
}

#[test]
fn an_end_that_was_lost_is_noticed_at_the_second_look() {
    let before = ["7 sh b000", "8 db c000"].map(|line| process(line, None)).into();
    let mut timeline = Timeline::begin(before, STARTED);
    timeline.changes(usize::MAX);
    timeline.end_lost(30, |pid| pid == 8);
    assert_eq!(timeline.changes(usize::MAX), []);
    // Another process with its pid is another one.
    timeline.follow(vec![event("31 7 fork 8 d000"), event("32 7 exec ls d000")]);
    timeline.changes(usize::MAX);
    timeline.end_lost(40, |pid| pid == 8);
    assert_eq!(timeline.changes(usize::MAX), []);
    timeline.end_lost(50, |pid| pid == 8);
    let ended: Vec<_> = timeline.changes(usize::MAX).iter().map(draw).collect();
    assert_eq!(ended, ["7 ls d000 32..50 7:ls:0 "]);
}

#[test]
fn an_exec_that_was_lost_leaves_the_new_program_without_a_start() {
    check(
        &["7 sh b000"],
        &[],
        &["7 ls c000"],
        &["7 sh b000 -..90 7:sh:77", "7 ls c000 -..- 7:ls:77"],
    );
}

#[test]
fn a_process_made_while_the_log_began_is_not_doubled() {
    check(
        &["7 sh b000 1-2"],
        &["11 7 fork 1 b000", "30 7 exit"],
        &[],
        &["7 sh b000 11..30 7:sh:22 1-2@1+0"],
    );
}

#[test]
fn mappings_that_were_gone_at_the_end_are_the_logs() {
    check(
        &["1 sh a000 1-2", "7 db c000 3-4"],
        &["20 8 fork 1 b000", "21 8 comm-exec ls", "22 8 mmap 5-6", "23 8 exec ls d000"],
        &["1 sh a000 1-2", "7 db c000", "8 ls d000"],
        &[
            "1 sh a000 -..- 1:sh:77 1-2@1+0",
            "7 db c000 -..- 7:db:77 3-4@3+0",
            "8 ls d000 21..- 8:ls:77 5-6@5+0",
            "8 sh b000 20..21 8:sh:11 1-2@1+0",
        ],
    );
}

#[test]
fn a_new_mapping_cuts_the_old_one() {
    check(
        &["7 jit c000 1-9"],
        &["20 7 mmap 3-5", "30 7 exit"],
        &[],
        &["7 jit c000 -..30 7:jit:22 1-3@1+0,5-9@1+4,3-5@3+0"],
    );
}

#[test]
fn events_of_strangers_do_not_count() {
    check(
        &["1 sh a000"],
        &["20 99 exit", "21 99 mmap 1-2"],
        &["1 sh a000"],
        &["1 sh a000 -..- 1:sh:77"],
    );
}

#[test]
fn without_page_tables_new_processes_are_left_out() {
    check(
        &["1 sh a000"],
        &["20 7 fork 1", "30 7 exit"],
        &["1 sh a000"],
        &["1 sh a000 -..- 1:sh:77"],
    );
}

#[test]
fn an_unlogged_process_starts_when_it_was_made() {
    check(&[], &[], &["7 late b000"], &["7 late b000 50..- 7:late:77"]);
}

/// What is reported after each part of the events: `ID` and the image.
fn check_report(before: &[&str], parts: &[(&[&str], &[&str])]) {
    let mut timeline = begin(before);
    for (events, expected) in parts {
        timeline.follow(events.iter().map(|line| event(line)).collect());
        let reported = timeline.changes(10_000);
        let mut reported: Vec<String> = reported
            .iter()
            .map(|image| format!("{}: {}", image.id, draw(image).trim_end()))
            .collect();
        reported.sort();
        assert_eq!(reported, *expected, "after {events:?}");
    }
}

#[test]
fn a_changed_image_is_reported_again_by_its_id() {
    check_report(
        &["1 sh a000 1-2", "7 db c000 3-4"],
        &[
            (&[], &["0: 1 sh a000 -..- 1:sh:77 1-2@1+0", "1: 7 db c000 -..- 7:db:77 3-4@3+0"]),
            (&[], &[]),
            (&["20 7 mmap 5-6"], &["1: 7 db c000 -..- 7:db:77 3-4@3+0,5-6@5+0"]),
            (
                &["30 8 fork 1 b000", "31 8 comm-exec ls", "32 8 exec ls d000"],
                &["2: 8 sh b000 30..31 8:sh:11 1-2@1+0", "3: 8 ls d000 31..- 8:ls:0"],
            ),
            (
                &["40 8 exit", "41 7.9 fork 1 c000"],
                &[
                    "1: 7 db c000 -..- 7:db:77,9:db:11 3-4@3+0,5-6@5+0",
                    "3: 8 ls d000 31..40 8:ls:22",
                ],
            ),
            (&[], &[]),
        ],
    );
}

#[test]
fn an_image_without_room_is_reported_the_next_time() {
    let mut timeline = begin(&["1 sh a000", "2 sh b000", "3 sh c000"]);
    let room = 2 * crate::answer::encoded_image_bytes(&process("1 sh a000", None));
    let reported = |timeline: &mut Timeline| timeline.changes(room).len();
    assert_eq!(
        [reported(&mut timeline), reported(&mut timeline), reported(&mut timeline)],
        [2, 1, 0]
    );
}

#[test]
fn the_end_keeps_the_ids() {
    let mut timeline = begin(&["1 sh a000", "7 db c000"]);
    timeline.changes(10_000);
    timeline.follow(vec![event("20 8 fork 1 b000")]);
    let after = after_of(&["1 sh a000", "7 db c000"], &["7 db c000", "8 sh b000", "9 new e000"]);
    let mut reported: Vec<(u32, u32)> =
        timeline.end(after, ENDED).iter().map(|image| (image.pid, image.id)).collect();
    reported.sort_unstable();
    assert_eq!(reported, [(1, 0), (7, 1), (8, 2), (9, 3)]);
}
