//! A window: a finished recording as one file, with a name that is its own on all hosts.
//!
//! ```text
//!  NAME/ --pack--> tar: tables, recording.json, end --(network, object store)--> unpack --> NAME/
//! ```
//! The file is a plain tar of the recording's regular files: Parquet is compressed already. `recording.json` comes last
//! and says how long the others are. A sender may have made a window by hand: `unpack` takes the names of this
//! format and no others, each once, and no more bytes than the caller allows.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::str::FromStr;

use model::{BootId, Header, HostNs};
use tar::{Archive, EntryType};

use crate::error::{Error, Folder};
use crate::files::{self, DurableFile, MANIFEST};
use crate::manifest;
use crate::tables::SCHEMAS;

pub use crate::template::{Tables, Template, TemplateWindow};

/// Bytes of a window at most, packed or not.
pub const MAX_WINDOW_BYTES: u64 = 512 << 20;
/// Characters of a host's name at most.
const MAX_HOST: usize = 64;
/// Digits of a start in a window's name, so that names sort by time.
const START_DIGITS: usize = 20;
/// Tar's unit.
const BLOCK: u64 = 512;
/// A tar may end in zeros up to here: GNU tar fills its last record.
const MAX_END: u64 = 20 * BLOCK;

/// A host's name as the fleet knows it: 1 to 64 of `a-z A-Z 0-9 . _ -`, and no dot first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Text that is no name of a host or window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("host names have 1 to {MAX_HOST} of a-z A-Z 0-9 . _ - and begin with no dot")]
    Host,
    #[error("a boot id has 32 hexadecimal digits")]
    Boot,
    #[error("a window's start has {START_DIGITS} digits, nanoseconds of CLOCK_MONOTONIC")]
    Start,
    #[error("a window's name is HOST/BOOT/START")]
    Window,
}

impl FromStr for HostName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = (1..=MAX_HOST).contains(&text.len()) && !text.starts_with('.');
        if fits && text.bytes().all(is_known) {
            return Ok(Self(text.to_owned()));
        }
        Err(BadName::Host)
    }
}

/// A window's name. It does not depend on the wall clock, so a window keeps its name when that jumps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId {
    /// The host that recorded it.
    pub host: HostName,
    /// Since when that host has been up.
    pub boot: BootId,
    pub start: HostNs,
}

impl WindowId {
    /// From the parts of its text form.
    ///
    /// # Errors
    /// When one of them is no such part.
    pub fn parse(host: &str, boot: &str, start: &str) -> Result<Self, BadName> {
        let boot = boot.parse().map_err(|_| BadName::Boot)?;
        let is_number = start.len() == START_DIGITS && start.bytes().all(|b| b.is_ascii_digit());
        let start = start.parse().ok().filter(|start| is_number && *start <= HostNs::MAX.0);
        Ok(Self { host: host.parse()?, boot, start: HostNs(start.ok_or(BadName::Start)?) })
    }

    /// The name of a recording made on a host. `None`: it does not say in which boot it was made.
    #[must_use]
    pub fn from_header(host: HostName, header: &Header) -> Option<Self> {
        Some(Self { host, boot: header.boot?, start: header.start })
    }

    /// The start as it is written in names.
    #[must_use]
    pub fn start_text(&self) -> String {
        format!("{:0START_DIGITS$}", self.start.0)
    }
}

/// `HOST/BOOT/START`, a start of 20 digits.
impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.host, self.boot, self.start_text())
    }
}

impl FromStr for WindowId {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(host), Some(boot), Some(start), None) => Self::parse(host, boot, start),
            _ => Err(BadName::Window),
        }
    }
}

/// Packs the finished recording in `folder` into `file`, durably: under its name there is all of it or nothing. Its
/// bytes are the same each time. Returns how many.
///
/// # Errors
/// When the recording is not complete, a file can't be read, or nothing can be written.
pub fn pack(folder: &Path, file: &Path) -> Result<u64, Error> {
    let contents = manifest::read(folder)?;
    if !contents.header.complete {
        let reason = "it is not complete".to_owned();
        return Err(Error::Foreign { path: folder.to_owned(), folder: Folder::Recording, reason });
    }
    let written = |source| Error::io("write", file, source);
    let mut tar = tar::Builder::new(DurableFile::create(file)?);
    let tables = SCHEMAS.iter().map(|table| table.file);
    for name in tables.filter(|name| contents.files.contains_key(*name)).chain([MANIFEST]) {
        append(&mut tar, folder, name)?;
    }
    let bytes = tar.into_inner().map_err(written)?.commit()?.bytes;
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => files::sync_dir(parent)?,
        _ => files::sync_dir(Path::new("."))?,
    }
    Ok(bytes)
}

fn append(tar: &mut tar::Builder<DurableFile>, folder: &Path, name: &str) -> Result<(), Error> {
    let path = folder.join(name);
    let failed = |source| Error::io("read", &path, source);
    let content = files::open(&path)?;
    let bytes = content.metadata().map_err(failed)?.len();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o600);
    header.set_size(bytes);
    let appended = tar.append_data(&mut header, name, content.take(bytes));
    appended.map_err(|source| Error::io("write", &path, source))
}

/// Why a window could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Its sender is to blame.
    #[error("not a window: {0}")]
    Refused(String),
    /// It is larger than it may be.
    #[error("not a window: its files have more than {0} bytes")]
    TooLarge(u64),
    /// The machine is to blame.
    #[error("failed to unpack a window")]
    Io(#[from] io::Error),
}

/// Unpacks a window into the new folder `folder`, of `max_bytes` at most; whatever came in, nothing else is touched. The
/// recording's content is not looked at: see `Recording::open`.
///
/// # Errors
/// When it is not what `pack` makes, or can't be written; what was unpacked is removed then.
pub fn unpack(window: impl Read, folder: &Path, max_bytes: u64) -> Result<(), UnpackError> {
    files::create_dir(folder)?;
    let unpacked = unpack_into(window, folder, max_bytes);
    if unpacked.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_dir_all(folder);
    }
    unpacked
}

fn unpack_into(window: impl Read, folder: &Path, max_bytes: u64) -> Result<(), UnpackError> {
    let mut archive = Archive::new(window);
    let (mut seen, mut left) = (BTreeSet::new(), max_bytes);
    // Raw: extensions of the format are entries of a type that is refused, and are not followed.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let entry = entry.map_err(damaged)?;
        let name = known_name(&entry)?;
        if seen.contains(MANIFEST) {
            return Err(refused(format!("{name} comes after {MANIFEST}")));
        }
        if !seen.insert(name) {
            return Err(refused(format!("it has {name} twice")));
        }
        let bytes = entry.size();
        left = left.checked_sub(bytes).ok_or(UnpackError::TooLarge(max_bytes))?;
        let mut file = files::owners().create_new(true).open(folder.join(name))?;
        copy(entry, &mut file, bytes).map_err(|error| error.of(name))?;
    }
    if !seen.contains(MANIFEST) {
        return Err(refused(format!("it has no {MANIFEST}")));
    }
    check_end(archive.into_inner())
}

/// The name of an entry, if a recording may have a file of this name and the entry is a file.
fn known_name<R: Read>(entry: &tar::Entry<'_, R>) -> Result<&'static str, UnpackError> {
    let path = entry.path_bytes();
    let mut known = SCHEMAS.iter().map(|table| table.file).chain([MANIFEST]);
    let shown = || String::from_utf8_lossy(&path).escape_debug().collect::<String>();
    let Some(name) = known.find(|name| name.as_bytes() == &*path) else {
        return Err(refused(format!("a recording has no file \"{}\"", shown())));
    };
    if entry.header().entry_type() != EntryType::Regular {
        return Err(refused(format!("{name} is no regular file")));
    }
    Ok(name)
}

/// Which side failed.
enum CopyError {
    Short,
    Read(io::Error),
    Write(io::Error),
}

impl CopyError {
    fn of(self, name: &str) -> UnpackError {
        match self {
            Self::Short => refused(format!("it ends within {name}")),
            Self::Read(error) => damaged(error),
            Self::Write(error) => UnpackError::Io(error),
        }
    }
}

fn copy(mut from: impl Read, to: &mut File, bytes: u64) -> Result<(), CopyError> {
    let mut buffer = vec![0; 1 << 16];
    let mut copied = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) if copied == bytes => return Ok(()),
            Ok(0) => return Err(CopyError::Short),
            Ok(read) => {
                to.write_all(&buffer[..read]).map_err(CopyError::Write)?;
                copied += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CopyError::Read(error)),
        }
    }
}

/// Behind the first block of zeros there are more, and nothing else.
fn check_end(rest: impl Read) -> Result<(), UnpackError> {
    let mut zeros = Vec::new();
    rest.take(MAX_END + 1).read_to_end(&mut zeros).map_err(damaged)?;
    let length = zeros.len() as u64;
    if length < BLOCK || !length.is_multiple_of(BLOCK) {
        return Err(refused("it ends before its end mark".to_owned()));
    }
    if MAX_END < length || zeros.iter().any(|byte| *byte != 0) {
        return Err(refused("something comes after its end mark".to_owned()));
    }
    Ok(())
}

fn refused(reason: String) -> UnpackError {
    UnpackError::Refused(reason)
}

/// The tar reader's errors, and those of whatever it reads from: of a file on disk none is expected.
fn damaged(error: io::Error) -> UnpackError {
    match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
            refused(error.to_string())
        }
        _ => UnpackError::Io(error),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const BOOT: &str = "0123456789abcdef0123456789abcdef";

    fn tar_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, content) in entries {
            entry(&mut tar, EntryType::Regular, name, content, content.len() as u64);
        }
        tar.into_inner().unwrap()
    }

    /// Names that a tar writer would refuse, too.
    fn entry(tar: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, data: &[u8], size: u64) {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        tar.append(&header, data).unwrap();
    }

    fn reason(window: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("w");
        let error = unpack(window, &folder, 1 << 20).unwrap_err();
        assert!(!folder.exists() && fs::read_dir(dir.path()).unwrap().count() == 0);
        error.to_string()
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "kvm-1.example_org", &"x".repeat(64)] {
            assert_eq!(good.parse::<HostName>().unwrap().as_str(), good);
        }
        for bad in ["", ".a", "..", "a/b", "a b", "ä", "a\n", "a\0", &"x".repeat(65)] {
            assert_eq!(bad.parse::<HostName>(), Err(BadName::Host), "{bad:?}");
        }
        let text = format!("kvm1/{BOOT}/00000000001234567890");
        let id: WindowId = text.parse().unwrap();
        assert_eq!((id.start, id.to_string()), (HostNs(1_234_567_890), text));
        for bad in [
            "kvm1",
            &format!("kvm1/{BOOT}"),
            &format!("kvm1/{BOOT}/1"),
            &format!("kvm1/{BOOT}/+0000000001234567890"),
            &format!("kvm1/{BOOT}/99999999999999999999"),
            &format!("kvm1/{}/00000000001234567890", BOOT.to_uppercase()),
            &format!("kvm1/{BOOT}/00000000001234567890/"),
        ] {
            assert!(bad.parse::<WindowId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_files_that_recordings_have_are_unpacked() {
        let check = |name: &str, expected: &str| {
            let text = reason(&tar_of(&[(name, b"x"), (MANIFEST, b"{}")]));
            assert_eq!(text, format!("not a window: {expected}"));
        };
        check("vms.parquet/", "a recording has no file \"vms.parquet/\"");
        check("../vms.parquet", "a recording has no file \"../vms.parquet\"");
        check("/etc/passwd", "a recording has no file \"/etc/passwd\"");
        check("./vms.parquet", "a recording has no file \"./vms.parquet\"");
        check("cpu0.raw", "a recording has no file \"cpu0.raw\"");
        check("", "a recording has no file \"\"");
        check("\u{1b}", "a recording has no file \"\\u{1b}\"");
    }

    #[test]
    fn links_folders_devices_and_extensions_are_refused() {
        use EntryType as E;
        for kind in [E::Symlink, E::Link, E::Directory, E::Fifo, E::Char, E::GNUSparse] {
            let mut tar = tar::Builder::new(Vec::new());
            entry(&mut tar, kind, "vms.parquet", b"", 0);
            let text = reason(&tar.into_inner().unwrap());
            assert_eq!(text, "not a window: vms.parquet is no regular file", "{kind:?}");
        }
        for kind in [E::GNULongName, E::XHeader, E::XGlobalHeader] {
            let mut tar = tar::Builder::new(Vec::new());
            entry(&mut tar, kind, "././@LongLink", b"vms.parquet", 11);
            assert!(reason(&tar.into_inner().unwrap()).contains("has no file"), "{kind:?}");
        }
    }

    #[test]
    fn files_come_once_and_the_manifest_last() {
        let twice = tar_of(&[("vms.parquet", b"1"), ("vms.parquet", b"2"), (MANIFEST, b"{}")]);
        assert_eq!(reason(&twice), "not a window: it has vms.parquet twice");
        let late = tar_of(&[(MANIFEST, b"{}"), ("vms.parquet", b"1")]);
        assert_eq!(reason(&late), "not a window: vms.parquet comes after recording.json");
        let two = tar_of(&[(MANIFEST, b"{}"), (MANIFEST, b"{}")]);
        assert_eq!(reason(&two), "not a window: recording.json comes after recording.json");
        assert_eq!(reason(&tar_of(&[])), "not a window: it has no recording.json");
        assert!(reason(b"").starts_with("not a window"));
    }

    #[test]
    fn a_window_that_is_cut_anywhere_is_refused() {
        let whole = tar_of(&[("vms.parquet", &[7; 700]), (MANIFEST, b"{}")]);
        let dir = tempfile::tempdir().unwrap();
        unpack(&*whole, &dir.path().join("w"), 702).unwrap();
        assert_eq!(fs::read(dir.path().join("w/vms.parquet")).unwrap(), [7; 700]);
        for length in 0..whole.len() {
            assert!(reason(&whole[..length]).starts_with("not a window: "), "{length}");
        }
        let longer = [&whole[..], &[0; 512]].concat();
        unpack(&*longer, &dir.path().join("longer"), 702).unwrap();
        let text = reason(&[&whole[..], &[1; 512]].concat());
        assert_eq!(text, "not a window: something comes after its end mark");
    }

    #[test]
    fn sizes_are_bounded_before_anything_is_written() {
        let mut tar = tar::Builder::new(Vec::new());
        entry(&mut tar, EntryType::Regular, "samples.parquet", b"x", u64::MAX);
        let text = reason(&tar.into_inner().unwrap());
        assert!(text.contains("more than 1048576 bytes") || text.contains("size"), "{text}");
        let half = vec![0; 600 << 10];
        let text = reason(&tar_of(&[("vms.parquet", &half), ("vcpus.parquet", &half)]));
        assert_eq!(text, "not a window: its files have more than 1048576 bytes");
    }
}
