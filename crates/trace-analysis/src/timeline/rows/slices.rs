//! What a CPU did.

use std::ops::Range;

use model::{HostNs, Interrupt, Vector};

use super::Rows;
use crate::timeline::{Slice, TaskId, Work};

/// What a CPU did: slices that touch, 16 bytes each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slices(Rows<Packed>);

/// The task's row, and what is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed {
    task: u32,
    work: u32,
}

/// No task has this row: so many don't fit in memory.
const NO_TASK: u32 = u32::MAX;

/// Bits of a work's number, below those that say which sort it is.
const NUMBER_BITS: u32 = 28;
/// No kernel has so many interrupts: larger numbers of them, made up, are kept as this.
const MAX_NUMBER: u32 = (1 << NUMBER_BITS) - 1;

const VECTORS: [Vector; 6] = [
    Vector::LocalTimer,
    Vector::Reschedule,
    Vector::CallFunction,
    Vector::CallFunctionSingle,
    Vector::IrqWork,
    Vector::Other,
];

impl Slices {
    /// None yet; the first will begin then.
    #[must_use]
    pub fn beginning(begin: HostNs) -> Self {
        Self(Rows::beginning(begin))
    }

    /// The last one's end; without any, where the first will begin.
    #[must_use]
    pub fn end(&self) -> HostNs {
        self.0.end
    }

    /// Adds one from the end so far to `end`.
    pub fn push(&mut self, end: HostNs, task: Option<TaskId>, work: Work) {
        self.0.push(end, Packed::new(task, work));
    }

    /// The number of slices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slice of a row.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<Slice> {
        let (begin, end, packed) = self.0.get(row)?;
        let (task, work) = (packed.task(), packed.work());
        Some(Slice { begin, end, task, work })
    }

    /// The last slice.
    #[must_use]
    pub fn last(&self) -> Option<Slice> {
        self.get(self.len().checked_sub(1)?)
    }

    /// The one that began last at `time` or before; at the end and after it the last one.
    #[must_use]
    pub fn at(&self, time: HostNs) -> Option<Slice> {
        self.get(self.0.begun_by(time).checked_sub(1)?)
    }

    /// How many end at `time` or before: the row of the first that goes on after it.
    #[must_use]
    pub fn ended_by(&self, time: HostNs) -> usize {
        self.0.ended_by(time)
    }

    /// All, in time order.
    #[must_use]
    pub fn iter(&self) -> SlicesIter<'_> {
        self.rows_from(0)
    }

    /// All from a row on.
    #[must_use]
    pub fn rows_from(&self, row: usize) -> SlicesIter<'_> {
        SlicesIter { slices: self, rows: row..self.len() }
    }

    /// Neighbours that are alike, together.
    pub fn chunk_by<'a>(
        &'a self,
        alike: impl Fn(&Slice, &Slice) -> bool + 'a,
    ) -> impl Iterator<Item = Vec<Slice>> + 'a {
        let mut slices = self.iter().peekable();
        std::iter::from_fn(move || {
            let mut chunk = vec![slices.next()?];
            while let Some(next) = slices.next_if(|next| alike(&chunk[chunk.len() - 1], next)) {
                chunk.push(next);
            }
            Some(chunk)
        })
    }

    /// Another task had the CPU in this one, or something else was executed.
    pub(crate) fn set(&mut self, row: usize, task: Option<TaskId>, work: Work) {
        if let Some((_, packed)) = self.0.begins.get_mut(row) {
            *packed = Packed::new(task, work);
        }
    }

    /// The last one goes on until `end`, if it is alike; false: it is not.
    pub(crate) fn extend(&mut self, end: HostNs, task: Option<TaskId>, work: Work) -> bool {
        let alike = self.0.begins.last().is_some_and(|(_, last)| *last == Packed::new(task, work));
        if alike {
            self.0.end = self.0.end.max(end);
        }
        alike
    }
}

/// Slices in time order.
#[derive(Debug, Clone)]
pub struct SlicesIter<'a> {
    slices: &'a Slices,
    rows: Range<usize>,
}

impl Iterator for SlicesIter<'_> {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        self.slices.get(self.rows.next()?)
    }
}

impl<'a> IntoIterator for &'a Slices {
    type Item = Slice;
    type IntoIter = SlicesIter<'a>;

    fn into_iter(self) -> SlicesIter<'a> {
        self.iter()
    }
}

/// They must touch: each is taken to begin where the one before ends.
impl FromIterator<Slice> for Slices {
    fn from_iter<T: IntoIterator<Item = Slice>>(slices: T) -> Self {
        let mut slices = slices.into_iter().peekable();
        let begin = slices.peek().map_or(HostNs(0), |first| first.begin);
        let mut all = Self::beginning(begin);
        slices.for_each(|slice| all.push(slice.end, slice.task, slice.work));
        all
    }
}

impl Packed {
    fn new(task: Option<TaskId>, work: Work) -> Self {
        let vector = |vector| VECTORS.iter().zip(0..).find(|(known, _)| **known == vector);
        let (sort, number) = match work {
            Work::Idle => (0, 0),
            Work::User => (1, 0),
            Work::Syscall(number) => (2, number.into()),
            Work::Fault { estimated } => (3, estimated.into()),
            Work::Interrupt(Interrupt::Device(number)) => (4, number),
            Work::Interrupt(Interrupt::Soft(number)) => (5, number),
            Work::Interrupt(Interrupt::Vector(which)) => (6, vector(which).map_or(0, |(_, n)| n)),
            Work::KernelTask => (7, 0),
            Work::Unknown => (8, 0),
            Work::Vcpu => (9, 0),
        };
        let work = sort << NUMBER_BITS | number.min(MAX_NUMBER);
        Self { task: task.map_or(NO_TASK, |id| id.0), work }
    }

    fn task(self) -> Option<TaskId> {
        (self.task != NO_TASK).then_some(TaskId(self.task))
    }

    fn work(self) -> Work {
        let number = self.work & MAX_NUMBER;
        match self.work >> NUMBER_BITS {
            0 => Work::Idle,
            1 => Work::User,
            2 => Work::Syscall(u16::try_from(number).unwrap_or(u16::MAX)),
            3 => Work::Fault { estimated: number == 1 },
            4 => Work::Interrupt(Interrupt::Device(number)),
            5 => Work::Interrupt(Interrupt::Soft(number)),
            6 => Work::Interrupt(Interrupt::Vector(VECTORS[number as usize % VECTORS.len()])),
            7 => Work::KernelTask,
            9 => Work::Vcpu,
            _ => Work::Unknown,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let vectors = VECTORS.map(|vector| Work::Interrupt(Interrupt::Vector(vector)));
        let numbers = [0, 1, MAX_NUMBER];
        let devices = numbers.map(|number| Work::Interrupt(Interrupt::Device(number)));
        let softs = numbers.map(|number| Work::Interrupt(Interrupt::Soft(number)));
        let others = [
            Work::Idle,
            Work::User,
            Work::Syscall(0),
            Work::Syscall(u16::MAX),
            Work::Fault { estimated: false },
            Work::Fault { estimated: true },
            Work::KernelTask,
            Work::Unknown,
            Work::Vcpu,
        ];
        let works = || vectors.into_iter().chain(devices).chain(softs).chain(others);
        for task in [None, Some(TaskId(0)), Some(TaskId(u32::MAX - 1))] {
            let slice =
                |(begin, work)| Slice { begin: HostNs(begin), end: HostNs(begin + 1), task, work };
            let slices: Vec<Slice> = (5..).zip(works()).map(slice).collect();
            let packed: Slices = slices.iter().copied().collect();
            assert!(packed.iter().eq(slices.iter().copied()));
            assert!(packed.rows_from(3).eq(slices[3..].iter().copied()));
        }
        let made_up = Packed::new(None, Work::Interrupt(Interrupt::Device(u32::MAX)));
        assert_eq!(made_up.work(), Work::Interrupt(Interrupt::Device(MAX_NUMBER)));
        assert_eq!(size_of::<(HostNs, Packed)>(), 16);
    }

    #[test]
    fn neighbours_that_are_alike() {
        let mut slices = Slices::beginning(HostNs(3));
        for (end, task) in [(5, 1), (6, 1), (9, 2), (10, 1)] {
            slices.push(HostNs(end), Some(TaskId(task)), Work::User);
        }
        let chunks = slices.chunk_by(|one, next| one.task == next.task);
        assert_eq!(chunks.map(|chunk| chunk.len()).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(slices.extend(HostNs(12), Some(TaskId(1)), Work::User));
        assert!(!slices.extend(HostNs(13), None, Work::User));
        let last = slices.last().unwrap();
        assert_eq!((last.begin, last.end, slices.end()), (HostNs(9), HostNs(12), HostNs(12)));
        let begin_at = |time| slices.at(HostNs(time)).map(|slice| slice.begin.0);
        assert_eq!([2, 3, 5, 8, 99].map(begin_at), [None, Some(3), Some(5), Some(6), Some(9)]);
    }
}
