//! Traces: what is written comes back, whatever happens to the folder.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod damaged;
mod full_disk;
mod golden;
mod killed;
mod round_trip;
mod size;
