//! What one measurement showed: one number of VMs, one treatment.

use std::collections::BTreeMap;

use model::TimeAccount;
use serde::{Deserialize, Serialize};

use crate::plan::MAX_VMS;
use crate::turnaround::Turnarounds;

/// Version of the file.
const VERSION: u32 = 1;
/// Bytes of a file at most.
pub const MAX_RUN_BYTES: usize = 16 << 20;
/// CPUs of a host at most.
const MAX_CPUS: usize = 8192;

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of the file.
    version: u32,
    pub key: RunKey,
    pub loaded: u32,
    pub began_unix_ms: u64,
    /// How long it was, by the recording.
    pub window_ns: u64,
    /// Requests to the VMs, and their answers.
    pub load: Load,
    pub host: Host,
    /// What VMs did: loaded ones, and the others.
    pub vms: BTreeMap<Class, Vms>,
    pub cpus: Vec<Cpu>,
    /// Parts of turnarounds by name, if packets were captured.
    #[serde(default)]
    pub parts: BTreeMap<String, PartTime>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Which measurement of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunKey {
    pub vms: u32,
    pub treatment: String,
    /// From 0 on.
    pub repetition: u32,
}

/// Loaded VMs, or idle ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Those that were queried.
    Loaded,
    /// The others.
    Idle,
}

/// The load generator's requests and their turnarounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Time in which requests were meant to be sent, ns.
    pub length_ns: u64,
    pub turnarounds: Turnarounds,
    /// How late the generator itself sent requests, 99th percentile, ns.
    pub late_p99_ns: u64,
    /// CPU time of the generator for this, ns.
    pub cpu_ns: u64,
}

/// What the host did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub context_switches: u64,
    /// Threads that ran or could have run, on average, all CPUs together.
    pub runnable: Option<f64>,
    /// The load average of a minute, at the end.
    pub load_average: Option<f64>,
    pub memory_bytes: u64,
    /// Of it available to more programs.
    pub available_bytes: u64,
    /// What samepage merging saves.
    pub merged_bytes: Option<u64>,
}

/// What VMs of a class did, all vCPUs together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vms {
    pub n: u32,
    /// Time of their vCPUs by account; adds up to the vCPUs' time.
    pub accounts: BTreeMap<String, u64>,
    /// Steal type 1 by who had the CPU.
    pub thieves: BTreeMap<String, u64>,
    /// Steal type 2, and how often, by exit reason.
    pub exits: BTreeMap<String, Exit>,
    /// Interrupts that KVM injected; `None`: not known.
    pub injected: Option<u64>,
    /// Memory that their processes share with no other, bytes; `None`: not known.
    pub private_bytes: Option<u64>,
    /// Memory that their processes have in huge pages, bytes; `None`: not known.
    #[serde(default)]
    pub huge_bytes: Option<u64>,
}

/// VM exits of one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// How long the VMM had the vCPUs for them.
    pub ns: u64,
    /// How often; `None`: not counted.
    pub n: Option<u64>,
}

/// What VMs did during one part of turnarounds, all requests together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartTime {
    pub requests: u64,
    /// Time by account; adds up to the part's time.
    pub accounts: BTreeMap<String, u64>,
    /// Steal type 1 by who had the CPU.
    pub thieves: BTreeMap<String, u64>,
    /// Steal type 2 by exit reason.
    pub exits: BTreeMap<String, u64>,
}

/// What a CPU did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    pub cpu: u32,
    /// Its time, ns: adds up to the window's length.
    pub times: BTreeMap<CpuUse, u64>,
}

/// What a CPU did for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuUse {
    /// Ran guests of loaded VMs.
    LoadedGuest,
    /// Ran KVM and QEMU for them.
    LoadedVmm,
    /// Ran guests of the other VMs.
    IdleGuest,
    /// Ran KVM and QEMU for them.
    IdleVmm,
    Generator,
    Recorder,
    /// Ran anything else of the host.
    Host,
    Idle,
    /// No sample says.
    Unknown,
}

impl Run {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is none, or of another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        if MAX_RUN_BYTES < text.len() {
            return Err(format!(
                "it has {} bytes: at most {MAX_RUN_BYTES} are allowed",
                text.len()
            ));
        }
        let run: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if run.version != VERSION {
            return Err(format!("it is of version {}", run.version));
        }
        let n_cpus = run.cpus.len();
        if !(1..=MAX_VMS).contains(&run.key.vms) || MAX_CPUS < n_cpus {
            return Err(format!("{} VMs on {n_cpus} CPUs are too many or none", run.key.vms));
        }
        Ok(run)
    }

    /// The generator's figures alone.
    #[must_use]
    pub fn new(key: RunKey, loaded: u32, load: Load) -> Self {
        Self {
            version: VERSION,
            key,
            loaded,
            began_unix_ms: 0,
            window_ns: 0,
            load,
            host: Host::default(),
            vms: BTreeMap::new(),
            cpus: Vec::new(),
            parts: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// The run as a JSON file.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(self)
    }

    /// Seconds of the measurement.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.window_ns as f64 / 1e9
    }

    /// CPUs that were busy on average; `None`: nothing was sampled.
    #[must_use]
    pub fn busy_cpus(&self) -> Option<f64> {
        let shares = self.use_shares();
        let idle = shares.get(&CpuUse::Idle).copied().unwrap_or(0.0);
        (!shares.is_empty()).then_some(self.cpus.len() as f64 * (1.0 - idle))
    }

    /// CPU time by use, as a part of the time of which samples tell: what was not sampled was as the rest.
    #[must_use]
    pub fn use_shares(&self) -> BTreeMap<CpuUse, f64> {
        let mut sums: BTreeMap<CpuUse, u64> = BTreeMap::new();
        let times = self.cpus.iter().flat_map(|cpu| &cpu.times);
        for (which, ns) in times.filter(|(which, _)| **which != CpuUse::Unknown) {
            let sum = sums.entry(*which).or_default();
            *sum = sum.saturating_add(*ns);
        }
        let all = sum(sums.values().copied());
        sums.retain(|_, ns| 0 < *ns);
        sums.into_iter().map(|(which, ns)| (which, ns as f64 / all as f64)).collect()
    }

    /// The part of all CPUs' time of which no sample tells.
    #[must_use]
    pub fn unsampled_part(&self) -> f64 {
        let unknown = |cpu: &Cpu| cpu.times.get(&CpuUse::Unknown).copied().unwrap_or(0);
        let all = sum(self.cpus.iter().flat_map(|cpu| cpu.times.values().copied()));
        sum(self.cpus.iter().map(unknown)) as f64 / all.max(1) as f64
    }
}

impl RunKey {
    /// What its folder is called.
    #[must_use]
    pub fn folder(&self) -> String {
        format!("{:04}-{}-{}", self.vms, file_name(&self.treatment), self.repetition + 1)
    }
}

fn to_text(form: &impl Serialize) -> String {
    serde_json::to_string(form).expect("keys of all maps are names")
}

/// A file may come from anywhere: its figures need not make sense.
pub(crate) fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// A treatment as a part of names of folders.
pub(crate) fn file_name(treatment: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || "-_.=+".contains(c) { c } else { '-' };
    treatment.chars().map(fine).collect()
}

impl Load {
    /// Reads what a generator wrote.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// As a generator writes it.
    #[must_use]
    pub fn to_line(&self) -> String {
        to_text(self)
    }

    /// Requests that were answered, a second.
    #[must_use]
    pub fn answered_per_s(&self) -> f64 {
        self.turnarounds.n_answered() as f64 / (self.length_ns.max(1) as f64 / 1e9)
    }

    /// Requests that were meant to be sent, a second.
    #[must_use]
    pub fn sent_per_s(&self) -> f64 {
        self.turnarounds.len() as f64 / (self.length_ns.max(1) as f64 / 1e9)
    }

    /// The part that failed.
    #[must_use]
    pub fn failed_part(&self) -> f64 {
        self.turnarounds.n_failed() as f64 / self.turnarounds.len().max(1) as f64
    }
}

impl Vms {
    /// The time of all vCPUs, ns.
    #[must_use]
    pub fn wall_ns(&self) -> u64 {
        sum(self.accounts.values().copied())
    }

    /// An account's part of it.
    #[must_use]
    pub fn part(&self, account: TimeAccount) -> f64 {
        self.accounts.get(account.name()).copied().unwrap_or(0) as f64
            / self.wall_ns().max(1) as f64
    }

    /// VM exits; `None`: not counted.
    #[must_use]
    pub fn n_exits(&self) -> Option<u64> {
        let counts: Vec<u64> = self.exits.values().filter_map(|exit| exit.n).collect();
        (!counts.is_empty()).then(|| sum(counts.into_iter()))
    }
}

impl PartTime {
    /// How long in all.
    #[must_use]
    pub fn ns(&self) -> u64 {
        sum(self.accounts.values().copied())
    }
}

impl Class {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Idle => "idle",
        }
    }
}

impl CpuUse {
    /// All that samples tell of.
    pub const SAMPLED: [Self; 8] = [
        Self::LoadedGuest,
        Self::LoadedVmm,
        Self::IdleGuest,
        Self::IdleVmm,
        Self::Generator,
        Self::Recorder,
        Self::Host,
        Self::Idle,
    ];

    /// Its name in files.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::LoadedGuest => "loaded_guest",
            Self::LoadedVmm => "loaded_vmm",
            Self::IdleGuest => "idle_guest",
            Self::IdleVmm => "idle_vmm",
            Self::Generator => "generator",
            Self::Recorder => "recorder",
            Self::Host => "host",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_run_comes_back_as_written() {
        let key = RunKey { vms: 12, treatment: "nice 19".to_owned(), repetition: 2 };
        assert_eq!(key.folder(), "0012-nice-19-3");
        let mut turnarounds = Turnarounds::new();
        turnarounds.add(5_000_000);
        turnarounds.add_failed("timeout");
        let length_ns = 10_000_000_000;
        let load = Load { length_ns, turnarounds, late_p99_ns: 7, cpu_ns: 9 };
        let mut run = Run::new(key, 1, load);
        run.window_ns = 15_000_000_000;
        let exits = [("hlt".to_owned(), Exit { ns: 3, n: Some(4) })].into();
        let accounts = [("guest".to_owned(), 30), ("halt".to_owned(), 70)].into();
        let vms = Vms { n: 1, accounts, exits, injected: Some(5), ..Vms::default() };
        run.vms.insert(Class::Loaded, vms);
        run.cpus
            .push(Cpu { cpu: 3, times: [(CpuUse::LoadedGuest, 10), (CpuUse::Idle, 30)].into() });
        let part = PartTime {
            requests: 2,
            accounts: [("guest".to_owned(), 3), ("steal_outside".to_owned(), 4)].into(),
            thieves: [("idle VMs".to_owned(), 4)].into(),
            exits: BTreeMap::new(),
        };
        assert_eq!(part.ns(), 7);
        run.parts.insert("D-W-C".to_owned(), part);
        run.notes.push("a note".to_owned());
        let text = run.to_text();
        assert_eq!(Run::parse(&text), Ok(run.clone()));
        // As version 0.2 wrote it.
        let golden = include_str!("../../../tests/golden/lab/run.json");
        let known: serde_json::Value = serde_json::from_str(golden).unwrap();
        assert_eq!(text, known.to_string());
        assert!((run.busy_cpus().unwrap() - 0.25).abs() < 1e-9);
        assert!((run.vms[&Class::Loaded].part(TimeAccount::Guest) - 0.3).abs() < 1e-9);
        let later = text.replacen("\"version\":1", "\"version\":2", 1);
        assert_eq!(Run::parse(&later), Err("it is of version 2".to_owned()));
    }
}
