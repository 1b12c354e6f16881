//! Packets in, requests with their parts out.

use std::net::{IpAddr, SocketAddr};

use crate::connection::Connections;
use crate::packet::Segment;
use crate::parts::{Parts, Unknown};
use crate::sink::Sink;
use crate::{CaptureNs, Counter, Counts, Packet, Roles, TracedGuest, assign};

/// Follows connections packet by packet.
#[derive(Debug)]
pub struct Splitter {
    roles: Roles,
    connections: Connections,
    sink: Sink,
    first: Option<CaptureNs>,
    last: CaptureNs,
}

/// What came of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Whole requests, in the order in which they began.
    pub requests: Vec<Request>,
    /// Counters of what was dissected, and what could not be.
    pub counts: Counts,
    /// Addresses that queries came from and that received no request.
    pub strangers: Vec<IpAddr>,
    /// The first packet's time; `None`: there was no packet.
    pub first: Option<CaptureNs>,
    /// The latest packet's.
    pub last: CaptureNs,
}

/// A request with its whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// The interface on which its connection was followed.
    pub interface: u32,
    /// `GET`.
    pub method: Box<str>,
    /// The target, cut to a length. The client chose it.
    pub target: Box<str>,
    pub status: u16,
    /// First byte of the request.
    pub begin: CaptureNs,
    /// Its last byte.
    pub sent: CaptureNs,
    /// First byte of the response.
    pub answered: CaptureNs,
    /// Its last byte.
    pub end: CaptureNs,
    pub outcome: Outcome,
}

impl Request {
    /// From its first byte to its response's last.
    #[must_use]
    pub fn turnaround_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

/// Parts, or why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// They add up to the turnaround.
    Known(Parts),
    /// The first reason that was found.
    Unknown(Unknown),
}

/// A connection to a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    pub client: SocketAddr,
    pub server: SocketAddr,
    pub protocol: Protocol,
    /// When it was opened, if that was seen.
    pub opened: Option<CaptureNs>,
    /// When it was closed, if that was seen.
    pub closed: Option<CaptureNs>,
}

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// PostgreSQL's protocol, version 3.
    Postgres,
    /// MySQL's and MariaDB's.
    MySql,
    /// A database's at the usual port or a given address, which is encrypted or not known.
    Unreadable,
    /// Not known: the database shares a guest with the web server, and its trace was read.
    Traced,
}

/// How a trip to a database was found to be of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    /// It was during this request only.
    ByTime,
    ByTransaction,
    /// Its connection was opened and closed during this request only.
    ByConnection,
}

impl Splitter {
    /// Has seen nothing yet.
    #[must_use]
    pub fn new(roles: Roles) -> Self {
        Self {
            roles,
            connections: Connections::default(),
            sink: Sink::default(),
            first: None,
            last: CaptureNs(0),
        }
    }

    /// The next packet. Packets are expected in the order of their times; within a connection, lost, repeated and
    /// reordered ones are allowed for.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        self.sink.counts.one(Counter::Packets);
        self.first = Some(self.first.map_or(packet.at, |first| first.min(packet.at)));
        self.last = self.last.max(packet.at);
        match Segment::in_packet(packet) {
            Ok(segment) => self.connections.segment(&segment, &self.roles, &mut self.sink),
            Err(counter) => self.sink.counts.one(counter),
        }
    }

    /// What a file counted of packets that it did not hand out.
    pub fn file(&mut self, counts: &Counts) {
        self.sink.counts.add_all(counts);
    }

    /// What the trace of a web server's guest says of the database in it.
    pub fn add_traced(&mut self, guest: &TracedGuest) {
        self.sink.add_traced(guest);
    }

    /// There are no more packets.
    #[must_use]
    pub fn finish(mut self) -> Split {
        self.connections.finish(&self.roles, &mut self.sink);
        let strangers = assign::assign(&mut self.sink, &self.roles);
        let Sink { mut requests, counts, .. } = self.sink;
        requests.sort_by_key(|request| (request.begin, request.end, request.client));
        Split { requests, counts, strangers, first: self.first, last: self.last }
    }
}
