//! What the agent itself takes, and how little others are to notice of it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time so far, of all threads and of the child processes that read what others chose.
pub(crate) fn cpu_time() -> Duration {
    of_clock(ClockId::ProcessCPUTime) + ended_children() + children()
}

/// Of those that have not ended.
fn children() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = lists
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let ticks: u64 = pids.iter().filter_map(stat).filter_map(|stat| cpu_ticks(&stat)).sum();
    Duration::from_secs(1).mul_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time in a line of `/proc/PID/stat`, whose name may have any characters.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn ended_children() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for a `rusage`, which the kernel fills.
    let outcome = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if outcome != 0 {
        return Duration::ZERO;
    }
    // SAFETY: the call succeeded, so all of it is filled.
    let usage = unsafe { usage.assume_init() };
    let of = |time: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// A clock's time.
pub(crate) fn of_clock(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// How long the machine has been suspended since it booted.
pub(crate) fn suspended() -> Duration {
    of_clock(ClockId::Boottime).saturating_sub(of_clock(ClockId::Monotonic))
}

/// Resident memory, bytes; 0: unknown.
pub(crate) fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Open files; 0: unknown.
pub(crate) fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

/// This thread, and those it starts, run when nothing else does, and their reads and writes come last.
pub(crate) fn lower_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid for a `sched_param`; 0 is the calling thread.
    // If it is refused, the thread is one like others.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    set_io_priority(0, IOPRIO_CLASS_IDLE);
}

/// All threads of this process are like others again: a guest or a user waits for them.
pub(crate) fn restore_priority() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<libc::pid_t>().ok());
    for tid in tids {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the pointer is valid for a `sched_param`. The call fails for a thread that has ended.
        let _ = unsafe { libc::sched_setscheduler(tid, libc::SCHED_OTHER, &raw const parameters) };
        set_io_priority(tid, IOPRIO_CLASS_NONE);
    }
}

/// ioprio_set(2).
const IOPRIO_CLASS_NONE: libc::c_long = 0;
const IOPRIO_CLASS_IDLE: libc::c_long = 3;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_WHO_PROCESS: libc::c_long = 1;

fn set_io_priority(tid: libc::pid_t, class: libc::c_long) {
    let priority = class << IOPRIO_CLASS_SHIFT;
    // SAFETY: the call takes numbers only; 0 is the calling thread.
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, priority) };
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_child_counts_while_it_runs() {
        let stat = "812 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("812 (x"), None);
        let loops = "while :; do :; done";
        let mut child = std::process::Command::new("sh").args(["-c", loops]).spawn().unwrap();
        let began = std::time::Instant::now();
        while children() < Duration::from_millis(50) {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn it_knows_what_it_takes() {
        assert!(Duration::ZERO < cpu_time());
        assert!(1 << 20 < memory_bytes());
        assert!(3 <= open_files());
        assert!(suspended() < of_clock(ClockId::Boottime));
        let idle = std::thread::spawn(|| {
            lower_priority();
            // SAFETY: the call takes a number only.
            let policy = unsafe { libc::sched_getscheduler(0) };
            restore_priority();
            // SAFETY: the same.
            [policy, unsafe { libc::sched_getscheduler(0) }]
        });
        assert_eq!(idle.join().unwrap()[0], libc::SCHED_IDLE);
    }
}
