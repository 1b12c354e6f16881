//! Which protocol a connection speaks, by its first bytes or, of one that began before the capture, by any.

use std::net::SocketAddr;

use crate::connection::Side;
use crate::http::{self, HeadKind};
use crate::proxy::{self, Header};
use crate::tcp::Budget;
use crate::{CaptureNs, Counter, Counts, Roles, mysql, postgres};

/// Bytes by which a protocol is known.
pub(crate) const MAX_HELD: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Held {
    /// None is empty.
    pub(crate) pieces: Vec<(Side, CaptureNs, Vec<u8>)>,
    pub(crate) bytes: usize,
    pub(crate) last: Option<Side>,
    pub(crate) n_turns: u8,
    /// From when to when something was said that was not understood.
    pub(crate) missed: Option<(CaptureNs, CaptureNs)>,
    /// The client's first bytes are no PROXY header, or it was taken away.
    is_past_header: bool,
}

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guess {
    NeedsMore,
    Http,
    Http2,
    Postgres,
    MySql,
    Encrypted,
    Other,
}

impl Held {
    pub(crate) fn forget(&mut self, budget: &mut Budget) {
        budget.give_back(self.bytes);
        self.bytes = 0;
        self.pieces.clear();
    }

    pub(crate) fn miss(&mut self, at: CaptureNs) {
        let from = self.pieces.first().map_or(at, |(_, from, _)| *from);
        let (from, _) = self.missed.unwrap_or((from, at));
        self.missed = Some((from, at));
    }

    /// What a side said first, as far as a guess needs it.
    fn start(&self, side: Side) -> Vec<u8> {
        let said = self.pieces.iter().filter(|(of, ..)| *of == side);
        said.flat_map(|(_, _, data)| data).copied().take(MAX_HELD).collect()
    }

    /// Takes away the PROXY header that a client may begin with.
    pub(crate) fn skip_proxy_header(&mut self, budget: &mut Budget, counts: &mut Counts) -> Header {
        let start = if self.is_past_header { Vec::new() } else { self.start(Side::Client) };
        // A server may speak first.
        if start.is_empty() {
            return Header::None;
        }
        let header = proxy::header(&start);
        self.is_past_header = header != Header::TooShort;
        if let Header::Length(length) = header {
            counts.one(Counter::ProxyHeaders);
            self.drop_of_client(length);
            budget.give_back(length);
            self.bytes -= length;
        }
        header
    }

    /// The client's first bytes are no more.
    fn drop_of_client(&mut self, mut length: usize) {
        for (_, _, data) in self.pieces.iter_mut().filter(|(side, ..)| *side == Side::Client) {
            let taken = length.min(data.len());
            data.drain(..taken);
            length -= taken;
        }
        self.pieces.retain(|(_, _, data)| !data.is_empty());
    }

    /// Of a connection from its first bytes on.
    pub(crate) fn guess(&self) -> Guess {
        let Some((first, ..)) = self.pieces.first() else { return Guess::NeedsMore };
        let start = &self.start(*first)[..];
        let yes = |is: Option<bool>, guess| match is {
            None => Guess::NeedsMore,
            Some(true) => guess,
            Some(false) => Guess::Other,
        };
        match first {
            Side::Server => yes(mysql::begins(&start[..start.len().min(16)]), Guess::MySql),
            Side::Client => match start {
                [0, ..] => yes(postgres::begins(&start[..start.len().min(16)]), Guess::Postgres),
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
pub(crate) fn guess_midway(
    side: Side,
    data: &[u8],
    ends: [SocketAddr; 2],
    roles: &Roles,
) -> (Guess, Side) {
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
