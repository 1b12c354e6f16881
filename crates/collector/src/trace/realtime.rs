//! The recorder goes before ordinary tasks: where many want the CPUs, its turn would come too late for its rings.

use std::io;

/// While it lives, the calling thread is scheduled before ordinary tasks (`SCHED_RR`, lowest priority). It sleeps between
/// looks, and the kernel leaves ordinary tasks 5 % of the time whatever it does (`kernel.sched_rt_runtime_us`).
#[derive(Debug)]
pub(super) struct RealtimePriority(());

impl RealtimePriority {
    /// # Errors
    /// When the kernel refuses: no privilege, or a control group without real-time.
    pub(super) fn begin() -> io::Result<Self> {
        schedule(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1)?;
        Ok(Self(()))
    }
}

impl Drop for RealtimePriority {
    fn drop(&mut self) {
        // A priority that could be raised can be lowered again.
        let _ = schedule(0, libc::SCHED_OTHER, 0);
    }
}

/// Schedules a process of ours, which has one thread, before ordinary tasks, to its end.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn prefer(process: u32) -> io::Result<()> {
    let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
    schedule(process, libc::SCHED_RR, 1)
}

/// `task` 0: the calling thread.
fn schedule(task: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the parameters, which outlive the call.
    let result = unsafe { libc::sched_setscheduler(task, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod test {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn it_is_over_when_dropped() {
        match RealtimePriority::begin() {
            Ok(priority) => {
                assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_RR);
                drop(priority);
            }
            Err(error) => eprintln!("not tried any further: {error}"),
        }
        assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_OTHER);
    }
}
