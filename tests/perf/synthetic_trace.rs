//! A machine that builds a program, as a trace has it: short processes that make system calls, touch new pages, read
//! files, wait for each other and are interrupted. The same seed gives the same trace.

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, LockKind, Machine, MachineId, Pid, PrevState,
    TaskName, Tid, TraceEvent, TraceEventKind, TraceStack, TraceTables, Vector,
};
use recording::trace::TraceHeader;

use super::synthetic::Random;

const BEGIN: u64 = 1_000_000_000_000;
const STACKS: u64 = 300;

pub(crate) struct Build {
    pub(crate) cpus: u32,
    pub(crate) seed: u64,
}

impl Build {
    pub(crate) fn header(&self) -> TraceHeader {
        let (begin, end) = (HostNs(BEGIN), HostNs(BEGIN + 3_600_000_000_000));
        TraceHeader { begin, end, complete: true, ..TraceHeader::default() }
    }

    pub(crate) fn tables(&self) -> TraceTables {
        let host =
            Machine { name: "host".into(), cpus: (0..self.cpus).collect(), ..Machine::default() };
        let stack = |number| {
            let functions = (0..12).map(|depth| format!("function_{}", number * depth % 400));
            (MachineId::HOST, TraceStack(number as u32), functions.collect())
        };
        let stacks = (0..STACKS).map(stack).collect();
        TraceTables { machines: vec![host], stacks, ..TraceTables::default() }
    }

    /// At least so many events of a CPU are made, and the first of them given.
    pub(crate) fn events(&self, cpu: u32, count: usize) -> Vec<TraceEvent> {
        let random = Random(self.seed ^ u64::from(cpu) << 32);
        let mut machine = Cpu {
            random,
            cpu,
            time: BEGIN,
            task: 1_000 + cpu,
            newest: 1_000 + cpu,
            tick: BEGIN,
            page: 0,
            events: vec![],
        };
        while machine.events.len() < count {
            machine.step();
        }
        machine.events.truncate(count);
        machine.events
    }
}

struct Cpu {
    random: Random,
    cpu: u32,
    time: u64,
    /// Who runs.
    task: u32,
    tick: u64,
    page: u64,
    /// Who began last.
    newest: u32,
    events: Vec<TraceEvent>,
}

impl Cpu {
    /// Something that the running task does, or that happens to it.
    fn step(&mut self) {
        match self.random.below(100) {
            0..62 => self.syscall(),
            62..82 => self.fault(),
            82..90 => self.sleep(),
            90..94 => self.wake(),
            94..96 => self.disk(),
            96..98 => self.lock(),
            98 => self.begin_process(),
            _ => self.interrupt(Interrupt::Device(27)),
        }
        if self.tick + 4_000_000 < self.time {
            self.tick = self.time;
            self.interrupt(Interrupt::Vector(Vector::LocalTimer));
        }
    }

    /// Appends an event some time after the one before: mostly a few hundred ns, sometimes much more.
    fn push(&mut self, what: TraceEventKind) {
        let scale = 1 << self.random.below(7);
        self.time += 150 + self.random.below(200 * scale);
        let (time, machine, cpu) = (HostNs(self.time), MachineId::HOST, self.cpu);
        self.events.push(TraceEvent { time, machine, cpu, kind: what });
    }

    /// One of those that began last.
    fn some_task(&mut self) -> u32 {
        self.newest - self.random.skewed(12) as u32
    }

    fn syscall(&mut self) {
        let task = Tid(self.task);
        let number = [0, 257, 3, 262, 9, 1, 21, 12, 17, 10, 11, 5, 8, 13, 14, 56, 59, 61, 72, 89]
            [self.random.skewed(20) as usize];
        self.push(TraceEventKind::SyscallEnter { task, number });
        let failed = self.random.below(8) == 0;
        self.push(TraceEventKind::SyscallExit { task, number, failed });
    }

    fn fault(&mut self) {
        self.page += 1 + self.random.skewed(40);
        let base = if self.random.below(3) == 0 { 0x5555_0000_0000 } else { 0x7f00_0000_0000 };
        let address =
            base + (u64::from(self.task) << 24) + (self.page << 12) + self.random.below(512) * 8;
        let (user, major) = (self.random.below(8) != 0, self.random.below(50) == 0);
        self.push(TraceEventKind::FaultEnter { address, user });
        self.push(TraceEventKind::FaultExit { major });
    }

    fn sleep(&mut self) {
        let prev = Tid(self.task);
        let prev_state =
            [PrevState::Sleep, PrevState::Runnable, PrevState::Uninterruptible { io: true }]
                [self.random.skewed(3) as usize];
        let stack = (prev_state != PrevState::Runnable)
            .then(|| TraceStack(self.random.skewed(STACKS) as u32));
        let next = if self.random.below(3) == 0 { 0 } else { self.some_task() };
        let (user_stack, next_task) = (None, Tid(next));
        self.push(TraceEventKind::Switch { prev, prev_state, stack, user_stack, next: next_task });
        if next == 0 {
            let back = Tid(self.some_task());
            self.interrupt(Interrupt::Device(27));
            self.push(TraceEventKind::Switch {
                prev: Tid(0),
                prev_state: PrevState::Runnable,
                stack: None,
                user_stack: None,
                next: back,
            });
            self.task = back.0;
        } else {
            self.task = next;
        }
    }

    fn wake(&mut self) {
        let task = Tid(self.some_task());
        let target_cpu = self.random.below(2) as u32;
        self.push(TraceEventKind::Waking { task, by: Tid(self.task) });
        self.push(TraceEventKind::Wakeup { task, target_cpu });
    }

    fn disk(&mut self) {
        let request = BlockRequest {
            request: 0xffff_8880_0100_0000 + self.random.below(64) * 0x180,
            disk: 254 << 20,
            sector: self.random.below(1 << 26) * 8,
            bytes: 4096 << self.random.skewed(6),
            op: BlockOp::Read,
            task: Tid(self.task),
        };
        self.push(TraceEventKind::BlockInsert(request));
        self.push(TraceEventKind::BlockIssue(request));
        self.interrupt(Interrupt::Device(30));
        self.push(TraceEventKind::BlockComplete { request: request.request, bytes: request.bytes });
    }

    fn lock(&mut self) {
        let (task, lock) =
            (Tid(self.task), 0xffff_8880_0400_0000 + self.random.skewed(200) * 0x2c0);
        let stack = Some(TraceStack(self.random.skewed(STACKS) as u32));
        let owner = Some(Tid(self.task - 1));
        self.push(TraceEventKind::LockBegin { task, lock, kind: LockKind::SemWrite, owner, stack });
        self.push(TraceEventKind::LockEnd { task, lock });
    }

    fn begin_process(&mut self) {
        let (parent, child) = (Tid(self.task), Tid(self.newest + 2));
        self.push(TraceEventKind::Fork { parent, child, pid: Pid(child.0), kernel: false });
        self.push(TraceEventKind::Exit { task: parent });
        (self.task, self.newest) = (child.0, child.0);
        let name = TaskName::new(
            [b"cc1".as_slice(), b"as", b"sh", b"collect2", b"ld"][self.random.skewed(5) as usize],
        );
        self.push(TraceEventKind::Exec { task: child, name });
    }

    fn interrupt(&mut self, interrupt: Interrupt) {
        self.push(TraceEventKind::InterruptEnter(interrupt));
        self.push(TraceEventKind::InterruptExit(interrupt));
        let soft = Interrupt::Soft(1 + self.random.skewed(9) as u32);
        self.push(TraceEventKind::InterruptEnter(soft));
        self.push(TraceEventKind::InterruptExit(soft));
    }
}
