//! What a path consists of, and what of it is worth improving.

use model::{BlockOp, HostNs, Interrupt, Pid};

use super::CriticalPath;
use crate::timeline::{Timeline, Work};

/// A path's length by several views. Each view's parts add up to `wall_ns` (asserted).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The path's length.
    pub wall_ns: u64,
    /// By category, longest first.
    pub categories: Vec<Share<Category>>,
    /// By command name, longest first.
    pub names: Vec<NameShare>,
    /// By process, longest first.
    pub processes: Vec<ProcessShare>,
    /// What would make the command shorter, best first.
    pub worth: Vec<Improvement>,
}

/// A part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share<T> {
    /// What.
    pub of: T,
    /// How long.
    pub ns: u64,
    /// In how many segments.
    pub segments: u64,
}

/// What a stretch of the path counts as.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// A program's own code, by command name.
    User(String),
    /// The kernel.
    Kernel(Work),
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
    /// A timer.
    Timer,
    /// A lock whose holder is not on the path.
    Lock,
    /// The network.
    Network,
    /// Another interrupt.
    Interrupt(Interrupt),
    /// Stopped or traced.
    Stopped,
    /// Unknown.
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
    /// Everything else.
    pub other_ns: u64,
    /// How many processes of the name.
    pub processes: u64,
}

/// A process' part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessShare {
    /// The process.
    pub pid: Pid,
    /// When its first task on the path began: tells processes of one id apart.
    pub begin: HostNs,
    /// The parts, under its last name on the path.
    pub share: NameShare,
}

/// Something that could be made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Improvement {
    /// What.
    pub target: Target,
    /// How long it is on the path.
    pub on_path_ns: u64,
    /// How long the command would take without it, at best: once it is gone, another path may be the longest.
    pub at_best_ns: u64,
}

/// What could be made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// All of a category.
    Category(Category),
    /// Everything the kernel does.
    Kernel,
    /// All disks, their queues included.
    Disks,
    /// All waiting for locks, were there no contention. Found on the path that stays with those who wait for locks.
    Locks,
}

impl Improvement {
    /// How many times as fast the command would be, at best; `None` when nothing would remain.
    #[must_use]
    pub fn factor(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        (0 < self.at_best_ns).then(|| ratio(self.at_best_ns + self.on_path_ns, self.at_best_ns))
    }
}

/// Sums up a path.
#[must_use]
pub fn summary(timeline: &Timeline, path: &CriticalPath) -> Summary {
    let _ = timeline;
    let wall_ns = path.scope.end.since(path.scope.begin);
    let unknown = Share { of: Category::Unknown, ns: wall_ns, segments: 1 };
    Summary { wall_ns, categories: vec![unknown], ..Summary::default() }
}
