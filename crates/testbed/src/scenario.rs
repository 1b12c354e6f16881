//! Scenario files: one TOML file, one experiment anyone can rerun.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::error::Error;
use crate::workload::Workload;

mod step;

pub use step::{Action, Step};

/// A CPU quota below it would be less than the kernel's smallest, 1 ms of every 100.
const SMALLEST_QUOTA: f64 = 0.01;

/// One experiment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    #[serde(default)]
    pub host: Host,
    #[serde(default, rename = "guest")]
    pub guests: Vec<Guest>,
    /// Workloads run on the host itself.
    #[serde(default, rename = "native")]
    pub natives: Vec<Native>,
    /// What `vmscope testbed steps` does, in this order.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
    /// A second host, joined to this one by a network.
    #[serde(default)]
    pub peer: Option<Box<Scenario>>,
}

/// The KVM host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Whose virtualisation it has.
    pub cpu: HostCpu,
    pub cpus: u32,
    pub memory: Size,
    pub kernel: GuestKernel,
    /// Its time counts its own instructions, so that what something costs comes out the same whatever
    /// else this machine does. One CPU only.
    pub deterministic: bool,
    /// Its kernel trusts the CPUs' time-stamp counters, as kernels do on real machines: reading the time is quick, and
    /// its guests' clocks run evenly.
    pub reliable_tsc: bool,
    /// It reaches this machine's loopback at 10.20.0.1.
    pub uplink: bool,
    /// Its disk, if it is to have one: `/dev/vda`, empty.
    pub disk: Option<Drive>,
    /// Its NUMA nodes; without them it has one.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
    /// More of its kernel's command line.
    pub cmdline: String,
    /// What to run when the command line names nothing.
    pub command: Option<String>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            cpu: HostCpu::Amd,
            cpus: 2,
            memory: Size::mebibytes(3072),
            kernel: GuestKernel::Default,
            deterministic: false,
            reliable_tsc: false,
            uplink: false,
            disk: None,
            nodes: Vec::new(),
            cmdline: String::new(),
            command: None,
        }
    }
}

/// The vendor of the virtual host's CPUs, and so what emulates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostCpu {
    /// QEMU's emulation of SVM.
    #[default]
    Amd,
    /// Bochs's emulation of VMX. One CPU and one guest only.
    Intel,
}

/// A NUMA node of the host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub memory: Size,
    #[serde(default)]
    pub cpus: Vec<u32>,
    /// How far each node is from it, itself (10) included.
    #[serde(default)]
    pub distances: Vec<u8>,
}

/// An empty disk.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    pub size: Size,
    /// Requests a second at most, so that it takes its time as a real one does.
    #[serde(default)]
    pub iops: Option<u32>,
}

/// One guest.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Its name, as QEMU and reports show it.
    pub name: String,
    #[serde(default = "one")]
    pub cpus: u32,
    /// How many vCPUs it can have after hot-plug.
    #[serde(default)]
    pub max_cpus: Option<u32>,
    #[serde(default = "guest_memory")]
    pub memory: Size,
    /// The pCPU of each vCPU; without it they float.
    #[serde(default)]
    pub pin: Vec<u32>,
    /// How many CPUs' time its QEMU may use, as a CPU quota of a control group; without it, all it gets.
    #[serde(default)]
    pub quota: Option<f64>,
    #[serde(default)]
    pub kernel: GuestKernel,
    /// How often a second its kernel's timer ticks, in the place of Debian's 250: its kernel is then built from source, once.
    #[serde(default)]
    pub timer_hz: Option<u32>,
    /// More of its kernel's command line.
    #[serde(default)]
    pub cmdline: String,
    /// More modules that its kernel loads.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Whether it boots again when it is reset; otherwise its QEMU ends.
    #[serde(default)]
    pub reboot: bool,
    /// Whether it is in one network with the host and the other guests.
    #[serde(default)]
    pub network: bool,
    #[serde(default, deserialize_with = "workloads")]
    pub workload: Vec<Workload>,
    /// How its `vmscope-guest` is reached.
    #[serde(default)]
    pub channel: Channel,
    /// Whether it is a microvm, not a PC: emulated VMX is so slow that the firmware and the devices of a PC take too long.
    #[serde(skip)]
    pub is_microvm: bool,
    /// A root folder or disk image to use in place of the built root.
    #[serde(default)]
    pub root: Option<PathBuf>,
    /// The Debian packages of its root: a minimal Debian and these, in place of the built root.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Whether the host's disk is the guest's, too: what the host writes to it before the guest mounts it is there.
    #[serde(default)]
    pub host_disk: bool,
    /// The program of `root` that becomes its PID 1, when it is to boot by itself.
    #[serde(default)]
    pub init: Option<PathBuf>,
    #[serde(default)]
    pub start: When,
    /// When it is ended, if before the command.
    #[serde(default)]
    pub stop: Option<When>,
    /// Whether the command may migrate it: its QEMU may end, and others may take it in.
    #[serde(default)]
    pub migrates: bool,
}

/// A workload run on the host itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Native {
    pub workload: Workload,
    /// The pCPU it is pinned to.
    pub pin: Option<u32>,
}

/// How the host reaches `vmscope-guest` in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    #[default]
    Vsock,
    /// A virtio-serial port.
    Serial,
    /// Not at all; `vmscope-guest` is not started.
    None,
}

/// When a guest starts or stops.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum When {
    /// Before the command.
    #[default]
    Before,
    /// So long after the command started.
    After(Duration),
    /// Never: a QEMU that the command starts takes it in.
    Arrives,
}

/// Which kernel to boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GuestKernel {
    /// What Debian's `linux-image` package stands for on this machine.
    #[default]
    Default,
    /// A Debian kernel whose version begins so, as in "6.1".
    Version(String),
    /// A folder with `boot/vmlinuz-RELEASE` and `lib/modules/RELEASE`.
    Folder(PathBuf),
}

/// A size of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl Size {
    /// A size in MiB.
    pub const fn mebibytes(n: u64) -> Self {
        Self(n)
    }

    /// The size in MiB.
    pub fn as_mebibytes(self) -> u64 {
        self.0
    }
}

impl Scenario {
    /// Reads a scenario file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        Self::parse(path, &text)
    }

    /// Reads a scenario; `path` is its name in messages and the start of relative paths.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let wrong = |line, problem| Error::Scenario { path: path.to_owned(), line, problem };
        let mut scenario: Self = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            wrong(line, error.message().replace('\n', " "))
        })?;
        scenario.check().map_err(|problem| wrong(None, problem))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_microvm = scenario.host.cpu == HostCpu::Intel;
        let peers = scenario.peer.iter_mut().flat_map(|peer| &mut peer.guests);
        for guest in scenario.guests.iter_mut().chain(peers) {
            guest.is_microvm = is_microvm;
            if let Some(root) = &mut guest.root {
                *root = folder.join(&*root);
            }
        }
        Ok(scenario)
    }

    /// The guest of this name.
    pub fn guest(&self, name: &str) -> Option<&Guest> {
        self.guests.iter().find(|guest| guest.name == name)
    }

    /// What of it only a virtual host has, if anything.
    pub(crate) fn needs_virtual_host(&self) -> Option<&'static str> {
        let host = &self.host;
        let on_host = |step: &Step| step.guest.is_none() && matches!(step.action, Action::Run(_));
        let needs = [
            (host.cpu == HostCpu::Intel, "an emulated Intel CPU"),
            (host.deterministic, "time that counts instructions"),
            (host.disk.is_some(), "a disk of its own"),
            (!host.nodes.is_empty(), "NUMA nodes of its own"),
            (!host.cmdline.is_empty(), "a kernel command line of its own"),
            (self.taps().is_some(), "a network of its own"),
            (self.peer.is_some(), "a second host beside it"),
            (self.steps.iter().any(on_host), "steps on the host"),
        ];
        needs.into_iter().find_map(|(needed, what)| needed.then_some(what))
    }

    /// How many places for guests the host's network has, if there is one.
    pub(crate) fn taps(&self) -> Option<usize> {
        self.guests.iter().any(|guest| guest.network).then_some(self.guests.len())
    }

    fn check(&self) -> Result<(), String> {
        check_name("name", &self.name)?;
        check_range("host.cpus", u64::from(self.host.cpus), 1, 64)?;
        check_range("host.memory (MiB)", self.host.memory.0, 512, 1 << 20)?;
        if let Some(Drive { size, iops }) = self.host.disk {
            check_range("host.disk.size (MiB)", size.0, 1, 1 << 20)?;
            check_range("host.disk.iops", u64::from(iops.unwrap_or(1)), 1, 1 << 20)?;
        }
        if self.host.deterministic && self.host.cpus != 1 {
            return Err("host.deterministic: needs `cpus = 1`".to_owned());
        }
        if 1 < self.guests.iter().filter(|guest| guest.host_disk).count() {
            return Err("guest.host_disk: only one guest can have the host's disk".to_owned());
        }
        for (i, guest) in self.guests.iter().enumerate() {
            guest.check(&self.host)?;
            if self.guests[..i].iter().any(|other| other.name == guest.name) {
                return Err(format!("guest.name: two guests are called `{}`", guest.name));
            }
        }
        self.natives
            .iter()
            .filter_map(|native| native.pin)
            .try_for_each(|pin| check_pin("native.pin", pin, &self.host))?;
        self.host.check_nodes()?;
        self.check_intel()?;
        check_cmdline("host.cmdline", &self.host.cmdline)?;
        step::check(&self.steps, |name| self.guest(name).is_some())?;
        self.peer.as_ref().map_or(Ok(()), |peer| self.check_peer(peer))
    }

    /// What Bochs does not emulate, or what hangs in it, is refused.
    fn check_intel(&self) -> Result<(), String> {
        if self.host.cpu != HostCpu::Intel {
            return Ok(());
        }
        let host = &self.host;
        if host.cpus != 1 {
            return Err("host.cpu: an Intel host needs `cpus = 1`".to_owned());
        }
        check_range("host.memory (MiB) of an Intel host", host.memory.0, 512, 3072)?;
        let guest_has = |has: fn(&Guest) -> bool| self.guests.iter().any(has);
        let odd = [
            (host.deterministic, "`deterministic` time"),
            (host.disk.is_some(), "a `disk`"),
            (!host.nodes.is_empty(), "`node`s"),
            (host.uplink, "an `uplink`"),
            (self.peer.is_some(), "a `peer`"),
            (1 < self.guests.len(), "more than one guest"),
            (
                guest_has(|guest| guest.cpus != 1 || guest.max_cpus.is_some()),
                "guests with more than one vCPU",
            ),
            (guest_has(|guest| guest.network), "guests with a `network`"),
            (
                guest_has(|guest| guest.migrates || guest.start == When::Arrives),
                "guests that migrate",
            ),
        ];
        match odd.into_iter().find(|(is_odd, _)| *is_odd) {
            Some((_, what)) => Err(format!("host.cpu: an Intel host can't have {what}")),
            None => Ok(()),
        }
    }

    fn check_peer(&self, peer: &Self) -> Result<(), String> {
        let odd = [
            (peer.host.cpu == HostCpu::Intel, "an Intel CPU"),
            (peer.peer.is_some(), "a peer of its own"),
            (!peer.steps.is_empty(), "steps"),
            (peer.host.deterministic || self.host.deterministic, "deterministic time"),
        ];
        if let Some((_, what)) = odd.into_iter().find(|(is_odd, _)| *is_odd) {
            return Err(format!("peer: two hosts can't have {what}"));
        }
        if peer.name == self.name {
            return Err(format!("peer.name: both hosts are called `{}`", self.name));
        }
        peer.check().map_err(|problem| format!("peer.{problem}"))
    }
}

impl Host {
    /// Each CPU is in one node, and the nodes' memory is the host's.
    fn check_nodes(&self) -> Result<(), String> {
        let Self { nodes, cpus, memory, .. } = self;
        if nodes.is_empty() {
            return Ok(());
        }
        let mut placed: Vec<u32> = nodes.iter().flat_map(|node| node.cpus.clone()).collect();
        placed.sort_unstable();
        if placed != (0..*cpus).collect::<Vec<_>>() {
            return Err(format!("host.node, cpus: each of 0 to {} must be in one node", cpus - 1));
        }
        if nodes.iter().map(|node| node.memory.0).sum::<u64>() != memory.0 {
            return Err(format!("host.node, memory: must add up to host.memory, {} MiB", memory.0));
        }
        let n = nodes.len();
        let given =
            |node: &Node| node.distances.len() == n && node.distances.iter().all(|&d| d >= 10);
        if nodes.iter().any(|node| !node.distances.is_empty() && !given(node)) {
            return Err(format!("host.node, distances: must be {n} numbers of at least 10"));
        }
        Ok(())
    }
}

impl Guest {
    fn check(&self, host: &Host) -> Result<(), String> {
        let key = |name: &str| format!("guest `{}`, {name}", self.name);
        check_name("guest.name", &self.name)?;
        check_range(&key("cpus"), u64::from(self.cpus), 1, 64)?;
        check_range(&key("memory (MiB)"), self.memory.0, 96, 1 << 20)?;
        if let Some(max) = self.max_cpus {
            check_range(&key("max_cpus"), u64::from(max), u64::from(self.cpus), 64)?;
        }
        if let Some(hz) = self.timer_hz {
            check_range(&key("timer_hz"), u64::from(hz), 17, 1000)?;
            if self.channel != Channel::None {
                return Err(format!("{}: needs `channel = \"none\"`", key("timer_hz")));
            }
        }
        check_cmdline(&key("cmdline"), &self.cmdline)?;
        if !self.pin.is_empty() && self.pin.len() != self.cpus as usize {
            return Err(format!(
                "{}: {} given for {} vCPUs",
                key("pin"),
                self.pin.len(),
                self.cpus
            ));
        }
        if let Some(quota) = self.quota {
            check_quota(&key("quota"), quota, self.cpus)?;
        }
        if matches!(self.stop, Some(When::Before | When::Arrives)) {
            return Err(format!("{}: must be {{ after = SECONDS }}", key("stop")));
        }
        if self.host_disk && host.disk.is_none() {
            return Err(format!("{}: needs `host.disk`", key("host_disk")));
        }
        if self.init.is_some() && self.root.is_none() {
            return Err(format!("{}: needs `root`", key("init")));
        }
        if !self.packages.is_empty() && self.root.is_some() {
            return Err(format!("{}: `root` is given too", key("packages")));
        }
        self.packages.iter().try_for_each(|name| check_package(&key("packages"), name))?;
        self.pin.iter().try_for_each(|&pin| check_pin(&key("pin"), pin, host))
    }
}

fn check_name(key: &str, name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 40 || !name.chars().all(fine) || name.starts_with(['.', '-'])
    {
        return Err(format!("{key}: `{name}` must be 1 to 40 letters, digits, `-`, `_` or `.`"));
    }
    Ok(())
}

fn check_range(key: &str, value: u64, low: u64, high: u64) -> Result<(), String> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(format!("{key}: {value} is not within {low} to {high}"))
    }
}

fn check_quota(key: &str, quota: f64, cpus: u32) -> Result<(), String> {
    if (SMALLEST_QUOTA..=f64::from(cpus)).contains(&quota) {
        Ok(())
    } else {
        Err(format!("{key}: {quota} is not within {SMALLEST_QUOTA} to {cpus}"))
    }
}

fn check_cmdline(key: &str, words: &str) -> Result<(), String> {
    if words.len() <= 1000 && words.chars().all(|c| matches!(c, ' '..='~')) {
        Ok(())
    } else {
        Err(format!("{key}: must be at most 1000 printable ASCII characters"))
    }
}

/// Names of packages become words of a command line.
fn check_package(key: &str, name: &str) -> Result<(), String> {
    let fine =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
    if name.chars().all(fine) && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Ok(())
    } else {
        Err(format!("{key}: `{name}` is not a package name"))
    }
}

fn check_pin(key: &str, pin: u32, host: &Host) -> Result<(), String> {
    if pin < host.cpus {
        Ok(())
    } else {
        Err(format!("{key}: the host has CPUs 0 to {}", host.cpus - 1))
    }
}

fn one() -> u32 {
    1
}

fn guest_memory() -> Size {
    Size::mebibytes(256)
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = match text.split_at_checked(text.len().saturating_sub(1)) {
            Some((number, "G")) => number.parse::<u64>().ok().and_then(|n| n.checked_mul(1024)),
            Some((number, "M")) => number.parse().ok(),
            _ => None,
        };
        parsed.map(Self).ok_or_else(|| {
            de::Error::custom(format!("size `{text}` must look like \"512M\" or \"2G\""))
        })
    }
}

impl<'de> Deserialize<'de> for GuestKernel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.contains('/') {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_digit() || c == '.') {
            return Err(de::Error::custom(format!(
                "kernel `{text}` must be a version as \"6.1\", or a folder"
            )));
        }
        Ok(Self::Version(text))
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Times;
        impl<'de> Visitor<'de> for Times {
            type Value = When;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"before\", \"arrives\" or { after = SECONDS }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<When, E> {
                match text {
                    "before" => Ok(When::Before),
                    "arrives" => Ok(When::Arrives),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<When, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct After {
                    after: f64,
                }
                let after = After::deserialize(de::value::MapAccessDeserializer::new(map))?.after;
                Duration::try_from_secs_f64(after)
                    .map(When::After)
                    .map_err(|_| de::Error::custom("after: must not be negative"))
            }
        }
        deserializer.deserialize_any(Times)
    }
}

fn workloads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Workload>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Workload>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a workload such as \"compute\", or a list of them")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Workload::parse(text).map(|workload| vec![workload]).map_err(E::custom)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(workload) = seq.next_element()? {
                all.push(workload);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(List)
}

#[cfg(test)]
mod tests;
