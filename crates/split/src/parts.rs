//! The parts of a turnaround.

use std::net::IpAddr;

use crate::CaptureNs;

/// What a time of a request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// From the request's first byte to the first query (C-W-D).
    BeforeQueries,
    /// A database owed an answer (W-D-W).
    Database,
    /// Between two answers and queries (D-W-D).
    BetweenQueries,
    /// From the last answer to the response's last byte (D-W-C).
    AfterQueries,
    /// The whole of a request without queries (C-W-C).
    NoQueries,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::BeforeQueries,
        Self::Database,
        Self::BetweenQueries,
        Self::AfterQueries,
        Self::NoQueries,
    ];

    /// The letters in reports, such as `C-W-D`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeQueries => "C-W-D",
            Self::Database => "W-D-W",
            Self::BetweenQueries => "D-W-D",
            Self::AfterQueries => "D-W-C",
            Self::NoQueries => "C-W-C",
        }
    }
}

/// Why a request's time can't be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unknown {
    /// Several requests were under way from which a query could be.
    Overlap,
    /// Packets of a database connection are not in the capture, or it began in the middle of them.
    LostPackets,
    /// A database connection is encrypted.
    Encrypted,
    /// A database connection is compressed, or speaks an unknown protocol.
    Undecoded,
    /// No connection from the web server's address to a database is in the capture.
    NoDatabase,
    /// The web server's guest has the database, and was not traced then.
    NotTraced,
    /// Events of that guest were lost.
    LostEvents,
    /// The capture has more than there is memory for.
    TooMany,
}

impl Unknown {
    /// The key in reports.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::LostPackets => "lost_packets",
            Self::Encrypted => "db_encrypted",
            Self::Undecoded => "db_undecoded",
            Self::NoDatabase => "no_database",
            Self::NotTraced => "not_traced",
            Self::LostEvents => "lost_events",
            Self::TooMany => "too_many",
        }
    }

    /// A description for reports.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Overlap => "a query may belong to any of several requests",
            Self::LostPackets => "packets of a database connection are not in the capture",
            Self::Encrypted => "a database connection is encrypted (TLS)",
            Self::Undecoded => "a database connection is compressed or of an unknown protocol",
            Self::NoDatabase => "no database connection of this web server in the capture",
            Self::NotTraced => "the web server's guest was not traced then",
            Self::LostEvents => "the trace of the web server's guest lost events",
            Self::TooMany => "too many requests or queries",
        }
    }
}

/// A time and what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartTime {
    pub part: Part,
    /// Who worked: the web server or the database; `None`: several databases at once.
    pub worker: Option<IpAddr>,
    pub begin: CaptureNs,
    pub end: CaptureNs,
}

/// A time in which a database owed a request an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnTrip {
    pub(crate) begin: CaptureNs,
    pub(crate) end: CaptureNs,
    pub(crate) statements: u32,
    pub(crate) database: IpAddr,
}

/// The parts of one turnaround, one after the other, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    times: Vec<PartTime>,
    queries: u32,
    trips: u32,
}

impl Parts {
    /// Of a request to `web` from `begin` to `end`, with times in which a database owed it an answer: inside of that, in the
    /// order in which they began.
    pub(crate) fn new(web: IpAddr, begin: CaptureNs, end: CaptureNs, trips: &[OwnTrip]) -> Self {
        let mut times = Vec::new();
        let mut push = |part, worker, from, to| {
            times.push(PartTime { part, worker, begin: from, end: to });
        };
        let web = Some(web);
        let mut busy: Option<(CaptureNs, CaptureNs, Option<IpAddr>)> = None;
        for trip in trips {
            let (from, to, database) = (trip.begin, trip.end, Some(trip.database));
            match &mut busy {
                None => {
                    push(Part::BeforeQueries, web, begin, from);
                    busy = Some((from, to, database));
                }
                // Several at a time, on several connections or on one without waiting.
                Some((_, until, worker)) if from <= *until => {
                    *until = (*until).max(to);
                    *worker = worker.filter(|worker| *worker == trip.database);
                }
                Some((since, until, worker)) => {
                    push(Part::Database, *worker, *since, *until);
                    push(Part::BetweenQueries, web, *until, from);
                    busy = Some((from, to, database));
                }
            }
        }
        match busy {
            None => push(Part::NoQueries, web, begin, end),
            Some((since, until, worker)) => {
                push(Part::Database, worker, since, until);
                push(Part::AfterQueries, web, until, end);
            }
        }
        let queries = trips.iter().map(|trip| trip.statements).sum();
        let parts = Self { times, queries, trips: u32::try_from(trips.len()).unwrap_or(u32::MAX) };
        let sum: u64 = Part::ALL.iter().map(|part| parts.ns(*part)).sum();
        assert_eq!(sum, end.since(begin), "trips are inside of their request, in order");
        parts
    }

    /// How long in all.
    #[must_use]
    pub fn ns(&self, part: Part) -> u64 {
        let times = self.times.iter().filter(|time| time.part == part);
        times.map(|time| time.end.since(time.begin)).sum()
    }

    /// One after the other.
    #[must_use]
    pub fn times(&self) -> &[PartTime] {
        &self.times
    }

    /// Statements that were executed.
    #[must_use]
    pub fn queries(&self) -> u32 {
        self.queries
    }

    /// Times at which the web server waited for a database: a prepared statement may take two of a query, a new
    /// connection several of none.
    #[must_use]
    pub fn trips(&self) -> u32 {
        self.trips
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn host(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn own_trip(from: u64, to: u64, database: u8) -> OwnTrip {
        let (begin, end) = (CaptureNs(10 + from), CaptureNs(10 + to));
        OwnTrip { begin, end, statements: 1, database: host(database) }
    }

    #[test]
    fn several_databases_at_once_are_nobodys_work() {
        let trips = [own_trip(1, 3, 3), own_trip(2, 4, 4), own_trip(6, 7, 4)];
        let parts = Parts::new(host(2), CaptureNs(10), CaptureNs(20), &trips);
        let workers: Vec<_> = parts.times().iter().map(|time| time.worker).collect();
        assert_eq!(workers, [Some(host(2)), None, Some(host(2)), Some(host(4)), Some(host(2))]);
    }

    /// `C`: C-W-D, `d`: W-D-W, `-`: D-W-D, `w`: D-W-C, `n`: C-W-C.
    fn check(length: u64, trips: &[(u64, u64)], expected: &str) {
        let trip = |(from, to): &(u64, u64)| own_trip(*from, *to, 3);
        let trips: Vec<_> = trips.iter().map(trip).collect();
        let parts = Parts::new(host(2), CaptureNs(10), CaptureNs(10 + length), &trips);
        let letter = |part| match part {
            Part::BeforeQueries => "C",
            Part::Database => "d",
            Part::BetweenQueries => "-",
            Part::AfterQueries => "w",
            Part::NoQueries => "n",
        };
        let draw = |time: &PartTime| letter(time.part).repeat(time.end.since(time.begin) as usize);
        assert_eq!(parts.times().iter().map(draw).collect::<String>(), expected);
        assert_eq!(parts.queries() as usize, trips.len());
    }

    #[test]
    fn parts_in_their_order() {
        check(5, &[], "nnnnn");
        check(9, &[(2, 5)], "CCdddwwww");
        check(9, &[(2, 4), (5, 8)], "CCdd-dddw");
        check(9, &[(2, 6), (3, 4), (6, 8)], "CCddddddw");
        check(9, &[(0, 9)], "ddddddddd");
        check(4, &[(2, 2), (3, 3)], "CC-w");
    }
}
