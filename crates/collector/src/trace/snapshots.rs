//! Traces that a flight recorder writes while it goes on.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use model::{HostNs, MachineId, TraceTables};
use recording::trace::{TraceHeader, TraceSummary, TraceWriter, partial_path};

use super::flight::HeldEvents;

/// How many names are tried for a snapshot.
const MAX_NUMBER: u32 = 100_000;

/// What a flight recorder holds at a moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) header: TraceHeader,
    pub(super) tables: TraceTables,
    pub(super) held: Vec<(MachineId, HeldEvents)>,
    pub(super) end: HostNs,
}

/// The snapshot that is being written, if one is. One at a time: each holds memory of its own.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    under_way: Option<JoinHandle<String>>,
    is_wanted: bool,
    refused: Option<String>,
}

impl Snapshots {
    /// Whether one is to begin now. One that is wanted while another is being written begins after it.
    pub(super) fn begins(&mut self, is_wanted: bool) -> bool {
        self.is_wanted |= is_wanted;
        let begins = self.is_wanted && self.under_way.is_none();
        self.is_wanted &= !begins;
        begins
    }

    /// It can't be written.
    pub(super) fn refuse(&mut self, why: &str) {
        self.refused = Some(format!("nothing was written: {why}"));
    }

    /// Begins to write it to `OUTPUT.N`.
    pub(super) fn write(&mut self, output: &Path, snapshot: Snapshot) {
        let output = output.to_owned();
        self.under_way = Some(std::thread::spawn(move || match free_path(&output) {
            Some(path) => written(&path, snapshot.write(&path)),
            None => format!("nothing was written: no name {}.N is free", output.display()),
        }));
    }

    /// How the last one went, once.
    pub(super) fn line(&mut self) -> Option<String> {
        let ended = self.under_way.take_if(|thread| thread.is_finished());
        ended.and_then(line).or_else(|| self.refused.take())
    }

    /// The same, when it has ended.
    pub(super) fn end(&mut self) -> Option<String> {
        self.under_way.take().and_then(line).or_else(|| self.refused.take())
    }
}

fn line(thread: JoinHandle<String>) -> Option<String> {
    match thread.join() {
        Ok(line) => Some(line),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn written(path: &Path, result: Result<TraceSummary, recording::Error>) -> String {
    match result {
        Ok(summary) => format!("{}: {} events", path.display(), summary.events),
        Err(error) => format!("failed to write {}: {}", path.display(), model::error_chain(&error)),
    }
}

fn free_path(output: &Path) -> Option<PathBuf> {
    let numbered = |n: u32| {
        let mut name = output.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let is_free = |path: &PathBuf| {
        !path.exists() && partial_path(path).is_none_or(|partial| !partial.exists())
    };
    (1..MAX_NUMBER).map(numbered).find(is_free)
}

impl Snapshot {
    fn write(&self, path: &Path) -> Result<TraceSummary, recording::Error> {
        let writer = TraceWriter::create(path, &self.header, &self.tables)?;
        for (machine, held) in &self.held {
            held.write(*machine, &writer, self.end)?;
        }
        writer.finish(&self.header, &self.tables)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_that_are_free() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("slow");
        let check = |expected: &str| {
            assert_eq!(free_path(&output), Some(folder.path().join(expected)));
        };
        check("slow.1");
        std::fs::create_dir(folder.path().join("slow.1")).unwrap();
        check("slow.2");
        std::fs::create_dir(partial_path(&folder.path().join("slow.2")).unwrap()).unwrap();
        check("slow.3");
    }
}
