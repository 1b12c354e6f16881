//! Messages of daemons: each event of `tracing` is a line of standard error, which systemd keeps in the journal.
//!
//! Not by `tracing-journald`: it passes control characters on, and journalctl then shows `[93B blob data]` in place of the
//! message. A line that begins with `<4>` gives it its level as well.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Crates whose events are written. Those of libraries are for their authors.
const DAEMONS: [&str; 3] = ["agent", "migration", "server"];

/// Writes the events of daemons to standard error from now on, each as a line that begins with the program's name.
pub fn log_to_stderr(program: &'static str) {
    let lines = Lines { program, is_journal: is_stderr_the_journal() };
    let levels = Targets::new().with_targets(DAEMONS.map(|name| (name, Level::INFO)));
    let subscriber = tracing_subscriber::registry().with(levels).with(lines);
    // A second call would change nothing.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// What a program's last line on standard error begins with, when it ends with an error: its level in the journal.
#[must_use]
pub fn error_priority() -> &'static str {
    priority(Level::ERROR, is_stderr_the_journal())
}

fn priority(level: Level, is_journal: bool) -> &'static str {
    match level {
        _ if !is_journal => "",
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        _ => "<6>",
    }
}

/// systemd names the journal's stream, see systemd.exec(5): standard error may have been redirected since.
fn is_stderr_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let own = rustix::fs::fstat(std::io::stderr());
    own.is_ok_and(|own| stream == format!("{}:{}", own.st_dev, own.st_ino))
}

struct Lines {
    program: &'static str,
    is_journal: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let line = self.line(*event.metadata().level(), &message.0);
        // The reader may have gone: that must not end a thread.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl Lines {
    /// Names in a message may be the choice of a guest, a peer or a server.
    fn line(&self, level: Level, message: &str) -> String {
        let priority = priority(level, self.is_journal);
        format!("{priority}{}: {}\n", self.program, model::replace_unsafe(message))
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_names_it_has() {
        let check = |is_journal, level, message, expected: &str| {
            let lines = Lines { program: "vmscope agent", is_journal };
            assert_eq!(lines.line(level, message), format!("{expected}\n"));
        };
        check(false, Level::WARN, "gone", "vmscope agent: gone");
        check(true, Level::WARN, "gone", "<4>vmscope agent: gone");
        check(true, Level::ERROR, "gone", "<3>vmscope agent: gone");
        check(true, Level::INFO, "gone", "<6>vmscope agent: gone");
        let hostile = "VM web\r\n<0>kernel: panic\u{1b}[2J\u{202e}";
        let shown = "VM web\u{fffd}\u{fffd}<0>kernel: panic\u{fffd}[2J\u{fffd}";
        check(true, Level::INFO, hostile, &format!("<6>vmscope agent: {shown}"));
    }
}
