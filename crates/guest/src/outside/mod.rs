//! A guest that has no program of ours: a child process without privileges reads the memory of its VM, and answers in the
//! guest's place, in the same protocol.
//!
//! ```text
//!   host                                  child, confined, soon at niceness 19
//!    | -- memory and pagemap of the VMM, --> |
//!    |    KVM's memory slots                 |
//!    | -- Hello, StartLog, Changes, ... ---> |  finds the kernel, its symbols, its tasks, their mappings, their files
//!    | <------------------------- answers -- |
//! ```
//! Nothing is written, and nothing is read that the VMM does not have in memory. The answers are checked like those of a
//! program in the guest: what lies in the memory is as hostile. Times are the host's.

mod audit;
mod found;
mod images;
mod memory;
mod modules;
mod python;
mod server;
mod stacks;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::guest::MAX_REQUEST_BYTES;
use model::Pid;
use rustix::io::Errno;
use sandbox::{Allowance, Channel, Dialogue, Partner, Partners};

pub use self::audit::FILE_NAME as AUDIT_LOG;
pub use self::memory::MemorySlot;
use self::memory::VmMemory;
use self::server::MemoryServer;
use crate::frame::Decoder;
use crate::link::LinkError;

/// Memory the child may allocate: for the symbols of a kernel and of the largest files, and for unwind tables.
const MAX_CHILD_BYTES: u64 = 240 << 20;
/// Processor time of a child: a VM that is watched for weeks takes half a percent of a CPU at most.
const MAX_CHILD_CPU_SECONDS: u64 = 24 * 3600;

/// The memory of a guest, as its host has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestMemory {
    /// Where the proc file system is.
    pub proc: PathBuf,
    /// The folder of the audit log.
    pub logs: PathBuf,
    /// The VM's name.
    pub vm: String,
    pub uuid: Option<String>,
    /// The user that runs it.
    pub user: u32,
    /// Its process.
    pub process: Pid,
    /// When that began, in the kernel's clock ticks since the host booted.
    pub began_ticks: u64,
    pub slots: Vec<MemorySlot>,
    /// Whether the host copies stacks of its threads, and has them unwound.
    pub takes_stacks: bool,
}

/// Is the child that reads a guest's memory, if this process was started for that: a program's first call.
#[must_use]
pub fn serve_if_child() -> Option<ExitCode> {
    sandbox::serve_dialogue::<MemoryReader>()
}

/// The child, while it is wanted.
#[derive(Debug)]
pub(crate) struct MemoryChild {
    child: Partner,
    /// Keeps the thread that the child lives as long as.
    _partners: Partners,
    guest: GuestMemory,
}

impl MemoryChild {
    /// Lets all others go first from now on.
    pub(crate) fn lower_priority(&self) {
        const LOWEST: i32 = 19;
        let child = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // It may be gone.
        let _ = rustix::process::setpriority_process(child, LOWEST);
    }
}

impl Drop for MemoryChild {
    fn drop(&mut self) {
        let bytes = audit::bytes_read(&self.guest.proc, self.child.id());
        // It was possible when reading began.
        let _ = audit::end(&self.guest, bytes);
    }
}

/// Starts the child, and gives it the memory: itself, and the stream of bytes to it.
pub(crate) fn start(guest: &GuestMemory) -> Result<(MemoryChild, UnixStream), LinkError> {
    let folder = guest.proc.join(guest.process.0.to_string());
    let [memory, pagemap] = [open(&folder, "mem")?, open(&folder, "pagemap")?];
    // What is open now is this process' if the process is still there.
    if !host::vms::is_still(&guest.proc, guest.process.0, guest.began_ticks) {
        return Err(LinkError::Connect(Errno::SRCH));
    }
    audit::begin(guest).map_err(|error| {
        let path = guest.logs.join(AUDIT_LOG);
        LinkError::NotStarted(format!("failed to write the audit log {}: {error}", path.display()))
    })?;
    let started = start_child(guest, [&memory, &pagemap]);
    if started.is_err() {
        // It was possible just now.
        let _ = audit::end(guest, None);
    }
    started
}

fn start_child(
    guest: &GuestMemory,
    files: [&File; 2],
) -> Result<(MemoryChild, UnixStream), LinkError> {
    let not_started = |error: sandbox::Failure| LinkError::NotStarted(error.to_string());
    let allowed = Allowance { memory_bytes: MAX_CHILD_BYTES, cpu_seconds: MAX_CHILD_CPU_SECONDS };
    let partners = Partners::new::<MemoryReader>(allowed).map_err(not_started)?;
    let mut child = partners.start().map_err(not_started)?;
    let slots = postcard::to_stdvec(&guest.slots).unwrap_or_default();
    child.send(&slots, &files).map_err(not_started)?;
    let stream = child.socket().map_err(|error| LinkError::NotStarted(error.to_string()))?;
    Ok((MemoryChild { child, _partners: partners, guest: guest.clone() }, stream))
}

fn open(folder: &Path, name: &str) -> Result<File, LinkError> {
    let failed = |error| LinkError::Connect(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    File::open(folder.join(name)).map_err(failed)
}

/// The child's work.
struct MemoryReader;

impl Dialogue for MemoryReader {
    const NAME: &'static str = "vmscope-memory";
    // Names are waited for until the kernel is found.
    const NICENESS: i32 = 0;

    fn start(_: Allowance, _: impl Fn() -> u64 + Send + 'static) -> Self {
        Self
    }

    fn talk(self, parent: Channel) {
        let Some((slots, files)) = parent.receive_with_files() else { return };
        let (Ok(slots), Ok([memory, pagemap])) =
            (postcard::from_bytes(&slots), <[File; 2]>::try_from(files))
        else {
            return;
        };
        let mut server = MemoryServer::new(VmMemory::new(memory, pagemap, slots));
        // Of the calls that a child has left, a file's read and write fit; a socket's are others.
        let mut stream = File::from(parent.into_stream());
        let mut decoder = Decoder::any_session(MAX_REQUEST_BYTES);
        let mut chunk = vec![0; 1 << 16];
        while let Ok(length) = stream.read(&mut chunk)
            && 0 < length
        {
            decoder.push(&chunk[..length]);
            while let Ok(Some(frame)) = decoder.next() {
                let answer = crate::frame::answer(&frame, |request| server.respond(request));
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        }
    }
}
