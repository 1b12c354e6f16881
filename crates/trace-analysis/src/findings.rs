//! All that is found out about one machine of a trace: of the command's tasks, of everybody, or of some processes.
//!
//! Every report is made from this. What a report does not show is not computed: an analysis runs when it is first
//! needed for.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use model::{HostNs, MachineId, Tid, TraceTables};

use crate::critical_path::{CriticalPath, Scope, Summary, critical_path, summary};
use crate::gantt::Subject;
use crate::group::{By, Key, grouped};
use crate::host_side::{HostSide, Thieves};
use crate::kernel::KernelTime;
use crate::profile::{Profile, profile_within};
use crate::states::{States, states};
use crate::timeline::{Task, TaskId, Timeline};
use crate::tree::{all, tree};
use crate::waits::{self, Classifier, Life, lives};

/// The selected tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    Everyone,
    /// The command and all that it started.
    Command,
    /// This task and all that it started.
    Tree(Tid),
    /// Processes, by what the user called them.
    Process(String),
}

/// A machine, the tasks that are looked at, and what was found out about them.
#[derive(Debug)]
pub struct Findings<'a> {
    /// Names.
    pub tables: &'a TraceTables,
    pub timeline: &'a Timeline,
    /// Whose tasks are looked at.
    pub selection: Selection,
    /// Their tasks, ascending.
    pub tasks: Vec<TaskId>,
    /// The task of the critical path: the process selected, else the command.
    pub scope: Option<Scope>,
    /// Says what tasks waited for.
    pub classifier: Classifier,
    /// Of all tasks.
    pub lives: Vec<Life>,
    /// Of a VM whose host was traced, too.
    pub host: Option<OnHost<'a>>,
    profile: OnceCell<Profile>,
    states: OnceCell<States>,
    kernel: OnceCell<KernelTime>,
    path: OnceCell<Option<Path>>,
}

/// A VM as its host saw it.
#[derive(Debug)]
pub struct OnHost<'a> {
    pub timeline: &'a Timeline,
    /// What the threads of its vCPUs did.
    pub side: HostSide,
    /// Who took pCPUs from it.
    pub thieves: Thieves<'a>,
}

/// A critical path and its parts.
#[derive(Debug, Clone)]
pub struct Path {
    /// In order of time.
    pub path: CriticalPath,
    /// By category, by name, and what would make it shorter.
    pub summary: Summary,
}

impl<'a> Findings<'a> {
    /// Of the command's tasks; of everybody where there was no command. `host` is the host's timeline, where it was traced.
    #[must_use]
    pub fn new(
        tables: &'a TraceTables,
        timeline: &'a Timeline,
        host: Option<&'a Timeline>,
    ) -> Self {
        let classifier = Classifier::new(tables, timeline.machine);
        let scope = Scope::command(tables, timeline);
        let (selection, tasks) = match scope {
            Some(scope) => (Selection::Command, tree(timeline, scope.task)),
            None => (Selection::Everyone, all(timeline)),
        };
        Self {
            tables,
            timeline,
            selection,
            tasks,
            scope,
            lives: lives(timeline, &classifier),
            classifier,
            host: host.and_then(|host| OnHost::new(tables, timeline, host)),
            profile: OnceCell::new(),
            states: OnceCell::new(),
            kernel: OnceCell::new(),
            path: OnceCell::new(),
        }
    }

    /// Widens the selection to all tasks.
    #[must_use]
    pub fn of_everyone(self) -> Self {
        let tasks = all(self.timeline);
        Self { selection: Selection::Everyone, tasks, ..self.unanalysed() }
    }

    /// Of the task `root` and all that it started; as before where there is no such task.
    #[must_use]
    pub fn of_tree(self, root: Tid) -> Self {
        let first = all(self.timeline).into_iter().find(|id| self.task(*id).tid == root);
        let Some(first) = first else { return self };
        let tasks = tree(self.timeline, first);
        Self { selection: Selection::Tree(root), tasks, ..self.unanalysed() }
    }

    /// Of some processes of those looked at so far. A process that went on as another program is that one's.
    ///
    /// # Errors
    /// When none of them is meant: what was looked at so far.
    pub fn of_processes(
        self,
        name: &str,
        is_meant: impl Fn(&Key) -> bool,
    ) -> Result<Self, Box<Self>> {
        let tasks = self.processes(&self.tasks, is_meant);
        let Some(first) = tasks.first() else { return Err(Box::new(self)) };
        let scope = Scope::life(self.timeline, *first);
        let selection = Selection::Process(name.to_owned());
        Ok(Self { selection, tasks, scope, ..self.unanalysed() })
    }

    /// Whether anybody's process is meant.
    #[must_use]
    pub fn has_process(&self, is_meant: impl Fn(&Key) -> bool) -> bool {
        !self.processes(&all(self.timeline), is_meant).is_empty()
    }

    fn processes(&self, tasks: &[TaskId], is_meant: impl Fn(&Key) -> bool) -> Vec<TaskId> {
        let rows = grouped(self.timeline, By::Process, tasks).into_iter();
        let meant = rows.filter(|(key, _)| is_meant(key));
        let mut tasks: Vec<TaskId> = meant.flat_map(|(_, tasks)| tasks).collect();
        tasks.sort_unstable();
        tasks
    }

    /// The same, for other tasks: analyses are of those.
    fn unanalysed(self) -> Self {
        Self { profile: OnceCell::new(), states: OnceCell::new(), path: OnceCell::new(), ..self }
    }

    /// Whether all tasks are looked at.
    #[must_use]
    pub fn is_everyone(&self) -> bool {
        self.selection == Selection::Everyone
    }

    /// Whether a task is looked at.
    #[must_use]
    pub fn admits(&self, task: TaskId) -> bool {
        self.tasks.binary_search(&task).is_ok()
    }

    /// A task of the machine.
    #[must_use]
    pub fn task(&self, id: TaskId) -> &'a Task {
        &self.timeline.tasks[id.index()]
    }

    /// The time looked at: of everyone all, of the command its own, of processes from their first begin to their last
    /// end.
    #[must_use]
    pub fn range(&self) -> Range<HostNs> {
        let all = self.timeline.begin..self.timeline.end;
        match (&self.selection, self.scope) {
            (Selection::Everyone, _) => all,
            (Selection::Command, Some(scope)) => scope.begin..scope.end,
            _ => {
                let lives = || self.tasks.iter().map(|task| self.task(*task));
                let begin = lives().map(|task| task.begin).min().unwrap_or(all.start);
                begin..lives().map(|task| task.end).max().unwrap_or(all.end)
            }
        }
    }

    /// What is drawn in a Gantt chart.
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        Subject { timeline: self.timeline, host_side: self.host.as_ref().map(|host| &host.side) }
    }

    /// CPU and disk of the machine, in the time looked at.
    pub fn profile(&self) -> &Profile {
        self.profile.get_or_init(|| profile_within(self.timeline, &self.range()))
    }

    /// CPU and disk of the tasks looked at.
    pub fn states(&self) -> &States {
        self.states.get_or_init(|| states(self.timeline, &self.tasks))
    }

    /// What CPUs executed, in all of the trace.
    pub fn kernel(&self) -> &KernelTime {
        self.kernel.get_or_init(|| KernelTime::new(self.timeline))
    }

    /// The critical path; `None`: neither a command nor a process is looked at.
    pub fn path(&self) -> Option<&Path> {
        let path = || {
            let path = critical_path(self.timeline, self.scope?);
            let summary = summary(self.timeline, &path);
            Some(Path { path, summary })
        };
        self.path.get_or_init(path).as_ref()
    }

    /// What the tasks looked at waited for.
    #[must_use]
    pub fn life(&self) -> Life {
        waits::total(&self.lives, &self.tasks)
    }

    /// The same by command name or by process.
    #[must_use]
    pub fn lives_by(&self, by: By) -> Vec<waits::Row> {
        waits::rows(self.timeline, &self.lives, by, &self.tasks)
    }
}

impl<'a> OnHost<'a> {
    /// `None`: not a VM, or it is not known which of the host's threads ran it.
    #[must_use]
    pub fn new(tables: &'a TraceTables, guest: &Timeline, timeline: &'a Timeline) -> Option<Self> {
        if guest.machine == MachineId::HOST {
            return None;
        }
        let row = tables.machines.get(guest.machine.index())?;
        let side = HostSide::new(timeline, guest, row)?;
        Some(Self { timeline, side, thieves: Thieves::new(tables, guest.machine, timeline) })
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("all tasks"),
            Self::Command => f.write_str("the command"),
            Self::Tree(root) => write!(f, "the tree of {root}"),
            Self::Process(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_timelines::DrawnTimeline;

    fn check(findings: &Findings<'_>, whose: &str, tasks: &[u32]) {
        assert_eq!(findings.selection.to_string(), whose);
        assert_eq!(findings.tasks, tasks.iter().map(|row| TaskId(*row)).collect::<Vec<_>>());
    }

    #[test]
    fn whose_tasks() {
        let lines = [("make", "", "0000"), ("cc1", "make", " 11 "), ("sh", "", "1111")];
        let timeline = DrawnTimeline::new(&lines, &[]).timeline;
        let tables = TraceTables::default();
        let findings = || Findings::new(&tables, &timeline, None);
        check(&findings(), "all tasks", &[0, 1, 2]);
        let root = timeline.tasks[0].tid;
        let tree = findings().of_tree(root);
        check(&tree, &format!("the tree of {root}"), &[0, 1]);
        check(&findings().of_tree(Tid(999)), "all tasks", &[0, 1, 2]);
        check(&tree.of_everyone(), "all tasks", &[0, 1, 2]);
        let cc1 = findings().of_processes("cc1", |key| key.name == "cc1").unwrap();
        check(&cc1, "cc1", &[1]);
        assert_eq!(cc1.range(), timeline.tasks[1].begin..timeline.tasks[1].end);
        assert!(cc1.path().is_some() && findings().path().is_none());
        let sh = findings().of_tree(root).of_processes("sh", |key| key.name == "sh").unwrap_err();
        assert!(sh.has_process(|key| key.name == "sh") && !sh.has_process(|_| false));
    }
}
