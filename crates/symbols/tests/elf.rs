//! Real ELF files, built here, against what `nm` says of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::{BuildId, Module, ModuleId, Owner, SymbolName};
use sandbox::Sandbox;
use symbols::{HostSource, KernelNames, KernelPart, Place, Places, Source};

/// C whose labels are mangled names, so that no C++ compiler is needed.
const C: &str = r#"
int compute(int) __asm__("_ZN4calc7computeEi");
int compute(int x) { return x * 3 + 1; }
int generic(int) __asm__("_ZN5shard4work17h0123456789abcdefE");
int generic(int x) { return x * 5 + 1; }
static __attribute__((noinline)) int hidden(int x) { return x * 7 + 2; }
int plain(int x) { return hidden(x) - 1; }
int main(int argc, char **argv) { return compute(argc) + generic(argc) + plain(argc); }
"#;

struct Built {
    folder: tempfile::TempDir,
}

impl Built {
    /// `None` where there is no compiler that can do it; says so.
    fn new(compiler: &str, source: &str, flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(source);
        let code = if source.ends_with(".rs") { RUST } else { C };
        std::fs::write(&file, code).unwrap();
        let built = Command::new(compiler)
            .args(flags)
            .arg("-o")
            .arg(folder.path().join("program"))
            .arg(&file)
            .stderr(Stdio::null())
            .status();
        if !built.is_ok_and(|status| status.success()) {
            skip::skip(format_args!("{compiler} can't build with {flags:?} here"));
            return None;
        }
        Some(Self { folder })
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Code symbols as `nm` lists them: (name, file offset, size).
    fn nm(&self, options: &[&str]) -> Vec<(String, u64, u64)> {
        let segments = self.segments();
        let output = Command::new("nm").args(options).args(["-S"]).arg(self.program()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let [address, size, "t" | "T", name] = fields[..] else { return None };
                let address = u64::from_str_radix(address, 16).ok()?;
                let size = u64::from_str_radix(size, 16).ok()?;
                let (start, offset, _) = segments
                    .iter()
                    .find(|(start, _, size)| *start <= address && address < start + size)?;
                Some((name.to_owned(), address - start + offset, size))
            })
            .collect()
    }

    /// Loadable segments, from `readelf`: (address, file offset, size).
    fn segments(&self) -> Vec<(u64, u64, u64)> {
        let output = Command::new("readelf").arg("-lW").arg(self.program()).output().unwrap();
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let ["LOAD", offset, address, _, size, ..] = fields[..] else { return None };
                Some((number(address)?, number(offset)?, number(size)?))
            })
            .collect()
    }

    fn build_id(&self) -> Option<BuildId> {
        let output = Command::new("readelf").arg("-n").arg(self.program()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        BuildId::from_hex(text.split("Build ID: ").nth(1)?.split_whitespace().next()?)
    }
}

const RUST: &str = r"
mod inner { pub struct Work; impl Work { #[inline(never)] pub fn run(x: u32) -> u32 { x * 3 + 1 } } }
fn main() { std::process::exit(inner::Work::run(std::env::args().count() as u32) as i32) }
";

/// A source that reads files in this process.
fn source(kernel: KernelNames, places: Places) -> HostSource {
    let mut source = HostSource::new(kernel).with_sandbox(Sandbox::here());
    source.reuse(places);
    source
}

fn name_at(place: &Path, build_id: Option<BuildId>, offset: u64) -> SymbolName {
    let module = Module { owner: Owner::Host, path: "/program".into(), build_id };
    let places = BTreeMap::from([(
        ModuleId(0),
        vec![Place::Known("/nowhere".into()), Place::Known(place.into())],
    )]);
    let mut source = source(KernelNames::default(), places);
    source.names(ModuleId(0), &module, &[offset]).pop().unwrap()
}

/// The first, a middle and the last byte of every function named in `expected` have its name, the byte
/// before the first and the byte after the last don't.
fn check(compiler: &str, source: &str, flags: &[&str], nm: &[&str], expected: &[(&str, &str)]) {
    let Some(built) = Built::new(compiler, source, flags) else { return };
    let truth = built.nm(nm);
    for (mangled, shown) in expected {
        let (_, offset, size) =
            truth.iter().find(|(name, _, _)| name.contains(mangled)).expect(mangled);
        let is = |at: u64| {
            name_at(&built.program(), built.build_id(), at)
                == SymbolName::Function((*shown).to_owned())
        };
        for at in [*offset, offset + size / 2, offset + size - 1] {
            assert!(is(at), "{mangled}+{} with {flags:?}", at - offset);
        }
        assert!(!is(offset - 1) && !is(offset + size), "around {mangled} with {flags:?}");
    }
}

const ALL: &[(&str, &str)] = &[
    ("_ZN4calc7computeEi", "calc::compute(int)"),
    ("_ZN5shard4work17h", "shard::work"),
    ("hidden", "hidden"),
    ("plain", "plain"),
    ("main", "main"),
];

#[test]
fn programs_of_all_kinds() {
    check("cc", "a.c", &["-O1", "-pie", "-fPIE"], &[], ALL);
    check("cc", "a.c", &["-O1", "-no-pie"], &[], ALL);
    check("cc", "a.c", &["-O1", "-static", "-no-pie"], &[], &ALL[..4]);
    check("cc", "a.c", &["-O1", "-static-pie"], &[], &ALL[..4]);
    check("cc", "a.c", &["-O1", "-m32", "-nostdlib", "-Wl,-emain"], &[], ALL);
}

#[test]
fn a_stripped_library_keeps_what_it_exports() {
    let exported: Vec<_> = ALL.iter().filter(|(name, _)| *name != "hidden").copied().collect();
    check("cc", "a.c", &["-O1", "-shared", "-fPIC", "-s"], &["-D"], &exported);
}

#[test]
fn a_stripped_program_says_so() {
    let flags = ["-O1", "-pie", "-fPIE", "-Wl,--build-id=sha1", "-fno-asynchronous-unwind-tables"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let truth = built.nm(&[]);
    let (_, offset, _) = truth.iter().find(|(name, _, _)| name == "plain").unwrap();
    assert!(Command::new("strip").arg(built.program()).status().unwrap().success());
    assert_eq!(name_at(&built.program(), built.build_id(), *offset), SymbolName::Stripped);
}

#[test]
fn rust_programs() {
    // Legacy names can't be requested any more; a C label of `ALL` is one.
    let flags = ["-Copt-level=1", "--crate-name", "program", "-Csymbol-mangling-version=v0"];
    check("rustc", "a.rs", &flags, &[], &[("4Work3run", "<program::inner::Work>::run")]);
}

#[test]
fn a_file_that_changed_gives_no_names() {
    let flags = ["-O1", "-Wl,--build-id=sha1"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let other = BuildId::new(&[7; 20]);
    let SymbolName::Unreadable(reason) = name_at(&built.program(), other, 0x1000) else { panic!() };
    assert_eq!(reason, "file changed since it was mapped");
}

#[test]
fn the_first_place_that_has_the_right_file_is_taken() {
    let flags = ["-O1", "-Wl,--build-id=sha1"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    // As in a container: another program lies under the same path here.
    let root = built.folder.path().join("root/usr/bin");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::copy(built.program(), root.join("program")).unwrap();
    let (_, offset, _) = built.nm(&[]).into_iter().find(|(name, _, _)| name == "plain").unwrap();
    let module =
        Module { owner: Owner::Host, path: "/usr/bin/program".into(), build_id: built.build_id() };
    let places = ["/usr/bin/env".into(), "/dev/zero".into(), root.join("program")];
    let places = places.map(Place::Known).to_vec();
    let places = BTreeMap::from([(ModuleId(3), places)]);
    let mut source = source(KernelNames::default(), places);
    let names = source.names(ModuleId(3), &module, &[offset, offset + 1, 0]);
    let plain = SymbolName::Function("plain".into());
    assert_eq!(names, [plain.clone(), plain, SymbolName::Stripped]);
}

#[test]
fn a_deleted_file_is_read_through_its_mapping() {
    let flags = ["-O1", "-pie", "-fPIE", "-Wl,--build-id=sha1"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let (_, offset, _) = built.nm(&[]).into_iter().find(|(name, _, _)| name == "plain").unwrap();
    let build_id = built.build_id();
    // Copied by a process: a test beside this one would inherit our descriptor, and the file be busy.
    let copy = built.folder.path().join("copy");
    assert!(Command::new("cp").arg("/bin/sleep").arg(&copy).status().unwrap().success());
    let mut child = Command::new(&copy).arg("60").spawn().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let result = std::panic::catch_unwind(|| deleted(child.id(), &copy));
    child.kill().unwrap();
    child.wait().unwrap();
    result.unwrap();
    // And its own path leads nowhere: the reason is said.
    std::fs::remove_file(built.program()).unwrap();
    let SymbolName::Unreadable(reason) = name_at(&built.program(), build_id, offset) else {
        panic!()
    };
    assert_eq!(reason, "its file is gone");
}

fn deleted(pid: u32, copy: &Path) {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    // Until the child has replaced our image by the program's.
    let maps = (0..1000)
        .find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let maps = std::fs::read_to_string(folder.join("maps")).unwrap();
            maps.contains(copy.to_str().unwrap()).then_some(maps)
        })
        .unwrap();
    let line = maps.lines().find(|line| line.contains(copy.to_str().unwrap())).unwrap();
    // `maps` pads addresses with zeros, `map_files` does not.
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let short = |text: &str| text.trim_start_matches('0').to_owned();
    let place = folder.join("map_files").join(format!("{}-{}", short(start), short(end)));
    if let Err(error) = std::fs::File::open(&place) {
        return skip::skip(format_args!("opening {} needs root: {error}", place.display()));
    }
    // Debian strips it: what counts is that the file was read and is the right one.
    assert_eq!(name_at(&place, None, 0), SymbolName::Stripped);
    let SymbolName::Unreadable(reason) = name_at(&place, BuildId::new(&[7; 20]), 0) else {
        panic!()
    };
    assert_eq!(reason, "file changed since it was mapped");
}

#[test]
fn what_has_no_file_says_why() {
    let part = KernelPart { path: "[kernel]".into(), start: 0x1000, end: 0x2000 };
    let kernel = KernelNames::new([(0x1000, "_stext")], [part]);
    let mut source = source(kernel, BTreeMap::new());
    let mut check = |path: &str, expected: &str| {
        let module = Module { owner: Owner::Host, path: path.into(), build_id: None };
        let name = match source.names(ModuleId(0), &module, &[0x10]).pop().unwrap() {
            SymbolName::Function(name) => name,
            SymbolName::Stripped => "(stripped)".into(),
            SymbolName::Unreadable(reason) => reason,
        };
        assert_eq!(name, expected, "{path}");
    };
    check("[kernel]", "_stext");
    check("[anon]", "no file behind this mapping");
    check("/gone", "the process ended before its file was read");
}

#[test]
fn functions_of_the_vdso_have_names() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    if !maps.contains("[vdso]") {
        return skip::skip("this kernel maps no vDSO");
    }
    let module = Module { owner: Owner::Host, path: "[vdso]".into(), build_id: None };
    let mut source = source(KernelNames::default(), BTreeMap::new());
    let offsets: Vec<u64> = (0..0x4000).collect();
    let names = source.names(ModuleId(0), &module, &offsets);
    let getcpu = SymbolName::Function("__vdso_getcpu".into());
    let getcpu_short = SymbolName::Function("getcpu".into());
    assert!(names.iter().any(|name| *name == getcpu || *name == getcpu_short), "{:?}", {
        let mut names = names.clone();
        names.dedup();
        names
    });
}

#[test]
fn garbage_is_no_elf_file() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-pie", "-fPIE"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let whole = std::fs::read(built.program()).unwrap();
    let file = folder.path().join("file");
    let mut seed = 1_u64;
    for round in 0..2000_usize {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = usize::try_from(seed >> 33).unwrap();
            // Mostly the headers: the first 1 KiB and the section headers at the end.
            let at = if random & 1 == 0 { random % 1024 } else { whole.len() - 1 - random % 2048 };
            bytes[at] = u8::try_from(random >> 8 & 0xff).unwrap();
        }
        if round % 4 == 0 {
            bytes.truncate(usize::try_from(seed >> 40).unwrap() % whole.len());
        }
        std::fs::write(&file, &bytes).unwrap();
        // Any answer will do, as long as there is one.
        name_at(&file, None, 0x1139);
    }
}

/// The name at `offset` of a program, when symbols of stripped files are looked for below `folder`.
fn name_with(program: &Path, build_id: Option<BuildId>, folder: &Path, offset: u64) -> SymbolName {
    let module = Module { owner: Owner::Host, path: "/program".into(), build_id };
    let places = BTreeMap::from([(ModuleId(0), vec![Place::from(program)])]);
    let mut source = source(KernelNames::default(), places).with_debug_files(folder.to_owned());
    source.names(ModuleId(0), &module, &[offset]).pop().unwrap()
}

fn run(command: &str, arguments: &[&str]) -> bool {
    let status = Command::new(command).args(arguments).stderr(Stdio::null()).status();
    let done = status.is_ok_and(|status| status.success());
    if !done {
        skip::skip(format_args!("{command} {arguments:?} failed here"));
    }
    done
}

#[test]
fn what_was_stripped_is_found_beside_and_inside_the_file() {
    let flags = ["-O1", "-pie", "-fPIE", "-Wl,--build-id=sha1"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let (_, offset, _) = built.nm(&[]).into_iter().find(|(name, _, _)| name == "hidden").unwrap();
    let id = built.build_id();
    let folder = built.folder.path().canonicalize().unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let text = id.as_ref().unwrap().to_string();
    let (first, rest) = text.split_at(2);
    std::fs::create_dir_all(folder.join(".build-id").join(first)).unwrap();
    let debug = path(&format!(".build-id/{first}/{rest}.debug"));
    let program = path("program");
    if !run("objcopy", &["--only-keep-debug", &program, &debug])
        || !run("strip", &[&program])
        || !run("objcopy", &["-S", "--keep-symbol=hidden", &debug, &path("mini")])
        || !run("xz", &[&path("mini")])
    {
        return;
    }
    let hidden = SymbolName::Function("hidden".into());
    let name = |folder: &Path| name_with(Path::new(&program), id.clone(), folder, offset);
    assert_eq!(name(&folder), hidden, "beside");
    let SymbolName::Function(unnamed) = name(Path::new("/nowhere")) else { panic!() };
    assert!(unnamed.starts_with("sub_"), "{unnamed}");
    // Another program's symbols under this one's id.
    let other = folder.join("other");
    let other_debug = other.join(".build-id").join(first);
    std::fs::create_dir_all(&other_debug).unwrap();
    std::fs::copy("/bin/sleep", other_debug.join(format!("{rest}.debug"))).unwrap();
    assert_eq!(name(&other), SymbolName::Function(unnamed));
    let section = format!(".gnu_debugdata={}", path("mini.xz"));
    if run("objcopy", &["--add-section", &section, &program]) {
        assert_eq!(name(Path::new("/nowhere")), hidden, "inside");
    }
}

#[test]
fn stripped_code_is_grouped_by_function() {
    let flags = ["-O1", "-pie", "-fPIE", "-Wl,--build-id=sha1"];
    let Some(built) = Built::new("cc", "a.c", &flags) else { return };
    let truth = built.nm(&[]);
    if !run("strip", &[built.program().to_str().unwrap()]) {
        return;
    }
    let (_, offset, size) = truth.iter().find(|(name, _, _)| name == "plain").unwrap();
    let (first, after) = (*offset, *offset + *size);
    let name = |at: u64| name_at(&built.program(), built.build_id(), at);
    let SymbolName::Function(unnamed) = name(first) else { panic!("{:?}", name(first)) };
    // In this program, code lies in the file where it lies in memory.
    assert_eq!(unnamed, format!("sub_{first:x}"));
    assert_eq!(name(after - 1), SymbolName::Function(unnamed.clone()));
    assert_ne!(name(after), SymbolName::Function(unnamed.clone()));
    assert_ne!(name(first - 1), SymbolName::Function(unnamed));
}

#[test]
fn go_programs_have_names_stripped_or_not() {
    const GO: &str = "package main\n\nimport \"os\"\n\ntype Work struct{ n int }\n\n//go:noinline\nfunc (w *Work) \
                      Mix(x int) { w.n = w.n*7 + x }\n\nfunc main() {\n\tw := &Work{}\n\tw.Mix(len(os.Args))\n\
                      \tos.Exit(w.n & 1)\n}\n";
    let folder = tempfile::tempdir().unwrap();
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| Command::new(go).arg("version").stdout(Stdio::null()).status().is_ok());
    let Some(go) = go else { return skip::skip("no Go compiler") };
    std::fs::write(folder.path().join("main.go"), GO).unwrap();
    let build = |name: &str, flags: &[&str]| {
        let built = Command::new(go)
            .current_dir(folder.path())
            .args(["build", "-o", name])
            .args(flags)
            .arg("main.go")
            .status();
        assert!(built.unwrap().success());
    };
    for flags in [&["-buildmode=exe"][..], &["-buildmode=pie"]] {
        build("program", flags);
        let program = folder.path().join("program");
        let built = Built { folder: tempfile::tempdir().unwrap() };
        std::fs::copy(&program, built.program()).unwrap();
        let truth = built.nm(&[]);
        let (_, offset, size) =
            truth.iter().find(|(name, _, _)| name == "main.(*Work).Mix").unwrap();
        build("stripped", &[flags, &["-ldflags=-s -w"]].concat());
        let stripped = folder.path().join("stripped");
        let mix = SymbolName::Function("main.(*Work).Mix".into());
        for file in [&program, &stripped] {
            assert_eq!(name_at(file, None, *offset), mix, "{flags:?} {}", file.display());
            assert_eq!(name_at(file, None, offset + size - 1), mix);
            assert_ne!(name_at(file, None, offset - 1), mix);
        }
    }
}
