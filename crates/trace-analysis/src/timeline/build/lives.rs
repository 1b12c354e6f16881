//! Tasks begin, run programs, and end.

use model::{TaskName, Tid, TraceEventKind};

use super::cpus::Current;
use super::tasks::{Made, Mode};
use super::{Builder, EXECVE};
use crate::timeline::{State, TaskId};

/// Tasks' lives.
impl Builder<'_> {
    pub(super) fn fork(&mut self, row: usize, parent: Tid, made: Made) {
        self.end_interrupts(row);
        if made.tid == Tid(0) {
            return;
        }
        let parent = self.task_of(parent);
        if let Some(old) = self.tasks.find(made.tid)
            && !self.tasks[old].is_untouched(made.pid)
        {
            self.lose_cpu_of(old);
            self.tasks[old].state = State::Unknown;
            self.tasks.end(old, self.now);
        }
        self.tasks.fork(parent, made, self.now);
    }

    /// When a thread that is not its process's first runs another program, it takes the first one's id.
    pub(super) fn take_over_tid(&mut self, row: usize, what: &TraceEventKind) {
        let TraceEventKind::Exec { task: tid, .. } = *what else { return };
        let Current::Task(id) = self.cpus[row].current else { return };
        let task = &self.tasks[id].task;
        if task.tid == tid || task.pid.0 != tid.0 {
            return;
        }
        if let Some(first) = self.tasks.find(tid) {
            self.lose_cpu_of(first);
            self.tasks.end(first, self.now);
        }
        self.tasks.change_tid(id, tid);
    }

    pub(super) fn exec(&mut self, task: Tid, name: TaskName) {
        let Some(mut id) = self.task_of(task) else { return };
        if self.held.take_if(|held| *held == task).is_some() {
            id = self.release(id, name);
        }
        let task = &mut self.tasks[id];
        if task.task.kernel {
            // The kernel starts a program of its own accord; on return to it there is the end of a system call.
            task.task.kernel = false;
            task.context.mode = Mode::Syscall(EXECVE);
        }
        task.rename(self.now, name.text());
    }

    /// The command's first task was held back until all was traced: what it does from here on is a life of its own.
    fn release(&mut self, held: TaskId, name: TaskName) -> TaskId {
        let id = self.tasks.succeed(held, self.now, name.text());
        self.calls.hand_over(held, id, self.now);
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.current == Current::Task(held)) {
            cpu.current = Current::Task(id);
        }
        id
    }

    pub(super) fn rename(&mut self, task: Tid, name: TaskName) {
        if let Some(id) = self.task_of(task) {
            self.tasks[id].rename(self.now, name.text());
        }
    }

    pub(super) fn exit(&mut self, task: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let task = &mut self.tasks[id];
        task.task.exited = true;
        task.context.exit();
        self.files.end_call(id, self.now);
    }
}
