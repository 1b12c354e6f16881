//! Timelines for tests: drawn in characters, and random ones.

use std::collections::BTreeMap;

use model::{BlockOp, HostNs, Interrupt, LockKind, Pid, Tid, Vector};

use crate::timeline::{
    Cpu, Disk, LockWait, Request, Segment, Sleep, Slice, State, Task, TaskId, Timeline, Waker,
    WokenBy, Work,
};

/// A timeline, one character per 10 ns:
///
/// ```text
/// 0 1   user code on CPU 0, 1        .   waits for a CPU         a-v  asleep; the table of wakers says how that ended
/// k     the kernel on CPU 0          ?   unknown                 w    still asleep, and being woken
/// I     an interrupt on CPU 0       ' '  not there               x    asleep, never woken
/// s     stopped
/// ```
pub(crate) struct DrawnTimeline {
    pub(crate) timeline: Timeline,
    names: Vec<String>,
}

/// How a sleep ended.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Task(&'static str),
    /// A task, from a sleep for a lock.
    Unlock(&'static str),
    /// A task, from a futex that names no holder.
    Futex(&'static str),
    /// A task, from `flock`.
    FileLock(&'static str),
    /// A task, from a stop.
    Continue(&'static str),
    /// A task's request to a loop device, and that of another to the disk below: the columns each was queued and done at.
    Loop([(&'static str, u64, u64); 2]),
    Interrupt(Interrupt),
    /// A task's request: the columns it was queued, issued and done at.
    Disk(&'static str, u64, u64, u64),
    Unknown,
    UnknownIo,
}

impl DrawnTimeline {
    /// Lines are `(name, parent or "", drawing)`.
    pub(crate) fn new(lines: &[(&str, &str, &str)], wakers: &[(char, By)]) -> Self {
        let names: Vec<String> = lines.iter().map(|line| line.0.to_owned()).collect();
        let wide = lines.iter().map(|line| line.2.len()).max().unwrap_or(0) as u64;
        let mut drawn =
            Self { timeline: Timeline { end: HostNs(wide * 10), ..Timeline::default() }, names };
        for (number, line) in lines.iter().enumerate() {
            let task = drawn.task(u32::try_from(number).unwrap() + 1, line, wide * 10);
            drawn.timeline.tasks.push(task);
        }
        drawn.timeline.disks.push(Disk { name: "vda".to_owned(), ..Disk::default() });
        let letters = lines.iter().map(|line| line.2.chars().collect()).collect::<Vec<Vec<char>>>();
        for (row, line) in letters.iter().enumerate() {
            drawn.sleeps(row, line, &wakers.iter().copied().collect());
        }
        drawn.timeline.cpus = (0..2).map(|number| drawn.cpu(&letters, number, wide)).collect();
        drawn
    }

    pub(crate) fn id(&self, name: &str) -> TaskId {
        TaskId(u32::try_from(self.names.iter().position(|it| it == name).unwrap()).unwrap())
    }

    fn task(&self, number: u32, (name, parent, line): &(&str, &str, &str), end: u64) -> Task {
        let at = |n: usize| HostNs(n as u64 * 10);
        let born = line.len() - line.trim_start().len();
        let died = line.trim_end().len();
        let mut segments: Vec<Segment> = Vec::new();
        let mut last = ' ';
        for (n, letter) in line.chars().enumerate().take(died).skip(born) {
            let running = |letter| if matches!(letter, 'k' | 'I') { '0' } else { letter };
            if running(letter) == running(last) || letter == 'w' {
                segments.last_mut().unwrap().end = at(n + 1);
            } else {
                segments.push(Segment { begin: at(n), end: at(n + 1), state: state(letter, last) });
            }
            last = letter;
        }
        Task {
            tid: Tid(number),
            pid: Pid(number),
            parent: (!parent.is_empty()).then(|| self.id(parent)),
            parent_pid: Pid(0),
            names: vec![(at(born), (*name).to_owned())],
            kernel: false,
            begin: at(born),
            end: at(died),
            before: born == 0,
            exited: at(died) < HostNs(end),
            segments: segments.into_iter().collect(),
            requests: Vec::new(),
        }
    }

    fn sleeps(&mut self, row: usize, line: &[char], wakers: &BTreeMap<char, By>) {
        let mut segments: Vec<Segment> = self.timeline.tasks[row].segments.iter().collect();
        for segment in &mut segments {
            let Segment { begin, end, .. } = *segment;
            let drawn =
                &line[usize::try_from(begin.0 / 10).unwrap()..usize::try_from(end.0 / 10).unwrap()];
            let Some(by) = wakers.get(&drawn[0]) else { continue };
            let waking = drawn.iter().position(|&letter| letter == 'w').unwrap_or(drawn.len());
            let time = HostNs(begin.0 + waking as u64 * 10);
            let lock = |kind| LockWait { lock: 1, kind, owner: None, stack: None };
            let lock = match by {
                By::Unlock(_) => Some(lock(LockKind::Mutex)),
                By::Futex(_) => Some(lock(LockKind::Futex)),
                _ => None,
            };
            let io = matches!(by, By::UnknownIo);
            let syscall = matches!(by, By::FileLock(_)).then_some(73);
            let woken_by = Some(Waker { time, by: self.woken_by(*by) });
            segment.state = match by {
                By::Continue(_) => State::Stopped { woken_by },
                _ => State::Asleep(Sleep { lock, io, syscall, woken_by, ..Sleep::default() }),
            };
        }
        self.timeline.tasks[row].segments = segments.into_iter().collect();
    }

    fn woken_by(&mut self, by: By) -> WokenBy {
        match by {
            By::Task(name)
            | By::Unlock(name)
            | By::Futex(name)
            | By::FileLock(name)
            | By::Continue(name) => WokenBy::Task(self.id(name)),
            By::Loop([upper, below]) => {
                self.timeline.disks.push(Disk { name: "loop0".to_owned(), ..Disk::default() });
                let lower = self.request(below.0, 0, [below.1, below.1, below.2]);
                let (task, row) = self.request(upper.0, 1, [upper.1, upper.1, upper.2]);
                self.timeline.tasks[task.index()].requests[row as usize].lower = Some(lower);
                WokenBy::Request { task, row }
            }
            By::Interrupt(interrupt) => WokenBy::Interrupt(interrupt),
            By::Unknown | By::UnknownIo => WokenBy::Unknown,
            By::Disk(name, queued, issued, done) => {
                let (task, row) = self.request(name, 0, [queued, issued, done]);
                WokenBy::Request { task, row }
            }
        }
    }

    fn request(&mut self, name: &str, disk: u32, times: [u64; 3]) -> (TaskId, u32) {
        let [queued, issued, done] = times.map(|column| HostNs(column * 10));
        let task = self.id(name);
        self.timeline.disks[disk as usize].busy.push((issued, done));
        let requests = &mut self.timeline.tasks[task.index()].requests;
        requests.push(Request {
            disk,
            op: BlockOp::Read,
            bytes: 4096,
            queued,
            issued: Some(issued),
            done: Some(done),
            lower: None,
            for_loop: false,
        });
        (task, u32::try_from(requests.len() - 1).unwrap())
    }

    fn cpu(&self, lines: &[Vec<char>], number: u32, wide: u64) -> Cpu {
        let own = |letter: char| {
            if matches!(letter, 'k' | 'I') {
                number == 0
            } else {
                letter.to_digit(10) == Some(number)
            }
        };
        let slices = (0..wide).map(|n| {
            let at = usize::try_from(n).unwrap();
            let row = lines.iter().position(|line| line.get(at).is_some_and(|&letter| own(letter)));
            let work = match row.map(|row| lines[row][at]) {
                None => Work::Idle,
                Some('k') => Work::Syscall(0),
                Some('I') => Work::Interrupt(Interrupt::Vector(Vector::LocalTimer)),
                Some(_) => Work::User,
            };
            let task = row.map(|row| TaskId(u32::try_from(row).unwrap()));
            Slice { begin: HostNs(n * 10), end: HostNs(n * 10 + 10), task, work }
        });
        Cpu { number, slices: slices.collect() }
    }
}

fn state(letter: char, before: char) -> State {
    match letter {
        '0' | 'k' | 'I' => State::Running { cpu: 0 },
        '1' => State::Running { cpu: 1 },
        '.' => State::Runnable { preempted: before != ' ' },
        's' => State::Stopped { woken_by: None },
        '?' => State::Unknown,
        _ => State::Asleep(Sleep::default()),
    }
}

/// The same numbers for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn number(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(u64::from(n))).unwrap()
    }
}

/// A timeline whose tasks and CPUs are covered, as promised, and whose wakers, parents and requests are anybody's: they
/// contradict each other, name times that are to come, and rows that are not there.
pub(crate) fn at_random(random: &mut Random) -> Timeline {
    let end = 50 + random.below(500);
    let n_tasks = 1 + random.number(8);
    let cut = |random: &mut Random, begin: u64, end: u64| {
        let mut edges = vec![begin, end];
        let n = random.below(30);
        edges.extend((0..n).map(|_| begin + random.below(end - begin)));
        edges.sort_unstable();
        edges.dedup();
        edges.windows(2).map(|edge| (HostNs(edge[0]), HostNs(edge[1]))).collect::<Vec<_>>()
    };
    let mut timeline = Timeline { end: HostNs(end), ..Timeline::default() };
    timeline.disks = vec![Disk { name: "vda".to_owned(), ..Disk::default() }; 2];
    for number in 0..2 {
        let slices = cut(random, 0, end).into_iter().map(|(begin, end)| {
            let task = (random.below(3) > 0).then(|| TaskId(random.number(n_tasks)));
            let work = [Work::User, Work::Syscall(1), Work::Fault { estimated: true }, Work::Idle]
                [random.number(4) as usize];
            Slice { begin, end, task, work }
        });
        let slices = slices.collect();
        timeline.cpus.push(Cpu { number, slices });
    }
    for row in 0..n_tasks {
        let begin = if random.below(2) == 0 { 0 } else { random.below(end - 1) };
        let end = begin + 1 + random.below(end - begin);
        let segments = cut(random, begin, end).into_iter().map(|(begin, end)| {
            let state = match random.below(6) {
                0 | 1 => State::Running { cpu: random.number(3) },
                2 => State::Runnable { preempted: false },
                3 | 4 => State::Asleep(sleep_at_random(random, n_tasks, end)),
                _ => [State::Stopped { woken_by: None }, State::Unknown][random.number(2) as usize],
            };
            Segment { begin, end, state }
        });
        let segments = segments.collect();
        let requests = (0..random.below(4)).map(|_| Request {
            disk: random.number(3),
            op: BlockOp::Write,
            bytes: 512,
            queued: HostNs(random.below(end + 20)),
            issued: (random.below(3) > 0).then(|| HostNs(random.below(end + 20))),
            done: (random.below(3) > 0).then(|| HostNs(random.below(end + 20))),
            lower: (random.below(3) == 0)
                .then(|| (TaskId(random.number(n_tasks + 1)), random.number(4))),
            for_loop: false,
        });
        let requests = requests.collect();
        timeline.tasks.push(Task {
            tid: Tid(row + 1),
            pid: Pid(1 + random.number(3)),
            parent: (random.below(2) == 0).then(|| TaskId(random.number(n_tasks + 1))),
            parent_pid: Pid(0),
            names: vec![(HostNs(0), "a".to_owned()), (HostNs(random.below(end)), "b".to_owned())],
            kernel: random.below(4) == 0,
            begin: HostNs(begin),
            end: HostNs(end),
            before: begin == 0,
            exited: false,
            segments,
            requests,
        });
    }
    timeline
}

fn sleep_at_random(random: &mut Random, n_tasks: u32, end: HostNs) -> Sleep {
    let task = TaskId(random.number(n_tasks + 1));
    let by = match random.below(5) {
        0 | 1 => WokenBy::Task(task),
        2 => WokenBy::Request { task, row: random.number(4) },
        3 => WokenBy::Interrupt(Interrupt::Vector(Vector::LocalTimer)),
        _ => WokenBy::Unknown,
    };
    let time = match random.below(3) {
        0 => HostNs(random.below(end.0 + 50)),
        _ => end,
    };
    let lock = LockWait { lock: 1, kind: LockKind::Mutex, owner: None, stack: None };
    Sleep {
        io: random.below(4) == 0,
        lock: (random.below(4) == 0).then_some(lock),
        woken_by: (random.below(5) > 0).then_some(Waker { time, by }),
        ..Sleep::default()
    }
}
