//! Profiles and timelines in other tools' formats: one pure function per format, from a `Flow` or a `Chart` to bytes.
//!
//! ```text
//!           +--> folded    text, one line per stack      flamegraph.pl, inferno, speedscope
//!  Flow ----+--> pprof     gzipped profile.proto         pprof, Pyroscope, Parca
//!           +--> firefox   gzipped processed profile     Firefox Profiler
//!           +--> html      one page, works offline       any browser
//!  Chart ---+
//!           +--> perfetto  trace packets                 ui.perfetto.dev, trace_processor
//!           +--> intervals CSV, a line per interval      spreadsheets, R, pandas
//! ```
//!
//! `Functions` are what result tables know: time of functions, without call stacks. `pprof` and `otlp` (OpenTelemetry's
//! profiles, in development there) write them.
//!
//! `trace` does the same for traces of tasks, CPUs and disks, `bench` for results of the micro-benchmark, `layout` for
//! simulated migrations, `lab` for results of the consolidation laboratory.
//!
//! Design constraints: no IO besides the writer it is given, no clock, no `unsafe`; the same `Flow`
//! and `Chart` give the same bytes. Every sample of the `Flow` is in its every format, once, and every instant of
//! the `Chart`'s vCPUs in its.
//!
//! Names come from guests and are hostile: control and text-direction characters never reach an
//! output (`table::clean`), separators of a format never stand in a name, and the page runs no
//! script but its own. This crate must never resolve an address or decide what a sample means.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod firefox;
pub mod folded;
pub mod html;
pub mod intervals;
pub mod lab;
pub mod layout;
pub mod otlp;
pub mod perfetto;
pub mod pprof;
pub mod trace;

mod chart;
mod drawing;
mod functions;
mod page;

pub use chart::Chart;
pub use functions::{FunctionCost, Functions, GuestFunction};

/// What a reader should know about a flow beside its samples; formats with a place for it show it.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// What it shows: `unified view`, `guest view of vm1`.
    pub view: &'a str,
    /// What was missed while recording.
    pub notes: &'a [model::Note],
}
