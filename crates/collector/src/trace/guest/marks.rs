//! A check of a guest's clock: instants that both sides saw.

use tracer::outside::GuestClock;

use super::worker::Mark;

/// What marks say of a clock. The host must have seen each between the guest's readings before and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Check {
    marks: usize,
    /// Seen outside of them.
    outside: usize,
    /// The furthest outside, ns.
    furthest_ns: u64,
    /// Median time from the guest's reading before to the host's seeing it, ns: the VM exit is in it.
    seen_after_ns: i64,
    /// Median time between the guest's readings, ns.
    length_ns: u64,
}

fn check(clock: &GuestClock, marks: &[Mark]) -> Option<Check> {
    let mut seen_after: Vec<i64> = Vec::new();
    let mut lengths: Vec<u64> = Vec::new();
    let mut furthest: Vec<u64> = Vec::new();
    for mark in marks {
        let (before, after) = (clock.host(mark.before_ns), clock.host(mark.after_ns));
        seen_after.push(mark.seen.0.cast_signed().wrapping_sub(before.0.cast_signed()));
        lengths.push(after.0.saturating_sub(before.0));
        let early = before.0.saturating_sub(mark.seen.0);
        furthest.push(early.max(mark.seen.0.saturating_sub(after.0)));
    }
    seen_after.sort_unstable();
    lengths.sort_unstable();
    Some(Check {
        marks: marks.len(),
        outside: furthest.iter().filter(|ns| 0 < **ns).count(),
        furthest_ns: furthest.into_iter().max()?,
        seen_after_ns: *seen_after.get(marks.len() / 2)?,
        length_ns: *lengths.get(marks.len() / 2)?,
    })
}

/// The check in words.
#[expect(clippy::cast_precision_loss, reason = "figures to show")]
pub(super) fn note(clock: &GuestClock, marks: &[Mark]) -> Option<String> {
    let Check { marks, outside, furthest_ns, seen_after_ns, length_ns } = check(clock, marks)?;
    let by = match outside {
        0 => "all between its readings before and after them".to_owned(),
        _ => format!(
            "{outside} of them outside its readings before and after, by {:.3} us at most",
            furthest_ns as f64 / 1000.0
        ),
    };
    Some(format!(
        "its clock was checked by {marks} VM exits: the host saw {by}; at the median {:.3} us after the first of two \
         readings {:.3} us apart",
        seen_after_ns as f64 / 1000.0,
        length_ns as f64 / 1000.0
    ))
}

#[cfg(test)]
mod test {
    use model::HostNs;
    use tracer::outside::Knot;

    use super::*;

    #[test]
    fn marks_lie_between_the_readings_or_outside() {
        let clock = GuestClock::new(Knot { guest_ns: 0, host: HostNs(1_000_000), error_ns: 5 });
        let mark = |before_ns, seen: u64, after_ns| Mark {
            before_ns,
            seen: HostNs(1_000_000 + seen),
            after_ns,
        };
        let marks = [mark(100, 150, 220), mark(200, 190, 300), mark(300, 450, 400)];
        let expected =
            Check { marks: 3, outside: 2, furthest_ns: 50, seen_after_ns: 50, length_ns: 100 };
        assert_eq!(check(&clock, &marks), Some(expected));
        assert!(note(&clock, &marks).is_some_and(|note| note.contains("2 of them outside")));
        assert!(note(&clock, &marks[..1]).is_some_and(|note| note.contains("all between")));
        assert_eq!(note(&clock, &[]), None);
    }
}
