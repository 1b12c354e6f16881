//! A recording under way, as its user ends it: by a signal or after a duration.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use cli::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::trace::Beginning;

/// When a recording ends. COMMAND, if there is one, is with who starts it.
#[derive(Debug)]
pub(crate) struct Run {
    signals: Signals,
    /// Whether a signal was acted on: waits are not cut short any more.
    is_ending: bool,
    duration: Option<Duration>,
    /// Its time begins when `left` is first called.
    deadline: Option<Instant>,
    /// Printed when the first wait begins: by then COMMAND runs.
    begins: Option<Beginning>,
}

impl Run {
    /// `reader`: the command that reads `output`, also if it is not finished.
    pub(crate) fn new(
        duration: Option<Duration>,
        output: &Path,
        reader: &'static str,
    ) -> anyhow::Result<Self> {
        let partial = recording::trace::partial_path(output);
        let left = move || {
            let partial = partial.filter(|partial| partial.is_dir())?;
            let shown = partial.display().to_string();
            let shown = table::clean(&shown);
            Some(format!(
                "what was recorded is in {shown}: `{reader}` reads it, remove it when done"
            ))
        };
        let signals = Signals::catch("the recording ends and is being finished", left)?;
        Ok(Self { signals, is_ending: false, duration, deadline: None, begins: None })
    }

    /// The number of the signal that came.
    pub(crate) fn signal(&self) -> Option<usize> {
        self.signals.last()
    }

    /// The same, and it is acted on.
    pub(crate) fn take_signal(&mut self) -> Option<usize> {
        let signal = self.signal();
        self.is_ending |= signal.is_some();
        signal
    }

    pub(crate) fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// How much of the duration is left; zero: it is over.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        let Some(duration) = self.duration else { return Duration::MAX };
        self.deadline.get_or_insert(now + duration).saturating_duration_since(now)
    }

    /// Prints this when the first wait begins.
    pub(crate) fn begin_with(&mut self, line: String) {
        self.begins = Some(Beginning::new(line));
    }

    /// Waits for this long, for a signal, or until one of `wake` is readable.
    pub(crate) fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]) {
        let at_most = Beginning::say(&mut self.begins, at_most);
        let signal = (!self.is_ending).then(|| self.signals.wake());
        let ends = wake.iter().copied().chain(signal);
        let mut ends: Vec<_> =
            ends.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)).collect();
        // Whatever comes of it, the caller looks itself.
        let _ = poll(&mut ends, Timespec::try_from(at_most).ok().as_ref());
    }
}
