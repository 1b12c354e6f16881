//! Several tests in one boot of a virtual host. Each has a part: a script that runs in a folder of its own, after those before it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::TempDir;

use crate::{Ran, crash_to_repeat, run_once};

/// The parts of all tests together take as long on a busy machine.
const TIME_LIMIT_S: u32 = 1500;

/// A scenario and the parts of its tests.
#[derive(Debug)]
pub struct SharedHost {
    scenario: &'static str,
    parts: &'static [Part],
    ran: Mutex<Option<PathBuf>>,
}

/// What one test does on the virtual host. It finds the guests as the scenario has them, or as an earlier part left them.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The test's function.
    pub test: &'static str,
    /// Ends at the first command that fails.
    pub script: fn() -> String,
}

/// How long the boots of a scenario took with all parts, and each part.
#[derive(Debug, Clone)]
pub struct SharedTimes {
    pub scenario: &'static str,
    pub all: Duration,
    pub parts: Vec<(&'static str, Duration)>,
}

static SELECTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static TIMES: Mutex<Vec<SharedTimes>> = Mutex::new(Vec::new());
static FOLDERS: Mutex<Vec<TempDir>> = Mutex::new(Vec::new());

/// Parts of other tests than these do not run. The names end in the tests' functions.
pub fn select(tests: Vec<String>) {
    *SELECTED.lock().unwrap_or_else(PoisonError::into_inner) = tests;
}

/// The boots so far.
#[must_use]
pub fn times() -> Vec<SharedTimes> {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Removes what all parts left. Tests are over.
pub fn remove_files() {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl SharedHost {
    #[must_use]
    pub const fn new(scenario: &'static str, parts: &'static [Part]) -> Self {
        Self { scenario, parts, ran: Mutex::new(None) }
    }

    /// What came of a test's part, which had to succeed.
    ///
    /// # Panics
    /// If it did not.
    #[must_use]
    pub fn succeeded(&self, test: &str) -> Ran {
        let ran = self.part(test).unwrap_or_else(|error| panic!("{test}: {error:#}"));
        assert_eq!(ran.code, 0, "{test}: {}", ran.stderr);
        ran
    }

    /// What came of a test's part. The first test boots the host and runs the parts of all selected tests.
    fn part(&self, test: &str) -> anyhow::Result<Ran> {
        let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match &*ran {
            Some(folder) => folder.clone(),
            None => {
                let kept = tempfile::tempdir()?;
                let folder = kept.path().to_owned();
                FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                *ran = Some(folder.clone());
                self.run(&folder)?;
                folder
            }
        };
        let read = |ending: &str| std::fs::read_to_string(folder.join(format!("{test}.{ending}")));
        let (code, _) = outcome(&folder, test)
            .with_context(|| format!("the host of {} ended before this part did", self.scenario))?;
        Ok(Ran { stdout: read("out")?, stderr: read("err")?, code, files: folder.join(test) })
    }

    /// Until each part has run on a host that no emulator crashed meanwhile.
    fn run(&self, folder: &Path) -> anyhow::Result<()> {
        let selected = SELECTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_selected =
            |part: &&Part| selected.iter().any(|name| name.rsplit("::").next() == Some(part.test));
        let parts: Vec<Part> = self.parts.iter().filter(is_selected).copied().collect();
        let begin = Instant::now();
        loop {
            let left = parts.iter().filter(|part| outcome(folder, part.test).is_none());
            let script: String = left.map(Part::wrapped).collect();
            if script.is_empty() {
                break;
            }
            let files = tempfile::tempdir()?;
            let ran = run_once(TIME_LIMIT_S, self.scenario, files.path(), &script)?;
            let crash = crash_to_repeat(self.scenario, &ran.stderr);
            // Nothing is known of the parts that ran when a guest died.
            if !(crash && ran.stderr.contains("died while the command ran")) {
                move_all(files.path(), folder)?;
            }
            if !crash {
                break;
            }
        }
        let part = |part: &Part| Some((part.test, outcome(folder, part.test)?.1));
        let parts = parts.iter().filter_map(part).collect();
        let times = SharedTimes { scenario: self.scenario, all: begin.elapsed(), parts };
        TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(times);
        Ok(())
    }
}

impl Part {
    /// What a part leaves is copied to this machine at once, where the host is a virtual one: it may crash in the next part.
    fn wrapped(&self) -> String {
        let (test, script) = (self.test, (self.script)());
        format!(
            "cat >{test}.sh <<'END_OF_PART'\n{script}\nEND_OF_PART
mkdir {test}
echo 'part {test}' >&2
begin=$(date +%s%3N)
(cd {test} && sh -e ../{test}.sh) >{test}.out 2>{test}.err && code=0 || code=$?
took=$(($(date +%s%3N) - begin))
cat {test}.out; cat {test}.err >&2
share=/run/testbed/share/out
test ! -d $share || cp -R {test} {test}.out {test}.err $share
echo $code $took >{test}.part
test ! -d $share || cp {test}.part $share
"
        )
    }
}

/// A part's exit code, and how long it took; `None` before its end.
fn outcome(folder: &Path, test: &str) -> Option<(i32, Duration)> {
    let text = std::fs::read_to_string(folder.join(format!("{test}.part"))).ok()?;
    let (code, ms) = text.trim_end().split_once(' ')?;
    Some((code.parse().ok()?, Duration::from_millis(ms.parse().ok()?)))
}

/// What a part that the host's end cut short has left makes room.
fn move_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(from).context("failed to list the files of a run")? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        let _ = std::fs::remove_dir_all(&place);
        std::fs::rename(entry.path(), &place).context("failed to move the files of a run")?;
    }
    Ok(())
}
