//! Messages on the socket between parent and child: a length (little-endian `u32`), with descriptors, and that many bytes.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};

/// A message's content at most.
const MAX_BYTES: usize = 64 << 20;

/// Descriptors of one message at most.
const MAX_FILES: usize = 2;

/// Why a message did not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The other side is gone.
    Closed,
    Late,
    /// It is too long, or has too many descriptors.
    TooLong,
}

/// One end of a socket pair.
#[derive(Debug)]
pub(crate) struct Socket<D> {
    descriptor: D,
    /// The other side is waited for no longer; the descriptor doesn't block then.
    pub(crate) deadline: Option<Instant>,
}

impl Socket<OwnedFd> {
    /// Another descriptor of it.
    pub(crate) fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl<D: AsFd> Socket<D> {
    /// One end of a stream of bytes.
    pub(crate) fn new(descriptor: D) -> Self {
        Self { descriptor, deadline: None }
    }

    pub(crate) fn send(&self, content: &[u8], files: &[&File]) -> Result<(), Broken> {
        let length = u32::try_from(content.len()).map_err(|_| Broken::TooLong)?;
        if MAX_BYTES < content.len() || MAX_FILES < files.len() {
            return Err(Broken::TooLong);
        }
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        // In one call: its reader is woken once.
        let header = length.to_le_bytes();
        let sent = self.wait(PollFlags::OUT, || {
            let parts = [IoSlice::new(&header), IoSlice::new(content)];
            sendmsg(&self.descriptor, &parts, &mut control, SendFlags::NOSIGNAL)
        })?;
        // Four bytes fit as a whole, or not at all.
        let mut left = content.get(sent.saturating_sub(header.len())..).unwrap_or_default();
        while !left.is_empty() {
            let n =
                self.wait(PollFlags::OUT, || send(&self.descriptor, left, SendFlags::NOSIGNAL))?;
            left = &left[n..];
        }
        Ok(())
    }

    pub(crate) fn receive(&self) -> Result<(Vec<u8>, Vec<File>), Broken> {
        let (mut header, mut files) = ([0; 4], Vec::new());
        self.fill(&mut header, &mut files)?;
        let length = u32::from_le_bytes(header) as usize;
        if MAX_BYTES < length {
            return Err(Broken::TooLong);
        }
        let mut content = vec![0; length];
        self.fill(&mut content, &mut files)?;
        Ok((content, files))
    }

    fn fill(&self, mut buffer: &mut [u8], files: &mut Vec<File>) -> Result<(), Broken> {
        while !buffer.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = self.wait(PollFlags::IN, || {
                let parts = &mut [IoSliceMut::new(buffer)];
                recvmsg(&self.descriptor, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
            })?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    files.extend(descriptors.map(File::from));
                }
            }
            if MAX_FILES < files.len() {
                return Err(Broken::TooLong);
            }
            match received.bytes {
                0 => return Err(Broken::Closed),
                n => buffer = &mut buffer[n..],
            }
        }
        Ok(())
    }

    /// Does `work` when the other side is ready for it.
    fn wait<T>(
        &self,
        what: PollFlags,
        mut work: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Broken> {
        loop {
            match work() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.poll(what)?,
                done => return done.map_err(|_| Broken::Closed),
            }
        }
    }

    /// Whether something has come in within `limit`, or the other side is gone.
    pub(crate) fn is_readable(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let readable = poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&limit));
        readable.is_ok_and(|ready| 0 < ready)
    }

    fn poll(&self, what: PollFlags) -> Result<(), Broken> {
        let left = self
            .deadline
            .map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(Broken::Late);
        }
        let left = Timespec::try_from(left).map_err(|_| Broken::Late)?;
        match poll(&mut [PollFd::new(&self.descriptor, what)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(_) => Err(Broken::Closed),
        }
    }
}
