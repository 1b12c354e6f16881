//! Files that stop the process that reads them, or make it lie: each costs its own names. This program is that process, too:
//! it stands for a reader that such files have taken over.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::files::{FileAnswer, FileFunctions, FileQuestion};
use model::{Module, ModuleId, Owner, SymbolName};
use sandbox::Parser;
use symbols::{FileReader, HostSource, KernelNames, Place, Source};

fn main() -> ExitCode {
    if let Some(code) = sandbox::serve::<TakenOver>() {
        return code;
    }
    a_file_costs_its_own_names();
    an_owner_costs_its_own_files();
    ExitCode::SUCCESS
}

/// Does what the file's text says.
struct TakenOver;

impl Parser for TakenOver {
    type Question = FileQuestion;
    type Answer = FileAnswer;
    const NAME: &'static str = FileReader::NAME;

    fn start() -> Self {
        Self
    }

    fn answer(&mut self, question: &FileQuestion, files: &[&File]) -> FileAnswer {
        let mut text = String::new();
        let mut file = files[0];
        file.read_to_string(&mut text).unwrap();
        let FileQuestion::Functions { places, .. } = question else {
            return FileAnswer::BuildId(None);
        };
        let n = places.len();
        let (name, number, n) = match text.as_str() {
            "crash" => std::process::abort(),
            "escape" => ("\u{1b}[31mred", 0, n),
            "long" => (&*"x".repeat(100_000), 0, n),
            "beyond" => ("name", 7, n),
            "few" => ("name", 0, n - 1),
            "many" => ("name", 0, n + 1),
            "reason" => {
                let functions = Err("\u{1b}[31m".repeat(1000));
                return FileAnswer::Functions { read_bytes: u64::MAX, functions };
            }
            "other" => return FileAnswer::BuildId(Some(vec![1])),
            other => (other, 0, n),
        };
        let functions = FileFunctions {
            names: vec![name.to_owned()],
            at_places: vec![Some(number); n],
            missing: None,
        };
        FileAnswer::Functions { read_bytes: 1, functions: Ok(functions) }
    }
}

struct Files {
    folder: tempfile::TempDir,
    source: HostSource,
    places: BTreeMap<ModuleId, Vec<Place>>,
}

impl Files {
    fn new() -> Self {
        let source = HostSource::new(KernelNames::default());
        Self { folder: tempfile::tempdir().unwrap(), source, places: BTreeMap::new() }
    }

    /// A new file of this text.
    fn file(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join(self.places.len().to_string());
        std::fs::write(&path, text).unwrap();
        path
    }

    /// What is shown for the second of two places in a file.
    fn ask(&mut self, path: &Path) -> String {
        let id = ModuleId::from_index(self.places.len());
        // Through its mapping, in its process' root, and in ours.
        self.places.insert(id, vec![Place::from(path); 3]);
        self.source.go_on(self.places.clone());
        let module = Module { owner: Owner::Host, path: "/program".into(), build_id: None };
        match self.source.names(id, &module, &[1, 2]).pop().unwrap() {
            SymbolName::Function(name) => name,
            SymbolName::Stripped => "(stripped)".to_owned(),
            SymbolName::Unreadable(reason) => reason,
        }
    }
}

fn a_file_costs_its_own_names() {
    let mut files = Files::new();
    let nonsense = "the process that parsed it sent no valid answer";
    let cut = |text: &str| text.chars().take(511).chain(['…']).collect::<String>();
    for (attack, expected) in [
        ("crash", "the process that parsed it was stopped by SIGABRT (out of memory?)"),
        ("escape", "\u{fffd}[31mred"),
        ("long", &cut(&"x".repeat(600))),
        ("beyond", nonsense),
        ("few", nonsense),
        ("many", nonsense),
        ("other", nonsense),
    ] {
        let path = files.file(attack);
        assert_eq!(files.ask(&path), expected, "{attack}");
        let path = files.file("main");
        assert_eq!(files.ask(&path), "main", "after {attack}");
    }
    let path = files.file("reason");
    assert_eq!(files.ask(&path), cut(&"\u{fffd}[31m".repeat(1000)));
}

fn an_owner_costs_its_own_files() {
    let mut files = Files::new();
    let one = files.file("crash");
    // The same file again stops no process.
    for _ in 0..10 {
        assert!(files.ask(&one).contains("SIGABRT"));
    }
    for _ in 0..2 {
        let path = files.file("crash");
        assert!(files.ask(&path).contains("SIGABRT"));
    }
    let path = files.file("main");
    let reason = "other files of its owner stopped the process that reads them";
    assert_eq!(files.ask(&path), reason);
    let path = files.file("main");
    if let Err(error) = std::os::unix::fs::chown(&path, Some(65534), None) {
        return skip::skip(format_args!("another owner needs root: {error}"));
    }
    assert_eq!(files.ask(&path), "main");
}
