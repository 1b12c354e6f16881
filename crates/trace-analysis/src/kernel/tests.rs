use model::{HostNs, Interrupt, Pid, Tid, Vector};

use super::*;
use crate::group::By;
use crate::test_timelines::{Random, at_random};
use crate::timeline::{Calls, Cpu, Segments, Slice, Slices, Task, TaskId, Timeline, Work};
use crate::tree::all;

/// CPUs, one character per 10 ns. Who has it is the digit of the line below; `-` is idle.
///
/// ```text
/// u user   r read   m mmap   c clone   n futex   f fault   e estimated fault   d device   s softirq   t local timer
/// k kernel task   . idle   ? unknown
/// ```
fn drawn(cpus: &[(&str, &str)]) -> Timeline {
    let end = cpus[0].0.len() as u64 * 10;
    let cpu = |(number, (work, who)): (u32, &(&str, &str))| {
        let slice = |(n, (work, who)): (u64, (char, char))| Slice {
            begin: HostNs(n * 10),
            end: HostNs(n * 10 + 10),
            task: who.to_digit(10).map(TaskId),
            work: self::work(work),
        };
        Cpu { number, slices: (0..).zip(work.chars().zip(who.chars())).map(slice).collect() }
    };
    let task = |(tid, name): (u32, &str)| Task {
        tid: Tid(tid),
        pid: Pid(tid),
        parent: None,
        parent_pid: Pid(0),
        names: vec![(HostNs(0), name.to_owned())],
        kernel: name.starts_with('k'),
        begin: HostNs(0),
        end: HostNs(end),
        before: true,
        exited: false,
        segments: Segments::default(),
        requests: Vec::new(),
    };
    Timeline {
        end: HostNs(end),
        cpus: (0..).zip(cpus).map(cpu).collect(),
        tasks: (1..).zip(["make", "cc1", "cc1", "kworker"]).map(task).collect(),
        ..Timeline::default()
    }
}

fn work(letter: char) -> Work {
    match letter {
        'u' => Work::User,
        'r' => Work::Syscall(0),
        'm' => Work::Syscall(9),
        'c' => Work::Syscall(56),
        'n' => Work::Syscall(202),
        'f' => Work::Fault { estimated: false },
        'e' => Work::Fault { estimated: true },
        'd' => Work::Interrupt(Interrupt::Device(24)),
        's' => Work::Interrupt(Interrupt::Soft(4)),
        't' => Work::Interrupt(Interrupt::Vector(Vector::LocalTimer)),
        'k' => Work::KernelTask,
        '.' => Work::Idle,
        '?' => Work::Unknown,
        other => panic!("{other}"),
    }
}

fn shown<K>(sums: std::collections::BTreeMap<K, u64>, name: impl Fn(K) -> &'static str) -> String {
    let rows = sums.into_iter().map(|(key, ns)| format!("{} {}", name(key), ns / 10));
    rows.collect::<Vec<_>>().join(", ")
}

#[test]
fn classes_add_up_to_cpus_times_wall() {
    let timeline =
        drawn(&[("uurrdsrmcnfe..", "00000000000---"), ("uuuffft?kk..t.", "111111-?33----")]);
    let time = KernelTime::new(&timeline);
    let total = time.total();
    assert_eq!(total.total_ns(), 2 * timeline.length_ns());
    assert_eq!(total.groups().values().sum::<u64>(), total.total_ns());
    assert_eq!(
        shown(total.groups(), ClassGroup::name),
        "user 5, file system calls 3, process system calls 1, memory system calls 1, other system calls 1, \
         page faults 5, interrupts 4, kernel tasks 2, idle 5, unknown 1"
    );
    assert_eq!(
        shown(total.classes(), Class::name),
        "user 5, file system calls 3, process system calls 1, memory system calls 1, ipc system calls 1, \
         page faults 4, page faults (estimated) 1, device interrupts 1, softirqs 1, cpu interrupts 2, \
         kernel tasks 2, idle 5, unknown 1"
    );
    assert_eq!(total.kernel_ns(), 170);
    for (_, times) in &time.cpus {
        assert_eq!(times.total_ns(), timeline.length_ns());
    }
    // No task's: idle, and the interrupts meanwhile.
    assert_eq!(shown(time.idle.groups(), ClassGroup::name), "page faults 1, interrupts 2, idle 5");
    assert_eq!(shown(time.unknown.groups(), ClassGroup::name), "unknown 1");
}

#[test]
fn rows_by_process_and_by_name() {
    let timeline = drawn(&[("urrru", "00011"), ("mmmkk", "22233")]);
    let time = KernelTime::new(&timeline);
    let check = |by, expected: &[&str]| {
        let row = |row: TimesRow| {
            format!("{} {}", row.key.name, shown(row.times.groups(), ClassGroup::name))
        };
        let rows = time.rows(&timeline, by, &all(&timeline));
        assert_eq!(rows.into_iter().map(row).collect::<Vec<_>>(), expected);
    };
    check(
        By::Process,
        &[
            "cc1 memory system calls 3",
            "make user 1, file system calls 2",
            "kworker kernel tasks 2",
            "cc1 user 1, file system calls 1",
        ],
    );
    check(
        By::Name,
        &[
            "cc1 user 1, file system calls 1, memory system calls 3",
            "make user 1, file system calls 2",
            "kworker kernel tasks 2",
        ],
    );
}

#[test]
fn system_calls() {
    let mut timeline = drawn(&[("rrdrm", "00001"), ("nu.uu", "1--11")]);
    let calls = |count, failed, ns| Calls { count, failed, ns, longest_ns: ns / 2 };
    timeline.calls.insert((TaskId(0), 0), calls(3, 1, 100));
    timeline.calls.insert((TaskId(1), 9), calls(1, 0, 10));
    timeline.calls.insert((TaskId(1), 202), calls(2, 0, 70));
    timeline.calls.insert((TaskId(1), 500), calls(1, 1, 4));
    timeline.calls.insert((TaskId(2), 0), calls(5, 0, 60));
    let time = KernelTime::new(&timeline);
    let check = |tasks: &[u32], expected: &[&str]| {
        let tasks: Vec<TaskId> = tasks.iter().copied().map(TaskId).collect();
        let row = |row: CallRow| {
            let Calls { count, failed, ns, longest_ns } = row.calls;
            let class = row.class.name().split_once(' ').unwrap().0.to_owned();
            format!("{} {class} {count}/{failed} {ns} {longest_ns} {}", row.name, row.on_cpu_ns)
        };
        let rows = time.calls(&timeline, &tasks);
        assert_eq!(rows.into_iter().map(row).collect::<Vec<_>>(), expected);
    };
    check(&[0], &["read file 3/1 100 50 30"]);
    check(
        &[1],
        &["mmap memory 1/0 10 5 10", "futex ipc 2/0 70 35 10", "syscall 500 unnamed 1/1 4 2 0"],
    );
    check(&[0, 2], &["read file 8/1 160 50 30"]);
    check(&[77], &[]);
}

#[test]
fn sums_hold_whatever_happens() {
    let random = &mut Random(3);
    for _ in 0..300 {
        let timeline = at_random(random);
        let time = KernelTime::new(&timeline);
        let total = time.total();
        let wall = timeline.length_ns() * timeline.cpus.len() as u64;
        assert_eq!(total.total_ns(), wall);
        assert_eq!(total.classes().values().sum::<u64>(), wall);
        for by in [By::Task, By::Process, By::Name] {
            let mut sum = time.idle.clone();
            sum.merge(&time.unknown);
            let rows = time.rows(&timeline, by, &all(&timeline));
            rows.iter().for_each(|row| sum.merge(&row.times));
            assert_eq!(sum, total, "{by:?}");
        }
    }
}

#[test]
fn times_of_a_guest_that_lies_add_up_to_the_largest_number() {
    let mut timeline = drawn(&[("u", "0"), ("r", "1")]);
    timeline.end = HostNs(u64::MAX);
    for cpu in &mut timeline.cpus {
        let first = cpu.slices.get(0).unwrap();
        cpu.slices = Slices::beginning(HostNs(0));
        cpu.slices.push(HostNs(u64::MAX), first.task, first.work);
    }
    let time = KernelTime::new(&timeline);
    assert_eq!(time.total().total_ns(), u64::MAX);
    assert_eq!(time.times_of(&all(&timeline)).total_ns(), u64::MAX);
    assert_eq!(time.calls(&timeline, &all(&timeline))[0].on_cpu_ns, u64::MAX);
}
