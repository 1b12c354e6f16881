//! All TCP connections of a capture: which side is the client, which protocol they use, and where bytes go.

use std::net::SocketAddr;

use rustc_hash::FxHashMap;

use crate::guess::{Guess, Held, MAX_HELD, guess_midway};
use crate::http::Http;
use crate::mysql::MySql;
use crate::nat::{self, Key, Sighting, Translations};
use crate::packet::Segment;
use crate::parts::Unknown;
use crate::postgres::Postgres;
use crate::proxy::Header;
use crate::sink::{DbConnection, Sink};
use crate::splitter::{Database, Protocol};
use crate::tcp::{Clock, Flow, Piece};
use crate::{CaptureNs, Counter, Counts, Roles};

/// Connections that are followed at a time.
const MAX_CONNECTIONS: usize = 50_000;
/// Times that the other side speaks, by which a connection that began before the capture is known. A long answer that was
/// under way is one.
const MAX_TURNS: u8 = 64;
/// Segments of a connection by which its copies with other addresses are found.
const MAX_MARKS: u64 = 64;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// All that are followed.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// By both addresses, the lower one first.
    all: FxHashMap<Key, Connection>,
    translations: Translations,
    /// How many there were.
    n_born: u64,
}

impl Connections {
    pub(crate) fn segment(&mut self, segment: &Segment<'_>, roles: &Roles, sink: &mut Sink) {
        let key = nat::key(segment.from, segment.to);
        let is_syn = segment.flags.syn && segment.ack.is_none();
        if self.is_copy(key, segment, is_syn) {
            return sink.counts.one(Counter::Translated);
        }
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
            self.n_born += 1;
            self.all.insert(key, Connection::new(segment, self.n_born, sink));
        }
        if self.all.get_mut(&key).is_some_and(Connection::is_young)
            && let Some(first) = self.translations.first_copy(segment)
        {
            self.join(segment, first, sink);
        }
        if self.translations.original(key).is_some() {
            return;
        }
        if let Some(connection) = self.all.get_mut(&key) {
            connection.segment(segment, roles, sink);
        }
    }

    /// Whether the connection is another one's copy. A SYN may begin another connection at its addresses.
    fn is_copy(&mut self, key: Key, segment: &Segment<'_>, is_syn: bool) -> bool {
        let Some(original) = self.translations.original(key) else { return false };
        let followed = self.all.get(&original);
        let is_same = followed
            .is_some_and(|one| !is_syn || one.flows.iter().any(|flow| flow.began_at(segment.seq)));
        if !is_same {
            self.translations.forget_copy(key);
        }
        is_same
    }

    /// A segment and its first copy show that two connections are one: the older one is followed on.
    fn join(&mut self, segment: &Segment<'_>, first: Sighting, sink: &mut Sink) {
        let here = nat::key(segment.from, segment.to);
        let there = nat::key(first.from, first.to);
        let there = self.translations.original(there).unwrap_or(there);
        let (Some(of_segment), Some(of_first)) = (self.all.get(&here), self.all.get(&there)) else {
            return;
        };
        let is_older = of_segment.born < of_first.born;
        let (original, copy) = if is_older { (here, there) } else { (there, here) };
        let (followed, left) =
            if is_older { (of_segment, of_first) } else { (of_first, of_segment) };
        if here == there || matches!(followed.speech, Speech::Ignored) || !left.said_nothing() {
            return;
        }
        if let Some(left) = self.all.remove(&copy) {
            left.take_back(sink);
        }
        self.translations.add_copy(copy, original, |one| self.all.contains_key(one));
        if let Some(followed) = self.all.get_mut(&original) {
            followed.translated(segment, first, sink);
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
        self.translations.retain(|original| self.all.contains_key(original));
    }
}

#[derive(Debug)]
struct Connection {
    /// Client, then server, as far as is known.
    ends: [SocketAddr; 2],
    /// The same without address translation.
    addresses: [SocketAddr; 2],
    /// Its number, by age.
    born: u64,
    n_segments: u64,
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

impl Connection {
    fn new(segment: &Segment<'_>, born: u64, sink: &mut Sink) -> Self {
        sink.counts.one(Counter::Connections);
        let answers = segment.flags.syn && segment.ack.is_some();
        let ends = if answers { [segment.to, segment.from] } else { [segment.from, segment.to] };
        let is_midway = !segment.flags.syn;
        if is_midway {
            sink.counts.one(Counter::BeganBefore);
        }
        Self {
            ends,
            addresses: ends,
            born,
            n_segments: 0,
            interface: segment.interface,
            clock: Clock::default(),
            last: segment.at,
            flows: [Flow::default(), Flow::default()],
            opening: Opening { is_midway, ..Opening::default() },
            speech: Speech::Unknown(Held::default()),
        }
    }

    /// Counts a segment, and says whether copies of it are looked for.
    fn is_young(&mut self) -> bool {
        self.n_segments += 1;
        self.n_segments <= MAX_MARKS
    }

    fn said_nothing(&self) -> bool {
        matches!(&self.speech, Speech::Unknown(held) if held.pieces.is_empty() && held.missed.is_none())
    }

    /// It is a copy: it was counted for nothing.
    fn take_back(mut self, sink: &mut Sink) {
        sink.counts.add(Counter::Translated, self.n_segments);
        sink.counts.take_back(Counter::Connections);
        if self.opening.is_midway {
            sink.counts.take_back(Counter::BeganBefore);
        }
        for flow in &mut self.flows {
            flow.finish(&mut sink.budget, &mut Counts::default(), &mut Vec::new());
        }
    }

    /// A segment of it was seen with other addresses before, or a copy's is seen now.
    fn translated(&mut self, segment: &Segment<'_>, first: Sighting, sink: &mut Sink) {
        let side = |of: SocketAddr| self.ends.iter().position(|end| *end == of);
        let of_key = |from, to| nat::key(from, to) == nat::key(self.ends[0], self.ends[1]);
        if of_key(first.from, first.to) {
            if let Some(receiver) = side(first.to) {
                self.addresses[receiver] = segment.to;
            }
        } else if of_key(segment.from, segment.to)
            && let Some(sender) = side(segment.from)
        {
            self.addresses[sender] = first.from;
        }
        let [client, server] = self.addresses;
        if let Speech::Http(http) = &mut self.speech {
            http.set_ends(self.addresses);
        }
        if let Some(line) = self.line() {
            let database = sink.databases.get_mut(line.database as usize);
            if let Some(database) = database {
                (database.client, database.server) = (client, server);
            }
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
            let header = held.skip_proxy_header(&mut sink.budget, &mut sink.counts);
            let guess = match header {
                Header::TooShort => Guess::NeedsMore,
                Header::None | Header::Length(_) => held.guess(),
            };
            if guess == Guess::NeedsMore && held.bytes < MAX_HELD {
                return;
            }
            (if guess == Guess::NeedsMore { Guess::Other } else { guess }, Side::Client)
        };
        if client == Side::Server {
            self.ends.reverse();
            self.addresses.reverse();
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

    /// The protocol is known: what was held goes to its parser.
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
        // People name a server by either address.
        let servers = [self.ends[1], self.addresses[1]];
        let is_db = servers.into_iter().any(|server| roles.is_db(server));
        let may_be_db = servers.into_iter().any(|server| roles.may_be_db(server));
        let begins = !self.opening.is_midway;
        match guess {
            Guess::Http => {
                sink.counts.one(Counter::HttpConnections);
                if servers.into_iter().any(|server| roles.is_web(server)) {
                    Speech::Http(Box::new(Http::new(self.addresses, self.interface)))
                } else {
                    Speech::Ignored
                }
            }
            Guess::Postgres if may_be_db => {
                let line = DbConnection::new(self.database(Protocol::Postgres), sink);
                if let Opening { requested: Some(requested), answered: Some(answered), .. } =
                    self.opening
                {
                    line.trip(requested, answered, 0, sink);
                }
                Speech::Postgres(Box::new(Postgres::new(line, begins)))
            }
            Guess::MySql if may_be_db => {
                let line = DbConnection::new(self.database(Protocol::MySql), sink);
                Speech::MySql(Box::new(MySql::new(line, begins, self.opening.requested)))
            }
            Guess::Encrypted if is_db => {
                let line = DbConnection::new(self.database(Protocol::Unreadable), sink);
                line.is_encrypted(sink);
                Speech::Opaque(line, Unknown::Encrypted)
            }
            Guess::Other if is_db => {
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
        let [client, server] = self.addresses;
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
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
