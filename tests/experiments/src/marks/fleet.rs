//! The fleet: what an analysis takes, how many hosts a server takes, and kills.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, in_slow_scenario};
use acceptance::fleet::Server;
use acceptance::storm::{Storm, peak_memory, storm};
use acceptance::vmscope;

/// As many windows as 200 hosts send in 10 minutes, and 100 kills of those who send them, of the server, and of a service that
/// keeps its objects.
const LONG: Storm = Storm {
    hosts: 200,
    senders: 10,
    rate: 200.0 / 60.0,
    seconds: 600.0,
    kills: 100,
    seed: 20_261_123,
    service: None,
};
/// Of the server, whatever the fleet does.
const MAX_BYTES: u64 = 1 << 30;

/// Nothing that was acknowledged is lost or counts twice: `storm` fails else.
pub(super) fn kills(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    survived("storm", &LONG)
}

/// The same over an S3-compatible service.
pub(super) fn kills_over_service(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    let program = std::env::var_os("VMSCOPE_S3_SERVER");
    let program = program
        .context("VMSCOPE_S3_SERVER names no S3 server: run `make experiments ONLY=storm-s3`")?;
    survived("storm-s3", &Storm { service: Some(program.into()), ..LONG })
}

fn survived(mark: &'static str, long: &Storm) -> anyhow::Result<Vec<Outcome>> {
    let survived = storm(long)?;
    let [senders, server, service] = survived.kills;
    let [answers, partial] = survived.answers;
    let killed = format!("{senders} senders, {server} servers, {service} S3 services killed");
    let lost = Outcome {
        mark,
        what: format!("{} hosts, {killed}", long.hosts),
        original: "-",
        ours: format!(
            "{} windows acknowledged, {} stored, each analysed once; {answers} right answers, {partial} partial",
            survived.acknowledged, survived.stored
        ),
        limit: "none lost or twice",
        pass: true,
    };
    let memory = Outcome {
        mark,
        what: "peak of the server's memory meanwhile".to_owned(),
        original: "-",
        ours: format!("{} MiB", survived.server_bytes >> 20),
        limit: "1 GiB",
        pass: survived.server_bytes < MAX_BYTES,
    };
    Ok(vec![lost, memory])
}

/// CPUs of the host whose windows are analysed, as in the original.
const CPUS: u32 = 14;

/// A minute of three guests on two CPUs, recorded once; then many of them, side by side, as one host.
struct Recorded<'a> {
    files: &'a Path,
    /// Optimised programs.
    programs: PathBuf,
}

impl<'a> Recorded<'a> {
    fn new(files: &'a Path) -> anyhow::Result<Self> {
        let debug = vmscope()?.with_file_name("");
        let programs = debug.with_file_name("release");
        if !files.join("rec").is_dir() {
            in_slow_scenario("demo", files, "vmscope record -o rec --duration 60")?;
        }
        Ok(Self { files, programs })
    }

    /// A recording of so many VMs on 14 CPUs.
    fn of_vms(&self, vms: usize) -> anyhow::Result<PathBuf> {
        let made = self.files.join(format!("of-{vms}"));
        if !made.is_dir() {
            let status = Command::new(self.programs.join("examples/multiply"))
                .arg(self.files.join("rec"))
                .args([CPUS.to_string(), vms.to_string()])
                .arg(&made)
                .status()
                .context("failed to run multiply: run `make experiments`")?;
            if !status.success() {
                bail!("multiply failed");
            }
        }
        Ok(made)
    }

    fn server(&self, more: &str) -> anyhow::Result<Server> {
        Server::start_of(&self.programs, &[], more)
    }
}

/// `vmscope COMMAND RECORDING ...` with an agent's token, as JSON.
fn sent(server: &Server, command: &str, recording: &Path, more: &[&str]) -> anyhow::Result<Value> {
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let address = server.address("agent")?;
    let mut words = vec![command, recording, "--format", "json"];
    words.extend(more.iter().copied().chain(address.iter().map(String::as_str)));
    let output = server.vmscope(&words)?;
    if !output.status.success() {
        bail!("vmscope {command} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("no JSON")
}

/// S0.12: CPU time and memory of the analysis of a minute of 14 CPUs at 1 ms, by number of VMs.
pub(super) fn analysis(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    const MAX_S: f64 = 1.0;
    let recorded = Recorded::new(files)?;
    (1..=10)
        .map(|vms| {
            let recording = recorded.of_vms(vms)?;
            let server = recorded.server("workers = 1")?;
            sent(&server, "replay", &recording, &["--hosts", "1"])?;
            server.wait_for_results(1)?;
            let raw = server.objects("raw");
            let [window] = &raw[..] else { bail!("{} windows", raw.len()) };
            let results = server.objects("results");
            let bytes = results.iter().map(|path| Ok(path.metadata()?.len()));
            let bytes: u64 = bytes.sum::<anyhow::Result<u64>>()?;
            for path in results {
                std::fs::remove_file(path)?;
            }
            let name = window.strip_prefix(server.store())?;
            let (seconds, memory) = analyzed(&recorded.programs, &server.store(), name)?;
            let samples = acceptance::report(&recording, &[])?.samples();
            Ok(Outcome {
                mark: "S0.12",
                what: format!(
                    "analysis of a minute of {CPUS} CPUs and {vms} VMs, {samples} samples"
                ),
                original: "81.8 s (10 VMs)",
                ours: format!(
                    "{seconds:.2} s of CPU time, {} MiB; results {:.1} MB per host and day",
                    memory >> 20,
                    bytes as f64 * 1440.0 / 1e6
                ),
                limit: "1 s",
                pass: seconds <= MAX_S,
            })
        })
        .collect()
}

/// CPU seconds and peak memory of the analysis of a stored window, by processes of its own.
fn analyzed(programs: &Path, store: &Path, window: &Path) -> anyhow::Result<(f64, u64)> {
    let before = cpu_of_children()?;
    let mut child = Command::new(programs.join("vmscope-server"))
        .arg("analyze")
        .arg(window)
        .arg("--store")
        .arg(store)
        .stdout(Stdio::null())
        .spawn()
        .context("failed to run vmscope-server analyze")?;
    let mut memory = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let workers = workers(child.id()).into_iter();
        let now: u64 = workers.chain([child.id()]).filter_map(|pid| peak_memory(pid).ok()).sum();
        memory = memory.max(now);
        std::thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        bail!("vmscope-server analyze failed");
    }
    Ok((cpu_of_children()? - before, memory))
}

/// The processes that any thread of one has started.
fn workers(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let started = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .collect::<Vec<_>>();
    started.iter().flat_map(|pids| pids.split_whitespace()).filter_map(|p| p.parse().ok()).collect()
}

/// Of this process's ended children, and of theirs, in seconds.
fn cpu_of_children() -> anyhow::Result<f64> {
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("no command")?;
    let ticks = fields.split_whitespace().skip(13).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

/// S0.13: how many hosts of 14 CPUs this machine takes.
pub(super) fn capacity(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    const MIN: f64 = 100.0;
    let recorded = Recorded::new(files)?;
    [(5, "16 on 14 cores"), (10, "4 on 14 cores")]
        .into_iter()
        .map(|(vms, original)| {
            let recording = recorded.of_vms(vms)?;
            let server = recorded.server("")?;
            let address = server.address("read")?;
            let login = ["query", "login"].into_iter().chain(address.iter().map(String::as_str));
            if !server.vmscope(&login.collect::<Vec<_>>())?.status.success() {
                bail!("no login");
            }
            let took = sent(&server, "capacity", &recording, &["--hosts", "60"])?;
            let number = |key: &str| took[key].as_f64().with_context(|| format!("no {key}"));
            let hosts = number("hosts_measured")?;
            Ok(Outcome {
                mark: "S0.13",
                what: format!(
                    "hosts of {CPUS} CPUs and {vms} VMs per server of {} CPUs",
                    std::thread::available_parallelism()?
                ),
                original,
                ours: format!(
                    "{hosts:.0}; a window is transferred in {:.2} s, analysed in {:.2} s",
                    number("t0_ns")? / 1e9,
                    number("t2_ns")? / 1e9
                ),
                limit: "100 on 2 CPUs",
                pass: MIN <= hosts,
            })
        })
        .collect()
}
