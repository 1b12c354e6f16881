//! What vmscope's programs say to each other: the guest protocol, and what is asked of
//! child processes without privileges.
//!
//! Design constraints: types with their wire form only. No IO, no policy, no limits here: whoever
//! receives checks. Changing a published type means a new version number.

#![forbid(unsafe_code)]

mod bytes;
pub mod guest;
pub mod rings;
pub mod symbols;
