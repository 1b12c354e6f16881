//! What tasks did with files, and what disks did for files.

use std::collections::BTreeMap;

use super::TaskId;

/// A file by the number of its row in `TraceTables::files`; of several rows of a file the first. `None`: the tracer had no
/// room for it, or nothing says which file it was.
pub type FileNumber = Option<u32>;

/// What tasks did with files, and what disks did for files. Empty where the trace was recorded without them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files {
    /// By task and file.
    pub uses: BTreeMap<(TaskId, FileNumber), FileUse>,
    /// Waits for a file's inode lock, by who waited and who held it when the wait began, if that is known.
    pub lock_waits: BTreeMap<(TaskId, FileNumber, Option<TaskId>), Waits>,
    /// Requests that were done, by who made them; those of loop devices and those to the disks below.
    pub requests: BTreeMap<(Option<TaskId>, Content), Requests>,
    /// System calls of sockets, by task.
    pub sockets: BTreeMap<TaskId, SocketUse>,
}

/// What a task's system calls sent and received by sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketUse {
    /// IP: other machines, or this one through its network stack.
    pub network: Traffic,
    pub local: Traffic,
}

/// Sent and received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub sent: Transfer,
    pub received: Transfer,
    /// Sleeps in system calls of the sockets. Who waits in poll or epoll is not among them.
    pub waits: Waits,
}

/// What a task did with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileUse {
    /// System calls of the open file, and their time from begin to end.
    pub calls: u64,
    pub call_ns: u64,
    /// Those that read, with what they returned.
    pub reads: Transfer,
    /// Those that write.
    pub writes: Transfer,
    /// Reads for which no page had to be read and no disk was waited for.
    pub cached: Transfer,
    /// Bytes of pages that were added to the page cache: read from a disk, ahead too; and made by writes.
    pub pages_read_bytes: u64,
    pub pages_made_bytes: u64,
    /// Waits for a disk, in system calls of the file and in page faults.
    pub disk: Waits,
    /// Waits for its inode lock.
    pub lock: Waits,
    /// Other sleeps in system calls of the file, such as those for the journal.
    pub other: Waits,
}

/// System calls that move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfer {
    pub calls: u64,
    pub bytes: u64,
}

/// Waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    pub count: u64,
    pub ns: u64,
    pub longest_ns: u64,
}

/// What a request to a disk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Pages of a file, or what a task reads or writes past the page cache.
    File(FileNumber),
    /// What the file system marks as metadata.
    Metadata,
    /// Blocks of the disk itself: metadata, or the journal if its thread made the request.
    Disk,
    /// Nothing: flushes, discards, commands.
    None,
}

/// Requests to disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    pub count: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl Files {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.requests.is_empty() && self.sockets.is_empty()
    }
}

impl Transfer {
    /// Adds a call.
    pub(super) fn add(&mut self, bytes: u64) {
        self.calls += 1;
        self.bytes += bytes;
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
    }
}

impl SocketUse {
    /// Adds what another task did.
    pub fn merge(&mut self, other: &Self) {
        self.network.merge(&other.network);
        self.local.merge(&other.local);
    }
}

impl Traffic {
    fn merge(&mut self, other: &Self) {
        self.sent.merge(&other.sent);
        self.received.merge(&other.received);
        self.waits.merge(&other.waits);
    }
}

impl Waits {
    /// Adds a wait.
    pub(super) fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns += ns;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds other waits.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.ns += other.ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

impl Requests {
    /// Adds other requests.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
    }
}

impl FileUse {
    /// Adds what another task did, or with another file.
    pub fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.call_ns += other.call_ns;
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.cached.merge(&other.cached);
        self.pages_read_bytes += other.pages_read_bytes;
        self.pages_made_bytes += other.pages_made_bytes;
        self.disk.merge(&other.disk);
        self.lock.merge(&other.lock);
        self.other.merge(&other.other);
    }
}
