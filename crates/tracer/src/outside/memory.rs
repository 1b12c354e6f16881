//! A guest's rings in the memory of its VM's process.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use model::Pid;
use rustix::io::{Errno, pread, pwrite};

use super::layout::{Addresses, PAGE};
use crate::slots::{KINDS, RING_BYTES, RING_HEAD, RING_LOST, RING_MARK, RING_TAIL, SLOT_BYTES};

/// Why a VM's memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Its process is gone.
    #[error("the VM's process has ended")]
    Gone,
    #[error("reading the VM's memory is not allowed (it needs root, or CAP_SYS_PTRACE)")]
    Refused,
    /// The memory is not where it was.
    #[error("the VM's memory is no longer where it was")]
    Moved,
    /// The kernel said something else.
    #[error("the VM's memory can't be read: {0}")]
    Other(Errno),
    /// What is there is not what the guest wrote.
    #[error("the VM's memory lacks its guest's mark (is it encrypted?)")]
    Unreadable,
}

/// The memory of a VM's process: that which it had when this was opened, never that of a program that it executes later,
/// or of the next process with its number. The kernel would write read-only pages, too, as copies of the process's own.
#[derive(Debug, Clone)]
pub struct ProcessMemory {
    file: Arc<File>,
}

impl ProcessMemory {
    /// Opens it. `proc` is where the proc file system is.
    ///
    /// # Errors
    /// When there is no such process, or it is not allowed.
    pub fn open(proc: &Path, process: Pid) -> Result<Self, MemoryError> {
        let path = proc.join(process.0.to_string()).join("mem");
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        match file {
            Ok(file) => Ok(Self { file: Arc::new(file) }),
            Err(Errno::NOENT | Errno::SRCH) => Err(MemoryError::Gone),
            Err(Errno::ACCESS | Errno::PERM) => Err(MemoryError::Refused),
            Err(error) => Err(MemoryError::Other(error)),
        }
    }

    /// The open file of the VMM's memory.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn read(memory: &File, bytes: &mut [u8], address: u64) -> Result<(), MemoryError> {
    let wanted = bytes.len();
    whole(pread(memory, bytes, address), wanted)
}

fn whole(copied: Result<usize, Errno>, wanted: usize) -> Result<(), MemoryError> {
    match copied {
        Ok(copied) if copied == wanted => Ok(()),
        // The kernel says so of memory without an owner.
        Ok(0) => Err(MemoryError::Gone),
        Ok(_) | Err(Errno::IO | Errno::INVAL) => Err(MemoryError::Moved),
        Err(error) => Err(MemoryError::Other(error)),
    }
}

/// The rings of a guest, by their pages' addresses in its VM's process. A reader may wait for ever: that memory may
/// lie in a file system of the user that runs the VM (FUSE).
#[derive(Debug, Clone, Copy)]
pub struct GuestRings<'a> {
    /// `/proc/PID/mem` of the VM's process.
    pub memory: &'a File,
    pub slots_per_ring: usize,
    /// Where they lie. Pages that it lacks can't be read.
    pub addresses: &'a Addresses,
}

/// Words of a ring's head.
pub type HeadWords = [u64; RING_BYTES / 8];

/// The mark in a ring's head.
#[must_use]
pub fn mark(head: &HeadWords) -> u64 {
    head[RING_MARK / 8]
}

/// A ring's losses, by kind.
#[must_use]
pub fn lost(head: &HeadWords) -> [u64; KINDS] {
    std::array::from_fn(|kind| head[RING_LOST / 8 + kind])
}

/// A piece of memory: where it begins, and its length.
type Piece = (u64, usize);

impl GuestRings<'_> {
    /// Words of a ring's head.
    ///
    /// # Errors
    /// If the memory can't be read.
    pub fn head(&self, ring: usize) -> Result<HeadWords, MemoryError> {
        let mut words = [0_u64; RING_BYTES / 8];
        // SAFETY: any bytes are a word.
        let bytes = unsafe { bytes_of_mut(&mut words) };
        read(self.memory, bytes, self.head_address(ring, 0)?)?;
        Ok(words)
    }

    /// The head of a ring, and copies of slots from position `from` on, which is where its reader is: at most so many. What
    /// came in meanwhile is among them: an interrupt's record must be taken with the one that it came on top of.
    ///
    /// # Errors
    /// If the memory can't be read.
    pub fn take(
        &self,
        ring: usize,
        from: u64,
        at_most: usize,
    ) -> Result<(u64, Vec<u8>), MemoryError> {
        let mut bytes = Vec::new();
        loop {
            let head = self.head(ring)?[RING_HEAD / 8];
            let there = head.wrapping_sub(from);
            let taken = bytes.len() / SLOT_BYTES;
            let ready = usize::try_from(there).map_or(usize::MAX, |there| there.min(at_most));
            if (self.slots_per_ring as u64) < there || ready <= taken {
                return Ok((head, bytes));
            }
            self.copy(ring, from.wrapping_add(taken as u64), ready - taken, &mut bytes)?;
        }
    }

    /// Lets the probes write what lies before a position.
    ///
    /// # Errors
    /// If the memory can't be written.
    pub fn free(&self, ring: usize, to: u64) -> Result<(), MemoryError> {
        let bytes = to.to_ne_bytes();
        let address = self.head_address(ring, RING_TAIL)?;
        whole(pwrite(self.memory, &bytes, address), bytes.len())
    }

    /// Appends copies of `n` slots from a position on, in two pieces around the wrap. The kernel copies upwards, in steps
    /// that no slot lies across.
    fn copy(&self, ring: usize, from: u64, n: usize, to: &mut Vec<u8>) -> Result<(), MemoryError> {
        let slots = self.slots_per_ring as u64;
        let first = usize::try_from(from % slots).unwrap_or(0);
        let before_wrap = n.min(self.slots_per_ring - first);
        for (first, n) in [(first, before_wrap), (0, n - before_wrap)] {
            let start = (ring * self.slots_per_ring + first) * SLOT_BYTES;
            for (address, length) in pieces(&self.addresses.slots, start, n * SLOT_BYTES)? {
                let at = to.len();
                to.resize(at + length, 0);
                read(self.memory, &mut to[at..], address)?;
            }
        }
        Ok(())
    }

    /// Heads are aligned, so none crosses a page.
    fn head_address(&self, ring: usize, offset: usize) -> Result<u64, MemoryError> {
        let at = ring * RING_BYTES + offset;
        let page = self.addresses.heads.get(at / PAGE).ok_or(MemoryError::Moved)?;
        Ok(page + (at % PAGE) as u64)
    }
}

/// The pieces that `bytes` of an array lie in whose pages have these addresses; neighbours are joined.
fn pieces(pages: &[u64], start: usize, bytes: usize) -> Result<Vec<Piece>, MemoryError> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut at, end) = (start, start + bytes);
    while at < end {
        let length = (PAGE - at % PAGE).min(end - at);
        let page = pages.get(at / PAGE).ok_or(MemoryError::Moved)?;
        let address = page + (at % PAGE) as u64;
        match pieces.last_mut() {
            Some((last, joined)) if *last + *joined as u64 == address => *joined += length,
            _ => pieces.push((address, length)),
        }
        at += length;
    }
    Ok(pieces)
}

/// # Safety
/// Any bytes must be a `T`, and it must have no padding.
unsafe fn bytes_of_mut<T>(values: &mut [T]) -> &mut [u8] {
    let length = size_of_val(values);
    // SAFETY: the same memory, borrowed as long; initialised as there is no padding, and the caller guarantees the rest.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), length) }
}

#[cfg(test)]
mod test {
    use std::io::{Read, Write};

    use super::super::layout::{Claim, Region};
    use super::*;

    #[test]
    fn neighbouring_pages_are_one_piece() {
        let pages = [0x1000, 0x2000, 0x9000, 0x3000];
        let check = |start, bytes, expected: &[Piece]| {
            assert_eq!(pieces(&pages, start, bytes).unwrap(), expected, "{start}+{bytes}");
        };
        check(0, 0, &[]);
        check(16, 32, &[(0x1010, 32)]);
        check(0, 0x4000, &[(0x1000, 0x2000), (0x9000, 0x1000), (0x3000, 0x1000)]);
        check(0x1ff0, 0x20, &[(0x2ff0, 16), (0x9000, 16)]);
    }

    fn memory(process: u32) -> ProcessMemory {
        ProcessMemory::open(Path::new("/proc"), Pid(process)).unwrap()
    }

    /// Rings in this process's own memory: its "guest" is the test.
    fn own(words: &mut [u64]) -> Addresses {
        let address = words.as_ptr().addr() as u64;
        let page = address.div_ceil(PAGE as u64);
        let region = Region { first_page: page, pages: 5, address: page * PAGE as u64 };
        let slots = [3, 1, 4, 2].map(|n| page + n).to_vec();
        let claim = Claim { slots_per_ring: 512, rings: 2, heads: vec![page], slots };
        claim.locate(&[region]).unwrap()
    }

    /// The word at an offset from the first page.
    fn word(words: &mut [u64], offset: usize) -> &mut u64 {
        let skipped = words.as_ptr().addr().next_multiple_of(PAGE) - words.as_ptr().addr();
        &mut words[(skipped + offset) / 8]
    }

    #[test]
    fn rings_are_read_and_written_across_scattered_pages() {
        let mut words = vec![0u64; 6 * PAGE / 8];
        let addresses = &own(&mut words);
        let memory = &memory(std::process::id());
        let rings = GuestRings { memory: memory.file(), slots_per_ring: 512, addresses };
        *word(&mut words, RING_BYTES) = 5;
        *word(&mut words, RING_BYTES + RING_MARK) = 77;
        *word(&mut words, RING_BYTES + RING_LOST + 8) = 9;
        *word(&mut words, RING_HEAD) = 257;
        // Ring 0: pages 3 and 1. Its slot 255 is the last of page 3, slot 256 the first of page 1.
        *word(&mut words, 4 * PAGE - 16) = 0xaa;
        *word(&mut words, PAGE + 8) = 0xbb;
        let head = rings.head(1).unwrap();
        assert_eq!((mark(&head), lost(&head)[..3].to_vec()), (77, vec![0, 9, 0]));
        let bytes = |slots: &[u64]| slots.iter().copied().flat_map(u64::to_ne_bytes).collect();
        let both: Vec<u8> = bytes(&[0xaa, 0, 0, 0xbb]);
        assert_eq!(rings.take(0, 255, 10), Ok((257, both)));
        assert_eq!(rings.take(0, 255, 1), Ok((257, bytes(&[0xaa, 0]))));
        assert_eq!(rings.take(0, 257, 10), Ok((257, vec![])));
        // A head that is out of reach gives no slots.
        assert_eq!(rings.take(0, 258, 10), Ok((257, vec![])));
        // Around the wrap, which is from page 1 to page 3.
        *word(&mut words, RING_HEAD) = 1025;
        *word(&mut words, 2 * PAGE - 16) = 0xcc;
        *word(&mut words, 3 * PAGE) = 0xdd;
        assert_eq!(rings.take(0, 1023, 10), Ok((1025, bytes(&[0xcc, 0, 0xdd, 0]))));
        rings.free(1, 4).unwrap();
        assert_eq!(*word(&mut words, RING_BYTES + RING_TAIL), 4);
        assert_eq!(rings.head(9), Err(MemoryError::Moved));
        assert_eq!(rings.take(4, 257, 0), Ok((0, vec![])));
    }

    #[test]
    fn a_process_that_is_gone_or_has_no_such_memory_is_an_error() {
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        let memory = &memory(child.id());
        let addresses = &Addresses { heads: vec![0], slots: vec![0x1000] };
        let rings = GuestRings { memory: memory.file(), slots_per_ring: 256, addresses };
        assert_eq!(rings.head(0), Err(MemoryError::Moved));
        assert_eq!(rings.free(0, 1), Err(MemoryError::Moved));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(rings.head(0), Err(MemoryError::Gone));
        let gone = ProcessMemory::open(Path::new("/proc"), Pid(child.id()));
        assert_eq!(gone.err(), Some(MemoryError::Gone));
    }

    /// A program that is executed later has other memory under the same number.
    #[test]
    fn the_memory_of_a_later_program_is_not_touched() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read go; exec /bin/cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = child.id();
        let stack = || {
            let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
            let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
            let end = line.split(['-', ' ']).nth(1).unwrap();
            u64::from_str_radix(end, 16).unwrap() - 8
        };
        let (before, mut word) = (memory(child.id()), [0; 8]);
        assert_eq!(read(before.file(), &mut word, stack()), Ok(()));
        let mut pipes = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // What is echoed is said by the later program.
        pipes.0.write_all(b"go\nx").unwrap();
        pipes.1.read_exact(&mut [0]).unwrap();
        assert_eq!(read(memory(child.id()).file(), &mut word, stack()), Ok(()));
        assert_eq!(read(before.file(), &mut word, stack()), Err(MemoryError::Gone));
        assert_eq!(whole(pwrite(before.file(), &word, stack()), 8), Err(MemoryError::Gone));
        drop(pipes);
        child.wait().unwrap();
    }
}
