//! What hostile files cost a reader with `vmscope`: at most 1 GiB of memory and 30 s of CPU time, an exit code and
//! no signal. Small files that claim to be large, and mutants of honest ones: `make mutants [COUNT=100000]`.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/recording/tests/common/mod.rs"]
mod common;

mod amplified;
mod cut;
mod quota;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::damage;
use common::synthetic::Random;
use quota::Quota;

const MAX_PEAK_MIB: u64 = 1024;
const MAX_CPU: Duration = Duration::from_secs(30);
/// Without using the CPU.
const MAX_WALL: Duration = Duration::from_secs(300);

/// Of the default run; `make mutants` sets the variable.
const MUTANTS: usize = 100;
const MUTANTS_VARIABLE: &str = "VMSCOPE_MUTANTS";

/// What a run of the program cost.
#[derive(Debug, Default)]
struct Cost {
    /// `None`: a signal ended it.
    exit_code: Option<i32>,
    peak_mib: u64,
    cpu: Duration,
}

/// Runs `vmscope` in a folder, with a file in place of what it reads from.
fn run(folder: &Path, arguments: &[&str]) -> Cost {
    let said = std::fs::File::create(folder.join("said")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_vmscope"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .unwrap();
    let cost = wait(child);
    let said = || std::fs::read_to_string(folder.join("said")).unwrap_or_default();
    assert!(
        matches!(cost.exit_code, Some(0..=2))
            && cost.peak_mib <= MAX_PEAK_MIB
            && cost.cpu <= MAX_CPU,
        "{arguments:?} in {}: {cost:?}: {}",
        folder.display(),
        said()
    );
    cost
}

/// As `wait4` has it: of the process only.
fn wait(child: Child) -> Cost {
    let process = libc::pid_t::try_from(child.id()).unwrap();
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: a struct of numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a child of ours; the kernel writes both, which outlive the call.
        let ended = unsafe { libc::wait4(process, &raw mut status, libc::WNOHANG, &raw mut usage) };
        assert!(0 <= ended, "{}", std::io::Error::last_os_error());
        if ended == 0 {
            if MAX_WALL < began.elapsed() {
                // SAFETY: it was not waited for, so the number is its own.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let time = |time: libc::timeval| {
            let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
            seconds + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        let exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        let cpu = time(usage.ru_utime) + time(usage.ru_stime);
        return Cost { exit_code, peak_mib: usage.ru_maxrss.unsigned_abs() >> 10, cpu };
    }
}

/// An honest folder of files, its manifest, and what reads it.
struct Honest {
    name: &'static str,
    manifest: &'static str,
    commands: &'static [&'static [&'static str]],
    files: Vec<PathBuf>,
}

const RECORDING: &[&[&str]] = &[
    &["report", "recording"],
    &["report", "recording", "--format", "json"],
    &["steal", "recording"],
    &["exits", "recording"],
    &["correct", "recording", "--vm", "vm1"],
    &["export", "recording", "--format", "html", "-o", "-"],
    &["export", "recording", "--format", "pprof", "-o", "-"],
    &["export", "recording", "--format", "perfetto", "-o", "-"],
];
const QUOTA: &[&[&str]] = &[
    &["report", "quota"],
    &["steal", "quota"],
    &["steal", "quota", "--offcpu-source", "samples"],
    &["exits", "quota"],
    &["correct", "quota", "--vm", "vm1"],
];
const TRACE: &[&[&str]] = &[
    &["trace", "report", "trace"],
    &["trace", "report", "trace", "--view", "waits"],
    &["trace", "compare", "trace", "trace"],
    &["trace", "export", "trace", "--format", "html", "-o", "-"],
    &["trace", "export", "trace", "--format", "perfetto", "-o", "-"],
];

fn honest(folder: &Path) -> [Honest; 3] {
    let recording = folder.join("recording");
    common::write_with_switches(&recording, &common::small(), &common::small_switches());
    let quota = folder.join("quota");
    Quota { samples: 300, vcpus: 2, periods: 300, reading: 1, watched: false }.write(&quota);
    let trace = folder.join("trace");
    let (header, tables) = (common::traces::small_header(), common::traces::small_tables());
    common::traces::write(&trace, &header, &tables, &common::traces::small_events());
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    };
    [
        Honest {
            name: "recording",
            manifest: "recording.json",
            commands: RECORDING,
            files: files(&recording),
        },
        Honest { name: "quota", manifest: "recording.json", commands: QUOTA, files: files(&quota) },
        Honest { name: "trace", manifest: "trace.json", commands: TRACE, files: files(&trace) },
    ]
}

impl Honest {
    /// Runs `work` with other bytes in place of a file's, and the right checksum.
    fn with<T>(&self, file: &Path, bytes: &[u8], work: impl FnOnce() -> T) -> T {
        let whole = std::fs::read(file).unwrap();
        let manifest = file.with_file_name(self.manifest);
        let json = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(file, bytes).unwrap();
        if file != manifest {
            let name = file.file_name().unwrap().to_str().unwrap();
            let changed = damage::with_checksum(&json, name, &whole, bytes);
            std::fs::write(&manifest, changed).unwrap();
        }
        let done = work();
        std::fs::write(file, whole).unwrap();
        std::fs::write(&manifest, json).unwrap();
        done
    }
}

/// Tables whose texts may be long, each in one column.
const LONG_TEXTS: [&str; 2] = ["symbols.parquet", "stacks.parquet"];

/// Sums up what runs cost.
#[derive(Debug, Default)]
struct Total {
    runs: usize,
    /// By exit code.
    ended: [usize; 3],
    peak_mib: u64,
    longest: Duration,
}

impl Total {
    fn add(&mut self, cost: &Cost) {
        self.runs += 1;
        self.ended[usize::try_from(cost.exit_code.unwrap()).unwrap()] += 1;
        self.peak_mib = self.peak_mib.max(cost.peak_mib);
        self.longest = self.longest.max(cost.cpu);
    }
}

/// Bytes changed, cut off or repeated, in any file of a recording or a trace, and single tables cut short.
#[test]
fn mutants_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let honest = honest(folder.path());
    for of in &honest {
        for command in of.commands {
            assert_eq!(run(folder.path(), command).exit_code, Some(0), "{command:?}");
        }
    }
    let count = std::env::var(MUTANTS_VARIABLE).ok().and_then(|count| count.parse().ok());
    let (mut random, mut total) = (Random(0x0dd_5eed), Total::default());
    for n in 0..count.unwrap_or(MUTANTS) {
        let of = &honest[n % honest.len()];
        let mut one_of = |n: usize| usize::try_from(random.below(n as u64)).unwrap();
        let (file, command) = (one_of(of.files.len()), of.commands[one_of(of.commands.len())]);
        let file = &of.files[file];
        let is_table = file.extension().is_some_and(|extension| extension == "parquet");
        let bytes = match is_table && random.below(4) == 0 {
            true => {
                cut::table(file, |rows| usize::try_from(random.below(rows as u64 + 1)).unwrap())
            }
            false => damage::mutated(&mut random, &std::fs::read(file).unwrap()),
        };
        of.with(file, &bytes, || total.add(&run(folder.path(), command)));
        if n % 10_000 == 9_999 {
            eprintln!("{total:?}");
        }
    }
    eprintln!("{total:?}");
    assert!(0 < total.ended[0] && 0 < total.ended[1], "{total:?}");
}

/// Recordings with a quota whose samples end early: one wait spans thousands of readings.
#[test]
fn long_gaps_under_a_quota_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quota");
    for quota in [
        // Honest: ten minutes of which four vCPUs were sampled for two seconds.
        Quota { samples: 2000, vcpus: 4, periods: 600_000, reading: 200, watched: false },
        Quota { samples: 1, vcpus: 16, periods: 20_000, reading: 1, watched: false },
        Quota { samples: 2, vcpus: 2000, periods: 60_000, reading: 1, watched: false },
        Quota { samples: 2, vcpus: 2000, periods: 60_000, reading: 1, watched: true },
    ] {
        quota.write(&path);
        for command in QUOTA {
            let cost = run(folder.path(), command);
            assert_eq!(cost.exit_code, Some(0), "{command:?}");
            eprintln!("{quota:?}, {command:?}: {cost:?}");
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}

/// Small files that claim many rows, or repeat a long text, with as many rows as a small file may have.
#[test]
fn small_files_that_claim_to_be_large_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for of in honest(folder.path()) {
        for file in of.files.iter().filter(|file| file.extension().unwrap() == "parquet") {
            // Writing these takes longest.
            let has_long_texts = LONG_TEXTS.iter().any(|name| file.ends_with(name));
            let long = has_long_texts.then_some((1 << 17, 8192));
            for (rows, text_bytes) in long.into_iter().chain([(1 << 20, 1)]) {
                let bytes = amplified::table(file, rows, text_bytes);
                let mut total = Total::default();
                of.with(file, &bytes, || {
                    for command in of.commands.iter().step_by(3) {
                        total.add(&run(folder.path(), command));
                    }
                });
                let name = file.file_name().unwrap().display();
                let bytes = bytes.len();
                eprintln!("{}/{name}, {rows} rows in {bytes} bytes: {total:?}", of.name);
            }
        }
    }
}

/// Logs and QR texts of the micro-benchmark, and manifests, that were quadratic, deep or grew.
#[test]
fn texts_that_grow_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join("input"), bytes).unwrap();
        for command in
            [["bench", "read", "input"].as_slice(), &["bench", "compare", "input", "input"]]
        {
            let cost = run(folder.path(), command);
            eprintln!("{name}, {} bytes, {command:?}: {cost:?}", bytes.len());
        }
    };
    check("marks", &[&b"VMB1:".repeat(1 << 20)[..], b":00000000\n"].concat());
    check("lists", &b"[".repeat(8 << 20));
    check("numbers", &[&b"{\"results\":["[..], &b"1,".repeat(4 << 20), b"1]}"].concat());
    for of in honest(folder.path()) {
        let manifest = of.files.iter().find(|file| file.ends_with(of.manifest)).unwrap();
        for bytes in [
            b"[".repeat(8 << 20),
            [&b"{\"notes\":["[..], &b"{},".repeat(4 << 20), b"{}]}"].concat(),
        ] {
            of.with(manifest, &bytes, || {
                let cost = run(folder.path(), of.commands[0]);
                eprintln!("{}, {} bytes: {cost:?}", of.manifest, bytes.len());
            });
        }
    }
}
