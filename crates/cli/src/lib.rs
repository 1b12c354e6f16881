//! What all programs do alike: parsing arguments, errors in one line, exit codes, output,
//! messages and configuration files of daemons, manuals.
//!
//! Design constraints: one way to do each for every program; the parts for the guest's program cost it no dependency but
//! clap. Must never know a product: what a subcommand does is the program's.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod say;
#[cfg(feature = "config")]
pub mod config_file;
mod error;
#[cfg(feature = "log")]
mod log;
#[cfg(feature = "manuals")]
mod manuals;
#[cfg(feature = "recordings")]
mod open_recording;
#[cfg(feature = "recordings")]
mod output;
mod program;
#[cfg(feature = "signals")]
mod signals;
mod size;
#[cfg(feature = "recordings")]
mod time;
mod usage;

pub use error::{Usage, exit_code, usage};
#[cfg(feature = "log")]
pub use log::{error_priority, log_to_stderr};
#[cfg(feature = "manuals")]
pub use manuals::{write_completions, write_pages, write_subcommand_pages};
#[cfg(feature = "recordings")]
pub use open_recording::{Format, OffCpuSourceArg, OpenRecording, Source};
#[cfg(feature = "recordings")]
pub use output::{ReportOutput, count, create_file, pipe, print, width, write_file};
pub use program::find_program;
#[cfg(feature = "recordings")]
pub use program::{print_error, run_command};
#[cfg(feature = "signals")]
pub use signals::{
    SIGHUP, SIGINT, SIGTERM, SIGUSR1, SignalFlag, Signals, stop_on_signals, wake_on_signals,
};
pub use size::size;
#[cfg(feature = "recordings")]
pub use time::{TimeRange, duration_in_seconds};
pub use usage::parse;
