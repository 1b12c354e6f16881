//! Where CPU time went.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::calls::{CallClass, syscall_class, syscall_label};
use super::class::{Class, ClassGroup};
use crate::group::{By, Key, grouped};
use crate::timeline::{Calls, TaskId, Timeline, Work};

/// CPU time by what was executed, in ns. Interrupts and page faults count for themselves, not for what they interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Times {
    /// The times; none is 0.
    pub work: BTreeMap<Work, u64>,
}

/// All CPU time of a machine within a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelTime {
    /// Length of the trace.
    pub wall_ns: u64,
    /// Per CPU, ascending. Each adds up to the trace's length.
    pub cpus: Vec<(u32, Times)>,
    /// While a task had the CPU, in the order of `Timeline::tasks`.
    pub tasks: Vec<Times>,
    /// While no task had it: idle, and interrupts meanwhile.
    pub idle: Times,
    /// While it is not known who had it.
    pub unknown: Times,
}

/// Times of tasks that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimesRow {
    pub key: Key,
    /// Its tasks, ascending.
    pub tasks: Vec<TaskId>,
    pub times: Times,
}

/// The calls of one system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// Its number on x86-64.
    pub number: u16,
    pub name: String,
    pub class: CallClass,
    /// How many, how many failed, how long from entry to exit.
    pub calls: Calls,
    /// On a CPU in the call itself, without the interrupts and page faults in it, in ns.
    pub on_cpu_ns: u64,
}

impl Times {
    /// The sum of all classes.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        sum(self.work.values())
    }

    /// Time in the kernel.
    #[must_use]
    pub fn kernel_ns(&self) -> u64 {
        let kernel = self.work.iter().filter(|(work, _)| Class::from_work(**work).is_kernel());
        sum(kernel.map(|(_, ns)| ns))
    }

    /// By class; adds up to the total.
    #[must_use]
    pub fn classes(&self) -> BTreeMap<Class, u64> {
        self.by(Class::from_work)
    }

    /// By group of classes; adds up to the total.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<ClassGroup, u64> {
        self.by(|work| Class::from_work(work).group())
    }

    /// Adds another's times.
    pub fn merge(&mut self, other: &Self) {
        other.work.iter().for_each(|(work, ns)| self.add(*work, *ns));
    }

    fn by<K: Ord>(&self, key: impl Fn(Work) -> K) -> BTreeMap<K, u64> {
        let mut sums = BTreeMap::new();
        self.work.iter().for_each(|(work, ns)| grow(sums.entry(key(*work)).or_default(), *ns));
        sums
    }

    fn add(&mut self, work: Work, ns: u64) {
        if 0 < ns {
            grow(self.work.entry(work).or_default(), ns);
        }
    }
}

impl KernelTime {
    /// Adds up what every CPU did.
    #[must_use]
    pub fn new(timeline: &Timeline) -> Self {
        let wall_ns = timeline.length_ns();
        let mut time = Self { wall_ns, ..Self::default() };
        time.tasks.resize(timeline.tasks.len(), Times::default());
        for cpu in &timeline.cpus {
            let mut whole = Times::default();
            for slice in &cpu.slices {
                whole.add(slice.work, slice.length_ns());
                time.whose(slice.task, slice.work).add(slice.work, slice.length_ns());
            }
            debug_assert_eq!(whole.total_ns(), wall_ns, "slices cover the trace");
            time.cpus.push((cpu.number, whole));
        }
        debug_assert_eq!(time.by_who_ns(), time.total().total_ns(), "a CPU has a task or none");
        time
    }

    /// All CPUs: adds up to their number times the trace's length.
    #[must_use]
    pub fn total(&self) -> Times {
        let mut total = Times::default();
        self.cpus.iter().for_each(|(_, times)| total.merge(times));
        total
    }

    /// While one of these tasks had a CPU.
    #[must_use]
    pub fn times_of(&self, tasks: &[TaskId]) -> Times {
        let mut sum = Times::default();
        tasks.iter().filter_map(|id| self.tasks.get(id.index())).for_each(|times| sum.merge(times));
        sum
    }

    /// Rows of the given tasks, most kernel time first, then in the order in which they were first seen.
    #[must_use]
    pub fn rows(&self, timeline: &Timeline, by: By, tasks: &[TaskId]) -> Vec<TimesRow> {
        let groups = grouped(timeline, by, tasks);
        let row = |(key, tasks): (Key, Vec<TaskId>)| {
            let times = self.times_of(&tasks);
            TimesRow { key, tasks, times }
        };
        let mut rows: Vec<TimesRow> = groups.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse(row.times.kernel_ns()));
        rows
    }

    /// The system calls of the given tasks, most CPU time first, then by number.
    #[must_use]
    pub fn calls(&self, timeline: &Timeline, tasks: &[TaskId]) -> Vec<CallRow> {
        let mut rows: BTreeMap<u16, (Calls, u64)> = BTreeMap::new();
        for task in tasks {
            let first = (*task, 0);
            for ((_, number), calls) in timeline.calls.range(first..=(*task, u16::MAX)) {
                rows.entry(*number).or_default().0.merge(calls);
            }
        }
        for (work, ns) in self.times_of(tasks).work {
            if let Work::Syscall(number) = work {
                grow(&mut rows.entry(number).or_default().1, ns);
            }
        }
        let row = |(number, (calls, on_cpu_ns))| CallRow {
            number,
            name: syscall_label(number),
            class: syscall_class(number),
            calls,
            on_cpu_ns,
        };
        let mut rows: Vec<CallRow> = rows.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse(row.on_cpu_ns));
        rows
    }

    fn by_who_ns(&self) -> u64 {
        let parts = self.tasks.iter().chain([&self.idle, &self.unknown]);
        sum(&parts.map(Times::total_ns).collect::<Vec<u64>>())
    }

    fn whose(&mut self, task: Option<TaskId>, work: Work) -> &mut Times {
        match task {
            Some(id) => self.tasks.get_mut(id.index()).unwrap_or(&mut self.unknown),
            None if work == Work::Unknown => &mut self.unknown,
            None => &mut self.idle,
        }
    }
}

/// A guest's times may be anything: sums end at the largest number.
fn grow(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

fn sum<'a>(parts: impl IntoIterator<Item = &'a u64>) -> u64 {
    parts.into_iter().fold(0, |sum, ns| sum.saturating_add(*ns))
}

impl Calls {
    /// Adds another's times.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.failed = self.failed.saturating_add(other.failed);
        self.ns = self.ns.saturating_add(other.ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}
