//! What subcommands print with.

use std::io::{self, Write};

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
