//! What is under way, in files: after a restart the daemon goes on with it.
//!
//! ```text
//!  STATE/incoming/VM.qemu    a QEMU that was started here, and whose VM has not come yet: PID, when it began, its monitor
//!  STATE/incoming/VM.log     what it said
//!  STATE/incoming/VM.qmp     its monitor, if it has no other
//!  STATE/outgoing/VM.qemu    a QEMU whose VM is migrated away
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::PROC;
use crate::identity::make_folder;

/// Longest file.
const MAX_BYTES: u64 = 1 << 14;
/// What a record's file is called at its end.
const ENDING: &str = "qemu";

/// One of the two folders.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    folder: PathBuf,
}

/// A QEMU with which something is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) vm: String,
    pub(crate) pid: u32,
    /// When its process began, in ticks since the boot.
    pub(crate) started: u64,
    pub(crate) monitor: PathBuf,
}

impl Record {
    /// Whether its process is still the same one.
    pub(crate) fn is_there(&self) -> bool {
        let folder = Path::new(PROC).join(self.pid.to_string());
        numa::started(&folder).is_ok_and(|started| started == self.started)
    }
}

impl Records {
    pub(crate) fn open(state: &Path, name: &str) -> io::Result<Self> {
        let folder = state.join(name);
        make_folder(&folder)?;
        Ok(Self { folder })
    }

    /// A VM's file. Names are their owners': what else than letters and digits is in them is written in hexadecimal.
    pub(crate) fn file(&self, vm: &str, ending: &str) -> PathBuf {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let letter = |byte: u8| {
            if plain(byte) { char::from(byte).to_string() } else { format!("_{byte:02x}") }
        };
        // A UNIX socket's path has little room; names with the same beginning get a hash.
        let name: String = vm.bytes().take(20).map(letter).collect();
        let hash = Sha256::digest(vm);
        let [a, b, c, d] = [hash[0], hash[1], hash[2], hash[3]];
        self.folder.join(format!("{name}-{a:02x}{b:02x}{c:02x}{d:02x}.{ending}"))
    }

    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let Record { vm, pid, started, monitor } = record;
        let text = format!("{pid} {started}\n{vm}\n{}\n", monitor.display());
        let path = self.file(vm, ENDING);
        let staged = path.with_extension("tmp");
        fs::write(&staged, text)?;
        fs::rename(&staged, &path)
    }

    pub(crate) fn remove(&self, record: &Record) {
        let _ = fs::remove_file(self.file(&record.vm, ENDING));
        let _ = fs::remove_file(self.file(&record.vm, "log"));
    }

    /// Those of before this daemon began.
    pub(crate) fn left(&self) -> Vec<Record> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == ENDING))
            .filter_map(|path| read(&path))
            .collect()
    }
}

fn read(path: &Path) -> Option<Record> {
    if MAX_BYTES < path.metadata().ok()?.len() {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    let (pid, started) = lines.next()?.split_once(' ')?;
    Some(Record {
        pid: pid.parse().ok()?,
        started: started.parse().ok()?,
        vm: lines.next()?.to_owned(),
        monitor: PathBuf::from(lines.next()?),
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn records_come_back_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path(), "incoming").unwrap();
        let own = std::process::id();
        let started = numa::started(&Path::new(PROC).join(own.to_string())).unwrap();
        let record = Record {
            vm: "a/../b \u{e9}".to_owned(),
            pid: own,
            started,
            monitor: PathBuf::from("/run/a b.qmp"),
        };
        records.write(&record).unwrap();
        fs::write(records.file("other", ENDING), "nonsense").unwrap();
        let again = Records::open(folder.path(), "incoming").unwrap();
        assert_eq!(again.left(), std::slice::from_ref(&record));
        assert!(record.is_there());
        assert!(!Record { started: started + 1, ..record.clone() }.is_there());
        records.remove(&record);
        assert_eq!(again.left(), []);
    }

    #[test]
    fn names_stay_in_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path(), "x").unwrap();
        for vm in ["..", "a/b", "/etc/passwd", &"x".repeat(1000)] {
            let path = records.file(vm, "log");
            assert_eq!(path.parent(), Some(folder.path().join("x").as_path()), "{vm}");
            assert!(path.file_name().unwrap().len() < 100);
        }
        assert_ne!(records.file("a b", "log"), records.file("a_b", "log"));
        let [long, longer] = ["x".repeat(40), "x".repeat(41)];
        assert_ne!(records.file(&long, "log"), records.file(&longer, "log"));
    }
}
