//! A hand-made trace: `make` runs a compiler, which reads from a disk and is pushed aside once, and a linker, which waits
//! for a directory that another process holds. A line is `time in us, CPU, what happens`.

use std::path::Path;

use model::*;
use recording::trace::{TraceHeader, TraceWriter};

const US: u64 = 1000;
/// The host's clock when the trace begins.
const BEGIN: u64 = 5_000_000_000;
const VDA: u32 = 254 << 20;

/// `make`, the compiler and the linker, one after the other.
pub(crate) const SEQUENTIAL: &str = "
    100 0 switch 0 run 100
    1000 0 exec 100 make
    2000 0 fork 100 101
    2010 0 wakeup 101 1
    2500 1 switch 0 run 101
    3000 1 exec 101 cc1
    3000 0 enter 100 61
    3500 0 switch 100 sleep:0:0 0
    4000 1 fault
    4500 1 faulted
    5000 1 enter 101 0
    5200 1 insert 77 101 read
    5400 1 issue 77 101 read
    5600 1 switch 101 disk:1 0
    15000 1 irq
    15010 1 complete 77
    15020 1 waking 101 0
    15030 1 wakeup 101 1
    15200 1 irqend
    15400 1 switch 0 run 101
    15500 1 exit 101 0
    49900 1 timer
    49910 1 waking 50 0
    49920 1 wakeup 50 1
    49950 1 timerend
    50000 1 switch 101 run 50
    52000 1 switch 50 sleep:3 101
    60000 1 enter 101 231
    60500 1 end 101
    60600 1 waking 100 101
    60610 1 wakeup 100 0
    60800 1 switch 101 dead 0
    61000 0 switch 0 run 100
    61500 0 exit 100 61
    62000 0 fork 100 102
    62010 0 wakeup 102 1
    62500 1 switch 0 run 102
    63000 1 exec 102 ld
    63000 0 enter 100 61
    63500 0 switch 100 sleep:0:0 0
    63800 0 timer
    63810 0 waking 1 0
    63820 0 wakeup 1 0
    63900 0 timerend
    64000 0 switch 0 run 1
    65000 1 enter 102 257
    65100 1 lock 102 1
    65200 1 switch 102 wait:2 0
    70000 0 waking 102 1
    70010 0 wakeup 102 1
    70100 0 switch 1 sleep:4 0
    70300 1 switch 0 run 102
    70400 1 locked 102
    71000 1 exit 102 257
    80000 1 enter 102 231
    80500 1 end 102
    80600 1 waking 100 102
    80610 1 wakeup 100 0
    80800 1 switch 102 dead 0
    81000 0 switch 0 run 100
    81500 0 exit 100 61
    90000 0 enter 100 231
    90500 0 end 100
    90600 0 switch 100 dead 0
";

/// What `SEQUENTIAL` has with `--files`: each line comes after the first that begins so.
pub(crate) const OF_FILES: [(&str, &str); 7] = [
    (
        "4500 1 faulted",
        "4800 1 enter 101 1\n4800 1 socket 101\n4900 1 bytes 101 1500\n4950 1 exit 101 1",
    ),
    ("5000 1 enter 101 0", "5000 1 file 101 1\n5100 1 page 101 1"),
    ("5400 1 issue 77", "5400 1 holds 77 1"),
    ("15400 1 switch", "15450 1 bytes 101 8192"),
    ("65100 1 lock 102", "65100 1 lockfile 102 2"),
    ("70400 1 locked", "70900 1 file 102 3"),
    ("80000 1 enter 102 231", "80100 1 page 102 4"),
];

/// The files of `OF_FILES`.
pub(crate) fn files() -> Vec<TraceFile> {
    let file = |number, kind, links, path: Option<&str>| TraceFile {
        machine: MachineId::HOST,
        number,
        device: VDA,
        inode: 100 + u64::from(number),
        generation: 7,
        kind,
        links,
        path: path.map(str::to_owned),
    };
    vec![
        file(1, FileKind::Regular, 1, Some("/src/a long \u{1b}[2Jname\\xff.c")),
        file(2, FileKind::Folder, 2, Some("/src")),
        file(3, FileKind::Regular, 0, Some("/tmp/a.out")),
        file(4, FileKind::Other, 1, None),
    ]
}

/// What VM `web` did meanwhile, on its one CPU.
pub(crate) const GUEST: &str = "
    10000 0 switch 0 run 7
    30000 0 switch 7 sleep:0 0
    40000 0 timer
    40010 0 waking 7 0
    40020 0 wakeup 7 0
    40100 0 timerend
    40200 0 switch 0 run 7
    60000 0 switch 7 sleep:0 0
";

/// What the host's threads did while `VM` ran: thread 301 is VM `web`'s vCPU, 401 another VM's.
pub(crate) const HOST: &str = "
    1000 0 switch 0 run 301
    20000 0 switch 301 run 401
    32000 0 switch 401 run 301
    45000 0 switch 301 sleep:5 0
    51000 0 waking 301 0
    51100 0 wakeup 301 0
    51200 0 switch 0 run 301
    60000 0 switch 301 run 401
    65000 0 switch 401 run 60
    68000 0 switch 60 sleep:3 301
    80000 0 switch 301 sleep:5 0
    90000 0 waking 301 0
    90100 0 wakeup 301 0
    92000 0 switch 0 run 301
";

/// `make` and a compiler in VM `web`, which thinks that it has its CPU all the time.
pub(crate) const VM: &str = "
    2000 0 switch 0 run 100
    3000 0 exec 100 make
    4000 0 fork 100 101
    4010 0 wakeup 101 0
    5000 0 enter 100 61
    6000 0 switch 100 sleep:1 101
    7000 0 exec 101 cc1
    50000 0 enter 101 231
    70000 0 end 101
    70600 0 waking 100 101
    70610 0 wakeup 100 0
    70800 0 switch 101 dead 100
    71000 0 exit 100 61
    75000 0 enter 100 231
    75500 0 end 100
    76000 0 switch 100 dead 0
";

/// Of `HOST` and `VM`.
pub(crate) fn vm_tables() -> TraceTables {
    let mut tables = tables();
    let web = &mut tables.machines[1];
    (web.lost, web.missing) = (Vec::new(), Vec::new());
    web.clock_error_ns = Some(80);
    let db = Machine { cpus: Vec::new(), ..web.clone() };
    let db = Machine { name: "db".to_owned(), vm_process: Some(Pid(400)), ..db };
    tables.machines.push(Machine { vcpu_threads: vec![Tid(401)], ..db });
    tables.machines[0].cpus = vec![0];
    let stack = |machine, n, functions: &str| {
        let functions = functions.split(' ').map(str::to_owned).collect();
        (MachineId(machine), TraceStack(n), functions)
    };
    let halted =
        "kvm_vcpu_block kvm_vcpu_halt kvm_arch_vcpu_ioctl_run kvm_vcpu_ioctl __x64_sys_ioctl";
    tables.stacks = vec![
        stack(0, 3, "worker_thread kthread ret_from_fork"),
        stack(0, 5, halted),
        stack(1, 1, "do_wait kernel_wait4 do_syscall_64"),
    ];
    let thread = |tid, pid, name| TraceTask { pid: Pid(pid), ..task(0, tid, name, None) };
    tables.tasks = vec![
        task(0, 60, "kworker/0:1", Some("worker_thread;kthread")),
        task(0, 300, "qemu-system-x86", Some("do_sys_poll;__x64_sys_ppoll;do_syscall_64")),
        thread(301, 300, "CPU 0/KVM"),
        thread(401, 400, "CPU 0/KVM"),
        task(1, 100, "vmscope-guest", None),
    ];
    let command = tables.command.take().expect("there is one");
    tables.command = Some(TracedCommand { machine: MachineId(1), ..command });
    tables
}

/// Without the linker.
pub(crate) fn shorter() -> String {
    let lines: Vec<&str> = SEQUENTIAL.lines().collect();
    let until = lines.iter().position(|line| line.contains("62000")).unwrap();
    let end = "61800 0 enter 100 231\n61900 0 end 100\n62000 0 switch 100 dead 0\n";
    lines[..until].join("\n") + "\n" + end
}

pub(crate) fn header() -> TraceHeader {
    TraceHeader {
        vmscope_version: "0.1.0".to_owned(),
        hostname: "lab".to_owned(),
        begin: HostNs(BEGIN),
        end: HostNs(BEGIN + 100_000 * US),
        begin_unix_ns: 1_700_000_000_000_000_000,
        ..TraceHeader::default()
    }
}

pub(crate) fn tables() -> TraceTables {
    let machine = |name: &str, cpus: &[u32]| Machine {
        name: name.to_owned(),
        kernel: "6.12.1".to_owned(),
        cpus: cpus.to_vec(),
        begin: HostNs(BEGIN),
        end: HostNs(BEGIN + 100_000 * US),
        path: "here".to_owned(),
        ..Machine::default()
    };
    let lost =
        |kind: &str, count| LostEvents { cpu: 0, kind: TraceEventTag::from_name(kind), count };
    let web = Machine {
        lost: vec![lost("switch", 3), lost("fault_enter", 1200)],
        missing: vec![("handle_mm_fault".to_owned(), "the kernel refused the program".to_owned())],
        fault_estimate_ns: Some(700),
        vm_process: Some(Pid(300)),
        vcpu_threads: vec![Tid(301)],
        clock_error_ns: Some(800),
        path: "guest memory".to_owned(),
        ..machine("web", &[0])
    };
    let stack = |machine, n, functions: &str| {
        let functions = functions.split(' ').map(str::to_owned).collect();
        (MachineId(machine), TraceStack(n), functions)
    };
    TraceTables {
        machines: vec![machine("host", &[0, 1]), web],
        tasks: vec![
            task(0, 1, "postmaster", Some("ep_poll;do_epoll_wait")),
            task(0, 50, "kworker/1:0", Some("worker_thread;kthread")),
            task(0, 100, "vmscope", None),
            task(1, 7, "nginx", Some("ep_poll;do_epoll_wait")),
        ],
        stacks: vec![
            stack(0, 0, "do_wait kernel_wait4 do_syscall_64"),
            stack(0, 1, "folio_wait_bit_common filemap_get_pages vfs_read ksys_read do_syscall_64"),
            stack(
                0,
                2,
                "rwsem_down_write_slowpath down_write path_openat do_sys_openat2 do_syscall_64",
            ),
            stack(0, 3, "worker_thread kthread ret_from_fork"),
            stack(0, 4, "ep_poll do_epoll_wait do_syscall_64"),
            stack(0, 1 << 30, "wait4 reap_children job_wait main"),
            stack(1, 0, "ep_poll do_epoll_wait do_syscall_64"),
        ],
        disks: vec![(MachineId::HOST, VDA, "vda".to_owned())],
        files: Vec::new(),
        command: Some(TracedCommand {
            machine: MachineId::HOST,
            task: Tid(100),
            words: ["make", "all"].map(str::to_owned).into(),
            before: false,
            exit_code: Some(0),
        }),
    }
}

fn task(machine: u32, tid: u32, name: &str, asleep_in: Option<&str>) -> TraceTask {
    TraceTask {
        machine: MachineId(machine),
        tid: Tid(tid),
        pid: Pid(tid),
        parent: Pid(if tid == 1 { 0 } else { 1 }),
        name: name.to_owned(),
        kernel: name.starts_with("kworker"),
        asleep_in: asleep_in.map(str::to_owned),
        in_call: None,
    }
}

/// Writes a finished trace.
pub(crate) fn write(path: &Path, header: &TraceHeader, tables: &TraceTables, texts: &[&str]) {
    let writer = TraceWriter::create(path, header, tables).unwrap();
    for (id, (row, text)) in (0..).map(MachineId).zip(tables.machines.iter().zip(texts)) {
        let events: Vec<TraceEvent> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| event(id, line))
            .collect();
        for cpu in &row.cpus {
            let of_cpu: Vec<_> = events.iter().filter(|event| event.cpu == *cpu).copied().collect();
            writer.spool(id, *cpu).unwrap().append(&of_cpu).unwrap();
        }
    }
    writer.finish(header, tables).unwrap();
}

fn event(machine: MachineId, line: &str) -> TraceEvent {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |n: usize| words[n].parse::<u32>().unwrap();
    let tid = |n| Tid(number(n));
    let timer = Interrupt::Vector(Vector::LocalTimer);
    let request = |n| BlockRequest {
        request: number(n).into(),
        disk: VDA,
        sector: 4096,
        bytes: 65536,
        op: BlockOp::Read,
        task: tid(n + 1),
    };
    let what = match words[2] {
        "switch" => {
            let (prev_state, stack, user_stack) = prev_state(words[4]);
            TraceEventKind::Switch { prev: tid(3), prev_state, stack, user_stack, next: tid(5) }
        }
        "waking" => TraceEventKind::Waking { task: tid(3), by: tid(4) },
        "wakeup" => TraceEventKind::Wakeup { task: tid(3), target_cpu: number(4) },
        "fork" => TraceEventKind::Fork {
            parent: tid(3),
            child: tid(4),
            pid: Pid(number(4)),
            kernel: false,
        },
        "exec" => TraceEventKind::Exec { task: tid(3), name: TaskName::new(words[4].as_bytes()) },
        "end" => TraceEventKind::Exit { task: tid(3) },
        "enter" => TraceEventKind::SyscallEnter { task: tid(3), number: words[4].parse().unwrap() },
        "exit" => {
            let number = words[4].parse().unwrap();
            TraceEventKind::SyscallExit { task: tid(3), number, failed: false }
        }
        "irq" => TraceEventKind::InterruptEnter(Interrupt::Device(24)),
        "irqend" => TraceEventKind::InterruptExit(Interrupt::Device(24)),
        "timer" => TraceEventKind::InterruptEnter(timer),
        "timerend" => TraceEventKind::InterruptExit(timer),
        "fault" => TraceEventKind::FaultEnter { address: 0x7f00_0000_1000, user: true },
        "faulted" => TraceEventKind::FaultExit { major: false },
        "insert" => TraceEventKind::BlockInsert(request(3)),
        "issue" => TraceEventKind::BlockIssue(request(3)),
        "complete" => TraceEventKind::BlockComplete { request: number(3).into(), bytes: 65536 },
        "lock" => TraceEventKind::LockBegin {
            task: tid(3),
            lock: 0xffff_8880_0000_1000,
            kind: LockKind::SemWrite,
            owner: Some(tid(4)),
            stack: Some(TraceStack(2)),
        },
        "locked" => TraceEventKind::LockEnd { task: tid(3), lock: 0xffff_8880_0000_1000 },
        "file" => TraceEventKind::CallFile { task: tid(3), file: number(4) },
        "socket" => TraceEventKind::CallSocket { task: tid(3), network: true },
        "bytes" => TraceEventKind::CallBytes { task: tid(3), bytes: number(4) },
        "page" => TraceEventKind::PageAdded { task: tid(3), file: number(4), bytes: 65536 },
        "lockfile" => TraceEventKind::LockFile { task: tid(3), file: number(4) },
        "holds" => TraceEventKind::BlockFile {
            request: number(3).into(),
            content: RequestContent::File,
            file: number(4),
        },
        other => panic!("{other}"),
    };
    TraceEvent {
        time: HostNs(BEGIN + u64::from(number(0)) * US),
        machine,
        cpu: number(1),
        kind: what,
    }
}

/// `STATE`, `STATE:STACK` or `STATE:STACK:USER_STACK`.
fn prev_state(word: &str) -> (PrevState, Option<TraceStack>, Option<TraceStack>) {
    let (word, stacks) = word.split_once(':').unwrap_or((word, ""));
    let (stack, user_stack) = stacks.split_once(':').unwrap_or((stacks, ""));
    let stack = stack.parse().ok().map(TraceStack);
    let user_stack = user_stack.parse().ok().and_then(TraceStack::of_user);
    let prev_state = match word {
        "run" => PrevState::Runnable,
        "sleep" => PrevState::Sleep,
        "disk" => PrevState::Uninterruptible { io: true },
        "wait" => PrevState::Uninterruptible { io: false },
        "dead" => PrevState::Dead,
        other => panic!("{other}"),
    };
    (prev_state, stack, user_stack)
}
