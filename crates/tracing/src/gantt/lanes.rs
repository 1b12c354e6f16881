//! Which lanes there are, and where they go.

use std::ops::Range;

use model::HostNs;

use crate::timeline::{TaskId, Timeline};

/// Lanes from top to bottom: CPUs, disks, tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lanes {
    /// The lanes. Tasks come by birth, each below its parent's and after its elder siblings' descendants.
    pub lanes: Vec<Lane>,
    /// Tasks that were there and never had a CPU in the range.
    pub idle_tasks: u64,
    /// Tasks that had a CPU, and were left out because there were too many.
    pub left_out: u64,
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Whose.
    pub of: LaneOf,
    /// How many ancestors above have lanes.
    pub depth: u32,
    /// For tasks: the line to draw it in when lines are shared, from 0: below its parent's, and no two tasks of a line
    /// live at the same time.
    pub line: u32,
    /// When it is there, within the range.
    pub life: Range<HostNs>,
}

/// Whose a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneOf {
    /// Row of `Timeline::cpus`.
    Cpu(u32),
    /// Row of `Timeline::disks`.
    Disk(u32),
    /// A task.
    Task(TaskId),
}

/// The lanes of a range. Of the tasks at most `max_tasks`: those that had a CPU longest, and their ancestors.
#[must_use]
pub fn lanes(timeline: &Timeline, range: &Range<HostNs>, max_tasks: usize) -> Lanes {
    let _ = (timeline, range, max_tasks);
    Lanes::default()
}
