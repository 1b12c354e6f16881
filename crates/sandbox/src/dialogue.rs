//! Children that talk with their parent while they work, and have threads of their own.

use std::ffi::{CString, c_long};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::set_name;

use crate::child::ARGUMENT;
use crate::confine::{self, Allowance};
use crate::frame::Socket;
use crate::parent::{Failure, MAX_TIME, Running, Starter};

/// Threads look up where their stack ends, which takes this.
const FOR_THREADS: [c_long; 1] = [libc::SYS_sched_getaffinity];
/// Addresses beyond the memory that can be written to: what the C library reserves for each thread.
const MORE_ADDRESSES: u64 = 4 << 30;
/// When memory runs out, the kernel takes a child before its parent.
const OUT_OF_MEMORY_SCORE: &[u8] = b"500";
/// For a child that was killed.
const MAX_END: Duration = Duration::from_secs(10);

/// The work of a child that talks with its parent as long as it lives.
pub trait Dialogue: Sized {
    /// The child's name, of at most 15 bytes: one for each type.
    const NAME: &'static str;

    /// By how much others go first.
    const NICENESS: i32 = 5;

    /// Starts its threads, all of which run when this returns: later nothing can start one. `resident`: memory that this
    /// process has, whenever it is called.
    fn start(allowed: Allowance, resident: impl Fn() -> u64 + Send + 'static) -> Self;

    /// Talks until the parent hangs up.
    fn talk(self, parent: Channel);
}

/// The child's end: messages of bytes, which several threads may send.
#[derive(Debug)]
pub struct Channel {
    socket: Socket<OwnedFd>,
    sending: Mutex<()>,
}

impl Channel {
    /// Over a socket that blocks.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: Socket::new(socket), sending: Mutex::default() }
    }

    /// The next message; `None`: there is none any more.
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.receive_with_files().map(|(content, _)| content)
    }

    /// The next message, with the files that came with it.
    pub fn receive_with_files(&self) -> Option<(Vec<u8>, Vec<File>)> {
        self.socket.receive().ok()
    }

    /// What follows the messages, as a stream of bytes in a form of its own.
    #[must_use]
    pub fn into_stream(self) -> OwnedFd {
        self.socket.into_descriptor()
    }

    /// Sends a message; false: it is too long, or the parent is gone.
    pub fn send(&self, content: &[u8]) -> bool {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.socket.send(content, &[]).is_ok()
    }
}

/// Is such a child, if this process was started for that: a program's first call. `None`: it was not.
#[must_use]
pub fn serve_dialogue<D: Dialogue>() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT || arguments.next()? != D::NAME {
        return None;
    }
    let mut number = || arguments.next()?.to_str()?.parse().ok();
    let allowed = Allowance { memory_bytes: number()?, cpu_seconds: number()? };
    let started = start::<D>(allowed);
    let ready = started.as_ref().map(|_| ()).map_err(Clone::clone);
    let message = postcard::to_stdvec(&ready).unwrap_or_default();
    let is_sent = Socket::new(std::io::stdin()).send(&message, &[]).is_ok();
    let (Ok((dialogue, socket)), true) = (started, is_sent) else {
        return Some(ExitCode::FAILURE);
    };
    dialogue.talk(Channel::new(socket));
    Some(ExitCode::SUCCESS)
}

/// Its work, and its socket: later no descriptor can be made of one that it has.
fn start<D: Dialogue>(allowed: Allowance) -> Result<(D, OwnedFd), String> {
    let failed = |error: std::io::Error| format!("/proc/self/statm: {error}");
    let named = CString::new(D::NAME).map(|name| set_name(&name));
    debug_assert!(named.is_ok(), "{} is no name", D::NAME);
    // Before Linux 6.4 the page size is in a file, which can't be opened later.
    let _ = rustix::param::page_size();
    confine::close_all()?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| format!("standard input: {error}"))?;
    // Without the right to, it is as high as the others.
    let _ = rustix::process::nice(D::NICENESS);
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    let usage = File::open("/proc/self/statm").map_err(failed)?;
    let for_child = usage.try_clone().map_err(failed)?;
    confine::give_up_rights_but(Allowance { memory_bytes: u64::MAX, ..allowed })?;
    let dialogue = D::start(allowed, move || pages(&for_child, RESIDENT).unwrap_or(0));
    let data = pages(&usage, DATA).map_err(failed)?;
    let addresses = pages(&usage, SIZE).map_err(failed)?.max(data);
    let more = |bytes: u64| bytes.saturating_add(allowed.memory_bytes);
    confine::limit_memory(more(data), more(addresses).saturating_add(MORE_ADDRESSES))?;
    confine::give_up_system_calls(&FOR_THREADS)?;
    Ok((dialogue, socket))
}

/// Fields of `/proc/self/statm`.
const SIZE: usize = 0;
const RESIDENT: usize = 1;
const DATA: usize = 5;

/// A field in bytes.
fn pages(usage: &File, field: usize) -> std::io::Result<u64> {
    let mut text = [0; 256];
    let read = usage.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..read]);
    let pages =
        text.split_ascii_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
    let page = rustix::param::page_size() as u64;
    pages.map(|pages| pages * page).ok_or_else(|| std::io::Error::other("it has no such field"))
}

/// The parent's side: starts children of one kind.
#[derive(Debug)]
pub struct Partners {
    starter: Mutex<Starter>,
}

impl Partners {
    /// Of this program, as `D`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new<D: Dialogue>(allowed: Allowance) -> Result<Self, Failure> {
        let limits = [allowed.memory_bytes, allowed.cpu_seconds].map(|limit| limit.to_string());
        let arguments = std::iter::once(D::NAME.to_owned()).chain(limits).collect();
        let starter = Starter::new(Path::new("/proc/self/exe"), arguments)?;
        Ok(Self { starter: Mutex::new(starter) })
    }

    /// Starts one, and waits until it has given up everything. Blocks.
    ///
    /// # Errors
    /// When there is none.
    pub fn start(&self) -> Result<Partner, Failure> {
        let started = self.starter.lock().unwrap_or_else(PoisonError::into_inner).start()?;
        started.ready(Instant::now() + MAX_TIME, MAX_TIME).map(Partner)
    }
}

/// A child; killed when it is dropped.
#[derive(Debug)]
pub struct Partner(Running);

impl Partner {
    /// The child's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.child.id()
    }

    /// Sends a message with files. Blocks.
    ///
    /// # Errors
    /// When the child is gone, or takes none in time.
    pub fn send(&mut self, content: &[u8], files: &[&File]) -> Result<(), Failure> {
        self.0.socket.deadline = Some(Instant::now() + MAX_TIME);
        let sent = self.0.socket.send(content, files);
        sent.map_err(|broken| self.0.failure(broken, MAX_TIME))
    }

    /// The socket to it, which does not block: messages as those of a `Channel`, a length (little-endian `u32`) and so many
    /// bytes.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn socket(&self) -> std::io::Result<UnixStream> {
        self.0.socket.try_clone().map(UnixStream::from)
    }

    /// Kills it, and says how it ended, which it may have done before. `None`: it is still running. Blocks.
    pub fn end(mut self) -> Option<ExitStatus> {
        self.0.end(MAX_END)
    }
}

/// Processor time of this process so far.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
