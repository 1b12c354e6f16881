//! Files, counted while events go by.
//!
//! ```text
//!  call begins   CallFile        PageAdded*   sleep .. wake*        CallBytes   call ends
//!  |             |               |            |        |            |           |
//!  |             the file        of any file  a wait of the file    its bytes   its time
//! ```
//! A page fault names no file: a wait in one is of the file whose page was added to the page cache in it. A call that opens a
//! file names it at its end.

use std::collections::{BTreeMap, VecDeque};

use model::{BlockOp, HostNs, MachineId, RequestContent, Tid, TraceTables};
use rustc_hash::FxHashMap;

use super::Builder;
use super::cpus::Current;
use super::disks::UnderWay;
use crate::timeline::TaskId;
use crate::timeline::files::{Content, FileNumber, FileUse, Files, Traffic};

/// System calls that read from their file, on x86-64, and those that write: read, pread64, readv, sendfile, preadv,
/// copy_file_range, preadv2; write, pwrite64, writev, pwritev, pwritev2.
const READS: [u16; 7] = [0, 17, 19, 40, 295, 326, 327];
const WRITES: [u16; 5] = [1, 18, 20, 296, 328];
/// Those that write to another file what they read: sendfile, copy_file_range.
const COPIES: [u16; 2] = [40, 326];
/// The same of sockets: those and sendto, sendmsg; recvfrom, recvmsg.
const SENDS: [u16; 7] = [1, 18, 20, 296, 328, 44, 46];
const RECEIVES: [u16; 8] = [0, 17, 19, 295, 326, 327, 45, 47];

/// Writes that are remembered: a few disks' journals.
const MAX_WRITES: usize = 64;

/// Files, counted while events go by.
#[derive(Debug, Default)]
pub(super) struct FileCounts {
    /// The number of a file that has another row before this one.
    same: FxHashMap<u32, u32>,
    tasks: FxHashMap<TaskId, Tracked>,
    /// Whether the trace says which file a request is of.
    has_files: bool,
    /// What requests that are under way hold.
    contents: FxHashMap<u64, (Content, Option<TaskId>)>,
    ends: LastWrites,
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

/// Where the last writes of metadata and the like ended. The record that commits a journal is sent after a flush, by another
/// task; it continues what the journal's thread wrote.
#[derive(Debug, Default)]
struct LastWrites(VecDeque<LastWrite>);

#[derive(Debug)]
struct LastWrite {
    disk: u32,
    end: u64,
    maker: Option<TaskId>,
}

impl LastWrites {
    /// Who wrote what this one continues; else who made it.
    fn maker_of(&mut self, write: &UnderWay) -> Option<TaskId> {
        let is_before =
            |last: &LastWrite| (last.disk, last.end) == (write.disk, write.sectors.start);
        let before = self.0.iter().rposition(is_before).and_then(|at| self.0.remove(at));
        let maker = before.map_or(write.maker, |last| last.maker);
        if MAX_WRITES <= self.0.len() {
            self.0.pop_front();
        }
        self.0.push_back(LastWrite { disk: write.disk, end: write.sectors.end, maker });
        maker
    }
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
    of: Open,
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

    /// At its end, what a call that copies wrote to: a call of its own without length.
    fn call_to(&mut self, task: TaskId, open: Open, now: HostNs) {
        if let Some(read) = self.tasks.get_mut(&task).and_then(|tracked| tracked.call.take()) {
            self.count_call(task, &read, now);
        }
        self.call(task, open, WRITES[0], now);
    }

    fn is_in_call(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|tracked| tracked.call.is_some())
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
            Open::Socket { network } => count_socket_call(self.traffic(task, network), call),
        }
    }

    fn traffic(&mut self, task: TaskId, network: bool) -> &mut Traffic {
        let sums = self.files.sockets.entry(task).or_default();
        if network { &mut sums.network } else { &mut sums.local }
    }

    /// A page of the file was added to the page cache.
    fn page(&mut self, task: TaskId, file: u32, bytes: u32) {
        let file = self.number(file);
        let tracked = self.tasks.entry(task).or_default();
        tracked.page = file;
        let copies = |call: &Call| COPIES.contains(&call.number) && call.open != Open::File(file);
        let is_copied_to = tracked.call.as_ref().is_some_and(copies);
        let call = tracked.call.as_mut().filter(|call| call.open == Open::File(file));
        let is_made =
            is_copied_to || call.as_ref().is_some_and(|call| WRITES.contains(&call.number));
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
        let open = tracked.call.as_ref().map(|call| call.open);
        let waits_for = match open {
            _ if io => Some(Open::File(file)),
            Some(Open::File(_)) if tracked.lock.is_some() => None,
            open => open,
        };
        tracked.sleep = waits_for.map(|of| Sleep { of, begin: now, io });
    }

    pub(super) fn wake(&mut self, task: TaskId, now: HostNs) {
        let tracked = self.tasks.get_mut(&task);
        let Some(sleep) = tracked.and_then(|tracked| tracked.sleep.take()) else { return };
        let ns = now.since(sleep.begin);
        match sleep.of {
            Open::File(file) if sleep.io => self.use_of(task, file).disk.add(ns),
            Open::File(file) => self.use_of(task, file).other.add(ns),
            Open::Socket { network } => self.traffic(task, network).waits.add(ns),
        }
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
        self.files.lock_waits.entry(key).or_default().add(ns);
    }

    /// What a request holds that goes to the disk.
    fn request(&mut self, request: u64, content: RequestContent, file: u32, under_way: &UnderWay) {
        let mut maker = under_way.maker;
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
        if matches!(content, Content::Disk | Content::Metadata) && under_way.op == BlockOp::Write {
            maker = self.ends.maker_of(under_way);
        }
        self.contents.insert(request, (content, maker));
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
        match self.calls.under_way(id) {
            Some((number, _)) if COPIES.contains(&number) && self.files.is_in_call(id) => {
                self.files.call_to(id, open, self.now);
            }
            Some((number, begin)) => self.files.call(id, open, number, begin),
            None => {}
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
        let Some(under_way) = self.disks.under_way(request, &self.tasks) else { return };
        self.files.request(request, content, file, &under_way);
    }
}

impl FileCounts {
    /// A request was done.
    pub(super) fn complete(&mut self, request: u64, bytes: u32, under_way: &UnderWay) {
        let found = self.contents.remove(&request);
        let (content, maker) = found.unwrap_or((Content::None, under_way.maker));
        if !self.has_files {
            return;
        }
        let sums = self.files.requests.entry((maker, content)).or_default();
        sums.count += 1;
        match under_way.op {
            BlockOp::Read => sums.read_bytes += u64::from(bytes),
            BlockOp::Write => sums.write_bytes += u64::from(bytes),
            BlockOp::Flush | BlockOp::Discard | BlockOp::Other => {}
        }
    }
}

#[cfg(test)]
mod test {
    use model::{BlockRequest, FileKind, LockKind, PrevState, TraceEventKind, TraceFile};

    use super::super::testing::{
        Scene, done, enter, fault, leave, lock, lock_end, request, switch, wakeup,
    };
    use super::*;
    use crate::timeline::files::{Requests, SocketUse, Transfer, Waits};

    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const OPEN: u16 = 257;
    const IO: PrevState = PrevState::Uninterruptible { io: true };
    const DEEP: PrevState = PrevState::Uninterruptible { io: false };

    fn call(task: u32, file: u32) -> TraceEventKind {
        TraceEventKind::CallFile { task: Tid(task), file }
    }

    fn moved(task: u32, bytes: u32) -> TraceEventKind {
        TraceEventKind::CallBytes { task: Tid(task), bytes }
    }

    fn page(task: u32, file: u32) -> TraceEventKind {
        TraceEventKind::PageAdded { task: Tid(task), file, bytes: 4096 }
    }

    /// What is found in events of tasks 10 and 11. File 3 is file 1, stored again.
    fn files(events: &[(u64, u32, TraceEventKind)]) -> Files {
        let mut scene = Scene::new(events).task(10, "dd").task(11, "cp");
        let file = |number, inode| TraceFile {
            machine: MachineId::HOST,
            number,
            device: 8 << 20,
            inode,
            generation: 5,
            kind: FileKind::Regular,
            links: 1,
            path: None,
        };
        scene.tables.files = vec![file(1, 100), file(2, 200), file(3, 100)];
        scene.build().files
    }

    fn check(events: &[(u64, u32, TraceEventKind)], expected: &[(FileNumber, FileUse)]) {
        let uses = files(events).uses;
        // The third task of the tables.
        let of_first: Vec<_> =
            uses.iter().filter(|((task, _), _)| task.0 == 2).map(|((_, f), u)| (*f, *u)).collect();
        assert_eq!(of_first, expected, "{events:?}");
    }

    fn waits(ns: u64) -> Waits {
        Waits { count: 1, ns, longest_ns: ns }
    }

    #[test]
    fn calls_and_their_bytes() {
        let transfer = |bytes| Transfer { calls: 1, bytes };
        let used = FileUse { calls: 1, call_ns: 20, ..FileUse::default() };
        let read = FileUse { reads: transfer(100), cached: transfer(100), ..used };
        let of = |number, file, more: &[TraceEventKind]| {
            let begin = [(10, 0, enter(10, number)), (10, 0, call(10, file))];
            let more = more.iter().map(|kind| (20, 0, *kind));
            let end = [(30, 0, leave(10, number))];
            begin.into_iter().chain(more).chain(end).collect::<Vec<_>>()
        };
        check(&of(READ, 1, &[moved(10, 100)]), &[(Some(1), read)]);
        check(&of(READ, 3, &[moved(10, 100)]), &[(Some(1), read)]);
        check(&of(READ, 0, &[moved(10, 100)]), &[(None, read)]);
        let missed = FileUse { pages_read_bytes: 4096, cached: Transfer::default(), ..read };
        check(&of(READ, 1, &[page(10, 1), moved(10, 100)]), &[(Some(1), missed)]);
        let write = FileUse { writes: transfer(100), pages_made_bytes: 4096, ..used };
        check(&of(WRITE, 1, &[page(10, 3), moved(10, 100)]), &[(Some(1), write)]);
        // A file that a call opens is known at its end. A call that is not over lasts to the trace's end.
        check(
            &[(10, 0, enter(10, OPEN)), (30, 0, call(10, 1)), (30, 0, leave(10, OPEN))],
            &[(Some(1), used)],
        );
        let open = FileUse { call_ns: 90, ..used };
        check(&[(10, 0, enter(10, OPEN)), (30, 0, call(10, 1))], &[(Some(1), open)]);
        // Bytes of a pipe.
        check(&[(10, 0, enter(10, READ)), (20, 0, moved(10, 9)), (30, 0, leave(10, READ))], &[]);
    }

    #[test]
    fn copies_read_from_one_file_and_write_to_another() {
        let events = [
            (10, 0, enter(10, 326)),
            (10, 0, call(10, 1)),
            (15, 0, page(10, 1)),
            (20, 0, page(10, 2)),
            (30, 0, moved(10, 100)),
            (30, 0, call(10, 2)),
            (30, 0, moved(10, 100)),
            (30, 0, leave(10, 326)),
        ];
        let transfer = Transfer { calls: 1, bytes: 100 };
        let used = FileUse { calls: 1, ..FileUse::default() };
        let from = FileUse { call_ns: 20, reads: transfer, pages_read_bytes: 4096, ..used };
        let to = FileUse { writes: transfer, pages_made_bytes: 4096, ..used };
        check(&events, &[(Some(1), from), (Some(2), to)]);
    }

    #[test]
    fn waits_are_of_the_call_or_of_the_page_that_a_fault_added() {
        let sleep = |state| {
            [
                (15, 0, switch(10, state, 0)),
                (40, 0, wakeup(10)),
                (45, 0, switch(0, PrevState::Runnable, 10)),
            ]
        };
        let of_call = |state| {
            let mut events = vec![(10, 0, enter(10, 74)), (10, 0, call(10, 2))];
            events.extend(sleep(state));
            events.push((50, 0, leave(10, 74)));
            events
        };
        let used = FileUse { calls: 1, call_ns: 40, ..FileUse::default() };
        check(&of_call(IO), &[(Some(2), FileUse { disk: waits(25), ..used })]);
        check(&of_call(DEEP), &[(Some(2), FileUse { other: waits(25), ..used })]);
        let mut in_fault =
            vec![(9, 0, enter(10, 39)), (10, 0, leave(10, 39)), (12, 0, fault(true))];
        in_fault.push((13, 0, page(10, 2)));
        in_fault.extend(sleep(IO));
        let faulted = FileUse { disk: waits(25), pages_read_bytes: 4096, ..FileUse::default() };
        check(&in_fault, &[(Some(2), faulted)]);
        // Of the next fault nothing is known.
        in_fault.insert(4, (14, 0, fault(true)));
        let pages = FileUse { pages_read_bytes: 4096, ..FileUse::default() };
        let unknown = FileUse { disk: waits(25), ..FileUse::default() };
        check(&in_fault, &[(None, unknown), (Some(2), pages)]);
    }

    #[test]
    fn locks_have_their_holders() {
        let events = [
            (5, 1, enter(11, WRITE)),
            (10, 0, enter(10, WRITE)),
            (10, 0, call(10, 1)),
            (12, 0, lock(10, 7, LockKind::SemWrite, Some(11))),
            (12, 0, TraceEventKind::LockFile { task: Tid(10), file: 1 }),
            (15, 0, switch(10, DEEP, 0)),
            (40, 0, wakeup(10)),
            (45, 0, switch(0, PrevState::Runnable, 10)),
            (46, 0, lock_end(10, 7)),
            (50, 0, leave(10, WRITE)),
        ];
        let writes = Transfer { calls: 1, bytes: 0 };
        let lock = waits(34);
        let used = FileUse { calls: 1, call_ns: 40, writes, lock, ..FileUse::default() };
        check(&events, &[(Some(1), used)]);
        let key = (TaskId(2), Some(1), Some(TaskId(3)));
        assert_eq!(files(&events).lock_waits, BTreeMap::from([(key, waits(34))]));
    }

    fn holds(name: u64, content: RequestContent, file: u32) -> TraceEventKind {
        TraceEventKind::BlockFile { request: name, content, file }
    }

    #[test]
    fn requests_have_their_contents() {
        let issue = |name, task, sector| {
            let request = BlockRequest { op: BlockOp::Write, sector, ..request(name, task) };
            TraceEventKind::BlockIssue(request)
        };
        let events = [
            (10, 0, issue(1, 10, 0)),
            (10, 0, holds(1, RequestContent::File, 3)),
            // The journal, and its last record, which the idle task sends.
            (11, 0, issue(2, 11, 800)),
            (11, 0, holds(2, RequestContent::Disk, 0)),
            (12, 0, done(2)),
            (13, 0, issue(3, 0, 808)),
            (13, 0, holds(3, RequestContent::Metadata, 0)),
            // Past the page cache, in a call.
            (20, 0, enter(10, WRITE)),
            (20, 0, call(10, 2)),
            (21, 0, issue(4, 10, 400)),
            (21, 0, holds(4, RequestContent::Memory, 0)),
            (30, 0, done(1)),
            (31, 0, done(3)),
            (32, 0, done(4)),
            (33, 0, issue(5, 1, 600)),
            (34, 0, done(5)),
        ];
        let one = Requests { count: 1, read_bytes: 0, write_bytes: 4096 };
        let expected = [
            ((Some(TaskId(0)), Content::None), one),
            ((Some(TaskId(2)), Content::File(Some(1))), one),
            ((Some(TaskId(2)), Content::File(Some(2))), one),
            ((Some(TaskId(3)), Content::Metadata), one),
            ((Some(TaskId(3)), Content::Disk), one),
        ];
        assert_eq!(files(&events).requests, BTreeMap::from(expected));
    }

    #[test]
    fn sockets() {
        let socket = TraceEventKind::CallSocket { task: Tid(10), network: true };
        let events = [
            (10, 0, enter(10, 45)),
            (10, 0, socket),
            (15, 0, switch(10, PrevState::Sleep, 0)),
            (40, 0, wakeup(10)),
            (45, 0, switch(0, PrevState::Runnable, 10)),
            (48, 0, moved(10, 700)),
            (50, 0, leave(10, 45)),
        ];
        let received = Transfer { calls: 1, bytes: 700 };
        let network = Traffic { received, waits: waits(25), ..Traffic::default() };
        let used = SocketUse { network, ..SocketUse::default() };
        assert_eq!(files(&events).sockets, BTreeMap::from([(TaskId(2), used)]));
    }
}
