//! A machine that is simulated event by event: the timeline of its events is what it did.

use std::collections::BTreeMap;

use model::{HostNs, Interrupt, PrevState, TraceEvent, TraceEventKind, Vector};

use super::random::Random;
use super::testing::{
    Scene, done, enter, exit, fault, fault_end, fork, irq, irq_end, leave, request, switch, wakeup,
    waking,
};

const INTERRUPTS: [Interrupt; 3] =
    [Interrupt::Vector(Vector::LocalTimer), Interrupt::Soft(4), Interrupt::Device(9)];

/// A machine with two CPUs, and what it did so far in the words of `Scene`.
struct Machine {
    random: Random,
    now: u64,
    events: Vec<TraceEvent>,
    tasks: BTreeMap<u32, Task>,
    cpus: [Cpu; 2],
    /// Issued requests: by name, who sleeps for it, and which of its requests it is.
    requests: BTreeMap<u64, (u32, u32)>,
    busy_since: u64,
    busy: Vec<(u64, u64)>,
    next_tid: u32,
    next_request: u64,
}

#[derive(Default)]
struct Task {
    state: String,
    since: u64,
    call: Option<u16>,
    in_fault: bool,
    n_requests: u32,
    /// Asleep, and not for a request.
    wakeable: bool,
    queued: bool,
    done: Vec<String>,
}

#[derive(Default)]
struct Cpu {
    current: u32,
    interrupts: Vec<Interrupt>,
    drawn: u64,
    last: String,
    since: u64,
    done: Vec<String>,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let init = Task { state: "preempted".to_owned(), queued: true, ..Task::default() };
        Self {
            random: Random(seed),
            now: 0,
            events: Vec::new(),
            tasks: BTreeMap::from([(1, init)]),
            cpus: [Cpu::default(), Cpu::default()],
            requests: BTreeMap::new(),
            busy_since: 0,
            busy: Vec::new(),
            next_tid: 10,
            next_request: 0,
        }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    /// The next event; what was until then is drawn.
    fn emit(&mut self, cpu: usize, what: TraceEventKind) {
        self.now += 1 + self.random.below(20);
        let work = self.work(cpu);
        self.cpus[cpu].draw_until(self.now, work);
        self.events.push(TraceEvent {
            time: HostNs(self.now),
            machine: model::MachineId::HOST,
            cpu: u32::try_from(cpu).unwrap(),
            kind: what,
        });
    }

    fn work(&self, cpu: usize) -> String {
        let cpu = &self.cpus[cpu];
        let task = self.tasks.get(&cpu.current);
        let who = task.map_or(String::new(), |_| format!("{}:", cpu.current));
        let work = match (cpu.interrupts.last(), task) {
            (Some(interrupt), _) => format!("{interrupt:?}"),
            (None, None) => "idle".to_owned(),
            (None, Some(task)) if task.in_fault => "fault".to_owned(),
            (None, Some(task)) => task.call.map_or("user".to_owned(), |call| format!("call{call}")),
        };
        who + &work
    }

    fn step(&mut self) {
        let cpu = usize::from(self.chance(2));
        let current = self.cpus[cpu].current;
        if !self.cpus[cpu].interrupts.is_empty() {
            return self.in_interrupt(cpu);
        }
        if self.chance(6) {
            return self.interrupt(cpu);
        }
        let Some(task) = self.tasks.get(&current) else {
            return self.schedule(cpu, PrevState::Runnable);
        };
        match (task.call, task.in_fault) {
            (_, true) if self.chance(2) => {
                self.emit(cpu, fault_end());
                self.task(current).in_fault = false;
            }
            (_, true) => self.read(cpu),
            (None, false) => self.in_user(cpu),
            (Some(call), false) => self.in_call(cpu, call),
        }
    }

    fn interrupt(&mut self, cpu: usize) {
        let interrupt = INTERRUPTS[usize::try_from(self.random.below(3)).unwrap()];
        self.emit(cpu, irq(interrupt));
        self.cpus[cpu].interrupts.push(interrupt);
    }

    fn in_interrupt(&mut self, cpu: usize) {
        let innermost = *self.cpus[cpu].interrupts.last().unwrap();
        match self.random.below(5) {
            0 if self.cpus[cpu].interrupts.len() < 3 => self.interrupt(cpu),
            1 => self.wake_any(cpu, &format!("{innermost:?}")),
            2 => self.complete(cpu),
            _ => {
                self.emit(cpu, irq_end(innermost));
                self.cpus[cpu].interrupts.pop();
            }
        }
    }

    fn in_user(&mut self, cpu: usize) {
        let current = self.cpus[cpu].current;
        match self.random.below(4) {
            0 => {
                self.emit(cpu, fault(true));
                self.task(current).in_fault = true;
            }
            1 if self.chance(2) => self.schedule(cpu, PrevState::Runnable),
            _ => {
                let call = u16::try_from(self.random.below(200)).unwrap();
                self.emit(cpu, enter(current, call));
                self.task(current).call = Some(call);
            }
        }
    }

    fn in_call(&mut self, cpu: usize, call: u16) {
        let current = self.cpus[cpu].current;
        match self.random.below(9) {
            0 => {
                self.emit(cpu, fault(false));
                self.task(current).in_fault = true;
            }
            1 => self.read(cpu),
            2 => self.schedule(cpu, PrevState::Sleep),
            3 => self.wake_any(cpu, &format!("task{current}")),
            4 => self.schedule(cpu, PrevState::Runnable),
            5 if self.tasks.len() < 12 => self.fork(cpu),
            6 if current != 1 && self.chance(4) => {
                self.emit(cpu, exit(current));
                self.schedule(cpu, PrevState::Dead);
            }
            _ => {
                self.emit(cpu, leave(current, call));
                self.task(current).call = None;
            }
        }
    }

    fn fork(&mut self, cpu: usize) {
        let (current, child) = (self.cpus[cpu].current, self.next_tid);
        self.next_tid += 1;
        self.emit(cpu, fork(current, child));
        let call = self.task(current).call;
        let state = "queued".to_owned();
        let since = self.now;
        self.tasks.insert(child, Task { state, since, call, queued: true, ..Task::default() });
    }

    /// Asks a disk for something and sleeps until it is there.
    fn read(&mut self, cpu: usize) {
        let current = self.cpus[cpu].current;
        self.next_request += 1;
        let name = self.next_request;
        if self.chance(2) {
            self.emit(cpu, TraceEventKind::BlockInsert(request(name, current)));
        }
        self.emit(cpu, TraceEventKind::BlockIssue(request(name, current)));
        if self.requests.is_empty() {
            self.busy_since = self.now;
        }
        let task = self.task(current);
        let row = task.n_requests;
        task.n_requests += 1;
        self.requests.insert(name, (current, row));
        self.schedule(cpu, PrevState::Uninterruptible { io: true });
        self.task(current).wakeable = false;
    }

    fn complete(&mut self, cpu: usize) {
        let Some((&name, &(task, row))) = self.requests.first_key_value() else { return };
        self.emit(cpu, done(name));
        self.requests.remove(&name);
        if self.requests.is_empty() {
            self.busy.push((self.busy_since, self.now));
        }
        self.wake(cpu, task, &format!("request{row}of{task}"));
        // What comes after this in the same interrupt would be taken for the request's doing, too.
        let innermost = *self.cpus[cpu].interrupts.last().unwrap();
        self.emit(cpu, irq_end(innermost));
        self.cpus[cpu].interrupts.pop();
    }

    fn wake_any(&mut self, cpu: usize, by: &str) {
        let asleep: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.wakeable).map(|(tid, _)| *tid).collect();
        if !asleep.is_empty() {
            let number = usize::try_from(self.random.below(asleep.len() as u64)).unwrap();
            self.wake(cpu, asleep[number], by);
        }
    }

    fn wake(&mut self, cpu: usize, task: u32, by: &str) {
        let current = self.cpus[cpu].current;
        self.emit(cpu, waking(task, current));
        let time = self.now;
        self.task(task).state += &format!(" by={by}@{time}");
        self.emit(cpu, wakeup(task));
        self.become_state(task, "queued");
        let task = self.task(task);
        (task.queued, task.wakeable) = (true, false);
    }

    /// Gives the CPU to another task, or to none.
    fn schedule(&mut self, cpu: usize, prev_state: PrevState) {
        let prev = self.cpus[cpu].current;
        let queued: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.queued).map(|(tid, _)| *tid).collect();
        let next = queued.get(usize::try_from(self.random.below(4)).unwrap()).copied();
        let next = next.unwrap_or(0);
        if prev == 0 && next == 0 {
            return;
        }
        self.emit(cpu, switch(prev, prev_state, next));
        self.leave_cpu(prev, prev_state);
        if next != 0 {
            self.become_state(next, &format!("cpu{cpu}"));
            self.task(next).queued = false;
        }
        self.cpus[cpu].current = next;
    }

    fn leave_cpu(&mut self, tid: u32, prev_state: PrevState) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        task.queued = prev_state == PrevState::Runnable;
        task.wakeable = prev_state == PrevState::Sleep;
        let call = task.call.map_or(String::new(), |call| format!(" call{call}"));
        let in_fault = if task.in_fault { " fault" } else { "" };
        match prev_state {
            PrevState::Runnable => self.become_state(tid, "preempted"),
            PrevState::Sleep => self.become_state(tid, &format!("asleep stack7{call}{in_fault}")),
            PrevState::Dead => self.become_state(tid, "dead"),
            _ => self.become_state(tid, &format!("asleep stack7 deep io{call}{in_fault}")),
        }
    }

    fn become_state(&mut self, tid: u32, state: &str) {
        let now = self.now;
        let task = self.task(tid);
        if task.state != "dead" {
            task.done.push(format!("{}-{now} {}", task.since, task.state));
        }
        (task.state, task.since) = (state.to_owned(), now);
    }

    fn task(&mut self, tid: u32) -> &mut Task {
        self.tasks.get_mut(&tid).unwrap()
    }

    fn end(&mut self) {
        self.now += 7;
        for cpu in 0..2 {
            let work = self.work(cpu);
            self.cpus[cpu].draw_until(self.now, work);
            self.cpus[cpu].draw_until(self.now, "end".to_owned());
        }
        if !self.requests.is_empty() {
            self.busy.push((self.busy_since, self.now));
        }
        for tid in self.tasks.keys().copied().collect::<Vec<_>>() {
            if self.task(tid).state != "dead" {
                self.become_state(tid, "dead");
            }
        }
    }
}

impl Cpu {
    /// It does this until now; what it did before ends where this is another thing.
    fn draw_until(&mut self, now: u64, work: String) {
        if self.last != work {
            if self.since < self.drawn {
                self.done.push(format!("{}-{} {}", self.since, self.drawn, self.last));
            }
            (self.since, self.last) = (self.drawn, work);
        }
        self.drawn = now;
    }
}

fn is_fault_end(event: &TraceEvent) -> bool {
    matches!(event.kind, TraceEventKind::FaultExit { .. })
}

fn is_switch(event: &TraceEvent, cpu: usize) -> bool {
    event.cpu as usize == cpu && matches!(event.kind, TraceEventKind::Switch { .. })
}

#[test]
fn the_timeline_is_what_the_machine_did() {
    let (mut n_tasks, mut n_busy) = (0, 0);
    for seed in 20..160 {
        let mut machine = Machine::new(0x5eed_0000 + seed as u64);
        // Without any end of a fault, nothing could tell that they are seen here.
        while machine.events.len() < seed * 8 || !machine.events.iter().any(is_fault_end) {
            machine.step();
        }
        machine.end();
        let mut scene = Scene::new(&[]).machine(|row| row.end = HostNs(machine.now));
        scene.events.clone_from(&machine.events);
        let timeline = scene.build();
        assert_eq!(timeline.problems, BTreeMap::new());
        for (tid, task) in &machine.tasks {
            scene.check_task(*tid, &task.done.join(", "));
        }
        for (number, cpu) in machine.cpus.iter().enumerate() {
            // Of one that never switched, no event says that it was idle.
            if !machine.events.iter().any(|event| is_switch(event, number)) {
                continue;
            }
            scene.check_cpu(number, &cpu.done.join(", "));
        }
        if !timeline.disks.is_empty() {
            scene.check_disk(0, &machine.busy);
        }
        (n_tasks, n_busy) = (n_tasks + machine.tasks.len(), n_busy + machine.busy.len());
    }
    assert!(500 < n_tasks && 500 < n_busy, "{n_tasks} tasks, {n_busy} busy times: too few");
}
