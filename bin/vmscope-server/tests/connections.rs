//! Clients that send or read slowly, or not at all, and queries that use all they are allowed.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use common::{PATIENCE, Place, Server, wait_until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A connection, before the handshake.
fn connect(server: &Server) -> Tls {
    let mut roots = RootCertStore::empty();
    let authority = server.get("/v1/ca", "").content;
    roots.add(CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

fn sql(token: &str, sql: &str) -> String {
    let body = json!({ "sql": sql }).to_string();
    format!(
        "POST /v1/sql HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Everything that comes until the connection ends.
fn rest(tls: &mut Tls) -> String {
    let mut said = Vec::new();
    // A connection that is closed without a farewell ends, too.
    let _ = tls.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// Eight connections read nothing of 28 MB each. Of eight that request 128 MiB all but the first are refused.
#[test]
fn answers_that_are_not_read_are_reset_and_their_memory_is_free_again() {
    let place = Place::new();
    let server = place.start("[query]\nconcurrent = 8\nmemory_mib = 2048");
    let reader = server.token("read");
    let before = server.memory_kib("RssAnon");
    let send = |sql: &str| {
        let mut all: Vec<_> = (0..8).map(|_| connect(&server)).collect();
        all.iter_mut().for_each(|tls| tls.write_all(sql.as_bytes()).unwrap());
        all
    };
    let part = "SELECT repeat('x', 1048576) AS a FROM generate_series(1, 8)";
    for mut tls in send(&sql(&reader, &[part; 16].join(" UNION ALL "))) {
        let mut head = [0; 12];
        tls.read_exact(&mut head).unwrap();
        // The first may have an answer that is cut, while there is memory.
        assert!([b"HTTP/1.1 422", b"HTTP/1.1 200"].contains(&&head), "{head:?}");
    }
    let large = sql(&reader, "SELECT repeat('x', 1000000) AS a FROM generate_series(1, 28)");
    let (mut all, began) = (send(&large), Instant::now());
    wait_until("resets", || {
        all.retain(|tls| tls.sock.take_error().unwrap().is_none());
        all.is_empty()
    });
    let took = began.elapsed().as_secs_f64();
    let memory = || server.memory_kib("RssAnon");
    let (soon, peak) = (memory(), server.memory_kib("VmHWM"));
    wait_until("free memory", || memory() < before + (64 << 10));
    let took_2 = began.elapsed().as_secs_f64();
    eprintln!(
        "reset in {took:.0} s; memory: {before} KiB before, {soon} then, {} after {took_2:.0} s, peak {peak}",
        memory()
    );
    // All answers that wait have 256 MiB.
    assert!(peak < before + (600 << 10), "{before} KiB before, {peak} meanwhile");
    // A client that reads has all of it.
    let mut tls = connect(&server);
    tls.write_all(large.replace("host: a", "connection: close").as_bytes()).unwrap();
    let answer = rest(&mut tls);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.matches('x').count(), 28_000_000);
}

#[test]
fn who_sends_slowly_is_closed() {
    let place = Place::new();
    let server = place.start("");
    let reader = server.token("read");
    let whole = sql(&reader, "SELECT 1");
    let (head, _) = whole.split_once("{\"sql").unwrap();
    let half = &head[..head.len() / 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent = TcpStream::connect(server.address).unwrap();
            silent.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0, "without a handshake");
        });
        for (sent, said) in [("", ""), (half, ""), (head, " 408 "), (&whole, "[[1]]")] {
            let server = &server;
            scope.spawn(move || {
                let mut tls = connect(server);
                tls.write_all(sent.as_bytes()).unwrap();
                tls.flush().unwrap();
                let rest = rest(&mut tls);
                assert!(
                    rest.contains(said) && (said.is_empty() == rest.is_empty()),
                    "{sent}: {rest}"
                );
            });
        }
    });
}

#[test]
fn an_address_has_so_many_connections() {
    let place = Place::new();
    let server = place.start("max_connections_of_address = 8");
    let shake_hands = |tls: &mut Tls| tls.conn.complete_io(&mut tls.sock).is_ok();
    // One is the test's own, which it keeps.
    let mut all: Vec<_> = (0..12).map(|_| connect(&server)).collect();
    let shaken = all.iter_mut().filter_map(|tls| shake_hands(tls).then_some(())).count();
    assert!((7..=8).contains(&shaken), "{shaken}");
    drop(all);
    wait_until("room", || shake_hands(&mut connect(&server)));
}

#[test]
fn one_query_stops_no_others() {
    let place = Place::new();
    let server = place.start("[query]\nseconds = 2\nconcurrent = 1");
    let (reader, other) = (server.token("read"), server.token("read"));
    let ask =
        |token: &str, sql: &str| server.ask("POST", "/v1/sql", token, Some(&json!({ "sql": sql })));
    let endless = "SELECT array_agg(a.value + b.value + c.value) FROM generate_series(1, 100000) a, \
                   generate_series(1, 100000) b, generate_series(1, 100000) c";
    assert_eq!(ask(&reader, endless).status, 422);
    assert_eq!(ask(&other, "SELECT 1").json()["rows"], json!([[1]]));
    std::thread::scope(|scope| {
        let requested: Vec<_> = (0..20).map(|_| scope.spawn(|| ask(&reader, endless))).collect();
        let replies: Vec<_> =
            requested.into_iter().map(|requested| requested.join().unwrap()).collect();
        let refused = replies.iter().filter(|reply| reply.status == 503);
        for reply in refused.clone() {
            reply.check(503, "too many queries");
            assert_eq!(reply.header("retry-after"), Some("5"));
        }
        assert!(replies.iter().all(|reply| [422, 503].contains(&reply.status)));
        assert!(3 <= refused.count());
    });
    assert_eq!(ask(&reader, "SELECT 1").json()["rows"], json!([[1]]));
}
