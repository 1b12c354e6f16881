//! Messages between the server and a child, on the server's side: those of `sandbox::Channel`, without blocking.

use std::io;
use std::os::unix::net::UnixStream as StdStream;

use api::query::ToChild;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::rows::MAX_BYTES;

/// Bytes of a message that a child sends: an answer's rows, and what is said about them.
const MAX_ANSWER: usize = MAX_BYTES + (4 << 20);
/// Bytes that are read at once until a message's length is known.
const FIRST: usize = 1 << 12;
/// Of a message's length.
const LENGTH: usize = 4;

/// A socket to a child.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    /// Received bytes of the next message.
    buffer: Vec<u8>,
}

impl Stream {
    /// Of a socket that does not block.
    pub(crate) fn new(socket: StdStream) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::from_std(socket)?, buffer: Vec::new() })
    }

    /// The next message. May be dropped at any time without loss.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let missing = match self.buffer.first_chunk::<LENGTH>() {
                None => FIRST,
                Some(length) => {
                    let length = u32::from_le_bytes(*length) as usize;
                    if MAX_ANSWER < length {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if LENGTH + length <= self.buffer.len() {
                        let rest = self.buffer.split_off(LENGTH + length);
                        let mut message = std::mem::replace(&mut self.buffer, rest);
                        message.drain(..LENGTH);
                        return Ok(message);
                    }
                    LENGTH + length - self.buffer.len()
                }
            };
            self.buffer.reserve(missing);
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Sends a message with bytes behind it.
    pub(crate) async fn send(&mut self, message: &ToChild, bytes: &[u8]) -> io::Result<()> {
        let content = postcard::to_stdvec(message).map_err(io::Error::other)?;
        let length = u32::try_from(content.len() + bytes.len()).map_err(io::Error::other)?;
        let head = [&length.to_le_bytes(), content.as_slice()].concat();
        self.socket.write_all(&head).await?;
        self.socket.write_all(bytes).await
    }
}
