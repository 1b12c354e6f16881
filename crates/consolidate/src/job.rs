//! What the launcher tells the part that runs on the KVM host: a JSON file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use testbed::Boot;

use crate::error::Error;

/// The job to run, and the paths of its files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub plan: PathBuf,
    /// What guests of each of the plan's ladders boot.
    pub boots: Vec<Boot>,
    /// The folder of earlier measurements.
    pub done: Option<PathBuf>,
    /// Where measurements go.
    pub out: PathBuf,
}

impl Job {
    /// Reads a job.
    ///
    /// # Errors
    /// When it can't be read, or is none.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Form { path: path.to_owned(), problem: error.to_string() })
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        std::fs::write(path, self.json().to_string()).map_err(Error::io("write", path))
    }

    fn json(&self) -> Value {
        let boot = |boot: &Boot| json!({ "kernel": boot.kernel, "initrd": boot.initrd, "disk": boot.disk });
        json!({
            "plan": self.plan,
            "boots": self.boots.iter().map(boot).collect::<Value>(),
            "done": self.done,
            "out": self.out,
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_job_comes_back_as_written() {
        let boot = Boot { kernel: "/k".into(), initrd: "/i".into(), disk: Some("/d".into()) };
        let job = Job { plan: "/p".into(), boots: vec![boot], done: None, out: "/o".into() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        job.write(&path).unwrap();
        assert_eq!(Job::read(&path).unwrap(), job);
    }
}
