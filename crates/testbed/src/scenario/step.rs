//! What happens to guests and host while a scenario's command runs: pauses, resets, hot-plug, migration.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When it is due, counted from the first step's beginning.
    pub at: Duration,
    /// Its guest; none is the host.
    pub guest: Option<String>,
    pub action: Action,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Nothing: the steps last until then.
    Wait,
    /// Runs a line in the shell of the guest, or of the host.
    Run(String),
    /// Sends a command to the guest's QEMU.
    Qmp {
        execute: String,
        arguments: Option<Value>,
        /// The event that tells that it is done; without it, QEMU's answer.
        until: Option<String>,
    },
    /// Saves the guest to a file by live migration, ends its QEMU, and has another one take the file in.
    Migrate,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("wait"),
            Self::Run(line) => f.write_str(line),
            Self::Qmp { execute, .. } => f.write_str(execute),
            Self::Migrate => f.write_str("migrate"),
        }
    }
}

/// As a scenario file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    at: f64,
    guest: Option<String>,
    run: Option<String>,
    qmp: Option<String>,
    arguments: Option<Value>,
    until: Option<String>,
    #[serde(default)]
    migrate: bool,
}

impl Table {
    fn step(self) -> Result<Step, String> {
        let at = Duration::try_from_secs_f64(self.at)
            .map_err(|_| "at: must not be negative".to_owned())?;
        if self.qmp.is_none() && (self.arguments.is_some() || self.until.is_some()) {
            return Err("step: `arguments` and `until` need `qmp`".to_owned());
        }
        if self.guest.is_none() && (self.qmp.is_some() || self.migrate) {
            return Err("step: `qmp` and `migrate` need `guest`".to_owned());
        }
        let action = match (self.run, self.qmp, self.migrate) {
            (None, None, false) => Action::Wait,
            (Some(line), None, false) if line.contains('\n') => {
                return Err("step: `run` must be one line".to_owned());
            }
            (Some(line), None, false) => Action::Run(line),
            (None, Some(execute), false) => {
                Action::Qmp { execute, arguments: self.arguments, until: self.until }
            }
            (None, None, true) => Action::Migrate,
            _ => return Err("step: only one of `run`, `qmp` and `migrate`".to_owned()),
        };
        Ok(Step { at, guest: self.guest, action })
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Table::deserialize(deserializer)?.step().map_err(de::Error::custom)
    }
}

/// Steps come one after the other, and know their guests.
pub(super) fn check(steps: &[Step], is_guest: impl Fn(&str) -> bool) -> Result<(), String> {
    if steps.windows(2).any(|pair| pair[1].at < pair[0].at) {
        return Err("step.at: a step is before the one above it".to_owned());
    }
    let mut guests = steps.iter().filter_map(|step| step.guest.as_deref());
    guests
        .find(|name| !is_guest(name))
        .map_or(Ok(()), |name| Err(format!("step.guest: there is no guest `{name}`")))
}
