//! Why it took so long, on one page.

use analysis::{Width, clean};
use trace_analysis::critical_path::Summary;

use super::kernel::Kernel;
use super::report::Findings;
use super::scene::{length, percent, wrapped};
use super::{host_side, kernel, path, profile, states, waits};

/// Rows of each table.
const ROWS: usize = 6;
/// Parts of the path in the first sentence.
const PARTS: usize = 4;

pub(super) fn text(findings: &Findings<'_>, width: Width) -> String {
    let path = findings.path();
    let mut out = String::new();
    if let Some(path) = path {
        out += &format!("{}\n", why(&path.summary, width));
    }
    let split = findings.profile().machine;
    let kernel = Kernel::of(findings);
    out += &wrapped(&format!("CPU and disk: {}", profile::line(&split)), width);
    out += &wrapped(&format!("All CPUs: {}", kernel::line(&kernel.time.total())), width);
    if !findings.is_everyone() {
        let line = kernel::line(&kernel.tasks);
        out += &wrapped(&format!("CPU time of {}: {line}", findings.whose()), width);
    }
    if findings.host.is_some() {
        out += &format!("\n{}", host_side::overview(findings, width));
    }
    out += &format!("\n{}", states::total(findings, findings.states(), width));
    let life = findings.life();
    out += &format!("\n{}", waits::summary(findings, &life));
    out += &waits::causes(&life, ROWS).text(width);
    match path {
        Some(path) => {
            out += "\nThe critical path is made of\n";
            out += &path::categories(&path.summary, Some(ROWS)).text(width);
            out += &host_side::path(findings, path, width);
            out += "\nWhat would make it faster, at best\n";
            out += &path::worth(&path.summary, Some(ROWS)).text(width);
        }
        None => {
            out += "\nNo command was traced: --process P --view critical-path explains a process\n"
        }
    }
    out
}

/// The longest parts of the path in a sentence.
fn why(summary: &Summary, width: Width) -> String {
    let parts =
        summary.categories.iter().take(PARTS).filter(|share| summary.wall_ns / 2000 < share.ns);
    let parts = parts.map(|share| format!("{} % {}", percent(share.ns, summary.wall_ns), share.of));
    let parts = clean(&parts.collect::<Vec<_>>().join(", ")).into_owned();
    wrapped(&format!("Why it took {}: {parts}", length(summary.wall_ns)), width)
}
