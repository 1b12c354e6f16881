//! What the launcher tells the part inside the host: one JSON file in the run's folder, read once.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
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
    /// What each guest boots, in the scenario's order.
    pub(crate) guests: Vec<Boot>,
    /// The command and its arguments.
    pub(crate) command: Vec<String>,
}

/// What one guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Boot {
    /// Kernel image.
    pub(crate) kernel: PathBuf,
    /// Initial RAM file system.
    pub(crate) initrd: PathBuf,
    /// Its disk, when it has a root of its own.
    pub(crate) disk: Option<PathBuf>,
}

impl Plan {
    pub(crate) fn scenario(&self) -> Result<Scenario, Error> {
        Scenario::parse(&self.scenario_path, &self.scenario_text)
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
            scenario_text: "name = \"s\"".to_owned(),
            guests: vec![boot.clone()],
            command: vec!["sh".to_owned(), "-c".to_owned(), "echo \"a b\"\n".to_owned()],
        };
        plan.write(folder.path()).unwrap();
        let back = Plan::read(folder.path()).unwrap();
        assert_eq!((back.guests, back.command), (vec![boot], plan.command));
        assert_eq!(back.scenario_path, plan.scenario_path);
    }
}
