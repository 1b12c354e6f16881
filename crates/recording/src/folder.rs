//! The folder that a recording or a trace is: under a partial name while it is written, then under its own.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Folder};
use crate::files::{self, TRACE_IN_RECORDING};
use crate::manifest::Files;
use crate::output::{self, OutputFolder};

/// A folder that is being written. It is held, and so is the one it lies in: others may rename what lies in theirs.
#[derive(Debug)]
pub(crate) struct PartialFolder {
    /// The name it will get.
    path: PathBuf,
    /// The name it has.
    partial: PathBuf,
    parent: OutputFolder,
    folder: OutputFolder,
    /// Where it is, whatever becomes of its name.
    pub(crate) dir: PathBuf,
}

impl PartialFolder {
    pub(crate) fn create(path: &Path, folder: Folder) -> Result<Self, Error> {
        Self::with(path, folder, |parent, partial, name| {
            if path.file_name().is_some_and(|name| parent.has(name)) {
                return Err(Error::Exists(path.to_owned()));
            }
            parent.create_folder(name).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => Error::PartialExists(partial.to_owned()),
                _ => Error::io("create", partial, source),
            })
        })
    }

    /// That which a killed writer left.
    pub(crate) fn open(path: &Path, folder: Folder) -> Result<Self, Error> {
        Self::with(path, folder, |parent, partial, name| {
            parent.own_folder(name).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    Error::NotFound(path.to_owned(), folder)
                }
                _ => Error::io("read", partial, source),
            })
        })
    }

    fn with(
        path: &Path,
        folder: Folder,
        open: impl FnOnce(&OutputFolder, &Path, &OsStr) -> Result<OutputFolder, Error>,
    ) -> Result<Self, Error> {
        let bad_name = || Error::BadName(path.to_owned(), folder);
        let partial = files::partial(path).ok_or_else(bad_name)?;
        let (parent, name) =
            OutputFolder::of_file(&partial).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    Error::NoFolder { path: partial.clone(), reason: source }
                }
                _ => Error::io("create", &partial, source),
            })?;
        let folder = open(&parent, &partial, name)?;
        let dir = folder.path();
        Ok(Self { path: path.to_owned(), partial, parent, folder, dir })
    }

    /// The name it has.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Removes everything written so far.
    pub(crate) fn discard(self) -> Result<(), Error> {
        let name = self.own_name()?;
        let failed = |source| Error::io("remove", &self.partial, source);
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_folder = entry.file_type().is_ok_and(|it| it.is_dir());
            let removed = match is_folder {
                true => fs::remove_dir_all(entry.path()),
                false => fs::remove_file(entry.path()),
            };
            removed.map_err(failed)?;
        }
        self.parent.remove_folder(name).map_err(failed)
    }

    /// Removes the spools and gives the folder its name. The rename fails when something else was put
    /// under the name meanwhile.
    pub(crate) fn publish(self, spools: &[PathBuf]) -> Result<PathBuf, Error> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        for path in spools {
            fs::remove_file(path).map_err(|source| Error::io("remove", path, source))?;
        }
        files::sync_dir(&self.dir)?;
        let from = self.own_name()?;
        let to = self.path.file_name().unwrap_or_default();
        self.parent.rename(from, to).map_err(|source| match source.kind() {
            AlreadyExists | DirectoryNotEmpty | NotADirectory => Error::Exists(self.path.clone()),
            _ => Error::io("create", &self.path, source),
        })?;
        if !self.parent.is(&self.folder, to) {
            return Err(self.moved());
        }
        self.parent.sync().map_err(|source| Error::io("write", &self.path, source))?;
        Ok(self.path)
    }

    /// Its name in the folder it lies in, if it still has it.
    fn own_name(&self) -> Result<&OsStr, Error> {
        let name = self.partial.file_name().unwrap_or_default();
        if self.parent.is(&self.folder, name) { Ok(name) } else { Err(self.moved()) }
    }

    fn moved(&self) -> Error {
        Error::Moved { path: self.partial.clone(), now: output::shown(&self.dir) }
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

#[cfg(test)]
mod test {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::files::DurableFile;

    /// In a folder that others may change, `rec.partial` becomes a link to `target`.
    fn replaced_by_a_link(place: &Path) -> PartialFolder {
        let folder = PartialFolder::create(&place.join("rec"), Folder::Recording).unwrap();
        fs::create_dir(place.join("target")).unwrap();
        fs::rename(place.join("rec.partial"), place.join("moved")).unwrap();
        symlink(place.join("target"), place.join("rec.partial")).unwrap();
        let mut file = DurableFile::create(&folder.dir.join("vms.parquet")).unwrap();
        file.write_all(b"rows").unwrap();
        file.commit().unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn a_link_in_place_of_the_folder_leads_nothing_elsewhere() {
        let publish = |folder: PartialFolder| folder.publish(&[]).map(drop);
        for end in [PartialFolder::discard, publish] {
            let place = tempfile::tempdir().unwrap();
            let place = place.path();
            let error = end(replaced_by_a_link(place)).unwrap_err();
            let now = place.join("moved").canonicalize().unwrap();
            assert!(matches!(&error, Error::Moved { now: is, .. } if *is == now), "{error}");
            assert_eq!(names(&place.join("moved")), ["vms.parquet"]);
            assert!(names(&place.join("target")).is_empty());
            assert!(!place.join("rec").exists());
        }
    }

    #[test]
    fn errors_name_the_folder_as_its_user_does() {
        let place = tempfile::tempdir().unwrap();
        let folder = PartialFolder::create(&place.path().join("rec"), Folder::Recording).unwrap();
        let file = folder.dir.join("vms.parquet");
        fs::create_dir(&file).unwrap();
        let error = DurableFile::create(&file).unwrap().commit().unwrap_err().to_string();
        let name = place.path().canonicalize().unwrap().join("rec.partial/vms.parquet");
        assert!(error.contains(name.to_str().unwrap()), "{error}");
    }
}
