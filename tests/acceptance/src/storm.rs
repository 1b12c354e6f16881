//! A fleet whose senders and server are killed again and again: what was acknowledged is there, and counts once.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::fleet::Server;
use crate::{root, vmscope};

const TABLES: [&str; 6] = ["vcpu_time", "cpu_time", "exits", "hosts", "vms", "health"];

/// The server looks for new windows that often: an answer may be that old.
const REMEMBERED: Duration = Duration::from_secs(6);

/// Answers are to be right, however slow a busy machine is.
const PATIENT: &str = "query = { seconds = 300 }";
/// After so many kills answers are checked, however late it is.
const MAX_UNCHECKED: usize = 10;
/// A killed service comes back within this time.
const AWAY: Duration = Duration::from_secs(3);

/// The scale of a replay.
#[derive(Debug, Clone, Default)]
pub struct Storm {
    /// Replayed hosts, of all senders together.
    pub hosts: usize,
    pub senders: usize,
    /// Windows per second, of all senders together.
    pub rate: f64,
    /// For how long processes are killed.
    pub seconds: f64,
    pub kills: usize,
    /// Decides when and whom.
    pub seed: u64,
    /// The program of an S3-compatible service that keeps the objects, and is killed as well. `None`: a folder keeps them.
    pub service: Option<PathBuf>,
}

/// What was left of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Survived {
    /// Kills of senders, of the server, and of the service that keeps its objects.
    pub kills: [usize; 3],
    /// Windows that were acknowledged.
    pub acknowledged: usize,
    /// That are stored: an acknowledgement can be lost with who waits for it.
    pub stored: usize,
    /// Right answers to queries in between, and those of them that were partial.
    pub answers: [usize; 2],
    /// Peak of the server's resident memory, bytes.
    pub server_bytes: u64,
}

/// Runs it; whatever is not as it should be is an error.
///
/// # Errors
/// A window that is lost or counts twice, a wrong answer, a program that can't be started.
pub fn storm(storm: &Storm) -> anyhow::Result<Survived> {
    let mut server = match &storm.service {
        Some(program) => Server::start_over_service(program, PATIENT)?,
        None => Server::start(&[], PATIENT)?,
    };
    let files = tempfile::tempdir()?;
    let login: Vec<String> = server.address("read")?.into();
    let words: Vec<&str> =
        ["query", "login"].into_iter().chain(login.iter().map(String::as_str)).collect();
    if !server.vmscope(&words)?.status.success() {
        bail!("no login");
    }
    let mut senders = Vec::new();
    for number in 0..storm.senders {
        senders.push(Sender::new(&server, storm, number, files.path())?);
    }
    let (mut random, mut survived) = (Random(storm.seed), Survived::default());
    let began = Instant::now();
    for kill in 0..storm.kills {
        let at = storm.seconds * (kill as f64 + random.unit()) / storm.kills as f64;
        std::thread::sleep(Duration::from_secs_f64(at).saturating_sub(began.elapsed()));
        survived.server_bytes = survived.server_bytes.max(peak_memory(server.pid())?);
        match (random.unit(), &mut server.service) {
            (..0.3, _) => {
                server.kill()?;
                server.start_again()?;
                survived.kills[1] += 1;
            }
            (..0.6, Some(service)) => {
                service.kill()?;
                std::thread::sleep(AWAY.mul_f64(random.unit()));
                service.start_again()?;
                survived.kills[2] += 1;
            }
            _ => {
                let number = random.below(senders.len());
                senders[number].kill_and_start()?;
                survived.kills[0] += 1;
            }
        }
        // Over a slow service an answer can take longer than there is between two kills.
        let next = storm.seconds * (kill + 1) as f64 / storm.kills as f64;
        if began.elapsed().as_secs_f64() < next || kill % MAX_UNCHECKED == 0 {
            check_answer(&server, &mut survived)?;
        }
    }
    std::thread::sleep(Duration::from_secs_f64(storm.seconds).saturating_sub(began.elapsed()));
    for sender in &mut senders {
        sender.stop()?;
    }
    survived.server_bytes = survived.server_bytes.max(peak_memory(server.pid())?);
    check_store(&server, files.path(), &mut survived)?;
    std::thread::sleep(REMEMBERED);
    let rows = counted(&server)?;
    if !rows.partial.is_empty() || rows.windows != survived.stored {
        bail!("{} of {} windows are found: {:?}", rows.windows, survived.stored, rows.partial);
    }
    survived.server_bytes = survived.server_bytes.max(peak_memory(server.pid())?);
    Ok(survived)
}

/// Each acknowledged window is stored once, and each stored one has one of each table.
fn check_store(server: &Server, files: &Path, survived: &mut Survived) -> anyhow::Result<()> {
    let raw = server.objects("raw");
    let stored: BTreeSet<String> = raw.iter().filter_map(|path| window_of(path)).collect();
    let mut acknowledged = BTreeSet::new();
    for entry in std::fs::read_dir(files)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "acknowledged") {
            let text = std::fs::read_to_string(path)?;
            acknowledged.extend(text.lines().map(str::to_owned));
        }
    }
    (survived.acknowledged, survived.stored) = (acknowledged.len(), stored.len());
    if raw.len() != stored.len() {
        bail!("{} windows are stored as {} objects", stored.len(), raw.len());
    }
    if let Some(lost) = acknowledged.difference(&stored).next() {
        bail!("{lost} was acknowledged and is not stored");
    }
    for bad in ["failed", "refused"] {
        if let Some(object) = server.objects(bad).first() {
            bail!("{} is there", object.display());
        }
    }
    server.wait_for_results(stored.len())?;
    for table in TABLES {
        let results = server.objects(&format!("results/v1/{table}"));
        let analyzed: BTreeSet<String> =
            results.iter().filter_map(|path| window_of(path)).collect();
        if analyzed != stored || results.len() != stored.len() {
            bail!("{table} has {} objects of {} windows", results.len(), stored.len());
        }
    }
    Ok(())
}

/// `HOST/BOOT/START` of an object's `.../host=HOST/BOOT-START.*`.
fn window_of(object: &Path) -> Option<String> {
    let host = object.parent()?.file_name()?.to_str()?.strip_prefix("host=")?;
    let (boot, start) = object.file_stem()?.to_str()?.split_once('-')?;
    Some(format!("{host}/{boot}/{start}"))
}

/// What the server says of its windows.
struct Counted {
    windows: usize,
    partial: Vec<Value>,
}

fn counted(server: &Server) -> anyhow::Result<Counted> {
    let sql = "SELECT count(*), count(DISTINCT boot), sum(length_ns * cpus), \
               (SELECT sum(ns) FROM cpu_time) FROM hosts";
    let output = server.vmscope(&["query", "sql", sql, "--format", "json"])?;
    if !output.status.success() {
        bail!("vmscope query: {}", String::from_utf8_lossy(&output.stderr));
    }
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let row = &answer["rows"][0];
    let windows = row[0].as_u64().context("no count")?;
    if row[0] != row[1] {
        bail!("windows count twice: {row}");
    }
    // All of a window's tables are looked at, or none.
    if row[2] != row[3] {
        bail!("the CPUs' time does not add up: {row}");
    }
    let partial = answer["partial"].as_array().context("no partial")?.clone();
    Ok(Counted { windows: usize::try_from(windows)?, partial })
}

/// An answer has all windows that were stored for a while at the request, or says that it is partial.
fn check_answer(server: &Server, survived: &mut Survived) -> anyhow::Result<()> {
    let requested = SystemTime::now();
    let answer = counted(server)?;
    let stored = server.objects("raw");
    let is_old = |path: &&PathBuf| {
        let changed = path.metadata().and_then(|data| data.modified());
        changed.is_ok_and(|time| requested.duration_since(time).is_ok_and(|age| REMEMBERED < age))
    };
    let old = stored.iter().filter(is_old).count();
    let is_partial = !answer.partial.is_empty();
    if stored.len() < answer.windows || (answer.windows < old && !is_partial) {
        let Counted { windows, partial } = answer;
        bail!("{windows} windows are found of {old} to {}, and {partial:?}", stored.len());
    }
    survived.answers[0] += 1;
    survived.answers[1] += usize::from(is_partial);
    Ok(())
}

/// The largest memory that a process has had, in bytes.
///
/// # Errors
/// When the process has ended.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line.context("no VmHWM")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// A process that sends as some hosts.
struct Sender {
    words: Vec<String>,
    child: Child,
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sender {
    fn new(server: &Server, storm: &Storm, number: usize, files: &Path) -> anyhow::Result<Self> {
        let name = format!("storm{number}");
        let file = |ending: &str| files.join(format!("{name}.{ending}")).display().to_string();
        let recording = root().join("tests/golden/recording/before-waits");
        let mut words = vec!["replay".to_owned(), recording.display().to_string()];
        words.extend(server.address("agent")?);
        let rate = storm.rate / storm.senders as f64;
        let options = [
            ("--name", name.clone()),
            ("--state", file("state")),
            ("--acknowledged", file("acknowledged")),
            ("--hosts", (storm.hosts / storm.senders).to_string()),
            ("--seconds", "100000".to_owned()),
            ("--rate", rate.to_string()),
            ("--connections", "4".to_owned()),
        ];
        words.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        let child = started(&words)?;
        Ok(Self { words, child })
    }

    fn kill_and_start(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = started(&self.words)?;
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self.child.id().to_string();
        Command::new("kill").arg(pid).status()?;
        let ended = self.child.wait()?;
        if !ended.success() {
            bail!("a sender ended with {ended}");
        }
        Ok(())
    }
}

/// Starts a sender, and waits until its hosts are enrolled.
fn started(words: &[String]) -> anyhow::Result<Child> {
    let mut command = Command::new(vmscope()?);
    let mut child = command.args(words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("no standard error")?).lines();
    let first = lines.next().context("a sender has ended")??;
    if !first.contains("enrolled") {
        bail!("a sender says: {first}");
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    Ok(child)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next()).unwrap_or(0) % limit.max(1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
