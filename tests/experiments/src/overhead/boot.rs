//! Boots of the deterministic host, each measuring one configuration after the other.
//!
//! ```text
//!  boot --> alone --> configuration --> configuration --> ... --> all measured
//!    ^                      | stuck, or its guest's emulator crashed: that ends the boot
//!    +----------------------+ at most BOOTS times
//! ```

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use acceptance::fleet::Server;
use acceptance::{emulator_crash, root};
use anyhow::{Context, bail};

use super::configuration::{ALONE, Collector, Configuration};
use super::figures::{Measured, Work};

/// The emulated guest now and then hangs: see docs/overhead.md.
const BOOTS: usize = 12;
/// Runs an agent beside a command, and fails if its windows do not reach the server. Arguments: a name, a window's seconds,
/// the period in us, the command.
const AGENT: &str = r#"set -e
mkdir /run/$1; cd /run/$1
vmscope agent enroll --server $SERVER --token $TOKEN --fingerprint $FINGERPRINT --host work$1 --state $PWD/state
cat >agent.toml <<END
server = "$SERVER"
state = "$PWD/state"
window_s = $2
period_us = $3
max_cpu_percent = 10000.0
metrics = "127.0.0.1:9188"
END
shift 3
vmscope agent --config agent.toml & agent=$!
"$@"
curl -s http://127.0.0.1:9188/metrics | grep '^vmscope_agent_' >metrics
kill -TERM $agent
grep -e _windows -e _cpu -e _samples -e uncovered metrics
[ $(sed -n 's/.*{outcome="sent"} //p' metrics | cut -d. -f1) -ge 3 ]
"#;
/// How `timeout` says that the limit was reached.
const STUCK: &str = "124";
/// Seconds of this machine's time for a boot and all that is measured in it.
const BOOT_LIMIT: u32 = 3600;
/// This machine's time, when nothing comes: a guest that hangs while it boots says nothing. Work says what it took at its
/// end: minutes on a quiet machine.
const SILENCE: Duration = Duration::from_secs(900);

/// Measures all of them, of this program, each in a boot with its own measurement of the work alone.
///
/// # Errors
/// When something is not built, a collector fails, or the host gets stuck too often.
pub fn measure(vmscope: &Path, wanted: &[Configuration]) -> anyhow::Result<Vec<Measured>> {
    let floor = vmscope.with_file_name("examples").join("floor");
    let with_floor = wanted.iter().any(|c| c.collector == Collector::Floor);
    if let Some(missing) = [(vmscope, true), (&floor, with_floor)]
        .iter()
        .find_map(|(program, is_needed)| (*is_needed && !program.is_file()).then_some(program))
    {
        bail!("{} is not built: run `make overhead` or `make experiments`", missing.display());
    }
    let with_agent = wanted.iter().any(|c| matches!(c.collector, Collector::Agent(_)));
    let programs = vmscope.with_file_name("");
    let server = with_agent.then(|| Server::start_of(&programs, &["10.20.0.1"], "")).transpose()?;
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
        measured.extend(one_boot(vmscope, &left, &floor, server.as_ref())?);
    }
    bail!("the virtual host got stuck {BOOTS} times: see docs/overhead.md")
}

/// One boot; what it measured before it ended or got stuck.
fn one_boot(
    vmscope: &Path,
    left: &[Configuration],
    floor: &Path,
    server: Option<&Server>,
) -> anyhow::Result<Vec<Measured>> {
    let alone = Configuration { collector: Collector::Alone, period: ALONE, again: false };
    let order: Vec<Configuration> = std::iter::once(alone).chain(left.iter().copied()).collect();
    let said = tempfile::NamedTempFile::new().context("failed to make a file")?;
    let mut script = script(&order, floor);
    let scenario = match server {
        None => "overhead",
        Some(server) => {
            script.insert_str(0, &agent(server)?);
            "overhead-uplink"
        }
    };
    let mut child = Command::new(vmscope)
        .args(["testbed", "run", "--timeout", &BOOT_LIMIT.to_string()])
        .arg(root().join("scenarios").join(scenario).with_extension("toml"))
        .args(["--", "sh", "-c", &script])
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

/// Makes `/run/agent`, which knows the server.
fn agent(server: &Server) -> anyhow::Result<String> {
    let Server { port, fingerprint, .. } = server;
    let token = server.token("agent")?;
    let address =
        format!("SERVER=https://10.20.0.1:{port} TOKEN={token} FINGERPRINT={fingerprint}");
    Ok(format!("export {address}\ncat >/run/agent <<'SCRIPT'\n{AGENT}SCRIPT\n"))
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
        // Seconds of the virtual host's time; what isn't stuck needs half of that.
        let limit = 60 + 2 * configuration.period.pieces;
        format!(
            "echo begin {number}; timeout {limit} {line} 2>&1; code=$?; echo end {number} $code; [ $code = 0 ] || exit 1"
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
