//! The recording: a folder of Parquet tables and `recording.json`, described in `docs/formats.md`. A trace is
//! another such folder: see `trace`.
//!
//! ```text
//!  collector --records--> Spool (one per CPU) --+
//!                                               +-- Writer::finish --> NAME/ --> Recording::open
//!  everyone else --model::Tables----------------+
//! ```
//!
//! Design constraints: while sampling, a sample costs one copy into a file and nothing is encoded; the
//! tables are written afterwards, in bounded memory, under a temporary name. What is read may come
//! from anywhere: any bytes give an error or a recording, never a panic and never unbounded memory.
//!
//! This crate must never resolve, analyse or aggregate: it gives back what was put in. It uses no
//! `unsafe`; readers of the files without it find their names and columns in `schema`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod abi;
mod batches;
mod blocks;
mod columns;
mod error;
mod files;
mod fit;
mod folder;
mod intervals;
mod manifest;
mod merge;
pub mod output;
mod reader;
mod recording_spools;
pub mod results;
mod samples;
pub mod schema;
pub mod seal;
mod spool;
mod switches;
mod tables;
mod template;
pub mod trace;
pub mod window;
mod words;
mod writer;

pub use abi::{RECORD_SIZE, decode, encode, guest_kernel_ip, pid_of, time_of};
pub use error::{Error, Folder};
pub use intervals::IntervalsWriter;
pub use manifest::FORMAT_VERSION;
pub use reader::{Recording, Samples};
pub use recording_spools::{Spool, StackSpool, SwitchSpool};
pub use writer::{Converted, Summary, Writer, finish_killed};
