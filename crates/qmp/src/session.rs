//! One user's session with one QEMU.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde_json::{Value, json};

use crate::QmpError;

/// How long QEMU may take to open its socket, and to answer: preallocating a large guest's memory comes before that.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a monitor may keep silent that somebody else may be using.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of one message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Events that nobody has taken.
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
    events: Vec<Event>,
    limit: Duration,
}

/// Something that QEMU tells by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// As in QEMU's documentation, such as `RESUME`.
    pub name: String,
    /// What belongs to it.
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
            match session.read(Duration::from_secs(1)) {
                Err(QmpError::TimedOut(_)) if start.elapsed() <= LIMIT && alive() => {}
                greeting => break drop(greeting?),
            }
        }
        session.ask("qmp_capabilities", None)?;
        Ok(session)
    }

    /// Connects to the monitor of a VM that this user runs. The path comes from the VM's command line: nothing but a socket
    /// is opened, and nobody else is talked to.
    ///
    /// # Errors
    /// When it can't be talked to, or is in use.
    pub fn open(socket: &Path, user: u32) -> Result<Self, QmpError> {
        let stream = match connect(socket) {
            // So many wait already.
            Err(Errno::AGAIN) => return Err(QmpError::InUse),
            stream => stream.map_err(|error| QmpError::Connect(error.into()))?,
        };
        let listener = net::sockopt::socket_peercred(&stream).map_err(io::Error::from)?;
        let listener = listener.uid.as_raw();
        if listener != user {
            return Err(QmpError::Stranger(listener));
        }
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
        Ok(Self { stream, received: Vec::new(), events: Vec::new(), limit: LIMIT })
    }

    fn greet(&mut self) -> Result<(), QmpError> {
        self.read(self.limit)?;
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
        let mut request = json!({ "execute": command });
        if let Some(arguments) = arguments {
            request["arguments"] = arguments.clone();
        }
        self.stream.write_all(format!("{request}\n").as_bytes())?;
        self.answer(command)
    }

    /// Gives QEMU an open file, which its commands know by this name.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn give(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), QmpError> {
        let request = json!({ "execute": "getfd", "arguments": { "fdname": name } });
        let request = format!("{request}\n");
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
        let start = Instant::now();
        loop {
            let left = self.limit.saturating_sub(start.elapsed());
            let mut message = self.read(left)?;
            if let Some(answer) = message.get_mut("return") {
                // The commands of the human monitor say in plain text that they failed.
                let failed = answer.as_str().is_some_and(|text| text.contains("Error"));
                return if failed { Err(refused(answer)) } else { Ok(answer.take()) };
            }
            if let Some(error) = message.get("error") {
                return Err(refused(error));
            }
        }
    }

    /// Waits for an event; one that came since the last `take_events` will do.
    ///
    /// # Errors
    /// When QEMU ends, or says nothing at all for long.
    pub fn wait(&mut self, event: &str) -> Result<(), QmpError> {
        while !self.events.iter().any(|seen| seen.name == event) {
            self.read(self.limit)?;
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
        let start = Instant::now();
        while self.events.is_empty() {
            match self.read(time.saturating_sub(start.elapsed())) {
                Err(QmpError::TimedOut(_)) => break,
                message => drop(message?),
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
    fn read(&mut self, limit: Duration) -> Result<Value, QmpError> {
        let start = Instant::now();
        let length = loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                break end + 1;
            }
            if MAX_MESSAGE_BYTES < self.received.len() {
                return Err(QmpError::Garbled("a message is too long"));
            }
            self.read_more(limit.saturating_sub(start.elapsed()), limit)?;
        };
        let message: Value = serde_json::from_slice(&self.received[..length])
            .map_err(|_| QmpError::Garbled("a message is no JSON"))?;
        self.received.drain(..length);
        if let Some(name) = message["event"].as_str() {
            if MAX_EVENTS <= self.events.len() {
                return Err(QmpError::Garbled("too many events"));
            }
            self.events.push(Event { name: name.to_owned(), data: message["data"].clone() });
        }
        Ok(message)
    }

    fn read_more(&mut self, left: Duration, limit: Duration) -> Result<(), QmpError> {
        // None would mean for ever.
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut bytes = [0; 1 << 14];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(QmpError::Ended),
            Ok(n) => {
                self.received.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if left.is_zero() {
                    Err(QmpError::TimedOut(limit))
                } else {
                    Ok(())
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
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

    const GREETING: &str = "{\"QMP\": {}}\n{\"return\": {}}";

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
        assert_eq!(sent, "{\"execute\":\"qmp_capabilities\"}\n");
        (session, theirs)
    }

    #[test]
    fn answers_and_events_of_a_command() {
        let (mut session, mut theirs) = session(&[
            "{\"event\":\"RESET\"}",
            "{\"return\":{}}",
            "{\"event\":\"STOP\",\"data\":{\"a\":1}}",
            "{\"error\":{\"class\":\"x\",\"desc\":\"not now\"}}",
            "{\"return\":\"Error: no device can store it\"}",
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
        assert_eq!(sent, "{\"execute\":\"device_del\",\"arguments\":{\"id\":\"cpu1\"}}\n");
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
        let own = rustix::process::getuid().as_raw();
        assert!(matches!(Session::open(&path, own), Err(QmpError::Connect(_))));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(Session::open(&path, own), Err(QmpError::Connect(_))));
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(Session::open(&path, own + 1), Err(QmpError::Stranger(_))));
        let qemu = std::thread::spawn(move || {
            let (_stranger, _) = listener.accept().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, "{GREETING}").unwrap();
            stream
        });
        Session::open(&path, own).unwrap();
        drop(qemu.join().unwrap());
    }
}
