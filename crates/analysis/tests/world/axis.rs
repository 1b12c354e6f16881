//! The world's vCPUs on one time axis, drawn.

use analysis::vcpu_timeline::{Occupancy, Occupant, Segment, Span, VcpuTimeline, VcpuTimelines};
use model::{CpuId, HostNs, Pid, Tid, TimelineState, VcpuId};

use super::{MS, START};

/// A character is a millisecond. vCPUs (rows of `Tables::vcpus`) wait for cpu0.
///
/// `G` guest, `.` not sampled, `H` halted, `p` halt polling, `P` preempted, `V` in the VMM for I/O, `W` waiting in
/// the VMM, `T` throttled, `?` unknown. On cpu0: `0`..`2` a vCPU, `q` another thread, `i` idle, `?` unknown.
const VCPUS: [&str; 3] = [
    "GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGHHHHHHHHHHHHHHHHHHHHppppPPPPPPPPPPPPPPPPPPPPVVVVVVVVVVTTTTTT....",
    "?????GGGGGGGGGGGGGGGGGGHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHPPPPPPPPPPPPPPPPPPPPWWWWWWWWWWW",
    "                                        GGGGGGGHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH",
];
const CPU0: &str = "iiiiiiiiii000000000000000000000000000000000000000000000000011111111112222222200qqqqq?????iiiiiiiiii";

/// The drawn axis.
pub(crate) fn axis() -> VcpuTimelines {
    let spans = stretches(CPU0).map(|(c, from, to)| Span { from, to, who: occupant(c) });
    let cpu0 = Occupancy::new(CpuId(0), spans.collect());
    let timelines = (0_u32..).zip(VCPUS).map(|(row, line)| timeline(VcpuId(row), line));
    VcpuTimelines { timelines: timelines.collect(), cpus: vec![cpu0], ..VcpuTimelines::default() }
}

fn timeline(vcpu: VcpuId, line: &str) -> VcpuTimeline {
    let lived = stretches(line).filter(|(what, ..)| *what != ' ');
    let segment = |(what, from, to)| Segment {
        from,
        to,
        state: state(what),
        cpu: Some(CpuId(0)),
        place: None,
    };
    let segments: Vec<Segment> = lived.map(segment).collect();
    let (from, to) = (segments[0].from, segments[segments.len() - 1].to);
    VcpuTimeline { vcpu, from, to, segments }
}

/// Stretches of equal characters.
fn stretches(line: &str) -> impl Iterator<Item = (char, HostNs, HostNs)> {
    let chars: Vec<char> = line.chars().collect();
    let starts: Vec<usize> =
        (0..chars.len()).filter(|at| *at == 0 || chars[*at] != chars[*at - 1]).collect();
    let ends: Vec<usize> = starts.iter().copied().skip(1).chain([chars.len()]).collect();
    let at = |ms: usize| HostNs(START.0 + ms as u64 * MS);
    starts.into_iter().zip(ends).map(move |(from, to)| (chars[from], at(from), at(to)))
}

/// What a letter stands for.
pub(crate) fn state(what: char) -> TimelineState {
    match what {
        'G' => TimelineState::GuestUser,
        '.' => TimelineState::NotSampled,
        'H' => TimelineState::Halt,
        'p' => TimelineState::HaltPolling,
        'P' => TimelineState::StealOutside,
        'V' => TimelineState::StealVmm { reason: 0x7b },
        'W' => TimelineState::StealVmmWaiting { reason: Some(0x7b) },
        'T' => TimelineState::Throttled,
        'Z' => TimelineState::Paused,
        '?' => TimelineState::Unknown,
        other => panic!("{other}"),
    }
}

fn occupant(what: char) -> Occupant {
    match what {
        '0'..='2' => Occupant::Vcpu(VcpuId(what.to_digit(10).unwrap())),
        'q' => Occupant::Thread(Pid(1000), Tid(1000)),
        'i' => Occupant::Idle,
        '?' => Occupant::Unknown,
        other => panic!("{other}"),
    }
}
