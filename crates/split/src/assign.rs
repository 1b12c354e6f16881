//! Which trip to a database is of which request.
//!
//! ```text
//!  request A  |------------------------------|
//!  request B              |---------------------------|
//!  trips         |==|           |==|            |==|
//!                of A           of A or B       of B
//! ```
//! A web server waits for its queries before it ends a response. So a trip is of a request that it lies inside of. If
//! there are several, its whole transaction must lie inside of the request as well, and so must its connection if that was
//! both opened and closed. What fits more than one request even then is never guessed: the parts of all of them are
//! unknown.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::parts::{OwnTrip, Parts, Unknown};
use crate::sink::{RoundTrip, Sink};
use crate::splitter::{Assigned, Outcome, Request};
use crate::{CaptureNs, Counter, Roles};

/// From when to when something was.
#[derive(Debug, Clone, Copy)]
struct Span {
    begin: CaptureNs,
    end: CaptureNs,
}

/// What a span lies inside of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    One(usize),
    Several,
    None,
}

/// Gives each request its parts. Gives addresses that queried databases and are no web server's.
pub(crate) fn assign(sink: &mut Sink, roles: &Roles) -> Vec<IpAddr> {
    let mut trips = std::mem::take(&mut sink.trips);
    trips.sort_by_key(|trip| (trip.begin, trip.end));
    let clients: Vec<IpAddr> =
        sink.databases.iter().map(|database| roles.web_host(database.client.ip())).collect();
    let host_of = |database: u32| clients.get(database as usize).copied();
    let mut web: FxHashMap<IpAddr, Vec<usize>> = FxHashMap::default();
    for (at, request) in sink.requests.iter().enumerate() {
        web.entry(request.server.ip()).or_default().push(at);
    }
    let mut trips_of: FxHashMap<IpAddr, Vec<RoundTrip>> = FxHashMap::default();
    for trip in trips {
        if let Some(host) = host_of(trip.database) {
            trips_of.entry(host).or_default().push(trip);
        }
    }
    let known: FxHashSet<IpAddr> = clients.iter().copied().collect();
    let mut strangers: BTreeSet<IpAddr> = known.iter().copied().collect();
    for (host, mut requests) in web {
        strangers.remove(&host);
        if known.contains(&host) {
            let trips = trips_of.remove(&host).unwrap_or_default();
            requests.sort_by_key(|at| (sink.requests[*at].begin, sink.requests[*at].end));
            Host { sink, requests, trips, clients: &clients, host }.split();
        }
    }
    let outside: usize = trips_of.values().map(Vec::len).sum();
    sink.counts.add(Counter::Trips, outside as u64);
    sink.counts.add(Counter::Outside, outside as u64);
    strangers.into_iter().collect()
}

/// A web server's host, with its requests and trips in the order in which they began.
struct Host<'a> {
    sink: &'a mut Sink,
    requests: Vec<usize>,
    trips: Vec<RoundTrip>,
    clients: &'a [IpAddr],
    host: IpAddr,
}

impl Host<'_> {
    fn split(mut self) {
        let spans: Vec<Span> = self.requests.iter().map(|at| self.span(*at)).collect();
        let mut own: Vec<Vec<OwnTrip>> = vec![Vec::new(); spans.len()];
        let mut why: Vec<Option<Unknown>> = vec![None; spans.len()];
        let mut ambiguous = Vec::new();
        for (trip, inside) in self.assigned(&spans) {
            match inside {
                Inside::One(request) => own[request].extend(self.own(&trip)),
                Inside::Several => ambiguous.push(Span { begin: trip.begin, end: trip.end }),
                Inside::None => {}
            }
        }
        mark(&spans, &ambiguous, &mut why);
        self.unreadable(&spans, &mut why);
        for ((at, span), (trips, why)) in
            self.requests.iter().zip(spans).zip(own.into_iter().zip(why))
        {
            let full = self.sink.full_since.is_some_and(|full| full <= span.end);
            let why = if full { Some(Unknown::TooMany) } else { why };
            self.sink.requests[*at].outcome = match why {
                Some(why) => Outcome::Unknown(why),
                None => Outcome::Known(Parts::new(self.host, span.begin, span.end, &trips)),
            };
        }
    }

    fn own(&self, trip: &RoundTrip) -> Option<OwnTrip> {
        let RoundTrip { begin, end, statements, database, .. } = *trip;
        let database = self.sink.databases.get(database as usize)?.server.ip();
        Some(OwnTrip { begin, end, statements, database })
    }

    fn span(&self, at: usize) -> Span {
        let Request { begin, end, .. } = self.sink.requests[at];
        Span { begin, end }
    }

    /// Each trip with the requests that it may be of.
    fn assigned(&mut self, spans: &[Span]) -> Vec<(RoundTrip, Inside)> {
        let of_trips: Vec<Span> =
            self.trips.iter().map(|trip| Span { begin: trip.begin, end: trip.end }).collect();
        let inside = inside(spans, &of_trips);
        let narrower = self.narrower(spans, &inside);
        let latest = latest(spans);
        let began_inside = |trip: &RoundTrip| {
            let n = spans.partition_point(|span| span.begin <= trip.begin);
            n.checked_sub(1).is_some_and(|at| trip.begin < latest[at])
        };
        let mut all = Vec::with_capacity(self.trips.len());
        for ((trip, inside), narrower) in self.trips.iter().zip(inside).zip(narrower) {
            let (inside, counter) = match (inside, narrower) {
                (Inside::One(request), _) => (Inside::One(request), Counter::ByTime),
                (Inside::None, _) if began_inside(trip) => (Inside::None, Counter::Outlasting),
                (Inside::None, _) => (Inside::None, Counter::Outside),
                (_, Some((request, Assigned::ByTransaction))) => {
                    (Inside::One(request), Counter::ByTransaction)
                }
                (_, Some((request, _))) => (Inside::One(request), Counter::ByConnection),
                (several, None) => (several, Counter::Ambiguous),
            };
            self.sink.counts.one(Counter::Trips);
            self.sink.counts.one(counter);
            all.push((*trip, inside));
        }
        all
    }

    /// For trips inside of several requests: the only one that their transaction, or their connection, lies inside of.
    fn narrower(&self, spans: &[Span], inside: &[Inside]) -> Vec<Option<(usize, Assigned)>> {
        let mut blocks: FxHashMap<(u32, u32), Span> = FxHashMap::default();
        for trip in &self.trips {
            let key = (trip.database, trip.block);
            let span = blocks.entry(key).or_insert(Span { begin: trip.begin, end: trip.end });
            span.begin = span.begin.min(trip.begin);
            span.end = span.end.max(trip.end);
        }
        let is_open = |inside: &Inside| *inside == Inside::Several;
        let open: Vec<usize> = (0..inside.len()).filter(|at| is_open(&inside[*at])).collect();
        let mut found = vec![None; inside.len()];
        for how in [Assigned::ByTransaction, Assigned::ByConnection] {
            let wider = |at: &usize| {
                let trip = &self.trips[*at];
                let span = match how {
                    Assigned::ByConnection => self.connection(trip.database)?,
                    _ => *blocks.get(&(trip.database, trip.block))?,
                };
                Some((span, *at))
            };
            let mut requested: Vec<(Span, usize)> = open.iter().filter_map(wider).collect();
            requested.sort_by_key(|(span, _)| span.begin);
            let wider: Vec<Span> = requested.iter().map(|(span, _)| *span).collect();
            for ((_, at), inside) in requested.iter().zip(self::inside(spans, &wider)) {
                if let (Inside::One(request), None) = (inside, found[*at]) {
                    found[*at] = Some((request, how));
                }
            }
        }
        found
    }

    /// A connection's life, if it was seen from beginning to end.
    fn connection(&self, database: u32) -> Option<Span> {
        let database = self.sink.databases.get(database as usize)?;
        Some(Span { begin: database.opened?, end: database.closed? })
    }

    /// Requests during which a database connection of this host was used for it is not known what.
    fn unreadable(&self, spans: &[Span], why: &mut [Option<Unknown>]) {
        let own = self.sink.unreadable.iter().filter(|unreadable| {
            self.clients.get(unreadable.database as usize) == Some(&self.host)
        });
        let mut times: Vec<_> = own.collect();
        times.sort_by_key(|unreadable| unreadable.begin);
        // The latest end of all that began up to then, and why.
        let mut latest: Vec<(CaptureNs, Unknown)> = Vec::new();
        for time in &times {
            let so_far = latest.last().copied().unwrap_or((time.end, time.why));
            latest.push(if so_far.0 < time.end { (time.end, time.why) } else { so_far });
        }
        for (span, why) in spans.iter().zip(why) {
            let n = times.partition_point(|time| time.begin <= span.end);
            if let Some((end, reason)) = n.checked_sub(1).map(|at| latest[at])
                && span.begin <= end
            {
                *why = Some(reason);
            }
        }
    }
}

/// The latest end of all spans up to each.
fn latest(spans: &[Span]) -> Vec<CaptureNs> {
    let mut latest = CaptureNs(0);
    let until = |span: &Span| {
        latest = latest.max(span.end);
        latest
    };
    spans.iter().map(until).collect()
}

/// Says of requests that one of these trips, in the order in which they began, lies inside of them.
fn mark(requests: &[Span], ambiguous: &[Span], why: &mut [Option<Unknown>]) {
    // The earliest end of all trips from each on.
    let mut earliest: Vec<CaptureNs> = ambiguous.iter().map(|trip| trip.end).collect();
    for at in (1..earliest.len()).rev() {
        earliest[at - 1] = earliest[at - 1].min(earliest[at]);
    }
    for (request, why) in requests.iter().zip(why) {
        let at = ambiguous.partition_point(|trip| trip.begin < request.begin);
        if earliest.get(at).is_some_and(|end| *end <= request.end) {
            *why = Some(Unknown::Overlap);
        }
    }
}

/// For each of `inner`, which of `outer` it lies inside of. Both are in the order in which they begin.
fn inside(outer: &[Span], inner: &[Span]) -> Vec<Inside> {
    let mut open: BTreeSet<(CaptureNs, usize)> = BTreeSet::new();
    let mut next = 0;
    let look = |inner: &Span| {
        while let Some(span) = outer.get(next).filter(|span| span.begin <= inner.begin) {
            open.insert((span.end, next));
            next += 1;
        }
        // None of what begins from here on lies inside of what has ended.
        while let Some(first) = open.first().copied().filter(|(end, _)| *end < inner.begin) {
            open.remove(&first);
        }
        let mut fitting = open.range((inner.end, 0)..).map(|(_, at)| *at);
        match (fitting.next(), fitting.next()) {
            (None, _) => Inside::None,
            (Some(one), None) => Inside::One(one),
            (Some(_), Some(_)) => Inside::Several,
        }
    };
    inner.iter().map(look).collect()
}
