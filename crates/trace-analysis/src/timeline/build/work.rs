//! What CPUs execute: system calls, interrupts, page faults.

use model::{HostNs, Interrupt, Tid};

use super::Builder;
use super::cpus::Current;
use super::scope::FaultEnds;
use super::tasks::{Fault, KnownMode, Mode};
use crate::timeline::{Problem, TaskId};

/// Kernel work.
impl Builder<'_> {
    pub(super) fn syscall_enter(&mut self, row: usize, task: Tid, number: u16) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        let Some(id) = self.task_of(task) else { return };
        if let Mode::Syscall(_) = self.tasks[id].context.mode {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.mode_known(id, KnownMode::InUser);
        self.tasks[id].context.enter(number);
        self.calls.begin(id, number, self.now);
    }

    pub(super) fn syscall_exit(&mut self, row: usize, task: Tid, number: u16) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        let Some(id) = self.task_of(task) else { return };
        if self.tasks[id].context.mode == Mode::User {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.mode_known(id, KnownMode::InSyscall(number));
        self.tasks[id].context.leave();
    }

    /// The first event that shows a task's mode determines its mode for all its time so far, unless events were lost.
    pub(super) fn mode_known(&mut self, id: TaskId, known: KnownMode) {
        let task = &mut self.tasks[id];
        if !task.is_mode_unknown() {
            return;
        }
        let slices = std::mem::take(&mut task.unknown_slices);
        if !self.scope.complete {
            return;
        }
        let mode = match known {
            KnownMode::InUser => Mode::User,
            KnownMode::InSyscall(number) => {
                task.slept_in(number);
                Mode::Syscall(number)
            }
        };
        let work = task.executes(mode);
        for (cpu, slice) in slices {
            self.cpus[cpu].did(slice, work);
        }
    }

    pub(super) fn interrupt_exit(&mut self, row: usize, interrupt: Interrupt) {
        if !self.cpus[row].interrupt_exit(interrupt) {
            self.problems.count(Problem::EndWithoutBegin);
        }
    }

    /// A task can act only when no interrupt is being handled. If one seems to be, its end was lost.
    pub(super) fn end_interrupts(&mut self, row: usize) {
        let lost = self.cpus[row].interrupts.len() as u64;
        self.problems.add(Problem::EndWithoutBegin, lost);
        self.cpus[row].interrupts.clear();
    }

    /// A page fault within an interrupt counts as the interrupt.
    pub(super) fn fault_enter(&mut self, row: usize, user: bool) {
        if user {
            self.end_interrupts(row);
        }
        if !self.cpus[row].interrupts.is_empty() {
            return;
        }
        let Current::Task(id) = self.cpus[row].current else { return };
        if user {
            self.mode_known(id, KnownMode::InUser);
        }
        let fault = match self.scope.fault_ends {
            FaultEnds::Seen => Fault::OPEN,
            FaultEnds::Estimated { ns } => Fault::Until(HostNs(self.now.0.saturating_add(ns))),
        };
        let context = &mut self.tasks[id].context;
        if user && let Some(Fault::Open { .. }) = context.fault {
            // The code of a program has no faults in faults.
            self.problems.count(Problem::EndWithoutBegin);
        }
        context.fault(fault, user);
    }

    pub(super) fn fault_exit(&mut self, row: usize) {
        let cpu = &self.cpus[row];
        if !cpu.interrupts.is_empty() {
            return;
        }
        let Current::Task(id) = cpu.current else { return };
        if self.tasks[id].context.fault.take().is_none() {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.tasks[id].context.faulted = false;
    }
}
