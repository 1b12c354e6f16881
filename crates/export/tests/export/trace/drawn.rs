//! Timelines drawn with letters: a letter is a millisecond.

use export::trace::Run;
use model::{
    BlockOp, HostNs, Interrupt, LockKind, LostEvents, Machine, MachineId, Pid, Tid, TraceStack,
    TraceTables, TracedCommand,
};
use trace_analysis::timeline::{
    Cpu, Disk, LockWait, Request, Segment, Segments, Sleep, Slice, Slices, State, Task, TaskId,
    Timeline, Waker, WokenBy, Work,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const START: u64 = 5_000 * MS;

/// Thread, process and parent ids, name, and states: a digit runs on that CPU; r was woken and p was preempted and waits
/// for one; d waits for a disk, l for a lock, f for a page, w for a child, s for anything; - is not there.
const TASKS: [(u32, u32, u32, usize, &str); 6] = [
    (10, 10, 1, 0, "0000wwwwwwwwwwwwwwwwwr00"),
    (11, 11, 10, 1, "---r00dddr000pp0--------"),
    (12, 12, 10, 1, "----111lllr11fff111111--"),
    (5, 5, 2, 2, "sssssssssssssr1sssssssss"),
    (13, 12, 10, 3, "------ssssssr00sssss----"),
    // The VM's vCPU: what the guest does meanwhile is in `vm`.
    (21, 20, 1, 7, "ssssrr00ssrrr1ssssssssss"),
];
/// `TASKS` has each CPU's task; what it executes: u user, o openat, f a page fault, i an interrupt, k a task of
/// the kernel's own, . nothing, ? not known.
const CPUS: [&str; 2] = ["uooououu.ioiuufo......ou", "?...uuo....ouuk.ouuuuo.."];

/// What a run borrows from.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub(crate) tables: TraceTables,
    pub(crate) timelines: Vec<Timeline>,
}

impl Drawing {
    pub(crate) fn run<'a>(&'a self, label: &'a str) -> Run<'a> {
        let instant = Some((HostNs(START), 1_750_000_000_000_000_000));
        Run { label, tables: &self.tables, timelines: &self.timelines, instant }
    }
}

/// A `make` with two compilers on a host with two CPUs, and a VM with one task.
pub(crate) fn small() -> Drawing {
    drawing(["make", "cc1", "kworker/0:1", "lto", "vda", "web", "io_schedule", "CPU 0/KVM"])
}

/// The same with one name everywhere a guest has a say.
pub(crate) fn hostile(name: &str) -> Drawing {
    drawing([name; 8])
}

fn drawing(names: [&str; 8]) -> Drawing {
    Drawing { tables: tables(&names), timelines: vec![host(&names), vm(&names)] }
}

pub(crate) fn at(ms: u64) -> HostNs {
    HostNs(START + ms * MS)
}

fn host(names: &[&str; 8]) -> Timeline {
    let tasks: Vec<Task> = (0..TASKS.len()).map(|row| task(row, names)).collect();
    let cpus = (0..).zip(CPUS).map(|(number, works)| cpu(number, works)).collect();
    Timeline {
        machine: MachineId::HOST,
        begin: at(0),
        end: at(24),
        tasks,
        cpus,
        disks: vec![Disk {
            dev: 254 << 20,
            name: names[4].to_owned(),
            busy: vec![(at(6), at(9)), (at(13), at(18))],
            requests: 3,
            bytes: [8192, 4096],
        }],
        ..Timeline::default()
    }
}

fn vm(names: &[&str; 8]) -> Timeline {
    let segments = segments("ss00rr00ss", |_, begin, _| {
        let waker = Waker { time: begin, by: WokenBy::Interrupt(Interrupt::Soft(3)) };
        Sleep { syscall: Some(232), woken_by: Some(waker), ..Sleep::default() }
    });
    let slice = |from, to, task, work| Slice { begin: at(from), end: at(to), task, work };
    let idle_task = |from, to, work| slice(from, to, None, work);
    Timeline {
        machine: MachineId(1),
        begin: at(2),
        end: at(12),
        tasks: vec![Task {
            begin: at(2),
            end: at(12),
            segments: segments.into_iter().map(|s| moved(s, 2 * MS)).collect(),
            names: vec![(at(2), names[0].to_owned())],
            ..empty_task(700, 700, 1)
        }],
        cpus: vec![Cpu {
            number: 0,
            slices: Slices::from_iter([
                idle_task(2, 4, Work::Idle),
                slice(4, 6, Some(TaskId(0)), Work::User),
                idle_task(6, 8, Work::Interrupt(Interrupt::Soft(3))),
                slice(8, 10, Some(TaskId(0)), Work::User),
                idle_task(10, 12, Work::Idle),
            ]),
        }],
        ..Timeline::default()
    }
}

fn moved(segment: Segment, by: u64) -> Segment {
    let later = |time: HostNs| HostNs(time.0 + by);
    Segment { begin: later(segment.begin), end: later(segment.end), ..segment }
}

fn empty_task(tid: u32, pid: u32, parent: u32) -> Task {
    Task {
        tid: Tid(tid),
        pid: Pid(pid),
        parent: None,
        parent_pid: Pid(parent),
        names: Vec::new(),
        kernel: parent == 2,
        begin: at(0),
        end: at(24),
        before: true,
        exited: false,
        segments: Segments::beginning(at(0)),
        requests: Vec::new(),
    }
}

fn task(row: usize, names: &[&str; 8]) -> Task {
    let (tid, pid, parent, name, states) = TASKS[row];
    let segments = segments(states, sleep);
    let (begin, end) = (segments[0].begin, segments.last().unwrap().end);
    Task {
        parent: (parent == 10).then_some(TaskId(0)),
        names: vec![(begin, names[name].to_owned())],
        begin,
        end,
        before: begin == at(0),
        exited: end < at(24),
        segments: segments.into_iter().collect(),
        requests: requests(row),
        ..empty_task(tid, pid, parent)
    }
}

fn requests(row: usize) -> Vec<Request> {
    let request = |op, queued, issued, done| Request {
        disk: 0,
        op,
        bytes: 4096,
        queued: at(queued),
        issued: Some(at(issued)),
        done: Some(at(done)),
        lower: None,
        for_loop: false,
    };
    match row {
        1 => vec![request(BlockOp::Read, 5, 6, 9)],
        2 => vec![request(BlockOp::Read, 12, 13, 16)],
        3 => vec![request(BlockOp::Write, 14, 14, 18)],
        _ => Vec::new(),
    }
}

/// What is known of a sleep with this letter.
fn sleep(letter: char, _: HostNs, end: HostNs) -> Sleep {
    let woken = |by| Some(Waker { time: end, by });
    let request = |task| WokenBy::Request { task: TaskId(task), row: 0 };
    let plain = Sleep::default();
    let stack = |number| Some(TraceStack(number));
    match letter {
        'd' => Sleep {
            uninterruptible: true,
            io: true,
            stack: stack(0),
            syscall: Some(0),
            woken_by: woken(request(1)),
            ..plain
        },
        'f' => Sleep {
            io: true,
            in_fault: true,
            stack: stack(0),
            woken_by: woken(request(2)),
            ..plain
        },
        'l' => Sleep {
            uninterruptible: true,
            stack: stack(1),
            syscall: Some(257),
            lock: Some(LockWait {
                lock: 0xffff_8880_0000_1000,
                kind: LockKind::SemWrite,
                owner: Some((TaskId(1), Some(0))),
                stack: Some(TraceStack(1)),
            }),
            woken_by: woken(WokenBy::Task(TaskId(1))),
            ..plain
        },
        'w' => Sleep { syscall: Some(61), woken_by: woken(WokenBy::Task(TaskId(2))), ..plain },
        _ if end == at(24) => plain,
        _ => Sleep { woken_by: woken(WokenBy::Interrupt(Interrupt::Soft(1))), ..plain },
    }
}

/// Runs of one letter: where each begins and ends, in ms.
fn runs(letters: &str) -> Vec<(char, u64, u64)> {
    let mut runs: Vec<(char, u64, u64)> = Vec::new();
    for (at, letter) in (0..).zip(letters.chars()) {
        match runs.last_mut() {
            Some((last, _, to)) if *last == letter => *to = at + 1,
            _ => runs.push((letter, at, at + 1)),
        }
    }
    runs
}

fn segments(letters: &str, sleep: impl Fn(char, HostNs, HostNs) -> Sleep) -> Vec<Segment> {
    let there = runs(letters).into_iter().filter(|(letter, ..)| *letter != '-');
    let segment = |(letter, from, to): (char, u64, u64)| {
        let (begin, end) = (at(from), at(to));
        let state = match letter {
            'r' => State::Runnable { preempted: false },
            'p' => State::Runnable { preempted: true },
            '?' => State::Unknown,
            'T' => State::Stopped { woken_by: None },
            digit if digit.is_ascii_digit() => State::Running { cpu: digit.to_digit(10).unwrap() },
            asleep => State::Asleep(sleep(asleep, begin, end)),
        };
        Segment { begin, end, state }
    };
    there.map(segment).collect()
}

fn cpu(number: u32, works: &str) -> Cpu {
    let who = |ms: usize| {
        let runs = |row: &usize| {
            TASKS[*row].4.chars().nth(ms).and_then(|letter| letter.to_digit(10)) == Some(number)
        };
        (0..TASKS.len()).find(runs)
    };
    let letters: Vec<(char, Option<usize>)> =
        works.chars().enumerate().map(|(ms, letter)| (letter, who(ms))).collect();
    let mut slices: Vec<Slice> = Vec::new();
    for (ms, (letter, who)) in (0..).zip(letters) {
        let work = match letter {
            'u' => Work::User,
            'o' => Work::Syscall(257),
            'f' => Work::Fault { estimated: true },
            'i' => Work::Interrupt(Interrupt::Device(24)),
            'k' => Work::KernelTask,
            '.' => Work::Idle,
            _ => Work::Unknown,
        };
        let task = who.map(|row| TaskId(u32::try_from(row).unwrap()));
        assert_eq!(task.is_some(), !matches!(letter, '.' | '?') && (letter != 'i' || ms != 9));
        match slices.last_mut() {
            Some(last) if (last.task, last.work) == (task, work) => last.end = at(ms + 1),
            _ => slices.push(Slice { begin: at(ms), end: at(ms + 1), task, work }),
        }
    }
    Cpu { number, slices: slices.into_iter().collect() }
}

fn tables(names: &[&str; 8]) -> TraceTables {
    let machine = |name: &str, cpus: Vec<u32>| Machine {
        name: name.to_owned(),
        kernel: "6.1".to_owned(),
        cpus,
        begin: at(0),
        end: at(24),
        path: "here".to_owned(),
        ..Machine::default()
    };
    let functions = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    TraceTables {
        machines: vec![
            machine("host", vec![0, 1]),
            Machine {
                lost: vec![LostEvents {
                    cpu: 0,
                    kind: model::TraceEventTag::from_name("switch"),
                    count: 7,
                }],
                missing: vec![("fault_exit".to_owned(), "refused".to_owned())],
                clock_error_ns: Some(420),
                vm_process: Some(Pid(20)),
                vcpu_threads: vec![Tid(21)],
                ended_early: Some("the guest was stopped".to_owned()),
                ..machine(names[5], vec![0])
            },
        ],
        stacks: vec![
            (MachineId::HOST, TraceStack(0), functions(&[names[6], "schedule"])),
            (
                MachineId::HOST,
                TraceStack(1),
                functions(&["rwsem_down_write_slowpath", "path_openat"]),
            ),
        ],
        disks: vec![(MachineId::HOST, 254 << 20, names[4].to_owned())],
        command: Some(TracedCommand {
            machine: MachineId::HOST,
            task: Tid(10),
            words: vec!["make".to_owned(), "-j2".to_owned()],
            before: false,
            exit_code: Some(0),
        }),
        ..TraceTables::default()
    }
}
