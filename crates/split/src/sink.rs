//! What came of all connections, in bounded memory.

use std::net::SocketAddr;

use crate::parts::Unknown;
use crate::splitter::{Database, Protocol, Request};
use crate::tcp::Budget;
use crate::{CaptureNs, Counter, Counts, TracedGuest};

/// Bytes of all connections that wait for something.
const MAX_BYTES: usize = 64 << 20;
const MAX_REQUESTS: usize = 1_000_000;
const MAX_TRIPS: usize = 4_000_000;
const MAX_UNREADABLE: usize = 1_000_000;
/// Activity of a connection that can't be read is one time if it pauses for no longer.
const PAUSE_NS: u64 = 1_000_000;

/// What came of all connections so far.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) requests: Vec<Request>,
    pub(crate) trips: Vec<RoundTrip>,
    pub(crate) unreadable: Vec<Unreadable>,
    pub(crate) databases: Vec<Database>,
    pub(crate) counts: Counts,
    pub(crate) budget: Budget,
    /// From when on there was no memory for requests or trips.
    pub(crate) full_since: Option<CaptureNs>,
}

/// A time in which a database owed an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    /// Index of its connection.
    pub(crate) database: u32,
    /// Trips of one transaction have the same number.
    pub(crate) block: u32,
    pub(crate) begin: CaptureNs,
    pub(crate) end: CaptureNs,
    pub(crate) statements: u32,
}

/// A span during which a database connection was used for an unknown query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) database: u32,
    pub(crate) begin: CaptureNs,
    pub(crate) end: CaptureNs,
    pub(crate) why: Unknown,
}

impl Default for Sink {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            trips: Vec::new(),
            unreadable: Vec::new(),
            databases: Vec::new(),
            counts: Counts::default(),
            budget: Budget::new(MAX_BYTES),
            full_since: None,
        }
    }
}

impl Sink {
    pub(crate) fn request(&mut self, request: Request) {
        if self.requests.len() < MAX_REQUESTS {
            self.requests.push(request);
        } else {
            self.counts.one(Counter::TooMany);
        }
    }

    /// A guest without a database adds nothing.
    pub(crate) fn add_traced(&mut self, guest: &TracedGuest) {
        if !guest.has_database {
            return;
        }
        let end = SocketAddr::new(guest.web, 0);
        let database = u32::try_from(self.databases.len()).unwrap_or(u32::MAX);
        self.databases.push(Database {
            client: end,
            server: end,
            protocol: Protocol::Traced,
            opened: None,
            closed: None,
        });
        let (from, to) = guest.traced;
        let mut lacks = |begin, end, why| {
            self.unreadable.push(Unreadable { database, begin, end, why });
        };
        lacks(CaptureNs::default(), CaptureNs(from.0.saturating_sub(1)), Unknown::NotTraced);
        lacks(CaptureNs(to.0.saturating_add(1)), CaptureNs::LAST, Unknown::NotTraced);
        if guest.has_losses {
            lacks(from, to, Unknown::LostEvents);
        }
        self.counts.add(Counter::Traced, guest.trips.len() as u64);
        for (block, (begin, end)) in (0..).zip(&guest.trips) {
            if self.trips.len() == MAX_TRIPS {
                return self.is_full(*begin);
            }
            self.trips.push(RoundTrip { database, block, begin: *begin, end: *end, statements: 1 });
        }
    }

    fn is_full(&mut self, since: CaptureNs) {
        self.counts.one(Counter::TooMany);
        self.full_since = Some(self.full_since.map_or(since, |full| full.min(since)));
    }
}

/// What a database's protocol says of its connection.
#[derive(Debug)]
pub(crate) struct DbConnection {
    pub(crate) database: u32,
    block: u32,
    /// Where the last time that can't be read is in the sink.
    unreadable: Option<usize>,
}

impl DbConnection {
    pub(crate) fn new(database: Database, sink: &mut Sink) -> Self {
        sink.counts.one(Counter::DbConnections);
        sink.databases.push(database);
        let n = sink.databases.len() - 1;
        Self { database: u32::try_from(n).unwrap_or(u32::MAX), block: 0, unreadable: None }
    }

    pub(crate) fn trip(&self, begin: CaptureNs, end: CaptureNs, statements: u32, sink: &mut Sink) {
        if sink.trips.len() == MAX_TRIPS {
            return sink.is_full(begin);
        }
        let (database, block) = (self.database, self.block);
        sink.trips.push(RoundTrip { database, block, begin, end: end.max(begin), statements });
    }

    /// The transaction is over.
    pub(crate) fn next_block(&mut self) {
        self.block = self.block.wrapping_add(1);
    }

    pub(crate) fn unreadable(
        &mut self,
        begin: CaptureNs,
        end: CaptureNs,
        why: Unknown,
        sink: &mut Sink,
    ) {
        if let Some(last) = self.unreadable.and_then(|at| sink.unreadable.get_mut(at))
            && last.why == why
            && begin.since(last.end) <= PAUSE_NS
        {
            last.end = last.end.max(end);
            return;
        }
        if sink.unreadable.len() == MAX_UNREADABLE {
            return sink.is_full(begin);
        }
        self.unreadable = Some(sink.unreadable.len());
        let database = self.database;
        sink.unreadable.push(Unreadable { database, begin, end: end.max(begin), why });
    }

    pub(crate) fn is_encrypted(&self, sink: &mut Sink) {
        sink.counts.one(Counter::DbEncrypted);
    }

    pub(crate) fn is_undecoded(&self, sink: &mut Sink) {
        sink.counts.one(Counter::DbUndecoded);
    }

    pub(crate) fn closed(&self, at: CaptureNs, sink: &mut Sink) {
        if let Some(database) = sink.databases.get_mut(self.database as usize) {
            database.closed.get_or_insert(at);
        }
    }
}
