//! Stretches of time that touch, and what two rows of them have in common.

use std::ops::Range;

use model::HostNs;

/// A stretch of time and what holds in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch<T> {
    pub(crate) begin: HostNs,
    pub(crate) end: HostNs,
    pub(crate) what: T,
}

/// From a time on there are so many more, or fewer, of each of two sorts.
pub(crate) type Edge = (HostNs, [i64; 2]);

/// The edges of an interval that adds one of a sort.
pub(crate) fn edges(interval: (HostNs, HostNs), sort: usize) -> [Edge; 2] {
    let mut step = [0; 2];
    step[sort] = 1;
    [(interval.0, step), (interval.1, step.map(|n: i64| -n))]
}

/// How many there are of each sort: stretches that touch and cover the range, none empty, neighbours unlike.
pub(crate) fn levels(range: &Range<HostNs>, mut edges: Vec<Edge>) -> Vec<Stretch<[i64; 2]>> {
    edges.sort_unstable();
    let mut stretches: Vec<Stretch<[i64; 2]>> = Vec::new();
    let (mut at, mut level) = (range.start, [0; 2]);
    let end = (range.end, [0; 2]);
    for (time, step) in edges.into_iter().chain([end]) {
        let time = time.clamp(at, range.end.max(at));
        if at < time {
            match stretches.last_mut() {
                Some(last) if last.what == level => last.end = time,
                _ => stretches.push(Stretch { begin: at, end: time, what: level }),
            }
            at = time;
        }
        level = [level[0] + step[0], level[1] + step[1]];
    }
    stretches
}

/// Calls `add` with the length of each stretch in which neither row changes. Both cover the same time.
pub(crate) fn cross<A: Copy, B: Copy>(
    a: impl Iterator<Item = Stretch<A>>,
    b: &[Stretch<B>],
    mut add: impl FnMut(u64, A, B),
) {
    let mut row = 0;
    for a in a {
        let mut at = a.begin;
        while at < a.end
            && let Some(b) = b.get(row)
        {
            let end = a.end.min(b.end);
            add(end.since(at), a.what, b.what);
            at = at.max(end);
            row += usize::from(b.end <= a.end);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn stretches<T: Copy>(parts: &[(u64, u64, T)]) -> Vec<Stretch<T>> {
        let stretch = |(begin, end, what): &(u64, u64, T)| Stretch {
            begin: HostNs(*begin),
            end: HostNs(*end),
            what: *what,
        };
        parts.iter().map(stretch).collect()
    }

    #[test]
    fn intervals_are_counted() {
        let check = |intervals: &[(u64, u64, usize)], expected: &[(u64, u64, [i64; 2])]| {
            let all = intervals
                .iter()
                .flat_map(|(begin, end, sort)| edges((HostNs(*begin), HostNs(*end)), *sort));
            let found = levels(&(HostNs(10)..HostNs(50)), all.collect());
            assert_eq!(found, stretches(expected));
        };
        check(&[], &[(10, 50, [0, 0])]);
        check(&[(0, 90, 1)], &[(10, 50, [0, 1])]);
        check(&[(20, 30, 0)], &[(10, 20, [0, 0]), (20, 30, [1, 0]), (30, 50, [0, 0])]);
        check(&[(20, 30, 0), (30, 60, 0)], &[(10, 20, [0, 0]), (20, 50, [1, 0])]);
        check(
            &[(0, 30, 0), (20, 40, 1)],
            &[(10, 20, [1, 0]), (20, 30, [1, 1]), (30, 40, [0, 1]), (40, 50, [0, 0])],
        );
        check(&[(20, 20, 0), (0, 5, 1), (60, 70, 1)], &[(10, 50, [0, 0])]);
    }

    #[test]
    fn rows_are_crossed() {
        let check = |a: &[(u64, u64, char)], b: &[(u64, u64, char)], expected: &str| {
            let mut found = String::new();
            cross(stretches(a).into_iter(), &stretches(b), |ns, a, b| {
                found += &format!("{ns}{a}{b} ");
            });
            assert_eq!(found.trim_end(), expected);
        };
        check(&[(0, 9, 'a')], &[(0, 9, 'x')], "9ax");
        check(&[(0, 4, 'a'), (4, 9, 'b')], &[(0, 9, 'x')], "4ax 5bx");
        check(&[(0, 9, 'a')], &[(0, 4, 'x'), (4, 9, 'y')], "4ax 5ay");
        check(&[(0, 4, 'a'), (4, 9, 'b')], &[(0, 4, 'x'), (4, 9, 'y')], "4ax 5by");
        check(&[(0, 4, 'a'), (4, 9, 'b')], &[(0, 5, 'x'), (5, 9, 'y')], "4ax 1bx 4by");
        check(&[], &[], "");
    }
}
