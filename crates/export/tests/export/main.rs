//! Every export of small flows, read back.

#![allow(clippy::unwrap_used)]

mod drawn;
mod firefox;
mod fixture;
mod formats;
mod perfetto;
mod trace;
mod vcpus;
