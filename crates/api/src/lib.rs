//! Messages between vmscope's programs: the guest protocol, requests to child
//! processes without privileges, what layout daemons say, and the fleet's HTTP API.
//!
//! Design constraints: types with their wire form, and how large a message and its lists may be. No IO, no policy: the
//! receiver checks what a message says. Changing a published type means a new version number.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bytes;
mod fingerprint;
pub mod guest;
#[cfg(feature = "http")]
pub mod http;
pub mod layout;
#[cfg(feature = "http")]
pub mod query;
pub mod rings;
pub mod symbols;

pub use fingerprint::{BadFingerprint, Fingerprint};
