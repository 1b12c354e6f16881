//! Frames: a length, and that many bytes of JSON.

use api::layout::{HEADER_BYTES, MAX_FRAME_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    #[error("invalid message: {0}")]
    Garbled(String),
}

/// A message as it is sent.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let content =
        serde_json::to_vec(message).map_err(|error| FrameError::Garbled(error.to_string()))?;
    let length = u32::try_from(content.len()).ok().filter(|_| content.len() <= MAX_FRAME_BYTES);
    let length = length.ok_or(FrameError::TooLong(content.len()))?;
    Ok([&length.to_le_bytes()[..], &content].concat())
}

/// Takes the first message out of what was received, once all of it is there.
pub(crate) fn take<T: DeserializeOwned>(received: &mut Vec<u8>) -> Result<Option<T>, FrameError> {
    let Some((header, rest)) = received.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if MAX_FRAME_BYTES < length {
        return Err(FrameError::TooLong(length));
    }
    let Some(content) = rest.get(..length) else { return Ok(None) };
    let message = serde_json::from_slice(content)
        .map_err(|error| FrameError::Garbled(error.to_string().chars().take(200).collect()));
    // What makes no sense does not make the next message senseless.
    received.drain(..HEADER_BYTES + length);
    message.map(Some)
}

#[cfg(test)]
mod test {
    use api::layout::{SourceMessage, VERSION};

    use super::*;

    #[test]
    fn messages_come_back_whole() {
        let hello = SourceMessage::Hello { version: VERSION };
        let bytes = encode(&hello).unwrap();
        let mut received = Vec::new();
        for byte in &bytes {
            assert_eq!(take::<SourceMessage>(&mut received), Ok(None));
            received.push(*byte);
        }
        received.extend(&bytes);
        for left in [bytes.len(), 0] {
            assert_eq!(take(&mut received), Ok(Some(hello.clone())));
            assert_eq!(received.len(), left);
        }
    }

    #[test]
    fn a_message_behind_nonsense_is_read() {
        let look = SourceMessage::Look;
        let mut received = [encode(&"hello").unwrap(), encode(&look).unwrap()].concat();
        assert!(take::<SourceMessage>(&mut received).is_err());
        assert_eq!(take(&mut received), Ok(Some(look)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let error = take::<SourceMessage>(&mut bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[0xff; 4], "too long");
        check(&[2, 0, 0, 0, b'{', b'}'], "invalid message");
        check(&encode(&"hello").unwrap(), "invalid message");
        assert!(matches!(encode(&"x".repeat(MAX_FRAME_BYTES)), Err(FrameError::TooLong(_))));
    }
}
