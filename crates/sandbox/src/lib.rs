//! Child processes without privileges, which parse what others chose: files of host processes, guests' answers. They also
//! read what may never answer: memory of VMs.
//!
//! ```text
//!   parent                              child: the same program, started anew
//!     | -- exec ------------------------> |   gives up everything (`confine`), starts its `Parser`
//!     | <------------- ready, or why not  |
//!     | -- question, descriptors -------> |   parses; may crash, loop, run out of memory
//!     | <------------------------ answer  |
//!     |    ...                            |
//! ```
//!
//! A question has a time limit and an answer a size. A child that is late, ends or answers with nonsense is killed and costs
//! that answer; the next question starts another one. Children that fail again and again are started no more. The parent
//! does not wait for a child to end: a child that waits for a file system may never end.
//!
//! A `Dialogue` is a child whose questions its parent answers while it works: what it reads of a store, for instance. It has
//! threads of its own, and its limits are its parent's to choose.
//!
//! `confine_to_folder` is for a process that does one piece of work and needs files for it, of one folder: to unpack an
//! archive. It has no parent here.
//!
//! Design constraints: a child opens nothing, so the parent opens what it is to read. Whatever a child answers may be what
//! the bytes that it read made of it: the parent checks answers as it would check those bytes, but for their size and form.
//! Nothing here knows what is parsed.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod child;
mod confine;
mod dialogue;
mod frame;
mod parent;

use std::fmt::Debug;
use std::fs::File;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use child::serve;
pub use confine::{Allowance, FolderLimits, confine_to_folder, has_landlock, return_large_blocks};
pub use dialogue::{Channel, Dialogue, Partner, Partners, cpu_time, serve_dialogue};
pub use parent::{Failure, Sandbox};

/// Address space that a child may have. Threads' heaps and stacks reserve some 200 MiB of it.
pub const MAX_CHILD_BYTES: u64 = 768 << 20;

/// What a child does.
pub trait Parser: Sized {
    /// Requests to the child.
    type Question: Serialize + DeserializeOwned;
    /// The child's answers.
    type Answer: Serialize + DeserializeOwned + Debug;

    /// The child's name, of at most 15 bytes: one for each type.
    const NAME: &'static str;

    /// Starts what it needs. Threads have to be started here, and to be running when this returns: later nothing can start
    /// one.
    fn start() -> Self;

    /// Answers a question about `files`.
    fn answer(&mut self, question: &Self::Question, files: &[&File]) -> Self::Answer;

    /// Whether it should start anew after this answer.
    fn is_spent(&self) -> bool {
        false
    }
}
