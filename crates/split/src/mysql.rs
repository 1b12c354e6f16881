//! MySQL's and MariaDB's protocol on one connection: the times in which the server owes an answer.
//!
//! ```text
//!  Greeting --> Login --(asks for TLS)--> Encrypted
//!                 |  \--(compression is agreed on, OK)--> Compressed
//!                 v
//!              Session <--(a whole command comes)-- Lost
//! ```
//! A command's packet has the number 0, its response's packets count from 1, whatever they hold: rows, several result
//! sets, prepared statements. So a response ends with the last packet before the next one begins, and no result needs
//! to be understood for that, which would depend on what client and server agreed on.

use std::collections::VecDeque;

use crate::connection::Side;
use crate::framing::{Framer, Framing, Message, whole_messages};
use crate::parts::Unknown;
use crate::sink::{DbConnection, Sink};
use crate::{CaptureNs, Counter};

const CLIENT_COMPRESS: u32 = 1 << 5;
const CLIENT_PROTOCOL_41: u32 = 1 << 9;
const CLIENT_SSL: u32 = 1 << 11;
const CLIENT_ZSTD: u32 = 1 << 26;
const IN_TRANSACTION: u16 = 1;
const MORE_RESULTS: u16 = 8;

const COM_QUIT: u8 = 0x01;
const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const COM_STMT_SEND_LONG_DATA: u8 = 0x18;
const COM_STMT_CLOSE: u8 = 0x19;
const COM_STMT_FETCH: u8 = 0x1c;
const COM_STMT_BULK_EXECUTE: u8 = 0xfa;
const COM_BINLOG_DUMP: u8 = 0x12;
const COM_BINLOG_DUMP_GTID: u8 = 0x1e;

/// What an error begins with, and what asks for a file of the client's.
const ERROR: u8 = 0xff;
const WANTS_FILE: u8 = 0xfb;

/// Commands that wait for their responses.
const MAX_COMMANDS: usize = 1024;

#[derive(Debug)]
pub(crate) struct MySql {
    line: DbConnection,
    phase: Phase,
    front: Framer,
    back: Framer,
    commands: VecDeque<Command>,
    /// Number of the server's last packet.
    last_number: u8,
    /// Capabilities that the server offered.
    offered: u32,
    /// The server has requested a file: the client's packets are its bytes, whatever their numbers, up to an empty one.
    sends_file: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Who is to speak next, and since when; until the server says OK.
    Greeting {
        since: Option<CaptureNs>,
    },
    Login {
        requested: Option<CaptureNs>,
        compress: bool,
    },
    Session,
    Lost {
        since: CaptureNs,
    },
    Unreadable(Unknown),
    /// Replication: no queries.
    NoQueries,
}

/// A command, and as far as it has come, its response.
#[derive(Debug, Clone, Copy)]
struct Command {
    kind: u8,
    /// Number of its last packet: its response's numbers go on from there.
    number: u8,
    begin: CaptureNs,
    response: Option<Response>,
}

#[derive(Debug, Clone, Copy)]
struct Response {
    end: CaptureNs,
    last: LastPacket,
}

/// What the last packet of a response may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastPacket {
    /// OK, or the end of rows, with the server's status.
    Status(u16),
    Error,
    Other,
}

impl MySql {
    /// `begins`: the server's greeting is next; the connection was opened then, if that was seen.
    pub(crate) fn new(line: DbConnection, begins: bool, opened: Option<CaptureNs>) -> Self {
        let phase = if begins { Phase::Greeting { since: opened } } else { Phase::Session };
        Self {
            line,
            phase,
            front: Framer::default(),
            back: Framer::default(),
            commands: VecDeque::new(),
            last_number: 0,
            offered: 0,
            sends_file: false,
        }
    }

    pub(crate) fn line(&mut self) -> &mut DbConnection {
        &mut self.line
    }

    pub(crate) fn data(&mut self, side: Side, at: CaptureNs, mut data: &[u8], sink: &mut Sink) {
        match self.phase {
            Phase::Unreadable(why) => return self.line.unreadable(at, at, why, sink),
            Phase::NoQueries => return,
            Phase::Lost { since } => {
                if side == Side::Server || !is_command(data) {
                    return;
                }
                self.line.unreadable(since, at, Unknown::LostPackets, sink);
                self.phase = Phase::Session;
            }
            Phase::Greeting { .. } | Phase::Login { .. } | Phase::Session => {}
        }
        while !data.is_empty() {
            let framer = match side {
                Side::Client => &mut self.front,
                Side::Server => &mut self.back,
            };
            let Ok(Some(message)) = framer.next(Framing::MySql, at, &mut data) else { return };
            let packet = Packet::new(&message);
            let went_on = match side {
                Side::Client => self.client(&packet, sink),
                Side::Server => self.server(&packet, sink),
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
            Phase::Unreadable(why) => self.line.unreadable(since, since, why, sink),
            Phase::NoQueries | Phase::Lost { .. } => {}
            Phase::Greeting { .. } | Phase::Login { .. } | Phase::Session => {
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
        while let Some(command) = self.commands.pop_front() {
            match (command.response.filter(|response| response.last.ends()), closed) {
                (Some(response), _) => self.emit(command, response, sink),
                (None, Some(closed)) => {
                    self.line.trip(command.begin, closed, command.statements(), sink);
                }
                (None, None) => {
                    self.line.unreadable(command.begin, end, Unknown::LostPackets, sink);
                }
            }
        }
    }

    fn client(&mut self, packet: &Packet, sink: &mut Sink) -> Option<bool> {
        match self.phase {
            Phase::Login { .. } => self.login(packet, sink),
            Phase::Session => self.command(packet),
            // The server speaks first.
            Phase::Greeting { .. } => None,
            Phase::Lost { .. } | Phase::Unreadable(_) | Phase::NoQueries => Some(false),
        }
    }

    fn login(&mut self, packet: &Packet, sink: &mut Sink) -> Option<bool> {
        let Phase::Login { compress, .. } = self.phase else { return None };
        let capabilities = packet.u32_at(0).unwrap_or(0);
        // The answer to a greeting is number 1; what follows are passwords.
        let is_answer = packet.number == 1 && capabilities & CLIENT_PROTOCOL_41 != 0;
        if is_answer && packet.length == 32 && capabilities & CLIENT_SSL != 0 {
            self.line.is_encrypted(sink);
            self.phase = Phase::Unreadable(Unknown::Encrypted);
            return Some(false);
        }
        let both = capabilities & self.offered;
        let compress = compress || is_answer && both & (CLIENT_COMPRESS | CLIENT_ZSTD) != 0;
        self.phase = Phase::Login { requested: Some(packet.begin), compress };
        Some(true)
    }

    fn command(&mut self, packet: &Packet) -> Option<bool> {
        if self.sends_file {
            self.last_number = packet.number;
            self.sends_file = packet.length != 0;
            return Some(true);
        }
        if packet.number != 0 {
            // A command longer than a packet, the password of another user.
            match self.commands.back_mut() {
                Some(last) if last.response.is_none() => last.number = packet.number,
                _ => self.last_number = packet.number,
            }
            return Some(true);
        }
        let kind = *packet.body.first()?;
        if matches!(kind, COM_QUIT | COM_STMT_CLOSE | COM_STMT_SEND_LONG_DATA) {
            return Some(true);
        }
        if matches!(kind, COM_BINLOG_DUMP | COM_BINLOG_DUMP_GTID) {
            self.phase = Phase::NoQueries;
            return Some(false);
        }
        if self.commands.len() == MAX_COMMANDS {
            return None;
        }
        self.commands.push_back(Command { kind, number: 0, begin: packet.begin, response: None });
        Some(true)
    }

    fn server(&mut self, packet: &Packet, sink: &mut Sink) -> Option<bool> {
        match self.phase {
            // It has too many connections, or does not like this host.
            Phase::Greeting { since } if packet.body.first() == Some(&ERROR) => {
                if let Some(since) = since {
                    self.line.trip(since, packet.end, 0, sink);
                }
                self.phase = Phase::NoQueries;
                Some(false)
            }
            Phase::Greeting { since } => {
                self.offered = greeting(&packet.body)?;
                if let Some(since) = since {
                    self.line.trip(since, packet.end, 0, sink);
                }
                self.phase = Phase::Login { requested: None, compress: false };
                Some(true)
            }
            Phase::Login { requested, compress } => {
                Some(self.logged_in(packet, requested, compress, sink))
            }
            Phase::Session => self.response(packet, sink),
            Phase::Lost { .. } | Phase::Unreadable(_) | Phase::NoQueries => Some(false),
        }
    }

    fn logged_in(
        &mut self,
        packet: &Packet,
        requested: Option<CaptureNs>,
        compress: bool,
        sink: &mut Sink,
    ) -> bool {
        // The password was right by the cache: OK follows.
        if packet.body.starts_with(&[1, 3]) {
            return true;
        }
        if let Some(requested) = requested {
            self.line.trip(requested, packet.end, 0, sink);
        }
        self.phase = match packet.body.first() {
            Some(0) if compress => {
                self.line.is_undecoded(sink);
                Phase::Unreadable(Unknown::Undecoded)
            }
            Some(0) => {
                self.line.next_block();
                Phase::Session
            }
            _ => Phase::Login { requested: None, compress },
        };
        !matches!(self.phase, Phase::Unreadable(_))
    }

    fn response(&mut self, packet: &Packet, sink: &mut Sink) -> Option<bool> {
        let last = packet.last_of_response();
        let next = self.commands.get(1).map(|next| next.number.wrapping_add(1));
        let (before, number) =
            (std::mem::replace(&mut self.last_number, packet.number), packet.number);
        let Some(front) = self.commands.front() else {
            // The server's farewell.
            return (last == LastPacket::Error).then_some(true);
        };
        if let Some(response) = front.response {
            // After 255 comes 0, then 1 again.
            let may_go_on = number == before.wrapping_add(1);
            let begins = next == Some(number) && (!may_go_on || response.last.ends());
            if begins {
                let command = self.commands.pop_front()?;
                self.emit(command, response, sink);
            } else if !may_go_on {
                return (last == LastPacket::Error && response.last.ends()).then_some(true);
            }
        } else if number != front.number.wrapping_add(1) {
            return None;
        }
        let front = self.commands.front_mut()?;
        // A row may begin with this byte as well, but not a result.
        let begins_result = match front.response {
            None => true,
            Some(before) => matches!(before.last, LastPacket::Status(_)) && !before.last.ends(),
        };
        self.sends_file =
            begins_result && front.kind == COM_QUERY && packet.body.first() == Some(&WANTS_FILE);
        front.response = Some(Response { end: packet.end, last });
        Some(true)
    }

    fn emit(&mut self, command: Command, response: Response, sink: &mut Sink) {
        self.line.trip(command.begin, response.end, command.statements(), sink);
        match response.last {
            // Its first bytes look like a status, and are not.
            _ if command.kind == COM_STMT_PREPARE => {}
            LastPacket::Status(status) if status & IN_TRANSACTION == 0 => self.line.next_block(),
            LastPacket::Status(_) | LastPacket::Error | LastPacket::Other => {}
        }
    }

    fn lose(&mut self, since: CaptureNs, sink: &mut Sink) {
        sink.counts.one(Counter::LostMessages);
        let finished = |command: &Command| command.response.filter(|response| response.last.ends());
        if let Some(response) = self.commands.front().and_then(finished)
            && let Some(command) = self.commands.pop_front()
        {
            self.emit(command, response, sink);
        }
        let since =
            self.commands.drain(..).map(|command| command.begin).min().unwrap_or(since).min(since);
        self.phase = Phase::Lost { since };
        self.sends_file = false;
        self.front.reset();
        self.back.reset();
        self.line.next_block();
    }
}

impl Command {
    fn statements(&self) -> u32 {
        u32::from(matches!(self.kind, COM_QUERY | COM_STMT_EXECUTE | COM_STMT_BULK_EXECUTE))
    }
}

impl LastPacket {
    /// Whether a response may end with it.
    fn ends(self) -> bool {
        match self {
            Self::Status(status) => status & MORE_RESULTS == 0,
            Self::Error => true,
            Self::Other => false,
        }
    }
}

/// A packet with its number, away from what it was read from.
struct Packet {
    number: u8,
    body: Vec<u8>,
    length: u32,
    begin: CaptureNs,
    end: CaptureNs,
}

impl Packet {
    fn new(message: &Message<'_>) -> Self {
        Self {
            number: message.header[3],
            body: message.body.to_vec(),
            length: message.length,
            begin: message.begin,
            end: message.end,
        }
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        self.body.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn last_of_response(&self) -> LastPacket {
        let status = |at: usize| {
            let bytes = self.body.get(at..)?.first_chunk()?;
            Some(LastPacket::Status(u16::from_le_bytes(*bytes)))
        };
        match self.body.first() {
            Some(&ERROR) => LastPacket::Error,
            Some(0xfe) if self.length == 5 => status(3).unwrap_or(LastPacket::Other),
            Some(0 | 0xfe) if 7 <= self.length => {
                let affected = after_number(&self.body, 1);
                let inserted = affected.and_then(|at| after_number(&self.body, at));
                inserted.and_then(status).unwrap_or(LastPacket::Other)
            }
            _ => LastPacket::Other,
        }
    }
}

/// Where a number of 1, 3, 4 or 9 bytes ends.
fn after_number(body: &[u8], at: usize) -> Option<usize> {
    match body.get(at)? {
        0..=0xfa => Some(at + 1),
        0xfc => Some(at + 3),
        0xfd => Some(at + 4),
        0xfe => Some(at + 9),
        0xfb | 0xff => None,
    }
}

/// The capabilities that a greeting offers; `None`: it is none.
fn greeting(body: &[u8]) -> Option<u32> {
    let [10, rest @ ..] = body else { return None };
    let version = rest.iter().position(|byte| *byte == 0)?;
    // Thread, first half of the salt, a zero; then the lower half, character set, status, the upper half.
    let after = rest.get(version + 1 + 4 + 8 + 1..)?;
    let lower = u16::from_le_bytes(*after.first_chunk()?);
    let upper = after.get(5..7).map_or(0, |upper| u16::from_le_bytes([upper[0], upper[1]]));
    Some(u32::from(upper) << 16 | u32::from(lower))
}

/// Whether a connection begins as MySQL's do; `None`: more bytes would tell.
pub(crate) fn begins(data: &[u8]) -> Option<bool> {
    let start = data.get(..5)?;
    let is_greeting = matches!(start[4], 10 | ERROR);
    Some(start[2] == 0 && start[3] == 0 && is_greeting && start[1] < 4)
}

/// Whether bytes are a whole command.
pub(crate) fn is_command(data: &[u8]) -> bool {
    let known = |body: &[u8]| match body.first().copied() {
        Some(COM_QUERY | COM_STMT_PREPARE) => body
            .get(1)
            .is_some_and(|text| text.is_ascii_graphic() || text.is_ascii_whitespace() || *text < 2),
        Some(COM_STMT_EXECUTE) => 10 <= body.len(),
        Some(COM_STMT_FETCH) => body.len() == 9,
        // A change of database, a ping.
        Some(0x02) => 1 < body.len(),
        Some(0x0e) => body.len() == 1,
        _ => false,
    };
    let is_known = |header: &[u8], body: &[u8]| header[3] == 0 && known(body);
    whole_messages(Framing::MySql, data, is_known).is_some()
}
