//! PostgreSQL's protocol, version 3, on one connection: the times in which the server owes an answer.
//!
//! ```text
//!  Startup --(SSLRequest, 'S')--> Encrypted
//!     |                                          a group is what one ReadyForQuery answers: a Query, or messages up
//!     +--(StartupMessage)--> Session             to a Sync. With a Flush before the Sync it has several trips.
//!                             |   ^
//!        (bytes are lacking)  v   |  (the server was ready, and a whole Query or Sync comes)
//!                            Lost
//! ```

use std::collections::VecDeque;

use crate::connection::Side;
use crate::framing::{Framer, Framing, Message, whole_messages};
use crate::parts::Unknown;
use crate::sink::{DbConnection, Sink};
use crate::{CaptureNs, Counter};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
const FRONTEND: &[u8] = b"BCDEFHPQSXcdfp";
const BACKEND: &[u8] = b"123ACDEGHIKNRSTVWZcdnstv";
/// Groups that wait for their answers.
const MAX_GROUPS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Postgres {
    line: DbConnection,
    phase: Phase,
    front: Framer,
    back: Framer,
    groups: VecDeque<Group>,
    /// When the server said that it is ready, if that was the last it said.
    ready: Option<CaptureNs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No protocol yet. Whether the client has requested encryption, and when.
    Startup {
        requested: Option<CaptureNs>,
    },
    Session,
    Lost {
        since: CaptureNs,
    },
    /// Nothing can be read any more.
    Encrypted,
    /// A cancel request, or replication: no queries.
    NoQueries,
}

/// What one `ReadyForQuery` answers.
#[derive(Debug, Default)]
struct Group {
    /// When the server began to owe an answer; `None`: it does not.
    begin: Option<CaptureNs>,
    /// Answers owed besides `ReadyForQuery`.
    owed: u32,
    statements: u32,
    /// `ReadyForQuery` will come.
    is_synced: bool,
    /// A Sync asks for it.
    by_sync: bool,
    /// After an error nothing is answered up to the Sync.
    has_failed: bool,
    is_startup: bool,
}

impl Postgres {
    /// `begins`: its first byte is next.
    pub(crate) fn new(line: DbConnection, begins: bool) -> Self {
        let phase = if begins { Phase::Startup { requested: None } } else { Phase::Session };
        Self {
            line,
            phase,
            front: Framer::default(),
            back: Framer::default(),
            groups: VecDeque::new(),
            ready: None,
        }
    }

    pub(crate) fn line(&mut self) -> &mut DbConnection {
        &mut self.line
    }

    pub(crate) fn data(&mut self, side: Side, at: CaptureNs, mut data: &[u8], sink: &mut Sink) {
        if let Phase::Encrypted = self.phase {
            return self.line.unreadable(at, at, Unknown::Encrypted, sink);
        }
        if let Phase::Lost { since } = self.phase {
            let Some(ready) = self.found_again(side, at, data) else { return };
            self.line.unreadable(since, ready, Unknown::LostPackets, sink);
            self.phase = Phase::Session;
        }
        while !data.is_empty() {
            let went_on = match side {
                Side::Client => self.client(at, &mut data, sink),
                Side::Server => self.server(at, &mut data, sink),
            };
            match went_on {
                Some(true) => {}
                Some(false) => return,
                None => return self.lose(at, sink),
            }
        }
    }

    pub(crate) fn gap(&mut self, side: Side, since: CaptureNs, bytes: u64, sink: &mut Sink) {
        match self.phase {
            Phase::Encrypted => self.line.unreadable(since, since, Unknown::Encrypted, sink),
            Phase::NoQueries => {}
            Phase::Lost { .. } => self.ready = None,
            Phase::Startup { .. } | Phase::Session => {
                let framer = match side {
                    Side::Client => &mut self.front,
                    Side::Server => &mut self.back,
                };
                if !framer.gap(bytes) {
                    self.lose(since, sink);
                }
            }
        }
    }

    /// The connection was closed, or is no longer followed.
    pub(crate) fn finish(&mut self, closed: Option<CaptureNs>, sink: &mut Sink) {
        let end = closed.unwrap_or(CaptureNs::LAST);
        if let Phase::Lost { since } = self.phase {
            self.line.unreadable(since, end, Unknown::LostPackets, sink);
        }
        for group in self.groups.drain(..) {
            match (group.begin, closed) {
                (None, _) => {}
                (Some(begin), Some(closed)) => {
                    self.line.trip(begin, closed, group.statements, sink);
                }
                (Some(begin), None) => {
                    self.line.unreadable(begin, end, Unknown::LostPackets, sink);
                }
            }
        }
    }

    /// Whether to continue with the rest of `data`; `None`: it makes no sense.
    fn client(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) -> Option<bool> {
        let framing = match self.phase {
            Phase::Startup { .. } => Framing::PostgresStartup,
            Phase::Session => Framing::Postgres,
            Phase::Lost { .. } | Phase::Encrypted | Phase::NoQueries => return Some(false),
        };
        let Some(message) = self.front.next(framing, at, data).ok()? else { return Some(false) };
        if framing == Framing::PostgresStartup {
            self.phase = startup(&message, self.phase, &mut self.groups, sink)?;
            return Some(true);
        }
        requested(&message, &mut self.groups).map(|()| true)
    }

    fn server(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) -> Option<bool> {
        match self.phase {
            Phase::Startup { requested: Some(requested) } => {
                let answer = data.first().copied();
                *data = &data[1..];
                self.line.trip(requested, at, 0, sink);
                self.phase = match answer {
                    Some(b'S' | b'G') => {
                        self.line.is_encrypted(sink);
                        Phase::Encrypted
                    }
                    Some(b'N') => Phase::Startup { requested: None },
                    _ => return None,
                };
                return Some(true);
            }
            Phase::Startup { requested: None } => return None,
            Phase::Session => {}
            Phase::Lost { .. } | Phase::Encrypted | Phase::NoQueries => return Some(false),
        }
        let Some(message) = self.back.next(Framing::Postgres, at, data).ok()? else {
            return Some(false);
        };
        if message.header[0] == b'W' {
            self.phase = Phase::NoQueries;
            return Some(false);
        }
        answered(&message, &mut self.groups, &mut self.line, sink).map(|()| true)
    }

    fn lose(&mut self, since: CaptureNs, sink: &mut Sink) {
        sink.counts.one(Counter::LostMessages);
        let begun = self.groups.iter().filter_map(|group| group.begin).min();
        self.phase = Phase::Lost { since: begun.unwrap_or(since).min(since) };
        self.groups.clear();
        self.front.reset();
        self.back.reset();
        self.line.next_block();
        self.ready = None;
    }

    /// When the server has said that it is ready, if the client now asks it something.
    fn found_again(&mut self, side: Side, at: CaptureNs, data: &[u8]) -> Option<CaptureNs> {
        if side == Side::Server {
            let tail = data.len().checked_sub(6).map(|at| &data[at..]);
            self.ready = tail.filter(|tail| tail.starts_with(b"Z\0\0\0\x05")).map(|_| at);
            return None;
        }
        self.ready.filter(|_| is_question(data) == Some(true))
    }
}

/// Before a session.
fn startup(
    message: &Message<'_>,
    phase: Phase,
    groups: &mut VecDeque<Group>,
    sink: &mut Sink,
) -> Option<Phase> {
    let code = message.body.first_chunk().map(|code| u32::from_be_bytes(*code))?;
    match code {
        SSL_REQUEST | GSS_REQUEST => Some(Phase::Startup { requested: Some(message.begin) }),
        CANCEL_REQUEST => {
            sink.counts.one(Counter::Cancels);
            Some(Phase::NoQueries)
        }
        _ if code >> 16 == 3 && matches!(phase, Phase::Startup { .. }) => {
            let begin = Some(message.begin);
            groups.push_back(Group {
                begin,
                is_synced: true,
                is_startup: true,
                ..Group::default()
            });
            Some(Phase::Session)
        }
        _ => None,
    }
}

/// A message of the client; `None`: there is no such message.
fn requested(message: &Message<'_>, groups: &mut VecDeque<Group>) -> Option<()> {
    let kind = message.header[0];
    if !FRONTEND.contains(&kind) || MAX_GROUPS <= groups.len() {
        return None;
    }
    // Rows of a COPY, and the end of the session, are not answered by themselves.
    if matches!(kind, b'H' | b'X' | b'c' | b'd' | b'f') {
        return Some(());
    }
    if kind == b'p' {
        let front = groups.front_mut().filter(|group| group.is_startup)?;
        front.begin.get_or_insert(message.begin);
        return Some(());
    }
    if groups.back().is_none_or(|last| last.is_synced) {
        groups.push_back(Group::default());
    }
    let group = groups.back_mut()?;
    group.begin.get_or_insert(message.begin);
    group.statements += u32::from(matches!(kind, b'E' | b'Q' | b'F'));
    if matches!(kind, b'Q' | b'F' | b'S') {
        group.is_synced = true;
        group.by_sync = kind == b'S';
    } else if !group.has_failed {
        group.owed += 1;
    }
    Some(())
}

/// A message of the server; `None`: there is no such message, or there was no query.
fn answered(
    message: &Message<'_>,
    groups: &mut VecDeque<Group>,
    line: &mut DbConnection,
    sink: &mut Sink,
) -> Option<()> {
    let kind = message.header[0];
    if !BACKEND.contains(&kind) {
        return None;
    }
    // These come at any time. An error may be the server's farewell.
    if matches!(kind, b'N' | b'S' | b'A' | b'K' | b'v') || (kind == b'E' && groups.is_empty()) {
        return Some(());
    }
    let is_last = groups.len() == 1;
    let group = groups.front_mut()?;
    match kind {
        // While it waits for rows the server ignores a Sync, and the client sends another one after them.
        b'G' if group.by_sync && is_last => group.is_synced = false,
        b'1' | b'2' | b'3' | b'C' | b'I' | b's' | b'T' | b'n' => {
            group.owed = group.owed.saturating_sub(1);
        }
        b'E' => {
            group.owed = 0;
            group.has_failed = true;
        }
        _ => {}
    }
    let is_ready = kind == b'Z';
    let waits_for_client = group.is_startup && kind == b'R' && wants_password(message.body)
        || kind == b'E' && group.is_startup;
    let is_flushed = !group.is_synced && group.owed == 0 && kind != b'D';
    if (is_ready || waits_for_client || is_flushed)
        && let Some(begin) = group.begin.take()
    {
        line.trip(begin, message.end, std::mem::take(&mut group.statements), sink);
    }
    if is_ready {
        groups.pop_front();
        if message.body == b"I" {
            line.next_block();
        }
    }
    Some(())
}

/// Whether an authentication message asks for one of the client's.
fn wants_password(body: &[u8]) -> bool {
    let code = body.first_chunk().map_or(0, |code| u32::from_be_bytes(*code));
    matches!(code, 3 | 5 | 7 | 8 | 9 | 10 | 11)
}

/// Whether bytes look like whole messages of a client that then waits; `None`: they are no messages.
pub(crate) fn is_question(data: &[u8]) -> Option<bool> {
    let is_known = |header: &[u8], body: &[u8]| match header[0] {
        b'S' | b'H' => body.is_empty(),
        b'Q' | b'P' => body.ends_with(b"\0") || body.len() > 2,
        b'B' | b'C' | b'D' | b'E' => body.len() >= 2,
        _ => false,
    };
    let last = whole_messages(Framing::Postgres, data, is_known)?;
    // Drivers that pipeline send a Flush, even behind a Sync.
    Some(matches!(last[0], b'Q' | b'S' | b'H'))
}

/// Whether a connection begins as PostgreSQL's do; `None`: more bytes would tell.
pub(crate) fn begins(data: &[u8]) -> Option<bool> {
    if data.first().is_some_and(|first| *first != 0) {
        return Some(false);
    }
    let code = data.get(4..8)?;
    let code = u32::from_be_bytes([code[0], code[1], code[2], code[3]]);
    Some(matches!(code, SSL_REQUEST | GSS_REQUEST | CANCEL_REQUEST) || code >> 16 == 3)
}
