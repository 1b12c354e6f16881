//! What guests' answers are read by. The recorder only moves them, in frames: what lies in one is decoded by a process
//! without privileges, which says it again in its own encoding (`api::symbols`).

use std::fmt;

use api::guest::{Response, VERSION};
use api::symbols::InvalidAnswer;

use crate::frame::decode;

/// Reads the answers of one guest.
pub trait AnswerReader: fmt::Debug + Send {
    /// What a frame's content says. It is not checked yet.
    ///
    /// # Errors
    /// When it says nothing, or was not read.
    fn read(&mut self, content: Vec<u8>) -> Result<Response, AnswerError>;
}

/// Why there is no answer in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerError {
    /// It is none.
    Invalid(InvalidAnswer),
    /// It was not read: the process that reads it failed. One clause.
    Unread(String),
}

/// Reads a frame's content: the work of the process without privileges.
///
/// # Errors
/// When it is no answer.
pub fn decode_answer(content: &[u8]) -> Result<Response, InvalidAnswer> {
    // A map's first field is its version: the rest may have changed with it.
    const MAP_VARIANT: u32 = 2;
    match postcard::take_from_bytes::<(u32, u32)>(content) {
        Ok(((MAP_VARIANT, theirs), _)) if theirs != VERSION => Err(InvalidAnswer::Version(theirs)),
        _ => decode(content).map_err(|error| InvalidAnswer::Garbled(error.to_string())),
    }
}

/// About the bytes that an image takes in an answer, rather more than less.
#[cfg(any(feature = "inside", feature = "outside"))]
pub(crate) fn encoded_image_bytes(image: &api::guest::GuestImage) -> usize {
    let names: usize = image.threads.iter().map(|thread| thread.name.len() + 16).sum();
    64 + image.name.len() + names + 26 * image.mappings.len()
}
