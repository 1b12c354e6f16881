//! Connections that something between client and server passes on: proxies with a header, address translation.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::net::Ipv4Addr;

use split::drawn::{self, Drawing, DrawnPacket, LineId};
use split::{CaptureFile, Counter, Link, Packet, Roles, Split, Splitter};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CLIENT: &str = "10.9.9.9:40000";
const WEB: &str = "10.0.0.2:80";
const DB: &str = "10.0.0.3:5432";

fn split(packets: &[DrawnPacket]) -> Split {
    let mut splitter = Splitter::new(Roles::default());
    for drawn in packets {
        splitter.packet(&drawn.packet());
    }
    splitter.finish()
}

/// Requests, then counters.
fn check(packets: &[DrawnPacket], requests: &[&str], counted: &[(Counter, u64)]) -> Split {
    let split = split(packets);
    let show = |one: &split::Request| {
        format!("{} {} {} {}", one.method, one.target, one.server, one.turnaround_ns() / 1000)
    };
    assert_eq!(split.requests.iter().map(show).collect::<Vec<_>>(), requests);
    for (counter, n) in counted {
        assert_eq!(split.counts.get(*counter), *n, "{counter:?}");
    }
    split
}

fn v2(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[0x21, 0x11][..], &length, body].concat()
}

fn headers() -> [Vec<u8>; 5] {
    [
        b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 80\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        v2(&[7; 12]),
        // With extensions of 600 bytes.
        v2(&[7; 612]),
    ]
}

#[test]
fn a_proxy_header_before_http_is_skipped() {
    for header in headers() {
        // In one segment with the request, in one of its own, byte by byte.
        for cuts in [vec![], vec![header.len()], (1..header.len()).collect()] {
            let mut drawing = Drawing::default();
            let line = drawing.open(10, CLIENT, WEB);
            let bytes = [&header[..], b"GET /a HTTP/1.1\r\n\r\n"].concat();
            let mut at = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                drawing.client(line, 50, &bytes[at..cut]);
                at = cut;
            }
            drawing.server(line, 90, OK);
            let counted = [(Counter::ProxyHeaders, 1), (Counter::OtherProtocol, 0)];
            check(&drawing.in_order(), &["GET /a 10.0.0.2:80 40"], &counted);
        }
    }
}

#[test]
fn a_proxy_header_before_a_database_is_skipped() {
    for header in headers() {
        let mut drawing = Drawing::default();
        let line = drawing.open(10, "10.0.0.2:50000", DB);
        drawing.client(line, 12, &header);
        drawing.client(line, 12, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
        drawing.server(line, 15, &[drawn::pg(b'R', &[0; 4]), drawn::pg(b'Z', b"I")].concat());
        let line = drawing.open(20, "10.0.0.2:50001", "10.0.0.3:3306");
        drawing.client(line, 22, &header);
        drawing.server(line, 24, &drawn::mysql_greeting());
        drawing.client(line, 25, &drawn::mysql_login(0));
        drawing.server(line, 26, &drawn::mysql_ok(2, 2));
        let counted = [
            (Counter::ProxyHeaders, 2),
            (Counter::DbConnections, 2),
            (Counter::DbUndecoded, 0),
            (Counter::OtherProtocol, 0),
        ];
        check(&drawing.in_order(), &[], &counted);
    }
}

#[test]
fn methods_are_any_word() {
    for method in ["BAN", "PURGE", "REFRESH", "M-SEARCH", "PROXY", "X", "GETALL", "get"] {
        let question = format!("{method} /a HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
        for pieces in [vec![&question[..]], question.chunks(3).collect()] {
            let mut drawing = Drawing::default();
            let line = drawing.open(10, CLIENT, WEB);
            pieces.iter().for_each(|piece| drawing.client(line, 50, piece));
            drawing.server(line, 90, OK);
            check(&drawing.in_order(), &[&format!("{method} /a 10.0.0.2:80 40")], &[]);
        }
        let mut midway = Drawing::default();
        let line = midway.midway(CLIENT, WEB);
        midway.client(line, 50, &question);
        midway.server(line, 90, OK);
        check(&midway.in_order(), &[&format!("{method} /a 10.0.0.2:80 40")], &[]);
    }
    for other in ["SETUP rtsp://a/b RTSP/1.0\r\n", "set a b\r\n", "SSH-2.0-OpenSSH\r\n", "a\0 b"] {
        let mut drawing = Drawing::default();
        let line = drawing.open(10, CLIENT, WEB);
        drawing.client(line, 50, other.as_bytes());
        drawing.server(line, 90, b"RTSP/1.0 200 OK\r\n");
        let counted = [(Counter::OtherProtocol, 1), (Counter::HttpConnections, 0)];
        check(&drawing.in_order(), &[], &counted);
    }
}

/// An end as the other side of the host sees it: address and port.
type Rewritten = (Ipv4Addr, u16);

/// Each packet twice: as drawn, and with its client and server translated; the copy nearer to the sender comes first.
fn translated(
    packets: Vec<DrawnPacket>,
    client: Option<Rewritten>,
    server: Option<Rewritten>,
) -> Vec<DrawnPacket> {
    let mut all = Vec::new();
    for packet in packets {
        let mut copy = packet.clone();
        let is_clients = packet.frame[26..30] == [10, 9, 9, 9];
        let (from, to) = if is_clients { (client, server) } else { (server, client) };
        for (end, address, port) in [(from, 26, 34), (to, 30, 36)] {
            if let Some((ip, number)) = end {
                copy.frame[address..address + 4].copy_from_slice(&ip.octets());
                copy.frame[port..port + 2].copy_from_slice(&number.to_be_bytes());
            }
        }
        all.extend(if is_clients { [packet, copy] } else { [copy, packet] });
    }
    all
}

fn one_request(open: impl Fn(&mut Drawing) -> LineId) -> Vec<DrawnPacket> {
    let mut drawing = Drawing::default();
    let line = open(&mut drawing);
    drawing.client(line, 50, b"GET /a HTTP/1.1\r\n\r\n");
    drawing.server(line, 90, OK);
    drawing.client(line, 150, b"GET /b HTTP/1.1\r\n\r\n");
    drawing.server(line, 170, OK);
    drawing.in_order()
}

#[test]
fn a_request_on_both_sides_of_address_translation_is_one() {
    let vm = Some(([10, 0, 0, 2].into(), 80));
    let host = Some(([10, 0, 0, 1].into(), 61000));
    let once = ["GET /a 10.0.0.2:80 40", "GET /b 10.0.0.2:80 20"];
    let opened = |drawing: &mut Drawing| drawing.open(10, CLIENT, "192.0.2.1:8080");
    let midway = |drawing: &mut Drawing| drawing.midway(CLIENT, "192.0.2.1:8080");
    let answered_first = |drawing: &mut Drawing| {
        let line = midway(drawing);
        drawing.server(line, 5, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        line
    };
    for packets in [one_request(opened), one_request(midway), one_request(answered_first)] {
        let n = packets.len() as u64;
        for client in [None, host] {
            let both = translated(packets.clone(), client, vm);
            let counted = [(Counter::Connections, 1), (Counter::HttpConnections, 1)];
            let split = check(&both, &once, &counted);
            assert_eq!(split.counts.get(Counter::Translated), n);
            assert!(split.requests.iter().all(|one| one.client == CLIENT.parse().unwrap()));
        }
    }
}

/// Queries are assigned by the VM's own address, which only the inner side has.
#[test]
fn queries_of_a_translated_web_server_are_its_requests() {
    let vm = Some(([10, 0, 0, 2].into(), 80));
    let mut packets =
        translated(one_request(|drawing| drawing.open(10, CLIENT, "192.0.2.1:8080")), None, vm);
    let mut drawing = Drawing::default();
    // Other numbers than the request's.
    drawing.midway("10.0.0.8:1", WEB);
    let db = drawing.open(12, "10.0.0.2:50000", DB);
    drawing.client(db, 13, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
    drawing.server(db, 14, &[drawn::pg(b'R', &[0; 4]), drawn::pg(b'Z', b"I")].concat());
    drawing.client(db, 60, &drawn::pg(b'Q', b"select 1\0"));
    drawing.server(db, 70, &[drawn::pg(b'C', b"SELECT 1\0"), drawn::pg(b'Z', b"I")].concat());
    packets.extend(drawing.in_order());
    packets.sort_by_key(|packet| packet.at_us);
    let split = split(&packets);
    assert_eq!((split.requests.len(), split.counts.get(Counter::ByTime)), (2, 1));
    assert_eq!(split.strangers, Vec::<std::net::IpAddr>::new());
}

/// The same request of many clients at once, with the same numbers, is many.
#[test]
fn connections_that_are_alike_are_not_one() {
    let mut all = Vec::new();
    for port in 0..40_u16 {
        all.extend(one_request(|drawing| {
            drawing.open(10, &format!("10.9.9.9:{}", 40_000 + port), "10.0.0.2:80")
        }));
    }
    all.sort_by_key(|packet| packet.at_us);
    assert_eq!(split(&all).requests.len(), 80);
}

/// The header of Linux' "any" in both versions, in place of Ethernet's; with a VLAN's tags inside.
#[test]
fn any_interface_beside_address_translation() {
    let vm = Some(([10, 0, 0, 2].into(), 80));
    let packets =
        translated(one_request(|drawing| drawing.open(10, CLIENT, "192.0.2.1:8080")), None, vm);
    let cooked = |packet: &DrawnPacket, tags: &[u8]| [&[0; 14], tags, &packet.frame[12..]].concat();
    let cooked2 = |packet: &DrawnPacket, tags: &[u8]| {
        let protocol = if tags.is_empty() { [8, 0] } else { [tags[0], tags[1]] };
        let rest = [tags.get(2..).unwrap_or(&[]), &packet.frame[12..]].concat();
        let rest = if tags.is_empty() { rest[2..].to_vec() } else { rest };
        [&protocol[..], &[0; 18], &rest].concat()
    };
    for tags in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]] {
        for link in [Link::Cooked, Link::Cooked2] {
            let mut splitter = Splitter::new(Roles::default());
            for drawn in &packets {
                let data = match link {
                    Link::Cooked => cooked(drawn, tags),
                    _ => cooked2(drawn, tags),
                };
                let length = data.len() as u32;
                splitter.packet(&Packet {
                    at: drawn::at(drawn.at_us),
                    interface: 0,
                    link,
                    data: &data,
                    length,
                });
            }
            let split = splitter.finish();
            assert_eq!(split.requests.len(), 2, "{link:?} {tags:?}");
            assert_eq!(split.counts.get(Counter::Translated), packets.len() as u64 / 2);
        }
    }
}

/// What is read back of a file is the same.
#[test]
fn a_file_of_both_sides() {
    let vm = Some(([10, 0, 0, 2].into(), 80));
    let bytes = drawn::pcapng(&translated(
        one_request(|drawing| drawing.open(10, CLIENT, "192.0.2.1:8080")),
        None,
        vm,
    ));
    let mut file = CaptureFile::new(&bytes[..], 0).unwrap();
    let mut splitter = Splitter::new(Roles::default());
    while file.advance().unwrap() {
        splitter.packet(&file.packet().unwrap());
    }
    assert_eq!(splitter.finish().requests.len(), 2);
}
