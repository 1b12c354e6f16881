//! Progress: what takes so long, and on a terminal how far it is. Nothing is printed about what is done at once.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When the line is first printed, and how often it is updated.
const FIRST: Duration = Duration::from_secs(2);
const NEXT: Duration = Duration::from_millis(500);

/// Prints until it is dropped; the line is erased then.
#[derive(Debug)]
pub(crate) struct Progress {
    done: Arc<AtomicU64>,
    printer: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// `whole` is what `advance` adds up to in the end; 0: not known.
    pub(crate) fn start(what: &'static str, whole: u64) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        let so_far = Arc::clone(&done);
        let is_terminal = std::io::stderr().is_terminal();
        let print = move |ended: &Receiver<()>| {
            let mut wait = FIRST;
            if !is_terminal {
                if ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                    say!("{what} ...");
                }
                return;
            }
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                say!(part: "\r{} ", line(what, so_far.load(Ordering::Relaxed), whole));
                wait = NEXT;
            }
            if wait == NEXT {
                say!(part: "\r\x1b[K");
            }
        };
        let (end, ended) = channel();
        let thread = std::thread::Builder::new();
        // Without a thread nothing is printed.
        let printer = thread.spawn(move || print(&ended)).ok().map(|thread| (end, thread));
        Self { done, printer }
    }

    /// Counts `by` as done.
    pub(crate) fn advance(&self, by: usize) {
        self.done.fetch_add(by as u64, Ordering::Relaxed);
    }
}

/// The line that says that a wait has begun: said to people at once, to others if it is a long one.
#[derive(Debug)]
pub(crate) struct Beginning {
    line: String,
    since: Instant,
}

impl Beginning {
    pub(crate) fn new(line: String) -> Self {
        Self { line, since: Instant::now() }
    }

    /// Says it when it is time. For how long to wait then.
    pub(crate) fn say(beginning: &mut Option<Self>, at_most: Duration) -> Duration {
        let Some(Self { line, since }) = beginning else { return at_most };
        let left = FIRST.saturating_sub(since.elapsed());
        if !left.is_zero() && !std::io::stderr().is_terminal() {
            return at_most.min(left);
        }
        say!("{line}");
        *beginning = None;
        at_most
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.printer.take() {
            drop(end);
            // It only prints.
            let _ = thread.join();
        }
    }
}

fn line(what: &str, done: u64, whole: u64) -> String {
    match (u128::from(done) * 100).checked_div(whole.into()) {
        Some(percent) => format!("{what}: {} %", percent.min(100)),
        None => format!("{what} ..."),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn lines() {
        let check =
            |done, whole, expected: &str| assert_eq!(line("reading", done, whole), expected);
        check(0, 0, "reading ...");
        check(5, 0, "reading ...");
        check(0, 3, "reading: 0 %");
        check(2, 3, "reading: 66 %");
        check(3, 3, "reading: 100 %");
        check(u64::MAX, 3, "reading: 100 %");
    }
}
