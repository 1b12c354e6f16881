//! The probes in this machine's kernel. Needs root and BPF.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use model::{BlockOp, LockKind, Pid, PrevState, Tid, TraceEvent, TraceEventKind, TraceStack};
use tracer::{Filter, Options, Symbols, Tracer, TracerError};

/// One trace at a time: each makes the others' machine busier.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn options(filter: Filter) -> Options {
    let cpus = host::machine::online_cpus(Path::new("/sys")).unwrap();
    let (slots_per_cpu, stacks) = (1 << 20, 4096);
    Options { cpus, slots_per_cpu, stacks, user_stacks: stacks, files: 0, filter, exclude: None }
}

/// A trace under way, and what was taken so far.
struct Trace {
    tracer: Tracer,
    cpus: Vec<u32>,
    /// By CPU.
    events: BTreeMap<u32, Vec<TraceEvent>>,
}

impl Trace {
    /// `None`, after saying why, where the kernel takes no probes.
    fn start(options: &Options) -> Option<Self> {
        Self::start_after(options, |_| ())
    }

    /// With something to do between loading and attaching.
    fn start_after(options: &Options, before: impl FnOnce(&mut Tracer)) -> Option<Self> {
        let mut tracer = match Tracer::load(options) {
            Ok(tracer) => tracer,
            Err(error @ TracerError::Options(_)) => panic!("{error}"),
            Err(error) => {
                skip::skip_if_refused(error);
                return None;
            }
        };
        before(&mut tracer);
        tracer.start().unwrap();
        Some(Self { tracer, cpus: options.cpus.clone(), events: BTreeMap::new() })
    }

    fn drain(&mut self) {
        for &cpu in &self.cpus {
            self.tracer.drain(cpu, self.events.entry(cpu).or_default()).unwrap();
        }
    }

    /// Drains until the child has ended.
    fn wait(&mut self, child: &mut Child) {
        while child.try_wait().unwrap().is_none() {
            self.drain();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All events, in time order, after checking that none was lost and that each CPU's came in time order.
    fn finish(&mut self) -> Vec<TraceEvent> {
        self.tracer.stop();
        self.drain();
        assert_eq!(self.tracer.lost(), []);
        for (cpu, events) in &self.events {
            assert!(events.is_sorted_by_key(|event| event.time), "CPU {cpu}");
            assert!(events.iter().all(|event| event.cpu == *cpu));
        }
        let mut events: Vec<_> = std::mem::take(&mut self.events).into_values().flatten().collect();
        events.sort_by_key(|event| event.time);
        events
    }

    fn functions(&self, stack: Option<TraceStack>) -> Vec<String> {
        let symbols = Symbols::read(Path::new("/proc")).unwrap();
        let stacks = self.tracer.stacks().unwrap();
        let stack = stack.expect("there was room for the stack");
        let (_, addresses) = stacks.iter().find(|row| row.0 == stack).unwrap();
        symbols.stack(addresses)
    }
}

fn sh(script: &str) -> Child {
    Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
}

/// A shell that first waits for a line; see `begin`.
fn waiting_sh(script: &str) -> Child {
    sh(&format!("read line; {script}"))
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn begin(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

/// Who makes this system call, or ends it.
fn caller(what: &TraceEventKind) -> Option<Tid> {
    match *what {
        TraceEventKind::SyscallEnter { task, .. } | TraceEventKind::SyscallExit { task, .. } => {
            Some(task)
        }
        _ => None,
    }
}

/// Whether a task's calls are there after it became this program: beginnings of programs are there of all tasks.
fn calls_after_exec(events: &[TraceEvent], program: &str) -> bool {
    let is_exec = |event: &TraceEvent| match event.kind {
        TraceEventKind::Exec { task, name } if name.text() == program => Some(task),
        _ => None,
    };
    let exec = events.iter().enumerate().find_map(|(at, event)| Some((at, is_exec(event)?)));
    let (at, task) = exec.expect("the program began");
    // The end of the call that began it is one.
    1 < events[at..].iter().filter(|event| caller(&event.kind) == Some(task)).count()
}

/// A program's stack is stored with its process, once for all its sleeps there.
#[test]
fn sleeps_have_the_stacks_of_their_programs() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::None)) else { return };
    let mut child = Command::new("sleep").arg("0.05").spawn().unwrap();
    trace.wait(&mut child);
    let events = trace.finish();
    let stacks = trace.tracer.user_stacks().all().collect::<Vec<_>>();
    let slept = events.iter().filter_map(|event| match event.kind {
        TraceEventKind::Switch { prev, user_stack, .. } if prev.0 == child.id() => user_stack,
        _ => None,
    });
    let numbers: Vec<TraceStack> = slept.collect();
    assert!(!numbers.is_empty());
    for number in numbers {
        let found: Vec<_> = stacks.iter().filter(|stack| stack.number == number).collect();
        let [stack] = found[..] else { panic!("{found:?}") };
        assert_eq!(stack.process.0, child.id());
        assert!((0x1000..1 << 47).contains(&stack.addresses[0]), "{stack:x?}");
        let first = events.iter().find(|event| match event.kind {
            TraceEventKind::Switch { user_stack, .. } => user_stack == Some(number),
            _ => false,
        });
        assert_eq!(first.map(|event| event.time), Some(stack.first_seen));
    }
    assert_eq!(trace.tracer.user_stacks().lost(), 0);
}

/// The lives of the tasks that `parent` made, as short words.
fn lives(events: &[TraceEvent], parent: Tid) -> Vec<(Tid, Vec<String>)> {
    let mut lives: Vec<(Tid, Vec<String>)> = Vec::new();
    for event in events {
        let (task, word) = match event.kind {
            TraceEventKind::Fork { parent: maker, child, pid, kernel } if maker == parent => {
                assert_eq!((pid.0, kernel), (child.0, false));
                lives.push((child, vec![]));
                continue;
            }
            TraceEventKind::Exec { task, name } => (task, format!("exec {}", name.text())),
            TraceEventKind::Exit { task } => (task, "exit".to_owned()),
            TraceEventKind::Switch { prev, prev_state: PrevState::Dead, .. } => {
                (prev, "dead".to_owned())
            }
            _ => continue,
        };
        if let Some((_, words)) = lives.iter_mut().find(|(tid, _)| *tid == task) {
            words.push(word);
        }
    }
    lives
}

/// A task that has the CPU loses it before it gets one again; it sleeps before it is woken; what it calls returns.
fn check_sequence(events: &[TraceEvent], tid: Tid) {
    let (mut is_running, mut call) = (false, None);
    for event in events {
        match event.kind {
            TraceEventKind::Switch { prev, .. } if prev == tid => {
                assert!(is_running, "{tid} left CPU {} and did not have it", event.cpu);
                is_running = false;
            }
            TraceEventKind::Switch { next, .. } if next == tid => {
                assert!(!is_running, "{tid} got CPU {} and had one", event.cpu);
                is_running = true;
            }
            TraceEventKind::SyscallEnter { task, number } if task == tid => {
                assert!(is_running && call.is_none(), "{tid} calls {number} after {call:?}");
                call = Some(number);
            }
            TraceEventKind::SyscallExit { task, number, .. } if task == tid => {
                // Its first is the end of the fork that made it.
                assert!(is_running && call.is_none_or(|call| call == number), "{number} {call:?}");
                call = None;
            }
            _ => {}
        }
    }
    assert!(!is_running);
}

#[test]
fn a_child_s_life_is_there_in_order() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::None)) else { return };
    let mut child = sh("/bin/true; exec sleep 0.03");
    trace.wait(&mut child);
    let events = trace.finish();
    let sh = Tid(child.id());

    let words =
        |expected: &[&str]| expected.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let grandchildren = lives(&events, sh);
    assert_eq!(grandchildren.len(), 1);
    assert_eq!(grandchildren[0].1, words(&["exec true", "exit", "dead"]));
    let maker = |event: &TraceEvent| match event.kind {
        TraceEventKind::Fork { parent, child, .. } if child == sh => Some(parent),
        _ => None,
    };
    let maker = events.iter().find_map(maker).unwrap();
    let own = lives(&events, maker);
    let (_, own) = own.iter().find(|(tid, _)| *tid == sh).unwrap();
    assert_eq!(*own, words(&["exec sh", "exec sleep", "exit", "dead"]));
    check_sequence(&events, sh);
    check_sequence(&events, grandchildren[0].0);

    // The sleep: call, off the CPU, woken, on the CPU, end of the call.
    let call = libc_clock_nanosleep();
    let at = events
        .iter()
        .position(|event| event.kind == TraceEventKind::SyscallEnter { task: sh, number: call });
    let mut after = events[at.unwrap()..].iter();
    let slept = after.find(
        |event| matches!(event.kind, TraceEventKind::Switch { prev, prev_state: PrevState::Sleep, .. } if prev == sh),
    );
    let TraceEventKind::Switch { stack, .. } = slept.unwrap().kind else { unreachable!() };
    let woken =
        after.find(|event| matches!(event.kind, TraceEventKind::Waking { task, .. } if task == sh));
    let queued =
        after.find(|event| matches!(event.kind, TraceEventKind::Wakeup { task, .. } if task == sh));
    let back =
        after.find(|event| matches!(event.kind, TraceEventKind::Switch { next, .. } if next == sh));
    let end = TraceEventKind::SyscallExit { task: sh, number: call, failed: false };
    assert!(after.any(|event| event.kind == end));
    let slept_for = woken.unwrap().time.since(slept.unwrap().time);
    assert!((25_000_000..60_000_000_000).contains(&slept_for), "{slept_for} ns");
    assert!(queued.is_some() && back.is_some());
    let functions = trace.functions(stack);
    assert!(functions[0].contains("schedule"), "{functions:?}");
    assert!(functions.iter().any(|name| name.contains("nanosleep")), "{functions:?}");
}

/// Its number on x86-64.
fn libc_clock_nanosleep() -> u16 {
    230
}

#[test]
fn interrupts_and_faults_are_there_and_interrupts_end() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::None)) else { return };
    let mut child = sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
    trace.wait(&mut child);
    let events = trace.finish();
    assert!(
        events
            .iter()
            .any(|event| matches!(event.kind, TraceEventKind::FaultEnter { user: true, .. }))
    );
    let ends = events.iter().any(|event| matches!(event.kind, TraceEventKind::FaultExit { .. }));
    let is_missing = trace.tracer.missing().iter().any(|(probe, _)| probe == "handle_mm_fault");
    assert_ne!(ends, is_missing);
    // Interrupts of a CPU nest.
    let (mut open, mut ends) = (BTreeMap::<u32, Vec<_>>::new(), 0);
    for event in events {
        let open = open.entry(event.cpu).or_default();
        match event.kind {
            TraceEventKind::InterruptEnter(interrupt) => open.push(interrupt),
            TraceEventKind::InterruptExit(interrupt) => {
                // The trace may have begun within one.
                assert!(open.pop().is_none_or(|last| last == interrupt), "{interrupt:?} {open:?}");
                ends += 1;
            }
            _ => {}
        }
    }
    assert!(0 < ends);
}

#[test]
fn a_tree_is_followed_that_grows_before_the_trace_begins() {
    let _one = one();
    let mut child = waiting_sh("(read line; exec /bin/true <&-); exit 3");
    let follow = |tracer: &mut Tracer| {
        tracer.follow(Pid(child.id())).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        until(|| !std::fs::read_to_string(&children).unwrap().is_empty());
    };
    let trace = Trace::start_after(&options(Filter::Tree), follow);
    begin(&mut child);
    let Some(mut trace) = trace else {
        child.wait().unwrap();
        return;
    };
    trace.wait(&mut child);
    let events = trace.finish();
    assert!(calls_after_exec(&events, "true"));
}

/// A program that another thread than the first starts, when the first has ended: it goes on under the first one's id.
#[test]
fn a_tree_is_followed_through_another_threads_exec() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::Tree)) else { return };
    // Where python3 is a script that looks for the real one, following begins after that.
    let script = "import os, threading, time\nprint('ready', flush=True)\n\
        def run():\n time.sleep(0.1)\n os.execv('/bin/sh', ['sh', '-c', '/bin/true; exit 0'])\n\
        input()\nthreading.Thread(target=run).start()";
    let mut python = Command::new("python3");
    let python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = python else {
        return skip::skip("there is no python3");
    };
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    trace.tracer.follow(Pid(child.id())).unwrap();
    begin(&mut child);
    trace.wait(&mut child);
    let events = trace.finish();
    assert!(calls_after_exec(&events, "sh"));
    assert!(calls_after_exec(&events, "true"));
}

#[test]
fn a_tree_is_followed_and_no_other_task() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::Tree)) else { return };
    let mut child = waiting_sh("(/bin/true; /bin/true); exit 3");
    // Another that runs beside it.
    let mut other = sh(
        "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); /bin/true < /dev/null; [ -e /proc/nothing ]; done",
    );
    trace.tracer.follow(Pid(child.id())).unwrap();
    begin(&mut child);
    trace.wait(&mut child);
    let _ = other.kill();
    other.wait().unwrap();
    let events = trace.finish();

    let sh = Tid(child.id());
    let mut family = vec![sh];
    for event in &events {
        if let TraceEventKind::Fork { parent, child, .. } = event.kind
            && family.contains(&parent)
        {
            family.push(child);
        }
    }
    // The shell in brackets, and two programs (the second of which may take the shell's place).
    assert!((3..=4).contains(&family.len()), "{family:?}");
    for &task in &family {
        assert!(events.iter().any(|event| caller(&event.kind) == Some(task)), "{task}");
        assert!(events.iter().any(|event| event.kind == TraceEventKind::Exit { task }));
    }
    for event in &events {
        match event.kind {
            TraceEventKind::Switch { prev, next, .. } => {
                assert!(family.contains(&prev) || family.contains(&next), "{:?}", event.kind);
            }
            TraceEventKind::Waking { task, by } => {
                assert!(family.contains(&task) || family.contains(&by))
            }
            TraceEventKind::Wakeup { task, .. } => assert!(family.contains(&task)),
            TraceEventKind::SyscallEnter { task, .. }
            | TraceEventKind::SyscallExit { task, .. } => {
                assert!(family.contains(&task), "{:?}", event.kind);
            }
            _ => {}
        }
    }
    let other = Tid(other.id());
    assert!(
        events
            .iter()
            .any(|event| matches!(event.kind, TraceEventKind::Exec { task, .. } if task == other))
    );
}

#[test]
fn one_process_is_traced_or_left_out() {
    let own = Pid(std::process::id());
    // The filter, whether calls of this process and of others are expected.
    let check = |filter, exclude, of_own, of_others| {
        let Some(mut trace) = Trace::start(&Options { exclude, ..options(filter) }) else { return };
        let mut child = sh("/bin/true");
        trace.wait(&mut child);
        let events = trace.finish();
        let threads = threads_of(own);
        let has = |wanted: bool| {
            let is_own = |tid: Tid| threads.contains(&tid);
            events.iter().filter_map(|event| caller(&event.kind)).any(|tid| is_own(tid) == wanted)
        };
        assert_eq!((has(true), has(false)), (of_own, of_others), "{filter:?} {exclude:?}");
        let switched = |tid| {
            events.iter().any(
                |event| matches!(event.kind, TraceEventKind::Switch { prev, .. } if prev == tid),
            )
        };
        assert!(threads.into_iter().any(switched));
    };
    let _one = one();
    check(Filter::Process(own), None, true, false);
    check(Filter::ProcessAndRivals(own), None, true, false);
    check(Filter::None, Some(own), false, true);
    check(Filter::None, None, true, true);
}

fn threads_of(process: Pid) -> Vec<Tid> {
    let threads = Path::new("/proc").join(process.to_string()).join("task");
    host::procfs::numbered_entries(&threads).unwrap().into_iter().map(Tid).collect()
}

#[test]
fn a_control_group_is_traced_with_those_below_it() {
    let _one = one();
    let Some(root) = cgroup_root() else { return skip::skip("no cgroup2 mount") };
    let group = root.join(format!("vmscope-tracer-test-{}", std::process::id()));
    let inner = group.join("inner");
    if let Err(error) = std::fs::create_dir_all(&inner) {
        return skip::skip(format_args!("no control group can be made: {error}"));
    }
    let filter = Filter::cgroup(&group).unwrap();
    let mut child = waiting_sh("/bin/true");
    std::fs::write(inner.join("cgroup.procs"), child.id().to_string()).unwrap();
    let trace = Trace::start(&options(filter));
    begin(&mut child);
    let events = trace.map(|mut trace| {
        trace.wait(&mut child);
        trace.finish()
    });
    child.wait().unwrap();
    std::fs::remove_dir(&inner).unwrap();
    std::fs::remove_dir(&group).unwrap();
    let Some(events) = events else { return };
    let sh = Tid(child.id());
    let mut family = vec![sh];
    family.extend(lives(&events, sh).into_iter().map(|(tid, _)| tid));
    assert_eq!(family.len(), 2);
    let callers: Vec<Tid> = events.iter().filter_map(|event| caller(&event.kind)).collect();
    assert!(family.iter().all(|tid| callers.contains(tid)));
    assert!(callers.iter().all(|tid| family.contains(tid)), "{callers:?}");
}

fn cgroup_root() -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let place = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let at = fields.next()?;
        (fields.next() == Some("cgroup2")).then(|| at.into())
    };
    mounts.lines().find_map(place)
}

#[test]
fn what_a_full_ring_has_no_room_for_is_counted() {
    let _one = one();
    let own = Pid(std::process::id());
    let options = Options { slots_per_cpu: 1, stacks: 0, ..options(Filter::Process(own)) };
    let Some(mut trace) = Trace::start(&options) else { return };
    const CALLS: usize = 10_000;
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    trace.tracer.stop();
    trace.drain();
    let kept: usize = trace.events.values().map(Vec::len).sum();
    // 64 slots are kept free for interrupts.
    assert!((500..=1024 * options.cpus.len()).contains(&kept), "{kept}");
    let calls = |events: &Vec<TraceEvent>| {
        let is_begin = |event: &&TraceEvent| {
            matches!(event.kind, TraceEventKind::SyscallEnter { number: 110, .. })
        };
        events.iter().filter(is_begin).count()
    };
    let begun: usize = trace.events.values().map(calls).sum();
    let lost: u64 = trace
        .tracer
        .lost()
        .iter()
        .filter(|row| row.kind == Some(model::TraceEventTag::SyscallEnter))
        .map(|row| row.count)
        .sum();
    assert!(CALLS <= begun + usize::try_from(lost).unwrap(), "{begun} begun, {lost} lost");
    assert!(0 < lost);
    // What was taken out makes room again.
    let end = trace.tracer.stop();
    assert!(trace.events.values().flatten().all(|event| event.time <= end));
    assert!(options.cpus.iter().all(|&cpu| trace.tracer.fill(cpu) == 0.0));
}

#[test]
fn requests_to_disks_are_those_that_the_kernel_counts() {
    let _one = one();
    let Some(mut trace) = Trace::start(&options(Filter::None)) else { return };
    let before = disk_writes();
    let folder = env!("CARGO_TARGET_TMPDIR");
    let path = Path::new(folder).join("vmscope-tracer-test-disk");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&[7; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let counted = disk_writes() - before;
    let events = trace.finish();
    std::fs::remove_file(&path).unwrap();
    if counted == 0 {
        return skip::skip(format_args!("{folder} is on no disk"));
    }
    let (mut issued, mut done, mut own_bytes) = (BTreeMap::new(), 0, 0);
    let threads = threads_of(Pid(std::process::id()));
    for event in &events {
        match event.kind {
            TraceEventKind::BlockIssue(request) => {
                assert!(request.disk != 0 && request.bytes.is_multiple_of(512), "{request:?}");
                if request.op == BlockOp::Write && threads.contains(&request.task) {
                    own_bytes += u64::from(request.bytes);
                }
                issued.insert(request.request, request);
            }
            // Without a begin: one that was under way, or an empty write that only requested a flush.
            TraceEventKind::BlockComplete { request, .. } => {
                let op = issued.remove(&request).map(|request| request.op);
                done += u64::from(matches!(op, None | Some(BlockOp::Write)));
            }
            _ => {}
        }
    }
    assert!(counted <= done, "the kernel counted {counted} writes, {done} were traced");
    assert!(1 << 20 <= own_bytes, "{own_bytes} bytes of ours");
    let waits_for_the_disk = |event: &TraceEvent| match event.kind {
        TraceEventKind::Switch { prev, prev_state, .. } => {
            threads.contains(&prev) && prev_state == (PrevState::Uninterruptible { io: true })
        }
        _ => false,
    };
    assert!(events.iter().any(waits_for_the_disk));
}

/// Writes that all disks have done: column 8 of `/proc/diskstats`, partitions left out as far as they have a disk.
fn disk_writes() -> u64 {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_disk = Path::new("/sys/block").join(fields.get(2)?).join("device").exists();
        if is_disk { fields.get(7)?.parse::<u64>().ok() } else { None }
    };
    text.lines().filter_map(row).sum()
}

/// More threads than CPUs, all making files in one folder: they wait for the lock of its inode, which one of them has.
#[test]
fn waits_for_a_lock_name_its_owner() {
    let _one = one();
    let own = Pid(std::process::id());
    let Some(mut trace) = Trace::start(&options(Filter::Process(own))) else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vmscope-tracer-test-locks");
    std::fs::create_dir_all(&folder).unwrap();
    // The rings are not emptied before the end: they must not be full by then.
    let end = Instant::now() + Duration::from_millis(300);
    let make_files = |name: usize| {
        while Instant::now() < end {
            let path = folder.join(name.to_string());
            std::fs::File::create(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
        own_tid()
    };
    let threads: Vec<Tid> = std::thread::scope(|scope| {
        let make_files = &make_files;
        let makers: Vec<_> = (0..6).map(|name| scope.spawn(move || make_files(name))).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    std::fs::remove_dir(&folder).unwrap();
    let events = trace.finish();
    let wait_for_another = |event: &TraceEvent| match event.kind {
        TraceEventKind::LockBegin {
            task,
            lock,
            kind: LockKind::SemWrite,
            owner: Some(owner),
            stack,
        } => (threads.contains(&task) && threads.contains(&owner) && task != owner)
            .then_some((event.time, task, lock, stack)),
        _ => None,
    };
    let (begin, task, lock, stack) = events.iter().find_map(wait_for_another).unwrap();
    let functions = trace.functions(stack);
    assert!(functions.iter().any(|name| name.contains("down_write")), "{functions:?}");
    assert!(functions.iter().any(|name| name.contains("open") || name.contains("unlink")));
    let is_end = |event: &TraceEvent| event.kind == TraceEventKind::LockEnd { task, lock };
    assert!(events.iter().any(|event| begin <= event.time && is_end(event)));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let check = |options: Options, expected: &str| {
        let error = Tracer::load(&options).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(Options { cpus: vec![], ..options(Filter::None) }, "no CPU");
    check(Options { slots_per_cpu: u32::MAX, ..options(Filter::None) }, "MiB");
    check(Options { slots_per_cpu: 1 << 28, cpus: vec![1], ..options(Filter::None) }, "8192 MiB");
}

/// Of this thread.
fn own_tid() -> Tid {
    let folder = std::fs::read_link("/proc/thread-self").unwrap();
    Tid(folder.file_name().unwrap().to_str().unwrap().parse().unwrap())
}
