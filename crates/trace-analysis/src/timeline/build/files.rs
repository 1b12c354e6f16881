//! Files, counted while events go by.
//!
//! ```text
//!  call begins   CallFile        PageAdded*   sleep .. wake*        CallBytes   call ends
//!  |             |               |            |        |            |           |
//!  |             the file        of any file  a wait of the file    its bytes   its time
//! ```
//! A page fault names no file: a wait in one is of the file whose page was added to the page cache in it. A call that opens a
//! file names it at its end.

use std::collections::BTreeMap;

use model::{BlockOp, HostNs, MachineId, RequestContent, Tid, TraceTables};
use rustc_hash::FxHashMap;

use super::Builder;
use super::cpus::Current;
use crate::timeline::TaskId;
use crate::timeline::files::{Content, FileNumber, FileUse, Files, Traffic, Waits};

/// System calls that read from their file, on x86-64, and those that write: read, pread64, readv, sendfile, preadv,
/// copy_file_range, preadv2; write, pwrite64, writev, pwritev, pwritev2.
const READS: [u16; 7] = [0, 17, 19, 40, 295, 326, 327];
const WRITES: [u16; 5] = [1, 18, 20, 296, 328];
/// The same of sockets: those and sendto, sendmsg; recvfrom, recvmsg.
const SENDS: [u16; 7] = [1, 18, 20, 296, 328, 44, 46];
const RECEIVES: [u16; 8] = [0, 17, 19, 295, 326, 327, 45, 47];

/// Files, counted while events go by.
#[derive(Debug, Default)]
pub(super) struct FileCounts {
    /// The number of a file that has another row before this one.
    same: FxHashMap<u32, u32>,
    tasks: FxHashMap<TaskId, Tracked>,
    /// Whether the trace says which file a request is of.
    has_files: bool,
    /// What requests that are under way hold.
    contents: FxHashMap<u64, Content>,
    files: Files,
}

/// A task and its files.
#[derive(Debug, Default)]
struct Tracked {
    call: Option<Call>,
    /// Whose page was added last, in this call or fault.
    page: FileNumber,
    sleep: Option<Sleep>,
    lock: Option<Lock>,
}

/// What a system call is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    File(FileNumber),
    Socket { network: bool },
}

/// A system call of an open file or a socket.
#[derive(Debug)]
struct Call {
    open: Open,
    number: u16,
    begin: HostNs,
    bytes: u64,
    /// Nothing had to be read for it so far.
    is_cached: bool,
}

#[derive(Debug)]
struct Sleep {
    file: FileNumber,
    begin: HostNs,
    io: bool,
}

#[derive(Debug)]
struct Lock {
    file: FileNumber,
    holder: Option<TaskId>,
    begin: HostNs,
}

impl FileCounts {
    pub(super) fn new(tables: &TraceTables, machine: MachineId) -> Self {
        let mut first = BTreeMap::new();
        let mut same = FxHashMap::default();
        for file in tables.files.iter().filter(|file| file.machine == machine) {
            let number =
                *first.entry((file.device, file.inode, file.generation)).or_insert(file.number);
            if number != file.number {
                same.insert(file.number, number);
            }
        }
        Self { same, has_files: !first.is_empty(), ..Self::default() }
    }

    fn number(&self, number: u32) -> FileNumber {
        (number != 0).then(|| self.same.get(&number).copied().unwrap_or(number))
    }

    fn use_of(&mut self, task: TaskId, file: FileNumber) -> &mut FileUse {
        self.files.uses.entry((task, file)).or_default()
    }

    /// A task crosses into a system call or a page fault.
    pub(super) fn cross(&mut self, task: TaskId) {
        if let Some(tracked) = self.tasks.get_mut(&task) {
            tracked.page = None;
        }
    }

    /// The call that a task is in is of this file.
    fn call(&mut self, task: TaskId, open: Open, number: u16, begin: HostNs) {
        let call = Call { open, number, begin, bytes: 0, is_cached: true };
        self.tasks.entry(task).or_default().call = Some(call);
    }

    fn bytes(&mut self, task: TaskId, bytes: u32) {
        if let Some(call) = self.tasks.get_mut(&task).and_then(|tracked| tracked.call.as_mut()) {
            call.bytes += u64::from(bytes);
        }
    }

    /// The call ends, or the task does.
    pub(super) fn end_call(&mut self, task: TaskId, now: HostNs) {
        let Some(tracked) = self.tasks.get_mut(&task) else { return };
        tracked.page = None;
        let call = tracked.call.take();
        self.wake(task, now);
        self.unlock(task, now);
        if let Some(call) = call {
            self.count_call(task, &call, now);
        }
    }

    fn count_call(&mut self, task: TaskId, call: &Call, now: HostNs) {
        match call.open {
            Open::File(file) => count_file_call(self.use_of(task, file), call, now),
            Open::Socket { network } => {
                let sums = self.files.sockets.entry(task).or_default();
                count_socket_call(if network { &mut sums.network } else { &mut sums.local }, call);
            }
        }
    }

    /// A page of the file was added to the page cache.
    fn page(&mut self, task: TaskId, file: u32, bytes: u32) {
        let file = self.number(file);
        let tracked = self.tasks.entry(task).or_default();
        tracked.page = file;
        let call = tracked.call.as_mut().filter(|call| call.open == Open::File(file));
        let is_made = call.as_ref().is_some_and(|call| WRITES.contains(&call.number));
        if let Some(call) = call {
            call.is_cached = false;
        }
        let row = self.use_of(task, file);
        let sum = if is_made { &mut row.pages_made_bytes } else { &mut row.pages_read_bytes };
        *sum += u64::from(bytes);
    }

    /// A task falls asleep. In neither a call nor a fault of a file it is not counted, but for a wait for a disk.
    pub(super) fn sleep(&mut self, task: TaskId, io: bool, now: HostNs) {
        let tracked = match self.tasks.get_mut(&task) {
            Some(tracked) => tracked,
            None if io && self.has_files => self.tasks.entry(task).or_default(),
            None => return,
        };
        let file = match &mut tracked.call {
            Some(Call { open: Open::File(file), is_cached, .. }) => {
                *is_cached &= !io;
                *file
            }
            _ => tracked.page,
        };
        let is_of_file = matches!(&tracked.call, Some(Call { open: Open::File(_), .. }));
        let counts = io || (is_of_file && tracked.lock.is_none());
        tracked.sleep = counts.then_some(Sleep { file, begin: now, io });
    }

    pub(super) fn wake(&mut self, task: TaskId, now: HostNs) {
        let tracked = self.tasks.get_mut(&task);
        let Some(sleep) = tracked.and_then(|tracked| tracked.sleep.take()) else { return };
        let row = self.use_of(task, sleep.file);
        let waits = if sleep.io { &mut row.disk } else { &mut row.other };
        waits.add(now.since(sleep.begin));
    }

    /// The lock that the task waits for is this file's.
    fn lock(&mut self, task: TaskId, file: u32, holder: Option<TaskId>, now: HostNs) {
        self.unlock(task, now);
        let file = self.number(file);
        self.tasks.entry(task).or_default().lock = Some(Lock { file, holder, begin: now });
    }

    pub(super) fn unlock(&mut self, task: TaskId, now: HostNs) {
        let tracked = self.tasks.get_mut(&task);
        let Some(lock) = tracked.and_then(|tracked| tracked.lock.take()) else { return };
        let ns = now.since(lock.begin);
        self.use_of(task, lock.file).lock.add(ns);
        let key = (task, lock.file, lock.holder);
        self.files.lock_waits.entry(key).or_insert_with(Waits::default).add(ns);
    }

    /// What a request holds that goes to the disk.
    fn request(&mut self, request: u64, content: RequestContent, file: u32, maker: Option<TaskId>) {
        let of_call = |maker: TaskId| match self.tasks.get(&maker)?.call.as_ref()?.open {
            Open::File(file) => file,
            Open::Socket { .. } => None,
        };
        let content = match content {
            RequestContent::File => Content::File(self.number(file)),
            RequestContent::Disk => Content::Disk,
            RequestContent::Metadata => Content::Metadata,
            RequestContent::Memory => Content::File(maker.and_then(of_call)),
        };
        self.contents.insert(request, content);
    }

    /// Counts from here on.
    pub(super) fn restart(&mut self, now: HostNs) {
        self.files = Files::default();
        for tracked in self.tasks.values_mut() {
            tracked.call.iter_mut().for_each(|call| (call.begin, call.bytes) = (now, 0));
            tracked.sleep.iter_mut().for_each(|sleep| sleep.begin = now);
            tracked.lock.iter_mut().for_each(|lock| lock.begin = now);
        }
    }

    /// What is still under way lasts to the end.
    pub(super) fn finish(mut self, end: HostNs) -> Files {
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.end_call(task, end));
        self.files
    }
}

fn count_file_call(sums: &mut FileUse, call: &Call, now: HostNs) {
    sums.calls += 1;
    sums.call_ns += now.since(call.begin);
    if READS.contains(&call.number) {
        sums.reads.add(call.bytes);
        if call.is_cached {
            sums.cached.add(call.bytes);
        }
    } else if WRITES.contains(&call.number) {
        sums.writes.add(call.bytes);
    }
}

fn count_socket_call(sums: &mut Traffic, call: &Call) {
    if SENDS.contains(&call.number) {
        sums.sent.add(call.bytes);
    } else if RECEIVES.contains(&call.number) {
        sums.received.add(call.bytes);
    }
}

/// Files in the events.
impl Builder<'_> {
    fn call_of(&mut self, task: Tid, open: Open) {
        let Some(id) = self.tasks.find(task) else { return };
        if let Some((number, begin)) = self.calls.under_way(id) {
            self.files.call(id, open, number, begin);
        }
    }

    pub(super) fn call_file(&mut self, task: Tid, file: u32) {
        self.call_of(task, Open::File(self.files.number(file)));
    }

    pub(super) fn call_socket(&mut self, task: Tid, network: bool) {
        self.call_of(task, Open::Socket { network });
    }

    pub(super) fn call_bytes(&mut self, task: Tid, bytes: u32) {
        if let Some(id) = self.tasks.find(task) {
            self.files.bytes(id, bytes);
        }
    }

    pub(super) fn end_call_of_file(&mut self, task: Tid) {
        if let Some(id) = self.tasks.find(task) {
            self.files.end_call(id, self.now);
        }
    }

    /// The task of this CPU handles a page fault from now on.
    pub(super) fn begin_fault_of_file(&mut self, row: usize) {
        if let Current::Task(id) = self.cpus[row].current {
            self.files.cross(id);
        }
    }

    pub(super) fn page_added(&mut self, task: Tid, file: u32, bytes: u32) {
        if let Some(id) = self.task_of(task) {
            self.files.page(id, file, bytes);
        }
    }

    pub(super) fn lock_file(&mut self, task: Tid, file: u32) {
        let Some(id) = self.task_of(task) else { return };
        let holder = self.tasks[id].context.lock.and_then(|lock| lock.owner).map(|(id, _)| id);
        self.files.lock(id, file, holder, self.now);
    }

    pub(super) fn block_file(&mut self, request: u64, content: RequestContent, file: u32) {
        let maker = self.disks.under_way(request).and_then(|(maker, _)| maker);
        self.files.request(request, content, file, maker);
    }
}

impl FileCounts {
    /// A request was done.
    pub(super) fn complete(
        &mut self,
        request: u64,
        bytes: u32,
        maker: Option<TaskId>,
        op: BlockOp,
    ) {
        let content = self.contents.remove(&request).unwrap_or(Content::None);
        if !self.has_files {
            return;
        }
        let sums = self.files.requests.entry((maker, content)).or_default();
        sums.count += 1;
        match op {
            BlockOp::Read => sums.read_bytes += u64::from(bytes),
            BlockOp::Write => sums.write_bytes += u64::from(bytes),
            BlockOp::Flush | BlockOp::Discard | BlockOp::Other => {}
        }
    }
}
