//! Plans: TOML, see `docs/lab.md`.

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;

use crate::remedy::{AS_IT_IS, Groups, GuestSettings, Remedy, Scope, Treatment};
use crate::run::file_name;

/// Bytes of a plan at most.
pub const MAX_PLAN_BYTES: usize = 1 << 20;
/// VMs of a step at most: as many as the network of the laboratory has addresses for.
pub const MAX_VMS: u32 = 2000;
/// Remedies of a plan at most.
const MAX_REMEDIES: usize = 32;
/// Steps of a ladder at most.
const MAX_STEPS: usize = 64;

/// What is to be found out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    /// VMs that run already under external load, in the place of VMs that are started.
    #[serde(default)]
    pub attach: Vec<Attached>,
    /// The virtual host, where this machine's own KVM does not run guests.
    #[serde(default)]
    pub host: HostPlan,
    #[serde(default)]
    pub vm: VmPlan,
    /// Requests to the VMs.
    pub load: LoadPlan,
    /// How many VMs, and how long each number is measured.
    pub ladder: Ladder,
    /// What a step has to keep to, for the ladder to go on.
    pub service: ServiceLevel,
    #[serde(default, rename = "remedy")]
    pub remedies: Vec<Remedy>,
}

/// A VM that runs already.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Attached {
    /// Its name, or the id of its process.
    pub name: String,
    /// Where its web server or database is reached; `None`: its packets are not captured.
    pub address: Option<IpAddr>,
}

/// The virtual host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostPlan {
    pub cpus: u32,
    /// Its memory, as "6G".
    pub memory: String,
    /// Its kernel's version, as "6.1"; `None`: this Debian's.
    pub kernel: Option<String>,
}

/// What each VM is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmPlan {
    pub application: Application,
    /// Its vCPUs.
    pub cpus: u32,
    /// Its memory, as "128M".
    pub memory: String,
    /// Its kernel's version, as "6.1"; `None`: this Debian's.
    pub kernel: Option<String>,
    /// How often a second its kernel's timer ticks; `None`: as Debian built it.
    pub timer_hz: Option<u32>,
    /// More of its kernel's command line.
    pub cmdline: String,
}

/// What a VM runs: a web server with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Application {
    /// One static program with SQLite in it.
    #[default]
    Shop,
    /// nginx, a Python application server and PostgreSQL, from Debian's packages.
    Web,
}

/// Requests to the VMs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// Requests a second to all VMs together, whether they are answered or not.
    pub rate: Option<f64>,
    /// Clients that each wait for the answer, and then think, in the place of a rate.
    pub clients: Option<u32>,
    /// How long a client thinks on average, seconds.
    #[serde(default = "one_second")]
    pub think_s: f64,
    /// Times between requests.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Number of loaded VMs.
    #[serde(default)]
    pub targets: Targets,
    #[serde(default)]
    pub choose: Choose,
    /// The path of each request.
    #[serde(default = "root_path")]
    pub path: String,
    /// A request that takes longer has failed, seconds.
    #[serde(default = "ten_seconds")]
    pub timeout_s: f64,
    /// Connections to each VM at most; further requests wait for one, and that time counts.
    #[serde(default = "sixteen")]
    pub connections: u32,
    /// Whether packets are captured while it is measured, so that turnarounds can be split.
    #[serde(default)]
    pub capture: bool,
}

/// Times between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Random, as those of many users who know nothing of each other.
    #[default]
    Poisson,
    Constant,
}

/// Number of loaded VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum Targets {
    #[default]
    All,
    /// So many, and the others are idle.
    First(u32),
}

/// Order of the loaded VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choose {
    #[default]
    Random,
    RoundRobin,
}

/// How many VMs, and how long each number is measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ladder {
    /// VMs of each step, upwards. Of VMs that run already there is one step.
    #[serde(default)]
    pub vms: Vec<u32>,
    /// Load before each measurement, seconds.
    #[serde(default = "three")]
    pub warm_up_s: f64,
    /// Length of a measurement, seconds.
    #[serde(default = "fifteen_seconds")]
    pub measure_s: f64,
    /// Measurements of each remedy at each step.
    #[serde(default = "three_times")]
    pub repetitions: u32,
    /// What random orders and times are made of.
    #[serde(default = "one")]
    pub seed: u64,
    /// Whether the ladder goes on to its end whatever the service level says.
    #[serde(default)]
    pub to_the_end: bool,
    /// Time between samples of a CPU, milliseconds.
    #[serde(default = "one_ms")]
    pub period_ms: f64,
}

/// What a step has to keep to.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLevel {
    /// This percentile of the turnaround ...
    #[serde(default = "ninety_fifth")]
    pub percentile: f64,
    /// ... is no longer than this, milliseconds.
    pub within_ms: f64,
    /// Requests that may fail, as a part of 1.
    #[serde(default = "one_percent")]
    pub errors: f64,
}

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It is no TOML of the documented form.
    #[error("line {line}: {problem}")]
    Form { line: usize, problem: String },
    #[error("it has {0} bytes: at most {MAX_PLAN_BYTES} are allowed")]
    Size(usize),
    /// A value that makes no sense.
    #[error("{key}: {problem}")]
    Value { key: String, problem: String },
}

/// One ladder of a plan: VMs of one kind, and what is tried with them while they run.
#[derive(Debug, Clone, PartialEq)]
pub struct Rungs {
    /// What the guests are like.
    pub guest: GuestSettings,
    /// What is tried: indices of `Plan::treatments`.
    pub treatments: Vec<usize>,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        if MAX_PLAN_BYTES < text.len() {
            return Err(PlanError::Size(text.len()));
        }
        let mut plan: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            PlanError::Form { line, problem: error.message().replace('\n', " ") }
        })?;
        if !plan.attach.is_empty() {
            plan.check_attached()?;
            plan.ladder.vms = vec![u32::try_from(plan.attach.len()).unwrap_or(u32::MAX)];
        }
        plan.check()?;
        Ok(plan)
    }

    /// The text of a plan that measures VMs that run already.
    #[must_use]
    pub fn text_for_attached(vms: &[Attached]) -> String {
        // TOML reads strings as JSON writes them.
        let quoted = |vm: &Attached| serde_json::Value::from(vm.to_string()).to_string();
        let vms: Vec<String> = vms.iter().map(quoted).collect();
        format!(
            "name = \"attached\"\nattach = [{}]\n[load]\n[ladder]\n[service]\nwithin_ms = 1000\n",
            vms.join(", ")
        )
    }

    /// Everything that is measured at each step. The first is what everything is compared with: no remedy.
    ///
    /// # Panics
    /// Never: combinations were checked when the plan was read.
    #[must_use]
    pub fn treatments(&self) -> Vec<Treatment> {
        let base = Treatment::without_remedy(&self.vm);
        let remedies = self.remedies.iter().map(|remedy| {
            let parts = remedy.combine.iter().filter_map(|name| self.remedy(name));
            let all = parts.chain(std::iter::once(remedy));
            all.fold(Treatment { name: remedy.name.clone(), ..base.clone() }, |sum, part| {
                sum.with(part)
            })
        });
        std::iter::once(base.clone()).chain(remedies).collect()
    }

    /// One ladder for each kind of guest, that without remedies first.
    #[must_use]
    pub fn ladders(&self) -> Vec<Rungs> {
        let mut ladders: Vec<Rungs> = Vec::new();
        for (number, treatment) in self.treatments().into_iter().enumerate() {
            match ladders.iter_mut().find(|ladder| ladder.guest == treatment.guest) {
                Some(ladder) => ladder.treatments.push(number),
                None => {
                    ladders.push(Rungs { guest: treatment.guest, treatments: vec![number] });
                }
            }
        }
        ladders
    }

    /// Number of loaded VMs of `vms`.
    #[must_use]
    pub fn loaded(&self, vms: u32) -> u32 {
        match self.load.targets {
            Targets::All => vms,
            Targets::First(n) => n.min(vms),
        }
    }

    /// Memory of a VM, MiB.
    #[must_use]
    pub fn vm_memory_mib(&self) -> u64 {
        mebibytes(&self.vm.memory).unwrap_or(0)
    }

    fn remedy(&self, name: &str) -> Option<&Remedy> {
        self.remedies.iter().find(|remedy| remedy.name == name)
    }

    /// Nothing of VMs that run already is changed, and others ask them.
    fn check_attached(&self) -> Result<(), PlanError> {
        if self.load.rate.is_some() || self.load.clients.is_some() {
            return Err(wrong("load", "the VMs of `attach` have a load generator of their own"));
        }
        if !self.remedies.is_empty() {
            return Err(wrong("remedy", "is not tried on the VMs of `attach`"));
        }
        if !self.ladder.vms.is_empty() {
            return Err(wrong("ladder.vms", "is the number of VMs in `attach`: leave it out"));
        }
        for (number, vm) in self.attach.iter().enumerate() {
            let is_again = |other: &Attached| {
                other.name == vm.name || (vm.address.is_some() && other.address == vm.address)
            };
            if vm.name.is_empty() || self.attach[..number].iter().any(is_again) {
                return Err(wrong("attach", &format!("`{vm}` has no name, or is there twice")));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PlanError> {
        check_name("name", &self.name)?;
        within("host.cpus", f64::from(self.host.cpus), 1.0, 64.0)?;
        let memory = mebibytes(&self.host.memory).unwrap_or(0);
        within("host.memory (MiB)", memory as f64, 512.0, 1_048_576.0)?;
        within("vm.cpus", f64::from(self.vm.cpus), 1.0, 64.0)?;
        let least = self.vm.application.least_mib();
        within("vm.memory (MiB)", self.vm_memory_mib() as f64, least, 1_048_576.0)?;
        for (key, version) in [("host.kernel", &self.host.kernel), ("vm.kernel", &self.vm.kernel)] {
            let is_version =
                |version: &String| version.chars().all(|c| c.is_ascii_digit() || c == '.');
            if version.as_ref().is_some_and(|version| version.is_empty() || !is_version(version)) {
                return Err(wrong(key, "must be a version as \"6.1\""));
            }
        }
        check_timer("vm.timer_hz", self.vm.timer_hz)?;
        check_words("vm.cmdline", &self.vm.cmdline)?;
        if self.attach.is_empty() {
            self.load.check()?;
        }
        self.ladder.check()?;
        self.service.check()?;
        self.check_remedies()
    }

    fn check_remedies(&self) -> Result<(), PlanError> {
        if MAX_REMEDIES < self.remedies.len() {
            return Err(wrong("remedy", &format!("at most {MAX_REMEDIES} are allowed")));
        }
        for treatment in self.treatments() {
            let host = &treatment.host;
            let weighs = host.cpu_weight.is_some() || host.cpu_idle.is_some();
            let is_of_some = !matches!(host.of, None | Some(Scope::All));
            if weighs && is_of_some && host.groups == Some(Groups::One) {
                let key = format!("remedy `{}`", treatment.name);
                return Err(wrong(&key, "one group of all VMs has no weight of some VMs"));
            }
        }
        for (number, remedy) in self.remedies.iter().enumerate() {
            remedy.check()?;
            let key = format!("remedy `{}`", remedy.name);
            let before = &self.remedies[..number];
            let names = before.iter().map(|other| other.name.as_str()).chain([AS_IT_IS]);
            if { names }.any(|other| file_name(other) == file_name(&remedy.name)) {
                return Err(wrong(&key, "there are two of this name, by letters and digits"));
            }
            for name in &remedy.combine {
                let part = before.iter().find(|other| other.name == *name);
                match part {
                    None => {
                        return Err(wrong(&key, &format!("combine: no remedy `{name}` before it")));
                    }
                    Some(part) if !part.combine.is_empty() => {
                        let problem = format!("combine: `{name}` is itself a combination");
                        return Err(wrong(&key, &problem));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl Application {
    /// Memory that it needs, MiB.
    fn least_mib(self) -> f64 {
        match self {
            Self::Shop => 96.0,
            Self::Web => 256.0,
        }
    }
}

impl LoadPlan {
    fn check(&self) -> Result<(), PlanError> {
        match (self.rate, self.clients) {
            (Some(rate), None) => within("load.rate", rate, 0.001, 1e6)?,
            (None, Some(clients)) => within("load.clients", f64::from(clients), 1.0, 10_000.0)?,
            _ => return Err(wrong("load", "needs either `rate` or `clients`")),
        }
        within("load.think_s", self.think_s, 0.0, 3600.0)?;
        within("load.timeout_s", self.timeout_s, 0.001, 600.0)?;
        within("load.connections", f64::from(self.connections), 1.0, 1000.0)?;
        let is_path = self.path.starts_with('/')
            && self.path.len() <= 1000
            && self.path.chars().all(|c| c.is_ascii_graphic());
        if is_path { Ok(()) } else { Err(wrong("load.path", "must be as \"/page?category=1\"")) }
    }
}

impl Ladder {
    fn check(&self) -> Result<(), PlanError> {
        let rises = self.vms.windows(2).all(|pair| pair[0] < pair[1]);
        if self.vms.is_empty() || !rises || MAX_STEPS < self.vms.len() {
            let problem = format!("needs 1 to {MAX_STEPS} numbers, each greater than the last");
            return Err(wrong("ladder.vms", &problem));
        }
        for vms in &self.vms {
            within("ladder.vms", f64::from(*vms), 1.0, f64::from(MAX_VMS))?;
        }
        within("ladder.warm_up_s", self.warm_up_s, 0.0, 3600.0)?;
        within("ladder.measure_s", self.measure_s, 1.0, 3600.0)?;
        within("ladder.repetitions", f64::from(self.repetitions), 1.0, 1000.0)?;
        within("ladder.period_ms", self.period_ms, 0.1, 100.0)
    }
}

impl ServiceLevel {
    fn check(&self) -> Result<(), PlanError> {
        within("service.percentile", self.percentile, 1.0, 99.99)?;
        within("service.within_ms", self.within_ms, 0.001, 600_000.0)?;
        within("service.errors", self.errors, 0.0, 1.0)
    }
}

impl From<String> for Attached {
    /// `web`, `web=10.0.0.2`.
    fn from(text: String) -> Self {
        let parts = text.rsplit_once('=');
        match parts.and_then(|(name, address)| Some((name, address.parse().ok()?))) {
            Some((name, address)) => Self { name: name.to_owned(), address: Some(address) },
            None => Self { name: text, address: None },
        }
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.address.map_or(Ok(()), |address| write!(f, "={address}"))
    }
}

impl Default for HostPlan {
    fn default() -> Self {
        Self { cpus: 2, memory: "4G".to_owned(), kernel: None }
    }
}

impl Default for VmPlan {
    fn default() -> Self {
        Self {
            application: Application::Shop,
            cpus: 1,
            memory: "128M".to_owned(),
            kernel: None,
            timer_hz: None,
            cmdline: String::new(),
        }
    }
}

impl TryFrom<toml::Value> for Targets {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        let number = value.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| 0 < *n);
        match (value.as_str(), number) {
            (Some("all"), _) => Ok(Self::All),
            (_, Some(n)) => Ok(Self::First(n)),
            _ => Err("targets must be \"all\" or a number of VMs"),
        }
    }
}

/// `512M`, `4G` in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "M" => Some(number),
        "G" => number.checked_mul(1024),
        _ => None,
    }
}

pub(crate) fn wrong(key: &str, problem: &str) -> PlanError {
    PlanError::Value { key: key.to_owned(), problem: problem.to_owned() }
}

pub(crate) fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), PlanError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, &format!("{value} is not within {low} to {high}")))
}

/// Names of remedies and plans stand in tables and become parts of file names.
pub(crate) fn check_name(key: &str, name: &str) -> Result<(), PlanError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || " -_.,+=".contains(c);
    let is_name = (1..=40).contains(&name.len()) && name.chars().all(fine);
    if is_name && name.trim() == name {
        return Ok(());
    }
    Err(wrong(key, &format!("`{name}` must be 1 to 40 letters, digits, blanks or -_.,+=")))
}

pub(crate) fn check_words(key: &str, words: &str) -> Result<(), PlanError> {
    if words.len() <= 1000 && words.chars().all(|c| matches!(c, ' '..='~')) {
        return Ok(());
    }
    Err(wrong(key, "must be at most 1000 printable ASCII characters"))
}

pub(crate) fn check_timer(key: &str, hz: Option<u32>) -> Result<(), PlanError> {
    hz.map_or(Ok(()), |hz| within(key, f64::from(hz), 17.0, 1000.0))
}

fn one_second() -> f64 {
    1.0
}

fn ten_seconds() -> f64 {
    10.0
}

fn fifteen_seconds() -> f64 {
    15.0
}

fn three() -> f64 {
    3.0
}

fn one_ms() -> f64 {
    1.0
}

fn ninety_fifth() -> f64 {
    95.0
}

fn one_percent() -> f64 {
    0.01
}

fn sixteen() -> u32 {
    16
}

fn three_times() -> u32 {
    3
}

fn one() -> u64 {
    1
}

fn root_path() -> String {
    "/".to_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    const MIN: &str =
        "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2]\n[service]\nwithin_ms = 100\n";

    fn check(more: &str, expected: &str) {
        let problem = Plan::parse(&format!("{MIN}{more}")).map_err(|error| error.to_string());
        assert_eq!(problem.err().unwrap_or_default(), expected, "{more}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        check("", "");
        check(
            "[vm]\ncpu = 1\n",
            "line 9: unknown field `cpu`, expected one of `application`, `cpus`, `memory`, `kernel`, `timer_hz`, `cmdline`",
        );
        check("[vm]\nmemory = \"12\"\n", "vm.memory (MiB): 0 is not within 96 to 1048576");
        check("[vm]\nkernel = \"6.1; x\"\n", "vm.kernel: must be a version as \"6.1\"");
        check(
            "[[remedy]]\nname = \"a/b\"\nnice = 1\n",
            "remedy.name: `a/b` must be 1 to 40 letters, digits, blanks or -_.,+=",
        );
        check("[[remedy]]\nname = \"a\"\n", "remedy `a`: changes nothing");
        check("[[remedy]]\nname = \"a\"\nnise = 1\n", "line 8: unknown field `nise`");
        check(
            "[[remedy]]\nname = \"a\"\nnice = 20\n",
            "remedy `a`, nice: 20 is not within -20 to 19",
        );
        check(
            "[[remedy]]\nname = \"a\"\ncombine = [\"b\"]\n",
            "remedy `a`: combine: no remedy `b` before it",
        );
        check(
            "[[remedy]]\nname = \"a\"\nguest_timer_hz = 16\n",
            "remedy `a`, guest_timer_hz: 16 is not within 17 to 1000",
        );
        let twice = "[[remedy]]\nname = \"a b\"\nnice = 1\n[[remedy]]\nname = \"a-b\"\nnice = 2\n";
        check(twice, "remedy `a-b`: there are two of this name, by letters and digits");
        check(
            "[[remedy]]\nname = \"a\"\ngroups = \"one\"\nof = \"idle\"\ncpu_weight = 1\n",
            "remedy `a`: one group of all VMs has no weight of some VMs",
        );
        check(
            "[[remedy]]\nname = \"as it is\"\nnice = 1\n",
            "remedy `as it is`: there are two of this name, by letters and digits",
        );
        let plan = MIN.replace("[1, 2]", "[2, 1]");
        let problem = Plan::parse(&plan).unwrap_err().to_string();
        assert_eq!(problem, "ladder.vms: needs 1 to 64 numbers, each greater than the last");
        let plan = MIN.replace("rate = 10", "rate = 10\nclients = 2");
        let problem = Plan::parse(&plan).unwrap_err().to_string();
        assert_eq!(problem, "load: needs either `rate` or `clients`");
    }

    #[test]
    fn remedies_of_guests_have_ladders_of_their_own() {
        let remedies = "[vm]\ncmdline = \"nohz=off\"\n\
            [[remedy]]\nname = \"nice\"\nnice = 19\n\
            [[remedy]]\nname = \"tickless\"\nguest_cmdline = \"nohz=on\"\n\
            [[remedy]]\nname = \"both\"\ncombine = [\"nice\", \"tickless\"]\n\
            [[remedy]]\nname = \"weight\"\ncpu_weight = 5\n\
            [[remedy]]\nname = \"17 Hz\"\nguest_timer_hz = 17\n\
            [[remedy]]\nname = \"all\"\nhuge_pages = true\npause_loop_exiting = false\ncombine = [\"17 Hz\", \"nice\"]\n";
        let plan = Plan::parse(&format!("{MIN}{remedies}")).unwrap();
        let treatments = plan.treatments();
        let names: Vec<&str> = treatments.iter().map(|treatment| treatment.name.as_str()).collect();
        assert_eq!(names, ["as it is", "nice", "tickless", "both", "weight", "17 Hz", "all"]);
        assert_eq!(treatments[3].host.nice, Some(19));
        let ladders: Vec<(String, Vec<usize>)> =
            plan.ladders().into_iter().map(|l| (l.guest.to_string(), l.treatments)).collect();
        assert_eq!(
            ladders,
            [
                ("nohz=off".to_owned(), vec![0, 1, 4]),
                ("nohz=on".to_owned(), vec![2, 3]),
                ("nohz=off, 17 Hz".to_owned(), vec![5]),
                ("nohz=off, 17 Hz, huge pages, without pause-loop exiting".to_owned(), vec![6]),
            ]
        );
    }

    #[test]
    fn targets_are_all_or_so_many() {
        let check = |text: &str, vms, expected| {
            let plan = MIN.replace("rate = 10", &format!("rate = 10\n{text}"));
            assert_eq!(Plan::parse(&plan).ok().map(|plan| plan.loaded(vms)), expected, "{text}");
        };
        check("", 7, Some(7));
        check("targets = \"all\"", 7, Some(7));
        check("targets = 3", 7, Some(3));
        check("targets = 3", 2, Some(2));
        check("targets = 0", 2, None);
        check("targets = \"some\"", 2, None);
    }

    #[test]
    fn vms_that_run_already_are_only_watched() {
        let vms = ["web=10.0.0.2", "a=b", "\"=fd00::2"].map(|vm| Attached::from(vm.to_owned()));
        assert_eq!(vms[1], Attached { name: "a=b".to_owned(), address: None });
        let text = Plan::text_for_attached(&vms);
        let plan = Plan::parse(&text).unwrap();
        assert_eq!((&plan.attach[..], &plan.ladder.vms[..]), (&vms[..], &[3][..]));
        let check = |from: &str, to: &str, expected: &str| {
            let error = Plan::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("[load]", "[load]\nrate = 1", "a load generator of their own");
        check("[ladder]", "[ladder]\nvms = [1]", "leave it out");
        check("[load]", "[[remedy]]\nname = \"x\"\nnice = 1\n[load]", "not tried");
        check("a=b", "web", "`web` has no name, or is there twice");
        check("a=b", "b=10.0.0.2", "twice");
    }
}
