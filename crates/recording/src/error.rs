//! What can go wrong with a recording, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Why a recording could not be written or read. The sources say no more than the operating system's
/// reason, so `{error:#}` is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is taken.
    #[error("{0} exists already: choose another name or remove it")]
    Exists(PathBuf),
    /// Another writer has the name, or had it when it was killed.
    #[error(
        "{0} exists: another record is writing it or was killed; choose another name, or remove it \
         when no record is running"
    )]
    PartialExists(PathBuf),
    /// The path can't name a new folder.
    #[error("{0} can't be the name of a recording: give the path of a folder to create")]
    BadName(PathBuf),
    /// The new folder would lie in one that is not there.
    #[error("failed to create {path}: {reason}: give an existing folder")]
    NoFolder {
        /// The folder to create.
        path: PathBuf,
        /// The operating system's reason.
        reason: io::Error,
    },
    /// Nothing there.
    #[error("{0} does not exist: give a folder written by `vmscope record`")]
    NotFound(PathBuf),
    /// Something else is there.
    #[error("{path} is not a recording ({reason}): give a folder written by `vmscope record`")]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// How it shows.
        reason: String,
    },
    /// Written in a format this program does not know yet.
    #[error(
        "{path} has recording format {found}, this vmscope reads up to {supported}: use a newer vmscope"
    )]
    NewerVersion {
        /// The recording.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// Ours.
        supported: u32,
    },
    /// The samples of a killed writer whose format this program no longer reads.
    #[error(
        "{0} was left by an older vmscope that was killed: read it with the vmscope that wrote it"
    )]
    OlderSpool(PathBuf),
    /// A complete recording lacks a file.
    #[error("{0} is missing: copy the whole recording again from where it was made")]
    MissingFile(PathBuf),
    /// A file's content is not what was written.
    #[error("{path} is damaged ({reason}): copy it again from where it was made")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it shows.
        reason: String,
    },
    /// No space left, over quota or over the limit for file sizes.
    #[error(
        "no space left to write {path}: free some or record to another file system{kept}",
        path = .0.display(), kept = kept(.0)
    )]
    NoSpace(PathBuf),
    /// The operating system refused.
    #[error("failed to {action} {path}")]
    Io {
        /// What was tried: `read`, `write`, ...
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// What was to be written does not fit the format: an error of the caller.
    #[error("failed to encode {path}: {reason}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Where the beginning of a recording is that could not be written to its end.
fn kept(file: &Path) -> String {
    match file.parent().filter(|folder| folder.extension().is_some_and(|end| end == "partial")) {
        Some(folder) => format!(
            "; what was recorded is in {}: `vmscope report` reads it, remove it when done",
            folder.display()
        ),
        None => String::new(),
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::NoSpace(path.to_owned()),
            _ => Self::Io { action, path: path.to_owned(), source },
        }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    /// An error of the Parquet reader: whatever it is, the bytes are not ours.
    pub(crate) fn reading(path: &Path, error: &ParquetError) -> Self {
        Self::damaged(path, error.to_string())
    }

    /// An error of the Parquet writer: the operating system's, when it was that.
    pub(crate) fn writing(path: &Path, error: ParquetError) -> Self {
        match error {
            ParquetError::External(source) => match source.downcast::<io::Error>() {
                Ok(source) => Self::io("write", path, *source),
                Err(source) => Self::Encode { path: path.to_owned(), reason: source.to_string() },
            },
            other => Self::Encode { path: path.to_owned(), reason: other.to_string() },
        }
    }
}
