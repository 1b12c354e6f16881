//! Guests' symbol tables on disk, by build id, so that each file is requested once.
//!
//! ```text
//!   ROOT/1f9c.../0a12...                one folder per VM, one file per build id
//!   vmscope-symbols 1
//!   1a40 2c quantum_toffoli             offset, size (hexadecimal), name; one line per function
//!   end 1 8d3b10c2                      number of functions, CRC-32 of all before this line
//! ```
//!
//! Folders have mode 0700 and files 0600: they tell what runs in guests. Folders are per VM because a build id is what a guest says it is: in a common folder one guest could
//! choose the names that another VM's functions get. Folder and file names are hexadecimal only, made
//! from a hash and from the build id, so nothing a guest says is ever a path.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model::BuildId;
use sha2::{Digest, Sha256};

use crate::{Function, FunctionTable};

const FIRST_LINE: &str = "vmscope-symbols 1";

/// Longest file that is written or read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Most bytes of one VM; the oldest files make room.
const MAX_FOLDER_BYTES: u64 = 256 << 20;

/// The symbol tables of one VM.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// What the store has under a build id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    Table(FunctionTable),
    Absent,
    /// A file that can't be used (and is treated like none): why, naming it.
    Unusable(String),
}

/// A table could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Larger than the store takes.
    #[error("the symbols of build id {build_id} are too large to keep")]
    TooLarge { build_id: BuildId },
    /// A file or folder could not be written.
    #[error("failed to write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

impl Store {
    /// The store's root: `/var/cache/vmscope/symbols` for root, else `$XDG_CACHE_HOME/vmscope/symbols`
    /// (`~/.cache/vmscope/symbols`).
    #[must_use]
    pub fn default_path() -> PathBuf {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let user = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let cache = if rustix::process::geteuid().is_root() { None } else { user() };
        cache.unwrap_or_else(|| PathBuf::from("/var/cache")).join("vmscope/symbols")
    }

    /// The part of the store at `root` that belongs to one VM. `vm` is what tells it from other VMs for
    /// good: its user, and its UUID if there is one, else its name.
    #[must_use]
    pub fn of_vm(root: &Path, vm: &str) -> Self {
        let hash = Sha256::digest(vm.as_bytes());
        Self { folder: root.join(hex(&hash[..16])) }
    }

    /// The table stored under `build_id`.
    #[must_use]
    pub fn get(&self, build_id: &BuildId) -> Stored {
        let path = self.path(build_id);
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Stored::Absent,
            Err(error) => return Stored::Unusable(format!("{}: {error}", path.display())),
        };
        match parse(&text) {
            Some(table) => Stored::Table(table),
            None => Stored::Unusable(format!("{}: incomplete symbol file", path.display())),
        }
    }

    /// Whether something is stored under `build_id`.
    #[must_use]
    pub fn has(&self, build_id: &BuildId) -> bool {
        self.path(build_id).exists()
    }

    /// Stores a table, under a temporary name first.
    ///
    /// # Errors
    /// If it is too large, or can't be written; then nothing lies under its name.
    pub fn put(&self, build_id: &BuildId, table: &FunctionTable) -> Result<(), StoreError> {
        let text = render(table);
        let bytes = text.len() as u64;
        if MAX_FILE_BYTES < bytes {
            return Err(StoreError::TooLarge { build_id: build_id.clone() });
        }
        let path = self.path(build_id);
        let temporary = self.folder.join(format!("{build_id}.{}.tmp", std::process::id()));
        self.write(&temporary, &path, &text).map_err(|source| {
            // It may not be there; what matters is the first error.
            let _ = fs::remove_file(&temporary);
            StoreError::Write { path, source }
        })
    }

    fn write(&self, temporary: &Path, path: &Path, text: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // Those of earlier versions could be read by everybody.
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700))?;
        make_room(&self.folder, MAX_FOLDER_BYTES.saturating_sub(text.len() as u64))?;
        let mut options = fs::File::options();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(temporary, path)
    }

    fn path(&self, build_id: &BuildId) -> PathBuf {
        self.folder.join(build_id.to_string())
    }
}

/// Removes the oldest files until those left have at most `limit` bytes.
fn make_room(folder: &Path, limit: u64) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(folder)?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= limit {
            break;
        }
        fs::remove_file(&path)?;
        total -= bytes;
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn render(table: &FunctionTable) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    let mut n = 0;
    for Function { offset, size, name } in table.functions() {
        // No compiler makes such names, and they would break the lines.
        if !name.chars().any(char::is_control) {
            let _ = writeln!(text, "{offset:x} {size:x} {name}");
            n += 1;
        }
    }
    let crc = crc32fast::hash(text.as_bytes());
    let _ = writeln!(text, "end {n} {crc:08x}");
    text
}

fn parse(text: &str) -> Option<FunctionTable> {
    let before_end = text.strip_suffix('\n')?.rfind('\n')? + 1;
    let (body, end) = text.split_at(before_end);
    let (n, crc) = end.trim_end().strip_prefix("end ")?.split_once(' ')?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    (crc32fast::hash(body.as_bytes()) == crc).then_some(())?;
    let mut lines = body.lines();
    (lines.next() == Some(FIRST_LINE)).then_some(())?;
    let functions = lines.map(parse_line).collect::<Option<Vec<_>>>()?;
    (n.parse() == Ok(functions.len())).then(|| FunctionTable::new(functions))
}

fn parse_line(line: &str) -> Option<Function> {
    let (offset, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    Some(Function {
        offset: u64::from_str_radix(offset, 16).ok()?,
        size: u64::from_str_radix(size, 16).ok()?,
        name: name.to_owned(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod test {
    use super::*;

    fn table() -> FunctionTable {
        let function = |offset, size, name: &str| Function { offset, size, name: name.into() };
        FunctionTable::new([
            function(0x1a40, 0x2c, "quantum_toffoli"),
            function(0x1b00, 0, "_ZN4calc7computeEi"),
            function(0x1c00, 8, "name with spaces é"),
        ])
    }

    fn build_id(byte: u8) -> BuildId {
        BuildId::new(&[byte; 20]).unwrap()
    }

    #[test]
    fn what_was_put_is_got_again_by_the_same_vm_only() {
        let root = tempfile::tempdir().unwrap();
        let web = Store::of_vm(root.path(), "web");
        assert_eq!(web.get(&build_id(1)), Stored::Absent);
        web.put(&build_id(1), &table()).unwrap();
        assert_eq!(web.get(&build_id(1)), Stored::Table(table()));
        assert_eq!(web.get(&build_id(2)), Stored::Absent);
        assert_eq!(Store::of_vm(root.path(), "db").get(&build_id(1)), Stored::Absent);
        web.put(&build_id(1), &FunctionTable::default()).unwrap();
        assert_eq!(web.get(&build_id(1)), Stored::Table(FunctionTable::default()));
        let names = std::fs::read_dir(&web.folder).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
    }

    #[test]
    fn only_the_owner_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::of_vm(root.path(), "web");
        fs::create_dir(&store.folder).unwrap();
        fs::set_permissions(&store.folder, Permissions::from_mode(0o755)).unwrap();
        store.put(&build_id(1), &table()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.folder), 0o700);
        assert_eq!(mode(&store.path(&build_id(1))), 0o600);
    }

    #[test]
    fn vm_names_are_never_paths() {
        for name in ["../../etc", "", "/", "a\0b", &"n".repeat(5000)] {
            let folder = Store::of_vm(Path::new("/root"), name).folder;
            let last = folder.strip_prefix("/root/").unwrap().to_str().unwrap().to_owned();
            assert!(last.len() == 32 && last.bytes().all(|b| b.is_ascii_hexdigit()), "{last}");
        }
    }

    #[test]
    fn damaged_files_are_not_used() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::of_vm(root.path(), "web");
        store.put(&build_id(1), &table()).unwrap();
        let path = store.path(&build_id(1));
        let whole = std::fs::read(&path).unwrap();
        let damage = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let stored = store.get(&build_id(1));
            assert!(matches!(stored, Stored::Unusable(_)), "{stored:?}");
        };
        for cut in 0..whole.len() {
            damage(&whole[..cut]);
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            damage(&bytes);
        }
        damage(b"vmscope-symbols 2\nend 0 00000000\n");
        store.put(&build_id(1), &table()).unwrap();
        assert_eq!(store.get(&build_id(1)), Stored::Table(table()));
    }

    #[test]
    fn hostile_names_stay_out_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::of_vm(root.path(), "web");
        let function = |offset, name: &str| Function { offset, size: 1, name: name.into() };
        let hostile = FunctionTable::new([function(1, "a\nend 0 0"), function(2, "b")]);
        store.put(&build_id(1), &hostile).unwrap();
        let kept = FunctionTable::new([function(2, "b")]);
        assert_eq!(store.get(&build_id(1)), Stored::Table(kept));
    }

    #[test]
    fn the_oldest_make_room() {
        let root = tempfile::tempdir().unwrap();
        for (n, name) in ["old", "middle", "new"].iter().enumerate() {
            let path = root.path().join(name);
            std::fs::write(&path, [0; 100]).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + n as u64);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        make_room(root.path(), 250).unwrap();
        assert!(!root.path().join("old").exists() && root.path().join("middle").exists());
        make_room(root.path(), 0).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Store::of_vm(&file, "web").put(&build_id(1), &table()).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    }
}
