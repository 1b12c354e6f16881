//! The lanes of a Gantt chart: CPUs, disks and tasks, in pieces no finer than can be seen. A VM's CPUs have two
//! lanes: the guest's view and the host's.
//!
//! ```text
//!  resolution   |----|----|----|----|
//!  exact        ====|.|=|.|=|=====|..      = runs   . sleeps
//!  pieces       ====|~~~~~~~|=====|..      ~ a mixture: how long each, the longest first
//! ```
//!
//! A piece that is at least as long as the resolution is exact. Shorter neighbours become one piece that says how long
//! it was what. So a lane has at most `2 * columns + 1` pieces, however long the trace is, and no time is lost:
//! a piece's shares add up to its length, a lane's pieces to its life within the view.

mod cells;
mod exact;
mod lanes;
mod pieces;
mod pyramid;
#[cfg(test)]
mod tests;

use std::ops::Range;

use model::HostNs;

use crate::host_side::HostSide;
use crate::timeline::{TaskId, Timeline};

pub use cells::{Cell, cells};
pub use lanes::{Lane, LaneOf, Lanes, lanes};
pub use pieces::{fold, pieces};
pub use pyramid::{Level, Pyramid, pyramid};

/// Whose time to draw.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub timeline: &'a Timeline,
    /// Of a VM: what its host says of it, where that is known.
    pub host_side: Option<&'a HostSide>,
}

/// The view and the time range of a drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub range: Range<HostNs>,
    /// How many columns are there to draw it in; at least 1.
    pub columns: usize,
}

/// The activity of a CPU, vCPU, disk or task, as drawn. Of two of equal length the first is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// CPU, task: a program's own code runs.
    User,
    /// CPU, task: the kernel runs for a task.
    Kernel,
    /// CPU, task: an interrupt.
    Interrupt,
    /// Disk: it reads.
    Reads,
    /// Disk: it writes, flushes or discards.
    Writes,
    /// Disk: it does both at once.
    ReadsAndWrites,
    /// Disk: requests wait in its queue, and it has none.
    Queued,
    /// Task: it waits for a CPU.
    CpuWait,
    /// Task: it waits for a disk.
    DiskWait,
    /// Task: it waits for a lock.
    LockWait,
    /// Task: it is stopped or traced.
    Stopped,
    /// Task: it sleeps for anything else. vCPU: its thread sleeps, and the guest's events don't say why.
    Asleep,
    /// vCPU: its thread on the host has a pCPU. CPU, task: a VM's CPU runs, its guest's code or the handling of its exits.
    Ran,
    /// vCPU: its thread waits for a pCPU.
    Stolen,
    /// vCPU: its thread sleeps, and the guest had something to do.
    AsleepInVmm,
    /// vCPU: its thread sleeps, and the guest had nothing to do.
    Halted,
    /// CPU, disk: nothing.
    Idle,
    Unknown,
}

/// A stretch of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub begin: HostNs,
    pub end: HostNs,
    /// How many neighbours it was made of: exact when 1.
    pub segments: u64,
    /// What it was for how many ns, longest first, never empty.
    pub shares: Vec<(Activity, u64)>,
    /// For a CPU: the task that had it longest. For a task: itself. For a vCPU: the host's task that stole most, or `None`
    /// where more of it was not stolen.
    pub task: Option<TaskId>,
}
