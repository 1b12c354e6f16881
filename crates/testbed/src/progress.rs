//! Lines on standard error about what a run waits for: one when a wait begins, then one every few seconds.

use std::io::Write;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::link::Event;

/// After this time without a line the stage is repeated.
const MAX_SILENCE: Duration = Duration::from_secs(5);

/// The stage of a run, and how long the run has taken.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    stage: String,
    /// When the last line was written.
    last_line: Instant,
    /// Whether the stage is repeated while the command runs: it may have output of its own.
    narrates: bool,
    is_command_running: bool,
    /// Which host it is about, if there are two.
    prefix: String,
}

impl Progress {
    pub(crate) fn new(stage: &str, narrates: bool) -> Self {
        note(stage);
        let now = Instant::now();
        let (stage, prefix) = (stage.to_owned(), String::new());
        Self { start: now, stage, last_line: now, narrates, is_command_running: false, prefix }
    }

    /// Repeats the stage when nothing was written for a while.
    pub(crate) fn tick(&mut self) {
        let is_due = MAX_SILENCE <= self.last_line.elapsed();
        if is_due && (self.narrates || !self.is_command_running) {
            self.write(&format!("still {}", self.stage));
        }
    }

    fn write(&mut self, text: &str) {
        self.last_line = Instant::now();
        note(&format!("{:5.1} s  {text}", self.start.elapsed().as_secs_f64()));
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn stage(&self) -> &str {
        &self.stage
    }

    /// An event of the second host.
    pub(crate) fn on_peer(&mut self, name: &str, event: &Event) {
        if !matches!(event, Event::Running | Event::Ended(_)) {
            self.prefix = format!("{name}: ");
            self.on(event);
            self.prefix.clear();
        }
    }

    pub(crate) fn on(&mut self, event: &Event) {
        let stage = match event {
            Event::Starting(guest) => format!("booting guest {guest}"),
            Event::Ready(guest, after_ms) => format!(
                "guest {guest} is ready after {}.{} s",
                after_ms / 1000,
                after_ms / 100 % 10
            ),
            Event::Died(guest, problem) => format!("guest {guest} {problem}"),
            Event::Gone(guest) => format!("guest {guest} was ended"),
            Event::Running => "running the command".to_owned(),
            Event::Ended(_) | Event::Failed(_) => "ending".to_owned(),
        };
        let stage = format!("{}{stage}", self.prefix);
        if matches!(event, Event::Died(..)) {
            warn(&stage);
        } else {
            self.write(&stage);
        }
        match event {
            // What is waited for from now on.
            Event::Ready(..) => "waiting for the other guests".clone_into(&mut self.stage),
            Event::Gone(_) | Event::Died(..) => {}
            _ => self.stage = stage,
        }
        self.is_command_running = match event {
            Event::Running => true,
            Event::Ended(_) | Event::Failed(_) => false,
            _ => self.is_command_running,
        };
    }
}

/// Writes a line of progress.
pub(crate) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "testbed: {text}"));
}

/// Runs `work`; says every few seconds that `what` is not finished.
pub(crate) fn narrate<T>(what: &str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let start = Instant::now();
            while ended.recv_timeout(MAX_SILENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                note(&format!("still {what}, {} s", start.elapsed().as_secs()));
            }
        });
        let result = work();
        drop(running);
        result
    })
}

/// Writes a warning; guests may have chosen parts of it.
pub(crate) fn warn(text: &str) {
    let shown: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    drop(writeln!(std::io::stderr(), "vmscope: {shown}"));
}
