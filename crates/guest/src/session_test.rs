//! Against drawn guests at the other end of a socket pair.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use api::guest::MAX_REQUEST_BYTES;

use super::*;
use crate::frame;
use crate::fuzzing::Here;

type Script = Box<dyn FnOnce(&mut DrawnGuest) + Send>;

/// The guest's end: sends what the script says.
struct DrawnGuest {
    stream: UnixStream,
    decoder: Decoder,
    session: u64,
}

impl DrawnGuest {
    fn receive(&mut self) -> Option<Request> {
        let mut chunk = [0; 512];
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                self.session = frame.session;
                return Some(frame::decode(&frame.content).unwrap());
            }
            match self.stream.read(&mut chunk) {
                Ok(length) if 0 < length => self.decoder.push(&chunk[..length]),
                _ => return None,
            }
        }
    }

    fn send(&mut self, response: &Response) {
        let frame = frame::encode(self.session, response, MAX_ANSWER_BYTES).unwrap();
        let _ = self.stream.write_all(&frame);
    }

    /// Answers requests properly until the host hangs up.
    fn behave(&mut self, map: &GuestMap) {
        while let Some(request) = self.receive() {
            let response = match request {
                Request::Hello { .. } => {
                    Response::Hello { version: VERSION, now_ns: now_ns() - 5000 }
                }
                Request::StartLog { .. } => Response::LogStarted { now_ns: 1, problem: None },
                Request::Changes { .. } | Request::Snapshot => Response::Map(Box::new(map.clone())),
                Request::Symbols { modules, .. } if modules == [9] => {
                    Response::Error("no such\nmodule".into())
                }
                Request::Symbols { modules, .. } => Response::Symbols(vec![ModuleSymbols {
                    module: modules[0],
                    ..ModuleSymbols::default()
                }]),
                _ => Response::Error("it does not trace".into()),
            };
            self.send(&response);
        }
    }
}

/// A session whose guest follows `script`.
fn with_guest(limits: Limits, script: Script) -> Session {
    let (host, stream) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        let decoder = Decoder::any_session(MAX_REQUEST_BYTES);
        script(&mut DrawnGuest { stream, decoder, session: 0 });
    });
    Session::over(Link::over(host.into()), Channel::Vsock { cid: 3 }, limits, Box::new(Here))
}

fn quick() -> Limits {
    Limits { time: Duration::from_secs(1), bytes: 1 << 20 }
}

fn map() -> GuestMap {
    GuestMap { version: VERSION, boot_id: "id".into(), ..GuestMap::default() }
}

/// What `snapshot` says to a guest that follows `script`, within the time limit.
fn check(script: Script, expected: Result<(), &str>) {
    let mut session = with_guest(quick(), script);
    let began = Instant::now();
    match (session.snapshot(), expected) {
        (Ok(got), Ok(())) => assert_eq!(got, map()),
        (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
        (got, expected) => panic!("{got:?} instead of {expected:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_good_guest_gives_its_map_clock_and_symbols() {
    let mut session = with_guest(
        Limits { time: Duration::from_secs(20), ..quick() },
        Box::new(|guest| guest.behave(&map())),
    );
    let mut never = || false;
    session.hello(quick().time, &mut never).unwrap();
    let began = LogStart { guest_ns: 1, problem: None };
    assert_eq!(session.start_log(Pace::Low, quick().time, &mut never).unwrap(), began);
    assert_eq!(session.changes(quick().time, &mut never).unwrap(), map());
    assert_eq!(session.changes_while_sampled(quick().time, &mut never).unwrap(), map());
    assert_eq!(session.early_symbols(3, Pace::Low, quick().time, &mut never).unwrap().module, 3);
    assert_eq!(session.snapshot().unwrap(), map());
    let clock = session.clock();
    let away = clock.host_minus_guest_ns.abs_diff(5000);
    assert!(away <= clock.error_ns, "{clock:?}");
    let mut problems = Vec::new();
    let has_build_id = &|module| module == 1;
    session.symbols(&[1, 9, 2], has_build_id, &mut |answer| problems.push(answer.problem));
    assert_eq!(problems, [None, Some("the guest failed: no such\\u{a}module".into()), None]);
    // Of a file without a build id the session knows the answer; the guest does not know of a question.
    let bytes_left = session.bytes_left;
    session.symbols(&[2], has_build_id, &mut |answer| assert_eq!(answer.module, 2));
    assert_eq!(session.bytes_left, session.most_bytes);
    session.symbols(&[1], has_build_id, &mut |answer| assert_eq!(answer.module, 1));
    assert!(session.bytes_left < session.most_bytes && bytes_left < session.most_bytes);
}

#[test]
fn a_silent_guest_costs_the_time_limit() {
    check(Box::new(|guest| while guest.receive().is_some() {}), Err("no answer in time"));
}

#[test]
fn a_late_guest_is_waited_for_as_long_as_the_caller_is_patient() {
    let moment = Duration::from_millis(20);
    // It answers when it learns that the host has waited twice, and the pings after that.
    let (waited, answer) = std::sync::mpsc::channel();
    let script: Script = Box::new(move |guest| {
        for _ in 0..2 {
            guest.receive();
            let _ = answer.recv();
            guest.send(&Response::Map(Box::new(map())));
            while let Some(Request::Ping { number }) = guest.receive() {
                guest.send(&Response::Pong { number });
            }
        }
    });
    let mut session = with_guest(quick(), script);
    let mut requested = 0;
    let mut is_patient = || {
        requested += 1;
        if requested == 3 {
            waited.send(()).unwrap();
        }
        requested < 500
    };
    assert_eq!(session.changes_while_sampled(moment, &mut is_patient).unwrap(), map());
    assert!(3 <= requested && 0 < session.next_ping);
    // The pings' answers are no answers to the next question, nor does it end the session.
    let error = session.changes_while_sampled(moment, &mut || false).unwrap_err();
    assert!(error.is_late() && error.to_string().contains("at work on its map"), "{error}");
}

#[test]
fn a_guest_that_has_booted_again_is_not_waited_for() {
    let script: Script = Box::new(|guest| {
        while let Some(request) = guest.receive() {
            if let Request::Ping { number } = request {
                guest.send(&Response::Pong { number });
            }
        }
    });
    let mut session = with_guest(quick(), script);
    let moment = Duration::from_millis(20);
    let error = session.start_log(Pace::Low, moment, &mut || true).unwrap_err();
    assert!(matches!(error, SessionError::Forgotten), "{error}");
}

#[test]
fn a_map_is_not_lost_with_the_greetings_after_it() {
    let script: Script = Box::new(|guest| {
        guest.receive();
        guest.send(&Response::Map(Box::new(map())));
        let hello = guest.receive();
        assert!(matches!(hello, Some(Request::Hello { .. })));
        // Late.
        guest.receive();
        guest.send(&Response::Hello { version: VERSION, now_ns: 1 });
        guest.send(&Response::Symbols(vec![ModuleSymbols::default()]));
    });
    let mut session = with_guest(quick(), script);
    assert_eq!(session.snapshot().unwrap(), map());
    session.symbols(&[0], &|_| true, &mut |answer| assert_eq!(answer.problem, None));
}

#[test]
fn a_guest_that_hangs_up_is_named() {
    check(Box::new(|guest| drop(guest.receive())), Err("vsock (context id 3)"));
}

#[test]
fn garbage_forever_costs_the_limit_of_bytes() {
    let script: Script = Box::new(|guest| {
        guest.receive();
        while guest.stream.write_all(&[0x55; 4096]).is_ok() {}
    });
    let mut session = with_guest(Limits { time: Duration::from_secs(20), bytes: 1 << 20 }, script);
    let error = session.snapshot().unwrap_err().to_string();
    assert!(error.contains("more than 1048576 bytes"), "{error}");
}

/// A guest that sends without a question is not read for long, whatever an answer may have.
#[test]
fn greetings_are_short() {
    let script: Script = Box::new(|guest| {
        let zeros = vec![0; 1 << 20];
        while guest.stream.write_all(&zeros).is_ok() {}
    });
    let limits_time = Duration::from_secs(600);
    let limits = Limits { time: limits_time, bytes: u64::MAX };
    let error = with_guest(limits, script).hello(limits_time, &mut || false).unwrap_err();
    assert!(matches!(error, SessionError::TooMuch(bytes) if bytes < 33 << 20), "{error}");
    assert!(error.is_nonsense());
}

#[test]
fn drops_of_bytes_cost_the_time_limit_all_the_same() {
    check(
        Box::new(|guest| {
            guest.receive();
            while guest.stream.write_all(b"v").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        }),
        Err("no answer in time"),
    );
}

#[test]
fn an_answer_to_another_host_is_passed_over() {
    check(
        Box::new(|guest| {
            let request = guest.receive().unwrap();
            assert_eq!(request, Request::Snapshot);
            let session = guest.session;
            guest.session = session ^ 1;
            guest.send(&Response::Map(Box::default()));
            guest.session = session;
            guest.send(&Response::Map(Box::new(map())));
            guest.behave(&map());
        }),
        Ok(()),
    );
}

#[test]
fn lies_are_refused() {
    let answer = |response: Response| -> Script {
        Box::new(move |guest| {
            guest.receive();
            guest.send(&response);
        })
    };
    check(answer(Response::Symbols(Vec::new())), Err("unrequested symbols"));
    let newer = GuestMap { version: VERSION + 1, ..map() };
    check(
        answer(Response::Map(Box::new(newer))),
        Err(&format!("protocol version {}", VERSION + 1)),
    );
    check(
        answer(Response::Error("broken \x1b[2J".into())),
        Err("the guest failed: broken \\u{1b}[2J"),
    );
    let long = Box::new(|guest: &mut DrawnGuest| {
        guest.receive();
        let header = [&api::guest::MAGIC[..], &guest.session.to_le_bytes(), &[255; 4]].concat();
        let _ = guest.stream.write_all(&header);
        guest.receive();
    });
    check(long, Err("a message of 4294967295 bytes"));
}

#[test]
fn the_clock_is_the_middle_of_the_round_trip() {
    for (sent, guest, received, host_minus_guest_ns, error_ns) in [
        (1000, 500, 1010, 505, 5),
        (1000, 5000, 1001, -4000, 1),
        (1000, 1000, 900, 0, 0), // a clock that ran backwards
    ] {
        let clock = clock_of(sent, guest, received);
        assert_eq!(clock, Clock { host_minus_guest_ns, error_ns });
    }
}

#[test]
fn no_guest_at_the_other_end_is_an_error() {
    let limits = quick();
    let serial = Channel::Serial { path: "/nonexistent/port".into(), user: 0 };
    let error = Session::open(&serial, &limits, Here).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/port"), "{error}");
    assert!(Session::open(&Channel::Vsock { cid: 77 }, &limits, Here).is_err());
}
