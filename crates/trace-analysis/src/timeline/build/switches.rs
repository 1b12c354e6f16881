//! Which task has which CPU, and which task wakes which.

use model::{PrevState, Tid, TraceStack};

use super::Builder;
use super::cpus::Current;
use super::tasks::Fault;
use crate::timeline::{Problem, Sleep, State, TaskId, Waker, WokenBy, Work};

/// Which task has which CPU.
impl Builder<'_> {
    /// Draws what the CPU did until now. An estimated fault ends here at the latest, and one whose end was missed.
    pub(super) fn flush(&mut self, row: usize) {
        let cpu = &mut self.cpus[row];
        if let Some(interrupt) = cpu.interrupts.last() {
            cpu.push_until(self.now, Work::Interrupt(*interrupt));
            return;
        }
        let Current::Task(id) = cpu.current else {
            cpu.push_until(self.now, cpu.current.work());
            return;
        };
        let task = &mut self.tasks[id];
        if let Some(fault) = task.context.fault {
            let (end, rest) = fault.runs(cpu.drawn(), self.now);
            cpu.push_until(end, task.work());
            task.context.fault = rest;
            if matches!((fault, rest), (Fault::Open { .. }, None)) {
                self.problems.count(Problem::EndWithoutBegin);
            }
        }
        let slice = cpu.push_until(self.now, task.work());
        if task.is_mode_unknown() {
            task.unknown_slices.extend(slice.map(|slice| (row, slice)));
        }
    }

    /// This CPU's activity is unknown since its last event, up to which it is drawn.
    pub(super) fn lose(&mut self, row: usize) {
        let cpu = &mut self.cpus[row];
        if let Current::Task(id) = cpu.current {
            let task = &mut self.tasks[id];
            task.waking = None;
            if task.runs_on(cpu.number) {
                task.become_state(cpu.drawn(), State::Unknown);
            }
        }
        cpu.forget();
    }

    /// The same for the CPU that a task was thought to have.
    pub(super) fn lose_cpu_of(&mut self, id: TaskId) {
        if let State::Running { cpu } = self.tasks[id].state
            && let Some(row) = self.scope.row(cpu)
        {
            self.lose(row);
        }
    }

    /// This CPU is seen to run something; if that is news, the begin is unknown.
    pub(super) fn place(&mut self, row: usize, seen: Current) {
        if self.cpus[row].current == seen {
            return;
        }
        if self.cpus[row].is_first_event() && self.scope.complete {
            self.tell_cpu(row, seen);
        }
        if let Current::Task(id) = seen {
            let number = self.cpus[row].number;
            if self.tasks[id].runs_on(number) {
                self.cpus[row].current = seen;
                return;
            }
            self.lose_cpu_of(id);
            let task = &mut self.tasks[id];
            (task.state, task.waking) = (State::Unknown, None);
            task.become_state(self.now, State::Running { cpu: number });
        }
        self.cpus[row].current = seen;
    }

    /// The first event that tells whom a CPU runs tells of all its time so far.
    pub(super) fn tell_cpu(&mut self, row: usize, seen: Current) {
        let cpu = &mut self.cpus[row];
        let Current::Task(id) = seen else {
            cpu.had(None, seen.work());
            return;
        };
        let task = &mut self.tasks[id];
        task.was(State::Running { cpu: cpu.number });
        if task.runs_on(cpu.number) {
            let slices = cpu.had(Some(id), task.work());
            if task.is_mode_unknown() {
                task.unknown_slices.extend(slices.into_iter().map(|slice| (row, slice)));
            }
        }
    }

    pub(super) fn switch(
        &mut self,
        row: usize,
        prev: Tid,
        prev_state: PrevState,
        stacks: [Option<TraceStack>; 2],
        next: Tid,
    ) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        if let Some(id) = self.tasks.find(prev) {
            self.leave(id, prev_state, stacks);
            if let State::Asleep(sleep) = self.tasks[id].state {
                self.files.sleep(id, sleep.io, self.now);
            }
        }
        let next = self.current_of(next);
        if let Current::Task(id) = next {
            self.arrive(row, id);
        }
        self.cpus[row].current = next;
    }

    /// A task loses its CPU. `stacks`: where it was in the kernel, and in its program.
    pub(super) fn leave(
        &mut self,
        id: TaskId,
        prev_state: PrevState,
        stacks: [Option<TraceStack>; 2],
    ) {
        let task = &mut self.tasks[id];
        let (uninterruptible, io) = match prev_state {
            PrevState::Runnable => {
                task.waking = None;
                return task.become_state(self.now, State::Runnable { preempted: true });
            }
            PrevState::Stopped => {
                return task.become_state(self.now, State::Stopped { woken_by: task.waking });
            }
            PrevState::Dead => return self.tasks.end(id, self.now),
            PrevState::Sleep => (false, false),
            PrevState::Uninterruptible { io } => (true, io),
        };
        // A waker that came while it still had the CPU: the kernel queues it as soon as it is off.
        if let Some(waker) = &mut task.waking {
            waker.time = self.now;
        }
        let context = &task.context;
        let [stack, user_stack] = stacks;
        let sleep = Sleep {
            stack,
            user_stack,
            uninterruptible,
            io,
            syscall: context.syscall(),
            in_fault: context.sleeps_in_fault(),
            // The kernel's locks within the call come first.
            lock: context.lock.or(context.futex),
            woken_by: task.waking,
        };
        task.context.sleeps();
        task.become_state(self.now, State::Asleep(sleep));
    }

    /// A task gets a CPU.
    pub(super) fn arrive(&mut self, row: usize, id: TaskId) {
        if let State::Running { .. } = self.tasks[id].state {
            self.problems.count(Problem::SwitchFromAnother);
            self.lose_cpu_of(id);
        }
        let task = &mut self.tasks[id];
        match (task.waking.take(), &task.state) {
            (_, State::Runnable { .. }) => {}
            // A task that was not woken since the begin, waited since then; the tables may have been read before that.
            (None, _) if self.scope.complete && task.is_untouched(task.task.pid) => {
                task.state = State::Runnable { preempted: true };
            }
            (None, State::Unknown) => {}
            (Some(waker), _) => task.become_state(waker.time, State::Runnable { preempted: false }),
            (None, _) => {
                self.problems.count(Problem::UnseenTask);
                task.state = State::Unknown;
            }
        }
        task.become_state(self.now, State::Running { cpu: self.cpus[row].number });
        self.files.wake(id, self.now);
    }
}

/// Wake-ups.
impl Builder<'_> {
    pub(super) fn waking(&mut self, row: usize, task: Tid, by: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let mut waker = self.waker(row);
        if let WokenBy::Task(_) | WokenBy::Unknown = waker.by {
            // The event names it; whom the CPU was last seen to run may be gone.
            waker.by = self.task_of(by).map_or(WokenBy::Unknown, WokenBy::Task);
        }
        let task = &mut self.tasks[id];
        if self.scope.complete {
            task.was(State::Asleep(Sleep::default()));
        }
        match &mut task.state {
            State::Runnable { .. } => return,
            State::Asleep(Sleep { woken_by, .. }) | State::Stopped { woken_by } => {
                *woken_by = Some(waker);
            }
            State::Running { .. } | State::Unknown => {}
        }
        task.waking = Some(waker);
    }

    pub(super) fn wakeup(&mut self, row: usize, task: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let waker = self.waker(row);
        let task = &mut self.tasks[id];
        if self.scope.complete {
            task.was(State::Asleep(Sleep::default()));
        }
        task.waking = None;
        match &mut task.state {
            // It was about to sleep, and continues.
            State::Running { .. } | State::Runnable { .. } => return,
            State::Asleep(Sleep { woken_by, .. }) | State::Stopped { woken_by } => {
                *woken_by = woken_by.or(Some(waker));
            }
            State::Unknown => {}
        }
        task.become_state(self.now, State::Runnable { preempted: false });
        self.files.wake(id, self.now);
    }

    /// The waker when this CPU wakes a task now.
    pub(super) fn waker(&self, row: usize) -> Waker {
        let cpu = &self.cpus[row];
        let by = match (cpu.completed_here(), cpu.interrupts.last(), cpu.current) {
            (Some((task, row)), _, _) => WokenBy::Request { task, row },
            (None, Some(interrupt), _) => WokenBy::Interrupt(*interrupt),
            (None, None, Current::Task(id)) => WokenBy::Task(id),
            (None, None, Current::Idle | Current::Unknown) => WokenBy::Unknown,
        };
        Waker { time: self.now, by }
    }
}
