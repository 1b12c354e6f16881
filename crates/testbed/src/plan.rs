//! What the launcher tells the part inside the host: one JSON file in the run's folder, read once.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::inside::FOLDER;
use crate::scenario::Scenario;

/// The name of the file.
const FILE: &str = "plan.json";

/// All that is needed to start the guests and the command. Paths are as seen inside the host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// Where the scenario was read from.
    pub(crate) scenario_path: PathBuf,
    /// The scenario's text: it is parsed again there.
    pub(crate) scenario_text: String,
    /// Which of the scenario's hosts it is for.
    pub(crate) seat: Seat,
    /// What each guest boots, in the scenario's order.
    pub(crate) guests: Vec<Boot>,
    /// The command and its arguments.
    pub(crate) command: Vec<String>,
}

/// Which of a scenario's hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Seat {
    /// The one that runs the command.
    Main,
    Peer,
}

impl Seat {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Main => Self::Peer,
            Self::Peer => Self::Main,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Peer => "peer",
        }
    }
}

/// What one guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Its disk, when it has a root of its own.
    pub disk: Option<PathBuf>,
}

impl Boot {
    /// The same files, as the virtual host sees them.
    #[must_use]
    pub fn seen_from_inside(self) -> Self {
        Self {
            kernel: seen_from_inside(&self.kernel),
            initrd: seen_from_inside(&self.initrd),
            disk: self.disk.as_deref().map(seen_from_inside),
        }
    }
}

/// A file of this machine (an absolute path), as the virtual host sees it.
#[must_use]
pub fn seen_from_inside(path: &Path) -> PathBuf {
    Path::new(FOLDER).join("machine").join(path.strip_prefix("/").unwrap_or(path))
}

impl Plan {
    /// The part of the scenario that is about this host.
    pub(crate) fn scenario(&self) -> Result<Scenario, Error> {
        self.scenario_of(self.seat)
    }

    pub(crate) fn scenario_of(&self, seat: Seat) -> Result<Scenario, Error> {
        let scenario = Scenario::parse(&self.scenario_path, &self.scenario_text)?;
        match seat {
            Seat::Main => Ok(scenario),
            Seat::Peer => scenario.peer.map(|peer| *peer).ok_or(Error::NoPeer),
        }
    }

    /// Whether the scenario has two hosts.
    pub(crate) fn has_peer(&self) -> bool {
        self.scenario_of(Seat::Peer).is_ok()
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        let guests: Vec<Value> = self
            .guests
            .iter()
            .map(|boot| json!({ "kernel": boot.kernel, "initrd": boot.initrd, "disk": boot.disk }))
            .collect();
        let plan = json!({
            "scenario_path": self.scenario_path,
            "scenario_text": self.scenario_text,
            "seat": self.seat.name(),
            "guests": guests,
            "command": self.command,
        });
        let path = folder.join(FILE);
        std::fs::write(&path, plan.to_string()).map_err(Error::io("write", &path))
    }

    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        serde_json::from_str(&text).map_err(|error| Error::io("understand", &path)(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_comes_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let boot = Boot { kernel: "/k".into(), initrd: "/i".into(), disk: None };
        let plan = Plan {
            scenario_path: "s.toml".into(),
            scenario_text: "name = \"s\"\n[peer]\nname = \"p\"".to_owned(),
            seat: Seat::Peer,
            guests: vec![boot.clone()],
            command: vec!["sh".to_owned(), "-c".to_owned(), "echo \"a b\"\n".to_owned()],
        };
        plan.write(folder.path()).unwrap();
        let back = Plan::read(folder.path()).unwrap();
        assert_eq!(back.scenario().unwrap().name, "p");
        assert_eq!((back.guests, back.command), (vec![boot], plan.command));
        assert_eq!(back.scenario_path, plan.scenario_path);
    }
}
