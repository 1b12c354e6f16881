//! The command while it runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A command that outlives its trace is asked to end, and may take so long.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// A command that has begun its program.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// Readable when it has ended. Without it that is seen a little later.
    ended: Option<OwnedFd>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself.
    Itself(ExitStatus),
    /// Because the trace ended first.
    WithTrace,
    /// Not at all: asked to, it went on.
    Never,
}

impl Running {
    pub(super) fn new(child: Child) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { child, ended }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Readable when it has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.ended {
            // It may end by itself just now: then there is nobody to signal.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    /// After the trace.
    pub(super) fn finish(mut self) -> Ended {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Ended::Itself(status);
        }
        self.signal(Signal::TERM);
        if let Some(ended) = &self.ended {
            let mut ends = [PollFd::new(ended, PollFlags::IN)];
            // Whatever comes of it, we look ourselves.
            let _ = poll(&mut ends, Timespec::try_from(LAST_WAIT).ok().as_ref());
        }
        match self.child.try_wait() {
            Ok(None) | Err(_) => Ended::Never,
            Ok(Some(_)) => Ended::WithTrace,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::process::Command;

    fn running(script: &str) -> Running {
        Running::new(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    #[test]
    fn ends_by_itself_or_with_the_trace() {
        let mut command = running("exit 3");
        while !command.has_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(command.finish(), Ended::Itself(status) if status.code() == Some(3)));
        let mut command = running("exec sleep 600");
        assert!(!command.has_ended());
        assert_eq!(command.finish(), Ended::WithTrace);
    }
}
