//! Drawings of drawn timelines (see `crate::test_timelines`), and of random ones.

use model::{HostNs, Machine, Tid};

use super::*;
use crate::test_timelines::{By, DrawnTimeline, Random, at_random};
use crate::timeline::Timeline;
use crate::timeline::build::random::senseless;

fn letter(activity: Activity) -> char {
    match activity {
        Activity::User => 'u',
        Activity::Kernel => 'k',
        Activity::Interrupt => 'i',
        Activity::Idle => '_',
        Activity::CpuWait => '.',
        Activity::DiskWait => 'd',
        Activity::LockWait => 'l',
        Activity::Asleep => 'a',
        Activity::Stopped => 's',
        Activity::Reads => 'R',
        Activity::Writes => 'W',
        Activity::ReadsAndWrites => 'B',
        Activity::Queued => 'q',
        Activity::Ran => 'r',
        Activity::Stolen => 'S',
        Activity::AsleepInVmm => 'v',
        Activity::Halted => 'h',
        Activity::Unknown => '?',
    }
}

fn alone(timeline: &Timeline) -> Subject<'_> {
    Subject { timeline, host_side: None }
}

fn whole(timeline: &Timeline) -> std::ops::Range<HostNs> {
    timeline.begin..timeline.end
}

fn name(drawn: &DrawnTimeline, lane: &Lane) -> String {
    match lane.of {
        LaneOf::Cpu(row) => format!("cpu{row}"),
        LaneOf::Vcpu(row) => format!("vcpu{row}"),
        LaneOf::Disk(row) => format!("disk{row}"),
        LaneOf::Task(id) => drawn.timeline.tasks[id.index()].names[0].1.clone(),
    }
}

fn make() -> DrawnTimeline {
    DrawnTimeline::new(
        &[
            ("make", "", "00aaaaawww.0"),
            ("cc1", "make", "  .1bbb111  "),
            ("as", "make", "          1 "),
            ("lonely", "", "xxxxxxxxxxxx"),
            ("locked", "cc1", "    .k0c0   "),
        ],
        &[('a', By::Task("cc1")), ('b', By::Disk("cc1", 4, 5, 7)), ('c', By::Unlock("cc1"))],
    )
}

#[test]
fn columns() {
    let drawn = make();
    let check = |range: std::ops::Range<u64>, columns, expected: &[&str]| {
        let view = View { range: HostNs(range.start)..HostNs(range.end), columns };
        let lanes = lanes(alone(&drawn.timeline), &view.range, 10);
        let line = |lane: &Lane| {
            let cells = cells(alone(&drawn.timeline), lane, &view);
            let text: String = cells
                .iter()
                .map(|cell| cell.map_or(' ', |(activity, _)| letter(activity)))
                .collect();
            format!("{}{} {text}", " ".repeat(lane.depth as usize), name(&drawn, lane))
        };
        assert_eq!(lanes.lanes.iter().map(line).collect::<Vec<_>>(), expected);
    };
    check(
        0..120,
        12,
        &[
            "cpu0 uu___ku_u__u",
            "cpu1 ___u___uuuu_",
            "disk0 ____qRR_____",
            "make uuaaaaaaaa.u",
            " cc1   .uddduuu  ",
            "  locked     .kulu   ",
            " as           u ",
        ],
    );
    check(
        0..120,
        4,
        &[
            "cpu0 u_u_",
            "cpu1 __uu",
            "disk0 _R__",
            "make uaau",
            " cc1 .duu",
            "  locked  ku ",
            " as    u",
        ],
    );
    // Those that ran in it, and whom they are below.
    check(50..70, 2, &["cpu0 ku", "cpu1 __", "disk0 RR", "make aa", " cc1 dd", "  locked ku"]);
    check(50..50, 2, &["cpu0   ", "cpu1   ", "disk0   "]);
    check(115..116, 3, &["cpu0   u", "cpu1   _", "disk0   _", "make   u"]);
    check(0..10, 0, &["cpu0 ", "cpu1 ", "disk0 ", "make "]);
}

#[test]
fn a_disk_whose_requests_are_nobodys() {
    let mut drawn = make();
    let busy = [(2, 3), (3, 4), (5, 7), (6, 8), (10, 90)];
    drawn.timeline.disks[0].busy = busy.map(|(a, b)| (HostNs(a * 10), HostNs(b * 10))).into();
    let view = View { range: whole(&drawn.timeline), columns: 12 };
    let lanes = lanes(alone(&drawn.timeline), &view.range, 0).lanes;
    let cells = cells(alone(&drawn.timeline), &lanes[2], &view);
    let text: String = cells.iter().map(|cell| cell.map_or(' ', |it| letter(it.0))).collect();
    assert_eq!(text, "__??qRR?__??");
}

/// What a guest thinks that its CPUs do, and below each what they did.
#[test]
fn a_guest_from_both_sides() {
    let guest = DrawnTimeline::new(&[("cc1", "", "000000aa"), ("sh", "", "    1111")], &[]);
    let host = [("vcpu", "", "0..0aaa."), ("thief", "", "x00xxx11"), ("late", "", "    11..")];
    let host = DrawnTimeline::new(&host, &[]);
    let row = Machine { vcpu_threads: vec![Tid(1), Tid(3)], ..Machine::default() };
    let side = HostSide::new(&host.timeline, &guest.timeline, &row).unwrap();
    let subject = Subject { timeline: &guest.timeline, host_side: Some(&side) };
    let check = |columns, expected: &[&str]| {
        let view = View { range: whole(&guest.timeline), columns };
        let lanes = lanes(subject, &view.range, 0).lanes;
        let line = |lane: &Lane| {
            let cells = cells(subject, lane, &view);
            let text = cells.iter().map(|cell| cell.map_or(' ', |(activity, _)| letter(activity)));
            format!("{} {}", name(&guest, lane), text.collect::<String>())
        };
        assert_eq!(lanes.iter().map(line).collect::<Vec<_>>(), expected);
    };
    check(
        8,
        &["cpu0 uuuuuu__", "vcpu0 rSSrvvhS", "cpu1 ____uuuu", "vcpu1 ????rrSS", "disk0 ________"],
    );
    check(4, &["cpu0 uuu_", "vcpu0 rrvS", "cpu1 __uu", "vcpu1 ??rS", "disk0 ____"]);

    let view = View { range: whole(&guest.timeline), columns: 8 };
    let lane = &lanes(subject, &view.range, 0).lanes[1];
    let by: Vec<_> = pieces(subject, lane, &view).iter().map(|piece| piece.task).collect();
    let thief = Some(host.id("thief"));
    assert_eq!(by, [None, thief, None, None, None, None]);
}

#[test]
fn which_tasks_have_lanes() {
    let drawn = make();
    let check = |max_tasks, names: &[&str], idle_tasks, left_out| {
        let lanes = lanes(alone(&drawn.timeline), &whole(&drawn.timeline), max_tasks);
        let tasks = lanes.lanes.iter().filter(|lane| matches!(lane.of, LaneOf::Task(_)));
        let shown: Vec<_> = tasks.map(|lane| (name(&drawn, lane), lane.line)).collect();
        let shown: Vec<_> = shown.iter().map(|(name, line)| format!("{name} {line}")).collect();
        assert_eq!(shown, names);
        assert_eq!((lanes.idle_tasks, lanes.left_out), (idle_tasks, left_out));
    };
    check(10, &["make 0", "cc1 1", "locked 2", "as 1"], 1, 0);
    check(2, &["make 0", "cc1 1"], 1, 2);
    check(1, &["cc1 0"], 1, 3);
    check(0, &[], 1, 4);
}

#[test]
fn short_neighbours_become_one_piece() {
    let drawn = make();
    let check = |of: &str, columns, expected: &str| {
        let view = View { range: whole(&drawn.timeline), columns };
        let lanes = lanes(alone(&drawn.timeline), &view.range, 10).lanes;
        let lane = lanes.iter().find(|lane| name(&drawn, lane) == of).unwrap();
        let text = |piece: &Piece| {
            let share =
                |&(activity, ns): &(Activity, u64)| format!("{}{}", letter(activity), ns / 10);
            piece.shares.iter().map(share).collect::<String>()
        };
        let pieces = pieces(alone(&drawn.timeline), lane, &view);
        assert_eq!(pieces.iter().map(text).collect::<Vec<_>>().join(" "), expected, "{of}");
    };
    check("make", 12, "u2 a8 .1 u1");
    check("make", 4, "u2 a8 u1.1");
    check("make", 1, "a8u3.1");
    check("cc1", 12, ".1 u1 d3 u3");
    check("cc1", 4, "u1.1 d3 u3");
    check("disk0", 4, "_4 R2q1 _5");
    check("cpu0", 6, "u2 _3 u1k1 u1_1 _2 u1");
}

#[test]
fn levels() {
    let drawn = DrawnTimeline::new(&[("make", "", &"0a".repeat(600))], &[]);
    let range = whole(&drawn.timeline);
    let mut lanes = lanes(alone(&drawn.timeline), &range, 10).lanes;
    lanes.retain(|lane| name(&drawn, lane) == "make");
    let check = |max_pieces, levels: &[(u64, usize)], exact| {
        let pyramid = pyramid(alone(&drawn.timeline), &lanes, &range, max_pieces);
        let level = |level: &Level| (level.resolution_ns, level.pieces[0].len());
        let found: Vec<_> = pyramid.levels.iter().map(level).collect();
        assert_eq!((found.as_slice(), pyramid.exact), (levels, exact), "{max_pieces}");
    };
    check(1200, &[(24, 400), (6, 1200)], true);
    check(1199, &[(24, 400)], false);
    check(399, &[(94, 120)], false);
    check(120, &[(94, 120)], false);
    check(0, &[(12000, 1)], false);
}

/// Sums hold, and bounds.
#[test]
fn random_timelines() {
    let random = &mut Random(6);
    let timelines: Vec<_> = (0..1000).map(|_| at_random(random)).chain(senseless()).collect();
    for timeline in timelines {
        let length = timeline.end.since(timeline.begin) + 20;
        let [begin, end] = [0; 2].map(|_| HostNs(timeline.begin.0 + random.below(length)));
        let columns = usize::try_from(random.below(40)).unwrap();
        let view = View { range: begin..end, columns };
        let max_tasks = usize::try_from(random.below(10)).unwrap();
        let lanes = lanes(alone(&timeline), &view.range, max_tasks).lanes;
        let is_task = |lane: &&Lane| matches!(lane.of, LaneOf::Task(_));
        assert!(lanes.iter().filter(is_task).count() <= max_tasks);
        for lane in &lanes {
            let pieces = pieces(alone(&timeline), lane, &view);
            assert!(pieces.len() <= 2 * columns.max(1) + 1);
            covered(lane, &pieces);
            let cells = cells(alone(&timeline), lane, &view);
            assert_eq!(cells.len(), columns);
        }
        let max_pieces = usize::try_from(random.below(400)).unwrap();
        let pyramid = pyramid(alone(&timeline), &lanes, &view.range, max_pieces);
        for level in &pyramid.levels {
            lanes.iter().zip(&level.pieces).for_each(|(lane, pieces)| covered(lane, pieces));
        }
        let mut n_pieces = pyramid.levels.iter().map(|level| level.pieces.iter().flatten().count());
        assert!(n_pieces.all(|n| n <= max_pieces.max(3 * lanes.len())));
        let lines = |lane: &Lane| (lane.line, lane.life.start, lane.life.end);
        let mut lines: Vec<_> = lanes.iter().filter(is_task).map(lines).collect();
        lines.sort_unstable();
        assert!(lines.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1));
    }
}

/// Pieces touch, cover the lane's life, and add up.
#[track_caller]
fn covered(lane: &Lane, pieces: &[Piece]) {
    let mut at = lane.life.start;
    for piece in pieces {
        assert_eq!(piece.begin, at);
        at = piece.end;
        let sum: u64 = piece.shares.iter().map(|share| share.1).sum();
        assert_eq!(sum, piece.end.since(piece.begin));
    }
    assert_eq!(at, lane.life.end.max(lane.life.start));
}
