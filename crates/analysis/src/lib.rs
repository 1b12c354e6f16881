//! Samples and tables to profiles.
//!
//! Design constraints: pure and deterministic. No IO, no clock, no async, no `unsafe`; on bad input
//! it returns what it could do and a list of problems, it does not fail.

#![forbid(unsafe_code)]

pub mod flow;
