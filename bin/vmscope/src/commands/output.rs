//! What subcommands print with.

use std::io::{self, IsTerminal, Write};

use analysis::Width;
use rustix::termios::tcgetwinsize;

/// Lines at most, 0 for all.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "give a number of lines, 0 for all".to_owned())
}

/// Writes to standard output; that the reader has gone (`| head`) is no error.
pub(crate) fn print(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// How wide text may be.
pub(crate) fn width() -> Width {
    let out = io::stdout();
    if !out.is_terminal() {
        return Width::Unlimited;
    }
    match tcgetwinsize(&out) {
        Ok(size) if size.ws_col > 0 => Width::Columns(size.ws_col.into()),
        // A terminal that does not tell (a serial line).
        Ok(_) | Err(_) => Width::Unlimited,
    }
}
