//! Boots of the deterministic host, each measuring one configuration after the other.
//!
//! ```text
//!  boot --> alone --> configuration --> configuration --> ... --> all measured
//!    ^                      | stuck, or its guest's emulator crashed: that ends the boot
//!    +----------------------+ at most BOOTS times
//! ```

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::{emulator_crash, root, vmscope};
use anyhow::{Context, bail};

use super::configuration::{ALONE, Collector, Configuration};
use super::figures::{Measured, Work};

/// The emulated guest now and then hangs: see docs/overhead.md.
const BOOTS: usize = 12;
/// Seconds of the virtual host's time; what isn't stuck needs a quarter of that.
const CONFIGURATION_LIMIT: u32 = 120;
/// How `timeout` says that the limit was reached.
const STUCK: &str = "124";
/// Seconds of this machine's time for a boot and all that is measured in it.
const BOOT_LIMIT: u32 = 3600;
/// This machine's time, when nothing comes: a guest that hangs while it boots says nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// Measures all of them, each in a boot with its own measurement of the work alone.
///
/// # Errors
/// When something is not built, a collector fails, or the host gets stuck too often.
pub fn measure(wanted: &[Configuration]) -> anyhow::Result<Vec<Measured>> {
    let floor = floor()?;
    let mut measured = Vec::new();
    for boot in 1..=BOOTS {
        let left: Vec<Configuration> = wanted
            .iter()
            .filter(|c| measured.iter().all(|m: &Measured| m.configuration != **c))
            .copied()
            .collect();
        if left.is_empty() {
            return Ok(measured);
        }
        eprintln!("overhead: boot {boot}, {} of {} left", left.len(), wanted.len());
        measured.extend(one_boot(&left, &floor)?);
    }
    bail!("the virtual host got stuck {BOOTS} times: see docs/overhead.md")
}

fn floor() -> anyhow::Result<PathBuf> {
    let built = vmscope()?.with_file_name("examples").join("floor");
    if !built.is_file() {
        bail!("{} is not built: run `make overhead`", built.display());
    }
    Ok(built)
}

/// One boot; what it measured before it ended or got stuck.
fn one_boot(left: &[Configuration], floor: &Path) -> anyhow::Result<Vec<Measured>> {
    let alone = Configuration { collector: Collector::Alone, period: ALONE, again: false };
    let order: Vec<Configuration> = std::iter::once(alone).chain(left.iter().copied()).collect();
    let said = tempfile::NamedTempFile::new().context("failed to make a file")?;
    let mut child = Command::new(vmscope()?)
        .args(["testbed", "run", "--timeout", &BOOT_LIMIT.to_string()])
        .arg(root().join("scenarios/overhead.toml"))
        .args(["--", "sh", "-c", &script(&order, floor)])
        .stdout(Stdio::piped())
        .stderr(said.reopen()?)
        .spawn()
        .context("failed to run vmscope testbed")?;
    let lines = listen(child.stdout.take().context("the testbed has no output")?);
    let mut reading = Reading::new(&order);
    let followed = follow(&lines, &mut reading);
    if !matches!(followed, Ok(End::ByItself)) {
        // All that a testbed has started ends with it.
        child.kill().context("failed to end the testbed")?;
    }
    child.wait().context("failed to wait for the testbed")?;
    followed?;
    let said = std::fs::read_to_string(said.path()).context("failed to read what it said")?;
    eprint!("{said}");
    match (reading.failed, emulator_crash(&said)) {
        (Some(failed), None) => bail!(failed),
        _ => Ok(reading.measured),
    }
}

/// How a boot's output ended.
enum End {
    ByItself,
    Silent,
}

fn follow(lines: &Receiver<String>, reading: &mut Reading<'_>) -> anyhow::Result<End> {
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                eprintln!("  {line}");
                reading.line(&line)?;
            }
            Err(RecvTimeoutError::Timeout) => return Ok(End::Silent),
            Err(RecvTimeoutError::Disconnected) => return Ok(End::ByItself),
        }
    }
}

/// The lines come until the output ends.
fn listen(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Says `begin N` and `end N CODE` around each configuration; ends with the first that fails.
fn script(order: &[Configuration], floor: &Path) -> String {
    let limited = |(number, configuration): (usize, &Configuration)| {
        let line = configuration.line(floor, number);
        format!(
            "echo begin {number}; timeout {CONFIGURATION_LIMIT} {line} 2>&1; code=$?; echo end {number} $code; [ $code = 0 ] || exit 1"
        )
    };
    order.iter().enumerate().map(limited).collect::<Vec<_>>().join("\n")
}

/// Takes in the script's output.
struct Reading<'a> {
    order: &'a [Configuration],
    now: Option<Work>,
    alone: Option<Work>,
    measured: Vec<Measured>,
    /// A configuration that ended in an error.
    failed: Option<String>,
}

impl<'a> Reading<'a> {
    fn new(order: &'a [Configuration]) -> Self {
        Self { order, now: None, alone: None, measured: Vec::new(), failed: None }
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["begin", _] => self.now = Some(Work::default()),
            ["end", number, "0"] => self.end(number.parse()?)?,
            ["end", _, STUCK] => {}
            ["end", number, code] => {
                self.failed = Some(format!("configuration {number} ended with exit code {code}"));
            }
            ["compute_a", seconds] => {
                if let Some(work) = &mut self.now {
                    work.pieces.push(seconds.parse().context("the work printed no time")?);
                }
            }
            words => {
                if let (Some(work), Some(n)) = (&mut self.now, sample_count(words)) {
                    work.collected = n;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, number: usize) -> anyhow::Result<()> {
        let (Some(configuration), Some(work)) = (self.order.get(number), self.now.take()) else {
            bail!("the virtual host's output is garbled");
        };
        match &self.alone {
            None => self.alone = Some(work),
            Some(alone) => self.measured.push(Measured::new(*configuration, &work, alone)?),
        }
        Ok(())
    }
}

/// The number in vmscope's `day1: 2376 samples in` and perf's `day1.data (2192 samples) ]`.
fn sample_count(words: &[&str]) -> Option<u64> {
    let at = words.iter().position(|word| word.starts_with("samples"))?;
    words.get(at.checked_sub(1)?)?.trim_start_matches('(').parse().ok()
}
