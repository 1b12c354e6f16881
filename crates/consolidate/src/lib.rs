//! The consolidation laboratory at work: VMs from a template, load, remedies, measurements.
//!
//! ```text
//!  Plan (lab) --> Experiment --+--> template and clones (testbed)
//!                              +--> Switches: remedies on the host
//!                              +--> Generator: a process that sends requests --> Load
//!                              +--> capture: packets of the VMs' bridge ---------> parts (split)
//!                              +--> WindowRecorder: vmscope's recording -------> figures (lab) --> Run, a folder
//! ```
//!
//! Design constraints: what is measured is decided in `lab`; here it is carried out. Every process that is started here ends
//! with the run, and every switch of the host is put back, whatever ends the run.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capture;
mod error;
mod experiment;
mod generator;
mod guest;
mod host;
mod host_setup;
mod job;
mod load;
mod network;
mod packets;
mod recorder;
mod results;
mod switches;

pub use error::Error;
pub use experiment::{Experiment, run};
pub use generator::serve;
pub use guest::guest;
pub use job::Job;
pub use load::{LoadJob, Pace, Phase, generate, generate_until};
pub use results::{plan_file, read_good_runs, read_plan, read_runs, runs_folder};
