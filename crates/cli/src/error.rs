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

/// An error and its causes. A cause that the error names itself is left out.
#[must_use]
pub fn message(error: &anyhow::Error) -> String {
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

/// 2 for usage errors, 1 for everything else.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

#[cfg(test)]
mod test {
    use super::*;

    #[derive(Debug)]
    struct ReadFailed(std::io::Error);

    impl std::fmt::Display for ReadFailed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "failed to read x: {}", self.0)
        }
    }

    impl std::error::Error for ReadFailed {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn each_cause_is_named_once() {
        let gone = || std::io::Error::other("gone");
        assert_eq!(message(&ReadFailed(gone()).into()), "failed to read x: gone");
        let error = anyhow::Error::from(ReadFailed(gone())).context("no plan");
        assert_eq!(message(&error), "no plan: failed to read x: gone");
        let error = anyhow::Error::from(gone()).context("failed to read y");
        assert_eq!(message(&error), "failed to read y: gone");
    }
}
