//! Signals that end a command, or tell a daemon something.

use std::ffi::c_int;
use std::io::{self, IsTerminal as _, Read as _};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context;
use signal_hook::SigId;
pub use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::{exit, pipe, unregister};

/// A flag that signals set, for as long as it lives.
#[derive(Debug)]
pub struct SignalFlag {
    flag: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl SignalFlag {
    /// Catches these signals.
    ///
    /// # Errors
    /// When no handler can be installed.
    pub fn catch(signals: &[c_int]) -> io::Result<Self> {
        let mut caught = Self { flag: Arc::default(), ids: Vec::new() };
        for signal in signals {
            caught.ids.push(signal_hook::flag::register(*signal, Arc::clone(&caught.flag))?);
        }
        Ok(caught)
    }

    /// Whether a signal came since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        self.flag.swap(false, Ordering::Relaxed)
    }
}

impl Deref for SignalFlag {
    type Target = AtomicBool;

    fn deref(&self) -> &AtomicBool {
        &self.flag
    }
}

impl Drop for SignalFlag {
    fn drop(&mut self) {
        self.ids.drain(..).for_each(|id| _ = unregister(id));
    }
}

/// A flag that SIGINT and SIGTERM set.
///
/// # Errors
/// When no handler can be installed.
pub fn stop_on_signals() -> anyhow::Result<SignalFlag> {
    SignalFlag::catch(&[SIGINT, SIGTERM]).context("failed to listen for signals")
}

/// Readable after one of these signals, a byte for each.
///
/// # Errors
/// When no handler can be installed.
pub fn wake_on_signals(signals: &[c_int]) -> io::Result<UnixStream> {
    let (wake, signalled) = UnixStream::pair()?;
    for signal in signals {
        pipe::register(*signal, signalled.try_clone()?)?;
    }
    Ok(wake)
}

/// SIGINT and SIGTERM of a command that takes a while to finish: the first ends what it does, the second the program.
#[derive(Debug)]
pub struct Signals {
    /// The signal that came; 0 for none.
    last: Arc<AtomicUsize>,
    /// Readable after a signal.
    wake: UnixStream,
}

impl Signals {
    /// After the first signal, on a terminal, `ending` is printed: what is done now. The second one ends the program at once
    /// with exit code 1, whatever it does; `what_is_left` says what becomes of its output, if anything, as it may be printed.
    ///
    /// # Errors
    /// When no handler can be installed.
    pub fn catch(
        ending: &'static str,
        what_is_left: impl FnOnce() -> Option<String> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let failed = "failed to catch signals";
        let last = Arc::new(AtomicUsize::new(0));
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), number).context(failed)?;
        }
        let wake = wake_on_signals(&[SIGINT, SIGTERM]).context(failed)?;
        let count = wake_on_signals(&[SIGINT, SIGTERM]).context(failed)?;
        std::thread::Builder::new()
            .spawn(move || follow(count, ending, what_is_left))
            .context(failed)?;
        Ok(Self { last, wake })
    }

    /// The number of the signal that came.
    #[must_use]
    pub fn last(&self) -> Option<usize> {
        Some(self.last.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// Readable from the first signal on.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn follow(mut signals: UnixStream, ending: &str, what_is_left: impl FnOnce() -> Option<String>) {
    // The other side stays open while the program runs.
    if signals.read_exact(&mut [0]).is_err() {
        return;
    }
    if std::io::stderr().is_terminal() {
        say!("\r{ending}; Ctrl-C again ends vmscope at once");
    }
    if signals.read_exact(&mut [0]).is_err() {
        return;
    }
    let left = what_is_left().map_or_else(String::new, |left| format!("; {left}"));
    say!("vmscope: ended by a second signal{left}");
    exit(1);
}
