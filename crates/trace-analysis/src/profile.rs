//! The four-way profile of CPU and disk: for how long both were busy, one of them, or neither.
//!
//! ```text
//!  CPUs   ####..####......      both       ##
//!  disks  ....####..##....  =>  CPU only   ######
//!                               disk only  ####
//!                               neither    ####     ... which sums to the wall time
//! ```

use std::ops::Range;

use model::HostNs;

use crate::cover::{Edge, Stretch, cross, edges, levels};
use crate::timeline::{Cpu, Disk, Slice, Timeline, Work};

/// The four-way profile of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// A CPU is busy when any is, a disk when any is.
    pub machine: BusyMatrix,
    /// Each CPU, by its number, against all disks.
    pub cpus: Vec<(u32, BusyMatrix)>,
    /// Each disk, in the order of `Timeline::disks`, against all CPUs.
    pub disks: Vec<BusyMatrix>,
}

/// A stretch of wall time divided by what was busy. All in ns; they sum to the wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusyMatrix {
    /// A CPU and no disk.
    pub cpu_only_ns: u64,
    /// A CPU and a disk.
    pub both_ns: u64,
    /// A disk and no CPU.
    pub disk_only_ns: u64,
    pub neither_ns: u64,
    /// No CPU is known to be busy, and of at least one it is not known whether it is; no disk is.
    pub unknown_ns: u64,
    /// The same while a disk is busy.
    pub unknown_and_disk_ns: u64,
}

impl BusyMatrix {
    /// The wall time of the profile.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.cpu_ns()
            + self.disk_only_ns
            + self.neither_ns
            + self.unknown_ns
            + self.unknown_and_disk_ns
    }

    /// How long a CPU was known to be busy.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_only_ns + self.both_ns
    }

    /// How long a disk was busy.
    #[must_use]
    pub fn disk_ns(&self) -> u64 {
        self.both_ns + self.disk_only_ns + self.unknown_and_disk_ns
    }

    fn add(&mut self, ns: u64, cpu: Usage, disk_busy: bool) {
        let sum = match (cpu, disk_busy) {
            (Usage::Busy, false) => &mut self.cpu_only_ns,
            (Usage::Busy, true) => &mut self.both_ns,
            (Usage::Idle, true) => &mut self.disk_only_ns,
            (Usage::Idle, false) => &mut self.neither_ns,
            (Usage::Unknown, false) => &mut self.unknown_ns,
            (Usage::Unknown, true) => &mut self.unknown_and_disk_ns,
        };
        *sum += ns;
    }
}

/// The profile of the whole trace.
#[must_use]
pub fn profile(timeline: &Timeline) -> Profile {
    profile_within(timeline, &(timeline.begin..timeline.end))
}

/// The profile of a part of the trace; what lies outside the trace is left out.
#[must_use]
pub fn profile_within(timeline: &Timeline, range: &Range<HostNs>) -> Profile {
    let end = range.end.min(timeline.end);
    let range = &(range.start.max(timeline.begin).min(end)..end);
    let cpus: Vec<Vec<Edge>> = timeline.cpus.iter().map(cpu_edges).collect();
    let all_cpus = cpu_usage(range, cpus.iter().flatten().copied().collect());
    let disks: Vec<Vec<Edge>> = timeline.disks.iter().map(disk_edges).collect();
    let all_disks = levels(range, disks.iter().flatten().copied().collect());
    let of_cpu = |(cpu, edges): (&Cpu, Vec<Edge>)| {
        (cpu.number, four_way(range, &cpu_usage(range, edges), &all_disks))
    };
    Profile {
        machine: four_way(range, &all_cpus, &all_disks),
        cpus: timeline.cpus.iter().zip(cpus).map(of_cpu).collect(),
        disks: disks
            .into_iter()
            .map(|edges| four_way(range, &all_cpus, &levels(range, edges)))
            .collect(),
    }
}

/// What one CPU, or several taken as one, does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    Busy,
    Idle,
    Unknown,
}

/// The sorts of `Edge`s of CPUs.
const BUSY: usize = 0;
const UNKNOWN: usize = 1;

fn usage(slice: &Slice) -> Usage {
    match (slice.work, slice.task) {
        (Work::Idle, _) => Usage::Idle,
        (Work::Unknown, None) => Usage::Unknown,
        _ => Usage::Busy,
    }
}

fn cpu_edges(cpu: &Cpu) -> Vec<Edge> {
    let mut known: Vec<Edge> = Vec::new();
    let mut slices = cpu.slices.iter().peekable();
    while let Some(first) = slices.next() {
        let usage = self::usage(&first);
        let mut end = first.end;
        while let Some(next) = slices.next_if(|next| self::usage(next) == usage) {
            end = next.end;
        }
        let sort = match usage {
            Usage::Busy => BUSY,
            Usage::Unknown => UNKNOWN,
            Usage::Idle => continue,
        };
        known.extend(edges((first.begin, end), sort));
    }
    known
}

fn disk_edges(disk: &Disk) -> Vec<Edge> {
    disk.busy.iter().flat_map(|busy| edges(*busy, BUSY)).collect()
}

fn cpu_usage(range: &Range<HostNs>, edges: Vec<Edge>) -> Vec<Stretch<Usage>> {
    let usage = |stretch: Stretch<[i64; 2]>| Stretch {
        begin: stretch.begin,
        end: stretch.end,
        what: match stretch.what {
            [0, 0] => Usage::Idle,
            [0, _] => Usage::Unknown,
            _ => Usage::Busy,
        },
    };
    levels(range, edges).into_iter().map(usage).collect()
}

fn four_way(
    range: &Range<HostNs>,
    cpu: &[Stretch<Usage>],
    disk: &[Stretch<[i64; 2]>],
) -> BusyMatrix {
    let mut sums = BusyMatrix::default();
    cross(cpu.iter().copied(), disk, |ns, cpu, disk| sums.add(ns, cpu, disk != [0, 0]));
    debug_assert_eq!(sums.total_ns(), range.end.since(range.start));
    sums
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::timeline::TaskId;
    use crate::timeline::build::random::senseless;

    /// One letter per ns: `#` busy, `?` unknown, `.` idle.
    fn cpu(number: u32, drawing: &str) -> Cpu {
        let slice = |(begin, letter): (u64, char)| Slice {
            begin: HostNs(begin),
            end: HostNs(begin + 1),
            task: (letter == '#').then_some(TaskId(0)),
            work: match letter {
                '#' => Work::User,
                '?' => Work::Unknown,
                _ => Work::Idle,
            },
        };
        Cpu { number, slices: (0..).zip(drawing.chars()).map(slice).collect() }
    }

    fn disk(drawing: &str) -> Disk {
        let busy = (0..).zip(drawing.chars()).filter(|(_, letter)| *letter == '#');
        let busy = busy.map(|(begin, _)| (HostNs(begin), HostNs(begin + 1)));
        Disk { busy: busy.collect(), ..Disk::default() }
    }

    fn timeline(cpus: &[&str], disks: &[&str]) -> Timeline {
        let cpus: Vec<Cpu> = (0..).zip(cpus).map(|(n, drawing)| cpu(n, drawing)).collect();
        Timeline {
            end: cpus[0].slices.end(),
            cpus,
            disks: disks.iter().map(|drawing| disk(drawing)).collect(),
            ..Timeline::default()
        }
    }

    /// CPU only, both, disk only, neither, unknown, unknown and disk.
    fn numbers(split: &BusyMatrix) -> [u64; 6] {
        [
            split.cpu_only_ns,
            split.both_ns,
            split.disk_only_ns,
            split.neither_ns,
            split.unknown_ns,
            split.unknown_and_disk_ns,
        ]
    }

    #[test]
    fn what_was_busy() {
        let check = |cpus: &[&str], disks: &[&str], expected: [u64; 6]| {
            assert_eq!(numbers(&profile(&timeline(cpus, disks)).machine), expected);
        };
        check(&["####..####......"], &["....####..##...."], [6, 2, 4, 4, 0, 0]);
        check(&["##......"], &[], [2, 0, 0, 6, 0, 0]);
        // Any CPU, any disk.
        check(&["##......", ".##....."], &["##......", "...##..."], [1, 2, 2, 3, 0, 0]);
        // What is not known matters where no other CPU is busy.
        check(&["??????..", "..####.."], &["....####"], [2, 2, 2, 0, 2, 0]);
        check(&["????"], &["..#."], [0, 0, 0, 0, 3, 1]);
    }

    #[test]
    fn each_cpu_and_each_disk() {
        let timeline = timeline(&["##..", "..#."], &["#...", ".##."]);
        let profile = profile(&timeline);
        let cpus: Vec<_> = profile.cpus.iter().map(|(n, split)| (*n, numbers(split))).collect();
        assert_eq!(cpus, [(0, [0, 2, 1, 1, 0, 0]), (1, [0, 1, 2, 1, 0, 0])]);
        let disks: Vec<_> = profile.disks.iter().map(numbers).collect();
        assert_eq!(disks, [[2, 1, 0, 1, 0, 0], [1, 2, 0, 1, 0, 0]]);
    }

    #[test]
    fn a_part_of_the_trace() {
        let timeline = timeline(&["##..##"], &[".##..."]);
        let check = |begin, end, expected| {
            let part = profile_within(&timeline, &(HostNs(begin)..HostNs(end)));
            assert_eq!(numbers(&part.machine), expected);
        };
        check(0, 6, [3, 1, 1, 1, 0, 0]);
        check(1, 4, [0, 1, 1, 1, 0, 0]);
        check(5, 99, [1, 0, 0, 0, 0, 0]);
        check(4, 2, [0; 6]);
        check(50, 60, [0; 6]);
    }

    #[test]
    fn any_profile_sums_to_wall_time() {
        for timeline in senseless() {
            let profile = profile(&timeline);
            let cpus = profile.cpus.iter().map(|(_, split)| split);
            for split in cpus.chain(&profile.disks).chain([&profile.machine]) {
                assert_eq!(split.total_ns(), timeline.length_ns());
            }
            for (disk, split) in timeline.disks.iter().zip(&profile.disks) {
                let busy: u64 = disk.busy.iter().map(|(begin, end)| end.since(*begin)).sum();
                assert_eq!(split.disk_ns(), busy);
            }
        }
    }
}
