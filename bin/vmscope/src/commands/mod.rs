//! One module per subcommand: its arguments and the wiring of edge crates to core crates.

use std::process::ExitCode;

pub(crate) mod agent;
pub(crate) mod capacity;
pub(crate) mod ci;
pub(crate) mod correct;
pub(crate) mod doctor;
pub(crate) mod exits;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod meter;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
mod run;
pub(crate) mod steal;
pub(crate) mod top;
pub(crate) mod trace;

/// 2 for usage errors, 126 and 127 for a traced command that can't be executed, 1 for everything else.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    trace::not_executed(error).map_or_else(|| cli::exit_code(error), ExitCode::from)
}
