//! How long each task ran on a CPU, waited for one or needed none, and at the same time had a disk working for it,
//! waited for one or needed none.
//!
//! ```text
//!                    disk running   disk waiting   no disk
//!   CPU running           ns             ns           ns
//!   CPU waiting           ns             ns           ns
//!   no CPU                ns             ns           ns      ... which, with the unknown time, sum to the life
//! ```

use std::collections::BTreeMap;

use crate::cover::{Edge, Stretch, cross, edges, levels};
use crate::processes::Processes;
use crate::timeline::{Segment, State, Task, TaskId, Timeline};

/// The tables of some tasks, and of what they make up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct States {
    pub total: Table,
    /// Each task, in the requested order.
    pub tasks: Vec<(TaskId, Table)>,
    /// Each process, by its first thread's row, ascending.
    pub processes: Vec<(TaskId, Table)>,
    /// Each command name, the one with the longest time first: what processes are called in the end.
    pub names: Vec<Named>,
}

/// All processes of one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Named {
    pub name: String,
    pub n_processes: u64,
    /// Their tasks' time.
    pub table: Table,
}

/// A life, or several, divided by what was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Table {
    /// In ns; the row is the CPU's `Use`, the column the disk's.
    pub cells: [[u64; 3]; 3],
    /// ns without knowledge whether the task had a CPU.
    pub unknown_ns: u64,
}

/// How a task uses a CPU, or a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// It has a CPU; the disk works on at least one of its requests.
    Running,
    /// It could run and has no CPU; it has requests, and none of them was issued yet.
    Waiting,
    /// It sleeps or is stopped; it has no request.
    None,
}

impl Use {
    /// All, in the order of the cells.
    pub const ALL: [Self; 3] = [Self::Running, Self::Waiting, Self::None];
}

impl Table {
    /// A cell, in ns.
    #[must_use]
    pub fn ns(&self, cpu: Use, disk: Use) -> u64 {
        self.cells[cpu as usize][disk as usize]
    }

    /// The whole of it, in ns.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let cells = self.cells.as_flattened();
        cells.iter().fold(self.unknown_ns, |sum, ns| sum.saturating_add(*ns))
    }

    /// Adds another to it.
    pub fn add(&mut self, other: &Self) {
        let cells = self.cells.as_flattened_mut().iter_mut();
        for (sum, ns) in cells.zip(other.cells.as_flattened()) {
            *sum = sum.saturating_add(*ns);
        }
        self.unknown_ns = self.unknown_ns.saturating_add(other.unknown_ns);
    }
}

/// The tables of these tasks: `tree::all` for the machine's, `tree::tree` for a command's.
#[must_use]
pub fn states(timeline: &Timeline, who: &[TaskId]) -> States {
    let known = who.iter().filter_map(|id| Some((*id, timeline.tasks.get(id.index())?)));
    let tasks: Vec<_> = known.map(|(id, task)| (id, of_task(task))).collect();
    let processes = Processes::new(timeline);
    let mut total = Table::default();
    let mut by_process: BTreeMap<TaskId, Table> = BTreeMap::new();
    for (id, table) in &tasks {
        total.add(table);
        by_process.entry(processes.leader_of(*id)).or_default().add(table);
    }
    let names = by_name(timeline, &by_process);
    States { total, tasks, processes: by_process.into_iter().collect(), names }
}

/// The state table of one task.
#[must_use]
pub fn of_task(task: &Task) -> Table {
    let mut table = Table::default();
    let disk = disk_use(task);
    let cpu = task.segments.iter().map(|segment| Stretch {
        begin: segment.begin,
        end: segment.end,
        what: cpu_use(&segment),
    });
    cross(cpu, &disk, |ns, cpu, disk| match cpu {
        Some(cpu) => table.cells[cpu as usize][disk as usize] += ns,
        None => table.unknown_ns += ns,
    });
    debug_assert_eq!(table.total_ns(), task.length_ns());
    table
}

fn by_name(timeline: &Timeline, processes: &BTreeMap<TaskId, Table>) -> Vec<Named> {
    let mut by_name: BTreeMap<&str, Named> = BTreeMap::new();
    for (leader, table) in processes {
        let name = timeline.tasks.get(leader.index()).map_or("", Task::name);
        let named = by_name.entry(name).or_default();
        named.n_processes += 1;
        named.table.add(table);
    }
    let named = |(name, named): (&str, Named)| Named { name: name.to_owned(), ..named };
    let mut names: Vec<Named> = by_name.into_iter().map(named).collect();
    names.sort_by_key(|named| std::cmp::Reverse(named.table.total_ns()));
    names
}

fn cpu_use(segment: &Segment) -> Option<Use> {
    match segment.state {
        State::Running { .. } => Some(Use::Running),
        State::Runnable { .. } => Some(Use::Waiting),
        State::Asleep(_) | State::Stopped { .. } => Some(Use::None),
        State::Unknown => None,
    }
}

/// The sorts of `Edge`s of requests.
const ISSUED: usize = 0;
const QUEUED: usize = 1;

/// From the task's begin to its end. Requests may be done after it.
fn disk_use(task: &Task) -> Vec<Stretch<Use>> {
    let edges = task.requests.iter().flat_map(|request| {
        let done = request.done.unwrap_or(task.end);
        let issued = request.issued.unwrap_or(done);
        edges((request.queued, issued), QUEUED).into_iter().chain(edges((issued, done), ISSUED))
    });
    let edges: Vec<Edge> = edges.collect();
    let stretch = |stretch: Stretch<[i64; 2]>| Stretch {
        begin: stretch.begin,
        end: stretch.end,
        what: match stretch.what {
            [0, 0] => Use::None,
            [0, _] => Use::Waiting,
            _ => Use::Running,
        },
    };
    levels(&(task.begin..task.end), edges).into_iter().map(stretch).collect()
}

#[cfg(test)]
mod test {
    use model::{BlockOp, HostNs, Pid, Tid};

    use super::*;
    use crate::timeline::build::random::senseless;
    use crate::timeline::{Request, Sleep};
    use crate::tree::all;

    /// One letter per ns: `#` on a CPU, `+` waits for one, `.` asleep, `s` stopped, `?` unknown. Requests are the times
    /// they were queued, issued and done.
    fn task(tid: u32, pid: u32, name: &str, drawing: &str, requests: &[[Option<u64>; 3]]) -> Task {
        let state = |letter| match letter {
            '#' => State::Running { cpu: 0 },
            '+' => State::Runnable { preempted: false },
            '.' => State::Asleep(Sleep::default()),
            's' => State::Stopped { woken_by: None },
            _ => State::Unknown,
        };
        let segment = |(begin, letter): (u64, char)| Segment {
            begin: HostNs(begin),
            end: HostNs(begin + 1),
            state: state(letter),
        };
        let request = |[queued, issued, done]: &[Option<u64>; 3]| Request {
            disk: 0,
            op: BlockOp::Read,
            bytes: 1,
            queued: HostNs(queued.unwrap()),
            issued: issued.map(HostNs),
            done: done.map(HostNs),
            lower: None,
            for_loop: false,
        };
        Task {
            tid: Tid(tid),
            pid: Pid(pid),
            parent: None,
            parent_pid: Pid(0),
            names: vec![(HostNs(0), name.to_owned())],
            kernel: false,
            begin: HostNs(0),
            end: HostNs(drawing.len() as u64),
            before: true,
            exited: false,
            segments: (0..).zip(drawing.chars()).map(segment).collect(),
            requests: requests.iter().map(request).collect(),
        }
    }

    #[test]
    fn one_task() {
        let check =
            |drawing: &str, requests: &[[Option<u64>; 3]], cells: [[u64; 3]; 3], unknown| {
                let table = of_task(&task(1, 1, "", drawing, requests));
                assert_eq!((table.cells, table.unknown_ns), (cells, unknown));
            };
        check("##++..ss", &[], [[0, 0, 2], [0, 0, 2], [0, 0, 4]], 0);
        check("####", &[[Some(0), Some(1), Some(3)]], [[2, 1, 1], [0; 3], [0; 3]], 0);
        // Two at once: the one that was issued counts.
        let two = [[Some(0), Some(2), Some(3)], [Some(1), Some(4), None]];
        check("......", &two, [[0; 3], [0; 3], [3, 3, 0]], 0);
        // Never issued; done after the end of the task.
        check("##", &[[Some(1), None, None]], [[0, 1, 1], [0; 3], [0; 3]], 0);
        check("+.", &[[Some(0), Some(0), Some(9)]], [[0; 3], [1, 0, 0], [1, 0, 0]], 0);
        check("?#", &[[Some(0), Some(0), Some(9)]], [[1, 0, 0], [0; 3], [0; 3]], 1);
        check("", &[], [[0; 3]; 3], 0);
    }

    #[test]
    fn processes_and_names() {
        let timeline = Timeline {
            tasks: vec![
                task(1, 1, "make", "#.", &[]),
                task(2, 1, "thread", "..", &[]),
                task(3, 3, "cc1", "##+++", &[]),
                task(4, 4, "cc1", "#", &[]),
            ],
            ..Timeline::default()
        };
        let states = states(&timeline, &all(&timeline));
        assert_eq!(states.total.cells, [[0, 0, 4], [0, 0, 3], [0, 0, 3]]);
        let of = |ids: &[(TaskId, Table)]| -> Vec<(u32, u64)> {
            ids.iter().map(|(id, table)| (id.0, table.total_ns())).collect()
        };
        assert_eq!(of(&states.tasks), [(0, 2), (1, 2), (2, 5), (3, 1)]);
        assert_eq!(of(&states.processes), [(0, 4), (2, 5), (3, 1)]);
        let names: Vec<_> = states
            .names
            .iter()
            .map(|named| (named.name.as_str(), named.n_processes, named.table.total_ns()))
            .collect();
        assert_eq!(names, [("cc1", 2, 6), ("make", 1, 4)]);
        assert_eq!(states.total.ns(Use::Waiting, Use::None), 3);
    }

    #[test]
    fn any_table_sums_to_the_life() {
        let mut with_disk = 0;
        for timeline in senseless() {
            let states = states(&timeline, &all(&timeline));
            for (id, table) in &states.tasks {
                assert_eq!(table.total_ns(), timeline.tasks[id.index()].length_ns());
                with_disk += usize::from(0 < table.ns(Use::Running, Use::Running));
            }
            let sum = |tables: &mut dyn Iterator<Item = u64>| tables.sum::<u64>();
            let total = states.total.total_ns();
            assert_eq!(total, sum(&mut timeline.tasks.iter().map(Task::length_ns)));
            assert_eq!(total, sum(&mut states.processes.iter().map(|(_, it)| it.total_ns())));
            assert_eq!(total, sum(&mut states.names.iter().map(|it| it.table.total_ns())));
        }
        assert!(10 < with_disk, "{with_disk} tasks used a disk: too few to mean anything");
    }
}
