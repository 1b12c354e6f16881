//! `recording.json`: format version, header, and what files there are.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use model::{Header, HostNs, Note, OffCpuSource, Trigger, Vendor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Folder};
use crate::files::{self, Digest, DurableFile};

/// The format this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Its size at most.
const MAX_BYTES: u64 = 1 << 24;

/// What `recording.json` says of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    crc32: String,
}

impl FileEntry {
    pub(crate) fn new(rows: u64, digest: Digest) -> Self {
        Self { rows, bytes: digest.bytes, crc32: format!("{:08x}", digest.crc32) }
    }

    pub(crate) fn matches(&self, digest: Digest) -> bool {
        Self::new(self.rows, digest) == *self
    }
}

pub(crate) type Files = BTreeMap<String, FileEntry>;

/// A manifest that was read.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) header: Header,
    pub(crate) files: Files,
    /// From before there were switches, exits and throttling: their tables are not there.
    pub(crate) first_tables_only: bool,
}

/// A folder's kind, as its manifest names it.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) folder: Folder,
    pub(crate) name: &'static str,
    /// The version this program writes, and the newest it reads.
    pub(crate) version: u32,
}

const RECORDING: Format =
    Format { folder: Folder::Recording, name: "vmscope-recording", version: FORMAT_VERSION };

/// Writes the manifest, durably and at once.
pub(crate) fn write(dir: &Path, header: &Header, files: &Files) -> Result<u64, Error> {
    let manifest = Manifest { kind: RECORDING.kind(), header: header.into(), files: files.clone() };
    RECORDING.write(dir, &manifest)
}

/// Reads the manifest of a folder that has one.
pub(crate) fn read(dir: &Path) -> Result<Contents, Error> {
    let manifest: Manifest = RECORDING.read(dir)?;
    let first_tables_only = manifest.header.edges.is_none();
    Ok(Contents { header: manifest.header.into(), files: manifest.files, first_tables_only })
}

impl Format {
    /// What stands first in a manifest of this format.
    pub(crate) fn kind(&self) -> Kind {
        Kind { format: self.name.to_owned(), version: self.version.into() }
    }

    /// Writes a manifest, durably and at once: its bytes.
    pub(crate) fn write(&self, dir: &Path, manifest: &impl Serialize) -> Result<u64, Error> {
        let path = dir.join(self.folder.manifest());
        let text = serde_json::to_string_pretty(manifest)
            .map_err(|error| Error::Encode { path: path.clone(), reason: error.to_string() })?;
        let mut file = DurableFile::create(&path)?;
        writeln!(file, "{text}").map_err(|source| Error::io("write", &path, source))?;
        Ok(file.commit()?.bytes)
    }

    /// Reads a manifest of this format.
    pub(crate) fn read<T: DeserializeOwned>(&self, dir: &Path) -> Result<T, Error> {
        let path = dir.join(self.folder.manifest());
        let failed = |source| Error::io("read", &path, source);
        let mut text = Vec::new();
        let file = files::open(&path)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
        if MAX_BYTES < text.len() as u64 {
            return Err(Error::damaged(&path, "it is too large"));
        }
        self.parse(dir, &text)
    }

    fn parse<T: DeserializeOwned>(&self, dir: &Path, text: &[u8]) -> Result<T, Error> {
        let (folder, file) = (self.folder, self.folder.manifest());
        let damaged = |error: serde_json::Error| Error::damaged(&dir.join(file), error.to_string());
        let foreign = |reason| Error::Foreign { path: dir.to_owned(), folder, reason };
        let kind: Kind = serde_json::from_slice(text).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => foreign(format!("its {file} names no format")),
            _ => damaged(error),
        })?;
        if kind.format != self.name {
            return Err(foreign(format!("its {file} says {:?}", kind.format)));
        }
        if kind.version == 0 {
            return Err(Error::damaged(&dir.join(file), "it says version 0"));
        }
        if u64::from(self.version) < kind.version {
            let (found, supported) = (kind.version, self.version);
            return Err(Error::NewerVersion { path: dir.to_owned(), folder, found, supported });
        }
        let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
        if !is_plausible("", &value) {
            return Err(Error::damaged(&dir.join(file), "one of its numbers is too large"));
        }
        serde_json::from_value(value).map_err(damaged)
    }
}

/// Whether sums of its numbers are numbers: times are from this century, and nothing else is counted so far.
fn is_plausible(name: &str, value: &serde_json::Value) -> bool {
    use serde_json::Value;
    let most = if name.ends_with("_ns") { HostNs::MAX.0 } else { 1 << 53 };
    match value {
        Value::Number(number) => number.as_u64().is_none_or(|number| number <= most),
        Value::Array(values) => values.iter().all(|value| is_plausible(name, value)),
        Value::Object(members) => members.iter().all(|(name, value)| is_plausible(name, value)),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Read first: what later versions keep, whatever else they change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kind {
    format: String,
    version: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    #[serde(flatten)]
    kind: Kind,
    #[serde(flatten)]
    header: HeaderJson,
    files: Files,
}

#[derive(Debug, Serialize, Deserialize)]
struct HeaderJson {
    vmscope_version: String,
    hostname: String,
    kernel: String,
    /// Absent in recordings of version 0.2 and before.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
    vendor: VendorJson,
    trigger: TriggerJson,
    period_ns: u64,
    /// Absent: from before there were switches, exits and throttling.
    edges: Option<EdgesJson>,
    cpus: Vec<u32>,
    start_ns: u64,
    end_ns: u64,
    start_unix_ns: u64,
    complete: bool,
    counters: BTreeMap<String, u64>,
    notes: Vec<NoteJson>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NoteJson {
    subject: String,
    text: String,
}

impl From<&Note> for NoteJson {
    fn from(note: &Note) -> Self {
        Self { subject: note.subject.clone(), text: note.text.clone() }
    }
}

impl From<NoteJson> for Note {
    fn from(json: NoteJson) -> Self {
        Self { subject: json.subject, text: json.text }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum VendorJson {
    Amd,
    Intel,
    Other,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TriggerJson {
    CpuClock,
    Cycles,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EdgesJson {
    Samples,
    Switches,
}

impl From<&Header> for HeaderJson {
    fn from(header: &Header) -> Self {
        Self {
            vmscope_version: header.vmscope_version.clone(),
            hostname: header.hostname.clone(),
            kernel: header.kernel.clone(),
            boot_id: header.boot.map(|boot| boot.to_string()),
            vendor: match header.vendor {
                Vendor::Amd => VendorJson::Amd,
                Vendor::Intel => VendorJson::Intel,
                Vendor::Other => VendorJson::Other,
            },
            trigger: match header.trigger {
                Trigger::CpuClock => TriggerJson::CpuClock,
                Trigger::Cycles => TriggerJson::Cycles,
            },
            period_ns: header.period_ns,
            edges: Some(match header.off_cpu_source {
                OffCpuSource::Samples => EdgesJson::Samples,
                OffCpuSource::Switches => EdgesJson::Switches,
            }),
            cpus: header.cpus.clone(),
            start_ns: header.start.0,
            end_ns: header.end.0,
            start_unix_ns: header.start_unix_ns,
            complete: header.complete,
            counters: header.counters.clone(),
            notes: header.notes.iter().map(NoteJson::from).collect(),
        }
    }
}

impl From<HeaderJson> for Header {
    fn from(json: HeaderJson) -> Self {
        Self {
            vmscope_version: json.vmscope_version,
            hostname: json.hostname,
            kernel: json.kernel,
            boot: json.boot_id.and_then(|boot| boot.parse().ok()),
            vendor: match json.vendor {
                VendorJson::Amd => Vendor::Amd,
                VendorJson::Intel => Vendor::Intel,
                VendorJson::Other => Vendor::Other,
            },
            trigger: match json.trigger {
                TriggerJson::CpuClock => Trigger::CpuClock,
                TriggerJson::Cycles => Trigger::Cycles,
            },
            period_ns: json.period_ns,
            off_cpu_source: match json.edges {
                None | Some(EdgesJson::Samples) => OffCpuSource::Samples,
                Some(EdgesJson::Switches) => OffCpuSource::Switches,
            },
            cpus: json.cpus,
            start: HostNs(json.start_ns),
            end: HostNs(json.end_ns),
            start_unix_ns: json.start_unix_ns,
            complete: json.complete,
            counters: json.counters,
            notes: json.notes.into_iter().map(Note::from).collect(),
        }
    }
}
