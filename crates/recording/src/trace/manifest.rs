//! `trace.json`: format version, header, command, and what files there are.

use std::collections::BTreeMap;
use std::path::Path;

use model::{HostNs, MachineId, Note, Pid, Tid, TraceFilter, TracedCommand};
use serde::{Deserialize, Serialize};

use super::TraceHeader;
use crate::error::{Error, Folder};
use crate::manifest::{Files, Format, Kind, NoteJson};

/// The format of traces this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 3;

const TRACE: Format =
    Format { folder: Folder::Trace, name: "vmscope-trace", version: FORMAT_VERSION };

/// A manifest that was read.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) header: TraceHeader,
    pub(super) command: Option<TracedCommand>,
    pub(super) files: Files,
}

/// Writes the manifest, durably and at once: its bytes.
pub(super) fn write(
    dir: &Path,
    header: &TraceHeader,
    command: Option<&TracedCommand>,
    files: &Files,
) -> Result<u64, Error> {
    let manifest = Manifest {
        kind: TRACE.kind(),
        vmscope_version: header.vmscope_version.clone(),
        hostname: header.hostname.clone(),
        begin_ns: header.begin.0,
        end_ns: header.end.0,
        begin_unix_ns: header.begin_unix_ns,
        complete: header.complete,
        filters: header.filters.iter().cloned().map(FilterJson::from).collect(),
        command: command.map(CommandJson::from),
        counters: header.counters.clone(),
        notes: header.notes.iter().map(NoteJson::from).collect(),
        files: files.clone(),
    };
    TRACE.write(dir, &manifest)
}

/// Reads the manifest of a folder that has one.
pub(super) fn read(dir: &Path) -> Result<Contents, Error> {
    let manifest: Manifest = TRACE.read(dir)?;
    // Of one that is not finished the end is not known.
    if manifest.complete && manifest.end_ns < manifest.begin_ns {
        let path = dir.join(Folder::Trace.manifest());
        return Err(Error::damaged(&path, "it ends before it begins"));
    }
    let header = TraceHeader {
        vmscope_version: manifest.vmscope_version,
        hostname: manifest.hostname,
        begin: HostNs(manifest.begin_ns),
        end: HostNs(manifest.end_ns),
        begin_unix_ns: manifest.begin_unix_ns,
        complete: manifest.complete,
        filters: manifest.filters.into_iter().map(TraceFilter::from).collect(),
        counters: manifest.counters,
        notes: manifest.notes.into_iter().map(Note::from).collect(),
    };
    let command = manifest.command.map(TracedCommand::from);
    Ok(Contents { header, command, files: manifest.files })
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    #[serde(flatten)]
    kind: Kind,
    vmscope_version: String,
    hostname: String,
    begin_ns: u64,
    end_ns: u64,
    begin_unix_ns: u64,
    complete: bool,
    filters: Vec<FilterJson>,
    command: Option<CommandJson>,
    counters: BTreeMap<String, u64>,
    notes: Vec<NoteJson>,
    files: Files,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum FilterJson {
    Typed(TypedFilter),
    /// Version 1: an option of `trace record`.
    Words(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TypedFilter {
    Vm { name: String },
    Command,
    Tree { pid: u32 },
    Cgroup { path: String },
    Other { words: String },
}

impl From<TraceFilter> for FilterJson {
    fn from(filter: TraceFilter) -> Self {
        Self::Typed(match filter {
            TraceFilter::Vm(name) => TypedFilter::Vm { name },
            TraceFilter::Command => TypedFilter::Command,
            TraceFilter::Tree(pid) => TypedFilter::Tree { pid: pid.0 },
            TraceFilter::Cgroup(path) => TypedFilter::Cgroup { path },
            TraceFilter::Other(words) => TypedFilter::Other { words },
        })
    }
}

impl From<FilterJson> for TraceFilter {
    fn from(json: FilterJson) -> Self {
        match json {
            FilterJson::Words(words) => parse_words(words),
            FilterJson::Typed(TypedFilter::Vm { name }) => Self::Vm(name),
            FilterJson::Typed(TypedFilter::Command) => Self::Command,
            FilterJson::Typed(TypedFilter::Tree { pid }) => Self::Tree(Pid(pid)),
            FilterJson::Typed(TypedFilter::Cgroup { path }) => Self::Cgroup(path),
            FilterJson::Typed(TypedFilter::Other { words }) => Self::Other(words),
        }
    }
}

/// A filter as version 1 has it.
fn parse_words(words: String) -> TraceFilter {
    match words.split_once(' ').unwrap_or((&words, "")) {
        ("--only-command", "") => TraceFilter::Command,
        ("--vm", name) => TraceFilter::Vm(name.to_owned()),
        ("--cgroup", path) => TraceFilter::Cgroup(path.to_owned()),
        ("--tree" | "--follow", pid) => match pid.parse() {
            Ok(pid) => TraceFilter::Tree(Pid(pid)),
            Err(_) => TraceFilter::Other(words),
        },
        _ => TraceFilter::Other(words),
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct CommandJson {
    machine: u32,
    tid: u32,
    words: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    before: bool,
    exit_code: Option<i32>,
}

impl From<&TracedCommand> for CommandJson {
    fn from(command: &TracedCommand) -> Self {
        Self {
            machine: command.machine.0,
            tid: command.task.0,
            words: command.words.clone(),
            before: command.before,
            exit_code: command.exit_code,
        }
    }
}

impl From<CommandJson> for TracedCommand {
    fn from(json: CommandJson) -> Self {
        Self {
            machine: MachineId(json.machine),
            task: Tid(json.tid),
            words: json.words,
            before: json.before,
            exit_code: json.exit_code,
        }
    }
}
