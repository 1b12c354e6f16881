//! What is kept between runs: kernels, workloads, images. Everything is named after its content,
//! made under a temporary name and renamed, so concurrent runs never see half of anything.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::progress::note;

/// How long an unused item is kept.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);

/// The cache folder.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Names a cached thing after what it is made from.
#[derive(Debug)]
pub(crate) struct Key {
    kind: &'static str,
    hash: Sha256,
}

impl Key {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, hash: Sha256::new() }
    }

    /// Adds one input; inputs are kept apart by their lengths.
    pub(crate) fn add(&mut self, input: &[u8]) -> &mut Self {
        self.hash.update((input.len() as u64).to_le_bytes());
        self.hash.update(input);
        self
    }

    fn name(&self) -> String {
        let digest = self.hash.clone().finalize();
        let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hex}", self.kind)
    }
}

/// Held while one item of the cache is made.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    /// `$XDG_CACHE_HOME/vmscope/testbed` or `~/.cache/vmscope/testbed`.
    pub(crate) fn open() -> Result<Self, Error> {
        let from =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = from("XDG_CACHE_HOME")
            .or_else(|| from("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(|| PathBuf::from("/var/cache"));
        Self::at(&base.join("vmscope/testbed"))
    }

    pub(crate) fn at(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).map_err(Error::io("create", root))?;
        // No symbolic links in it: the virtual host sees the same names below another root.
        let root = root.canonicalize().map_err(Error::io("find", root))?;
        Ok(Self { root })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Keeps other runs from making the same item at the same time.
    pub(crate) fn lock(&self, name: &str) -> Result<Lock, Error> {
        let path = self.root.join(format!(".{name}.lock"));
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("lock", &path)(error.into()))?;
        Ok(Lock { _file: file })
    }

    /// A folder for something half made, on the same file system; it goes when dropped.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir, Error> {
        tempfile::Builder::new()
            .prefix(".making-")
            .tempdir_in(&self.root)
            .map_err(Error::io("create a folder in", &self.root))
    }

    /// The folder of this key, made by `make` if it is not there yet.
    pub(crate) fn folder(
        &self,
        key: &Key,
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let name = key.name();
        let path = self.root.join(&name);
        if path.exists() {
            touch(&path);
            return Ok(path);
        }
        let _lock = self.lock(&name)?;
        if path.exists() {
            return Ok(path);
        }
        note(&format!("making {} (once; later runs find it in the cache)", key.kind));
        let scratch = self.scratch()?;
        let item = scratch.path().join("item");
        fs::create_dir(&item).map_err(Error::io("create", &item))?;
        make(&item)?;
        fs::rename(&item, &path).map_err(Error::io("rename to", &path))?;
        self.remove_unused(key.kind, SystemTime::now());
        Ok(path)
    }

    /// Removes items of a kind that no run has used for long: each new build of a program makes some.
    fn remove_unused(&self, kind: &str, now: SystemTime) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let of_kind = name.to_str().is_some_and(|name| name.starts_with(&format!("{kind}-")));
            let used = entry.metadata().and_then(|metadata| metadata.modified());
            let age = used.ok().and_then(|used| now.duration_since(used).ok());
            if of_kind && age.is_some_and(|age| KEPT < age) {
                // What can't be removed now can be later.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Notes that an item was used.
fn touch(path: &Path) {
    if let Ok(folder) = File::open(path) {
        // At worst it is made again some day.
        let _ = folder.set_modified(SystemTime::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn an_item_is_made_once_however_many_want_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = AtomicU32::new(0);
        let make = || {
            let cache = Cache::at(folder.path()).unwrap();
            let mut key = Key::new("item");
            key.add(b"content");
            let path = cache.folder(&key, |item| {
                made.fetch_add(1, Ordering::Relaxed);
                fs::write(item.join("file"), "whole").map_err(Error::io("write", item))
            });
            fs::read_to_string(path.unwrap().join("file")).unwrap()
        };
        std::thread::scope(|scope| {
            for thread in [(); 4].map(|()| scope.spawn(make)) {
                assert_eq!(thread.join().unwrap(), "whole");
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn nothing_half_made_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let key = Key::new("item");
        let failed = cache.folder(&key, |item| {
            fs::write(item.join("half"), "").unwrap();
            Err(Error::Interrupted)
        });
        assert!(failed.is_err() && !cache.path(&key.name()).exists());
        let left = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| !name.to_str().unwrap().ends_with(".lock")).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn items_go_when_unused_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        for name in ["image-1", "kernels", "imagery"] {
            fs::create_dir(cache.path(name)).unwrap();
        }
        let left = |name: &str| cache.path(name).exists();
        cache.remove_unused("image", SystemTime::now());
        assert!(left("image-1"));
        cache.remove_unused("image", SystemTime::now() + KEPT + Duration::from_secs(60));
        assert!(!left("image-1") && left("kernels") && left("imagery"));
    }

    #[test]
    fn keys_keep_inputs_apart() {
        let name = |inputs: &[&[u8]]| {
            let mut key = Key::new("k");
            inputs.iter().for_each(|input| {
                key.add(input);
            });
            key.name()
        };
        assert_ne!(name(&[b"ab", b"c"]), name(&[b"a", b"bc"]));
        assert_eq!(name(&[b"ab", b"c"]), name(&[b"ab", b"c"]));
    }
}
