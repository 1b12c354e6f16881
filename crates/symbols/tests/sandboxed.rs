//! Files that stop the process that reads them, or make it lie: each costs its own names. This program is that process, too:
//! it stands for a reader that such files have taken over.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::guest::Response;
use api::symbols::{FileFunctions, InvalidAnswer, SymbolAnswer, SymbolQuestion};
use guest::{AnswerError, AnswerReader};
use model::{Module, ModuleId, Owner, SymbolName, VmId};
use sandbox::{Parser, Sandbox};
use symbols::{
    Function, FunctionTable, GuestChild, GuestSource, HostSource, KernelNames, Place, Source,
    SymbolReader,
};

fn main() -> ExitCode {
    if let Some(code) = sandbox::serve::<TakenOver>() {
        return code;
    }
    a_file_costs_its_own_names();
    an_owner_costs_its_own_files();
    an_owner_is_a_user_and_root_one_for_each_file_system();
    a_guests_names_stay_as_they_are();
    a_guests_answer_costs_itself();
    ExitCode::SUCCESS
}

/// Does what the file's text says.
struct TakenOver;

impl Parser for TakenOver {
    type Question = SymbolQuestion;
    type Answer = SymbolAnswer;
    const NAME: &'static str = SymbolReader::NAME;

    fn start() -> Self {
        Self
    }

    fn answer(&mut self, question: &SymbolQuestion, files: &[&File]) -> SymbolAnswer {
        let mut text = String::new();
        for mut file in files.iter().copied() {
            file.read_to_string(&mut text).unwrap();
        }
        let places = match question {
            SymbolQuestion::Functions { places, .. } => places,
            SymbolQuestion::Readable(names) if names.contains(&"_Zcrash".to_owned()) => {
                std::process::abort()
            }
            SymbolQuestion::Readable(_) => {
                return SymbolAnswer::Readable(vec!["\u{1b}readable".to_owned()]);
            }
            SymbolQuestion::BuildId => return SymbolAnswer::BuildId(None),
            SymbolQuestion::GuestAnswer(content) => {
                return match &content[..] {
                    b"crash" => std::process::abort(),
                    b"stall" => loop {
                        std::thread::park();
                    },
                    b"other" => SymbolAnswer::BuildId(None),
                    b"lie" => SymbolAnswer::GuestAnswer(Err(InvalidAnswer::Version(7))),
                    _ => SymbolAnswer::GuestAnswer(Ok(Response::Error("fine".to_owned()))),
                };
            }
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
                return SymbolAnswer::Functions { read_bytes: u64::MAX, functions };
            }
            "other" => return SymbolAnswer::BuildId(Some(vec![1])),
            other => (other, 0, n),
        };
        let functions = FileFunctions {
            names: vec![name.to_owned()],
            at_places: vec![Some(number); n],
            missing: None,
        };
        SymbolAnswer::Functions { read_bytes: 1, functions: Ok(functions) }
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
        self.file_below(self.folder.path(), text)
    }

    fn file_below(&self, folder: &Path, text: &str) -> PathBuf {
        let path = folder.join(self.places.len().to_string());
        std::fs::write(&path, text).unwrap();
        path
    }

    /// What is shown for the second of two places in a file.
    fn ask(&mut self, path: &Path) -> String {
        let id = ModuleId::from_index(self.places.len());
        // Through its mapping, in its process' root, and in ours.
        self.places.insert(id, vec![Place::from(path); 3]);
        self.source.reuse(self.places.clone());
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

const REFUSED: &str = "other files of its owner stopped the process that reads them";

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
    assert_eq!(files.ask(&path), REFUSED);
    let path = files.file("main");
    if let Err(error) = std::os::unix::fs::chown(&path, Some(65534), None) {
        return skip::skip(format_args!("another owner needs root: {error}"));
    }
    assert_eq!(files.ask(&path), "main");
}

/// Users may mount file systems of their own in user namespaces, as many as they like. Containers' root is the host's, but has
/// other file systems.
fn an_owner_is_a_user_and_root_one_for_each_file_system() {
    let (disk, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let device = |folder: &tempfile::TempDir| std::fs::metadata(folder.path()).unwrap().dev();
    if device(&disk) == device(&memory) || !rustix::process::geteuid().is_root() {
        return skip::skip("needs root and two file systems");
    }
    for (user, expected) in [(65534, REFUSED), (0, "main")] {
        let mut files = Files::new();
        let mut ask = |folder: &tempfile::TempDir, text| {
            let path = files.file_below(folder.path(), text);
            std::os::unix::fs::chown(&path, Some(user), None).unwrap();
            files.ask(&path)
        };
        for _ in 0..3 {
            assert!(ask(&disk, "crash").contains("SIGABRT"));
        }
        assert_eq!(ask(&memory, "main"), expected, "user {user}");
    }
}

fn a_guests_names_stay_as_they_are() {
    let names = |first: &str| {
        let function = |offset, name: &str| Function { offset, size: 16, name: name.to_owned() };
        let table = FunctionTable::new([function(0, first), function(16, "plain\n")]);
        let mut source = GuestSource::default();
        source.modules.insert(ModuleId(0), Ok(table));
        let module = Module { owner: Owner::Vm(VmId(0)), path: "/a".into(), build_id: None };
        source.names(ModuleId(0), &module, &[1, 17, 40])
    };
    let shown = |first: &str| {
        let function = |name: &str| SymbolName::Function(name.to_owned());
        [function(first), function("plain\u{fffd}"), SymbolName::Stripped]
    };
    assert_eq!(names("_Zcrash"), shown("_Zcrash"));
    assert_eq!(names("_Zfine"), shown("\u{fffd}readable"));
    // One name that is longer than what is demangled needs no child.
    let long = format!("_Z{}", "x".repeat(5000));
    let cut: String = long.chars().take(511).chain(['…']).collect();
    assert_eq!(names(&long), shown(&cut));
}

fn a_guests_answer_costs_itself() {
    let second = std::time::Duration::from_secs(1);
    let mut child = GuestChild::with_sandbox(Sandbox::default().with_max_time(second));
    let mut other = GuestChild::default();
    let fine = Ok(Response::Error("fine".to_owned()));
    let unread = |reason: &str| Err(AnswerError::Unread(reason.to_owned()));
    assert_eq!(other.read(b"answer".to_vec()), fine);
    let others = other.process();
    for (attack, expected) in [
        ("crash", unread("the process that parsed it was stopped by SIGABRT (out of memory?)")),
        ("stall", unread("reading it took more than 1 s")),
        ("other", unread("the process that parsed it sent no valid answer")),
        ("lie", Err(AnswerError::Invalid(InvalidAnswer::Version(7)))),
    ] {
        assert_eq!(child.read(attack.as_bytes().to_vec()), expected, "{attack}");
        // Another guest's child never hears of it, and this one's has a successor.
        assert_eq!(other.read(b"answer".to_vec()), fine, "beside {attack}");
        assert_eq!(child.clone().read(b"answer".to_vec()), fine, "after {attack}");
    }
    assert!(others.is_some() && other.process() == others && child.process() != others);
}
