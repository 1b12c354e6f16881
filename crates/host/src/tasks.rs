//! The tasks that a trace finds when it begins.

use std::io;
use std::path::{Path, PathBuf};

use model::{MachineId, Pid, Tid, TraceTask};

use crate::procfs::numbered_entries;

/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `PF_IO_WORKER` and `PF_USER_WORKER`: threads that io_uring and vhost make within a process, and that never run its code.
/// Where the latter meant something else (before Linux 6.4), it was inherited: a process's first thread is never a worker.
const WORKERS: u64 = 0x10 | 0x4000;
/// Most bytes of a task's kernel stack that are kept.
const MAX_STACK_BYTES: usize = 4096;

/// Every thread of `proc`, ascending by thread id. Those that end meanwhile are left out.
///
/// # Errors
/// If `proc` can't be read.
pub fn snapshot(proc: &Path, machine: MachineId) -> io::Result<Vec<TraceTask>> {
    let mut tasks = Vec::new();
    for pid in numbered_entries(proc)? {
        let process = Process { machine, pid: Pid(pid), folder: proc.join(pid.to_string()) };
        tasks.extend(process.threads());
    }
    tasks.sort_by_key(|task| task.tid);
    Ok(tasks)
}

/// How long a thread has run a guest, in the kernel's ticks (mostly 10 ms). `None`: it is not there.
#[must_use]
pub fn guest_ticks(proc: &Path, pid: Pid, tid: Tid) -> Option<u64> {
    let stat = std::fs::read(proc.join(format!("{pid}/task/{tid}/stat"))).ok()?;
    parse_guest_ticks(&String::from_utf8_lossy(&stat))
}

/// When the process of this folder of `/proc` began, in the kernel's ticks since the boot. 0: it has ended.
pub(crate) fn began_ticks(folder: &Path) -> u64 {
    let text = std::fs::read(folder.join("stat")).unwrap_or_default();
    parse_began_ticks(&String::from_utf8_lossy(&text)).unwrap_or(0)
}

/// Whether the process of this folder of `/proc` is one of the kernel's own threads. One that has ended is none.
pub(crate) fn is_kernel_thread(folder: &Path) -> bool {
    stat(folder).is_some_and(|stat| stat.flags & KERNEL_THREAD != 0)
}

struct Process {
    machine: MachineId,
    pid: Pid,
    folder: PathBuf,
}

impl Process {
    fn threads(&self) -> Vec<TraceTask> {
        let Some(first) = stat(&self.folder) else { return Vec::new() };
        let tids = numbered_entries(&self.folder.join("task")).unwrap_or_default();
        tids.into_iter().filter_map(|tid| self.thread(Tid(tid), &first)).collect()
    }

    fn thread(&self, tid: Tid, first: &Stat) -> Option<TraceTask> {
        let folder = self.folder.join("task").join(tid.to_string());
        let stat = stat(&folder)?;
        let kernel = stat.is_kernel_s(first);
        let asleep_in = stat.asleep.then(|| sleeps_in(&folder));
        // The kernel's own tasks seem to be in call 0, its workers in the one that made them.
        let in_call = (stat.asleep && !kernel).then(|| in_call(&folder)).flatten();
        let (machine, pid, parent) = (self.machine, self.pid, Pid(stat.parent));
        Some(TraceTask { machine, tid, pid, parent, name: stat.name, kernel, asleep_in, in_call })
    }
}

fn stat(folder: &Path) -> Option<Stat> {
    let text = std::fs::read(folder.join("stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&text))
}

/// Functions, innermost first, separated by `;`; empty where the kernel does not tell.
fn sleeps_in(folder: &Path) -> String {
    let text = |file| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let stack = functions(&text("stack"));
    if !stack.is_empty() {
        return stack;
    }
    // `0`: it runs, or the kernel hides it.
    let wchan = text("wchan");
    if wchan == "0" { String::new() } else { wchan }
}

fn in_call(folder: &Path) -> Option<u16> {
    parse_syscall(&std::fs::read_to_string(folder.join("syscall")).ok()?)
}

/// Of `16 0x5 0xae80 0x0 ...`. `running`: not known; `-1`: in none.
fn parse_syscall(text: &str) -> Option<u16> {
    text.split_whitespace().next()?.parse().ok()
}

/// Of the lines `[<0>] function+0x1/0x2 [module]`.
fn functions(stack: &str) -> String {
    let name = |line: &str| Some(line.split_whitespace().nth(1)?.split('+').next()?.to_owned());
    let mut names = String::new();
    for name in stack.lines().filter_map(name) {
        if MAX_STACK_BYTES < names.len() + name.len() {
            break;
        }
        if !names.is_empty() {
            names.push(';');
        }
        names += &name;
    }
    names
}

struct Stat {
    name: String,
    parent: u32,
    /// `PF_*`.
    flags: u64,
    asleep: bool,
}

impl Stat {
    /// Whether it never runs a program's code. `first` is its process's first thread.
    fn is_kernel_s(&self, first: &Self) -> bool {
        self.flags & (KERNEL_THREAD | WORKERS & !first.flags) != 0
    }
}

/// The text of `/proc/PID/task/TID/stat`. A name may hold anything, also blanks and brackets.
fn parse_stat(text: &str) -> Option<Stat> {
    let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    Some(Stat { name: name.to_owned(), parent, flags, asleep: matches!(state, "S" | "D" | "I") })
}

/// Field 22 of the same.
fn parse_began_ticks(text: &str) -> Option<u64> {
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Field 43 of the same.
fn parse_guest_ticks(text: &str) -> Option<u64> {
    text.rsplit_once(')')?.1.split_whitespace().nth(40)?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_says_when_it_began() {
        let text = "7 (a) b (c)) S 6 7 6 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 8734 123";
        assert_eq!(parse_began_ticks(text), Some(8734));
        assert_eq!(parse_began_ticks("7 (cc1) R 6"), None);
    }

    #[test]
    fn stats() {
        let check = |text, expected: Option<(&str, u32, bool, bool)>| {
            let stat = parse_stat(text);
            let found = stat
                .as_ref()
                .map(|stat| (stat.name.as_str(), stat.parent, stat.is_kernel_s(stat), stat.asleep));
            assert_eq!(found, expected, "{text}");
        };
        check("7 (cc1) R 6 7 6 0 -1 4194304 1 2", Some(("cc1", 6, false, false)));
        check("7 (a) b (c)) S 6 7 6 0 -1 4194304 1", Some(("a) b (c)", 6, false, true)));
        check("9 (kworker/0:1) I 2 0 0 0 -1 69238880 0", Some(("kworker/0:1", 2, true, true)));
        check("7 (cc1) D 6 7 6 0 -1", None);
        check("", None);
    }

    #[test]
    fn threads_that_work_in_the_kernel() {
        let check = |flags, first, expected| {
            let stat = |flags| parse_stat(&format!("7 (a) S 6 7 6 0 -1 {flags} 1")).unwrap();
            assert_eq!(stat(flags).is_kernel_s(&stat(first)), expected, "{flags:#x}");
        };
        check(0x40_0040, 0x40_0100, false);
        check(0x40_4050, 0x40_0100, true);
        check(0x40_4040, 0x40_0100, true);
        // Before Linux 6.4, where that flag was set for all that an early process made.
        check(0x40_4040, 0x40_4100, false);
        check(0x40_4050, 0x40_4100, true);
        check(0x420_8040, 0x420_8040, true);
    }

    #[test]
    fn guest_times() {
        let check = |text, expected| assert_eq!(parse_guest_ticks(text), expected);
        // As Linux 6.1 writes it.
        check(
            "139 (CPU 0/KVM) R 1 135 1 0 -1 4210752 79 0 0 0 1210 52 0 0 20 0 4 0 514 1234567168 60000 \
             18446744073709551615 1 1 0 0 0 0 268444224 4096 16963 0 0 0 -1 0 0 0 0 1187 0 0 0 0 0 0 0 0 0\n",
            Some(1187),
        );
        check("7 (cc1) R 6 7", None);
        check("", None);
    }

    #[test]
    fn stacks() {
        let check = |text, expected| assert_eq!(functions(text), expected);
        check("[<0>] do_wait+0x5e/0xe0\n[<0>] kernel_wait4+0xa9\n", "do_wait;kernel_wait4");
        check("[<0>] f+0x1/0x2 [ext4]\n[<0>] 0xffffffff81000000\n\n", "f;0xffffffff81000000");
        check("", "");
        let long = format!("[<0>] {}+0x1/0x2\n", "x".repeat(3000)).repeat(3);
        assert_eq!(functions(&long).len(), 3000);
    }

    #[test]
    fn calls() {
        let check = |text, expected| assert_eq!(parse_syscall(text), expected);
        check("16 0x1a 0xae80 0x0 0x0 0x0 0x7f1 0x7ffd12c8 0x7f12\n", Some(16));
        check("0 0x3 0x55d0 0x400 0x0 0x0 0x0 0x7ffd 0x7f12\n", Some(0));
        check("running\n", None);
        check("-1 0x7ffd12c8 0x7f12\n", None);
        check("", None);
    }

    #[test]
    fn this_thread_is_there() {
        let tasks = snapshot(Path::new("/proc"), MachineId::HOST).unwrap();
        let own = tasks.iter().find(|task| task.tid.0 == std::process::id()).unwrap();
        assert_eq!((own.pid.0, own.kernel), (std::process::id(), false));
        assert!(tasks.is_sorted_by_key(|task| task.tid));
    }
}
