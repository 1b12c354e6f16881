//! Windows on disk that wait to be sent: bounded, the oldest make room.
//!
//! A window's file is named by its boot and its start, as the server knows it: `BOOT-START.window`. It gets its name when all
//! of it is on disk. So whatever ends the agent leaves whole files, and those without their name, which are removed.
//!
//! The oldest is the one of the earliest boot with the least start. No wall clock is read: it may have jumped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::Header;
use recording::window;
use tracing::warn;

use crate::metrics::Metrics;
use crate::state::{StateError, sync_folder};

const ENDING: &str = "window";

/// The folder of windows that wait to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    folder: PathBuf,
    /// Boots of this host in their order.
    boots: Arc<[String]>,
}

/// A window in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spooled {
    /// Which one of the host's boots; `None`: an earlier one.
    number: Option<usize>,
    pub(crate) boot: String,
    /// Sorts like time within a boot.
    pub(crate) start: String,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

/// What lies there, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents(pub(crate) Vec<Spooled>);

impl Contents {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|window| window.bytes).sum()
    }
}

impl Spool {
    /// The folder, without what a killed agent left half written. `boots` are the host's, in their order.
    pub(crate) fn open(folder: PathBuf, boots: &[String]) -> Result<Self, StateError> {
        let spool = Self { folder, boots: boots.into() };
        for entry in spool.entries()? {
            if entry.extension().is_some_and(|ending| ending == "tmp") {
                fs::remove_file(&entry)
                    .map_err(|error| StateError::new("remove", &entry, error))?;
            }
        }
        Ok(spool)
    }

    /// Where the window of this recording is to be; `None`: it does not say in which boot it was made.
    pub(crate) fn path_of(&self, header: &Header) -> Option<PathBuf> {
        let (boot, start) = (header.boot?, header.start.0);
        Some(self.folder.join(format!("{boot}-{start:020}.{ENDING}")))
    }

    /// What lies there now.
    pub(crate) fn contents(&self) -> Result<Contents, StateError> {
        let entries = self.entries()?;
        let mut windows: Vec<_> = entries.iter().filter_map(|path| self.spooled(path)).collect();
        windows.sort();
        Ok(Contents(windows))
    }

    /// The same, counted: windows that were not sent.
    pub(crate) fn drop_oldest(
        &self,
        most_bytes: u64,
        metrics: &Metrics,
    ) -> Result<u64, StateError> {
        let removed = self.enforce_limit(most_bytes)?;
        if 0 < removed {
            metrics.dropped_spooled.add(removed);
            warn!("there is no room: the {removed} oldest windows were removed unsent");
        }
        let contents = self.contents()?;
        metrics.spool_bytes.set(contents.bytes());
        metrics.spool_windows.set(contents.0.len() as u64);
        Ok(removed)
    }

    /// Removes the oldest windows, of at least this many bytes in all. How many.
    pub(crate) fn evict_oldest(&self, bytes: u64, metrics: &Metrics) -> Result<u64, StateError> {
        self.drop_oldest(self.contents()?.bytes().saturating_sub(bytes), metrics)
    }

    /// Bytes that the disk has left; `None`: it does not say.
    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.folder).ok()?;
        (0 < found.f_blocks).then(|| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Removes the oldest windows until those left have at most `most_bytes`. How many.
    pub(crate) fn enforce_limit(&self, most_bytes: u64) -> Result<u64, StateError> {
        let contents = self.contents()?;
        let (mut bytes, mut removed) = (contents.bytes(), 0);
        for window in contents.0 {
            if bytes <= most_bytes {
                break;
            }
            self.remove(&window)?;
            bytes -= window.bytes;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a window. That it is gone already is fine: it made room for others.
    pub(crate) fn remove(&self, window: &Spooled) -> Result<(), StateError> {
        match fs::remove_file(&window.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StateError::new("remove", &window.path, error))
            }
            _ => Ok(()),
        }
    }

    /// Puts a window into another spool's folder.
    pub(crate) fn quarantine(&self, window: &Spooled, other: &Self) -> Result<(), StateError> {
        let to = other.folder.join(window.path.file_name().unwrap_or_default());
        fs::rename(&window.path, &to)
            .and_then(|()| sync_folder(&other.folder))
            .map_err(|error| StateError::new("move", &window.path, error))
    }

    fn entries(&self) -> Result<Vec<PathBuf>, StateError> {
        let failed = |error| StateError::new("read", &self.folder, error);
        let entries = fs::read_dir(&self.folder).map_err(failed)?;
        entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
    }

    /// A window's file; `None`: it is something else.
    fn spooled(&self, path: &Path) -> Option<Spooled> {
        let is_window = path.extension().is_some_and(|ending| ending == ENDING);
        let (boot, start) = path.file_stem()?.to_str()?.split_once('-')?;
        let metadata = path.symlink_metadata().ok().filter(|metadata| metadata.is_file())?;
        window::WindowId::parse("any", boot, start).ok().filter(|_| is_window)?;
        Some(Spooled {
            number: self.boots.iter().position(|known| known == boot),
            boot: boot.to_owned(),
            start: start.to_owned(),
            bytes: metadata.len(),
            path: path.to_owned(),
        })
    }
}

/// Packs a finished recording and removes its folder.
pub(crate) fn pack(folder: &Path, to: &Path) -> Result<u64, recording::Error> {
    let bytes = window::pack(folder, to)?;
    // The window is there; a folder that can't be removed is seen at the next start.
    let _ = fs::remove_dir_all(folder);
    Ok(bytes)
}

#[cfg(test)]
mod test {
    use super::*;

    const BOOT: &str = "fedcba9876543210fedcba9876543210";
    const NEXT: &str = "0123456789abcdef0123456789abcdef";

    fn put(folder: &Path, boot: &str, start: u64, bytes: usize) {
        fs::write(folder.join(format!("{boot}-{start:020}.window")), vec![0; bytes]).unwrap();
    }

    fn starts(spool: &Spool) -> Vec<u64> {
        let windows = spool.contents().unwrap().0;
        windows.iter().map(|window| window.start.parse().unwrap()).collect()
    }

    #[test]
    fn the_oldest_make_room_whatever_the_clock_says() {
        let folder = tempfile::tempdir().unwrap();
        // Their times of change are in the opposite order: the clock was put back, and one was recovered late.
        put(folder.path(), NEXT, 6, 100);
        put(folder.path(), NEXT, 5, 100);
        put(folder.path(), BOOT, 900, 100);
        put(folder.path(), &"f".repeat(32), 901, 100);
        for other in ["notes.txt", "x-1.window", &format!("{BOOT}-7.window")] {
            fs::write(folder.path().join(other), "").unwrap();
        }
        fs::write(folder.path().join(format!("{BOOT}-00000000000000000008.window.tmp")), "")
            .unwrap();
        let boots = [BOOT, NEXT].map(str::to_owned);
        let spool = Spool::open(folder.path().to_owned(), &boots).unwrap();
        assert_eq!(starts(&spool), [901, 900, 5, 6]);
        assert_eq!(spool.contents().unwrap().bytes(), 400);
        assert_eq!(spool.enforce_limit(400).unwrap(), 0);
        assert_eq!(spool.enforce_limit(250).unwrap(), 2);
        assert_eq!(starts(&spool), [5, 6]);
        assert_eq!(spool.enforce_limit(0).unwrap(), 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "the half written one is gone");
    }

    #[test]
    fn windows_are_set_aside() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        put(folders[0].path(), BOOT, 1, 10);
        let [from, to] = folders.each_ref().map(|f| Spool::open(f.path().to_owned(), &[]).unwrap());
        let window = from.contents().unwrap().0.remove(0);
        from.quarantine(&window, &to).unwrap();
        assert_eq!((starts(&from), starts(&to)), (vec![], vec![1]));
        // It is gone already.
        from.remove(&window).unwrap();
    }
}
