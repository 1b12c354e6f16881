//! The parts of a critical path, and which of them are worth improving.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use model::{BlockOp, HostNs, Interrupt, Pid, Vector};

use super::amdahl::{self, Improvement};
use super::walk::issued_and_done;
use super::{CriticalPath, PathActivity, PathSegment, Polls};
use crate::kernel::Class;
use crate::processes::Processes;
use crate::span;
use crate::timeline::{Request, TaskId, Timeline, Work};
use crate::tree::tree;

/// A path's length by several views. Each view's parts add up to `wall_ns` (asserted).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The path's length.
    pub wall_ns: u64,
    /// By category, longest first.
    pub categories: Vec<Share<Category>>,
    /// The kernel's part of it by class, longest first.
    pub classes: Vec<(Class, u64)>,
    /// By command name, longest first.
    pub names: Vec<NameShare>,
    /// By process, longest first.
    pub processes: Vec<ProcessShare>,
    /// Tasks that had the CPU during `Category::CpuWait`, by name, longest first; `None`: idle, or not known.
    pub behind: Vec<(Option<String>, u64)>,
    /// The path's time in tasks that the explained task did not start (the kernel's own among them), by name, longest
    /// first.
    pub outside: Vec<(String, u64)>,
    /// What would make the command shorter, best first.
    pub improvements: Vec<Improvement>,
}

/// A part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share<T> {
    pub of: T,
    pub ns: u64,
    pub segments: u64,
}

/// What a stretch of the path counts as.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// A program's own code, by command name.
    User(String),
    /// The kernel, by what it does.
    Kernel(Work),
    /// A VM's CPU: its guest's code, and the handling of its exits.
    Vcpu,
    /// A wait for a CPU.
    CpuWait,
    /// From the beginning of a wake-up to its end.
    WakingUp,
    /// A request in a disk's queue.
    DiskQueue(String),
    /// A disk at work, by its name and what it did.
    Disk(String, BlockOp),
    /// A disk, by an unknown request.
    UnknownDisk,
    Timer,
    /// A timer, in a loop of short sleeps: what the loop waits for is not known.
    Polling,
    /// A lock whose holder is not on the path.
    Lock,
    Network,
    /// Another interrupt.
    Interrupt(Interrupt),
    /// Stopped or traced.
    Stopped,
    /// A sleep that is not over when the trace ends, by system call.
    NotOver(Option<u16>),
    Unknown,
}

/// A command name's part of the path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameShare {
    /// The name the tasks had at the time.
    pub name: String,
    /// How long its tasks are on the path in all.
    pub ns: u64,
    /// Of that: its own code.
    pub user_ns: u64,
    /// The kernel for it.
    pub kernel_ns: u64,
    /// Waiting for a CPU (being woken included).
    pub cpu_wait_ns: u64,
    /// Disks for it, their queues included.
    pub disk_ns: u64,
    pub other_ns: u64,
    pub processes: u64,
}

/// A process' part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessShare {
    pub pid: Pid,
    /// When its first task on the path began: tells processes of one id apart.
    pub begin: HostNs,
    /// The parts, under its last name on the path.
    pub share: NameShare,
}

/// Sums up a path.
#[must_use]
pub fn summary(timeline: &Timeline, path: &CriticalPath) -> Summary {
    let processes = Processes::new(timeline);
    let own = tree(timeline, path.scope.task);
    let polls = Polls::new(timeline, path);
    let mut sums = Sums::default();
    for segment in &path.segments {
        sums.add(timeline, &processes, &polls, segment);
        if own.binary_search(&segment.task).is_err() {
            let task = timeline.tasks.get(segment.task.index());
            let name = task.map_or("", |task| span::name_at(task, segment.begin));
            *sums.outside.entry(name.to_owned()).or_default() += segment.length_ns();
        }
    }
    let summary = sums.finish(timeline, path.scope.end.since(path.scope.begin));
    debug_assert!(summary.adds_up(), "every view of a path adds up to its length");
    Summary { improvements: amdahl::improvements(timeline, path, &polls, &summary), ..summary }
}

/// What a segment counts as, with ns: adds up to its length.
fn parts(timeline: &Timeline, polls: &Polls, segment: &PathSegment) -> Vec<(Category, u64)> {
    let task = timeline.tasks.get(segment.task.index());
    let name = task.map_or("", |task| span::name_at(task, segment.begin));
    if let PathActivity::Running { work, .. } = &segment.activity {
        return work.iter().map(|&(work, ns)| (executed(name, work), ns)).collect();
    }
    let ns = segment.length_ns();
    vec![(polls.category(category(timeline, &segment.activity), name, ns), ns)]
}

/// What a wait counts as, polling as a timer.
pub(super) fn category(timeline: &Timeline, activity: &PathActivity) -> Category {
    let disk = |row: u32| {
        let disk = timeline.disks.get(row as usize);
        disk.map_or_else(|| "unknown disk".to_owned(), |disk| disk.name.clone())
    };
    match activity {
        PathActivity::CpuWait { .. } => Category::CpuWait,
        PathActivity::WakingUp => Category::WakingUp,
        PathActivity::DiskQueue { disk: row, .. } => Category::DiskQueue(disk(*row)),
        PathActivity::Disk { disk: row, op } => Category::Disk(disk(*row), *op),
        PathActivity::UnknownDisk => Category::UnknownDisk,
        PathActivity::Interrupt(
            Interrupt::Soft(TIMER | HRTIMER) | Interrupt::Vector(Vector::LocalTimer),
        ) => Category::Timer,
        PathActivity::Interrupt(Interrupt::Soft(NET_TX | NET_RX)) => Category::Network,
        PathActivity::Interrupt(interrupt) => Category::Interrupt(*interrupt),
        PathActivity::Lock => Category::Lock,
        PathActivity::Stopped => Category::Stopped,
        PathActivity::NotOver { syscall } => Category::NotOver(*syscall),
        PathActivity::Running { .. }
        | PathActivity::UnknownSleep { .. }
        | PathActivity::Unknown => Category::Unknown,
    }
}

/// A request in the disk's queue and at the disk, with ns, up to when a task was woken.
pub(super) fn disk_parts(request: &Request, woken: HostNs) -> [(PathActivity, u64); 2] {
    let (disk, op) = (request.disk, request.op);
    let [issued, done] = issued_and_done(request, woken);
    [
        (PathActivity::DiskQueue { disk, op }, issued.since(request.queued.min(issued))),
        (PathActivity::Disk { disk, op }, done.since(issued)),
    ]
}

/// Softirqs, as the kernel numbers them.
const TIMER: u32 = 1;
const NET_TX: u32 = 2;
pub(super) const NET_RX: u32 = 3;
const HRTIMER: u32 = 8;

pub(super) fn executed(name: &str, work: Work) -> Category {
    match work {
        Work::User => Category::User(name.to_owned()),
        Work::Vcpu => Category::Vcpu,
        // Whether it is the program's or the kernel's is not known.
        Work::Unknown | Work::Idle => Category::Unknown,
        work => Category::Kernel(work),
    }
}

#[derive(Default)]
struct Sums {
    /// By category: ns and segments.
    categories: BTreeMap<Category, (u64, u64)>,
    /// By name: the share, and the processes it is of.
    names: BTreeMap<String, (NameShare, BTreeSet<TaskId>)>,
    processes: BTreeMap<TaskId, NameShare>,
    behind: BTreeMap<Option<String>, u64>,
    outside: BTreeMap<String, u64>,
}

impl Sums {
    fn add(
        &mut self,
        timeline: &Timeline,
        processes: &Processes,
        polls: &Polls,
        segment: &PathSegment,
    ) {
        let task = timeline.tasks.get(segment.task.index());
        let name = task.map_or("", |task| span::name_at(task, segment.begin));
        let process = processes.leader_of(segment.task);
        let (of_name, ids) = self.names.entry(name.to_owned()).or_default();
        let of_process = self.processes.entry(process).or_default();
        ids.insert(process);
        name.clone_into(&mut of_process.name);
        for (category, ns) in parts(timeline, polls, segment) {
            of_name.add(&category, ns);
            of_process.add(&category, ns);
            let sum = self.categories.entry(category).or_default();
            *sum = (sum.0 + ns, sum.1 + 1);
        }
        if let PathActivity::CpuWait { behind, .. } = &segment.activity {
            for &(id, ns) in behind {
                let process = id.map(|id| processes.leader_of(id));
                let task = process.and_then(|id| timeline.tasks.get(id.index()));
                let name = task.map(|task| span::name_at(task, segment.begin).to_owned());
                *self.behind.entry(name).or_default() += ns;
            }
        }
    }

    fn finish(self, timeline: &Timeline, wall_ns: u64) -> Summary {
        let categories = self.categories.into_iter();
        let mut categories: Vec<_> =
            categories.map(|(of, (ns, segments))| Share { of, ns, segments }).collect();
        let names = self.names.into_iter();
        let mut names: Vec<_> = names
            .map(|(name, (share, ids))| NameShare { name, processes: ids.len() as u64, ..share })
            .collect();
        let processes = self.processes.into_iter();
        let mut processes: Vec<_> =
            processes.map(|(leader, share)| process_share(timeline, leader, share)).collect();
        categories.sort_by_key(|share| Reverse(share.ns));
        names.sort_by_key(|share| Reverse(share.ns));
        processes.sort_by_key(|process| Reverse(process.share.ns));
        let classes = classes(&categories);
        let mut behind: Vec<_> = self.behind.into_iter().collect();
        behind.sort_by_key(|(_, ns)| Reverse(*ns));
        let mut outside: Vec<_> = self.outside.into_iter().collect();
        outside.sort_by_key(|(_, ns)| Reverse(*ns));
        let improvements = Vec::new();
        Summary { wall_ns, categories, classes, names, processes, behind, outside, improvements }
    }
}

fn classes(categories: &[Share<Category>]) -> Vec<(Class, u64)> {
    let mut sums: BTreeMap<Class, u64> = BTreeMap::new();
    for share in categories {
        if let Category::Kernel(work) = share.of {
            *sums.entry(Class::from_work(work)).or_default() += share.ns;
        }
    }
    let mut classes: Vec<_> = sums.into_iter().collect();
    classes.sort_by_key(|(_, ns)| Reverse(*ns));
    classes
}

fn process_share(timeline: &Timeline, leader: TaskId, share: NameShare) -> ProcessShare {
    let task = timeline.tasks.get(leader.index());
    let (pid, begin) = task.map_or_else(Default::default, |task| (task.pid, task.begin));
    ProcessShare { pid, begin, share: NameShare { processes: 1, ..share } }
}

impl NameShare {
    fn add(&mut self, category: &Category, ns: u64) {
        self.ns += ns;
        *match category {
            Category::User(_) => &mut self.user_ns,
            Category::Kernel(_) => &mut self.kernel_ns,
            Category::CpuWait | Category::WakingUp => &mut self.cpu_wait_ns,
            Category::DiskQueue(_) | Category::Disk(..) | Category::UnknownDisk => {
                &mut self.disk_ns
            }
            _ => &mut self.other_ns,
        } += ns;
    }

    fn adds_up(&self) -> bool {
        self.ns == self.user_ns + self.kernel_ns + self.cpu_wait_ns + self.disk_ns + self.other_ns
    }
}

impl Summary {
    /// The path's time in tasks that the explained task did not start.
    #[must_use]
    pub fn outside_ns(&self) -> u64 {
        self.outside.iter().map(|(_, ns)| ns).sum()
    }

    pub(super) fn adds_up(&self) -> bool {
        let categories: u64 = self.categories.iter().map(|share| share.ns).sum();
        let names: u64 = self.names.iter().map(|share| share.ns).sum();
        let processes: u64 = self.processes.iter().map(|process| process.share.ns).sum();
        [categories, names, processes].iter().all(|ns| *ns == self.wall_ns)
            && self.names.iter().all(NameShare::adds_up)
            && self.processes.iter().all(|process| process.share.adds_up())
    }
}
