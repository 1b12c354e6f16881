//! Traces for the tests.

use std::collections::BTreeMap;
use std::path::Path;

use model::*;
use recording::trace::{Trace, TraceHeader, TraceSummary, TraceWriter};

use super::{Wild, on_one_line};

impl Wild {
    pub(crate) fn trace_header(&mut self) -> TraceHeader {
        let (one, other) = (self.time(), self.time());
        TraceHeader {
            vmscope_version: self.text(),
            hostname: self.text(),
            begin: HostNs(one.min(other)),
            end: HostNs(one.max(other)),
            begin_unix_ns: self.time(),
            complete: true,
            filters: (0..self.below(5)).map(|_| self.trace_filter()).collect(),
            counters: (0..self.below(4)).map(|_| (self.text(), self.count())).collect(),
            notes: self.rows(|wild, _| Note { subject: wild.text(), text: wild.text() }),
        }
    }

    fn trace_filter(&mut self) -> TraceFilter {
        match self.below(5) {
            0 => TraceFilter::Vm(self.text()),
            1 => TraceFilter::Command,
            2 => TraceFilter::Tree(Pid(self.u32())),
            3 => TraceFilter::Cgroup(self.text()),
            _ => TraceFilter::Other(self.text()),
        }
    }

    pub(crate) fn trace_tables(&mut self) -> TraceTables {
        let machines = self.rows(|wild, _| wild.machine());
        let n = machines.len();
        let mut stacks = self.rows(|wild, number| {
            let functions = (0..wild.below(5)).map(|_| wild.text()).collect();
            (MachineId(wild.below(n)), TraceStack(number as u32 * 3), functions)
        });
        stacks.sort();
        TraceTables {
            tasks: self.rows(|wild, _| TraceTask {
                machine: MachineId(wild.below(n)),
                tid: Tid(wild.u32()),
                pid: Pid(wild.u32()),
                parent: Pid(wild.u32()),
                name: wild.text(),
                kernel: wild.below(2) == 0,
                asleep_in: wild.maybe(Self::text),
                in_call: wild.maybe(|wild| wild.u32() as u16),
            }),
            disks: self.rows(|wild, _| (MachineId(wild.below(n)), wild.u32(), wild.text())),
            files: self.rows(|wild, number| TraceFile {
                machine: MachineId(wild.below(n)),
                number: number as u32 + 1,
                device: wild.u32(),
                inode: wild.u32().into(),
                generation: wild.u32(),
                kind: FileKind::ALL[wild.below(4) as usize],
                links: wild.u32(),
                path: wild.maybe(Self::text),
            }),
            command: self.maybe(|wild| TracedCommand {
                machine: MachineId(wild.below(n)),
                task: Tid(wild.u32()),
                words: (0..wild.below(4)).map(|_| wild.text()).collect(),
                before: false,
                exit_code: wild.maybe(|wild| wild.u32().cast_signed()),
            }),
            machines,
            stacks,
        }
    }

    fn machine(&mut self) -> Machine {
        Machine {
            name: self.text(),
            kernel: self.text(),
            cpus: (0..self.below(5)).map(|cpu| cpu * 2).collect(),
            begin: HostNs(self.time()),
            end: HostNs(self.time()),
            lost: (0..self.below(3))
                .map(|_| LostEvents { cpu: self.u32(), kind: Some(self.tag()), count: self.u64() })
                .collect(),
            missing: (0..self.below(3)).map(|_| (self.text(), self.text())).collect(),
            fault_estimate_ns: self.maybe(Self::u64),
            vm_process: self.maybe(|wild| Pid(wild.u32())),
            vcpu_threads: (0..self.below(3)).map(|_| Tid(self.u32())).collect(),
            clock_error_ns: self.maybe(Self::u64),
            path: self.text(),
            ended_early: self.maybe(Self::text),
        }
    }

    /// In time order, of one CPU.
    pub(crate) fn events(
        &mut self,
        place: (u32, u32),
        count: usize,
        tables: &TraceTables,
    ) -> Vec<TraceEvent> {
        let mut events = self.unordered_events(place, count, tables);
        events.sort_by_key(|event| event.time);
        events
    }

    /// At any times. Stacks are those that the tables have.
    pub(crate) fn unordered_events(
        &mut self,
        (machine, cpu): (u32, u32),
        count: usize,
        tables: &TraceTables,
    ) -> Vec<TraceEvent> {
        let machine = MachineId(machine);
        let stacks: Vec<_> =
            tables.stacks.iter().filter(|row| row.0 == machine).map(|row| row.1).collect();
        let event =
            |_| TraceEvent { time: HostNs(self.time()), machine, cpu, kind: self.what(&stacks) };
        (0..count).map(event).collect()
    }

    fn tag(&mut self) -> TraceEventTag {
        TraceEventTag::ALL[self.below(TraceEventTag::ALL.len()) as usize]
    }

    fn what(&mut self, stacks: &[TraceStack]) -> TraceEventKind {
        let stack = |wild: &mut Self| {
            wild.maybe(|wild| wild.below(stacks.len().max(1)))
                .and_then(|n| stacks.get(n as usize).copied())
        };
        let tid = |wild: &mut Self| Tid(wild.u32());
        match self.below(20) {
            0 => TraceEventKind::Switch {
                prev: tid(self),
                prev_state: self.prev_state(),
                stack: stack(self),
                user_stack: stack(self),
                next: tid(self),
            },
            1 => TraceEventKind::Waking { task: tid(self), by: tid(self) },
            2 => TraceEventKind::Wakeup { task: tid(self), target_cpu: self.u32() },
            3 => TraceEventKind::Fork {
                parent: tid(self),
                child: tid(self),
                pid: Pid(self.u32()),
                kernel: self.below(2) == 0,
            },
            4 => TraceEventKind::Exec { task: tid(self), name: self.task_name() },
            5 => TraceEventKind::Rename { task: tid(self), name: self.task_name() },
            6 => TraceEventKind::Exit { task: tid(self) },
            7 => TraceEventKind::SyscallEnter { task: tid(self), number: self.u32() as u16 },
            8 => TraceEventKind::SyscallExit {
                task: tid(self),
                number: self.u32() as u16,
                failed: self.below(2) == 0,
            },
            9 => TraceEventKind::InterruptEnter(self.interrupt()),
            10 => TraceEventKind::InterruptExit(self.interrupt()),
            11 => TraceEventKind::FaultEnter { address: self.u64(), user: self.below(2) == 0 },
            12 => TraceEventKind::FaultExit { major: self.below(2) == 0 },
            13 => TraceEventKind::BlockInsert(self.block_request()),
            14 => TraceEventKind::BlockIssue(self.block_request()),
            15 => TraceEventKind::BlockRequeue { request: self.u64() },
            16 => TraceEventKind::BlockComplete { request: self.u64(), bytes: self.u32() },
            17 => TraceEventKind::BlockMerge { request: self.u64() },
            18 => TraceEventKind::LockBegin {
                task: tid(self),
                lock: self.u64(),
                kind: self.lock_kind(),
                owner: self.maybe(tid),
                stack: stack(self),
            },
            _ => TraceEventKind::LockEnd { task: tid(self), lock: self.u64() },
        }
    }

    fn prev_state(&mut self) -> PrevState {
        let io = self.below(2) == 0;
        [
            PrevState::Runnable,
            PrevState::Sleep,
            PrevState::Uninterruptible { io },
            PrevState::Stopped,
            PrevState::Dead,
        ][self.below(5) as usize]
    }

    fn interrupt(&mut self) -> Interrupt {
        use Vector::{CallFunction, CallFunctionSingle, IrqWork, LocalTimer, Other, Reschedule};
        let vectors = [LocalTimer, Reschedule, CallFunction, CallFunctionSingle, IrqWork, Other];
        match self.below(3) {
            0 => Interrupt::Device(self.u32()),
            1 => Interrupt::Soft(self.u32()),
            _ => Interrupt::Vector(vectors[self.below(6) as usize]),
        }
    }

    fn block_request(&mut self) -> BlockRequest {
        use BlockOp::{Discard, Flush, Other, Read, Write};
        BlockRequest {
            request: self.u64(),
            disk: self.u32(),
            sector: self.u64(),
            bytes: self.u32(),
            op: [Read, Write, Flush, Discard, Other][self.below(5) as usize],
            task: Tid(self.u32()),
        }
    }

    fn lock_kind(&mut self) -> LockKind {
        use LockKind::{Mutex, Other, SemRead, SemWrite, Spin};
        [Spin, Mutex, SemRead, SemWrite, Other][self.below(5) as usize]
    }

    fn task_name(&mut self) -> TaskName {
        let names = ["", "a", "kworker/0:1H-kb", "日本語", "[x] \"\\\n"];
        TaskName::new(names[self.below(names.len()) as usize].as_bytes())
    }
}

/// A trace of these CPUs' events, finished.
pub(crate) fn write(
    path: &Path,
    header: &TraceHeader,
    tables: &TraceTables,
    cpus: &[Vec<TraceEvent>],
) -> TraceSummary {
    spool(path, header, tables, cpus).finish(header, tables).unwrap()
}

/// One that waits to be finished.
pub(crate) fn spool(
    path: &Path,
    header: &TraceHeader,
    tables: &TraceTables,
    cpus: &[Vec<TraceEvent>],
) -> TraceWriter {
    let writer = TraceWriter::create(path, header, tables).unwrap();
    for events in cpus {
        let Some(first) = events.first() else { continue };
        let mut spool = writer.spool(first.machine, first.cpu).unwrap();
        events.chunks(7).for_each(|drained| spool.append(drained).unwrap());
    }
    writer
}

/// As a trace gives them: by time, then by machine and CPU.
pub(crate) fn merged(cpus: &[Vec<TraceEvent>]) -> Vec<TraceEvent> {
    let mut all = cpus.concat();
    all.sort_by_key(|event| (event.time, event.machine, event.cpu));
    all
}

/// The error of opening and reading all of it, on one line as the program prints it.
pub(crate) fn failure(path: &Path) -> Option<String> {
    let read = |trace: Trace| trace.for_each_batch(&mut |_| ());
    Trace::open(path).and_then(read).err().map(on_one_line)
}

pub(crate) fn small_header() -> TraceHeader {
    TraceHeader {
        vmscope_version: "0.1.0".into(),
        hostname: "host1".into(),
        begin: HostNs(5_000_000_000),
        end: HostNs(5_003_000_000),
        begin_unix_ns: 1_760_000_000_000_000_000,
        complete: true,
        filters: vec![TraceFilter::Cgroup("build.slice".into())],
        counters: BTreeMap::from([("stacks_not_stored".into(), 3)]),
        notes: vec![Note { subject: "vm1".into(), text: "its stacks have no names".into() }],
    }
}

pub(crate) fn small_tables() -> TraceTables {
    let host = Machine {
        name: "host".into(),
        kernel: "6.12.0-1-amd64".into(),
        cpus: vec![0, 1],
        begin: HostNs(5_000_000_000),
        end: HostNs(5_003_000_000),
        lost: vec![LostEvents { cpu: 1, kind: Some(TraceEventTag::SyscallEnter), count: 17 }],
        missing: vec![("exceptions/page_fault_end".into(), "fexit can't attach".into())],
        fault_estimate_ns: Some(850),
        path: "here".into(),
        ..Machine::default()
    };
    let guest = Machine {
        name: "vm1".into(),
        cpus: vec![0],
        begin: HostNs(5_000_400_000),
        end: HostNs(5_002_000_000),
        lost: vec![],
        missing: vec![],
        fault_estimate_ns: None,
        vm_process: Some(Pid(2000)),
        vcpu_threads: vec![Tid(2003)],
        clock_error_ns: Some(240),
        path: "guest memory".into(),
        ended_early: Some("its VM was stopped".into()),
        ..host.clone()
    };
    let task = |tid, pid, name: &str, kernel| TraceTask {
        machine: MachineId::HOST,
        tid: Tid(tid),
        pid: Pid(pid),
        parent: Pid(1),
        name: name.into(),
        kernel,
        asleep_in: None,
        in_call: None,
    };
    let file = |number, kind, path: Option<&str>| TraceFile {
        machine: MachineId::HOST,
        number,
        device: 254 << 20,
        inode: 12 + u64::from(number),
        generation: 7,
        kind,
        links: 1,
        path: path.map(str::to_owned),
    };
    let (vm, function) =
        (MachineId(1), |names: &[&str]| names.iter().map(ToString::to_string).collect());
    TraceTables {
        machines: vec![host, guest],
        tasks: vec![
            TraceTask { in_call: Some(61), ..task(41, 41, "make", false) },
            TraceTask {
                asleep_in: Some("kthread_worker_fn".into()),
                ..task(9, 9, "jbd2/vda1-8", true)
            },
        ],
        stacks: vec![
            (MachineId::HOST, TraceStack(3), function(&["io_schedule", "folio_wait_bit"])),
            (MachineId::HOST, TraceStack::of_user(5).unwrap(), function(&["wait4", "main"])),
            (vm, TraceStack(0), function(&[])),
            (vm, TraceStack(3), function(&["rwsem_down_write_slowpath", "path_openat"])),
        ],
        disks: vec![(MachineId::HOST, 254 << 20, "vda".into())],
        files: vec![
            file(1, FileKind::Regular, Some("/src/a\\xff.c")),
            file(2, FileKind::Folder, None),
        ],
        command: Some(TracedCommand {
            machine: MachineId::HOST,
            task: Tid(41),
            words: vec!["make".into(), "-j2".into()],
            before: false,
            exit_code: Some(2),
        }),
    }
}

/// Of the host's CPU 0 one event of every kind; of its CPU 1 and of a VM a few.
pub(crate) fn small_events() -> Vec<Vec<TraceEvent>> {
    let (make, cc1, lock) = (Tid(41), Tid(42), 0xffff_8880_1234_5678);
    let request = BlockRequest {
        request: 0xffff_8880_0abc_de00,
        disk: 254 << 20,
        sector: 123_456,
        bytes: 16_384,
        op: BlockOp::Read,
        task: cc1,
    };
    let (name, stack) = (TaskName::new(b"cc1"), Some(TraceStack(3)));
    let kind = LockKind::SemWrite;
    let all = [
        TraceEventKind::SyscallEnter { task: make, number: 56 },
        TraceEventKind::Fork { parent: make, child: cc1, pid: Pid(42), kernel: false },
        TraceEventKind::Waking { task: cc1, by: make },
        TraceEventKind::Wakeup { task: cc1, target_cpu: 1 },
        TraceEventKind::SyscallExit { task: make, number: 56, failed: false },
        TraceEventKind::Switch {
            prev: make,
            prev_state: PrevState::Sleep,
            stack,
            user_stack: TraceStack::of_user(5),
            next: cc1,
        },
        TraceEventKind::Rename { task: cc1, name: TaskName::new(b"make-child") },
        TraceEventKind::Exec { task: cc1, name },
        TraceEventKind::FaultEnter { address: 0x7f00_0000_1000, user: true },
        TraceEventKind::FaultExit { major: true },
        TraceEventKind::BlockInsert(request),
        TraceEventKind::BlockIssue(request),
        TraceEventKind::BlockRequeue { request: request.request },
        TraceEventKind::BlockMerge { request: request.request + 1 },
        TraceEventKind::Switch {
            prev: cc1,
            prev_state: PrevState::Uninterruptible { io: true },
            stack: None,
            user_stack: None,
            next: Tid(0),
        },
        TraceEventKind::InterruptEnter(Interrupt::Device(27)),
        TraceEventKind::InterruptEnter(Interrupt::Soft(4)),
        TraceEventKind::BlockComplete { request: request.request, bytes: 16_384 },
        TraceEventKind::InterruptExit(Interrupt::Soft(4)),
        TraceEventKind::InterruptExit(Interrupt::Device(27)),
        TraceEventKind::InterruptEnter(Interrupt::Vector(Vector::LocalTimer)),
        TraceEventKind::InterruptExit(Interrupt::Vector(Vector::LocalTimer)),
        TraceEventKind::LockBegin { task: cc1, lock, kind, owner: Some(make), stack },
        TraceEventKind::LockEnd { task: cc1, lock },
        TraceEventKind::LockFile { task: cc1, file: 1 },
        TraceEventKind::CallFile { task: cc1, file: 1 },
        TraceEventKind::PageAdded { task: cc1, file: 1, bytes: 8192 },
        TraceEventKind::CallBytes { task: cc1, bytes: 4711 },
        TraceEventKind::CallSocket { task: cc1, network: true },
        TraceEventKind::SyscallExit { task: cc1, number: 257, failed: true },
        TraceEventKind::Exit { task: cc1 },
    ];
    let at = |time, machine, cpu, what| TraceEvent {
        time: HostNs(time),
        machine: MachineId(machine),
        cpu,
        kind: what,
    };
    let cpu1 =
        (0..).zip(small_details()).map(|(n, what)| at(5_000_010_000 + n * 1_500, 0, 1, what));
    let last = at(5_000_109_000, 0, 1, TraceEventKind::FaultExit { major: false });
    let spin =
        TraceEventKind::LockBegin { task: cc1, lock, kind: LockKind::Spin, owner: None, stack };
    vec![
        (0..).zip(all).map(|(n, what)| at(5_000_100_000 + n * 1_500, 0, 0, what)).collect(),
        cpu1.chain([last]).collect(),
        vec![at(5_000_110_500, 1, 0, spin)],
    ]
}

/// Events that differ in what `detail` says of them: all it may be.
fn small_details() -> Vec<TraceEventKind> {
    use LockKind::{Mutex, Other, SemRead, SemWrite, Spin};
    use Vector::{CallFunction, CallFunctionSingle, IrqWork, LocalTimer, Reschedule};
    let (prev, next, stack, owner) = (Tid(43), Tid(0), None, None);
    let (request, lock) = (0xffff_8880_0abc_e000, 0xffff_8880_1234_5000);
    let sleeps = [false, true].map(|io| PrevState::Uninterruptible { io });
    let states = [
        PrevState::Runnable,
        PrevState::Sleep,
        sleeps[0],
        sleeps[1],
        PrevState::Stopped,
        PrevState::Dead,
    ];
    let vectors =
        [LocalTimer, Reschedule, CallFunction, CallFunctionSingle, IrqWork, Vector::Other];
    let ops = [BlockOp::Read, BlockOp::Write, BlockOp::Flush, BlockOp::Discard, BlockOp::Other];
    let requested =
        |op| BlockRequest { request, disk: 8 << 20, sector: 0, bytes: 0, op, task: prev };
    let switches = states.map(|prev_state| TraceEventKind::Switch {
        prev,
        prev_state,
        stack,
        user_stack: None,
        next,
    });
    let interrupts = vectors.map(|vector| TraceEventKind::InterruptExit(Interrupt::Vector(vector)));
    let issues = ops.map(|op| TraceEventKind::BlockIssue(requested(op)));
    let locks = [Spin, Mutex, SemRead, SemWrite, Other].map(|kind| TraceEventKind::LockBegin {
        task: prev,
        lock,
        kind,
        owner,
        stack,
    });
    let fault = TraceEventKind::FaultEnter { address: 0xffff_c900_0000_0008, user: false };
    let mut all = vec![fault];
    [&switches[..], &interrupts, &issues, &locks]
        .iter()
        .for_each(|some| all.extend_from_slice(some));
    all
}
