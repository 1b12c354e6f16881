//! Programs of others that a server talks to, on loopback.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{PATIENCE, wait_until};

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A running program that listens on a port; killed when it is dropped.
pub(crate) struct Outside {
    child: Child,
    port: u16,
}

/// Starts a program and waits until it listens; `None`: this machine does not have it. What it says goes into a file.
pub(crate) fn started(mut command: Command, said: Option<File>, port: u16) -> Option<Outside> {
    let said = said.map_or_else(Stdio::null, Stdio::from);
    let child = match command.stdout(Stdio::null()).stderr(said).spawn() {
        Ok(child) => child,
        Err(error) => {
            skip::skip(format_args!("{}: {error}", command.get_program().display()));
            return None;
        }
    };
    let outside = Outside { child, port };
    wait_until("a program", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    Some(outside)
}

impl Outside {
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut answer = ureq::get(format!("{}{path}", self.url())).call().unwrap();
        answer.body_mut().read_to_string().unwrap()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// First line and headers, and the body.
type Request = (String, Vec<u8>);

/// An HTTP server that keeps what it is sent.
pub(crate) struct Sink {
    port: u16,
    /// Its answers are a refusal.
    refuses: Arc<AtomicBool>,
    got: Arc<Mutex<Vec<Request>>>,
}

impl Sink {
    pub(crate) fn start() -> Self {
        Self::start_at(0)
    }

    pub(crate) fn start_at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        let refuses = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&refuses);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                let refuses = Arc::clone(&shared);
                std::thread::spawn(move || while take(&stream, &kept, &refuses).is_some() {});
            }
        });
        Self { port, got, refuses }
    }

    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    /// Bodies of all requests, which are JSON.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.raw().iter().map(|(_, body)| serde_json::from_slice(body).unwrap()).collect()
    }

    /// First lines and headers of all requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.raw().into_iter().map(|(head, _)| head).collect()
    }

    pub(crate) fn raw(&self) -> Vec<Request> {
        self.got.lock().unwrap().clone()
    }
}

/// A request; `None`: there is none any more.
fn take(mut stream: &TcpStream, kept: &Mutex<Vec<Request>>, refuses: &AtomicBool) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    kept.lock().unwrap().push((head, body));
    let answer: &[u8] = match refuses.load(Ordering::SeqCst) {
        true => b"HTTP/1.1 400 Bad Request\r\nContent-Length: 10\r\n\r\nno_channel",
        false => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    };
    stream.write_all(answer).ok()
}
