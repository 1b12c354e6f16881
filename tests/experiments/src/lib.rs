//! The slow experiments: each measures on the virtual host, and is compared with a published figure.
//!
//! `make test` does not compile them; `make experiments`, `make overhead` and `make test-all` do.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod marks;
pub mod overhead;
