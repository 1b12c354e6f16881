//! What anybody on the network sends: capture files, and what is said on connections.

use split::drawn::{self, Drawing, LineId};
use split::{CaptureFile, Outcome, Part, Roles, Split, Splitter};

use super::{Numbers, Target};

const WEB: &str = "10.0.0.2:80";
const WEB_TO_DB: &str = "10.0.0.2:50000";
const PG: &str = "10.0.0.3:5432";
const MYSQL: &str = "10.0.0.3:3306";

pub(super) fn targets() -> Vec<Target> {
    let talk = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        Target::new("split-packets", packets, seed_packets),
        Target {
            words: &[
                b"GET / HTTP/1.1\r\n",
                b"HTTP/1.1 100 \r\n\r\n",
                b"\r\n\r\n",
                b"Content-Length: ",
                b"Expect: 100-continue\r\n",
            ],
            ..talk("split-http", run_http, seed_http)
        },
        talk("split-pg", run_pg, seed_pg),
        talk("split-mysql", run_mysql, seed_mysql),
    ]
}

/// A file, packet by packet.
fn packets(bytes: &[u8]) {
    let Ok(mut file) = CaptureFile::new(bytes, 0) else { return };
    let mut splitter = Splitter::new(Roles::default());
    while let Ok(true) = file.advance() {
        if let Some(packet) = file.packet() {
            splitter.packet(&packet);
        }
    }
    splitter.file(&file.counts());
    check(&splitter.finish());
}

/// What is added up must be the whole, whatever was said.
fn check(split: &Split) {
    for request in &split.requests {
        assert!(request.begin <= request.sent && request.sent <= request.end);
        assert!(request.begin <= request.answered && request.answered <= request.end);
        if let Outcome::Known(parts) = &request.outcome {
            let sum: u64 = Part::ALL.iter().map(|part| parts.ns(*part)).sum();
            assert_eq!(sum, request.turnaround_ns());
        }
    }
}

fn run_http(bytes: &[u8]) {
    conversation(bytes, "10.0.0.9:1", WEB);
}

fn run_pg(bytes: &[u8]) {
    conversation(bytes, WEB_TO_DB, PG);
}

fn run_mysql(bytes: &[u8]) {
    conversation(bytes, WEB_TO_DB, MYSQL);
}

/// A request during which these bytes are said: a side or a loss, how many bytes, then these.
fn conversation(bytes: &[u8], client: &str, server: &str) {
    let mut input = Numbers(bytes);
    let mut drawing = Drawing::default();
    let other = drawing.open(1, "10.0.0.9:2", WEB);
    drawing.client(other, 10, b"GET / HTTP/1.1\r\n\r\n");
    let begins_midway = input.u8() & 1 == 1;
    let line = if begins_midway {
        drawing.midway(client, server)
    } else {
        drawing.open(11, client, server)
    };
    let mut us = 20;
    while !input.0.is_empty() {
        let (what, length) = (input.u8(), usize::from(input.u8()) << (input.u8() & 7));
        let bytes = input.bytes(length.max(1));
        us += u64::from(what >> 4);
        let before = drawing.packets.len();
        if what & 1 == 0 {
            drawing.client(line, us, &bytes);
        } else {
            drawing.server(line, us, &bytes);
        }
        if what & 14 == 14 {
            drawing.packets.truncate(before);
        }
    }
    drawing.server(other, us + 10, b"HTTP/1.1 204 \r\n\r\n");
    let mut splitter = Splitter::new(Roles::default());
    for drawn in &drawing.packets {
        splitter.packet(&drawn.packet());
    }
    check(&splitter.finish());
}

fn scene() -> Drawing {
    let mut drawing = Drawing::default();
    let lines = [
        drawing.open(1, "10.0.0.9:1", WEB),
        drawing.open(2, WEB_TO_DB, PG),
        drawing.open(3, "10.0.0.2:50001", MYSQL),
    ];
    let said = [http(), pg(), mysql()];
    for (line, said) in lines.into_iter().zip(said) {
        for (at, (side, bytes)) in (10..).step_by(10).zip(said) {
            say(&mut drawing, line, at, side, &bytes);
        }
    }
    drawing
}

fn say(drawing: &mut Drawing, line: LineId, us: u64, side: u8, bytes: &[u8]) {
    if side == 0 {
        drawing.client(line, us, bytes);
    } else {
        drawing.server(line, us, bytes);
    }
}

fn seed_packets() -> Vec<Vec<u8>> {
    vec![drawn::pcapng(&scene().in_order())]
}

type Said = Vec<(u8, Vec<u8>)>;

/// As `conversation` reads it.
fn seed(said: Said) -> Vec<u8> {
    let mut bytes = vec![0];
    for (side, said) in said {
        for piece in said.chunks(255) {
            bytes.extend([0x10 | side, u8::try_from(piece.len()).unwrap_or(255), 0]);
            bytes.extend(piece);
        }
    }
    bytes
}

fn http() -> Said {
    vec![
        (0, b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n".to_vec()),
        (1, b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
        (0, b"okGET /b HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n".to_vec()),
        (1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n".to_vec()),
        (1, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 304 \r\n\r\n".to_vec()),
    ]
}

fn pg() -> Said {
    let ready = drawn::pg(b'Z', b"I");
    let extended = [
        drawn::pg(b'P', b"s\0select $1\0\0\0"),
        drawn::pg(b'D', b"Ss\0"),
        drawn::pg(b'H', b""),
        drawn::pg(b'B', b"\0s\0\0\0\0\0\0\0"),
        drawn::pg(b'E', b"\0\0\0\0\0"),
        drawn::pg(b'S', b""),
    ];
    let executed = [
        drawn::pg(b'1', b""),
        drawn::pg(b't', b"\0\0"),
        drawn::pg(b'n', b""),
        drawn::pg(b'2', b""),
        drawn::pg(b'C', b"SELECT 0\0"),
        ready.clone(),
    ];
    vec![
        (0, drawn::pg_startup(80_877_103, b"")),
        (1, b"N".to_vec()),
        (0, drawn::pg_startup(0x30000, b"user\0a\0\0")),
        (1, drawn::pg(b'R', &[0, 0, 0, 10])),
        (0, drawn::pg(b'p', b"SCRAM")),
        (1, [drawn::pg(b'R', &[0; 4]), ready.clone()].concat()),
        (0, drawn::pg(b'Q', b"select 1\0")),
        (
            1,
            [drawn::pg(b'T', b"\0\0"), drawn::pg(b'D', &[0; 300]), drawn::pg(b'C', b"S\0"), ready]
                .concat(),
        ),
        (0, extended.concat()),
        (1, executed.concat()),
    ]
}

fn mysql() -> Said {
    vec![
        (1, drawn::mysql_greeting()),
        (0, drawn::mysql_login(0)),
        (1, drawn::mysql_ok(2, 2)),
        (0, drawn::mysql(0, b"\x03select 1")),
        (
            1,
            [
                drawn::mysql(1, &[1]),
                drawn::mysql(2, b"\x011"),
                drawn::mysql(3, &[0xfe, 0, 0, 2, 0]),
            ]
            .concat(),
        ),
        (
            0,
            [drawn::mysql(0, b"\x16select ?"), drawn::mysql(0, &[0x17, 1, 0, 0, 0, 0, 1, 0, 0, 0])]
                .concat(),
        ),
        (1, [drawn::mysql(1, &[0; 12]), drawn::mysql_ok(1, 2)].concat()),
    ]
}

fn seed_http() -> Vec<Vec<u8>> {
    vec![seed(http())]
}

fn seed_pg() -> Vec<Vec<u8>> {
    vec![seed(pg())]
}

fn seed_mysql() -> Vec<Vec<u8>> {
    vec![seed(mysql())]
}
