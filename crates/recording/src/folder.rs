//! The folder that a recording or a trace is: under a partial name while it is written, then under its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Folder};
use crate::files::{self, TRACE_IN_RECORDING};
use crate::manifest::Files;

/// A folder that is being written.
#[derive(Debug)]
pub(crate) struct PartialFolder {
    /// The name it will get.
    pub(crate) path: PathBuf,
    /// Where it is.
    pub(crate) dir: PathBuf,
}

impl PartialFolder {
    pub(crate) fn create(path: &Path, folder: Folder) -> Result<Self, Error> {
        let dir = files::partial(path).ok_or_else(|| Error::BadName(path.to_owned(), folder))?;
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists(path.to_owned()));
        }
        files::create_dir(&dir).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::PartialExists(dir.clone()),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::NoFolder { path: dir.clone(), reason: source }
            }
            _ => Error::io("create", &dir, source),
        })?;
        Ok(Self { path: path.to_owned(), dir })
    }

    /// Removes everything written so far.
    pub(crate) fn discard(self) -> Result<(), Error> {
        fs::remove_dir_all(&self.dir).map_err(|source| Error::io("remove", &self.dir, source))
    }

    /// Removes the spools and gives the folder its name. The rename fails when somebody put something else
    /// under the name meanwhile.
    pub(crate) fn publish(self, spools: &[PathBuf]) -> Result<PathBuf, Error> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        for path in spools {
            fs::remove_file(path).map_err(|source| Error::io("remove", path, source))?;
        }
        files::sync_dir(&self.dir)?;
        fs::rename(&self.dir, &self.path).map_err(|source| match source.kind() {
            AlreadyExists | DirectoryNotEmpty | NotADirectory => Error::Exists(self.path.clone()),
            _ => Error::io("create", &self.path, source),
        })?;
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => files::sync_dir(parent)?,
            _ => files::sync_dir(Path::new("."))?,
        }
        Ok(self.path)
    }
}

/// The folder to read for the name given: one with a manifest.
pub(crate) fn find(path: &Path, folder: Folder) -> Result<PathBuf, Error> {
    let dir = existing(path, folder)?;
    let other = match folder {
        Folder::Recording => Folder::Trace,
        Folder::Trace => Folder::Recording,
    };
    if dir.join(folder.manifest()).is_file() {
        return Ok(dir);
    }
    let inside = dir.join(TRACE_IN_RECORDING);
    if folder == Folder::Trace && existing(&inside, folder).is_ok() {
        return find(&inside, folder);
    }
    if dir.join(other.manifest()).is_file() {
        return Err(Error::OtherFolder(dir, other));
    }
    let reason = format!("it has no {}", folder.manifest());
    Err(Error::Foreign { path: dir, folder, reason })
}

fn existing(path: &Path, folder: Folder) -> Result<PathBuf, Error> {
    let partial = files::partial(path).filter(|partial| partial.is_dir());
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(path.to_owned()),
        Ok(_) => {
            let reason = "it is no folder".into();
            Err(Error::Foreign { path: path.to_owned(), folder, reason })
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            partial.ok_or_else(|| Error::NotFound(path.to_owned(), folder))
        }
        Err(source) => Err(Error::io("read", path, source)),
    }
}

/// Compares a file of a complete folder with what the manifest says of it.
pub(crate) fn verify(dir: &Path, name: &str, entries: &Files, folder: Folder) -> Result<(), Error> {
    let path = dir.join(name);
    if !path.is_file() {
        return Err(Error::MissingFile(path, folder));
    }
    let manifest = folder.manifest();
    match entries.get(name) {
        Some(entry) if entry.matches(files::digest(&path)?) => Ok(()),
        Some(_) => Err(Error::damaged(&path, format!("{manifest} has another size or checksum"))),
        None => Err(Error::damaged(&path, format!("{manifest} does not know it"))),
    }
}
