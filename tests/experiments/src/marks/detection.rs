//! Faults of a real host, found in windows of it that are played again.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::{Outcome, in_slow_scenario};
use acceptance::{root, vmscope};

const WANTED: usize = 19;

/// Six faults, each recorded once and played 20 times, at a random time on one of five hosts.
pub(super) fn faults(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = std::fs::read_to_string(root().join("scenarios/faults.sh"))?;
    in_slow_scenario("faults", files, &script)?;
    let program = vmscope()?.with_file_name("examples").join("replay_faults");
    let output = Command::new(&program).arg(files).output();
    let output = output.with_context(|| format!("failed to run {}", program.display()))?;
    let table = String::from_utf8_lossy(&output.stdout);
    eprintln!("{table}{}", String::from_utf8_lossy(&output.stderr));
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let outcomes: Vec<Outcome> = rows.filter_map(outcome).collect();
    if outcomes.len() != 6 {
        bail!("{} of 6 faults were played", outcomes.len());
    }
    Ok(outcomes)
}

/// Of a row of the program's table.
fn outcome(row: &str) -> Option<Outcome> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [_, fault, windows, in_three, right, delay, others, _] = cells[..] else { return None };
    let number = |cell: &str| cell.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Some(Outcome {
        mark: "faults",
        what: format!("{fault} (from {windows} windows)"),
        original: "-",
        ours: format!(
            "in 3 windows {in_three}, right cause {right}, delay {delay}; {others} other findings"
        ),
        limit: "19 of 20 both",
        pass: WANTED <= number(in_three) && WANTED <= number(right),
    })
}
