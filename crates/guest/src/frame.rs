//! Frames: how messages lie in a byte stream (see `api::guest`).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use api::guest::{HEADER_BYTES, MAGIC};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame says it is longer than it may be.
    #[error("a message of {length} bytes, where {limit} are allowed")]
    TooLong {
        /// What the frame says.
        length: usize,
        limit: usize,
    },
    /// A frame's content is not the message.
    #[error("an invalid message ({0})")]
    Garbled(postcard::Error),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The session it belongs to.
    pub(crate) session: u64,
    pub(crate) content: Vec<u8>,
}

/// A message as a frame.
pub(crate) fn encode<T: Serialize>(
    session: u64,
    message: &T,
    limit: usize,
) -> Result<Vec<u8>, FrameError> {
    let mut frame = Vec::with_capacity(HEADER_BYTES);
    frame.extend(MAGIC);
    frame.extend(session.to_le_bytes());
    frame.extend([0; 4]);
    let mut frame = postcard::to_extend(message, frame).map_err(FrameError::Garbled)?;
    let length = frame.len().saturating_sub(HEADER_BYTES);
    match u32::try_from(length) {
        Ok(header) if length <= limit => {
            frame[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header.to_le_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { length, limit }),
    }
}

/// A frame's content as a message. Bytes after it are an error: they would hide a wrong decoding.
pub(crate) fn decode<T: DeserializeOwned>(content: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(content) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(FrameError::Garbled(postcard::Error::DeserializeBadEncoding)),
        Err(error) => Err(FrameError::Garbled(error)),
    }
}

/// The answer to a frame with a request, as a frame.
#[cfg(any(feature = "inside", feature = "outside"))]
pub(crate) fn answer(
    requested: &Frame,
    respond: impl FnOnce(api::guest::Request) -> api::guest::Response,
) -> Vec<u8> {
    use api::guest::{MAX_ANSWER_BYTES, Response};
    let response = match decode(&requested.content) {
        Ok(request) => respond(request),
        Err(error) => Response::Error(format!("the host sent {error}")),
    };
    let too_long = |error| Response::Error(format!("the answer would be {error}"));
    encode(requested.session, &response, MAX_ANSWER_BYTES)
        .or_else(|error| encode(requested.session, &too_long(error), MAX_ANSWER_BYTES))
        .unwrap_or_default()
}

/// Finds frames in a byte stream. Whatever stands before a frame's first bytes is passed over: the
/// rest of a message to a host that went away.
#[derive(Debug)]
pub(crate) struct Decoder {
    start_mark: Vec<u8>,
    limit: usize,
    buffer: Vec<u8>,
}

impl Decoder {
    /// Takes frames of any session, of at most `limit` bytes.
    pub(crate) fn any_session(limit: usize) -> Self {
        Self { start_mark: MAGIC.to_vec(), limit, buffer: Vec::new() }
    }

    /// Takes frames of one session.
    pub(crate) fn of_session(session: u64, limit: usize) -> Self {
        let start_mark = [MAGIC, session.to_le_bytes()].concat();
        Self { start_mark, limit, buffer: Vec::new() }
    }

    /// Whether no part of a message is waiting for the rest.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Forgets what came in so far.
    #[cfg(feature = "inside")]
    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
    }

    /// Adds bytes of the stream. Between two calls `next` must have said `None`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.skip_to_mark();
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (_, numbers) = header.split_at(MAGIC.len());
        let (session, length) = numbers.split_at(8);
        let session = u64::from_le_bytes(session.try_into().expect("split at 8 bytes"));
        let length = u32::from_le_bytes(length.try_into().expect("the header's last 4 bytes"));
        let length = length as usize;
        if self.limit < length {
            self.buffer.drain(..HEADER_BYTES);
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        let end = HEADER_BYTES.saturating_add(length);
        if self.buffer.len() < end {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        let mut content = std::mem::replace(&mut self.buffer, rest);
        content.drain(..HEADER_BYTES);
        Ok(Some(Frame { session, content }))
    }

    fn skip_to_mark(&mut self) {
        let mark = &self.start_mark[..];
        let found = self.buffer.windows(mark.len()).position(|window| window == mark);
        // Without a mark, its beginning may still be at the end.
        let garbage =
            found.unwrap_or_else(|| self.buffer.len().saturating_sub(mark.len().saturating_sub(1)));
        self.buffer.drain(..garbage);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn contents(decoder: &mut Decoder, stream: &[u8], chunk: usize) -> Vec<Vec<u8>> {
        let mut contents = Vec::new();
        for bytes in stream.chunks(chunk) {
            decoder.push(bytes);
            while let Some(frame) = decoder.next().unwrap() {
                contents.push(frame.content);
            }
        }
        contents
    }

    #[test]
    fn frames_are_found_in_any_cut_of_the_stream() {
        let old = encode(1, &"old", 100).unwrap();
        let frames = ["one", "two"].map(|text| encode(2, &text, 100).unwrap()).concat();
        let stream = [&old[3..], b"vmscopeGarbage", &old[..], &frames[..]].concat();
        for chunk in 1..stream.len() {
            let mut decoder = Decoder::of_session(2, 100);
            let found: Vec<String> = contents(&mut decoder, &stream, chunk)
                .iter()
                .map(|content| decode(content).unwrap())
                .collect();
            assert_eq!(found, ["one", "two"], "in chunks of {chunk}");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused() {
        let frame = encode(2, &"a text of some length", 100).unwrap();
        let mut decoder = Decoder::any_session(10);
        decoder.push(&frame);
        assert_eq!(decoder.next(), Err(FrameError::TooLong { length: 22, limit: 10 }));
        assert_eq!(
            encode(2, &"0123456789", 10),
            Err(FrameError::TooLong { length: 11, limit: 10 })
        );
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        assert!(decode::<u32>(&[5]).is_ok());
        assert!(decode::<u32>(&[5, 0]).is_err());
    }
}
