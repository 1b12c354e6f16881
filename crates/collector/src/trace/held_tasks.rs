//! Tasks as dropped events leave them: those that are there when a flight recorder's trace begins.

use std::collections::{BTreeMap, BTreeSet};

use model::{HostNs, Pid, PrevState, Tid, TraceEvent, TraceEventKind, TraceStack, TraceTask};

/// A task that ends is switched from for the last time within this time.
const LAST_SWITCH_NS: u64 = 5_000_000_000;

/// The tasks of a moment, and how events change them. Events must come in time order.
#[derive(Debug, Clone)]
pub(super) struct HeldTasks {
    rows: BTreeMap<Tid, Row>,
    /// Who was last switched to, by CPU.
    running: BTreeMap<u32, Tid>,
    /// Tasks that began a program.
    programs: BTreeSet<Tid>,
}

#[derive(Debug, Clone)]
struct Row {
    task: TraceTask,
    /// The stack where it fell asleep, once it did.
    asleep: Option<Option<TraceStack>>,
    ended: Option<HostNs>,
}

impl HeldTasks {
    pub(super) fn new(tasks: Vec<TraceTask>) -> Self {
        let row = |task: TraceTask| (task.tid, Row { task, asleep: None, ended: None });
        let rows = tasks.into_iter().map(row).collect();
        Self { rows, running: BTreeMap::new(), programs: BTreeSet::new() }
    }

    pub(super) fn see(&mut self, event: &TraceEvent) {
        match event.kind {
            TraceEventKind::Switch { prev, prev_state, stack, next, .. } => {
                self.switch(prev, prev_state, stack);
                self.wake(next);
                self.running.insert(event.cpu, next);
            }
            TraceEventKind::Wakeup { task, .. } => self.wake(task),
            TraceEventKind::Fork { parent, child, pid, kernel } => {
                let row = self.child(event, parent, child, pid, kernel);
                self.rows.insert(child, row);
                self.programs.remove(&child);
            }
            TraceEventKind::Exec { task, name } => {
                self.take_over_tid(event.cpu, task);
                self.programs.insert(task);
                self.change(task, |task| {
                    task.name = name.text();
                    task.kernel = false;
                });
            }
            TraceEventKind::Rename { task, name } => {
                self.change(task, |task| task.name = name.text());
            }
            TraceEventKind::Exit { task } => {
                if let Some(row) = self.rows.get_mut(&task) {
                    row.ended = Some(event.time);
                }
            }
            TraceEventKind::SyscallEnter { task, number } => {
                self.change(task, |task| task.in_call = Some(number));
            }
            TraceEventKind::SyscallExit { task, .. } => {
                self.change(task, |task| task.in_call = None);
            }
            _ => {}
        }
    }

    fn change(&mut self, tid: Tid, change: impl FnOnce(&mut TraceTask)) {
        if let Some(row) = self.rows.get_mut(&tid) {
            change(&mut row.task);
        }
    }

    fn switch(&mut self, prev: Tid, state: PrevState, stack: Option<TraceStack>) {
        match state {
            PrevState::Dead => {
                self.rows.remove(&prev);
                self.programs.remove(&prev);
            }
            PrevState::Sleep | PrevState::Uninterruptible { .. } => {
                if let Some(row) = self.rows.get_mut(&prev) {
                    row.asleep = Some(stack);
                }
            }
            PrevState::Runnable | PrevState::Stopped => self.wake(prev),
        }
    }

    fn wake(&mut self, tid: Tid) {
        if let Some(row) = self.rows.get_mut(&tid) {
            row.asleep = None;
            row.task.asleep_in = None;
        }
    }

    fn child(&self, event: &TraceEvent, parent: Tid, tid: Tid, pid: Pid, kernel: bool) -> Row {
        let parent = self.rows.get(&parent).map(|row| &row.task);
        let is_thread = tid.0 != pid.0;
        let above = |parent: &TraceTask| if is_thread { parent.parent } else { parent.pid };
        let name = parent.map(|parent| parent.name.clone()).unwrap_or_default();
        let task = TraceTask {
            machine: event.machine,
            tid,
            pid,
            parent: parent.map_or(Pid(0), above),
            name,
            kernel,
            asleep_in: None,
            in_call: None,
        };
        Row { task, asleep: None, ended: None }
    }

    /// A thread that begins a program goes on under the id of its process's first thread, which has ended.
    fn take_over_tid(&mut self, cpu: u32, tid: Tid) {
        let Some(running) = self.running.insert(cpu, tid).filter(|running| *running != tid) else {
            return;
        };
        let is_thread = self.rows.get(&running).is_some_and(|row| row.task.pid.0 == tid.0);
        if let Some(mut row) = self.rows.remove(&running).filter(|_| is_thread) {
            row.task.tid = tid;
            self.rows.insert(tid, row);
        }
    }

    /// Forgets tasks of which a filter left out the last switch.
    pub(super) fn forget_ended(&mut self, now: HostNs) {
        let has_gone = |row: &Row| row.ended.is_some_and(|end| LAST_SWITCH_NS < now.since(end));
        self.rows.retain(|_, row| !has_gone(row));
        self.programs.retain(|tid| self.rows.contains_key(tid));
    }

    pub(super) fn has_begun_program(&self, task: Tid) -> bool {
        self.programs.contains(&task)
    }

    /// The tasks now, ascending, with the functions of `stacks` (ascending) where they sleep.
    pub(super) fn at_begin(&self, stacks: &[(TraceStack, Vec<String>)]) -> Vec<TraceTask> {
        let functions = |stack: TraceStack| {
            let row = stacks.binary_search_by_key(&stack, |(number, _)| *number);
            row.map_or(String::new(), |row| stacks[row].1.join(";"))
        };
        let task = |row: &Row| {
            let mut task = row.task.clone();
            if let Some(stack) = row.asleep {
                task.asleep_in = Some(stack.map_or(String::new(), functions));
            }
            task
        };
        self.rows.values().map(task).collect()
    }
}

#[cfg(test)]
mod test {
    use model::{MachineId, TaskName};

    use super::*;

    fn task(tid: u32, pid: u32, parent: u32, name: &str) -> TraceTask {
        TraceTask {
            machine: MachineId::HOST,
            tid: Tid(tid),
            pid: Pid(pid),
            parent: Pid(parent),
            name: name.to_owned(),
            kernel: false,
            asleep_in: None,
            in_call: None,
        }
    }

    fn switch(prev: u32, prev_state: PrevState, stack: Option<u32>, next: u32) -> TraceEventKind {
        let (prev, next, stack) = (Tid(prev), Tid(next), stack.map(TraceStack));
        TraceEventKind::Switch { prev, prev_state, stack, user_stack: None, next }
    }

    fn fork(parent: u32, child: u32, pid: u32) -> TraceEventKind {
        let (parent, child, pid) = (Tid(parent), Tid(child), Pid(pid));
        TraceEventKind::Fork { parent, child, pid, kernel: false }
    }

    fn exec(task: u32, name: &[u8]) -> TraceEventKind {
        TraceEventKind::Exec { task: Tid(task), name: TaskName::new(name) }
    }

    /// Events of one CPU, a second apart, and the tasks that they leave of 5, a thread 6 of it, and 9, which sleeps.
    fn check(events: &[TraceEventKind], expected: &[TraceTask]) {
        let asleep = TraceTask { asleep_in: Some("poll".to_owned()), ..task(9, 9, 1, "sh") };
        let mut tasks =
            HeldTasks::new(vec![task(5, 5, 1, "make"), task(6, 5, 1, "make"), asleep.clone()]);
        let mut time = HostNs(0);
        for &kind in events {
            tasks.see(&TraceEvent { time, machine: MachineId::HOST, cpu: 0, kind });
            time.0 += 1_000_000_000;
        }
        tasks.forget_ended(time);
        let stacks = [(TraceStack(3), vec!["schedule".to_owned(), "do_wait".to_owned()])];
        assert_eq!(tasks.at_begin(&stacks), expected, "{events:?}");
    }

    #[test]
    fn events_change_tasks() {
        let [a, b] = [task(5, 5, 1, "make"), task(6, 5, 1, "make")];
        let c = TraceTask { asleep_in: Some("poll".to_owned()), ..task(9, 9, 1, "sh") };
        let all = |first: TraceTask| vec![first, b.clone(), c.clone()];
        check(&[], &all(a.clone()));
        // Asleep, with its stack or without; and awake again.
        let asleep_in = |text: &str| TraceTask { asleep_in: Some(text.to_owned()), ..a.clone() };
        check(&[switch(5, PrevState::Sleep, Some(3), 0)], &all(asleep_in("schedule;do_wait")));
        let disk = PrevState::Uninterruptible { io: true };
        check(&[switch(5, disk, Some(4), 0)], &all(asleep_in("")));
        check(&[switch(5, disk, None, 0)], &all(asleep_in("")));
        let wakeup = TraceEventKind::Wakeup { task: Tid(5), target_cpu: 0 };
        check(&[switch(5, PrevState::Sleep, Some(3), 0), wakeup], &all(a.clone()));
        // Calls.
        let enter = TraceEventKind::SyscallEnter { task: Tid(5), number: 61 };
        let exit = TraceEventKind::SyscallExit { task: Tid(5), number: 61, failed: false };
        check(&[enter], &all(TraceTask { in_call: Some(61), ..a.clone() }));
        check(&[enter, exit], &all(a.clone()));
        // A process, a thread, a program.
        let thread = task(8, 7, 5, "make");
        let process = task(7, 7, 5, "cc1");
        let rows = [a.clone(), b.clone(), process, thread, c.clone()];
        check(&[fork(5, 7, 7), fork(7, 8, 7), exec(7, b"cc1")], &rows);
        // Ends: with the last switch, or long ago.
        let ends = TraceEventKind::Exit { task: Tid(5) };
        check(&[ends], &all(a.clone()));
        check(&[ends, switch(5, PrevState::Dead, None, 0)], &[b.clone(), c.clone()]);
        check(&[ends, enter, exit, enter, exit, enter, exit], &[b.clone(), c.clone()]);
    }

    #[test]
    fn a_thread_that_begins_a_program_has_its_process_s_id() {
        let others = [TraceTask { asleep_in: Some("poll".to_owned()), ..task(9, 9, 1, "sh") }];
        let ends = TraceEventKind::Exit { task: Tid(5) };
        let dead = switch(5, PrevState::Dead, None, 6);
        check(&[ends, dead, exec(5, b"ls")], &[task(5, 5, 1, "ls"), others[0].clone()]);
    }

    #[test]
    fn programs_that_have_begun() {
        let mut tasks = HeldTasks::new(vec![task(5, 5, 1, "make")]);
        let event = |kind| TraceEvent { time: HostNs(1), machine: MachineId::HOST, cpu: 0, kind };
        assert!(!tasks.has_begun_program(Tid(5)));
        tasks.see(&event(exec(5, b"ls")));
        assert!(tasks.has_begun_program(Tid(5)));
        tasks.see(&event(fork(1, 5, 5)));
        assert!(!tasks.has_begun_program(Tid(5)));
    }
}
