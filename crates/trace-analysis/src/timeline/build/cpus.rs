//! One CPU while its events go by.

use model::{HostNs, Interrupt};

use crate::timeline::{Cpu, Slices, TaskId, Work};

/// Interrupts nest a few deep; more than this come only from lost or made-up events.
const MAX_NESTED: usize = 16;

/// A CPU while its events go by.
#[derive(Debug)]
pub(super) struct TrackedCpu {
    pub(super) number: u32,
    pub(super) current: Current,
    /// Being handled, the innermost last.
    pub(super) interrupts: Vec<Interrupt>,
    /// A request that was completed here, and how many interrupts were being handled then.
    pub(super) completed: Option<(usize, RequestRow)>,
    /// Up to its last event, when this one is not applied yet.
    slices: Slices,
    /// No event has shown which task has it.
    without_event: bool,
}

/// Who made a request, and which of its requests it is.
pub(super) type RequestRow = (TaskId, u32);

/// Who has a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Current {
    /// No event yet, or events were lost.
    Unknown,
    Idle,
    Task(TaskId),
}

impl Current {
    fn task(self) -> Option<TaskId> {
        match self {
            Self::Task(id) => Some(id),
            Self::Unknown | Self::Idle => None,
        }
    }

    /// What a CPU without a task executes.
    pub(super) fn work(self) -> Work {
        match self {
            Self::Idle => Work::Idle,
            Self::Unknown | Self::Task(_) => Work::Unknown,
        }
    }
}

impl TrackedCpu {
    pub(super) fn new(number: u32, begin: HostNs) -> Self {
        Self {
            number,
            current: Current::Unknown,
            interrupts: Vec::new(),
            completed: None,
            slices: Slices::beginning(begin),
            without_event: true,
        }
    }

    pub(super) fn finish(self) -> Cpu {
        Cpu { number: self.number, slices: self.slices }
    }

    /// Whether it was thought to run another task.
    pub(super) fn contradicts(&self, seen: Current) -> bool {
        self.current != Current::Unknown && self.current != seen
    }

    pub(super) fn forget(&mut self) {
        self.current = Current::Unknown;
        self.completed = None;
        self.interrupts.clear();
    }

    /// Whether this is the first event that shows its task.
    pub(super) fn is_first_event(&mut self) -> bool {
        std::mem::replace(&mut self.without_event, false)
    }

    /// Sets the task of all slices so far. Returns the rows of slices that now execute `work`, those outside
    /// interrupts.
    pub(super) fn had(&mut self, task: Option<TaskId>, work: Work) -> Vec<usize> {
        let mut rows = Vec::new();
        for row in 0..self.slices.len() {
            let Some(slice) = self.slices.get(row) else { break };
            let unknown = slice.work == Work::Unknown;
            self.slices.set(row, task, if unknown { work } else { slice.work });
            rows.extend(unknown.then_some(row));
        }
        rows
    }

    /// Sets what it executed in a slice.
    pub(super) fn did(&mut self, row: usize, work: Work) {
        if let Some(slice) = self.slices.get(row) {
            self.slices.set(row, slice.task, work);
        }
    }

    /// End of the last slice.
    pub(super) fn drawn(&self) -> HostNs {
        self.slices.end()
    }

    /// It did this since the last slice; the row of the slice if there had to be a new one.
    pub(super) fn push_until(&mut self, end: HostNs, work: Work) -> Option<usize> {
        let task = self.current.task();
        if end <= self.drawn() || self.slices.extend(end, task, work) {
            return None;
        }
        self.slices.push(end, task, work);
        Some(self.slices.len() - 1)
    }

    pub(super) fn interrupt_enter(&mut self, interrupt: Interrupt) {
        if self.interrupts.len() == MAX_NESTED {
            self.interrupts.clear();
        }
        self.interrupts.push(interrupt);
    }

    /// Ends it, and those within it whose ends were lost; false: it was not being handled.
    pub(super) fn interrupt_exit(&mut self, interrupt: Interrupt) -> bool {
        let depth = self.interrupts.iter().rposition(|handled| *handled == interrupt);
        if let Some(depth) = depth {
            self.interrupts.truncate(depth);
            self.completed = self.completed.filter(|(nested, _)| *nested <= depth);
        }
        depth.is_some()
    }

    /// A request was completed here; `None`: by whom it was made is not known.
    pub(super) fn complete(&mut self, request: Option<RequestRow>) {
        self.completed = request.map(|request| (self.interrupts.len(), request));
    }

    /// The request whose completion is under way.
    pub(super) fn completed_here(&self) -> Option<RequestRow> {
        let (depth, request) = self.completed?;
        (depth == self.interrupts.len()).then_some(request)
    }
}
