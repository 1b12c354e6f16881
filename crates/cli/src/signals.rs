//! Signals that end a command.

use std::io::{IsTerminal as _, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{exit, pipe};

/// A flag that SIGINT and SIGTERM set.
///
/// # Errors
/// When no handler can be installed.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("failed to listen for signals")?;
    }
    Ok(stop)
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
    /// with exit code 1, whatever it does; `what_is_left` says what becomes of its output, if anything.
    ///
    /// # Errors
    /// When no handler can be installed.
    pub fn catch(
        ending: &'static str,
        what_is_left: impl FnOnce() -> Option<String> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let failed = "failed to catch signals";
        let last = Arc::new(AtomicUsize::new(0));
        let (wake, signalled) = UnixStream::pair().context(failed)?;
        let (count, counted) = UnixStream::pair().context(failed)?;
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), number).context(failed)?;
            for end in [&signalled, &counted] {
                pipe::register(signal, end.try_clone().context(failed)?).context(failed)?;
            }
        }
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
    say!("vmscope: ended by a second signal{}", view::clean(&left));
    exit(1);
}
