//! One user's session with one QEMU.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use host::sockets::{SocketError, VmmSocket};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde_json::{Value, json};

use crate::QmpError;

/// How long QEMU may take to open its socket, and to answer: preallocating a large guest's memory comes before that.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a monitor may keep silent that another client may be using.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of one message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Over so long a time messages and bytes are counted.
const FLOW: Duration = Duration::from_secs(10);
/// Messages in that time: an honest QEMU says a few a second.
pub(crate) const MAX_MESSAGES: usize = 10_000;
/// Bytes in that time.
const MAX_BYTES: usize = 16 << 20;
/// Events not taken yet.
const MAX_EVENTS: usize = 1 << 16;
/// vCPUs of a QEMU.
const MAX_VCPUS: usize = 4096;
/// Characters of what QEMU gives as reasons.
const MAX_REASON_CHARS: usize = 500;

/// A session with one QEMU.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    /// What came after the last whole message.
    received: Vec<u8>,
    /// So many of these bytes end no message.
    searched: usize,
    events: Vec<Event>,
    limit: Duration,
    flow: Flow,
    /// The last command's number, which its answer carries.
    number: u64,
}

/// How much came lately. A QEMU that never stops talking costs its reader a bounded part of a CPU: then the session is over.
#[derive(Debug)]
struct Flow {
    since: Instant,
    messages: usize,
    bytes: usize,
}

impl Flow {
    fn new() -> Self {
        Self { since: Instant::now(), messages: 0, bytes: 0 }
    }

    fn add(&mut self, messages: usize, bytes: usize) -> Result<(), QmpError> {
        if FLOW <= self.since.elapsed() {
            *self = Self::new();
        }
        self.messages += messages;
        self.bytes += bytes;
        match self.messages <= MAX_MESSAGES && self.bytes <= MAX_BYTES {
            true => Ok(()),
            false => Err(QmpError::Garbled("too many messages")),
        }
    }
}

/// Until when something must have come.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit }
    }

    fn left(self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    fn check(self) -> Result<(), QmpError> {
        if self.left().is_zero() { Err(QmpError::TimedOut(self.limit)) } else { Ok(()) }
    }
}

/// Something that QEMU tells by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// As in QEMU's documentation, such as `RESUME`.
    pub name: String,
    pub data: Value,
}

impl Session {
    /// Connects as soon as the socket is there; `alive` says whether waiting still makes sense. For a QEMU that was just
    /// started.
    ///
    /// # Errors
    /// When there is no QEMU in time, or it says something else.
    pub fn wait_for(socket: &Path, mut alive: impl FnMut() -> bool) -> Result<Self, QmpError> {
        let start = Instant::now();
        let stream: UnixStream = loop {
            match connect(socket) {
                Ok(stream) => break stream.into(),
                Err(error) if start.elapsed() > LIMIT || !alive() => {
                    return Err(QmpError::Connect(error.into()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // It answers once its guest's memory is allocated.
        let mut session = Self::silent(stream)?;
        loop {
            match session.read(Deadline::after(Duration::from_secs(1))) {
                Err(QmpError::TimedOut(_)) if start.elapsed() <= LIMIT && alive() => {}
                greeting => break drop(greeting?),
            }
        }
        session.ask("qmp_capabilities", None)?;
        Ok(session)
    }

    /// Connects to the monitor of a VM that this user runs.
    ///
    /// # Errors
    /// When it can't be talked to, or is in use.
    pub fn open(socket: &VmmSocket, user: u32) -> Result<Self, QmpError> {
        let stream = socket.connect(user).map_err(|error| match error {
            // So many wait already.
            SocketError::Connect(Errno::AGAIN) => QmpError::InUse,
            SocketError::Connect(errno) => QmpError::Connect(errno.into()),
            SocketError::Stranger(user) => QmpError::Stranger(user),
        })?;
        let mut session = Self::silent(stream.into())?;
        session.limit = GREETING_LIMIT;
        match session.greet() {
            Err(QmpError::TimedOut(_)) => Err(QmpError::InUse),
            greeted => {
                session.limit = LIMIT;
                greeted.map(|()| session)
            }
        }
    }

    pub(crate) fn on(stream: UnixStream) -> Result<Self, QmpError> {
        let mut session = Self::silent(stream)?;
        session.greet()?;
        Ok(session)
    }

    fn silent(stream: UnixStream) -> Result<Self, QmpError> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self {
            stream,
            received: Vec::new(),
            searched: 0,
            events: Vec::new(),
            limit: LIMIT,
            flow: Flow::new(),
            number: 0,
        })
    }

    fn greet(&mut self) -> Result<(), QmpError> {
        self.read(Deadline::after(self.limit))?;
        self.ask("qmp_capabilities", None).map(drop)
    }

    /// The process that listens at the monitor's socket, as the kernel knows it.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn process(&self) -> Result<u32, QmpError> {
        let peer = net::sockopt::socket_peercred(&self.stream).map_err(io::Error::from)?;
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Carries out a command; returns QEMU's answer.
    ///
    /// # Errors
    /// When QEMU refuses, ends or keeps silent.
    pub fn ask(&mut self, command: &str, arguments: Option<&Value>) -> Result<Value, QmpError> {
        let request = self.request(command, arguments);
        self.stream.write_all(request.as_bytes())?;
        self.answer(command)
    }

    /// A command as it is sent, with its number.
    fn request(&mut self, command: &str, arguments: Option<&Value>) -> String {
        self.number += 1;
        let mut request = json!({ "execute": command, "id": self.number });
        if let Some(arguments) = arguments {
            request["arguments"] = arguments.clone();
        }
        format!("{request}\n")
    }

    /// Gives QEMU an open file, which its commands know by this name.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn give(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), QmpError> {
        let request = self.request("getfd", Some(&json!({ "fdname": name })));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let text = [IoSlice::new(request.as_bytes())];
        let sent = net::sendmsg(&self.stream, &text, &mut control, SendFlags::empty());
        let sent = sent.map_err(io::Error::from)?;
        // What did not fit goes without the file.
        self.stream.write_all(&request.as_bytes()[sent..])?;
        self.answer("getfd").map(drop)
    }

    fn answer(&mut self, command: &str) -> Result<Value, QmpError> {
        let refused = |why: &Value| {
            let text = why["desc"].as_str().or(why.as_str()).map_or(why.to_string(), str::to_owned);
            let reason = text.trim().chars().take(MAX_REASON_CHARS).collect();
            QmpError::Refused { command: command.to_owned(), reason }
        };
        let deadline = Deadline::after(self.limit);
        loop {
            let mut message = self.read(deadline)?;
            // Another one's answer, or none at all.
            if message["id"] != self.number {
                deadline.check()?;
                continue;
            }
            if let Some(answer) = message.get_mut("return") {
                // The commands of the human monitor say in plain text that they failed.
                let failed = answer.as_str().is_some_and(|text| text.contains("Error"));
                return if failed { Err(refused(answer)) } else { Ok(answer.take()) };
            }
            if let Some(error) = message.get("error") {
                return Err(refused(error));
            }
            deadline.check()?;
        }
    }

    /// Waits for an event; one that came since the last `take_events` will do.
    ///
    /// # Errors
    /// When QEMU ends, or does not say it in time.
    pub fn wait(&mut self, event: &str) -> Result<(), QmpError> {
        let deadline = Deadline::after(self.limit);
        while !self.events.iter().any(|seen| seen.name == event) {
            self.read(deadline)?;
            deadline.check()?;
        }
        Ok(())
    }

    /// The events since the last time.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The events since the last time, once there are some or this much time has gone by.
    ///
    /// # Errors
    /// When QEMU ends.
    pub fn events_within(&mut self, time: Duration) -> Result<Vec<Event>, QmpError> {
        let deadline = Deadline::after(time);
        while self.events.is_empty() {
            match self.read(deadline).and_then(|_| deadline.check()) {
                Err(QmpError::TimedOut(_)) => break,
                message => message?,
            }
        }
        Ok(self.take_events())
    }

    /// The thread of each vCPU, in the vCPUs' order, as QEMU names them: they may be anything.
    ///
    /// # Errors
    /// When QEMU does not answer, or names none.
    pub fn vcpu_threads(&mut self) -> Result<Vec<u32>, QmpError> {
        let answer = self.ask("query-cpus-fast", None)?;
        threads(&answer).ok_or(QmpError::Garbled("it named no vCPU threads"))
    }

    /// The next message; an event is kept besides.
    fn read(&mut self, deadline: Deadline) -> Result<Value, QmpError> {
        let length = loop {
            let new = &self.received[self.searched..];
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                break self.searched + end + 1;
            }
            self.searched = self.received.len();
            if MAX_MESSAGE_BYTES < self.received.len() {
                return Err(QmpError::Garbled("a message is too long"));
            }
            let n = self.read_more(deadline)?;
            self.flow.add(0, n)?;
        };
        self.flow.add(1, 0)?;
        let message: Value = serde_json::from_slice(&self.received[..length])
            .map_err(|_| QmpError::Garbled("a message is no JSON"))?;
        self.received.drain(..length);
        self.searched = 0;
        if let Some(name) = message["event"].as_str() {
            if MAX_EVENTS <= self.events.len() {
                return Err(QmpError::Garbled("too many events"));
            }
            self.events.push(Event { name: name.to_owned(), data: message["data"].clone() });
        }
        Ok(message)
    }

    /// Some bytes; none if there were none just now.
    fn read_more(&mut self, deadline: Deadline) -> Result<usize, QmpError> {
        // None would mean for ever.
        let left = deadline.left().max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1 << 14];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(QmpError::Ended),
            Ok(n) => {
                self.received.extend_from_slice(&bytes[..n]);
                // One that says a byte at a time ends no message, either.
                if !bytes[..n].contains(&b'\n') {
                    deadline.check()?;
                }
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => deadline.check().map(|()| 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(QmpError::Ended),
            Err(error) => Err(error.into()),
        }
    }
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let metadata = std::fs::symlink_metadata(path).map_err(|_| Errno::NOENT)?;
    if !metadata.file_type().is_socket() {
        return Err(Errno::NOTSOCK);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn threads(answer: &Value) -> Option<Vec<u32>> {
    let cpus = answer.as_array().filter(|cpus| !cpus.is_empty() && cpus.len() <= MAX_VCPUS)?;
    let vcpu = |cpu: &Value| {
        Some((cpu["cpu-index"].as_u64()?, u32::try_from(cpu["thread-id"].as_u64()?).ok()?))
    };
    let mut vcpus: Vec<(u64, u32)> = cpus.iter().map(vcpu).collect::<Option<_>>()?;
    vcpus.sort_unstable();
    Some(vcpus.into_iter().map(|(_, thread)| thread).collect())
}

#[cfg(test)]
mod test {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    const GREETING: &str = "{\"QMP\": {}}\n{\"return\": {}, \"id\": 1}";

    fn session(said: &[&str]) -> (Session, BufReader<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut qemu = theirs.try_clone().unwrap();
        for line in [GREETING].iter().chain(said) {
            writeln!(qemu, "{line}").unwrap();
        }
        let mut theirs = BufReader::new(theirs);
        let session = Session::on(ours).unwrap();
        let mut sent = String::new();
        theirs.read_line(&mut sent).unwrap();
        assert_eq!(sent, "{\"execute\":\"qmp_capabilities\",\"id\":1}\n");
        (session, theirs)
    }

    #[test]
    fn answers_and_events_of_a_command() {
        let (mut session, mut theirs) = session(&[
            "{\"event\":\"RESET\"}",
            "{\"return\":\"of an earlier user\"}",
            "{\"return\":{},\"id\":2}",
            "{\"event\":\"STOP\",\"data\":{\"a\":1}}",
            "{\"return\":\"late\",\"id\":2}",
            "{\"error\":{\"class\":\"x\",\"desc\":\"not now\"},\"id\":3}",
            "{\"return\":\"Error: no device can store it\",\"id\":4}",
        ]);
        let arguments = json!({ "id": "cpu1" });
        assert_eq!(session.ask("device_del", Some(&arguments)).unwrap(), json!({}));
        session.wait("RESET").unwrap();
        session.wait("STOP").unwrap();
        let events = session.take_events();
        assert_eq!((events.len(), &events[1].data), (2, &json!({ "a": 1 })));
        let error = session.ask("cont", None).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused cont: not now");
        assert!(session.ask("savevm", None).unwrap_err().to_string().contains("no device"));
        let mut sent = String::new();
        theirs.read_line(&mut sent).unwrap();
        assert_eq!(sent, "{\"execute\":\"device_del\",\"id\":2,\"arguments\":{\"id\":\"cpu1\"}}\n");
        assert_eq!(session.events_within(Duration::from_millis(5)).unwrap(), []);
        drop(theirs);
        assert!(matches!(session.events_within(Duration::from_secs(5)), Err(QmpError::Ended)));
    }

    #[test]
    fn what_is_no_qmp_is_refused() {
        let (mut no_json, _qemu) = session(&["hello"]);
        assert!(matches!(no_json.ask("cont", None), Err(QmpError::Garbled(_))));
        let (mut endless, qemu) = session(&[]);
        let mut qemu = qemu.into_inner();
        std::thread::spawn(move || while qemu.write_all(&[b'x'; 1 << 12]).is_ok() {});
        assert!(matches!(
            endless.ask("cont", None),
            Err(QmpError::Garbled("a message is too long"))
        ));
    }

    /// Says the same for as long as it is read.
    fn repeats(mut qemu: UnixStream, text: &'static str, pause: Duration) {
        std::thread::spawn(move || {
            while qemu.write_all(text.as_bytes()).is_ok() {
                std::thread::sleep(pause);
            }
        });
    }

    #[test]
    fn a_qemu_that_never_stops_talking_ends_the_session() {
        let said = [
            "{}\n",
            "{\"event\":\"RESET\"}\n",
            "{\"return\":{}}\n",
            "{\"error\":{},\"id\":1}\n",
            " ",
        ];
        for text in said {
            let (mut session, qemu) = session(&[]);
            repeats(qemu.into_inner(), text, Duration::ZERO);
            let error = session.ask("query-status", None).unwrap_err();
            assert!(matches!(error, QmpError::Garbled(_)), "{text}: {error}");
            assert!(session.wait("RESUME").is_err(), "{text}");
        }
        // Events one by one, and taken, are no way around it.
        let (mut session, qemu) = session(&[]);
        repeats(qemu.into_inner(), "{\"event\":\"RESET\"}\n", Duration::ZERO);
        let mut events = 0;
        while let Ok(more) = session.events_within(Duration::from_secs(5)) {
            events += more.len();
        }
        assert!(events <= MAX_MESSAGES, "{events}");
    }

    #[test]
    fn a_qemu_that_talks_slowly_is_out_of_time_all_the_same() {
        for text in ["{}\n", "{\"event\":\"RESET\"}\n", "{\"return\":{},\"id\":7}\n", "x"] {
            let (mut session, qemu) = session(&[]);
            session.limit = Duration::from_millis(50);
            repeats(qemu.into_inner(), text, Duration::from_millis(1));
            for error in [session.ask("query-status", None).map(drop), session.wait("RESUME")] {
                assert!(matches!(error, Err(QmpError::TimedOut(_))), "{text}: {error:?}");
            }
        }
    }

    #[test]
    fn threads_come_in_the_vcpus_order() {
        let answer = json!([{ "cpu-index": 1, "thread-id": 77 }, { "cpu-index": 0, "thread-id": 78, "target": "x86_64" }]);
        assert_eq!(threads(&answer), Some(vec![78, 77]));
        assert_eq!(threads(&json!([{ "cpu-index": 1 }])), None);
        assert_eq!(threads(&json!([{ "cpu-index": 1, "thread-id": -1 }])), None);
        assert_eq!(threads(&json!({})), None);
    }

    #[test]
    fn only_the_vms_user_is_talked_to_and_only_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("monitor");
        let socket = VmmSocket::from(path.clone());
        let own = rustix::process::getuid().as_raw();
        assert!(matches!(Session::open(&socket, own), Err(QmpError::Connect(_))));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(Session::open(&socket, own), Err(QmpError::Connect(_))));
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(Session::open(&socket, own + 1), Err(QmpError::Stranger(_))));
        let qemu = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, "{GREETING}").unwrap();
            stream
        });
        Session::open(&socket, own).unwrap();
        drop(qemu.join().unwrap());
    }
}
