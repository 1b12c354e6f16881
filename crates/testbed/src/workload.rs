//! The workloads guests run: built once from the C sources beside this crate, kept in the cache.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::cache::{self, Cache};
use crate::error::Error;
use crate::process;

/// One workload line: `[nice -n N] [taskset -c CPU] PROGRAM [ARGUMENT...]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    words: Vec<String>,
    program: usize,
}

/// How a built-in workload is made: by the compiler, or, when it is a script, as it is.
struct Source {
    name: &'static str,
    text: &'static str,
    flags: &'static [&'static str],
}

const COMPUTE: &str = include_str!("../../../workloads/compute.c");

const SHOR: &str = include_str!("../../../workloads/shor.c");

const SERVE: &str = include_str!("../../../workloads/serve.c");

/// Debian's libquantum with its symbols, as a shared library; see its source for why.
const LIBRARY: Source = Source {
    name: "libquantum.so.8",
    text: include_str!("../../../workloads/libquantum-glue.c"),
    flags: &[
        "-fPIC",
        "-shared",
        "-Wl,-Bsymbolic,-soname,libquantum.so.8",
        "-Wl,--whole-archive",
        "-l:libquantum.a",
        "-Wl,--no-whole-archive",
        "-lm",
    ],
};

const SOURCES: &[Source] = &[
    Source { name: "compute", text: COMPUTE, flags: &["-pie", "-fPIE"] },
    Source { name: "compute-static", text: COMPUTE, flags: &["-static", "-no-pie", "-fno-pie"] },
    Source { name: "compute-stripped", text: COMPUTE, flags: &["-pie", "-fPIE", "-s"] },
    Source {
        name: "shor",
        text: SHOR,
        flags: &["-L.", "-l:libquantum.so.8", "-lm", "-Wl,-rpath,$ORIGIN"],
    },
    Source { name: "shor-stock", text: SHOR, flags: &["-lquantum", "-lgomp", "-lm"] },
    Source { name: "syscalls", text: include_str!("../../../workloads/syscalls.c"), flags: &[] },
    Source { name: "forker", text: include_str!("../../../workloads/forker.c"), flags: &[] },
    Source {
        name: "shortlived",
        text: include_str!("../../../workloads/shortlived.c"),
        // Static: else half of its short life would be the loader's, which has no symbols.
        flags: &["-static"],
    },
    Source {
        name: "threads",
        text: include_str!("../../../workloads/threads.c"),
        flags: &["-pthread"],
    },
    Source { name: "nested", text: include_str!("../../../workloads/nested.c"), flags: &[] },
    Source { name: "idle", text: include_str!("../../../workloads/idle.c"), flags: &[] },
    Source { name: "fixed", text: include_str!("../../../workloads/fixed.c"), flags: &[] },
    Source { name: "sleeper", text: include_str!("../../../workloads/sleeper.c"), flags: &[] },
    Source { name: "perf-bpf", text: include_str!("../../../workloads/perf-bpf.c"), flags: &[] },
    Source { name: "bursts", text: include_str!("../../../workloads/bursts.c"), flags: &[] },
    Source { name: "serve", text: SERVE, flags: &["-pthread", "-Wl,--build-id"] },
    Source {
        name: "serve-new",
        text: SERVE,
        flags: &["-pthread", "-Wl,--build-id", "-DLOOKUP=12"],
    },
    Source {
        name: "convoy",
        text: include_str!("../../../workloads/convoy.c"),
        flags: &["-pthread"],
    },
    Source { name: "exits", text: include_str!("../../../workloads/exits.c"), flags: &[] },
    Source { name: "delays", text: include_str!("../../../workloads/delays.c"), flags: &[] },
    Source {
        name: "waits",
        text: include_str!("../../../workloads/waits.c"),
        flags: &["-pthread"],
    },
    Source {
        name: "parts",
        text: include_str!("../../../workloads/parts.c"),
        flags: &["-pthread"],
    },
    Source {
        name: "calls",
        text: include_str!("../../../workloads/calls.c"),
        flags: &["-pthread", "-fomit-frame-pointer"],
    },
    Source {
        name: "calls-fp",
        text: include_str!("../../../workloads/calls.c"),
        flags: &["-pthread"],
    },
    Source { name: "spoil", text: include_str!("../../../workloads/spoil.c"), flags: &[] },
    Source {
        name: "kernel-work",
        text: include_str!("../../../workloads/kernel-work.c"),
        flags: &[],
    },
    Source { name: "verify", text: include_str!("../../../workloads/verify.c"), flags: &[] },
    Source {
        name: "identity",
        text: include_str!("../../../workloads/identity.c"),
        // Static, as the next one: for guests that share nothing but memory, and roots with another C library.
        flags: &["-static"],
    },
    Source {
        name: "shop",
        text: include_str!("../../../workloads/shop.c"),
        flags: &["-static", "-l:libsqlite3.a", "-lm"],
    },
    Source { name: "database", text: include_str!("../../../workloads/database.sh"), flags: &[] },
    Source {
        name: "transactions",
        text: include_str!("../../../workloads/transactions.sh"),
        flags: &[],
    },
    Source { name: "web", text: include_str!("../../../workloads/web.sh"), flags: &[] },
    Source { name: "webpage.py", text: include_str!("../../../workloads/webpage.py"), flags: &[] },
];

/// Flags of every workload: optimised, yet with frame pointers and line tables.
const FLAGS: &[&str] = &["-O2", "-g1", "-Wall", "-fno-omit-frame-pointer"];

impl Workload {
    /// Reads a workload line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let fine = |c: char| c.is_ascii_alphanumeric() || "_./:=,+-".contains(c);
        if let Some(word) = words.iter().find(|word| !word.chars().all(fine)) {
            return Err(format!(
                "workload `{line}`: `{word}` may hold letters, digits and _./:=,+- only"
            ));
        }
        let mut program = 0;
        for (tool, option) in [("nice", "-n"), ("taskset", "-c")] {
            if words.get(program).is_some_and(|word| word == tool) {
                if words.get(program + 1).is_none_or(|word| word != option) {
                    return Err(format!(
                        "workload `{line}`: `{tool}` must be followed by {option} NUMBER"
                    ));
                }
                program += 3;
            }
        }
        match words.get(program) {
            None => Err(format!("workload `{line}` names no program")),
            Some(name)
                if name.starts_with('/') || SOURCES.iter().any(|source| source.name == name) =>
            {
                Ok(Self { words, program })
            }
            Some(name) => {
                let known: Vec<_> = SOURCES.iter().map(|source| source.name).collect();
                Err(format!(
                    "unknown workload `{name}`, expected one of {} or a program's path",
                    known.join(", ")
                ))
            }
        }
    }

    /// The words as they are run in a guest.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The name of a built-in workload, or a program's path on this machine.
    pub fn program(&self) -> &str {
        &self.words[self.program]
    }

    /// The words with the program replaced by `path`.
    pub(crate) fn words_with_program(&self, path: &Path) -> Vec<String> {
        let mut words = self.words.clone();
        words[self.program] = path.display().to_string();
        words
    }
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Builds the built-in workloads, or finds them built. Returns their folder.
pub(crate) fn build_all(cache: &Cache) -> Result<PathBuf, Error> {
    let all = || std::iter::once(&LIBRARY).chain(SOURCES);
    let mut key = cache::Key::new("workloads");
    key.add(FLAGS.join(" ").as_bytes());
    for source in all() {
        key.add(source.name.as_bytes()).add(source.text.as_bytes());
        key.add(source.flags.join(" ").as_bytes());
    }
    cache.folder(&key, |folder| all().try_for_each(|source| build(source, folder)))
}

/// The names of the built-in workloads' programs.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|source| source.name)
}

/// The names of all files that the built-in workloads need beside each other.
pub(crate) fn files() -> impl Iterator<Item = &'static str> {
    std::iter::once(LIBRARY.name).chain(programs())
}

fn build(source: &Source, folder: &Path) -> Result<(), Error> {
    if source.text.starts_with("#!") {
        return install_script(source, &folder.join(source.name));
    }
    // The source keeps the workload's name in the line tables.
    let file = format!("{}.c", source.name);
    let path = folder.join(&file);
    std::fs::write(&path, source.text).map_err(Error::io("write", &path))?;
    let mut gcc = process::tool("gcc", "gcc libc6-dev libquantum-dev libsqlite3-dev")?;
    gcc.args(FLAGS).args(["-o", source.name, &file]).args(source.flags).current_dir(folder);
    process::run(&mut gcc).map(drop)
}

fn install_script(source: &Source, path: &Path) -> Result<(), Error> {
    std::fs::write(path, source.text).map_err(Error::io("write", path))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
        .map_err(Error::io("make executable", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<&str, &str>) {
        let result = Workload::parse(line).map(|workload| workload.program().to_owned());
        match (result, expected) {
            (Ok(program), Ok(expected)) => assert_eq!(program, expected),
            (Err(problem), Err(expected)) => assert!(problem.contains(expected), "{problem}"),
            (got, expected) => panic!("{line}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn workload_lines() {
        check("compute", Ok("compute"));
        check("shor 33 5", Ok("shor"));
        check("nice -n 5 compute 20", Ok("compute"));
        check("nice -n 5 taskset -c 1 compute", Ok("compute"));
        check("/usr/bin/openssl speed", Ok("/usr/bin/openssl"));
        check("", Err("names no program"));
        check("nice -n 5", Err("names no program"));
        check("nice 5 compute", Err("followed by -n NUMBER"));
        check("computer", Err("unknown workload `computer`, expected one of compute, "));
        check("libquantum.so.8", Err("unknown workload"));
        check("compute; reboot", Err("`compute;` may hold"));
    }

    #[test]
    fn a_native_run_takes_the_program_from_its_folder() {
        let words = Workload::parse("nice -n 5 shor 33 5").unwrap();
        let words = words.words_with_program(Path::new("/bin/shor"));
        assert_eq!(words, ["nice", "-n", "5", "/bin/shor", "33", "5"]);
    }
}
