//! What a lane does, segment by segment.

use std::ops::Range;

use model::{BlockOp, HostNs};

use super::{Activity, LaneOf, Subject};
use crate::host_side::{HostSide, VcpuState};
use crate::span;
use crate::timeline::{Sleep, State, TaskId, Timeline, WokenBy, Work};

/// A stretch of one lane, as exact as the timeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exact {
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    pub(super) activity: Activity,
    pub(super) task: Option<TaskId>,
}

/// Hands a lane's stretches over, in time order. They touch, and cover the range as far as the lane is there in it.
pub(super) fn exact(
    subject: Subject<'_>,
    of: LaneOf,
    range: Range<HostNs>,
    each: impl FnMut(Exact),
) {
    let timeline = subject.timeline;
    let mut out = Merging { at: range.start, task: None, last: None, each };
    match of {
        LaneOf::Cpu(row) => cpu(timeline, row, range, &mut out),
        LaneOf::Vcpu(row) => vcpu(subject.host_side, row, range, &mut out),
        LaneOf::Disk(row) => disk(timeline, row, range, &mut out),
        LaneOf::Task(id) => task(timeline, id, range, &mut out),
    }
    out.last.take().into_iter().for_each(&mut out.each);
}

/// Fills gaps, and makes one of neighbours that are alike.
struct Merging<F: FnMut(Exact)> {
    /// End of the last stretch.
    at: HostNs,
    /// Whose unknown stretches are.
    task: Option<TaskId>,
    last: Option<Exact>,
    each: F,
}

impl<F: FnMut(Exact)> Merging<F> {
    fn to(&mut self, end: HostNs, activity: Activity, task: Option<TaskId>) {
        if end <= self.at {
            return;
        }
        let next = Exact { begin: self.at, end, activity, task };
        self.at = end;
        match &mut self.last {
            Some(last) if (last.activity, last.task) == (activity, task) => last.end = end,
            last => last.replace(next).into_iter().for_each(&mut self.each),
        }
    }

    fn unknown_to(&mut self, end: HostNs) {
        self.to(end, Activity::Unknown, self.task);
    }
}

fn cpu(timeline: &Timeline, row: u32, range: Range<HostNs>, out: &mut Merging<impl FnMut(Exact)>) {
    if let Some(cpu) = timeline.cpus.get(row as usize) {
        for slice in span::slices(timeline, cpu.number, range.clone()) {
            out.unknown_to(slice.begin);
            out.to(slice.end, executes(slice.work), slice.task);
        }
    }
    out.unknown_to(range.end);
}

fn vcpu(
    side: Option<&HostSide>,
    row: u32,
    range: Range<HostNs>,
    out: &mut Merging<impl FnMut(Exact)>,
) {
    let cpu = side.and_then(|side| side.cpus.get(row as usize));
    for segment in cpu.into_iter().flat_map(|cpu| cpu.within(&range)) {
        out.unknown_to(segment.begin);
        let (activity, by) = match segment.state {
            VcpuState::Ran => (Activity::Ran, None),
            VcpuState::Stolen(by) => (Activity::Stolen, by),
            VcpuState::AsleepInVmm => (Activity::AsleepInVmm, None),
            VcpuState::Halted => (Activity::Halted, None),
            VcpuState::Asleep => (Activity::Asleep, None),
            VcpuState::Unknown => (Activity::Unknown, None),
        };
        out.to(segment.end, activity, by);
    }
    out.unknown_to(range.end);
}

fn executes(work: Work) -> Activity {
    match work {
        Work::Idle => Activity::Idle,
        Work::User => Activity::User,
        Work::Vcpu => Activity::Ran,
        Work::Interrupt(_) => Activity::Interrupt,
        Work::Syscall(_) | Work::Fault { .. } | Work::KernelTask => Activity::Kernel,
        Work::Unknown => Activity::Unknown,
    }
}

fn task(
    timeline: &Timeline,
    id: TaskId,
    range: Range<HostNs>,
    out: &mut Merging<impl FnMut(Exact)>,
) {
    let Some(task) = timeline.tasks.get(id.index()) else { return };
    let range = range.start.max(task.begin)..range.end.min(task.end);
    (out.at, out.task) = (range.start, Some(id));
    for (clipped, segment) in span::segments(task, range.clone()) {
        out.unknown_to(clipped.start);
        match &segment.state {
            State::Running { cpu } => {
                for slice in span::slices(timeline, *cpu, clipped.clone()) {
                    out.unknown_to(slice.begin);
                    let activity = if slice.task == Some(id) {
                        executes(slice.work)
                    } else {
                        Activity::Unknown
                    };
                    out.to(slice.end, activity, Some(id));
                }
                out.unknown_to(clipped.end);
            }
            state => out.to(clipped.end, waits(state), Some(id)),
        }
    }
    out.unknown_to(range.end);
}

fn waits(state: &State) -> Activity {
    match state {
        State::Runnable { .. } => Activity::CpuWait,
        State::Asleep(Sleep { lock: Some(_), .. }) => Activity::LockWait,
        State::Asleep(Sleep { io: true, .. }) => Activity::DiskWait,
        State::Asleep(Sleep { woken_by: Some(waker), .. })
            if matches!(waker.by, WokenBy::Request { .. }) =>
        {
            Activity::DiskWait
        }
        State::Asleep(_) => Activity::Asleep,
        State::Stopped { .. } => Activity::Stopped,
        State::Running { .. } | State::Unknown => Activity::Unknown,
    }
}

/// How many requests a disk has.
#[derive(Default)]
struct Has {
    queued: u64,
    reads: u64,
    writes: u64,
}

/// A request's next step.
#[derive(Clone, Copy)]
enum Step {
    Queued,
    Issued,
    Done,
}

impl Has {
    fn after(mut self, op: BlockOp, step: Step) -> Self {
        let at_work = if op == BlockOp::Read { &mut self.reads } else { &mut self.writes };
        match step {
            Step::Queued => self.queued += 1,
            Step::Issued => (*at_work, self.queued) = (*at_work + 1, self.queued.saturating_sub(1)),
            Step::Done => *at_work = at_work.saturating_sub(1),
        }
        self
    }

    fn activity(&self) -> Activity {
        match (0 < self.reads, 0 < self.writes) {
            (true, true) => Activity::ReadsAndWrites,
            (true, false) => Activity::Reads,
            (false, true) => Activity::Writes,
            (false, false) if 0 < self.queued => Activity::Queued,
            (false, false) => Activity::Idle,
        }
    }
}

fn disk(timeline: &Timeline, row: u32, range: Range<HostNs>, out: &mut Merging<impl FnMut(Exact)>) {
    let mut steps: Vec<(HostNs, BlockOp, Step)> = Vec::new();
    for request in timeline.tasks.iter().flat_map(|task| &task.requests) {
        // One that never went to the disk was merged into another.
        if let Some(issued) = request.issued.filter(|_| request.disk == row) {
            let done = request.done.unwrap_or(timeline.end).max(request.queued);
            let issued = issued.clamp(request.queued, done);
            let times =
                [(request.queued, Step::Queued), (issued, Step::Issued), (done, Step::Done)];
            steps.extend(times.map(|(time, step)| (time, request.op, step)));
        }
    }
    // Stable: a request's own steps stay in order.
    steps.sort_by_key(|step| step.0);
    let mut has = Has::default();
    let mut busy = timeline.disks.get(row as usize).map_or(&[][..], |disk| &disk.busy).iter();
    for (time, op, step) in steps {
        disk_to(time.min(range.end), has.activity(), &mut busy, out);
        has = has.after(op, step);
    }
    disk_to(range.end, has.activity(), &mut busy, out);
}

/// Where a disk is busy with a request that no task is known to have made, what it does is not known.
fn disk_to(
    end: HostNs,
    activity: Activity,
    busy: &mut std::slice::Iter<'_, (HostNs, HostNs)>,
    out: &mut Merging<impl FnMut(Exact)>,
) {
    while matches!(activity, Activity::Idle | Activity::Queued)
        && let Some(&(from, to)) = busy.as_slice().first()
        && from < end
    {
        out.to(from, activity, None);
        out.to(to.min(end), Activity::Unknown, None);
        if end < to {
            return;
        }
        busy.next();
    }
    out.to(end, activity, None);
}
