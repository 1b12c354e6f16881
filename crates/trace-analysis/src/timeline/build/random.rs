//! Whatever the events: no panic, and everything still adds up.

use model::{
    BlockOp, BlockRequest, FileKind, HostNs, Interrupt, LockKind, LostEvents, Machine, MachineId,
    Pid, PrevState, RequestContent, TaskName, Tid, TraceEvent, TraceEventKind, TraceFile,
    TraceStack, TraceTables, TraceTask, TracedCommand, Vector,
};

use super::invariants;
use crate::timeline::{Timeline, build};

/// A small generator of numbers that are the same each time (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn small(&mut self, n: u64) -> u32 {
        u32::try_from(self.below(n)).unwrap()
    }

    fn tid(&mut self) -> Tid {
        Tid(self.small(7))
    }

    fn prev_state(&mut self) -> PrevState {
        match self.below(5) {
            0 => PrevState::Runnable,
            1 => PrevState::Sleep,
            2 => PrevState::Uninterruptible { io: self.below(2) == 0 },
            3 => PrevState::Stopped,
            _ => PrevState::Dead,
        }
    }

    fn interrupt(&mut self) -> Interrupt {
        match self.below(3) {
            0 => Interrupt::Device(self.small(2)),
            1 => Interrupt::Soft(self.small(2)),
            _ => Interrupt::Vector(Vector::LocalTimer),
        }
    }

    fn request(&mut self) -> BlockRequest {
        BlockRequest {
            request: self.below(4),
            disk: self.small(2),
            sector: self.below(3),
            bytes: self.small(9000),
            op: if self.below(2) == 0 { BlockOp::Read } else { BlockOp::Write },
            task: self.tid(),
        }
    }

    fn what(&mut self) -> TraceEventKind {
        let task = self.tid();
        let number = u16::try_from(self.below(3)).unwrap();
        let stack = (self.below(2) == 0).then_some(TraceStack(3));
        let name = TaskName::new(b"name");
        match self.below(30) {
            0..=4 => TraceEventKind::Switch {
                prev: task,
                prev_state: self.prev_state(),
                stack,
                user_stack: stack,
                next: self.tid(),
            },
            5 => TraceEventKind::Waking { task, by: self.tid() },
            6 => TraceEventKind::Wakeup { task, target_cpu: self.small(3) },
            7 => TraceEventKind::Fork {
                parent: task,
                child: self.tid(),
                pid: Pid(self.small(7)),
                kernel: self.below(8) == 0,
            },
            8 => TraceEventKind::Exec { task, name },
            9 => TraceEventKind::Rename { task, name },
            10 => TraceEventKind::Exit { task },
            11 => TraceEventKind::SyscallEnter { task, number },
            12 => TraceEventKind::SyscallExit { task, number, failed: self.below(2) == 0 },
            13 | 14 => TraceEventKind::InterruptEnter(self.interrupt()),
            15 | 16 => TraceEventKind::InterruptExit(self.interrupt()),
            17 => TraceEventKind::FaultEnter { address: self.0, user: self.below(2) == 0 },
            18 => TraceEventKind::FaultExit { major: self.below(2) == 0 },
            19 => TraceEventKind::BlockInsert(self.request()),
            20 => TraceEventKind::BlockIssue(self.request()),
            21 if self.below(4) == 0 => TraceEventKind::BlockRequeue { request: self.below(4) },
            21 if self.below(4) == 0 => TraceEventKind::BlockMerge { request: self.below(4) },
            21 | 22 => {
                TraceEventKind::BlockComplete { request: self.below(4), bytes: self.small(9000) }
            }
            24 => TraceEventKind::CallFile { task, file: self.small(4) },
            25 => TraceEventKind::CallBytes { task, bytes: self.small(9000) },
            26 => TraceEventKind::PageAdded { task, file: self.small(4), bytes: 4096 },
            27 => TraceEventKind::LockFile { task, file: self.small(4) },
            28 => TraceEventKind::BlockFile {
                request: self.below(4),
                content: RequestContent::ALL[self.small(4) as usize],
                file: self.small(4),
            },
            29 => TraceEventKind::CallSocket { task, network: self.below(2) == 0 },
            _ if self.below(2) == 0 => TraceEventKind::LockBegin {
                task,
                lock: 1,
                kind: LockKind::Mutex,
                owner: Some(Tid(1)),
                stack,
            },
            _ => TraceEventKind::LockEnd { task, lock: self.below(2) },
        }
    }

    /// Any events, some of them out of order or of another machine.
    fn events(&mut self, n: u64) -> Vec<TraceEvent> {
        let mut time = 1000;
        let mut event = || {
            time += self.below(20);
            TraceEvent {
                time: HostNs(time - self.below(20) * u64::from(self.below(20) == 0)),
                machine: MachineId(u32::from(self.below(30) == 0)),
                cpu: self.small(3),
                kind: self.what(),
            }
        };
        (0..n).map(|_| event()).collect()
    }

    fn tables(&mut self) -> TraceTables {
        let lost = LostEvents { cpu: 0, kind: Some(model::TraceEventTag::Switch), count: 5 };
        let machine = Machine {
            name: "host".to_owned(),
            cpus: vec![0, 1, 2],
            begin: HostNs(self.below(3) * 900),
            end: HostNs(self.below(3) * 1500),
            lost: if self.below(2) == 0 { vec![lost] } else { Vec::new() },
            fault_estimate_ns: (self.below(2) == 0).then_some(15),
            vm_process: Some(Pid(1)),
            vcpu_threads: vec![Tid(1)],
            ..Machine::default()
        };
        let task = |tid: u32, asleep: bool| TraceTask {
            machine: MachineId(0),
            tid: Tid(tid),
            pid: Pid(tid),
            parent: Pid(0),
            name: format!("task{tid}"),
            kernel: tid == 2,
            asleep_in: asleep.then(|| "poll".to_owned()),
            in_call: asleep.then_some(16),
        };
        let tasks = (0..4).map(|tid| task(tid, self.below(2) == 0)).collect();
        let task = Tid(u32::try_from(self.below(6)).unwrap());
        let machine_id = MachineId::HOST;
        let command = TracedCommand {
            machine: machine_id,
            task,
            words: vec![],
            before: false,
            exit_code: None,
        };
        let command = (self.below(2) == 0).then_some(command);
        let files = (1..3).map(|number| TraceFile {
            machine: machine_id,
            number,
            device: 1,
            inode: 2,
            generation: 3,
            kind: FileKind::Regular,
            links: 1,
            path: None,
        });
        let files = files.collect();
        TraceTables { machines: vec![machine], tasks, files, command, ..TraceTables::default() }
    }
}

/// Timelines of events that make no sense.
pub(crate) fn senseless() -> impl Iterator<Item = Timeline> {
    senseless_traces().map(|(tables, events)| build(&tables, MachineId(0), &events))
}

/// Events that make no sense.
pub(crate) fn senseless_traces() -> impl Iterator<Item = (TraceTables, Vec<TraceEvent>)> {
    let mut random = Random(0x5eed_0005);
    (0..400).map(move |round| {
        let tables = random.tables();
        let events = random.events(1 + round * 2);
        (tables, events)
    })
}

#[test]
fn any_events_give_a_timeline_that_adds_up() {
    let mut n_tasks = 0;
    for timeline in senseless() {
        assert_eq!(invariants::check(&timeline), Ok(()));
        n_tasks += timeline.tasks.len();
    }
    assert!(1000 < n_tasks, "{n_tasks} tasks: the events were too few to mean anything");
}
