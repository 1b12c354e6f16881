//! Enrolling and sending over TLS, with a server that answers as a test tells it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256};

use crate::metrics::Metrics;
use crate::sender::{Notifier, Sender};
use crate::spool::Spool;
use crate::state::{self, State};
use crate::{EnrollError, Enrollment, enroll};

/// What a request was: its first line, its headers, and the length of its body.
#[derive(Debug)]
struct Request {
    line: String,
    head: String,
    body: Vec<u8>,
}

/// A server with an authority of its own.
struct Server {
    url: String,
    fingerprint: String,
    authority: String,
    requested: Receiver<Request>,
}

/// Answers one request after the other: (status line, headers, body). Queried for `/v1/ca` it gives its authority.
fn serve(answers: Vec<(&'static str, &'static str, &'static str)>) -> Server {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let own_key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&own_key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own_key.serialize_der())),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (sender, requested) = channel();
    let pem = authority.pem();
    let fingerprint: String =
        Sha256::digest(authority.der()).iter().map(|byte| format!("{byte:02x}")).collect();
    let (config, of_server) = (Arc::new(config), pem.clone());
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        for stream in listener.incoming() {
            let Ok(connection) = ServerConnection::new(Arc::clone(&config)) else { return };
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            // A connection is used for several requests.
            while let Some(request) = read_request(&mut stream) {
                let is_ca = request.line.starts_with("GET /v1/ca ");
                let (status, headers, body) = match is_ca {
                    true => ("200 OK", "", of_server.as_str()),
                    false => answers.next().unwrap_or(("503 Busy", "", "")),
                };
                let head =
                    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
                if stream.write_all(head.as_bytes()).is_err()
                    || stream.write_all(body.as_bytes()).is_err()
                {
                    break;
                }
                let _ = sender.send(request);
            }
        }
    });
    Server { url, fingerprint, authority: pem, requested }
}

fn read_request(stream: &mut impl Read) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let line = head.lines().next().unwrap().replace("get", "GET").replace("put", "PUT");
    Some(Request { line, head, body })
}

fn enrollment(server: &Server, state: &Path) -> Enrollment {
    Enrollment {
        server: server.url.clone(),
        token: "once".to_owned(),
        fingerprint: server.fingerprint.clone(),
        host: "kvm1".to_owned(),
        state: state.to_owned(),
    }
}

const TOKEN: &str = "{\"host_token\": \"0123456789abcdef0123456789abcdef\"}";

#[test]
fn a_host_is_enrolled_once_by_the_named_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(vec![
        ("409 Conflict", "", "{\"error\": \"kvm1 is enrolled already\"}"),
        ("201 Created", "", TOKEN),
    ]);
    let right = enrollment(&server, folder.path());
    let other = Enrollment { fingerprint: "0".repeat(64), ..right.clone() };
    assert!(matches!(enroll(&other), Err(EnrollError::OtherServer { .. })));
    assert!(server.requested.recv().unwrap().line.starts_with("GET /v1/ca "));
    assert!(server.requested.try_recv().is_err(), "the token went nowhere");
    let refused = enroll(&right).unwrap_err().to_string();
    assert!(refused.contains("(409): kvm1 is enrolled already"), "{refused}");
    enroll(&right).unwrap();
    let state = State::create(folder.path()).unwrap();
    assert_eq!(state::read(&state.host_token()).unwrap(), "0123456789abcdef0123456789abcdef");
    assert_eq!(state::read(&state.authority()).unwrap(), server.authority);
}

/// A sender with a spool of these windows.
fn sender(server: &Server, folder: &Path, windows: u64) -> Arc<Sender> {
    let state = State::create(folder).unwrap();
    state::write(&state.authority(), &server.authority).unwrap();
    state::write(&state.host_token(), "secret").unwrap();
    for n in 0..windows {
        let name = format!("{}-{n:020}.window", "0a".repeat(16));
        std::fs::write(state.spool().join(name), vec![7; 100_000]).unwrap();
    }
    Arc::new(Sender {
        spool: Spool::open(state.spool(), &[]).unwrap(),
        refused: Spool::open(state.refused(), &[]).unwrap(),
        state,
        server: Arc::new(Mutex::new(Some(server.url.clone()))),
        metrics: Arc::<Metrics>::default(),
        bell: Arc::<Notifier>::default(),
    })
}

/// Runs it, and tells it that there is something to send.
fn start(sender: &Arc<Sender>) -> std::thread::JoinHandle<()> {
    let running = Arc::clone(sender);
    let thread = std::thread::spawn(move || running.run());
    sender.bell.ring();
    thread
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn windows_are_removed_when_the_server_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(vec![
        ("201 Created", "", ""),
        ("503 Busy", "Retry-After: 1\r\n", "{\"error\": \"later\"}"),
        ("400 Bad Request", "", "{\"error\": \"not a window\"}"),
        ("200 OK", "", ""),
    ]);
    let sender = sender(&server, folder.path(), 3);
    let thread = start(&sender);
    let first = server.requested.recv().unwrap();
    assert!(first.head.contains("authorization: bearer secret"));
    assert!(
        first.line.contains(&format!("/v1/windows/{}/{:020}", "0a".repeat(16), 2)),
        "{}",
        first.line
    );
    assert_eq!(first.body, vec![7; 100_000]);
    wait_until("one is sent", || sender.metrics.windows_sent.get() == 1);
    wait_until("one is put off", || sender.metrics.send_failures.get() == 1);
    assert_eq!(sender.spool.contents().unwrap().0.len(), 2);
    wait_until("the others are dealt with", || sender.spool.contents().unwrap().0.is_empty());
    wait_until("one was refused", || sender.metrics.windows_refused.get() == 1);
    wait_until("the last one is sent", || sender.metrics.windows_sent.get() == 2);
    assert_eq!(sender.refused.contents().unwrap().0.len(), 1);
    sender.bell.end();
    thread.join().unwrap();
}

/// A clock was wrong for a while: its windows keep no others waiting.
#[test]
fn windows_of_the_future_are_sent_when_their_time_has_come() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = "{\"error\": \"it begins 4000 s in the future\", \"reason\": \"clock\"}";
    let server = serve(vec![
        ("503 Service Unavailable", "Retry-After: 1\r\n", ahead),
        ("201 Created", "", ""),
        ("201 Created", "", ""),
        ("201 Created", "", ""),
    ]);
    let sender = sender(&server, folder.path(), 3);
    let thread = start(&sender);
    wait_until("the others are sent", || sender.metrics.windows_sent.get() == 2);
    wait_until("one waits", || sender.metrics.deferred.get() == 1);
    assert_eq!(sender.metrics.send_failures.get(), 0);
    wait_until("its time comes", || {
        sender.bell.ring();
        sender.spool.contents().unwrap().0.is_empty()
    });
    let requested: Vec<_> = server.requested.try_iter().map(|requested| requested.line).collect();
    let starts = [2, 1, 0, 2].map(|start| format!("{start:020} "));
    assert!(
        requested.iter().zip(&starts).all(|(line, start)| line.contains(start)),
        "{requested:?}"
    );
    sender.bell.end();
    thread.join().unwrap();
}

/// The server may fail over a window: it keeps no others waiting.
#[test]
fn a_window_that_cannot_be_taken_is_put_off_when_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(vec![
        ("503 Service Unavailable", "Retry-After: 1\r\n", "{\"error\": \"it was killed\"}"),
        ("201 Created", "", ""),
        ("503 Service Unavailable", "Retry-After: 1\r\n", "{\"error\": \"it was killed\"}"),
        ("201 Created", "", ""),
    ]);
    let sender = sender(&server, folder.path(), 3);
    let thread = start(&sender);
    wait_until("the others are sent", || sender.metrics.windows_sent.get() == 2);
    wait_until("one waits", || sender.metrics.deferred.get() == 1);
    assert_eq!(sender.metrics.send_failures.get(), 1);
    let requested: Vec<_> = server.requested.try_iter().map(|requested| requested.line).collect();
    let starts = [2, 1, 2, 0].map(|start| format!("{start:020} "));
    assert_eq!(requested.len(), starts.len());
    assert!(
        requested.iter().zip(&starts).all(|(line, start)| line.contains(start)),
        "{requested:?}"
    );
    sender.bell.end();
    thread.join().unwrap();
}

#[test]
fn a_server_of_another_authority_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (server, other) = (serve(vec![("201 Created", "", "")]), serve(Vec::new()));
    let sender = sender(&other, folder.path(), 1);
    *sender.server.lock().unwrap() = Some(server.url.clone());
    let thread = start(&sender);
    wait_until("it fails", || sender.metrics.send_failures.get() == 1);
    assert_eq!(sender.spool.contents().unwrap().0.len(), 1);
    assert!(server.requested.try_recv().is_err());
    sender.bell.end();
    thread.join().unwrap();
}
