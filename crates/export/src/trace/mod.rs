//! Traces of tasks, CPUs and disks in other tools' formats.
//!
//! ```text
//!           +--> perfetto  trace packets                 ui.perfetto.dev, trace_processor
//!  Run -----+--> html      one page, works offline       any browser; two runs: side by side
//!           +--> csv       a line per stretch            spreadsheets, scripts
//!           +--> folded    waits by kernel stack         flame graphs of waits
//! ```
//!
//! What is drawn comes from `trace-analysis`; this module decides nothing about it. Every instant of a task's life and of
//! a CPU's time is in the Perfetto trace once.

pub mod csv;
pub mod folded;
pub mod html;
pub mod perfetto;

mod host_side;
mod names;
mod views;

use model::{HostNs, MachineId, TraceTables};
use trace_analysis::findings::Findings;
use trace_analysis::timeline::Timeline;

/// A trace as exports read it.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// What to call it: the folder's name.
    pub label: &'a str,
    /// Names and what was missed.
    pub tables: &'a TraceTables,
    /// One per machine that was traced.
    pub timelines: &'a [Timeline],
    /// An instant of the trace on the host's clock and in ns since 1970.
    pub instant: Option<(HostNs, u64)>,
}

impl<'a> Run<'a> {
    /// What was found out about each machine: of the command's tasks where it ran, of everybody elsewhere.
    fn findings(self) -> Vec<Findings<'a>> {
        let of_machine = |timeline| Findings::new(self.tables, timeline, self.host());
        self.timelines.iter().map(of_machine).collect()
    }

    /// The host, where it was traced.
    fn host(self) -> Option<&'a Timeline> {
        self.timelines.iter().find(|timeline| timeline.machine == MachineId::HOST)
    }
}
