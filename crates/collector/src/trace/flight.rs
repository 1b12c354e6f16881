//! The last seconds of a trace, in memory, until they are written.
//!
//! ```text
//!  events --> queue of each CPU --too old, or too many--> what they did to tasks --> tasks at the begin
//! ```
//! The trace begins at `begin`, which moves on: events before it are dropped, in time order over all CPUs, and leave what
//! they say of tasks. So the tasks of the begin are as exact as if `/proc` had been read then.

use std::collections::VecDeque;
use std::time::Duration;

use model::{HostNs, LostEvents, Machine, MachineId, Tid, TraceEvent};
use recording::trace::{EventQueue, TraceWriter};

use super::held_tasks::HeldTasks;
use super::plan::Flight;
use super::source::{Source, SourceTables};

/// Events that are too old are dropped in pieces of this length.
const PIECE: Duration = Duration::from_millis(100);
/// Time between two readings of how much was lost.
const LOSSES_EVERY: Duration = Duration::from_millis(500);

/// The last seconds of a machine's events.
#[derive(Debug, Clone)]
pub(super) struct HeldEvents {
    plan: Flight,
    /// Of each CPU.
    pub(super) queues: Vec<(u32, EventQueue)>,
    /// The begin of a trace that is written now.
    begin: HostNs,
    /// Whether memory, not time, moved the begin the last time.
    is_cut: bool,
    /// The tasks of `begin`; `None`: those of the first begin.
    tasks: Option<HeldTasks>,
    /// How much was lost by then, ascending by time; the first is of `begin` or earlier.
    losses: VecDeque<(HostNs, Vec<LostEvents>)>,
    /// Scratch space of a drop, kept so that the next one allocates nothing.
    dropped: Vec<TraceEvent>,
}

impl HeldEvents {
    pub(super) fn new(plan: Flight, machine: MachineId, cpus: &[u32]) -> Self {
        let queue = |cpu: &u32| (*cpu, EventQueue::new(machine, *cpu));
        Self {
            plan,
            queues: cpus.iter().map(queue).collect(),
            begin: HostNs(0),
            is_cut: false,
            tasks: None,
            losses: VecDeque::new(),
            dropped: Vec::new(),
        }
    }

    /// The recorder's begin.
    pub(super) fn start(&mut self, begin: HostNs) {
        self.begin = begin;
    }

    /// Events held.
    pub(super) fn events(&self) -> u64 {
        self.queues.iter().map(|(_, queue)| queue.events()).sum()
    }

    fn bytes(&self) -> u64 {
        self.queues.iter().map(|(_, queue)| queue.bytes()).sum()
    }

    /// Drops what is too old by more than a piece, and what memory has no room for.
    pub(super) fn limit(&mut self, now: HostNs, source: &mut dyn Source) {
        let is_due = |(time, _): &(HostNs, _)| ns(LOSSES_EVERY) <= now.since(*time);
        if self.losses.back().is_none_or(is_due) {
            self.losses.push_back((now, source.machine().lost));
        }
        if self.begin_by_time(now).0 > self.begin.0 + ns(PIECE) {
            self.begin_at(self.begin_by_time(now), source);
            self.is_cut = false;
        }
        while self.plan.bytes < self.bytes() {
            let oldest = self.queues.iter().filter_map(|(_, queue)| queue.oldest()).min();
            let Some(HostNs(oldest)) = oldest else { return };
            self.begin_at(HostNs(oldest + 1), source);
            self.is_cut = true;
        }
    }

    /// The trace is to begin no earlier than this.
    fn begin_by_time(&self, now: HostNs) -> HostNs {
        HostNs(now.0.saturating_sub(ns(self.plan.keep)))
    }

    /// Drops what is too old for a trace that ends at `end`.
    pub(super) fn end_at(&mut self, end: HostNs, source: &mut dyn Source) {
        let begin = self.begin_by_time(end);
        if self.begin < begin {
            self.begin_at(begin, source);
            self.is_cut = false;
        }
    }

    fn begin_at(&mut self, begin: HostNs, source: &mut dyn Source) {
        if begin <= self.begin {
            return;
        }
        self.begin = begin;
        self.dropped.clear();
        for (_, queue) in &mut self.queues {
            queue.drop_before(begin, &mut self.dropped);
        }
        self.dropped.sort_by_key(|event| event.time);
        let tasks = self.tasks.get_or_insert_with(|| HeldTasks::new(source.tables().tasks));
        self.dropped.iter().for_each(|event| tasks.see(event));
        tasks.forget_ended(begin);
        while self.losses.get(1).is_some_and(|(time, _)| *time <= begin) {
            self.losses.pop_front();
        }
    }

    /// Sets a machine's facts to those at the start of the trace, which is later than the recorder's start.
    pub(super) fn amend(&self, row: &mut Machine) {
        row.begin = self.begin;
        if let (Some((_, before)), true) = (self.losses.front(), self.tasks.is_some()) {
            row.lost = lost_since(before, &row.lost);
        }
    }

    /// The same of its tables.
    pub(super) fn amend_tables(&self, tables: &mut SourceTables) {
        if let Some(tasks) = &self.tasks {
            tables.tasks = tasks.at_begin(&tables.stacks);
        }
    }

    /// Whether this task began its program before the begin.
    pub(super) fn has_begun_program(&self, task: Tid) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.has_begun_program(task))
    }

    /// Writes the events up to `end`. Returns how many.
    pub(super) fn write(
        &self,
        machine: MachineId,
        writer: &TraceWriter,
        end: HostNs,
    ) -> Result<u64, recording::Error> {
        let mut written = 0;
        for (cpu, queue) in &self.queues {
            written += queue.append_to(&mut writer.spool(machine, *cpu)?, end)?;
        }
        Ok(written)
    }

    /// What the user should know of a trace from `begin` to `end`, whose recorder began at `began`.
    pub(super) fn note(&self, began: HostNs, begin: HostNs, end: HostNs) -> String {
        let seconds = |from: HostNs| end.since(from) as f64 / 1e9;
        let mut note = format!(
            "flight recorder: the last {:.1} s of {:.1} s, {} MiB in memory",
            seconds(begin),
            seconds(began),
            self.bytes().div_ceil(1 << 20),
        );
        if self.is_cut {
            note += &format!(
                "; {:.1} s were to be kept: events before found no room (--flight-memory)",
                self.plan.keep.as_secs_f64()
            );
        }
        note
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What was lost after `before`. Counters only grow.
fn lost_since(before: &[LostEvents], now: &[LostEvents]) -> Vec<LostEvents> {
    let earlier = |row: &LostEvents| {
        let same = |other: &&LostEvents| (other.cpu, other.kind) == (row.cpu, row.kind);
        before.iter().find(same).map_or(0, |other| other.count)
    };
    let since =
        |row: &LostEvents| LostEvents { count: row.count.saturating_sub(earlier(row)), ..*row };
    now.iter().map(since).filter(|row| 0 < row.count).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn losses_before_the_begin_do_not_count() {
        let row = |cpu, count| LostEvents { cpu, kind: None, count };
        let before = [row(0, 5), row(1, 7)];
        let now = [row(0, 5), row(1, 9), row(2, 3)];
        assert_eq!(lost_since(&before, &now), [row(1, 2), row(2, 3)]);
        assert_eq!(lost_since(&[], &now), now);
    }
}
