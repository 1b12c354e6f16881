//! Every export of small flows, read back.

#![allow(clippy::unwrap_used)]

mod firefox;
mod fixture;
mod formats;
