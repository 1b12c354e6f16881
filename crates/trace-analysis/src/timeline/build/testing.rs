//! Events in short, and timelines as text.

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, LockKind, Machine, MachineId, Pid, PrevState,
    TaskName, Tid, TraceEvent, TraceEventKind, TraceStack, TraceTables, TraceTask,
};

use crate::timeline::{
    LockWait, Problem, Segment, Segments, Sleep, State, Survey, Timeline, Waker, WokenBy, Work,
};

/// A trace of the host's CPUs 0 and 1 from 0 to 100, in which `init` (1) and `kthreadd` (2) were there.
pub(crate) struct Scene {
    pub(crate) tables: TraceTables,
    pub(crate) events: Vec<TraceEvent>,
    switches_left_out: bool,
}

impl Scene {
    pub(crate) fn new(events: &[(u64, u32, TraceEventKind)]) -> Self {
        let machine = Machine {
            name: "host".to_owned(),
            cpus: vec![0, 1],
            begin: HostNs(0),
            end: HostNs(100),
            ..Machine::default()
        };
        let events = events.iter().map(|(time, cpu, what)| TraceEvent {
            time: HostNs(*time),
            machine: MachineId::HOST,
            cpu: *cpu,
            kind: *what,
        });
        let tasks = vec![there(1, "init", false), there(2, "kthreadd", true)];
        let tables = TraceTables { machines: vec![machine], tasks, ..TraceTables::default() };
        Self { tables, events: events.collect(), switches_left_out: false }
    }

    pub(crate) fn task(mut self, tid: u32, name: &str) -> Self {
        self.tables.tasks.push(there(tid, name, false));
        self
    }

    pub(crate) fn machine(mut self, change: impl Fn(&mut Machine)) -> Self {
        change(&mut self.tables.machines[0]);
        self
    }

    pub(crate) fn filtered(self) -> Self {
        Self { switches_left_out: true, ..self }
    }

    pub(crate) fn build(&self) -> Timeline {
        let mut survey = Survey::new(&self.tables, MachineId::HOST);
        if self.switches_left_out {
            survey.switches_left_out();
        }
        survey.see(&self.events);
        let mut builder = survey.builder();
        builder.see(&self.events);
        builder.finish()
    }

    /// The segments of the tasks of this id, tasks apart by `|`.
    pub(crate) fn check_task(&self, tid: u32, expected: &str) {
        let timeline = self.build();
        let tasks = timeline.tasks.iter().filter(|task| task.tid == Tid(tid));
        let drawn = |segments: &Segments| words(segments.iter().map(|s| segment(&timeline, &s)));
        assert_eq!(words_apart(tasks.map(|task| drawn(&task.segments))), expected);
    }

    pub(crate) fn check_cpu(&self, number: usize, expected: &str) {
        let timeline = self.build();
        let slices = timeline.cpus[number].slices.iter();
        let drawn = slices.map(|slice| {
            let who = slice.task.map(|id| timeline.tasks[id.index()].tid.to_string());
            let who = who.map_or(String::new(), |who| format!("{who}:"));
            format!("{}-{} {who}{}", slice.begin.0, slice.end.0, work(slice.work))
        });
        assert_eq!(words(drawn), expected);
    }

    pub(crate) fn check_problems(&self, expected: &[(Problem, u64)]) {
        let problems: Vec<_> = self.build().problems.into_iter().collect();
        assert_eq!(problems, expected);
    }

    /// Every request as `TID queued issued done`.
    pub(crate) fn check_requests(&self, expected: &str) {
        let timeline = self.build();
        let time = |time: Option<HostNs>| time.map_or("-".to_owned(), |time| time.0.to_string());
        let rows = timeline.tasks.iter().flat_map(|task| {
            task.requests.iter().map(move |request| {
                let (issued, done) = (time(request.issued), time(request.done));
                format!("{} {} {issued} {done}", task.tid, request.queued.0)
            })
        });
        assert_eq!(words(rows), expected);
    }

    pub(crate) fn check_disk(&self, row: usize, expected: &[(u64, u64)]) {
        let timeline = self.build();
        let busy: Vec<_> = timeline.disks[row].busy.iter().map(|(a, b)| (a.0, b.0)).collect();
        assert_eq!(busy, expected);
    }
}

fn there(tid: u32, name: &str, kernel: bool) -> TraceTask {
    TraceTask {
        machine: MachineId::HOST,
        tid: Tid(tid),
        pid: Pid(tid),
        parent: Pid(0),
        name: name.to_owned(),
        kernel,
        asleep_in: None,
        in_call: None,
    }
}

fn words(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

fn words_apart(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" | ")
}

fn segment(timeline: &Timeline, segment: &Segment) -> String {
    let state = match &segment.state {
        State::Running { cpu } => format!("cpu{cpu}"),
        State::Runnable { preempted: true } => "preempted".to_owned(),
        State::Runnable { preempted: false } => "queued".to_owned(),
        State::Asleep(sleep) => asleep(timeline, sleep),
        State::Stopped { woken_by } => format!("stopped{}", waker(timeline, *woken_by)),
        State::Unknown => "?".to_owned(),
    };
    format!("{}-{} {state}", segment.begin.0, segment.end.0)
}

fn asleep(timeline: &Timeline, sleep: &Sleep) -> String {
    let tid = |id: crate::timeline::TaskId| timeline.tasks[id.index()].tid;
    let lock = |wait: &LockWait| match wait.owner {
        Some((owner, call)) => format!(" lock={}:{}:{call:?}", wait.lock, tid(owner)),
        None => format!(" lock={}", wait.lock),
    };
    let parts = [
        sleep.stack.map(|stack| format!(" stack{}", stack.0)),
        sleep.uninterruptible.then(|| " deep".to_owned()),
        sleep.io.then(|| " io".to_owned()),
        sleep.syscall.map(|number| format!(" call{number}")),
        sleep.in_fault.then(|| " fault".to_owned()),
        sleep.lock.as_ref().map(lock),
        Some(waker(timeline, sleep.woken_by)),
    ];
    format!("asleep{}", parts.into_iter().flatten().collect::<String>())
}

fn waker(timeline: &Timeline, waker: Option<Waker>) -> String {
    let Some(waker) = waker else { return String::new() };
    let tid = |id: crate::timeline::TaskId| timeline.tasks[id.index()].tid;
    let by = match waker.by {
        WokenBy::Task(id) => format!("task{}", tid(id)),
        WokenBy::Interrupt(interrupt) => format!("{interrupt:?}"),
        WokenBy::Request { task, row } => format!("request{row}of{}", tid(task)),
        WokenBy::Unknown => "unknown".to_owned(),
    };
    format!(" by={by}@{}", waker.time.0)
}

fn work(work: Work) -> String {
    match work {
        Work::Idle => "idle".to_owned(),
        Work::User => "user".to_owned(),
        Work::Syscall(number) => format!("call{number}"),
        Work::Vcpu => "vcpu".to_owned(),
        Work::Fault { estimated: false } => "fault".to_owned(),
        Work::Fault { estimated: true } => "fault~".to_owned(),
        Work::Interrupt(interrupt) => format!("{interrupt:?}"),
        Work::KernelTask => "kernel".to_owned(),
        Work::Unknown => "?".to_owned(),
    }
}

pub(crate) fn switch(prev: u32, prev_state: PrevState, next: u32) -> TraceEventKind {
    let asleep = matches!(prev_state, PrevState::Sleep | PrevState::Uninterruptible { .. });
    let stack = asleep.then_some(TraceStack(7));
    TraceEventKind::Switch { prev: Tid(prev), prev_state, stack, user_stack: None, next: Tid(next) }
}

pub(crate) fn waking(task: u32, by: u32) -> TraceEventKind {
    TraceEventKind::Waking { task: Tid(task), by: Tid(by) }
}

pub(crate) fn wakeup(task: u32) -> TraceEventKind {
    TraceEventKind::Wakeup { task: Tid(task), target_cpu: 0 }
}

pub(crate) fn fork(parent: u32, child: u32) -> TraceEventKind {
    TraceEventKind::Fork { parent: Tid(parent), child: Tid(child), pid: Pid(child), kernel: false }
}

pub(crate) fn exec(task: u32, name: &str) -> TraceEventKind {
    TraceEventKind::Exec { task: Tid(task), name: TaskName::new(name.as_bytes()) }
}

pub(crate) fn exit(task: u32) -> TraceEventKind {
    TraceEventKind::Exit { task: Tid(task) }
}

pub(crate) fn enter(task: u32, number: u16) -> TraceEventKind {
    TraceEventKind::SyscallEnter { task: Tid(task), number }
}

pub(crate) fn leave(task: u32, number: u16) -> TraceEventKind {
    TraceEventKind::SyscallExit { task: Tid(task), number, failed: false }
}

pub(crate) fn irq(interrupt: Interrupt) -> TraceEventKind {
    TraceEventKind::InterruptEnter(interrupt)
}

pub(crate) fn irq_end(interrupt: Interrupt) -> TraceEventKind {
    TraceEventKind::InterruptExit(interrupt)
}

pub(crate) fn fault(user: bool) -> TraceEventKind {
    TraceEventKind::FaultEnter { address: 0, user }
}

pub(crate) fn fault_end() -> TraceEventKind {
    TraceEventKind::FaultExit { major: false }
}

pub(crate) fn request(name: u64, task: u32) -> BlockRequest {
    let op = BlockOp::Read;
    BlockRequest { request: name, disk: 8 << 20 | 16, sector: 0, bytes: 4096, op, task: Tid(task) }
}

pub(crate) fn done(name: u64) -> TraceEventKind {
    TraceEventKind::BlockComplete { request: name, bytes: 4096 }
}

pub(crate) fn lock(task: u32, lock: u64, kind: LockKind, owner: Option<u32>) -> TraceEventKind {
    let owner = owner.map(Tid);
    TraceEventKind::LockBegin { task: Tid(task), lock, kind, owner, stack: None }
}

pub(crate) fn lock_end(task: u32, lock: u64) -> TraceEventKind {
    TraceEventKind::LockEnd { task: Tid(task), lock }
}
