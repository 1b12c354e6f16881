//! The folder of results.
//!
//! ```text
//!  DIR/plan.toml                     the plan as it was carried out
//!  DIR/runs/0008-nice-19-2/          a measurement: 8 VMs, remedy "nice 19", second repetition
//!      run.json                      its figures
//!      recording/                    vmscope's recording of it, for `vmscope steal` and the others
//! ```

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use lab::{MOST_PLAN_BYTES, MOST_RUN_BYTES, Plan, Run};

use crate::error::Error;

const PLAN: &str = "plan.toml";
const RUNS: &str = "runs";
const RUN: &str = "run.json";
/// Measurements that are read at most.
const MOST_RUNS: usize = 20_000;

/// Where measurements are in a folder of results.
#[must_use]
pub fn runs_folder(results: &Path) -> PathBuf {
    results.join(RUNS)
}

/// Where the plan is in a folder of results.
#[must_use]
pub fn plan_file(results: &Path) -> PathBuf {
    results.join(PLAN)
}

/// Reads a plan.
///
/// # Errors
/// When it can't be read, or is none.
pub fn read_plan(path: &Path) -> Result<Plan, Error> {
    let text = read(path, MOST_PLAN_BYTES)?;
    Plan::parse(&text)
        .map_err(|error| Error::Form { path: path.to_owned(), problem: error.to_string() })
}

/// All measurements in a folder, in the order of their names. Those that were not completed are left out.
///
/// # Errors
/// When one can't be read.
pub fn read_runs(folder: &Path) -> Result<Vec<Run>, Error> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(Error::io("list", folder))?
        .flatten()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path().join(RUN))
        .filter(|path| path.is_file())
        .take(MOST_RUNS)
        .collect();
    paths.sort();
    let read_run = |path: &PathBuf| {
        let text = read(path, MOST_RUN_BYTES)?;
        Run::parse(&text).map_err(|problem| Error::Form { path: path.clone(), problem })
    };
    paths.iter().map(read_run).collect()
}

/// Completes a measurement whose other files are in `partial` already.
pub(crate) fn store(run: &Run, partial: &Path, runs: &Path) -> Result<(), Error> {
    let file = partial.join(RUN);
    fs::write(&file, run.json().to_string()).map_err(Error::io("write", &file))?;
    let place = runs.join(run.key.folder());
    fs::rename(partial, &place).map_err(Error::io("rename to", &place))
}

fn read(path: &Path, most: usize) -> Result<String, Error> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(most as u64 + 1).read_to_string(&mut text))
        .map_err(Error::io("read", path))?;
    Ok(text)
}
