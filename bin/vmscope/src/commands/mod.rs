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

/// An error and its causes. A cause that the error names itself is not told twice.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    let mut last = message.clone();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !last.contains(&cause) {
            message += &format!(": {cause}");
        }
        last = cause;
    }
    message
}

/// 2 for usage errors, 126 and 127 for a traced command that can't be executed, 1 for everything else.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code = if error.is::<Usage>() { Some(2) } else { trace::not_executed(error) };
    ExitCode::from(code.unwrap_or(1))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let gone = || std::io::Error::other("gone");
        let named =
            || migration::IdentityError::File { action: "read", path: "x".into(), source: gone() };
        assert_eq!(message(&named().into()), "failed to read x: gone");
        let error = anyhow::Error::from(named()).context("no plan");
        assert_eq!(message(&error), "no plan: failed to read x: gone");
        let error = anyhow::Error::from(gone()).context("failed to read y");
        assert_eq!(message(&error), "failed to read y: gone");
    }
}
