//! The analyses of a machine as tables.

use table::Table;
use trace_analysis::findings::Findings;
use trace_analysis::profile::BusyMatrix;
use trace_analysis::states::{self, Use};

/// Which tables a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Waits,
    /// Where in the kernel was waited, for which lock and its holder.
    WaitPlaces,
    /// System calls.
    Calls,
    /// What the command's length is made of.
    CriticalPath,
    /// What would make the command faster.
    Improvements,
    /// Each process: its life, and what it waited for.
    Process,
}

/// The same table that `vmscope trace report` prints, with all rows.
pub(super) fn table(findings: &Findings<'_>, view: View) -> Table {
    let summary = || findings.path().map(|path| &path.summary);
    match view {
        View::Waits => trace_analysis::report::causes(&findings.life(), None),
        View::WaitPlaces => trace_analysis::report::details(findings, None),
        View::Calls => trace_analysis::report::calls(findings, None),
        View::CriticalPath => {
            summary().map(|it| trace_analysis::report::categories(it, None)).unwrap_or_default()
        }
        View::Improvements => {
            summary().map(|it| trace_analysis::report::improvements(it, None)).unwrap_or_default()
        }
        View::Process => trace_analysis::report::processes(findings, None),
    }
}

/// The parts of the four-way profile, with their styles.
pub(super) const FOUR_WAY: [(&str, &str); 6] = [
    ("CPU only", "user"),
    ("CPU and disk", "reads"),
    ("disk only", "disk-wait"),
    ("neither", "idle"),
    ("CPU unknown", "unknown"),
    ("disk, CPU unknown", "c3"),
];

pub(super) fn four_way(profile: &BusyMatrix) -> [u64; 6] {
    let BusyMatrix {
        cpu_only_ns,
        both_ns,
        disk_only_ns,
        neither_ns,
        unknown_ns,
        unknown_and_disk_ns,
    } = *profile;
    [cpu_only_ns, both_ns, disk_only_ns, neither_ns, unknown_ns, unknown_and_disk_ns]
}

/// The nine states and unknown, row by row, with their styles.
pub(super) const STATES: [(&str, &str); 10] = [
    ("CPU running, disk running", "s00"),
    ("CPU running, disk waiting", "s01"),
    ("CPU running, no disk", "s02"),
    ("CPU waiting, disk running", "s10"),
    ("CPU waiting, disk waiting", "s11"),
    ("CPU waiting, no disk", "s12"),
    ("no CPU, disk running", "s20"),
    ("no CPU, disk waiting", "s21"),
    ("no CPU, no disk", "s22"),
    ("unknown", "unknown"),
];

pub(super) fn nine_states(table: &states::Table) -> Vec<u64> {
    let cells = Use::ALL.into_iter().flat_map(|cpu| Use::ALL.map(|disk| table.ns(cpu, disk)));
    cells.chain([table.unknown_ns]).collect()
}
