//! A sample's place: whose process, which code.
//!
//! ```text
//!  tables --> Resolver --+--> Addresses    which addresses need names (the collector, before it ends)
//!                        +--> Located, Code    whose sample, which function (every analysis)
//! ```
//!
//! The collector asks for names by the same look-up that uses them later.
//!
//! Design constraints: pure, and bounded whatever a guest's tables claim. What is not known says why.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod resolver;
mod span;

pub use addresses::Addresses;
pub use resolver::{
    CallStackKey, Code, CodeName, CodeRef, Level, ProcessRef, Resolver, SampleSite, Threads,
    UnresolvedReason, VmRef,
};
pub use span::Lifetimes;
