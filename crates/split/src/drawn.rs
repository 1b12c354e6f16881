//! Captures made by code, for tests and as seeds for the fuzzer.

use std::net::{IpAddr, SocketAddr};

use crate::{CaptureNs, Link, Packet, Writer};

/// Packets on their way into a capture.
#[derive(Debug, Clone, Default)]
pub struct Drawing {
    /// What was drawn so far.
    pub packets: Vec<DrawnPacket>,
    lines: Vec<Line>,
}

/// An Ethernet frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnPacket {
    /// When, in microseconds after the capture's first second.
    pub at_us: u64,
    pub interface: u32,
    pub frame: Vec<u8>,
    /// How long it is, if it was cut.
    pub length: usize,
}

#[derive(Debug, Clone)]
struct Line {
    ends: [SocketAddr; 2],
    /// The next number of either end.
    next: [u32; 2],
    interface: u32,
}

/// A connection of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineId(usize);

/// The time of microsecond 0.
pub const EPOCH: CaptureNs = CaptureNs(1_000_000_000);

/// A time of a drawing.
#[must_use]
pub fn at(us: u64) -> CaptureNs {
    CaptureNs(EPOCH.0 + us * 1000)
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

impl Drawing {
    /// A connection that was there before the capture.
    pub fn midway(&mut self, client: &str, server: &str) -> LineId {
        let end =
            |text: &str| text.parse().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 1)));
        // The first one's numbers wrap soon, and no other one has the same.
        let other = u32::try_from(self.lines.len()).unwrap_or(0).wrapping_mul(1 << 28);
        self.lines.push(Line {
            ends: [end(client), end(server)],
            next: [u32::MAX - 40, u32::MAX - 1000].map(|next| next.wrapping_add(other)),
            interface: 0,
        });
        LineId(self.lines.len() - 1)
    }

    /// A connection is opened: SYN, and a microsecond later its answer and the confirmation.
    pub fn open(&mut self, us: u64, client: &str, server: &str) -> LineId {
        let line = self.midway(client, server);
        self.segment(line, 0, us, SYN, b"");
        self.lines[line.0].next[0] = self.lines[line.0].next[0].wrapping_add(1);
        self.segment(line, 1, us + 1, SYN | ACK, b"");
        self.lines[line.0].next[1] = self.lines[line.0].next[1].wrapping_add(1);
        self.segment(line, 0, us + 1, ACK, b"");
        line
    }

    /// What the client sends.
    pub fn client(&mut self, line: LineId, us: u64, bytes: &[u8]) {
        self.send(line, 0, us, bytes);
    }

    /// What the server sends.
    pub fn server(&mut self, line: LineId, us: u64, bytes: &[u8]) {
        self.send(line, 1, us, bytes);
    }

    /// Either end sends its FIN.
    pub fn close(&mut self, line: LineId, us: u64) {
        for end in [0, 1] {
            self.segment(line, end, us, FIN | ACK, b"");
            self.lines[line.0].next[end] = self.lines[line.0].next[end].wrapping_add(1);
        }
        self.segment(line, 0, us, ACK, b"");
    }

    /// All packets in the order of their times.
    #[must_use]
    pub fn in_order(mut self) -> Vec<DrawnPacket> {
        self.packets.sort_by_key(|packet| packet.at_us);
        self.packets
    }

    fn send(&mut self, line: LineId, end: usize, us: u64, bytes: &[u8]) {
        for piece in bytes.chunks(1400) {
            self.segment(line, end, us, ACK, piece);
            let next = &mut self.lines[line.0].next[end];
            *next = next.wrapping_add(u32::try_from(piece.len()).unwrap_or(0));
        }
    }

    fn segment(&mut self, line: LineId, end: usize, us: u64, flags: u8, payload: &[u8]) {
        let Line { ends, next, interface } = self.lines[line.0].clone();
        let ack = if flags & ACK == 0 { 0 } else { next[1 - end] };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let tcp_length = 20 + payload.len();
        match (ends[end].ip(), ends[1 - end].ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend(length(20 + tcp_length));
                frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(from.octets().into_iter().chain(to.octets()));
            }
            (from, to) => {
                let octets = |ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(length(tcp_length));
                frame.extend([6, 64]);
                frame.extend(octets(from).into_iter().chain(octets(to)));
            }
        }
        frame.extend(ends[end].port().to_be_bytes());
        frame.extend(ends[1 - end].port().to_be_bytes());
        frame.extend(next[end].to_be_bytes().into_iter().chain(ack.to_be_bytes()));
        frame.extend([0x50, flags, 255, 255, 0, 0, 0, 0]);
        frame.extend_from_slice(payload);
        let length = frame.len();
        self.packets.push(DrawnPacket { at_us: us, interface, frame, length });
    }
}

impl DrawnPacket {
    /// As it was captured.
    #[must_use]
    pub fn packet(&self) -> Packet<'_> {
        Packet {
            at: at(self.at_us),
            interface: self.interface,
            link: Link::Ethernet,
            data: &self.frame,
            length: u32::try_from(self.length).unwrap_or(u32::MAX),
        }
    }
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(0).to_be_bytes()
}

/// A pcapng file of these packets.
#[must_use]
pub fn pcapng(packets: &[DrawnPacket]) -> Vec<u8> {
    let write = || {
        let mut writer = Writer::new(Vec::new(), &["tap0", "tap1"], 65_535)?;
        for drawn in packets {
            let Packet { at, interface, data, length, .. } = drawn.packet();
            writer.packet(interface, at, data, length)?;
        }
        writer.finish()
    };
    write().unwrap_or_default()
}

/// A message of PostgreSQL's protocol.
#[must_use]
pub fn pg(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(4);
    [&[kind], &length.to_be_bytes()[..], body].concat()
}

/// A message that begins a connection of PostgreSQL's protocol.
#[must_use]
pub fn pg_startup(code: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 8).unwrap_or(8);
    [&length.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
}

/// A packet of MySQL's protocol.
#[must_use]
pub fn mysql(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(0).to_le_bytes();
    [&length[..3], &[number], body].concat()
}

/// An OK packet of MySQL's protocol, with the server's status.
#[must_use]
pub fn mysql_ok(number: u8, status: u8) -> Vec<u8> {
    mysql(number, &[0, 0, 0, status, 0, 0, 0])
}

/// A MySQL server's greeting, which offers compression and encryption.
#[must_use]
pub fn mysql_greeting() -> Vec<u8> {
    let mut body = b"\x0a8.0.1\0".to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend([b's'; 8]);
    body.extend([0, 0xff, 0xff, 45, 2, 0, 0xff, 0xff, 21]);
    body.extend([0; 10]);
    body.extend([b's'; 13]);
    mysql(0, &body)
}

/// A MySQL client's answer to it, which asks for these capabilities besides protocol 4.1.
#[must_use]
pub fn mysql_login(capabilities: u32) -> Vec<u8> {
    let mut body = (capabilities | 0x200).to_le_bytes().to_vec();
    body.extend([0, 0, 0, 1, 45]);
    body.extend([0; 23]);
    body.extend(b"me\0\0");
    mysql(1, &body)
}
