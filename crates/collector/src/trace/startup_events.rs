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

use std::collections::{BTreeMap, HashSet};

use model::{Tid, TraceEvent, TraceEventKind, TraceTask};

/// What the events of the time between begin and second reading say.
#[derive(Debug, Default)]
pub(super) struct StartupEvents {
    made: HashSet<Tid>,
    ended: HashSet<Tid>,
    ran: HashSet<Tid>,
}

impl StartupEvents {
    pub(super) fn add(&mut self, event: &TraceEvent) {
        match event.kind {
            TraceEventKind::Fork { child, .. } => {
                self.made.insert(child);
            }
            TraceEventKind::Exit { task } => {
                self.ended.insert(task);
            }
            TraceEventKind::Switch { prev, next, .. } => {
                self.ran.extend([prev, next]);
            }
            _ => {}
        }
    }

    /// The tasks of the trace's begin, ascending.
    pub(super) fn tasks_at_begin(
        &self,
        before: Vec<TraceTask>,
        after: Vec<TraceTask>,
    ) -> Vec<TraceTask> {
        let mut rows: BTreeMap<Tid, TraceTask> = BTreeMap::new();
        let mut earlier: BTreeMap<Tid, TraceTask> =
            before.into_iter().map(|task| (task.tid, task)).collect();
        for task in after.into_iter().filter(|task| !self.made.contains(&task.tid)) {
            let in_call = task.in_call;
            let earlier = earlier.remove(&task.tid).filter(|_| self.ran.contains(&task.tid));
            rows.insert(task.tid, TraceTask { in_call, ..earlier.unwrap_or(task) });
        }
        // A number that was made in the trace and ended in it is another task.
        let ended = |tid: &Tid| self.ended.contains(tid) && !self.made.contains(tid);
        let ended = earlier.into_iter().filter(|(tid, _)| ended(tid));
        rows.extend(ended.map(|(tid, task)| (tid, TraceTask { in_call: None, ..task })));
        rows.into_values().collect()
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
            next: Tid(0),
        };
        let check = |what: &[TraceEventKind], before, after, expected: Option<u16>| {
            let mut events = StartupEvents::default();
            for &what in what {
                let (time, machine) = (HostNs(1), MachineId::HOST);
                events.add(&TraceEvent { time, machine, cpu: 0, kind: what });
            }
            let settled = events.tasks_at_begin(before, after);
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
        let mut events = StartupEvents::default();
        for &what in what {
            events.add(&TraceEvent {
                time: HostNs(1),
                machine: MachineId::HOST,
                cpu: 0,
                kind: what,
            });
        }
        let settled = events.tasks_at_begin(tasks(before), tasks(after));
        assert_eq!(settled, tasks(expected), "{what:?}");
    }

    #[test]
    fn rows_of_the_begin() {
        let ran = TraceEventKind::Switch {
            prev: Tid(7),
            prev_state: PrevState::Sleep,
            stack: None,
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
}
