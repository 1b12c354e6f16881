//! What a task did.

use std::ops::Range;

use model::{HostNs, Interrupt, TraceStack, Vector};

use super::Rows;
use crate::timeline::{LockWait, Segment, Sleep, State, TaskId, Waker, WokenBy};

/// What a task did: segments that touch, 16 bytes each, and 24 for each sleep, with user stacks 28.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segments {
    rows: Rows<Packed>,
    sleeps: Vec<PackedSleep>,
    /// User stacks, by the sleep's row: as many as rows up to the last that has one. A number that no stack has: none.
    user_stacks: Vec<TraceStack>,
    /// Locks that were waited for, by the sleep's row, ascending.
    locks: Vec<(u32, LockWait)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packed {
    Running {
        cpu: u32,
    },
    Runnable {
        preempted: bool,
    },
    /// Row of `sleeps`.
    Asleep(u32),
    /// Row of `sleeps`, where only who woke it counts.
    Stopped(u32),
    Unknown,
}

/// A sleep without its lock and its user stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedSleep {
    woken_at: HostNs,
    /// Who woke it: a task or an interrupt; of a request the task that made it, and its row.
    by: u32,
    by_row: u32,
    stack: u32,
    syscall: u16,
    flags: u8,
    by_sort: BySort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BySort {
    Nothing,
    Task,
    Device,
    Soft,
    Vector(Vector),
    Request,
    Unknown,
}

const NO_STACK: TraceStack = TraceStack(u32::MAX);

const UNINTERRUPTIBLE: u8 = 1;
const IO: u8 = 2;
const IN_FAULT: u8 = 4;
const STACK: u8 = 8;
const SYSCALL: u8 = 16;
const LOCK: u8 = 32;

impl Segments {
    /// None yet; the first will begin then.
    #[must_use]
    pub fn beginning(begin: HostNs) -> Self {
        Self { rows: Rows::beginning(begin), ..Self::default() }
    }

    /// The last one's end; without any, where the first will begin.
    #[must_use]
    pub fn end(&self) -> HostNs {
        self.rows.end
    }

    /// Adds one from the end so far to `end`.
    pub fn push(&mut self, end: HostNs, state: State) {
        let packed = self.pack(state);
        self.rows.push(end, packed);
    }

    /// The number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segment of a row.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<Segment> {
        let (begin, end, packed) = self.rows.get(row)?;
        Some(Segment { begin, end, state: self.unpack(*packed) })
    }

    /// The one that began last at `time` or before; at the end and after it the last one.
    #[must_use]
    pub fn at(&self, time: HostNs) -> Option<Segment> {
        self.get(self.rows.begun_by(time).checked_sub(1)?)
    }

    /// How many end at `time` or before: the row of the first that goes on after it.
    #[must_use]
    pub fn ended_by(&self, time: HostNs) -> usize {
        self.rows.ended_by(time)
    }

    /// How many end before `time`: the row of the first that goes on until then.
    #[must_use]
    pub fn ended_before(&self, time: HostNs) -> usize {
        self.rows.ended_before(time)
    }

    /// How many begin at `time` or before: the row of the first that begins after it.
    #[must_use]
    pub fn begun_by(&self, time: HostNs) -> usize {
        self.rows.begun_by(time)
    }

    /// All, in time order.
    #[must_use]
    pub fn iter(&self) -> SegmentsIter<'_> {
        self.rows_from(0)
    }

    /// All from a row on.
    #[must_use]
    pub fn rows_from(&self, row: usize) -> SegmentsIter<'_> {
        SegmentsIter { segments: self, rows: row..self.len() }
    }

    /// The last one goes on until `end`, if it is in this state and no sleep; false: it is not.
    pub(crate) fn extend(&mut self, end: HostNs, state: State) -> bool {
        let last = self.rows.begins.last().map(|(_, last)| *last);
        let alike = last.is_some_and(|last| match last {
            Packed::Asleep(_) => false,
            other => self.unpack(other) == state,
        });
        if alike {
            self.rows.end = self.rows.end.max(end);
        }
        alike
    }

    /// All its sleeps so far of which nothing else is known were in this system call.
    pub(crate) fn slept_in(&mut self, number: u16) {
        for sleep in self.sleeps.iter_mut().filter(|sleep| !sleep.has(SYSCALL)) {
            sleep.syscall = number;
            sleep.flags |= SYSCALL;
        }
    }

    fn pack(&mut self, state: State) -> Packed {
        match state {
            State::Running { cpu } => Packed::Running { cpu },
            State::Runnable { preempted } => Packed::Runnable { preempted },
            State::Unknown => Packed::Unknown,
            State::Stopped { woken_by } => {
                let row = self.next_sleep();
                self.sleeps.push(PackedSleep::from_sleep(&Sleep { woken_by, ..Sleep::default() }));
                Packed::Stopped(row)
            }
            State::Asleep(sleep) => {
                let row = self.next_sleep();
                self.locks.extend(sleep.lock.map(|lock| (row, lock)));
                if let Some(stack) = sleep.user_stack {
                    self.user_stacks.resize(self.sleeps.len(), NO_STACK);
                    self.user_stacks.push(stack);
                }
                self.sleeps.push(PackedSleep::from_sleep(&sleep));
                Packed::Asleep(row)
            }
        }
    }

    fn next_sleep(&self) -> u32 {
        u32::try_from(self.sleeps.len()).expect("fewer sleeps than 2^32 fit in memory")
    }

    fn unpack(&self, packed: Packed) -> State {
        match packed {
            Packed::Running { cpu } => State::Running { cpu },
            Packed::Runnable { preempted } => State::Runnable { preempted },
            Packed::Stopped(row) => {
                State::Stopped { woken_by: self.sleeps[row as usize].unpack().woken_by }
            }
            Packed::Unknown => State::Unknown,
            Packed::Asleep(row) => {
                let sleep = self.sleeps[row as usize];
                let lock = || self.locks.binary_search_by_key(&row, |(row, _)| *row).ok();
                let lock = if sleep.has(LOCK) { lock().map(|at| self.locks[at].1) } else { None };
                let user_stack = self.user_stacks.get(row as usize).copied();
                let user_stack = user_stack.filter(|stack| *stack != NO_STACK);
                State::Asleep(Sleep { lock, user_stack, ..sleep.unpack() })
            }
        }
    }
}

/// Segments in time order.
#[derive(Debug, Clone)]
pub struct SegmentsIter<'a> {
    segments: &'a Segments,
    rows: Range<usize>,
}

impl Iterator for SegmentsIter<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        self.segments.get(self.rows.next()?)
    }
}

impl<'a> IntoIterator for &'a Segments {
    type Item = Segment;
    type IntoIter = SegmentsIter<'a>;

    fn into_iter(self) -> SegmentsIter<'a> {
        self.iter()
    }
}

/// They must touch: each is taken to begin where the one before ends.
impl FromIterator<Segment> for Segments {
    fn from_iter<T: IntoIterator<Item = Segment>>(segments: T) -> Self {
        let mut segments = segments.into_iter().peekable();
        let begin = segments.peek().map_or(HostNs(0), |first| first.begin);
        let mut all = Self::beginning(begin);
        segments.for_each(|segment| all.push(segment.end, segment.state));
        all
    }
}

impl PackedSleep {
    fn from_sleep(sleep: &Sleep) -> Self {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(sleep.uninterruptible, UNINTERRUPTIBLE)
            | flag(sleep.io, IO)
            | flag(sleep.in_fault, IN_FAULT)
            | flag(sleep.stack.is_some(), STACK)
            | flag(sleep.syscall.is_some(), SYSCALL)
            | flag(sleep.lock.is_some(), LOCK);
        let (by_sort, by, by_row) = match sleep.woken_by.map(|waker| waker.by) {
            None => (BySort::Nothing, 0, 0),
            Some(WokenBy::Task(id)) => (BySort::Task, id.0, 0),
            Some(WokenBy::Interrupt(Interrupt::Device(number))) => (BySort::Device, number, 0),
            Some(WokenBy::Interrupt(Interrupt::Soft(number))) => (BySort::Soft, number, 0),
            Some(WokenBy::Interrupt(Interrupt::Vector(vector))) => (BySort::Vector(vector), 0, 0),
            Some(WokenBy::Request { task, row }) => (BySort::Request, task.0, row),
            Some(WokenBy::Unknown) => (BySort::Unknown, 0, 0),
        };
        Self {
            woken_at: sleep.woken_by.map_or(HostNs(0), |waker| waker.time),
            by,
            by_row,
            stack: sleep.stack.map_or(0, |stack| stack.0),
            syscall: sleep.syscall.unwrap_or(0),
            flags,
            by_sort,
        }
    }

    fn unpack(self) -> Sleep {
        let by = match self.by_sort {
            BySort::Nothing => None,
            BySort::Task => Some(WokenBy::Task(TaskId(self.by))),
            BySort::Device => Some(WokenBy::Interrupt(Interrupt::Device(self.by))),
            BySort::Soft => Some(WokenBy::Interrupt(Interrupt::Soft(self.by))),
            BySort::Vector(vector) => Some(WokenBy::Interrupt(Interrupt::Vector(vector))),
            BySort::Request => Some(WokenBy::Request { task: TaskId(self.by), row: self.by_row }),
            BySort::Unknown => Some(WokenBy::Unknown),
        };
        Sleep {
            stack: self.has(STACK).then_some(TraceStack(self.stack)),
            user_stack: None,
            uninterruptible: self.has(UNINTERRUPTIBLE),
            io: self.has(IO),
            syscall: self.has(SYSCALL).then_some(self.syscall),
            in_fault: self.has(IN_FAULT),
            lock: None,
            woken_by: by.map(|by| Waker { time: self.woken_at, by }),
        }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod test {
    use model::LockKind;

    use super::*;

    fn sleeps() -> Vec<Sleep> {
        let lock = |lock| LockWait {
            lock,
            kind: LockKind::SemRead,
            owner: Some((TaskId(9), Some(7))),
            stack: Some(TraceStack(u32::MAX)),
        };
        let by =
            |by| Sleep { woken_by: Some(Waker { time: HostNs(u64::MAX), by }), ..Sleep::default() };
        let wakers = [
            WokenBy::Task(TaskId(u32::MAX)),
            WokenBy::Interrupt(Interrupt::Device(u32::MAX)),
            WokenBy::Interrupt(Interrupt::Soft(3)),
            WokenBy::Interrupt(Interrupt::Vector(Vector::IrqWork)),
            WokenBy::Request { task: TaskId(4), row: u32::MAX },
            WokenBy::Unknown,
        ];
        let none = Sleep::default();
        let others = [
            Sleep { stack: Some(TraceStack(0)), ..none },
            Sleep { user_stack: TraceStack::of_user(0), ..none },
            Sleep { uninterruptible: true, ..none },
            Sleep { io: true, ..none },
            Sleep { syscall: Some(0), ..none },
            Sleep { syscall: Some(u16::MAX), in_fault: true, ..none },
            Sleep { lock: Some(lock(1)), ..none },
            none,
            Sleep { lock: Some(lock(2)), ..none },
        ];
        wakers.map(by).into_iter().chain(others).collect()
    }

    #[test]
    fn what_goes_in_comes_out() {
        let others = [
            State::Running { cpu: u32::MAX },
            State::Runnable { preempted: false },
            State::Runnable { preempted: true },
            State::Stopped { woken_by: None },
            State::Stopped { woken_by: Some(Waker { time: HostNs(8), by: WokenBy::Unknown }) },
            State::Unknown,
        ];
        let states = others.into_iter().chain(sleeps().into_iter().map(State::Asleep));
        let segment =
            |(begin, state)| Segment { begin: HostNs(begin), end: HostNs(begin + 1), state };
        let segments: Vec<Segment> = (5..).zip(states).map(segment).collect();
        let mut packed: Segments = segments.iter().copied().collect();
        assert!(packed.iter().eq(segments.iter().copied()));
        assert!(packed.rows_from(4).eq(segments[4..].iter().copied()));
        packed.slept_in(3);
        for (before, after) in segments.iter().zip(&packed) {
            if let (State::Asleep(before), State::Asleep(after)) = (before.state, after.state) {
                assert_eq!(after.syscall, before.syscall.or(Some(3)));
            }
        }
        assert_eq!((size_of::<(HostNs, Packed)>(), size_of::<PackedSleep>()), (16, 24));
    }

    #[test]
    fn what_goes_on_is_one() {
        let mut segments = Segments::beginning(HostNs(0));
        let asleep = State::Asleep(Sleep::default());
        assert!(!segments.extend(HostNs(1), State::Stopped { woken_by: None }));
        segments.push(HostNs(1), State::Stopped { woken_by: None });
        assert!(segments.extend(HostNs(4), State::Stopped { woken_by: None }));
        assert!(!segments.extend(HostNs(4), State::Unknown));
        segments.push(HostNs(9), asleep);
        assert!(!segments.extend(HostNs(12), asleep));
        let spans: Vec<_> = segments.iter().map(|it| (it.begin.0, it.end.0)).collect();
        assert_eq!((spans, segments.end()), (vec![(0, 4), (4, 9)], HostNs(9)));
    }
}
