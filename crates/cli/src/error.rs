//! Errors as users see them.

use std::process::ExitCode;

/// An error in the arguments (exit code 2), as opposed to a failure (exit code 1).
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Makes an error one of the arguments: a configuration that can't be used is the user's error, as options are.
pub fn usage(error: impl std::fmt::Display) -> anyhow::Error {
    Usage(error.to_string()).into()
}

/// 2 for usage errors, 1 for everything else.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}
