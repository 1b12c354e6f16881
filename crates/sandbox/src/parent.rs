//! The parent's side.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;

use crate::Parser;
use crate::child::ARGUMENT;
use crate::frame::{Broken, Socket};

/// For one answer, a start included; generous, for machines that are emulated.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(20);

/// Failures after which no child is started for a while, and time that they may take together.
const MAX_FAILURES: u32 = 64;
const MAX_LOST_TIME: Duration = Duration::from_secs(120);
/// That while: who goes on for days must not be without answers because of a moment.
const GIVEN_UP: Duration = Duration::from_secs(3600);

/// How long a child may take to end: one that has hung up, one without further requests.
const MAX_END: Duration = Duration::from_secs(10);
const MAX_LAST_WAIT: Duration = Duration::from_millis(100);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("failed to start a process without privileges: {0}")]
    Start(String),
    #[error("the process that parsed it {0}")]
    Ended(String),
    /// It was waited for long enough.
    #[error("reading it took more than {} s", .0.as_secs())]
    Late(Duration),
    /// The child sent something else, or too much.
    #[error("the process that parsed it sent no valid answer")]
    Nonsense,
    /// Too many questions had no answer.
    #[error("too many files have stopped the process that parses them")]
    GivenUp,
}

/// Parses in a child without privileges, which it starts when there is a question.
#[derive(Debug)]
pub struct Sandbox<P: Parser> {
    program: PathBuf,
    starter: Option<Starter>,
    running: Option<Running>,
    max_time: Duration,
    failures: u32,
    lost_time: Duration,
    /// When there were too many.
    given_up: Option<Instant>,
    /// When the question was begun that has no answer yet.
    requested: Option<Instant>,
    here: Option<InProcess<P>>,
}

/// Parses in this process instead of a child.
#[derive(Debug)]
struct InProcess<P: Parser> {
    parser: P,
    answer: Option<P::Answer>,
}

impl<P: Parser> Default for Sandbox<P> {
    fn default() -> Self {
        Self::of_program(Path::new("/proc/self/exe"))
    }
}

impl<P: Parser> Sandbox<P> {
    /// Children of another program than this one, for tests.
    #[must_use]
    pub fn of_program(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            starter: None,
            running: None,
            max_time: MAX_TIME,
            failures: 0,
            lost_time: Duration::ZERO,
            given_up: None,
            requested: None,
            here: None,
        }
    }

    /// Parses in this process, for tests of what is around it.
    #[must_use]
    pub fn here() -> Self {
        Self { here: Some(InProcess { parser: P::start(), answer: None }), ..Self::default() }
    }

    /// With another time limit for an answer, for tests.
    #[must_use]
    pub fn with_max_time(self, max_time: Duration) -> Self {
        Self { max_time, ..self }
    }

    /// Starts the child now, to find out whether there can be one.
    ///
    /// # Errors
    /// When there is none.
    pub fn start(&mut self) -> Result<(), Failure> {
        self.running = Some(self.start_child(Instant::now() + self.max_time)?);
        Ok(())
    }

    /// The child's answer to a question about `files`. Its content is not checked.
    ///
    /// # Errors
    /// When the child did not answer, or there is none.
    pub fn ask(&mut self, question: &P::Question, files: &[&File]) -> Result<P::Answer, Failure> {
        self.begin(question, files)?;
        self.finish()
    }

    /// Sends a question and waits for no answer: for who has others to wait for. `finish` takes the answer, before the next
    /// question.
    ///
    /// # Errors
    /// When there is no child.
    pub fn begin(&mut self, question: &P::Question, files: &[&File]) -> Result<(), Failure> {
        if let Some(here) = &mut self.here {
            here.answer = Some(here.parser.answer(question, files));
            return Ok(());
        }
        if self.is_given_up(Instant::now()) {
            return Err(Failure::GivenUp);
        }
        let began = Instant::now();
        let sent = self.send(question, files, began + self.max_time);
        self.requested = Some(began);
        sent.map_err(|failure| self.failed(failure))
    }

    /// Waits until `finish` has nothing to wait for, `limit` at most; false: it has.
    pub fn is_answered(&self, limit: Duration) -> bool {
        let (Some(running), Some(began)) = (&self.running, self.requested) else { return true };
        let left = self.max_time.saturating_sub(began.elapsed());
        running.socket.is_readable(limit.min(left)) || left <= limit
    }

    /// The answer to the question that was begun.
    ///
    /// # Errors
    /// When the child did not answer.
    pub fn finish(&mut self) -> Result<P::Answer, Failure> {
        if let Some(here) = &mut self.here {
            return here.answer.take().ok_or(Failure::Nonsense);
        }
        match self.receive() {
            Ok((answer, is_spent)) => {
                self.requested = None;
                if is_spent {
                    self.running = None;
                }
                Ok(answer)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// The child's process id, while there is one.
    #[must_use]
    pub fn child(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    fn is_given_up(&mut self, now: Instant) -> bool {
        if self.given_up.is_some_and(|since| GIVEN_UP <= now.saturating_duration_since(since)) {
            (self.failures, self.lost_time, self.given_up) = (0, Duration::ZERO, None);
        }
        let is_too_much = MAX_FAILURES <= self.failures || MAX_LOST_TIME <= self.lost_time;
        if is_too_much {
            self.given_up.get_or_insert(now);
        }
        is_too_much
    }

    fn failed(&mut self, failure: Failure) -> Failure {
        self.running = None;
        self.failures += 1;
        self.lost_time += self.requested.take().map_or(Duration::ZERO, |began| began.elapsed());
        failure
    }

    fn send(
        &mut self,
        question: &P::Question,
        files: &[&File],
        deadline: Instant,
    ) -> Result<(), Failure> {
        let question = postcard::to_stdvec(question).map_err(|_| Failure::Nonsense)?;
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start_child(deadline)?,
        };
        running.socket.deadline = Some(deadline);
        let sent = running.socket.send(&question, files);
        sent.map_err(|broken| running.failure(broken, self.max_time))?;
        self.running = Some(running);
        Ok(())
    }

    fn receive(&mut self) -> Result<(P::Answer, bool), Failure> {
        let running = self.running.as_mut().ok_or(Failure::Nonsense)?;
        running.receive().map_err(|broken| running.failure(broken, self.max_time))
    }

    fn start_child(&mut self, deadline: Instant) -> Result<Running, Failure> {
        let starter = match &mut self.starter {
            Some(starter) => starter,
            none => none.insert(Starter::new(&self.program, vec![P::NAME.to_owned()])?),
        };
        starter.start()?.ready(deadline, self.max_time)
    }
}

/// A child; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) socket: Socket<OwnedFd>,
}

impl Running {
    fn receive<T: DeserializeOwned>(&self) -> Result<T, Broken> {
        let (content, _) = self.socket.receive()?;
        postcard::from_bytes(&content).map_err(|_| Broken::TooLong)
    }

    /// Waits until it has given up everything.
    pub(crate) fn ready(mut self, deadline: Instant, max_time: Duration) -> Result<Self, Failure> {
        self.socket.deadline = Some(deadline);
        match self.receive::<Result<(), String>>() {
            Ok(Ok(())) => Ok(self),
            Ok(Err(reason)) => Err(Failure::Start(reason)),
            Err(broken) => Err(Failure::Start(self.failure(broken, max_time).to_string())),
        }
    }

    pub(crate) fn failure(&mut self, broken: Broken, max_time: Duration) -> Failure {
        match broken {
            Broken::Late => Failure::Late(max_time),
            Broken::TooLong => Failure::Nonsense,
            Broken::Closed => {
                Failure::Ended(self.end(MAX_END).map_or("is gone".to_owned(), describe))
            }
        }
    }

    /// Ends the child, if it has not ended by itself. `None`: it has not ended yet. One that waits for a file system that
    /// never answers does not end before that does.
    pub(crate) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        const LOOK_EVERY: Duration = Duration::from_millis(1);
        let _ = self.child.kill();
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(LOOK_EVERY),
                ended => return ended.ok().flatten(),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(MAX_LAST_WAIT);
    }
}

fn describe(status: ExitStatus) -> String {
    const PANICKED: i32 = 101;
    match (status.signal(), status.code()) {
        (Some(signal), _) => match name_of(signal) {
            Some(name) => format!("was stopped by {name}"),
            None => format!("was stopped by signal {signal}"),
        },
        (_, Some(PANICKED)) => "panicked".to_owned(),
        _ => format!("ended ({status})"),
    }
}

fn name_of(signal: c_int) -> Option<&'static str> {
    Some(match signal {
        libc::SIGABRT => "SIGABRT (out of memory?)",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS (a system call that it must not make)",
        libc::SIGXCPU => "SIGXCPU",
        _ => return None,
    })
}

/// A thread that starts children, and lives as long as they may: a child is killed when the thread that started it ends.
#[derive(Debug)]
pub(crate) struct Starter {
    requests: Sender<()>,
    started: Receiver<io::Result<Running>>,
}

impl Starter {
    /// Of children that are started with these arguments, the first of which is their name.
    pub(crate) fn new(program: &Path, arguments: Vec<String>) -> Result<Self, Failure> {
        let (requests, requested) = channel();
        let (starting, started) = channel();
        let program = program.to_owned();
        let start = move || {
            for () in requested {
                if starting.send(start(&program, &arguments)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sandbox".to_owned()).spawn(start);
        thread.map_err(|error| Failure::Start(error.to_string()))?;
        Ok(Self { requests, started })
    }

    /// A child, whose first message says whether it is ready.
    pub(crate) fn start(&self) -> Result<Running, Failure> {
        let gone = || Failure::Start("the thread that starts it ended".to_owned());
        self.requests.send(()).map_err(|_| gone())?;
        let started = self.started.recv().map_err(|_| gone())?;
        started.map_err(|error| Failure::Start(error.to_string()))
    }
}

fn start(program: &Path, arguments: &[String]) -> io::Result<Running> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let child = Command::new(program)
        .arg(ARGUMENT)
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // The terminal's signals are not for it.
        .process_group(0)
        .spawn()?;
    Ok(Running { child, socket: Socket::new(ours) })
}

#[cfg(test)]
mod test {
    use super::*;

    struct Never;

    impl Parser for Never {
        const NAME: &'static str = "never";
        type Question = ();
        type Answer = ();

        fn start() -> Self {
            Self
        }

        fn answer(&mut self, (): &(), _: &[&File]) {}
    }

    #[test]
    fn who_gave_up_tries_again_an_hour_later() {
        let (mut sandbox, now) = (Sandbox::<Never>::default(), Instant::now());
        (0..MAX_FAILURES).for_each(|_| drop(sandbox.failed(Failure::Nonsense)));
        assert!(sandbox.is_given_up(now) && sandbox.is_given_up(now + GIVEN_UP / 2));
        assert!(!sandbox.is_given_up(now + GIVEN_UP));
        sandbox.failed(Failure::Nonsense);
        assert!(!sandbox.is_given_up(now + GIVEN_UP));
    }
}
