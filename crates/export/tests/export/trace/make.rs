//! A made-up `make -jN` on two CPUs and a disk, event by event: of a given length, and the same every time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, Machine, MachineId, Pid, PrevState, TaskName, Tid,
    TraceEvent, TraceEventKind, TraceTables, TraceTask, TracedCommand, Vector,
};
use trace_analysis::timeline;

use super::drawn::{Drawing, START};

const US: u64 = 1_000;
const QUANTUM: u64 = 3_000 * US;
const CPUS: u32 = 2;
const DISK: u32 = 254 << 20;
const MAKE: u32 = 100;
const WORKER: u32 = 40;

/// What a task does next.
#[derive(Debug, Clone)]
enum Step {
    User(u64),
    Call(u16, u64),
    Read(u64),
    Fork(&'static str, Vec<Step>),
    Exec(&'static str),
    /// Until a child has ended.
    Wait,
}

#[derive(Debug, Default)]
struct Job {
    parent: usize,
    steps: VecDeque<Step>,
    ended_children: u32,
    waits: bool,
    in_call: bool,
}

#[derive(Debug, Default)]
struct Machinery {
    now: u64,
    events: Vec<TraceEvent>,
    jobs: Vec<Job>,
    ready: VecDeque<usize>,
    running: [Option<usize>; CPUS as usize],
    /// What each CPU shows as running when it is idle.
    next: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    order: u64,
    disk_free_at: u64,
    random: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    StepDone(u32),
    DiskDone(usize, u64),
}

/// The events of `make -j JOBS` with so many files, as timelines.
pub(crate) fn make(jobs: u32, files: u32) -> Drawing {
    let (tables, events) = events(jobs, files);
    let timelines = vec![timeline::build(&tables, MachineId::HOST, &events)];
    Drawing { tables, timelines }
}

fn events(jobs: u32, files: u32) -> (TraceTables, Vec<TraceEvent>) {
    let mut machinery = Machinery { random: 7, ..Machinery::default() };
    let mut steps = vec![Step::User(900 * US), Step::Read(1_500 * US)];
    for file in 0..files {
        steps.push(Step::Call(56, 150 * US));
        steps.push(Step::Fork("sh", compile(&mut machinery)));
        if jobs <= file + 1 {
            steps.push(Step::Wait);
        }
    }
    steps.extend((1..jobs.min(files + 1)).map(|_| Step::Wait));
    steps.push(Step::Fork(
        "sh",
        vec![Step::Exec("ld"), Step::Read(4_000 * US), Step::User(9_000 * US)],
    ));
    steps.push(Step::Wait);
    machinery.jobs.push(Job { steps: steps.into(), ..Job::default() });
    machinery.ready.push_back(0);
    machinery.run();
    let end = HostNs(START + machinery.now);
    (tables(jobs, end), machinery.events)
}

fn tables(jobs: u32, end: HostNs) -> TraceTables {
    TraceTables {
        machines: vec![Machine {
            name: "host".to_owned(),
            kernel: "6.1.0".to_owned(),
            cpus: (0..CPUS).collect(),
            begin: HostNs(START),
            end,
            path: "here".to_owned(),
            ..Machine::default()
        }],
        tasks: (0..CPUS)
            .map(|cpu| (WORKER + cpu, 2, format!("kworker/{cpu}:0")))
            .chain([(MAKE, 1, "make".to_owned())])
            .map(|(tid, parent, name)| TraceTask {
                machine: MachineId::HOST,
                tid: Tid(tid),
                pid: Pid(tid),
                parent: Pid(parent),
                name,
                kernel: parent == 2,
                asleep_in: None,
                in_call: None,
            })
            .collect(),
        disks: vec![(MachineId::HOST, DISK, "vda".to_owned())],
        command: Some(TracedCommand {
            machine: MachineId::HOST,
            task: Tid(MAKE),
            words: vec!["make".to_owned(), format!("-j{jobs}")],
            before: false,
            exit_code: Some(0),
        }),
        ..TraceTables::default()
    }
}

/// A shell that runs a compiler.
fn compile(machinery: &mut Machinery) -> Vec<Step> {
    let mut compiler = vec![Step::Exec("cc1"), Step::Call(257, 40 * US)];
    for _ in 0..2 + machinery.some(6) {
        compiler.push(Step::Read((200 + machinery.some(4_000)) * US));
        compiler.push(Step::User((300 + machinery.some(9_000)) * US));
        compiler.push(Step::Call(1, (10 + machinery.some(300)) * US));
    }
    vec![Step::Exec("sh"), Step::User(300 * US), Step::Fork("sh", compiler), Step::Wait]
}

impl Machinery {
    /// A number below `most`.
    fn some(&mut self, most: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most
    }

    fn tell(&mut self, cpu: u32, what: TraceEventKind) {
        let time = HostNs(START + self.now);
        self.events.push(TraceEvent { time, machine: MachineId::HOST, cpu, kind: what });
        self.now += 1;
    }

    fn later(&mut self, after: u64, happening: Happening) {
        self.order += 1;
        self.next.push(Reverse((self.now + after, self.order, happening)));
    }

    fn tid(job: usize) -> Tid {
        Tid(MAKE + u32::try_from(job).unwrap())
    }

    fn task_on(&self, cpu: u32) -> Tid {
        self.running[cpu as usize].map_or(Tid(0), Self::tid)
    }

    fn run(&mut self) {
        for cpu in 0..CPUS {
            let (idle_task, worker) = (Tid(0), Tid(WORKER + cpu));
            let stack = None;
            self.tell(
                cpu,
                TraceEventKind::Switch {
                    prev: idle_task,
                    prev_state: PrevState::Runnable,
                    stack,
                    user_stack: stack,
                    next: worker,
                },
            );
            self.tell(
                cpu,
                TraceEventKind::Switch {
                    prev: worker,
                    prev_state: PrevState::Sleep,
                    stack,
                    user_stack: stack,
                    next: idle_task,
                },
            );
            self.schedule(cpu, idle_task, PrevState::Runnable);
        }
        while let Some(Reverse((at, _, happening))) = self.next.pop() {
            self.now = self.now.max(at);
            match happening {
                Happening::StepDone(cpu) => self.step_done(cpu),
                Happening::DiskDone(job, request) => self.disk_done(job, request),
            }
            for cpu in 0..CPUS {
                if self.running[cpu as usize].is_none() && !self.ready.is_empty() {
                    self.schedule(cpu, Tid(0), PrevState::Runnable);
                }
            }
        }
    }

    /// The CPU goes from `prev` to the next that is ready, or it is idle.
    fn schedule(&mut self, cpu: u32, prev: Tid, prev_state: PrevState) {
        let next = self.ready.pop_front();
        let tid = next.map_or(Tid(0), Self::tid);
        if prev != tid {
            let (stack, user_stack) = (None, None);
            let next = tid;
            self.tell(cpu, TraceEventKind::Switch { prev, prev_state, stack, user_stack, next });
        }
        self.running[cpu as usize] = next;
        self.go_on(cpu);
    }

    /// The task on a CPU does what comes next.
    fn go_on(&mut self, cpu: u32) {
        let Some(job) = self.running[cpu as usize] else { return };
        let task = Self::tid(job);
        match self.jobs[job].steps.front().cloned() {
            Some(Step::User(ns)) => self.later(ns.min(QUANTUM), Happening::StepDone(cpu)),
            Some(Step::Call(number, ns)) => {
                self.enter(cpu, job, number);
                self.later(ns.min(QUANTUM), Happening::StepDone(cpu));
            }
            Some(Step::Read(ns)) => self.read(cpu, job, ns),
            Some(Step::Fork(name, steps)) => {
                let child = self.jobs.len();
                self.jobs.push(Job { parent: job, steps: steps.into(), ..Job::default() });
                let pid = Pid(Self::tid(child).0);
                let child_tid = Self::tid(child);
                let fork =
                    TraceEventKind::Fork { parent: task, child: child_tid, pid, kernel: false };
                self.tell(cpu, fork);
                self.tell(
                    cpu,
                    TraceEventKind::Rename {
                        task: Self::tid(child),
                        name: TaskName::new(name.as_bytes()),
                    },
                );
                self.wake(cpu, child);
                self.jobs[job].steps.pop_front();
                self.go_on(cpu);
            }
            Some(Step::Exec(name)) => {
                self.tell(cpu, TraceEventKind::Exec { task, name: TaskName::new(name.as_bytes()) });
                self.jobs[job].steps[0] = Step::Call(59, 200 * US);
                self.go_on(cpu);
            }
            Some(Step::Wait) if 0 < self.jobs[job].ended_children => {
                self.jobs[job].ended_children -= 1;
                self.leave(cpu, job, 61);
                self.jobs[job].steps.pop_front();
                self.go_on(cpu);
            }
            Some(Step::Wait) => {
                self.enter(cpu, job, 61);
                self.jobs[job].waits = true;
                self.schedule(cpu, task, PrevState::Sleep);
            }
            None => self.exit(cpu, job),
        }
    }

    fn enter(&mut self, cpu: u32, job: usize, number: u16) {
        if !std::mem::replace(&mut self.jobs[job].in_call, true) {
            self.tell(cpu, TraceEventKind::SyscallEnter { task: Self::tid(job), number });
        }
    }

    fn leave(&mut self, cpu: u32, job: usize, number: u16) {
        if std::mem::take(&mut self.jobs[job].in_call) {
            self.tell(
                cpu,
                TraceEventKind::SyscallExit { task: Self::tid(job), number, failed: false },
            );
        }
    }

    fn wake(&mut self, cpu: u32, job: usize) {
        let task = Self::tid(job);
        self.tell(cpu, TraceEventKind::Waking { task, by: self.task_on(cpu) });
        self.tell(cpu, TraceEventKind::Wakeup { task, target_cpu: cpu });
        self.ready.push_back(job);
    }

    fn read(&mut self, cpu: u32, job: usize, ns: u64) {
        self.enter(cpu, job, 0);
        let request = 0x1000 + self.order;
        let what = BlockRequest {
            request,
            disk: DISK,
            sector: 8 * self.order,
            bytes: 65_536,
            op: if self.order.is_multiple_of(5) { BlockOp::Write } else { BlockOp::Read },
            task: Self::tid(job),
        };
        self.tell(cpu, TraceEventKind::BlockInsert(what));
        self.tell(cpu, TraceEventKind::BlockIssue(what));
        let begins = self.disk_free_at.max(self.now);
        self.disk_free_at = begins + ns;
        self.later(begins + ns - self.now, Happening::DiskDone(job, request));
        self.jobs[job].steps[0] = Step::Call(0, 15 * US);
        self.schedule(cpu, Self::tid(job), PrevState::Uninterruptible { io: true });
    }

    fn disk_done(&mut self, job: usize, request: u64) {
        let interrupt = Interrupt::Device(24);
        self.tell(0, TraceEventKind::InterruptEnter(interrupt));
        self.now += 3 * US;
        self.tell(0, TraceEventKind::BlockComplete { request, bytes: 65_536 });
        self.wake(0, job);
        self.tell(0, TraceEventKind::InterruptExit(interrupt));
    }

    fn step_done(&mut self, cpu: u32) {
        let Some(job) = self.running[cpu as usize] else { return };
        let timer = Interrupt::Vector(Vector::LocalTimer);
        let mut preempted = false;
        let step = self.jobs[job].steps[0].clone();
        match step {
            Step::User(ns) if QUANTUM < ns => {
                self.jobs[job].steps[0] = Step::User(ns - QUANTUM);
                self.tell(cpu, TraceEventKind::InterruptEnter(timer));
                self.now += 2 * US;
                self.tell(cpu, TraceEventKind::InterruptExit(timer));
                preempted = !self.ready.is_empty();
            }
            Step::Call(number, _) => {
                self.leave(cpu, job, number);
                self.jobs[job].steps.pop_front();
            }
            _ => {
                self.jobs[job].steps.pop_front();
            }
        }
        if preempted {
            self.ready.push_back(job);
            self.schedule(cpu, Self::tid(job), PrevState::Runnable);
        } else {
            self.go_on(cpu);
        }
    }

    fn exit(&mut self, cpu: u32, job: usize) {
        let parent = self.jobs[job].parent;
        if job != 0 {
            self.jobs[parent].ended_children += 1;
            if std::mem::take(&mut self.jobs[parent].waits) {
                self.wake(cpu, parent);
            }
        }
        self.tell(cpu, TraceEventKind::Exit { task: Self::tid(job) });
        self.schedule(cpu, Self::tid(job), PrevState::Dead);
    }
}
