//! The tasks that were there when a trace began.
//!
//! Reading `/proc` takes a while, and the machine goes on meanwhile. So it is read twice, just before the probes are
//! attached and just after, and the events of the time until the second reading's end say which row is true of the begin:
//!
//! ```text
//!  read  attach  BEGIN   read
//!  T     |  |    |       T        events say nothing of it: the later row, which is nearest to what comes
//!  T     |  |    |  x    T'       it ran in between: the earlier row
//!        |  T    |       T        made while attaching: the later row
//!        |  |    |  T    T        its making is in the trace: no row
//!  T     |  |    |  end           its end is in the trace: the earlier row
//!  T    end |    |                gone before the trace began: no row
//! ```
//!
//! The system call that a task is found in is the second reading's: it says something only of tasks that neither make nor leave
//! one in the trace.

use std::collections::BTreeMap;

use model::{Tid, TraceEvent, TraceEventKind, TraceTask};

/// The tasks of both readings, and what the events between begin and second reading say of them. A guest may make up any
/// number of events in that time: those of other tasks leave nothing here.
#[derive(Debug, Default)]
pub(super) struct StartupTasks {
    rows: BTreeMap<Tid, Row>,
}

#[derive(Debug, Default)]
struct Row {
    before: Option<TraceTask>,
    after: Option<TraceTask>,
    made: bool,
    ended: bool,
    ran: bool,
}

impl StartupTasks {
    pub(super) fn new(before: Vec<TraceTask>, after: Vec<TraceTask>) -> Self {
        let mut rows = BTreeMap::<Tid, Row>::new();
        for task in before {
            let tid = task.tid;
            rows.entry(tid).or_default().before = Some(task);
        }
        for task in after {
            let tid = task.tid;
            rows.entry(tid).or_default().after = Some(task);
        }
        Self { rows }
    }

    pub(super) fn add(&mut self, event: &TraceEvent) {
        let mut note = |tid: Tid, note: fn(&mut Row)| {
            self.rows.get_mut(&tid).map(note);
        };
        match event.kind {
            TraceEventKind::Fork { child, .. } => note(child, |row| row.made = true),
            TraceEventKind::Exit { task } => note(task, |row| row.ended = true),
            TraceEventKind::Switch { prev, next, .. } => {
                note(prev, |row| row.ran = true);
                note(next, |row| row.ran = true);
            }
            _ => {}
        }
    }

    /// The tasks of the trace's begin, ascending.
    pub(super) fn at_begin(&self) -> Vec<TraceTask> {
        self.rows.values().filter_map(Row::at_begin).collect()
    }
}

impl Row {
    fn at_begin(&self) -> Option<TraceTask> {
        // A number that was made in the trace and ended in it is another task.
        let (task, in_call) = match (&self.before, &self.after) {
            _ if self.made => return None,
            (Some(before), Some(after)) if self.ran => (before, after.in_call),
            (_, Some(after)) => (after, after.in_call),
            (Some(before), None) if self.ended => (before, None),
            (_, None) => return None,
        };
        Some(TraceTask { in_call, ..task.clone() })
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{HostNs, MachineId, Pid, PrevState};

    fn tasks(names: &[(u32, &str)]) -> Vec<TraceTask> {
        let task = |&(tid, name): &(u32, &str)| TraceTask {
            machine: MachineId::HOST,
            tid: Tid(tid),
            pid: Pid(tid),
            parent: Pid(1),
            name: name.to_owned(),
            kernel: false,
            asleep_in: None,
            in_call: None,
        };
        names.iter().map(task).collect()
    }

    #[test]
    fn calls_are_the_second_readings() {
        let found = |call| {
            let in_call = call;
            let mut rows = tasks(&[(7, "a")]);
            rows.iter_mut().for_each(|task| task.in_call = in_call);
            rows
        };
        let ran = TraceEventKind::Switch {
            prev: Tid(7),
            prev_state: PrevState::Sleep,
            stack: None,
            user_stack: None,
            next: Tid(0),
        };
        let check = |what: &[TraceEventKind], before, after, expected: Option<u16>| {
            let mut tasks = StartupTasks::new(before, after);
            for &what in what {
                let (time, machine) = (HostNs(1), MachineId::HOST);
                tasks.add(&TraceEvent { time, machine, cpu: 0, kind: what });
            }
            let settled = tasks.at_begin();
            assert_eq!(settled[0].in_call, expected, "{what:?}");
        };
        check(&[], found(Some(1)), found(Some(2)), Some(2));
        check(&[ran], found(Some(1)), found(Some(2)), Some(2));
        check(&[ran], found(Some(1)), found(None), None);
        check(&[TraceEventKind::Exit { task: Tid(7) }], found(Some(1)), Vec::new(), None);
    }

    fn check(
        what: &[TraceEventKind],
        before: &[(u32, &str)],
        after: &[(u32, &str)],
        expected: &[(u32, &str)],
    ) {
        let mut at_begin = StartupTasks::new(tasks(before), tasks(after));
        for &what in what {
            at_begin.add(&TraceEvent {
                time: HostNs(1),
                machine: MachineId::HOST,
                cpu: 0,
                kind: what,
            });
        }
        assert_eq!(at_begin.at_begin(), tasks(expected), "{what:?}");
    }

    #[test]
    fn rows_of_the_begin() {
        let ran = TraceEventKind::Switch {
            prev: Tid(7),
            prev_state: PrevState::Sleep,
            stack: None,
            user_stack: None,
            next: Tid(0),
        };
        let made =
            TraceEventKind::Fork { parent: Tid(1), child: Tid(7), pid: Pid(7), kernel: false };
        let ended = TraceEventKind::Exit { task: Tid(7) };
        check(&[], &[(7, "a")], &[(7, "b")], &[(7, "b")]);
        check(&[ran], &[(7, "a")], &[(7, "b")], &[(7, "a")]);
        check(&[], &[], &[(7, "b")], &[(7, "b")]);
        check(&[ran], &[], &[(7, "b")], &[(7, "b")]);
        check(&[made], &[], &[(7, "b")], &[]);
        check(&[ended], &[(7, "a")], &[], &[(7, "a")]);
        check(&[], &[(7, "a")], &[], &[]);
        check(&[made, ended], &[], &[], &[]);
        check(&[], &[(5, "x"), (9, "y")], &[(9, "y"), (5, "x")], &[(5, "x"), (9, "y")]);
    }
    #[test]
    fn events_of_other_tasks_leave_nothing() {
        let mut at_begin = StartupTasks::new(tasks(&[(7, "a")]), tasks(&[(8, "b")]));
        for tid in 0..1000 {
            let (parent, child, pid) = (Tid(1), Tid(tid), Pid(tid));
            let stack = None;
            for kind in [
                TraceEventKind::Fork { parent, child, pid, kernel: false },
                TraceEventKind::Exit { task: child },
                TraceEventKind::Switch {
                    prev: child,
                    prev_state: PrevState::Sleep,
                    stack,
                    user_stack: stack,
                    next: child,
                },
            ] {
                let (time, machine) = (HostNs(1), MachineId::HOST);
                at_begin.add(&TraceEvent { time, machine, cpu: 0, kind });
            }
        }
        assert_eq!(at_begin.rows.len(), 2);
    }
}
