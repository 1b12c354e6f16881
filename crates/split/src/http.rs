//! HTTP/1.x on one connection: requests and their responses, in order.
//!
//! ```text
//!  Head --> Body(n) | Chunked | UntilClose --> Head ...      for each direction
//!    any --(bytes are lacking that are not inside of a body)--> Lost --(a head begins)--> Head
//! ```
//! A response belongs to the oldest request without one (RFC 9112, 9.3.2). After a loss nothing is reported until all
//! requests are answered: an answer could be that of a request that was lost.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::connection::Side;
use crate::parts::Unknown;
use crate::sink::Sink;
use crate::splitter::{Outcome, Request};
use crate::{CaptureNs, Counter};

/// Bytes of a head.
const MAX_HEAD: usize = 32 << 10;
const MAX_HEADERS: usize = 128;
/// Requests that wait for their responses.
const MAX_PENDING: usize = 256;
/// Longest target in a report.
const MAX_TARGET: usize = 200;
/// What a pending request is charged.
const PENDING_BYTES: usize = 512;

#[derive(Debug)]
pub(crate) struct Http {
    client: SocketAddr,
    server: SocketAddr,
    interface: u32,
    asks: Reader,
    answers: Reader,
    pending: VecDeque<Pending>,
    /// The response that is being read; `None`: it has no request.
    response: Option<Response>,
    after_loss: bool,
    /// No HTTP any more: a tunnel, or another protocol.
    is_over: bool,
}

#[derive(Debug)]
struct Pending {
    method: Box<str>,
    target: Box<str>,
    begin: CaptureNs,
    sent: Option<CaptureNs>,
    answered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Response {
    status: u16,
    begin: CaptureNs,
}

/// One direction.
#[derive(Debug, Default)]
struct Reader {
    state: State,
    head: Vec<u8>,
    begin: CaptureNs,
    last: CaptureNs,
    /// The sender waits for "100 Continue" before it sends the body.
    waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Head,
    Body(u64),
    Chunked(Chunk),
    UntilClose,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Size { bytes: u64, n_digits: u8, in_extension: bool },
    Data(u64),
    AfterData,
    Trailer { is_empty_line: bool },
}

/// What a message's body is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Bytes(u64),
    Chunked,
    UntilClose,
}

/// What a direction's bytes led to.
enum Step {
    /// They are used up.
    More,
    Head,
    Whole,
    Bad,
}

impl Http {
    pub(crate) fn new([client, server]: [SocketAddr; 2], interface: u32) -> Self {
        Self {
            client,
            server,
            interface,
            asks: Reader::default(),
            answers: Reader::default(),
            pending: VecDeque::new(),
            response: None,
            after_loss: false,
            is_over: false,
        }
    }

    /// Its addresses without translation became known.
    pub(crate) fn set_ends(&mut self, [client, server]: [SocketAddr; 2]) {
        (self.client, self.server) = (client, server);
    }

    pub(crate) fn data(&mut self, side: Side, at: CaptureNs, mut data: &[u8], sink: &mut Sink) {
        while !data.is_empty() && !self.is_over {
            match side {
                Side::Client => self.ask(at, &mut data, sink),
                Side::Server => self.answer(at, &mut data, sink),
            }
        }
    }

    pub(crate) fn gap(&mut self, side: Side, since: CaptureNs, bytes: u64, sink: &mut Sink) {
        if self.is_over {
            return;
        }
        let reader = match side {
            Side::Client => &mut self.asks,
            Side::Server => &mut self.answers,
        };
        match reader.gap(since, bytes) {
            Step::Whole if side == Side::Client => self.requested(since),
            Step::Whole => self.answered(sink),
            Step::Bad => self.lose(side, sink),
            Step::More | Step::Head => {}
        }
    }

    pub(crate) fn end(&mut self, side: Side, sink: &mut Sink) {
        if side == Side::Server {
            if self.answers.state == State::UntilClose {
                self.answered(sink);
            }
            self.give_up(sink);
        }
    }

    /// The connection is over, or no longer followed.
    pub(crate) fn finish(&mut self, sink: &mut Sink) {
        self.give_up(sink);
        for reader in [&mut self.asks, &mut self.answers] {
            sink.budget.give_back(std::mem::take(&mut reader.head).len());
        }
    }

    fn ask(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) {
        if let State::Lost = self.asks.state {
            if kind_of_head(data) != Some(HeadKind::Request) {
                *data = &[];
                return;
            }
            self.asks.state = State::Head;
        }
        self.without_continue(data);
        match self.asks.read(at, data, sink) {
            Step::More => {}
            Step::Head => self.request_head(at, sink),
            Step::Whole => self.requested(at),
            Step::Bad => self.lose(Side::Client, sink),
        }
    }

    /// A client that waits for "100 Continue" and is refused may send its next request instead of the body.
    fn without_continue(&mut self, data: &[u8]) {
        let is_refused = self.pending.back().is_none_or(|last| last.answered);
        if self.asks.waits && is_refused && kind_of_head(data) == Some(HeadKind::Request) {
            self.asks.begin_next();
        }
    }

    fn request_head(&mut self, at: CaptureNs, sink: &mut Sink) {
        let head = std::mem::take(&mut self.asks.head);
        let parsed = parse_request(&head);
        sink.budget.give_back(head.len());
        let Some(request) = parsed else {
            return self.lose(Side::Client, sink);
        };
        if self.pending.len() == MAX_PENDING || !sink.budget.take(PENDING_BYTES) {
            return self.lose(Side::Client, sink);
        }
        self.pending.push_back(Pending {
            method: request.method,
            target: request.target,
            begin: self.asks.begin,
            sent: None,
            answered: false,
        });
        self.asks.waits = request.waits;
        if self.asks.body(request.body) {
            self.requested(at);
        }
    }

    /// The last request is complete.
    fn requested(&mut self, at: CaptureNs) {
        self.asks.begin_next();
        if let Some(last) = self.pending.back_mut() {
            last.sent.get_or_insert(at);
        }
    }

    fn answer(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) {
        if let State::Lost = self.answers.state {
            // A response that comes before the next request is of one before the loss.
            if self.pending.is_empty() || kind_of_head(data) != Some(HeadKind::Response) {
                *data = &[];
                return;
            }
            self.answers.state = State::Head;
        }
        match self.answers.read(at, data, sink) {
            Step::More => {}
            Step::Head => self.response_head(sink),
            Step::Whole => self.answered(sink),
            Step::Bad => self.lose(Side::Server, sink),
        }
    }

    fn response_head(&mut self, sink: &mut Sink) {
        let head = std::mem::take(&mut self.answers.head);
        sink.budget.give_back(head.len());
        let method = self.pending.front().map_or("GET", |pending| &*pending.method);
        let Some(head) = parse_response(&head, method) else {
            return self.lose(Side::Server, sink);
        };
        let begin = self.answers.begin;
        if (100..200).contains(&head.status) && head.status != 101 {
            self.asks.waits &= head.status != 100;
            return self.answers.begin_next();
        }
        if let Some(front) = self.pending.front_mut() {
            front.answered = true;
            self.response = Some(Response { status: head.status, begin });
        } else {
            sink.counts.one(Counter::WithoutRequest);
        }
        let is_tunnel =
            head.status == 101 || (method_is_connect(&self.pending) && head.status < 300);
        if self.answers.body(head.body) {
            self.answered(sink);
        }
        if is_tunnel {
            self.give_up(sink);
            self.is_over = true;
        }
    }

    /// The response that is being read is complete.
    fn answered(&mut self, sink: &mut Sink) {
        let end = self.answers.last;
        self.answers.begin_next();
        if let Some(response) = self.response.take()
            && let Some(pending) = self.pending.pop_front()
        {
            sink.budget.give_back(PENDING_BYTES);
            if self.after_loss {
                sink.counts.one(Counter::WithoutResponse);
            } else {
                self.report(pending, response, end, sink);
            }
        }
        if self.pending.is_empty() {
            self.after_loss = false;
        }
    }

    fn report(&self, pending: Pending, response: Response, end: CaptureNs, sink: &mut Sink) {
        let end = end.max(pending.begin);
        sink.request(Request {
            client: self.client,
            server: self.server,
            interface: self.interface,
            method: pending.method,
            target: pending.target,
            status: response.status,
            begin: pending.begin,
            // A server may answer before it has read everything.
            sent: pending.sent.unwrap_or(end).clamp(pending.begin, end),
            answered: response.begin.clamp(pending.begin, end),
            end,
            outcome: Outcome::Unknown(Unknown::NoDatabase),
        });
    }

    fn lose(&mut self, side: Side, sink: &mut Sink) {
        sink.counts.one(Counter::LostMessages);
        let reader = match side {
            Side::Client => &mut self.asks,
            Side::Server => &mut self.answers,
        };
        sink.budget.give_back(std::mem::take(&mut reader.head).len());
        reader.state = State::Lost;
        self.after_loss = true;
        self.give_up(sink);
    }

    fn give_up(&mut self, sink: &mut Sink) {
        let n = self.pending.len();
        sink.counts.add(Counter::WithoutResponse, n as u64);
        sink.budget.give_back(n * PENDING_BYTES);
        self.pending.clear();
        self.response = None;
    }
}

fn method_is_connect(pending: &VecDeque<Pending>) -> bool {
    pending.front().is_some_and(|pending| &*pending.method == "CONNECT")
}

impl Reader {
    /// Takes from `data` what belongs to the message that is under way.
    fn read(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) -> Step {
        match &mut self.state {
            State::Head => return self.read_head(at, data, sink),
            State::Body(left) => {
                let taken = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                *data = &data[taken..];
            }
            State::Chunked(chunk) => {
                let whole = chunk.read(data);
                self.last = at;
                self.waits = false;
                return whole;
            }
            State::UntilClose | State::Lost => *data = &[],
        }
        self.last = at;
        self.waits = false;
        if self.state == State::Body(0) { Step::Whole } else { Step::More }
    }

    fn read_head(&mut self, at: CaptureNs, data: &mut &[u8], sink: &mut Sink) -> Step {
        if self.head.is_empty() {
            // Empty lines before a request are allowed (RFC 9112, 2.2).
            let blank = data.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            *data = &data[blank..];
            self.begin = at;
        }
        let known = self.head.len();
        let taken = data.len().min(MAX_HEAD - known);
        self.head.extend_from_slice(&data[..taken]);
        let end = end_of_head(&self.head, known.saturating_sub(3));
        self.head.truncate(end.unwrap_or(self.head.len()));
        let used = self.head.len() - known;
        *data = &data[used..];
        self.last = at;
        if !sink.budget.take(used) {
            self.head.truncate(known);
            return Step::Bad;
        }
        match end {
            Some(_) => Step::Head,
            None if self.head.len() == MAX_HEAD => Step::Bad,
            None => Step::More,
        }
    }

    fn gap(&mut self, at: CaptureNs, bytes: u64) -> Step {
        match &mut self.state {
            State::Body(left) if bytes <= *left => *left -= bytes,
            State::Chunked(Chunk::Data(left)) if bytes < *left => *left -= bytes,
            State::UntilClose | State::Lost => {}
            State::Head | State::Body(_) | State::Chunked(_) => return Step::Bad,
        }
        self.last = at;
        if self.state == State::Body(0) { Step::Whole } else { Step::More }
    }

    /// A head has ended and this follows. Says whether that is nothing.
    fn body(&mut self, body: Body) -> bool {
        self.state = match body {
            Body::Bytes(bytes) => State::Body(bytes),
            Body::Chunked => State::Chunked(Chunk::BEGIN),
            Body::UntilClose => State::UntilClose,
        };
        self.state == State::Body(0)
    }

    fn begin_next(&mut self) {
        self.state = State::Head;
        self.waits = false;
    }
}

impl Chunk {
    const BEGIN: Self = Self::Size { bytes: 0, n_digits: 0, in_extension: false };

    /// RFC 9112, 7.1. A line may end with a line feed alone.
    fn read(&mut self, data: &mut &[u8]) -> Step {
        while let Some(byte) = data.first().copied() {
            if let Self::Data(left) = self {
                let taken = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                *data = &data[taken..];
                if *left == 0 {
                    *self = Self::AfterData;
                }
                continue;
            }
            *data = &data[1..];
            match self.byte(byte) {
                Some(Self::Trailer { is_empty_line: true })
                    if byte == b'\n' && self.is_trailer() =>
                {
                    return Step::Whole;
                }
                Some(next) => *self = next,
                None => return Step::Bad,
            }
        }
        Step::More
    }

    fn is_trailer(&self) -> bool {
        matches!(self, Self::Trailer { is_empty_line: true })
    }

    /// What a byte outside of data leads to.
    fn byte(self, byte: u8) -> Option<Self> {
        match self {
            Self::Size { bytes, n_digits, in_extension } => match byte {
                b'\n' if n_digits == 0 => None,
                b'\n' if bytes == 0 => Some(Self::Trailer { is_empty_line: true }),
                b'\n' => Some(Self::Data(bytes)),
                _ if in_extension => Some(self),
                b';' | b'\r' | b' ' | b'\t' => {
                    Some(Self::Size { bytes, n_digits, in_extension: true })
                }
                _ => {
                    let digit = (byte as char).to_digit(16).filter(|_| n_digits < 15)?;
                    let bytes = bytes << 4 | u64::from(digit);
                    Some(Self::Size { bytes, n_digits: n_digits + 1, in_extension })
                }
            },
            Self::Data(_) => Some(self),
            Self::AfterData => match byte {
                b'\r' => Some(self),
                b'\n' => Some(Self::BEGIN),
                _ => None,
            },
            Self::Trailer { is_empty_line } => match byte {
                b'\n' => Some(Self::Trailer { is_empty_line: true }),
                b'\r' => Some(Self::Trailer { is_empty_line }),
                _ => Some(Self::Trailer { is_empty_line: false }),
            },
        }
    }
}

/// Where a head ends that has no end before `from`.
fn end_of_head(head: &[u8], from: usize) -> Option<usize> {
    let ends = |at: &usize| {
        let rest = &head[at + 1..];
        head[*at] == b'\n' && (rest.starts_with(b"\n") || rest.starts_with(b"\r\n"))
    };
    let at = (from..head.len()).find(ends)?;
    Some(if head[at + 1] == b'\n' { at + 2 } else { at + 3 })
}

struct RequestHead {
    method: Box<str>,
    target: Box<str>,
    body: Body,
    waits: bool,
}

fn parse_request(head: &[u8]) -> Option<RequestHead> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(head).ok()?.is_complete() {
        return None;
    }
    let body = match framing(request.headers)? {
        Some(Body::UntilClose) => return None,
        Some(body) => body,
        None => Body::Bytes(0),
    };
    let waits = value(request.headers, "expect")
        .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    let waits = waits && body != Body::Bytes(0);
    let target: String = request.path?.chars().take(MAX_TARGET).collect();
    Some(RequestHead { method: request.method?.into(), target: target.into(), body, waits })
}

struct ResponseHead {
    status: u16,
    body: Body,
}

fn parse_response(head: &[u8], method: &str) -> Option<ResponseHead> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    if !response.parse(head).ok()?.is_complete() {
        return None;
    }
    let status = response.code?;
    // RFC 9112, 6.3.
    let has_none = method == "HEAD"
        || (method == "CONNECT" && (200..300).contains(&status))
        || matches!(status, 100..200 | 204 | 304);
    let body = if has_none {
        Body::Bytes(0)
    } else {
        framing(response.headers)?.unwrap_or(Body::UntilClose)
    };
    Some(ResponseHead { status, body })
}

fn value<'h>(headers: &[httparse::Header<'h>], name: &str) -> Option<&'h [u8]> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    header.map(|header| header.value.trim_ascii())
}

/// How headers say that a body is framed; `None` inside: not at all, outside: in a way that can't be.
fn framing(headers: &[httparse::Header<'_>]) -> Option<Option<Body>> {
    let is_encoding = |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case("transfer-encoding");
    if let Some(last) = headers.iter().rev().find(is_encoding) {
        let last = last.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        let is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
        return Some(Some(if is_chunked { Body::Chunked } else { Body::UntilClose }));
    }
    let Some(length) = value(headers, "content-length") else { return Some(None) };
    let length = std::str::from_utf8(length).ok()?;
    // `5, 5` is what proxies make of the header twice.
    let length = length.split(',').next().unwrap_or_default().trim();
    Some(Some(Body::Bytes(length.parse().ok()?)))
}

/// Whose head bytes look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadKind {
    Request,
    Response,
    /// HTTP/2 without TLS.
    Http2,
    /// Perhaps a head: more bytes would tell.
    TooShort,
}

/// Bytes of a request line, of its method, by which HTTP is known.
const MAX_LINE: usize = 4096;
const MAX_METHOD: usize = 64;
const VERSION: &[u8] = b"HTTP/1.";
/// Usual ones.
const METHODS: [&str; 20] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "REPORT",
    "LOCK",
    "UNLOCK",
    "SEARCH",
    "QUERY",
    "PURGE",
];
const HTTP2: &[u8] = b"PRI * HTTP/2";

/// What bytes at which a message may begin look like; `None`: no head.
pub(crate) fn kind_of_head(data: &[u8]) -> Option<HeadKind> {
    let begins = |word: &[u8]| {
        let n = word.len().min(data.len());
        (data[..n] == word[..n]).then_some(n == word.len())
    };
    if let Some(whole) = begins(VERSION) {
        return Some(if whole { HeadKind::Response } else { HeadKind::TooShort });
    }
    if let Some(whole) = begins(HTTP2) {
        return Some(if whole { HeadKind::Http2 } else { HeadKind::TooShort });
    }
    for method in METHODS {
        match (begins(method.as_bytes()), data.get(method.len())) {
            (Some(true), Some(b' ')) => return Some(HeadKind::Request),
            (Some(_), None) => return Some(HeadKind::TooShort),
            _ => {}
        }
    }
    kind_of_line(data)
}

/// The same for a method that is not a usual one: only the whole line says that it is HTTP's.
fn kind_of_line(data: &[u8]) -> Option<HeadKind> {
    let (line, is_whole) = match data.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(end) => (data[..end].trim_ascii_end(), true),
        None => (data, false),
    };
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let method = words.next().unwrap_or_default();
    if method.is_empty() || MAX_METHOD < method.len() || !method.iter().all(|byte| is_token(*byte))
    {
        return None;
    }
    let target = words.next().unwrap_or_default();
    if !target.iter().all(|byte| byte.is_ascii_graphic() || !byte.is_ascii()) {
        return None;
    }
    let version = words.next().unwrap_or_default();
    if is_whole {
        let is_http = matches!(version, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9']);
        return (is_http && !target.is_empty()).then_some(HeadKind::Request);
    }
    let begun = version.len().min(VERSION.len());
    let may_go_on = version[..begun] == VERSION[..begun] && data.len() < MAX_LINE;
    may_go_on.then_some(HeadKind::TooShort)
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
