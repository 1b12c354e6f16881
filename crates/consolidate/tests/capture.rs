//! Captures what two ends of a connection say on the loopback interface. Needs root.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use consolidate::capture::{Capture, CaptureError, InterfaceError, Options, named};
use split::{CaptureFile, Counter, Roles, Splitter};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";

fn talk() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut requested = [0; 18];
        stream.read_exact(&mut requested).unwrap();
        stream.write_all(RESPONSE).unwrap();
        stream.write_all(&[b'x'; 100_000]).unwrap();
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), RESPONSE.len() + 100_000);
    server.join().unwrap();
}

#[test]
fn a_request_on_the_loopback_interface() {
    let interface = named(Path::new("/sys"), "lo").unwrap();
    let options =
        Options { snapshot_length: Options::WHOLE, ring_bytes: 4 << 20, most_bytes: 64 << 20 };
    let capture = match Capture::open(&[interface], options) {
        Err(CaptureError::Forbidden) => return skip::skip("captures packets: needs root"),
        other => other.unwrap(),
    };
    let done = AtomicBool::new(false);
    let mut file = Vec::new();
    let captured = std::thread::scope(|scope| {
        scope.spawn(|| {
            talk();
            done.store(true, Ordering::Relaxed);
        });
        capture.run(&mut file, |_| done.load(Ordering::Relaxed)).unwrap()
    });
    assert_eq!((captured.dropped, captured.is_full), (0, false));
    let mut reader = CaptureFile::new(file.as_slice(), 0).unwrap();
    let mut splitter = Splitter::new(Roles::default());
    let mut n = 0;
    while reader.advance().unwrap() {
        splitter.packet(&reader.packet().unwrap());
        n += 1;
    }
    assert_eq!((n, reader.interfaces()[0].name.as_str()), (captured.packets, "lo"));
    let split = splitter.finish();
    // Other programs may use the interface, too.
    let ours =
        split.requests.iter().filter(|request| request.status == 200 && &*request.target == "/");
    assert_eq!(ours.count(), 1, "{:?}", split.counts);
    assert_eq!(split.counts.get(Counter::LostPlaces), 0);
}

#[test]
fn interfaces_that_are_not_there() {
    let none = |name: &str| Err(InterfaceError::None(name.to_owned()));
    for name in ["no-such-one", "", "../lo"] {
        assert_eq!(named(Path::new("/sys"), name), none(name));
    }
}
