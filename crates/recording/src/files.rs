//! Names and durable writing of a recording's files.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::MachineId;
use rustix::fs::OFlags;

use crate::error::Error;
use crate::spool::Place;

pub(crate) const MANIFEST: &str = "recording.json";
pub(crate) const TRACE_MANIFEST: &str = "trace.json";
/// Folder of a trace in the recording of the same seconds.
pub const TRACE_IN_RECORDING: &str = "trace";
pub(crate) const EVENTS: &str = "events.parquet";
pub(crate) const SAMPLES: &str = "samples.parquet";
pub(crate) const SWITCHES: &str = "switches.parquet";
pub(crate) const STACK_SPOOL: &str = "stacks.raw";
pub(crate) const SWITCH_SPOOL: &str = "switches.raw";

/// Where a recording or trace of this final name is while it is written. `None`: it can't be the name of one.
#[must_use]
pub fn partial(path: &Path) -> Option<PathBuf> {
    with_suffix(path, ".partial")
}

/// The spool of a CPU in a recording.
pub(crate) fn cpu_spool((_, cpu): Place) -> String {
    format!("cpu{cpu}.raw")
}

/// The spool of a machine's CPU in a trace.
pub(crate) fn machine_spool((machine, cpu): Place) -> String {
    format!("machine{}-cpu{cpu}.raw", machine.0)
}

/// The spools there are, by whose they are, which gives them their names.
pub(crate) fn find_spools(
    dir: &Path,
    name_of: fn(Place) -> String,
) -> Result<Vec<(Place, PathBuf)>, Error> {
    let failed = |source| Error::io("read", dir, source);
    let mut spools = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let place = name.to_str().and_then(place_of).filter(|place| *name_of(*place) == *name);
        spools.extend(place.map(|place| (place, entry.path())).filter(|(_, path)| path.is_file()));
    }
    spools.sort();
    Ok(spools)
}

fn place_of(name: &str) -> Option<Place> {
    let name = name.strip_suffix(".raw")?;
    let (machine, cpu) = match name.strip_prefix("machine") {
        Some(rest) => rest.split_once('-')?,
        None => ("0", name),
    };
    Some((MachineId(machine.parse().ok()?), cpu.strip_prefix("cpu")?.parse().ok()?))
}

/// Creates a folder for its owner only: what lies in it tells addresses of the kernel and of everybody's processes.
pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// How its files are created: for their owner only, too, wherever they are moved to.
pub(crate) fn owners() -> OpenOptions {
    let mut options = File::options();
    options.write(true).mode(0o600);
    options
}

/// Size and checksum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// Writes a file under a temporary name, counts and sums its bytes; `commit` makes it durable and
/// gives it its name, so that under a file's name there is all of it or nothing. One that is not committed is removed: it
/// would keep a full disk full.
#[derive(Debug)]
pub(crate) struct DurableFile {
    file: BufWriter<File>,
    temporary: Temporary,
    path: PathBuf,
    hasher: crc32fast::Hasher,
    bytes: u64,
}

/// A file that goes when this is dropped.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may have got its name.
        let _ = fs::remove_file(&self.0);
    }
}

impl DurableFile {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let temporary = temporary(path);
        // What a killed writer left goes; where another user can put a link, it is not followed.
        let _ = fs::remove_file(&temporary);
        let file = owners().create_new(true).open(&temporary);
        let file = file.map_err(|e| Error::io("create", path, e))?;
        Ok(Self {
            file: BufWriter::new(file),
            temporary: Temporary(temporary),
            path: path.to_owned(),
            hasher: crc32fast::Hasher::new(),
            bytes: 0,
        })
    }

    pub(crate) fn commit(mut self) -> Result<Digest, Error> {
        let path = &self.path;
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| fs::rename(&self.temporary.0, path))
            .map_err(|source| Error::io("write", path, source))?;
        Ok(Digest { bytes: self.bytes, crc32: self.hasher.finalize() })
    }
}

impl Write for DurableFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn temporary(path: &Path) -> PathBuf {
    with_suffix(path, ".tmp").expect("every file of a recording has a name")
}

fn with_suffix(path: &Path, suffix: &str) -> Option<PathBuf> {
    let mut name = OsString::from(path.file_name()?);
    name.push(suffix);
    Some(path.with_file_name(name))
}

/// Opens a file of a recording, whatever made it: no FIFO is waited for.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    let failed = |source| Error::io("read", path, source);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        return Ok(file);
    }
    Err(Error::damaged(path, "it is no regular file"))
}

/// Size and checksum of what is there.
pub(crate) fn digest(path: &Path) -> Result<Digest, Error> {
    let failed = |source| Error::io("read", path, source);
    let mut file = open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            return Ok(Digest { bytes, crc32: hasher.finalize() });
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("write", dir, e))
}
