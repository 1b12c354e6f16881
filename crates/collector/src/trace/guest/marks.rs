//! A check of a guest's clock: instants that both sides saw.
//!
//! ```text
//!  guest    reading   the call's begin, an event                      its end, an event   reading
//!              |                 |    writes a number, reads the answer       |              |
//!  host        |                 |          saw it    answered it             |              |
//! ```
//! With the guest's clock right, the host has seen and answered each number between the two events that the guest's probes
//! stored of the same system call. Which call it was, the readings tell: events may be lost.

use model::{Tid, TraceEvent, TraceEventKind};
use probes::MarkSeen;
use tracer::outside::GuestClock;

/// The system call that makes a mark: `pread64`.
const CALL: u16 = 17;
/// Calls that are kept: a guest could make any number of them.
const MAX_CALLS: usize = 4096;

/// Marks that were made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Marks {
    marks: Vec<Mark>,
    /// Other writes to the same port meanwhile.
    others: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// The guest's clock just before, ns.
    before_ns: u64,
    /// When the host saw it; `None`: not once.
    seen: Option<MarkSeen>,
    /// The guest's clock just after, ns.
    after_ns: u64,
}

/// When the system calls that make marks began and ended, by the guest's events and clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Calls {
    begins_ns: Vec<u64>,
    ends_ns: Vec<u64>,
}

/// What marks say of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Check {
    /// That both sides saw, and that are compared.
    marks: usize,
    /// That the host did not see, or more than once.
    unseen: usize,
    /// Whose events are lost.
    lost: usize,
    others: u64,
    /// Seen before the call's begin, or answered after its end.
    outside: usize,
    /// The furthest outside, ns.
    furthest_ns: u64,
    /// The shortest time from a call's begin to the host's seeing it, ns: events are not earlier than that.
    least_early_ns: u64,
    /// The shortest from its answer to the call's end, ns: events are not later than that.
    least_late_ns: u64,
    /// Median length of a call, ns.
    length_ns: u64,
}

impl Marks {
    /// A round of marks: the guest's clock before and after each, and when the host saw which number, and how much else.
    pub(super) fn add(
        &mut self,
        made: &[(u64, u64)],
        (seen, others): (Vec<Option<MarkSeen>>, u64),
    ) {
        let mark = |(&(before_ns, after_ns), seen)| Mark { before_ns, seen, after_ns };
        self.marks.extend(made.iter().zip(seen).map(mark));
        self.others = self.others.saturating_add(others);
    }

    /// All of another's.
    pub(super) fn append(&mut self, more: Self) {
        self.marks.extend(more.marks);
        self.others = self.others.saturating_add(more.others);
    }
}

impl Calls {
    /// Takes in an event that has the guest's time.
    pub(super) fn add(&mut self, marker: Tid, event: &TraceEvent) {
        let times = match event.kind {
            TraceEventKind::SyscallEnter { task, number: CALL } if task == marker => {
                &mut self.begins_ns
            }
            TraceEventKind::SyscallExit { task, number: CALL, .. } if task == marker => {
                &mut self.ends_ns
            }
            _ => return,
        };
        if times.len() < MAX_CALLS {
            times.push(event.time.0);
        }
    }

    /// Begin and end of the only call between a mark's readings.
    fn of(&self, mark: &Mark) -> Option<(u64, u64)> {
        let only = |times: &[u64]| {
            let mut within =
                times.iter().filter(|ns| (mark.before_ns..=mark.after_ns).contains(ns));
            within.next().filter(|_| within.next().is_none()).copied()
        };
        let (begin, end) = (only(&self.begins_ns)?, only(&self.ends_ns)?);
        (begin <= end).then_some((begin, end))
    }
}

fn check(clock: &GuestClock, Marks { marks, others }: &Marks, calls: &Calls) -> Check {
    let mut check = Check {
        others: *others,
        least_early_ns: u64::MAX,
        least_late_ns: u64::MAX,
        ..Check::default()
    };
    let mut lengths_ns = Vec::new();
    for mark in marks {
        let Some(MarkSeen { written, answered }) = mark.seen else {
            check.unseen += 1;
            continue;
        };
        let Some((begin, end)) = calls.of(mark) else {
            check.lost += 1;
            continue;
        };
        let (begin, end) = (clock.host(begin), clock.host(end));
        let outside_ns = begin.since(written).max(answered.since(end));
        check.marks += 1;
        check.outside += usize::from(0 < outside_ns);
        check.furthest_ns = check.furthest_ns.max(outside_ns);
        check.least_early_ns = check.least_early_ns.min(written.since(begin));
        check.least_late_ns = check.least_late_ns.min(end.since(answered));
        lengths_ns.push(end.since(begin));
    }
    lengths_ns.sort_unstable();
    check.length_ns = lengths_ns.get(lengths_ns.len() / 2).copied().unwrap_or(0);
    check
}

/// The check in words; `None`: no mark was made.
pub(super) fn note(clock: &GuestClock, marks: &Marks, calls: &Calls) -> Option<String> {
    if marks.marks.is_empty() {
        return None;
    }
    let check = check(clock, marks, calls);
    let mut text = format!("its clock was checked by {} port writes", check.marks);
    if 0 < check.marks {
        text.push_str(&compared(&check));
    }
    let not_counted = [
        (check.unseen as u64, "that the host did not see once"),
        (check.lost as u64, "whose events are lost"),
        (check.others, "of others"),
    ];
    let said = not_counted.iter().filter(|(count, _)| 0 < *count);
    let said: Vec<String> = said.map(|(count, what)| format!("{count} {what}")).collect();
    if !said.is_empty() {
        text.push_str(&format!("; not counted: {}", said.join(", ")));
    }
    Some(text)
}

#[expect(clippy::cast_precision_loss, reason = "figures to show")]
fn compared(check: &Check) -> String {
    let us = |ns: u64| ns as f64 / 1000.0;
    let seen = match check.outside {
        0 => format!(
            "all between the two; by the sharpest its events are {:.3} us early at most, {:.3} us late at most",
            us(check.least_early_ns),
            us(check.least_late_ns)
        ),
        outside => {
            format!("{outside} of them outside, by {:.3} us at most", us(check.furthest_ns))
        }
    };
    format!(
        ", each in a system call of which it stored begin and end ({:.3} us apart at the median): the host saw {seen}",
        us(check.length_ns)
    )
}

#[cfg(test)]
mod test {
    use model::{HostNs, MachineId};
    use tracer::outside::ClockSample;

    use super::*;

    const MARKER: Tid = Tid(7);

    fn clock() -> GuestClock {
        GuestClock::new(ClockSample { guest_ns: 0, host: HostNs(1_000_000), error_ns: 5 })
    }

    /// Calls of the marker, of another task, and another call of the marker.
    fn calls(times: &[(u64, u64)]) -> Calls {
        let mut calls = Calls::default();
        let mut see = |ns, what| {
            let event = TraceEvent { time: HostNs(ns), machine: MachineId(1), cpu: 0, kind: what };
            calls.add(MARKER, &event);
        };
        for &(begin, end) in times {
            for (task, number) in [(MARKER, CALL), (Tid(8), CALL), (MARKER, 1)] {
                see(begin, TraceEventKind::SyscallEnter { task, number });
                see(end, TraceEventKind::SyscallExit { task, number, failed: false });
            }
        }
        calls
    }

    /// Answered 5 ns after they were seen.
    fn marks(made: &[(u64, u64)], seen: &[Option<u64>], others: u64) -> Marks {
        let mut marks = Marks::default();
        let seen_at =
            |ns| MarkSeen { written: HostNs(1_000_000 + ns), answered: HostNs(1_000_005 + ns) };
        marks.add(made, (seen.iter().map(|seen| seen.map(seen_at)).collect(), others));
        marks
    }

    #[test]
    fn marks_lie_within_their_calls_or_outside() {
        let made = [(100, 200), (200, 300), (300, 400)];
        let calls = calls(&[(110, 190), (220, 290), (310, 390)]);
        let marks = marks(&made, &[Some(150), Some(205), Some(440)], 0);
        let expected =
            Check { marks: 3, outside: 2, furthest_ns: 55, length_ns: 80, ..Check::default() };
        assert_eq!(check(&clock(), &marks, &calls), expected);
        let text = note(&clock(), &marks, &calls).unwrap();
        assert!(text.contains("2 of them outside, by 0.055 us"), "{text}");
    }

    #[test]
    fn the_sharpest_bound_the_error_both_ways() {
        let calls = calls(&[(110, 190), (220, 290)]);
        let marks = marks(&[(100, 200), (200, 300)], &[Some(150), Some(275)], 0);
        let text = note(&clock(), &marks, &calls).unwrap();
        assert!(text.contains("all between"), "{text}");
        assert!(text.contains("0.040 us early at most, 0.010 us late at most"), "{text}");
        assert!(!text.contains("not counted"), "{text}");
    }

    /// Numbers that did not arrive, or twice; calls that are not among the events, or not alone.
    #[test]
    fn what_is_not_sure_is_said_and_not_counted() {
        let calls = calls(&[(110, 190), (210, 220), (230, 240), (410, 420)]);
        let made = [(100, 200), (200, 300), (300, 400), (400, 500)];
        let marks = marks(&made, &[None, Some(215), Some(350), Some(415)], 3);
        let text = note(&clock(), &marks, &calls).unwrap();
        assert!(text.contains("checked by 1 port writes, each"), "{text}");
        let expected =
            "not counted: 1 that the host did not see once, 2 whose events are lost, 3 of others";
        assert!(text.contains(expected), "{text}");
        let unseen = self::marks(&made[..1], &[None], 0);
        let text = note(&clock(), &unseen, &calls).unwrap();
        assert!(
            text.starts_with("its clock was checked by 0 port writes; not counted: 1"),
            "{text}"
        );
        assert_eq!(note(&clock(), &Marks::default(), &calls), None);
    }

    #[test]
    fn a_guest_can_make_any_number_of_calls() {
        let times: Vec<(u64, u64)> = (0..10_000).map(|n| (n, n)).collect();
        assert_eq!(calls(&times).begins_ns.len(), MAX_CALLS);
    }
}
