//! Slices of CPUs and segments of tasks in little room: a timeline is millions of them.
//!
//! ```text
//!  begins   0        10      15           40         end 90
//!           | what   | what  | what       | what     |
//! ```
//!
//! They touch, so each is kept as its begin and what holds from then on, in 16 bytes: it ends where the next begins.

mod segments;
mod slices;

use model::HostNs;

pub use segments::{Segments, SegmentsIter};
pub use slices::{Slices, SlicesIter};

/// Stretches of time that touch, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rows<T> {
    begins: Vec<(HostNs, T)>,
    /// Of the last; without any, where the first will begin.
    end: HostNs,
}

impl<T> Rows<T> {
    fn beginning(begin: HostNs) -> Self {
        Self { begins: Vec::new(), end: begin }
    }

    /// From the end so far to `end`. Time does not go back: an earlier `end` makes it empty.
    fn push(&mut self, end: HostNs, what: T) {
        self.begins.push((self.end, what));
        self.end = self.end.max(end);
    }

    fn len(&self) -> usize {
        self.begins.len()
    }

    fn get(&self, row: usize) -> Option<(HostNs, HostNs, &T)> {
        let (begin, what) = self.begins.get(row)?;
        let end = self.begins.get(row + 1).map_or(self.end, |(next, _)| *next);
        Some((*begin, end, what))
    }

    /// How many end at `time` or before.
    fn ended_by(&self, time: HostNs) -> usize {
        if self.end <= time { self.len() } else { self.begun_by(time).saturating_sub(1) }
    }

    /// How many end before `time`.
    fn ended_before(&self, time: HostNs) -> usize {
        let begun = || self.begins.partition_point(|(begin, _)| *begin < time);
        if self.end < time { self.len() } else { begun().saturating_sub(1) }
    }

    /// How many begin at `time` or before.
    fn begun_by(&self, time: HostNs) -> usize {
        self.begins.partition_point(|(begin, _)| *begin <= time)
    }
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self::beginning(HostNs(0))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// As a list of stretches would be searched.
    #[test]
    fn rows_are_found_by_time() {
        let check = |begin: u64, ends: &[u64]| {
            let mut rows = Rows::beginning(HostNs(begin));
            ends.iter().for_each(|end| rows.push(HostNs(*end), ()));
            let begins = || std::iter::once(&begin).chain(ends).zip(ends);
            for (row, (begin, end)) in begins().enumerate() {
                assert_eq!(rows.get(row), Some((HostNs(*begin), HostNs(*end), &())));
            }
            assert_eq!((rows.len(), rows.get(ends.len())), (ends.len(), None));
            for time in 0..30 {
                let count = |wanted: &dyn Fn(u64, u64) -> bool| {
                    begins().filter(|(begin, end)| wanted(**begin, **end)).count()
                };
                let at = HostNs(time);
                assert_eq!(rows.ended_by(at), count(&|_, end| end <= time), "{ends:?} {time}");
                assert_eq!(rows.ended_before(at), count(&|_, end| end < time), "{ends:?} {time}");
                assert_eq!(rows.begun_by(at), count(&|begin, _| begin <= time), "{ends:?} {time}");
            }
        };
        check(0, &[10, 15, 20]);
        check(7, &[8]);
        check(5, &[]);
        check(3, &[3, 9, 9, 9, 12, 12]);
    }
}
