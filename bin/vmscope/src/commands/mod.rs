//! One module per subcommand: its arguments and the wiring of edge crates to core crates.

use std::process::ExitCode;

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod capacity;
pub(crate) mod correct;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod exits;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod lab;
pub(crate) mod layout;
pub(crate) mod migrate;
mod open_recording;
mod output;
mod part;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod steal;
pub(crate) mod testbed;
mod time;
pub(crate) mod top;
pub(crate) mod trace;

/// An error in what the user asked for (exit code 2), as opposed to a failure (exit code 1).
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// 2 for usage errors, 126 and 127 for a traced command that can't be executed, 1 for everything else.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code = if error.is::<Usage>() { Some(2) } else { trace::not_executed(error) };
    ExitCode::from(code.unwrap_or(1))
}
