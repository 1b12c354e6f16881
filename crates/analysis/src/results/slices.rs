//! A window's time, cut at the clock's round times so that slices of all hosts compare.

use model::{Header, HostNs};

/// Slices of a window at most, whatever its header says.
const MAX_SLICES: u64 = 4000;

/// Where a window's time is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slices {
    start: HostNs,
    end: HostNs,
    start_unix_ns: u64,
    length_ns: u64,
}

impl Slices {
    /// Slices of `length_ns`, or longer ones if that makes too many.
    pub(super) fn new(header: &Header, length_ns: u64) -> Self {
        let Header { start, start_unix_ns, .. } = *header;
        let end = header.end.max(start);
        let length_ns = length_ns.max(end.since(start).div_ceil(MAX_SLICES)).max(1000);
        Self { start, end, start_unix_ns, length_ns }
    }

    /// The slice of an instant; one outside the window counts to the first or last.
    pub(super) fn number(&self, time: HostNs) -> u64 {
        let last = HostNs(self.end.0.saturating_sub(1)).max(self.start);
        self.unix_ns(time.clamp(self.start, last)) / self.length_ns
    }

    /// Its begin, us since 1970.
    pub(super) fn unix_us(&self, number: u64) -> i64 {
        let us = number.saturating_mul(self.length_ns) / 1000;
        i64::try_from(us).unwrap_or(i64::MAX)
    }

    /// That of the first.
    pub(super) fn first_unix_us(&self) -> i64 {
        self.unix_us(self.number(self.start))
    }

    /// A stretch of time by slice: (number, first instant, first instant after it).
    pub(super) fn cut(
        self,
        from: HostNs,
        to: HostNs,
    ) -> impl Iterator<Item = (u64, HostNs, HostNs)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let number = self.number(at);
            let end =
                self.end_of(number).map_or(to, |end| if end <= at { to } else { end.min(to) });
            let piece = (at < to).then_some((number, at, end));
            at = end;
            piece
        })
    }

    /// All slices: (number, the part of its length that lies in the window).
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        self.cut(self.start, self.end).map(|(number, from, to)| (number, to.since(from)))
    }

    fn unix_ns(&self, time: HostNs) -> u64 {
        self.start_unix_ns.saturating_add(time.since(self.start))
    }

    /// `None`: it has no end.
    fn end_of(&self, number: u64) -> Option<HostNs> {
        let unix_ns = (number + 1).checked_mul(self.length_ns)?;
        let since_start = unix_ns.checked_sub(self.start_unix_ns)?;
        self.start.0.checked_add(since_start).map(HostNs)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Start, end and `CLOCK_REALTIME` at the start, in s, then slices as `begin:length`.
    fn check(start: u64, end: u64, unix: u64, slice: u64, expected: &str) {
        const S: u64 = 1_000_000_000;
        let header = Header {
            start: HostNs(start * S),
            end: HostNs(end * S),
            start_unix_ns: unix * S,
            ..crate::testing::header(1, 0)
        };
        let slices = Slices::new(&header, slice * S);
        let text =
            |(number, length)| format!("{}:{}", slices.unix_us(number) / 1_000_000, length / S);
        let found: Vec<_> = slices.all().map(text).collect();
        assert_eq!(found.join(" "), expected);
    }

    #[test]
    fn slices_begin_at_round_times() {
        check(5, 65, 1000, 10, "1000:10 1010:10 1020:10 1030:10 1040:10 1050:10");
        check(5, 32, 1007, 10, "1000:3 1010:10 1020:10 1030:4");
        check(5, 8, 1007, 60, "960:3");
        check(5, 5, 1007, 60, "");
        check(
            0,
            40_000,
            0,
            1,
            &(0..4000).map(|n| format!("{}:10", n * 10)).collect::<Vec<_>>().join(" "),
        );
    }

    #[test]
    fn nonsense_ends() {
        let header = Header {
            start: HostNs(1),
            end: HostNs(u64::MAX),
            start_unix_ns: u64::MAX - 5,
            ..crate::testing::header(1, 0)
        };
        let slices = Slices::new(&header, 1);
        assert_eq!(slices.all().map(|(_, length)| length).sum::<u64>(), u64::MAX - 1);
    }
}
