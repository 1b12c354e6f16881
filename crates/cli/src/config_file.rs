//! Configuration files of daemons: TOML that an administrator wrote.
//!
//! Design constraints: what is wrong with a file is one line that names the file, and the line or key. Must never know what
//! is configured: that is the daemon's.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Bytes of a file that are read at most.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: io::Error },
    /// A key is unknown, or a value is invalid.
    #[error("{}: {reason}", path.display())]
    Invalid {
        path: PathBuf,
        /// What, and where.
        reason: String,
    },
}

/// Reads a file. `parse` makes a configuration of it, or returns one line that says what is wrong.
///
/// # Errors
/// When it can't be read, or what `parse` says.
pub fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    let text = text(path)?;
    parse(&text).map_err(|reason| ConfigError::Invalid { path: path.to_owned(), reason })
}

/// The text of a file.
///
/// # Errors
/// When it can't be read.
pub fn text(path: &Path) -> Result<String, ConfigError> {
    let failed = |reason| ConfigError::Read { path: path.to_owned(), reason };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// What a text in TOML says.
///
/// # Errors
/// What is wrong, and in which line.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().replace('\n', " ");
        let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
        line.map_or(message.clone(), |line| format!("line {line}: {message}"))
    })
}

/// Checks a key's value.
///
/// # Errors
/// When it is not in the range.
pub fn within(key: &str, value: u64, range: RangeInclusive<u64>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{key} lies between {} and {}", range.start(), range.end()))
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_wrong_is_one_line() {
        let check = |text: &str, expected: Result<usize, &str>| {
            let parsed = parse::<BTreeMap<String, u64>>(text).map(|all| all.len());
            assert_eq!(
                parsed.as_ref().map_err(|error| &error[..7.min(error.len())]),
                expected.as_ref().map_err(|part| *part)
            );
        };
        check("a = 1\nb = 2", Ok(2));
        check("a = 1\nb = \"2\"", Err("line 2:"));
        check("a", Err("line 1:"));
        assert_eq!(within("a", 3, 1..=2).unwrap_err(), "a lies between 1 and 2");
        assert!(within("a", 2, 1..=2).is_ok());
    }

    #[test]
    fn a_file_is_named_with_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        let says = || read(&path, |text| text.parse::<u32>().map_err(|_| "no number".to_owned()));
        let shown = path.display();
        let error = says().unwrap_err().to_string();
        assert!(error.starts_with(&format!("failed to read {shown}: No such file")), "{error}");
        std::fs::write(&path, "x").unwrap();
        assert_eq!(says().unwrap_err().to_string(), format!("{shown}: no number"));
        std::fs::write(&path, "7").unwrap();
        assert_eq!(says().unwrap(), 7);
    }
}
