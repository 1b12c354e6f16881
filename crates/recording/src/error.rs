//! What can go wrong with a recording, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

use crate::files;
use crate::output::shown;

/// What a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    Recording,
    Trace,
}

impl Folder {
    fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Trace => "trace",
        }
    }

    /// The file that says what the others are.
    pub(crate) fn manifest(self) -> &'static str {
        match self {
            Self::Recording => files::MANIFEST,
            Self::Trace => files::TRACE_MANIFEST,
        }
    }

    fn written_by(self) -> &'static str {
        match self {
            Self::Recording => "vmscope record",
            Self::Trace => "vmscope trace record",
        }
    }

    fn read_by(self) -> &'static str {
        match self {
            Self::Recording => "vmscope report",
            Self::Trace => "vmscope trace report",
        }
    }
}

/// Why a recording or trace could not be written or read. The sources say no more than the operating system's
/// reason, so `{error:#}` is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} exists already: choose another name or remove it")]
    Exists(PathBuf),
    /// Another writer has the name, or had it when it was killed.
    #[error(
        "{0} exists: another record is writing it or was killed; choose another name, or remove it \
         when no record is running"
    )]
    PartialExists(PathBuf),
    /// The path can't name a new folder.
    #[error("{0} can't be the name of a {name}: give the path of a folder to create", name = .1.name())]
    BadName(PathBuf, Folder),
    /// Another user renamed the folder while it was written.
    #[error(
        "{path} was moved by another user, to {now}: record to a folder that only you can change"
    )]
    Moved {
        /// The name it was given.
        path: PathBuf,
        now: PathBuf,
    },
    /// The new folder would lie in one that is not there.
    #[error("failed to create {path}: {reason}: give an existing folder")]
    NoFolder { path: PathBuf, reason: io::Error },
    /// Nothing there.
    #[error("{0} does not exist: give a folder written by `{by}`", by = .1.written_by())]
    NotFound(PathBuf, Folder),
    /// A trace was given as a recording, or the other way round.
    #[error("{0} is a {name}: read it with `{by}`", name = .1.name(), by = .1.read_by())]
    OtherFolder(PathBuf, Folder),
    /// Something else is there.
    #[error(
        "{path} is not a {name} ({reason}): give a folder written by `{by}`",
        name = folder.name(), by = folder.written_by()
    )]
    Foreign {
        path: PathBuf,
        /// What it was to be.
        folder: Folder,
        reason: String,
    },
    /// Written in a format this program does not know yet.
    #[error(
        "{path} has {name} format {found}, this vmscope reads up to {supported}: use a newer vmscope",
        name = folder.name()
    )]
    NewerVersion { path: PathBuf, folder: Folder, found: u64, supported: u32 },
    /// The samples of a killed writer whose format this program no longer reads.
    #[error(
        "{0} was left by an older vmscope that was killed: read it with the vmscope that wrote it"
    )]
    OlderSpool(PathBuf),
    /// A complete folder lacks a file.
    #[error("{0} is missing: copy the whole {name} again from where it was made", name = .1.name())]
    MissingFile(PathBuf, Folder),
    /// A file's content is not what was written.
    #[error("{path} is damaged ({reason}): copy it again from where it was made")]
    Damaged { path: PathBuf, reason: String },
    /// No space left, over quota or over the limit for file sizes.
    #[error(
        "no space left to write {path}: free some or record to another file system{kept}",
        path = .0.display(), kept = kept(.0, *.1)
    )]
    NoSpace(PathBuf, Folder),
    #[error("failed to {action} {path}")]
    Io {
        /// What was tried: `read`, `write`, ...
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// More events than are reported.
    #[error(
        "{path} has more than {limit} events, too many to report: trace a shorter time, or fewer processes"
    )]
    TooManyEvents {
        path: PathBuf,
        /// How many there may be.
        limit: u64,
    },
    /// What was to be written does not fit the format: an error of the caller.
    #[error("failed to encode {path}: {reason}")]
    Encode { path: PathBuf, reason: String },
}

/// Where the beginning of a folder is that could not be written to its end.
fn kept(file: &Path, folder: Folder) -> String {
    match file.parent().filter(|dir| dir.extension().is_some_and(|end| end == "partial")) {
        Some(dir) => format!(
            "; what was recorded is in {}: `{}` reads it, remove it when done",
            dir.display(),
            folder.read_by()
        ),
        None => String::new(),
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                Self::NoSpace(shown(path), Folder::Recording)
            }
            _ => Self::Io { action, path: shown(path), source },
        }
    }

    /// The error as one of a trace: writing files knows no more than their paths.
    pub(crate) fn of_trace(self) -> Self {
        match self {
            Self::NoSpace(path, _) => Self::NoSpace(path, Folder::Trace),
            other => other,
        }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: shown(path), reason: reason.into() }
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
                Err(source) => Self::Encode { path: shown(path), reason: source.to_string() },
            },
            other => Self::Encode { path: shown(path), reason: other.to_string() },
        }
    }
}
