//! All TCP connections of a capture: which side is the client, which protocol they use, and where bytes go.

use std::net::SocketAddr;

use rustc_hash::FxHashMap;

use crate::http::{self, HeadKind, Http};
use crate::mysql::{self, MySql};
use crate::packet::Segment;
use crate::parts::Unknown;
use crate::postgres::{self, Postgres};
use crate::splitter::{Database, Protocol, Request};
use crate::tcp::{Budget, Clock, Flow, Piece};
use crate::{CaptureNs, Counter, Counts, Roles, TracedGuest};

/// Connections that are followed at a time.
const MAX_CONNECTIONS: usize = 50_000;
/// Bytes of all connections that wait for something.
const MAX_BYTES: usize = 64 << 20;
const MAX_REQUESTS: usize = 1_000_000;
const MAX_TRIPS: usize = 4_000_000;
const MAX_UNREADABLE: usize = 1_000_000;
/// Bytes by which a protocol is known.
const MAX_HELD: usize = 4096;
/// Times that the other side speaks, by which a connection that began before the capture is known. A long answer that was
/// under way is one.
const MAX_TURNS: u8 = 64;
/// Activity of a connection that can't be read is one time if it pauses for no longer.
const PAUSE_NS: u64 = 1_000_000;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

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
    database: u32,
    block: u32,
    /// Where the last time that can't be read is in the sink.
    unreadable: Option<usize>,
}

impl DbConnection {
    fn new(database: Database, sink: &mut Sink) -> Self {
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

    fn closed(&self, at: CaptureNs, sink: &mut Sink) {
        if let Some(database) = sink.databases.get_mut(self.database as usize) {
            database.closed.get_or_insert(at);
        }
    }
}

/// All that are followed.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// By both addresses, the lower one first.
    all: FxHashMap<(SocketAddr, SocketAddr), Connection>,
}

impl Connections {
    pub(crate) fn segment(&mut self, segment: &Segment<'_>, roles: &Roles, sink: &mut Sink) {
        let key = (segment.from.min(segment.to), segment.from.max(segment.to));
        let is_syn = segment.flags.syn && segment.ack.is_none();
        if is_syn
            && self.all.get(&key).is_some_and(|old| old.is_another(segment))
            && let Some(mut old) = self.all.remove(&key)
        {
            old.finish(roles, sink);
        }
        if !self.all.contains_key(&key) {
            // What says nothing, and only ends or confirms something, is of no use.
            if segment.payload.is_empty() && segment.cut == 0 && !segment.flags.syn {
                return;
            }
            self.make_room(roles, sink);
            self.all.insert(key, Connection::new(segment, sink));
        }
        if let Some(connection) = self.all.get_mut(&key) {
            connection.segment(segment, roles, sink);
        }
    }

    /// There is nothing more.
    pub(crate) fn finish(&mut self, roles: &Roles, sink: &mut Sink) {
        for (_, mut connection) in self.all.drain() {
            connection.finish(roles, sink);
        }
    }

    /// Gives up those that say nothing to us, then the quarter that was silent for longest.
    fn make_room(&mut self, roles: &Roles, sink: &mut Sink) {
        if self.all.len() < MAX_CONNECTIONS {
            return;
        }
        let mut times: Vec<CaptureNs> = self.all.values().map(|one| one.last).collect();
        let quarter = times.len() / 4;
        let (_, limit, _) = times.select_nth_unstable(quarter);
        let limit = *limit;
        let is_given_up = |one: &Connection| one.is_over() || one.last <= limit;
        for (_, mut one) in self.all.extract_if(|_, one| is_given_up(one)) {
            if !one.is_over() {
                sink.counts.one(Counter::Evicted);
            }
            one.finish(roles, sink);
        }
    }
}

#[derive(Debug)]
struct Connection {
    /// Client, then server, as far as is known.
    ends: [SocketAddr; 2],
    interface: u32,
    clock: Clock,
    last: CaptureNs,
    /// What the client sends, then what the server sends.
    flows: [Flow; 2],
    opening: Opening,
    speech: Speech,
}

/// How a connection began.
#[derive(Debug, Clone, Copy, Default)]
struct Opening {
    /// The client's SYN.
    requested: Option<CaptureNs>,
    /// The server's.
    answered: Option<CaptureNs>,
    /// Bytes before the first one seen are not known.
    is_midway: bool,
}

/// What is spoken.
#[derive(Debug)]
enum Speech {
    /// Bytes that were said so far, by whom and when.
    Unknown(Held),
    Http(Box<Http>),
    Postgres(Box<Postgres>),
    MySql(Box<MySql>),
    /// A database's, but it can't be read, with the reason.
    Opaque(DbConnection, Unknown),
    Ignored,
}

#[derive(Debug, Default)]
struct Held {
    pieces: Vec<(Side, CaptureNs, Vec<u8>)>,
    bytes: usize,
    last: Option<Side>,
    n_turns: u8,
    /// From when to when something was said that was not understood.
    missed: Option<(CaptureNs, CaptureNs)>,
}

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guess {
    NeedsMore,
    Http,
    Http2,
    Postgres,
    MySql,
    Encrypted,
    Other,
}

impl Connection {
    fn new(segment: &Segment<'_>, sink: &mut Sink) -> Self {
        sink.counts.one(Counter::Connections);
        let answers = segment.flags.syn && segment.ack.is_some();
        let ends = if answers { [segment.to, segment.from] } else { [segment.from, segment.to] };
        let is_midway = !segment.flags.syn;
        if is_midway {
            sink.counts.one(Counter::BeganBefore);
        }
        Self {
            ends,
            interface: segment.interface,
            clock: Clock::default(),
            last: segment.at,
            flows: [Flow::default(), Flow::default()],
            opening: Opening { is_midway, ..Opening::default() },
            speech: Speech::Unknown(Held::default()),
        }
    }

    /// Whether a SYN begins another connection between the same ports.
    fn is_another(&self, segment: &Segment<'_>) -> bool {
        let flow = &self.flows[usize::from(segment.from != self.ends[0])];
        !flow.began_at(segment.seq) || flow.ended || matches!(self.speech, Speech::Ignored)
    }

    fn is_over(&self) -> bool {
        matches!(self.speech, Speech::Ignored) || self.flows.iter().all(|flow| flow.ended)
    }

    fn segment(&mut self, segment: &Segment<'_>, roles: &Roles, sink: &mut Sink) {
        if segment.interface != self.interface {
            sink.counts.one(Counter::OtherInterface);
            return;
        }
        let says_something = !segment.payload.is_empty() || 0 < segment.cut;
        // A confirmation that another CPU captured may stand too early in the file: it moves no message's time.
        let at =
            if says_something { self.clock.at(segment.at, &mut sink.counts) } else { segment.at };
        self.last = self.last.max(at);
        let from = usize::from(segment.from != self.ends[0]);
        if segment.flags.syn {
            self.syn(from, segment, at);
        }
        if matches!(self.speech, Speech::Ignored) {
            return;
        }
        let (budget, counts) = (&mut sink.budget, &mut sink.counts);
        let mut pieces = Pieces::default();
        // What the receiver has, it got before it said so.
        if let Some(ack) = segment.ack.filter(|_| !segment.flags.syn) {
            self.flows[1 - from].acknowledged(ack, budget, counts, &mut pieces[1 - from]);
        }
        self.flows[from].segment(segment, at, budget, counts, &mut pieces[from]);
        if segment.flags.rst {
            for (flow, out) in self.flows.iter_mut().zip(&mut pieces) {
                flow.finish(budget, counts, out);
            }
        }
        self.hand_on(pieces, 1 - from, roles, sink);
        if self.flows.iter().all(|flow| flow.ended) {
            self.close(at, sink);
        }
    }

    fn syn(&mut self, from: usize, segment: &Segment<'_>, at: CaptureNs) {
        if !self.opening.is_midway && !self.flows[from].began_at(segment.seq) {
            self.flows[from].start(segment.seq, at);
        }
        let time = match segment.ack {
            None => &mut self.opening.requested,
            Some(_) => &mut self.opening.answered,
        };
        time.get_or_insert(at);
    }

    /// Hands on what became available, of direction `first` first.
    fn hand_on(&mut self, pieces: Pieces<'_>, first: usize, roles: &Roles, sink: &mut Sink) {
        let senders = self.ends;
        let [of_client, of_server] = pieces;
        let both = [(0, of_client), (1, of_server)];
        let in_order = if first == 0 {
            both
        } else {
            let [a, b] = both;
            [b, a]
        };
        for (sender, pieces) in in_order {
            for piece in pieces {
                // The first bytes may tell that the roles are the other way round.
                let side =
                    if senders[sender] == self.ends[0] { Side::Client } else { Side::Server };
                self.piece(side, piece, roles, sink);
            }
        }
    }

    fn piece(&mut self, side: Side, piece: Piece<'_>, roles: &Roles, sink: &mut Sink) {
        match piece {
            Piece::Data(at, data) => match &mut self.speech {
                Speech::Unknown(_) => self.first_bytes(side, at, &data, roles, sink),
                Speech::Http(http) => http.data(side, at, &data, sink),
                Speech::Postgres(postgres) => postgres.data(side, at, &data, sink),
                Speech::MySql(mysql) => mysql.data(side, at, &data, sink),
                Speech::Opaque(line, why) => line.unreadable(at, at, *why, sink),
                Speech::Ignored => {}
            },
            Piece::Gap(since, bytes) => match &mut self.speech {
                Speech::Unknown(held) => {
                    held.miss(since);
                    held.forget(&mut sink.budget);
                    self.opening.is_midway = true;
                }
                Speech::Http(http) => http.gap(side, since, bytes, sink),
                Speech::Postgres(postgres) => postgres.gap(side, since, bytes, sink),
                Speech::MySql(mysql) => mysql.gap(side, since, bytes, sink),
                Speech::Opaque(line, why) => line.unreadable(since, since, *why, sink),
                Speech::Ignored => {}
            },
            Piece::End => {
                if let Speech::Http(http) = &mut self.speech {
                    http.end(side, sink);
                }
            }
        }
    }

    /// Bytes of a connection with a protocol that is not known yet.
    fn first_bytes(
        &mut self,
        side: Side,
        at: CaptureNs,
        data: &[u8],
        roles: &Roles,
        sink: &mut Sink,
    ) {
        let Speech::Unknown(held) = &mut self.speech else { return };
        let (guess, client) = if self.opening.is_midway {
            held.n_turns = held.n_turns.saturating_add(u8::from(held.last != Some(side)));
            held.last = Some(side);
            let (guess, client) = guess_midway(side, data, self.ends, roles);
            if guess == Guess::NeedsMore {
                held.miss(at);
                if held.n_turns < MAX_TURNS {
                    return;
                }
            }
            (if guess == Guess::NeedsMore { Guess::Other } else { guess }, client)
        } else {
            if !sink.budget.take(data.len()) {
                return self.becomes(Guess::Other, at, roles, sink);
            }
            held.pieces.push((side, at, data.to_vec()));
            held.bytes += data.len();
            let guess = held.guess();
            if guess == Guess::NeedsMore && held.bytes < MAX_HELD {
                return;
            }
            (if guess == Guess::NeedsMore { Guess::Other } else { guess }, Side::Client)
        };
        if client == Side::Server {
            self.ends.reverse();
            self.flows.reverse();
        }
        let side = if client == Side::Server { side.other() } else { side };
        let midway = self.opening.is_midway.then_some((side, at, data));
        self.becomes(guess, at, roles, sink);
        if let Some((side, at, data)) = midway
            && !matches!(self.speech, Speech::Unknown(_))
        {
            self.piece(side, Piece::Data(at, data.into()), roles, sink);
        }
    }

    /// It is known what is spoken: what was said so far is said again to who understands it.
    fn becomes(&mut self, guess: Guess, at: CaptureNs, roles: &Roles, sink: &mut Sink) {
        let Speech::Unknown(mut held) = std::mem::replace(&mut self.speech, Speech::Ignored) else {
            return;
        };
        self.speech = self.speech_of(guess, roles, sink);
        if let (Some(line), Some((from, to))) = (self.line(), held.missed) {
            line.unreadable(from, to.min(at), Unknown::LostPackets, sink);
        }
        // A handshake is the database's time, and half of it lacks.
        let half = match (self.opening.requested, self.opening.answered) {
            (Some(time), None) | (None, Some(time)) => Some(time),
            (Some(_), Some(_)) | (None, None) => None,
        };
        if let (Some(line), Some(time)) = (self.line(), half) {
            line.unreadable(time, at, Unknown::LostPackets, sink);
        }
        let pieces = std::mem::take(&mut held.pieces);
        held.forget(&mut sink.budget);
        for (side, at, data) in pieces {
            self.piece(side, Piece::Data(at, data.into()), roles, sink);
        }
    }

    fn speech_of(&self, guess: Guess, roles: &Roles, sink: &mut Sink) -> Speech {
        let server = self.ends[1];
        let begins = !self.opening.is_midway;
        match guess {
            Guess::Http => {
                sink.counts.one(Counter::HttpConnections);
                if roles.is_web(server) {
                    Speech::Http(Box::new(Http::new(self.ends, self.interface)))
                } else {
                    Speech::Ignored
                }
            }
            Guess::Postgres if roles.may_be_db(server) => {
                let line = DbConnection::new(self.database(Protocol::Postgres), sink);
                if let Opening { requested: Some(requested), answered: Some(answered), .. } =
                    self.opening
                {
                    line.trip(requested, answered, 0, sink);
                }
                Speech::Postgres(Box::new(Postgres::new(line, begins)))
            }
            Guess::MySql if roles.may_be_db(server) => {
                let line = DbConnection::new(self.database(Protocol::MySql), sink);
                Speech::MySql(Box::new(MySql::new(line, begins, self.opening.requested)))
            }
            Guess::Encrypted if roles.is_db(server) => {
                let line = DbConnection::new(self.database(Protocol::Unreadable), sink);
                line.is_encrypted(sink);
                Speech::Opaque(line, Unknown::Encrypted)
            }
            Guess::Other if roles.is_db(server) => {
                let line = DbConnection::new(self.database(Protocol::Unreadable), sink);
                line.is_undecoded(sink);
                Speech::Opaque(line, Unknown::Undecoded)
            }
            Guess::Encrypted => {
                sink.counts.one(Counter::Encrypted);
                Speech::Ignored
            }
            Guess::Http2 => {
                sink.counts.one(Counter::Http2);
                Speech::Ignored
            }
            Guess::Postgres | Guess::MySql | Guess::Other | Guess::NeedsMore => {
                sink.counts.one(Counter::OtherProtocol);
                Speech::Ignored
            }
        }
    }

    fn database(&self, protocol: Protocol) -> Database {
        let [client, server] = self.ends;
        Database { client, server, protocol, opened: self.opening.requested, closed: None }
    }

    fn line(&mut self) -> Option<&mut DbConnection> {
        match &mut self.speech {
            Speech::Postgres(postgres) => Some(postgres.line()),
            Speech::MySql(mysql) => Some(mysql.line()),
            Speech::Opaque(line, _) => Some(line),
            Speech::Unknown(_) | Speech::Http(_) | Speech::Ignored => None,
        }
    }

    /// Both directions have ended.
    fn close(&mut self, at: CaptureNs, sink: &mut Sink) {
        if let Some(line) = self.line() {
            line.closed(at, sink);
        }
        self.finish_speech(Some(at), sink);
    }

    /// It is over, or no longer followed.
    fn finish(&mut self, roles: &Roles, sink: &mut Sink) {
        let (budget, counts) = (&mut sink.budget, &mut sink.counts);
        let mut pieces = Pieces::default();
        for (flow, out) in self.flows.iter_mut().zip(&mut pieces) {
            flow.finish(budget, counts, out);
        }
        let at = self.last;
        // The end of sending was not seen.
        for pieces in &mut pieces {
            pieces.retain(|piece| *piece != Piece::End);
        }
        self.hand_on(pieces, 0, roles, sink);
        if let Speech::Unknown(held) = &self.speech
            && (held.missed.is_some() || !held.pieces.is_empty())
        {
            self.becomes(Guess::Other, at, roles, sink);
        }
        self.finish_speech(None, sink);
    }

    fn finish_speech(&mut self, closed: Option<CaptureNs>, sink: &mut Sink) {
        match std::mem::replace(&mut self.speech, Speech::Ignored) {
            Speech::Unknown(mut held) => held.forget(&mut sink.budget),
            Speech::Http(mut http) => http.finish(sink),
            Speech::Postgres(mut postgres) => postgres.finish(closed, sink),
            Speech::MySql(mut mysql) => mysql.finish(closed, sink),
            Speech::Opaque(..) | Speech::Ignored => {}
        }
    }
}

/// What became available of either direction.
type Pieces<'a> = [Vec<Piece<'a>>; 2];

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Held {
    fn forget(&mut self, budget: &mut Budget) {
        budget.give_back(self.bytes);
        self.bytes = 0;
        self.pieces.clear();
    }

    fn miss(&mut self, at: CaptureNs) {
        let from = self.pieces.first().map_or(at, |(_, from, _)| *from);
        let (from, _) = self.missed.unwrap_or((from, at));
        self.missed = Some((from, at));
    }

    /// Of a connection from its first bytes on.
    fn guess(&self) -> Guess {
        let Some((first, ..)) = self.pieces.first() else { return Guess::NeedsMore };
        let mut start = [0_u8; 16];
        let said = self.pieces.iter().filter(|(side, ..)| side == first);
        let bytes = said.flat_map(|(_, _, data)| data).take(start.len());
        let n = start.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count();
        let start = &start[..n];
        let yes = |is: Option<bool>, guess| match is {
            None => Guess::NeedsMore,
            Some(true) => guess,
            Some(false) => Guess::Other,
        };
        match first {
            Side::Server => yes(mysql::begins(start), Guess::MySql),
            Side::Client => match start {
                [0, ..] => yes(postgres::begins(start), Guess::Postgres),
                [0x16] => Guess::NeedsMore,
                [0x16, 3, ..] => Guess::Encrypted,
                _ => match http::kind_of_head(start) {
                    Some(HeadKind::Request) => Guess::Http,
                    Some(HeadKind::Http2) => Guess::Http2,
                    Some(HeadKind::TooShort) => Guess::NeedsMore,
                    Some(HeadKind::Response) | None => Guess::Other,
                },
            },
        }
    }
}

/// Of a connection that began before the capture, by some of its bytes; and which of the two sides, as numbered so far,
/// is the client.
fn guess_midway(side: Side, data: &[u8], ends: [SocketAddr; 2], roles: &Roles) -> (Guess, Side) {
    match http::kind_of_head(data) {
        Some(HeadKind::Request) => return (Guess::Http, side),
        Some(HeadKind::Response) => return (Guess::Http, side.other()),
        Some(HeadKind::Http2 | HeadKind::TooShort) | None => {}
    }
    if postgres::is_question(data) == Some(true) {
        return (Guess::Postgres, side);
    }
    // That is less to know it by.
    let [first, second] = ends.map(|end| roles.is_db(end));
    let receiver_is_db = if side == Side::Client { second } else { first };
    if receiver_is_db && mysql::is_command(data) {
        return (Guess::MySql, side);
    }
    let server = if first && !second { Side::Client } else { Side::Server };
    if let [0x14..=0x17, 3, 0..=4, ..] = data {
        return (Guess::Encrypted, server.other());
    }
    (Guess::NeedsMore, server.other())
}
