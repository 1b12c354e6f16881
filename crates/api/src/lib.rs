//! What vmscope's programs say to each other and to scripts: the guest protocol and the report's JSON.
//!
//! Design constraints: types with their wire form only. No IO, no policy, no limits here: whoever
//! receives checks. Changing a published type means a new version number.

#![forbid(unsafe_code)]

pub mod doctor;
pub mod guest;
pub mod report;
pub mod steal;
pub mod top;
