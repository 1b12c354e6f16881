//! The daemon's configuration file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::config_file::{ConfigError, within};
use serde::Deserialize;

use crate::template::Template;

/// VMs that may come, at most.
const MAX_INCOMING: usize = 1024;
/// The policy that leaves everything to the kernel.
pub const NO_POLICY: &str = "none";

/// What the daemon is to do: `docs/layout.md` explains each key.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where other hosts' daemons reach this one. Without it no VM can come.
    pub listen: Option<SocketAddr>,
    /// The file that names the other hosts.
    pub peers: PathBuf,
    /// Folder of everything that the daemon keeps.
    pub state: PathBuf,
    /// The socket of `vmscope migrate`.
    pub socket: PathBuf,
    /// The policy of VMs that come, if their source does not name one.
    pub policy: String,
    /// How VMs use memory, by their names, in place of counting.
    pub counters: Option<PathBuf>,
    /// Bytes of memory to move a second at most.
    pub move_bytes_per_s: u64,
    /// How long residents may be moved before a VM comes, seconds: 0 to 600.
    pub move_residents_s: u64,
    /// Whether memory is allocated before a VM comes.
    pub prealloc: bool,
    /// Older counters are not used, seconds: 1 to 3600.
    pub oldest_counters_s: u64,
    /// Where QEMUs wait for VMs; without it at the address of `listen`.
    pub migration_address: Option<IpAddr>,
    /// The ports that they may take.
    pub migration_ports: [u16; 2],
    /// How long a VM may stand still for its migration, milliseconds: 1 to 60000.
    pub downtime_ms: u64,
    /// Bytes a second that a migration may send; without it, as many as QEMU likes.
    pub bandwidth: Option<u64>,
    /// Seconds until a migration that sends nothing is given up: 1 to 3600.
    pub stall_s: u64,
    /// VMs that may come, and how their QEMUs are started.
    pub incoming: Vec<Incoming>,
}

/// A VM that may come.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incoming {
    pub vm: String,
    /// The peers that it may come from; none: from all.
    #[serde(default)]
    pub from: Vec<String>,
    /// What starts its QEMU.
    pub command: Template,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            peers: PathBuf::from("/etc/vmscope/peers"),
            state: PathBuf::from("/var/lib/vmscope-layout"),
            socket: PathBuf::from("/run/vmscope-layout/socket"),
            policy: "asymsched".to_owned(),
            counters: None,
            move_bytes_per_s: 256 << 20,
            move_residents_s: 60,
            prealloc: true,
            oldest_counters_s: 60,
            migration_address: None,
            migration_ports: [49152, 49215],
            downtime_ms: 300,
            bandwidth: None,
            stall_s: 30,
            incoming: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read, or what it says can't be done.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        cli::config_file::read(path, Self::parse)
    }

    /// Of the text of a file.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = cli::config_file::parse(text)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        within("move_bytes_per_s", self.move_bytes_per_s, 1 << 20..=1 << 50)?;
        within("move_residents_s", self.move_residents_s, 0..=600)?;
        within("oldest_counters_s", self.oldest_counters_s, 1..=3600)?;
        within("downtime_ms", self.downtime_ms, 1..=60_000)?;
        within("stall_s", self.stall_s, 1..=3600)?;
        within("bandwidth", self.bandwidth.unwrap_or(1 << 20), 1 << 10..=1 << 50)?;
        if !is_policy(&self.policy) {
            return Err(format!("policy: {}", policies()));
        }
        let [first, last] = self.migration_ports;
        if first == 0 || last < first {
            return Err("migration_ports must be [FIRST, LAST]".to_owned());
        }
        let paths = [("peers", &self.peers), ("state", &self.state), ("socket", &self.socket)];
        if let Some((key, _)) = paths.into_iter().find(|(_, path)| !path.is_absolute()) {
            return Err(format!("{key} must be an absolute path"));
        }
        if MAX_INCOMING < self.incoming.len() {
            return Err(format!("incoming: at most {MAX_INCOMING} are allowed"));
        }
        let mut names: Vec<&str> = self.incoming.iter().map(|vm| vm.vm.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("incoming: VM {} is there twice", pair[0])),
            None => Ok(()),
        }
    }

    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_s)
    }

    /// The VM of this name, if it may come from this peer.
    pub(crate) fn incoming(&self, vm: &str, peer: &str) -> Option<&Incoming> {
        let may = |incoming: &&Incoming| {
            let from = &incoming.from;
            incoming.vm == vm && (from.is_empty() || from.iter().any(|name| name == peer))
        };
        self.incoming.iter().find(may)
    }
}

/// Whether there is such a policy.
#[must_use]
pub fn is_policy(name: &str) -> bool {
    name == NO_POLICY || layout::POLICIES.contains(&name)
}

/// Names of all policies, for messages.
#[must_use]
pub fn policies() -> String {
    format!("there are {} and {NO_POLICY}", layout::POLICIES.join(", "))
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(text: &str, expected: Result<(), &str>) {
        match (Config::parse(text), expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn the_example_has_the_defaults() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/layout.toml");
        assert_eq!(Config::read(&file).unwrap(), Config::default());
    }

    #[test]
    fn what_can_not_be_done_is_refused_with_the_key() {
        let vm = |name: &str, more: &str| {
            format!("[[incoming]]\nvm = \"{name}\"\ncommand = [\"qemu\"{more}]\n")
        };
        check("", Ok(()));
        check("listen = \"10.0.0.1:9277\"\nmigration_address = \"::1\"", Ok(()));
        check("policy = \"none\"", Ok(()));
        check("policy = \"fast\"", Err("there are simple, dino, asymsched and none"));
        check("move_bytes_per_s = 1", Err("move_bytes_per_s lies between 1048576 and"));
        check("migration_ports = [9, 8]", Err("[FIRST, LAST]"));
        check("state = \"var\"", Err("state must be an absolute path"));
        check("\nlistens = 1", Err("line 2: unknown field `listens`"));
        check(&vm("a", ""), Ok(()));
        check(&(vm("a", "") + &vm("a", "")), Err("VM a is there twice"));
        check(&vm("a", ", \"-incoming\", \"defer\""), Err("-incoming"));
        check("[[incoming]]\nvm = \"a\"\ncommand = []", Err("names no program"));
    }

    #[test]
    fn a_vm_may_come_from_some_peers() {
        let text = "[[incoming]]\nvm = \"a\"\nfrom = [\"kvm1\"]\ncommand = [\"qemu\"]\n\
                    [[incoming]]\nvm = \"b\"\ncommand = [\"qemu\"]";
        let config = Config::parse(text).unwrap();
        let may = |vm, peer| config.incoming(vm, peer).is_some();
        assert_eq!([may("a", "kvm1"), may("a", "kvm2"), may("b", "kvm2")], [true, false, true]);
        assert!(!may("c", "kvm1"));
    }
}
