//! Says on a terminal what takes so long, once it does, and how far it is.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is done at once is not worth a word.
const FIRST: Duration = Duration::from_secs(2);
const NEXT: Duration = Duration::from_millis(500);

/// Tells until it is dropped; the line is gone then.
#[derive(Debug)]
pub(super) struct Patience {
    done: Arc<AtomicU64>,
    teller: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Patience {
    /// `whole` is what `advance` adds up to in the end; 0: not known.
    pub(super) fn begin(what: &'static str, whole: u64) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        let so_far = Arc::clone(&done);
        let tell = move |ended: &Receiver<()>| {
            let mut wait = FIRST;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                eprint!("\r{} ", line(what, so_far.load(Ordering::Relaxed), whole));
                wait = NEXT;
            }
            if wait == NEXT {
                eprint!("\r\x1b[K");
            }
        };
        let (end, ended) = channel();
        let thread = std::thread::Builder::new();
        // Without a thread nothing is said.
        let teller = std::io::stderr().is_terminal().then(|| thread.spawn(move || tell(&ended)));
        let teller = teller.and_then(Result::ok).map(|thread| (end, thread));
        Self { done, teller }
    }

    /// So much more is done.
    pub(super) fn advance(&self, by: usize) {
        self.done.fetch_add(by as u64, Ordering::Relaxed);
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.teller.take() {
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
