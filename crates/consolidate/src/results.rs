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

use lab::{MAX_PLAN_BYTES, MAX_RUN_BYTES, Plan, Run};

use crate::error::Error;

const PLAN: &str = "plan.toml";
const RUNS: &str = "runs";
const RUN: &str = "run.json";
/// Measurements that are read at most.
const MAX_RUNS: usize = 20_000;

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
    let text = read(path, MAX_PLAN_BYTES)?;
    Plan::parse(&text)
        .map_err(|error| Error::Form { path: path.to_owned(), problem: error.to_string() })
}

/// All measurements in a folder, in the order of their names. Those that were not completed are left out.
///
/// # Errors
/// When one can't be read.
pub fn read_runs(folder: &Path) -> Result<Vec<Run>, Error> {
    each_run(folder)?.collect()
}

/// Those measurements in a folder that can be read, and what is wrong with the others.
///
/// # Errors
/// When the folder can't be read.
pub fn read_good_runs(folder: &Path) -> Result<(Vec<Run>, Vec<Error>), Error> {
    let (mut runs, mut problems) = (Vec::new(), Vec::new());
    for run in each_run(folder)? {
        match run {
            Ok(run) => runs.push(run),
            Err(problem) => problems.push(problem),
        }
    }
    Ok((runs, problems))
}

fn each_run(folder: &Path) -> Result<impl Iterator<Item = Result<Run, Error>>, Error> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(Error::io("list", folder))?
        .flatten()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path().join(RUN))
        .filter(|path| path.is_file())
        .take(MAX_RUNS)
        .collect();
    paths.sort();
    let read_run = |path: PathBuf| {
        let text = read(&path, MAX_RUN_BYTES)?;
        Run::parse(&text).map_err(|problem| Error::Form { path, problem })
    };
    Ok(paths.into_iter().map(read_run))
}

/// Completes a measurement whose other files are in `partial` already.
pub(crate) fn store(run: &Run, partial: &Path, runs: &Path) -> Result<(), Error> {
    let file = partial.join(RUN);
    fs::write(&file, run.to_text()).map_err(Error::io("write", &file))?;
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

#[cfg(test)]
mod test {
    use lab::{AS_IT_IS, Load, RunKey, Turnarounds};

    use super::*;

    #[test]
    fn a_damaged_measurement_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        for repetition in 0..2 {
            let key = RunKey { vms: 1, treatment: AS_IT_IS.to_owned(), repetition };
            let turnarounds = Turnarounds::new();
            let load = Load { length_ns: 1, turnarounds, late_p99_ns: 0, cpu_ns: 0 };
            let partial = folder.path().join("partial");
            fs::create_dir(&partial).unwrap();
            store(&Run::new(key, 1, load), &partial, folder.path()).unwrap();
        }
        let runs = read_runs(folder.path()).unwrap();
        assert_eq!(runs.len(), 2);
        let damaged = folder.path().join(runs[0].key.folder()).join(RUN);
        let text = fs::read_to_string(&damaged).unwrap();
        fs::write(&damaged, &text[..text.len() / 2]).unwrap();
        let (good, problems) = read_good_runs(folder.path()).unwrap();
        assert_eq!((good, problems.len()), (runs[1..].to_vec(), 1));
        assert!(problems[0].to_string().contains(damaged.to_str().unwrap()), "{}", problems[0]);
        assert!(read_runs(folder.path()).is_err(), "a continued experiment must know");
    }
}
