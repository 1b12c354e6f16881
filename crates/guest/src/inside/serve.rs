//! Answers the host. Blocked in `accept`, `read` or `epoll_wait` until it asks; no timer runs.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use api::guest::{
    MAX_REQUEST_BYTES, Pace, Request, Response, SERIAL_PORT_NAME, TraceOptions, VERSION, VSOCK_PORT,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::OFlags;
use rustix::process::{getpriority_process, setpriority_process};

use super::InsideError;
use super::job::{HungUp, Waiting};
use super::ports::find_serial_port;
use super::snapshot::{OfThisBoot, Reader};
use super::trace::{Commands, Trace, TraceError};
use crate::frame::{self, Decoder, Frame};
use crate::vsock::listen::{self, HostProcesses};

/// Hosts that are answered at once; more are turned away.
const MAX_CONNECTIONS: usize = 4;
/// How long the host may leave an answer lying in the serial port without taking any of it.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// How long the host's end must be closed to be taken for closed while an answer waits.
const HANG_UP_LIMIT: Duration = Duration::from_secs(2);

/// Listens on all channels there are, and answers until the process is ended. `commands`: whether a host may have some
/// run here. `ready` gets the channels that it listens on.
///
/// # Errors
/// If there is no channel at all, or a thread can't be started.
pub fn serve(
    commands: Commands,
    processes: HostProcesses,
    ready: &mut dyn FnMut(&str),
) -> Result<(), InsideError> {
    let vsock = listen::listen(VSOCK_PORT);
    let port = find_serial_port(Path::new("/"), SERIAL_PORT_NAME);
    let boot = Arc::<Mutex<OfThisBoot>>::default();
    let mut threads = Vec::new();
    let missing = match (vsock, &port) {
        (Ok(listener), _) => {
            ready(&format!("vsock port {VSOCK_PORT}"));
            let boot = Arc::clone(&boot);
            threads.push(spawn(move || serve_vsock(&listener, commands, processes, &boot))?);
            None
        }
        (Err(error), _) => Some(error),
    };
    if let Some(path) = port {
        let file = open_port(&path)?;
        ready(&path.display().to_string());
        threads.push(spawn(move || serve_port(file, commands, &boot))?);
    }
    if let (true, Some(error)) = (threads.is_empty(), missing) {
        return Err(InsideError::NoChannel(format!(
            "nothing to listen on: vsock: {error}; and no virtio-serial port is named {SERIAL_PORT_NAME}"
        )));
    }
    for thread in threads {
        let ended = thread.join().unwrap_or(Err(InsideError::Thread));
        ended?;
    }
    Ok(())
}

type Ended = Result<(), InsideError>;

fn spawn(
    body: impl FnOnce() -> Ended + Send + 'static,
) -> Result<thread::JoinHandle<Ended>, InsideError> {
    thread::Builder::new().spawn(body).map_err(InsideError::serve("start a thread"))
}

/// A session with a host.
struct Conversation {
    commands: Commands,
    boot: Arc<Mutex<OfThisBoot>>,
    session: Option<u64>,
    reader: Reader,
    trace: Option<Trace>,
}

impl Conversation {
    fn new(commands: Commands, boot: Arc<Mutex<OfThisBoot>>) -> Self {
        let reader = Reader::new(Arc::clone(&boot));
        Self { commands, boot, session: None, reader, trace: None }
    }

    /// The answer to a frame, as a frame.
    fn answer(&mut self, requested: &Frame, waiting: Waiting<'_>) -> Result<Vec<u8>, HungUp> {
        let mut hung_up = None;
        let answer = frame::answer(requested, |request| {
            let responded = self.respond(requested.session, request, waiting);
            responded.unwrap_or_else(|error| {
                hung_up = Some(error);
                Response::Error("the host hung up".into())
            })
        });
        hung_up.map_or(Ok(answer), Err)
    }

    fn respond(
        &mut self,
        session: u64,
        request: Request,
        waiting: Waiting<'_>,
    ) -> Result<Response, HungUp> {
        match request {
            Request::Hello { .. } => {
                if self.session.replace(session) != Some(session) {
                    // A new host: answers for the last one have no reader any more.
                    self.reader = Reader::new(Arc::clone(&self.boot));
                    self.trace = None;
                }
                return Ok(Response::Hello { version: VERSION, now_ns: super::now_ns() });
            }
            Request::Ping { number } => return Ok(Response::Pong { number }),
            _ if self.session != Some(session) => {
                return Ok(Response::Error("a session begins with hello".into()));
            }
            _ => {}
        }
        let reader = &mut self.reader;
        Ok(match request {
            Request::Hello { .. } | Request::Ping { .. } => {
                Response::Error("answered above".into())
            }
            Request::StartLog { pace } => {
                let niceness = if pace == Pace::Low { NICE_FOR_LOG } else { 0 };
                let (now_ns, problems) = at_niceness(niceness, || reader.start_log(waiting))?;
                let problem = (!problems.is_empty()).then(|| problems.join("; "));
                Response::LogStarted { now_ns, problem }
            }
            Request::Changes { pace } => {
                Response::Map(Box::new(at_pace(pace, || reader.changes(pace, waiting))?))
            }
            Request::WindowEnd => Response::Map(Box::new(reader.window_end(waiting)?)),
            Request::Snapshot => Response::Map(Box::new(reader.snapshot(waiting)?)),
            Request::Symbols { modules, pace, largest_file } => {
                let symbols = || reader.symbols(&modules, pace, largest_file, waiting);
                Response::Symbols(at_pace(pace, symbols)?)
            }
            Request::CurrentTasks | Request::AddCode(_) => {
                Response::Error("only the host reads tasks in memory".into())
            }
            Request::Stacks(_) => Response::Error("only the host copies stacks".into()),
            Request::TraceStart(options) => self.start_trace(&options),
            Request::TraceRun => self.traced(|trace| trace.run().map(Response::TraceSeen)),
            Request::TraceLook => self.traced(|trace| Ok(Response::TraceSeen(trace.look()))),
            Request::TraceDrain => self.traced(|trace| Ok(Response::TraceSlots(trace.drain()))),
            Request::TraceStop => {
                self.traced(|trace| Ok(Response::TraceStopped(Box::new(trace.stop()))))
            }
        })
    }

    fn start_trace(&mut self, options: &TraceOptions) -> Response {
        // An old trace's probes would be among what the new one sees.
        self.trace = None;
        match Trace::start(options, self.commands) {
            Ok((trace, started)) => {
                self.trace = Some(trace);
                Response::TraceStarted(Box::new(started))
            }
            Err(error) => Response::Error(error.to_string()),
        }
    }

    fn traced(
        &mut self,
        answer: impl FnOnce(&mut Trace) -> Result<Response, TraceError>,
    ) -> Response {
        let Some(trace) = &mut self.trace else {
            return Response::Error("it traces nothing".into());
        };
        answer(trace).unwrap_or_else(|error| Response::Error(error.to_string()))
    }
}

/// Nice value of work for answers that can wait: CPU time that no other task wants.
const NICEST: i32 = 19;
/// To begin a log while the guest is sampled. Processes that end before it have no name: so a busy process leaves it about a
/// tenth of a CPU, where it would leave less than a fiftieth to the nicest.
const NICE_FOR_LOG: i32 = 10;

fn at_pace<T>(pace: Pace, work: impl FnOnce() -> T) -> T {
    at_niceness(if pace == Pace::Low { NICEST } else { 0 }, work)
}

/// Does some work; other than 0, the niceness is that of this thread meanwhile.
fn at_niceness<T>(niceness: i32, work: impl FnOnce() -> T) -> T {
    if niceness == 0 {
        return work();
    }
    // Of this thread only. Without the right to come back the rest of the session is slow, too.
    let usual = getpriority_process(None).and_then(|usual| {
        setpriority_process(None, niceness)?;
        Ok(usual)
    });
    let result = work();
    if let Ok(usual) = usual {
        let _ = setpriority_process(None, usual);
    }
    result
}

fn serve_vsock(
    listener: &OwnedFd,
    commands: Commands,
    processes: HostProcesses,
    boot: &Arc<Mutex<OfThisBoot>>,
) -> Ended {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let socket = match listen::accept(listener, processes) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(error) => {
                return Err(InsideError::serve("accept a vsock connection")(error.into()));
            }
        };
        if MAX_CONNECTIONS <= connections.load(Ordering::Acquire) {
            continue;
        }
        connections.fetch_add(1, Ordering::AcqRel);
        let counted = Arc::clone(&connections);
        let conversation = Conversation::new(commands, Arc::clone(boot));
        let answering = thread::Builder::new().spawn(move || {
            converse(File::from(socket), conversation);
            counted.fetch_sub(1, Ordering::AcqRel);
        });
        if answering.is_err() {
            connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Answers one connection until the host hangs up or sends what is no request.
fn converse(mut stream: File, mut conversation: Conversation) {
    let mut decoder = Decoder::any_session(MAX_REQUEST_BYTES);
    let mut chunk = vec![0; 1 << 14];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => decoder.push(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        while let Ok(Some(frame)) = decoder.next() {
            let answer = conversation.answer(&frame, Waiting::new(&|| !has_hung_up(&stream)));
            let Ok(answer) = answer else { return };
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

/// Whether the other end of a channel is closed.
fn has_hung_up(channel: &File) -> bool {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(closed)
}

fn open_port(path: &PathBuf) -> Result<File, InsideError> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(InsideError::read(path))
}

/// Answers on a virtio-serial port. While no host has its end open, reading gives the end of file at
/// once and polling says hang-up at once; edge-triggered epoll instead sleeps until that changes.
fn serve_port(mut port: File, commands: Commands, boot: &Arc<Mutex<OfThisBoot>>) -> Ended {
    let failed = InsideError::serve("wait for the serial port");
    let waiting =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&waiting, &port, epoll::EventData::new_u64(0), flags)
        .map_err(|error| failed(error.into()))?;
    let mut conversation = Conversation::new(commands, Arc::clone(boot));
    let mut decoder = Decoder::any_session(MAX_REQUEST_BYTES);
    let mut chunk = vec![0; 1 << 14];
    let mut events = [epoll::Event { flags, data: epoll::EventData::new_u64(0) }; 1];
    loop {
        match epoll::wait(&waiting, &mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        loop {
            match port.read(&mut chunk) {
                Ok(0) => {
                    conversation = Conversation::new(commands, Arc::clone(boot));
                    decoder.clear();
                    break;
                }
                Ok(length) => decoder.push(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(InsideError::serve("read the serial port")(error)),
            }
            while let Ok(Some(frame)) = decoder.next() {
                // A host that went away meanwhile is noticed by the next read.
                let closed_since = Cell::new(None);
                let is_there = || !is_closed_for_long(&port, &closed_since);
                if let Ok(answer) = conversation.answer(&frame, Waiting::new(&is_there)) {
                    let _ = write_port(&mut port, &answer);
                }
            }
        }
    }
}

/// See `wait_writable`.
fn is_closed_for_long(port: &File, since: &Cell<Option<Instant>>) -> bool {
    let first = has_hung_up(port).then(|| since.get().unwrap_or_else(Instant::now));
    since.set(first);
    first.is_some_and(|first| HANG_UP_LIMIT < first.elapsed())
}

fn write_port(port: &mut File, mut bytes: &[u8]) -> std::io::Result<()> {
    let mut deadline = Instant::now() + WRITE_LIMIT;
    while !bytes.is_empty() {
        match port.write(bytes) {
            Ok(length) => {
                bytes = &bytes[length..];
                deadline = Instant::now() + WRITE_LIMIT;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_writable(port, deadline)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A host's request may arrive before the message that it has opened its end (the driver handles
/// that one in a work item): hung up is believed only when it lasts.
fn wait_writable(port: &File, deadline: Instant) -> std::io::Result<()> {
    let began = Instant::now();
    while Instant::now() < deadline {
        let mut polled = [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
        let revents = polled[0].revents();
        if revents.contains(PollFlags::HUP) {
            if HANG_UP_LIMIT < began.elapsed() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            thread::sleep(Duration::from_millis(5));
        } else if revents.contains(PollFlags::OUT) {
            return Ok(());
        }
    }
    Err(ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod test {
    use std::os::unix::net::UnixStream;

    use api::guest::MAX_ANSWER_BYTES;

    use super::*;

    fn conversation() -> Conversation {
        Conversation::new(Commands::Refused, Arc::default())
    }

    fn ask(conversation: &mut Conversation, session: u64, request: &Request) -> Response {
        let bytes = frame::encode(session, request, MAX_REQUEST_BYTES).unwrap();
        let mut decoder = Decoder::any_session(MAX_REQUEST_BYTES);
        decoder.push(&bytes);
        let requested = decoder.next().unwrap().unwrap();
        let answer = conversation.answer(&requested, Waiting::always()).unwrap();
        let mut decoder = Decoder::of_session(session, MAX_ANSWER_BYTES);
        decoder.push(&answer);
        frame::decode(&decoder.next().unwrap().unwrap().content).unwrap()
    }

    #[test]
    fn a_session_begins_with_hello() {
        let conversation = &mut conversation();
        let symbols = Request::Symbols { modules: vec![7], pace: Pace::Low, largest_file: 0 };
        let hello = Request::Hello { version: VERSION };
        assert!(matches!(ask(conversation, 1, &symbols), Response::Error(_)));
        assert!(matches!(ask(conversation, 1, &hello), Response::Hello { version: VERSION, .. }));
        assert!(matches!(ask(conversation, 1, &symbols), Response::Symbols(s) if s.len() == 1));
        assert!(matches!(ask(conversation, 2, &symbols), Response::Error(_)));
        let ping = Request::Ping { number: 5 };
        assert_eq!(ask(conversation, 2, &ping), Response::Pong { number: 5 });
    }

    /// A connection whose host has sent `requests`.
    fn connection(
        requests: &[Request],
        boot: &Arc<Mutex<OfThisBoot>>,
    ) -> (UnixStream, impl FnOnce()) {
        let (mut host, stream) = UnixStream::pair().unwrap();
        for request in requests {
            host.write_all(&frame::encode(1, request, MAX_REQUEST_BYTES).unwrap()).unwrap();
        }
        let conversation = Conversation::new(Commands::Refused, Arc::clone(boot));
        (host, move || converse(File::from(OwnedFd::from(stream)), conversation))
    }

    /// The first so many answers that the host gets.
    fn answers(host: &mut UnixStream, n: usize) -> Vec<Response> {
        let mut decoder = Decoder::of_session(1, MAX_ANSWER_BYTES);
        let (mut answers, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        while answers.len() < n {
            match decoder.next().unwrap() {
                Some(frame) => answers.push(frame::decode(&frame.content).unwrap()),
                None => {
                    let length = host.read(&mut chunk).unwrap();
                    decoder.push(&chunk[..length]);
                }
            }
        }
        answers
    }

    const HELLO: Request = Request::Hello { version: VERSION };
    const START: Request = Request::StartLog { pace: Pace::Low };

    #[test]
    fn nothing_is_done_for_a_host_that_has_hung_up() {
        let boot = Arc::<Mutex<OfThisBoot>>::default();
        let (host, converse) = connection(&[HELLO, START], &boot);
        drop(host);
        converse();
        assert!(!boot.lock().unwrap().was_read());
    }

    #[test]
    fn one_hosts_work_is_done_at_a_time() {
        let boot = Arc::<Mutex<OfThisBoot>>::default();
        thread::scope(|scope| {
            // Another host's work is under way.
            let at_work = boot.lock().unwrap();
            let (mut host, converse) = connection(&[HELLO, START], &boot);
            let (gone, converse_too) = connection(&[HELLO, START], &boot);
            scope.spawn(converse);
            let other = scope.spawn(converse_too);
            assert!(matches!(answers(&mut host, 1)[..], [Response::Hello { .. }]));
            drop(gone);
            assert!(!at_work.was_read());
            drop(at_work);
            other.join().unwrap();
            assert!(matches!(answers(&mut host, 1)[..], [Response::LogStarted { .. }]));
            drop(host);
        });
    }

    #[test]
    fn what_is_no_request_is_answered_with_an_error() {
        let requested = Frame { session: 1, content: vec![99, 1, 2] };
        let answer = conversation().answer(&requested, Waiting::always()).unwrap();
        let mut decoder = Decoder::of_session(1, MAX_ANSWER_BYTES);
        decoder.push(&answer);
        let answer = decoder.next().unwrap().unwrap();
        assert!(matches!(frame::decode(&answer.content), Ok(Response::Error(_))));
    }
}
