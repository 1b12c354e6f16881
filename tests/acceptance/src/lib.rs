//! What the end-to-end tests and the experiments share: running scenarios and reading reports.
//!
//! Everything goes through the programs a user has; nothing here reaches into the crates.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod boot;
pub mod figures;
pub mod fleet;
pub mod shared;
pub mod storm;
pub mod trace;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use serde_json::Value;

/// Words before a command that leave it the capabilities of a systemd unit.
///
/// # Panics
/// When the unit says nothing of them.
#[must_use]
pub fn as_unit(unit: &str) -> String {
    let path = root().join("deploy/systemd").join(unit);
    let unit = std::fs::read_to_string(path).expect("a unit");
    let names = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = names.expect("its capabilities").split(' ');
    let names = names.map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let set = names.fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
    format!("setpriv --no-new-privs --bounding-set {set} --inh-caps {set}")
}

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.ancestors().nth(2).unwrap_or(tests).to_owned()
}

/// The built `vmscope`: beside this test in the target folder.
///
/// # Errors
/// If it was not built.
pub fn vmscope() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe().context("failed to find this program")?;
    let built = test.ancestors().map(|folder| folder.join("vmscope")).find(|path| path.is_file());
    built.context("vmscope is not built: run `make build` first")
}

/// What a scenario's command left.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    /// Its standard error, and the testbed's.
    pub stderr: String,
    /// Its exit code.
    pub code: i32,
    /// The files it wrote.
    pub files: PathBuf,
}

/// Runs `script` on the virtual host of `scenarios/NAME.toml`; its files land in `files`.
///
/// Under emulation a guest, or the host itself, now and then dies of what its emulated CPU did wrong. Such a run says
/// nothing about vmscope and is repeated, see `retries`. It is known by what the kernel said last, see
/// docs/testbed.md: any other end may be our doing, as is a run that reaches its time limit.
///
/// # Errors
/// If the testbed can't be started. A failing script is no error: see `Ran::code`.
pub fn in_testbed(scenario: &str, files: &Path, script: &str) -> anyhow::Result<Ran> {
    in_testbed_within(TIME_LIMIT_S, scenario, files, script)
}

/// `in_testbed` with another time limit, in seconds.
///
/// # Errors
/// As `in_testbed`.
pub fn in_testbed_within(
    limit_s: u32,
    scenario: &str,
    files: &Path,
    script: &str,
) -> anyhow::Result<Ran> {
    loop {
        let ran = run_once(limit_s, scenario, files, script)?;
        if !crash_to_repeat(scenario, &ran.stderr) {
            return Ok(ran);
        }
        if files.exists() {
            std::fs::remove_dir_all(files).context("failed to remove the files of a run")?;
        }
    }
}

/// Whether a run is to be repeated, which is noted. Boots that the testbed repeated are noted as well.
fn crash_to_repeat(scenario: &str, stderr: &str) -> bool {
    let note = |crash: &str| {
        RETRIES.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{scenario}: {crash}"));
    };
    stderr.lines().filter(|line| line.ends_with(BOOTED_AGAIN)).for_each(note);
    let crash = emulator_crash(stderr).filter(|_| retries().len() < MAX_RETRIES);
    crash.map(note).is_some()
}

/// How the testbed's line about a host that died before its command began ends.
const BOOTED_AGAIN: &str = "; it boots again";

/// The line in which the testbed reports the end of a machine, if it is one that the emulator crashed.
#[must_use]
pub fn emulator_crash(stderr: &str) -> Option<&str> {
    let ends = ["died while the command ran", "virtual host ended by itself"];
    let ended = stderr.lines().filter(|line| ends.iter().any(|end| line.contains(end)));
    let ended = ended.filter(|line| !line.ends_with(BOOTED_AGAIN));
    let lines: Vec<_> = ended.collect();
    // One end that is not the emulator's is enough.
    lines.iter().all(|line| is_emulators(line)).then_some(lines.first().copied()).flatten()
}

/// Whether these last words of a machine are of the kind that only the emulator causes.
fn is_emulators(words: &str) -> bool {
    // Code that the kernel has patched since: a breakpoint that is long gone, or CPUs that hang.
    const STALE_CODE: [&str; 4] =
        ["Oops: int3", "softlockup: hung tasks", "NMI: Not continuing", "RCU Stall"];
    // What each exception enters faults itself until its stack is full: the CPU's GS base or page table is wrong.
    const ENTRIES: [&str; 2] = ["RIP: 0010:exc_page_fault+", "RIP: 0010:error_entry+"];
    // A kernel that went wrong says so. Too little memory ends QEMU by SIGKILL.
    const OTHERS: [&str; 6] =
        ["Kernel panic", "Oops", "BUG", "general protection", "RIP: ", "SIGKILL"];
    // Our programs in the kernel.
    if words.contains("bpf_prog_") {
        return false;
    }
    let has = |signs: &[&str]| signs.iter().any(|sign| words.contains(sign));
    if words.contains("stack guard page was hit") && has(&ENTRIES) {
        return true;
    }
    // Without a word: the emulated CPU faulted three times over, or QEMU itself crashed.
    has(&STALE_CODE) || !has(&OTHERS)
}

/// The runs that this program repeated: the scenario, and how its emulator crashed.
#[must_use]
pub fn retries() -> Vec<String> {
    RETRIES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

static RETRIES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Of one program, which boots some 30 hosts. On a machine with nothing else to do up to every second one crashed, on a busy
/// one hardly any: more are a fault of ours.
const MAX_RETRIES: usize = 20;

/// The longest scenarios of the tests take a quarter of it on a busy machine. A hang of the virtual host ends by itself,
/// so this is for deadlocks only.
const TIME_LIMIT_S: u32 = 600;

fn run_once(limit_s: u32, scenario: &str, files: &Path, script: &str) -> anyhow::Result<Ran> {
    let file = root().join("scenarios").join(format!("{scenario}.toml"));
    eprintln!("testbed: scenario {scenario}");
    let output = Command::new(vmscope()?)
        .args(["testbed", "run"])
        .arg(&file)
        .arg("--out")
        .arg(files)
        .args(["--timeout", &limit_s.to_string(), "--", "sh", "-c", script])
        .output()
        .context("failed to run vmscope testbed")?;
    let ran = Ran {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
        files: files.to_owned(),
    };
    eprintln!("{}{}", ran.stdout, ran.stderr);
    Ok(ran)
}

/// Runs `vmscope` here.
///
/// # Errors
/// If it can't be started.
pub fn run(arguments: &[&str]) -> anyhow::Result<Output> {
    Command::new(vmscope()?).args(arguments).output().context("failed to run vmscope")
}

/// `vmscope report RECORDING --format json ...`.
///
/// # Errors
/// If the report fails.
pub fn report(recording: &Path, arguments: &[&str]) -> anyhow::Result<Report> {
    let path = recording.to_str().context("the path is not UTF-8")?;
    let output = run(&[&["report", path, "--format", "json"], arguments].concat())?;
    if !output.status.success() {
        bail!("vmscope report failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Report(serde_json::from_slice(&output.stdout).context("the report is not JSON")?))
}

/// A report's JSON.
#[derive(Debug)]
pub struct Report(pub Value);

impl Report {
    /// All samples of the report.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.0["totals"]["samples"].as_u64().unwrap_or(0)
    }

    /// The report's rows.
    #[must_use]
    pub fn rows(&self) -> &[Value] {
        self.0["rows"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Samples of the rows where `matches` says yes.
    pub fn sum(&self, matches: impl Fn(&Value) -> bool) -> u64 {
        self.rows().iter().filter(|row| matches(row)).filter_map(|r| r["samples"].as_u64()).sum()
    }

    /// Sum of the counters whose names begin with `prefix`.
    #[must_use]
    pub fn counter(&self, prefix: &str) -> u64 {
        let counters = self.0["counters"].as_object();
        let all = counters.into_iter().flatten();
        all.filter(|(name, _)| name.starts_with(prefix)).filter_map(|(_, n)| n.as_u64()).sum()
    }
}

/// A row's text column; empty when it is null.
#[must_use]
pub fn text<'a>(row: &'a Value, column: &str) -> &'a str {
    row[column].as_str().unwrap_or_default()
}

/// The part of the planned memory that is where the plan says, of two texts such as `0:128M 2:4K`.
#[must_use]
pub fn in_place(planned: &str, found: &str) -> Option<f64> {
    let (planned, found) = (by_node(planned)?, by_node(found)?);
    let all: f64 = planned.iter().map(|(_, bytes)| bytes).sum();
    let there = |(node, wanted): &(u32, f64)| {
        let found = found.iter().find(|(other, _)| other == node);
        found.map_or(0.0, |(_, bytes)| bytes.min(*wanted))
    };
    Some(planned.iter().map(there).sum::<f64>() / all)
}

fn by_node(text: &str) -> Option<Vec<(u32, f64)>> {
    let part = |part: &str| {
        let (node, size) = part.split_once(':')?;
        let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
        let scale = 1024_f64.powi(1 + "KMGT".find(unit).and_then(|at| i32::try_from(at).ok())?);
        Some((node.parse().ok()?, number.parse::<f64>().ok()? * scale))
    };
    text.split(' ').map(part).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_crashes_of_the_emulator_are_repeated() {
        let check = |said: &str, expected: bool| {
            let stderr = format!("testbed: scenario demo\nvmscope: {said}\n");
            assert_eq!(emulator_crash(&stderr).is_some(), expected, "{said}");
        };
        let host = "the virtual host ended by itself";
        check(&format!("{host} (exit status: 0): vmscope testbed: all guests are ready"), true);
        check(&format!("{host} (signal: 11 (SIGSEGV)): (nothing on its console)"), true);
        let hung = "Kernel panic - not syncing: softlockup: hung tasks";
        check(&format!("{host} (exit status: 0): {hung}; RIP: 0010:svm_vcpu_run+0x1"), true);
        check(&format!("{host} (exit status: 0): {hung}; RIP: 0010:bpf_prog_1_sample+0x1"), false);
        let null = "Kernel panic - not syncing: Fatal exception; RIP: 0010:htab_map_lookup+0x1";
        check(&format!("{host} (exit status: 0): {null}"), false);
        let guard = "Kernel panic - not syncing: Fatal exception in interrupt; BUG: TASK stack guard page was hit at 1";
        check(
            &format!("{host} (exit status: 0): {guard}; RIP: 0010:exc_page_fault+0x15/0x170"),
            true,
        );
        check(&format!("{host} (exit status: 0): {guard}; RIP: 0010:error_entry+0x10/0x130"), true);
        check(&format!("{host} (exit status: 0): {guard}; RIP: 0010:htab_map_lookup+0x1"), false);
        check(&format!("{host} (signal: 9 (SIGKILL)): (nothing on its console)"), false);
        check("guest a died while the command ran: QEMU's exit status: 0; all is well", true);
        check(&format!("guest a died while the command ran: QEMU's exit status: 0; {null}"), false);
        check("the time limit of 600 s was reached", false);
        let booted = format!("{host} while it booted (exit status: 0): {null}; it boots again");
        check(&booted, false);
        check(&format!("{booted}\n{host} (exit status: 0): {hung}"), true);
        let both =
            format!("{host} (exit status: 0): quiet\nguest b died while the command ran: {null}");
        check(&both, false);
    }
}
