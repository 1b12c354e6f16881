//! The rules of ARCHITECTURE.md that a machine can check, for every package of the workspace. A package says in its
//! Cargo.toml which layer it belongs to: `package.metadata.layer`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::root;
use serde_json::Value;

struct Package {
    name: String,
    folder: PathBuf,
    layer: String,
    /// Golden files of what it serializes, from the repository's root on.
    golden: Vec<PathBuf>,
    /// Names of the packages it depends on other than for its tests and its build.
    dependencies: BTreeSet<String>,
}

impl Package {
    fn from_metadata(package: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_normal = |dependency: &&Value| dependency["kind"].is_null();
        let dependencies = package["dependencies"].as_array().unwrap().iter().filter(is_normal);
        Self {
            name: text(&package["name"]),
            folder: Path::new(package["manifest_path"].as_str().unwrap())
                .parent()
                .unwrap()
                .to_owned(),
            layer: text(&package["metadata"]["layer"]),
            golden: package["metadata"]["golden"]
                .as_array()
                .map_or(Vec::new(), |files| files.iter().map(|file| text(file).into()).collect()),
            dependencies: dependencies.map(|dependency| text(&dependency["name"])).collect(),
        }
    }

    /// Its programs' and its library's text, with the paths of the files.
    fn sources(&self) -> Vec<(PathBuf, String)> {
        sources(&self.folder.join("src"))
    }

    /// The same, and its tests'.
    fn sources_and_tests(&self) -> Vec<(PathBuf, String)> {
        let tests = self.folder.join("tests");
        let tests = if tests.is_dir() { sources(&tests) } else { Vec::new() };
        self.sources().into_iter().chain(tests).collect()
    }
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(Package::from_metadata).collect()
}

fn packages_of(layers: &[&str]) -> Vec<Package> {
    packages().into_iter().filter(|package| layers.contains(&package.layer.as_str())).collect()
}

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// Layers whose crates do I/O, and those below them.
const EDGE: &[&str] =
    &["core", "format", "base", "kernel", "guest", "record", "fleet", "labs", "place"];

/// What a layer may depend on; `None`: there is no such layer.
fn may_use(layer: &str) -> Option<&'static [&'static str]> {
    match layer {
        "core" => Some(&["core"]),
        "format" => Some(&["core", "format"]),
        "base" => Some(&["core", "format", "base"]),
        "kernel" => Some(&["core", "format", "base", "kernel"]),
        "guest" => Some(&["core", "format", "base", "kernel", "guest"]),
        "record" => Some(&["core", "format", "base", "kernel", "guest", "record"]),
        "fleet" => Some(&["core", "format", "base", "kernel", "guest", "record", "fleet"]),
        "labs" => Some(&["core", "format", "base", "kernel", "guest", "record", "labs"]),
        "place" => Some(&["core", "format", "base", "kernel", "place"]),
        "bin" => Some(EDGE),
        "test" => Some(&["test"]),
        _ => None,
    }
}

#[test]
fn packages_depend_on_their_layer_and_those_below() {
    let packages = packages();
    for package in &packages {
        let Some(allowed) = may_use(&package.layer) else {
            panic!("{}: no layer `{}`: set package.metadata.layer", package.name, package.layer);
        };
        for used in packages.iter().filter(|other| package.dependencies.contains(&other.name)) {
            let (name, layer) = (&package.name, &package.layer);
            let fits = allowed.contains(&used.layer.as_str());
            assert!(fits, "{name} ({layer}) depends on {} ({})", used.name, used.layer);
        }
    }
}

#[test]
fn architecture_names_exactly_the_packages_and_their_layers() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut named = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let Some((path, text)) = row.split_once("` | ") else { continue };
        if root().join(path).join("Cargo.toml").exists() {
            let layer = text.split_once(": ").map_or("", |(layer, _)| layer);
            let layer = if path.starts_with("bin/") { "bin" } else { layer };
            let layer = if path.starts_with("tests/") { "test" } else { layer };
            named.insert((path.to_owned(), layer.to_owned()));
        }
    }
    let path =
        |package: &Package| package.folder.strip_prefix(root()).unwrap().display().to_string();
    let listed = packages().iter().map(|package| (path(package), package.layer.clone())).collect();
    assert_eq!(named, listed);
}

#[test]
fn only_probes_knows_libbpf() {
    for package in packages() {
        let knows = package.dependencies.iter().any(|name| name.starts_with("libbpf"));
        assert!(!knows || package.name == "probes", "{} depends on libbpf", package.name);
    }
}

#[test]
fn only_query_knows_the_query_engine() {
    for package in packages() {
        let knows = package.dependencies.iter().any(|name| name.starts_with("datafusion"));
        assert!(!knows || package.name == "query", "{} depends on the engine", package.name);
    }
}

/// What derives `Serialize` leaves the program, in a file or a message: a golden file shows a change of the form.
#[test]
fn what_is_serialized_has_golden_files_that_tests_compare() {
    let packages = packages();
    let sources = packages.iter().flat_map(Package::sources_and_tests);
    let sources: Vec<String> = sources.map(|(_, source)| source).collect();
    for package in &packages {
        let derives = package.sources().iter().any(|(_, source)| derives_serialize(source));
        let has_golden = !package.golden.is_empty();
        assert_eq!(derives, has_golden, "{}: set package.metadata.golden", package.name);
        for file in &package.golden {
            assert!(root().join(file).is_file(), "{}: {}", package.name, file.display());
            let name = file.file_name().unwrap().to_str().unwrap();
            let is_compared = sources.iter().any(|source| source.contains(name));
            assert!(is_compared, "{}: no test has {}", package.name, file.display());
        }
    }
}

fn derives_serialize(source: &str) -> bool {
    let mut derives = source.split("derive(").skip(1).filter_map(|rest| rest.split(')').next());
    derives.any(|traits| traits.split(',').any(|name| name.trim().ends_with("Serialize")))
}

#[test]
fn core_and_format_crates_forbid_unsafe_code() {
    for package in packages_of(&["core", "format"]) {
        let lib = std::fs::read_to_string(package.folder.join("src/lib.rs")).unwrap();
        assert!(lib.contains("\n#![forbid(unsafe_code)]\n"), "{}", package.name);
    }
}

/// Clippy checks them by the methods and types that this file disallows.
#[test]
fn core_crates_are_linted_for_io_and_clocks() {
    let lints = std::fs::read_to_string(root().join("tests/core-clippy.toml")).unwrap();
    for package in packages_of(&["core"]) {
        let own = std::fs::read_to_string(package.folder.join("clippy.toml")).unwrap_or_default();
        let link = "ln -s ../../tests/core-clippy.toml clippy.toml";
        assert_eq!(own, lints, "{}: no lints against I/O: {link}", package.name);
        for (path, source) in package.sources() {
            let allows = source.contains("clippy::disallowed_");
            assert!(
                !allows || is_test(&path),
                "{} allows what a core crate must not do",
                path.display()
            );
        }
    }
}

fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default();
    name == "test" || name == "tests" || path.iter().any(|part| part == "tests")
}

/// `eprintln!` panics when nothing reads standard error any more, and ends a thread, or a recording.
#[test]
fn programs_do_not_panic_without_a_reader() {
    for package in packages_of(&[&EDGE[2..], &["bin"]].concat()) {
        for (path, source) in package.sources() {
            let program = source.split("#[cfg(test)]").next().unwrap_or_default();
            let panics = ["eprintln!(", "eprint!("].into_iter().any(|text| program.contains(text));
            assert!(!panics || is_test(&path), "{}: use `say!` or `writeln!`", path.display());
        }
    }
}

#[test]
fn every_package_has_the_workspace_lints() {
    for package in packages() {
        let manifest = std::fs::read_to_string(package.folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", package.name);
    }
}

/// Public items have a doc comment, and files one about themselves. Fields and variants may leave it to their names.
#[test]
fn public_items_are_documented() {
    let mut found = Vec::new();
    for package in packages_of(&[EDGE, &["bin"]].concat()) {
        for (path, source) in package.sources().into_iter().filter(|(path, _)| !is_test(path)) {
            if !source.starts_with("//!") {
                found.push(format!("{}: no `//!`", path.display()));
            }
            let items = undocumented(&source);
            found.extend(items.iter().map(|item| format!("{}: {item}", path.display())));
        }
    }
    assert!(found.is_empty(), "write what it is or does:\n{}", found.join("\n"));
}

/// First lines of the public items without a doc comment. A `pub mod name;` has it in its own file.
fn undocumented(source: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut documented, mut in_attribute) = (false, false);
    for line in source.lines().map(str::trim) {
        if in_attribute || line.starts_with("#[") {
            documented |= line.starts_with("#[doc");
            in_attribute = !line.ends_with(']');
            continue;
        }
        let has_own_file = line.starts_with("pub mod ") && line.ends_with(';');
        if is_public_item(line) && !documented && !has_own_file {
            items.push(line);
        }
        documented = line.starts_with("///") || line.starts_with("$(#[");
    }
    items
}

fn is_public_item(line: &str) -> bool {
    const ITEMS: [&str; 12] = [
        "fn", "struct", "enum", "union", "trait", "mod", "type", "static", "const", "async",
        "unsafe", "extern",
    ];
    let mut words = line.split(' ');
    words.next() == Some("pub") && words.next().is_some_and(|word| ITEMS.contains(&word))
}

#[test]
fn undocumented_items_are_found() {
    let source = "/// Why.\n#[allow(\n    dead_code\n)]\npub const fn a() {\n}\npub unsafe fn b() {\n\
                  pub name: String,\npub use c;\npub mod d;\n#[must_use]\npub struct E;\n";
    assert_eq!(undocumented(source), ["pub unsafe fn b() {", "pub struct E;"]);
}

/// Words that make persons of programs, or hide who acts. A guest is queried and reports; a CPU without a task is idle.
const WORDS: [&str; 5] = ["told", "asked", "whoever", "nobody", "somebody"];

/// Names that stay: a folder of the fleet's store, the user of /etc/passwd, and a pipe of a measured command.
const NAMES_OF_OTHERS: [&str; 4] = ["told/v1", "nobody:x:65534:65534:nobody:", "<asked", ">asked"];

const TEXTS: [&str; 12] = ["rs", "c", "h", "S", "js", "ts", "tsx", "css", "md", "toml", "sh", "py"];

#[test]
fn code_and_docs_make_no_persons_of_programs() {
    let folders =
        "bin boot bpf crates deploy docs fuzz scenarios tests ui/bench ui/src ui/tests workloads";
    let mut files: Vec<PathBuf> = files_below(&root(), 1);
    files.extend(folders.split(' ').flat_map(|name| files_below(&root().join(name), usize::MAX)));
    files.retain(|path| {
        path.extension().is_some_and(|found| TEXTS.iter().any(|text| found == *text))
    });
    let this = Path::new(file!()).file_name();
    let mut found = Vec::new();
    for path in files.iter().filter(|path| path.file_name() != this) {
        let text = std::fs::read_to_string(path).unwrap();
        for (line, text) in text.lines().enumerate() {
            let own =
                NAMES_OF_OTHERS.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
            if words(&own).iter().any(|word| WORDS.contains(&word.as_str())) {
                found.push(format!("{}:{}: {text}", path.display(), line + 1));
            }
        }
    }
    assert!(found.is_empty(), "say who does what:\n{}", found.join("\n"));
}

fn files_below(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    if 1 < levels {
        files.extend(folders.iter().flat_map(|folder| files_below(folder, levels - 1)));
    }
    files
}

/// Words of a text in small letters; parts of an identifier are words.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in text.chars() {
        let begins = letter.is_uppercase() && before.is_lowercase();
        if begins || !letter.is_alphabetic() {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

#[test]
fn words_of_identifiers_are_found() {
    let found = |text: &str| words(text).iter().any(|word| WORDS.contains(&word.as_str()));
    for text in ["struct ToldMap;", "is_asked(x)", "// Nobody reads it.", "NOBODY", "notAsked"] {
        assert!(found(text), "{text}");
    }
    assert!(!found("toldest masked tasked"));
}

#[test]
fn derives_are_found() {
    assert!(derives_serialize("#[derive(Debug, serde::Serialize)]"));
    assert!(derives_serialize("#[derive(\n    Serialize,\n    Clone,\n)]"));
    assert!(!derives_serialize("#[derive(Deserialize)] // not Serialize, though"));
}
