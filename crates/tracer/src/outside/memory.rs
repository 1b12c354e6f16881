//! A guest's rings in the memory of its VM's process.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use model::Pid;
use rustix::io::{Errno, pread, pwrite};

use super::layout::{Addresses, Claim, LayoutError, PAGE, Region};
use crate::RingMemory;
use crate::slots::{
    KINDS, RING_BYTES, RING_HEAD, RING_LOST, RING_MARK, RING_TAIL, SLOT_BYTES, Slot,
};

/// Why a VM's memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Its process is gone.
    #[error("the VM's process has ended")]
    Gone,
    /// Not allowed.
    #[error("reading the VM's memory is not allowed (it needs root, or CAP_SYS_PTRACE)")]
    Refused,
    /// The memory is not where it was.
    #[error("the VM's memory is no longer where it was")]
    Moved,
    /// The kernel said something else.
    #[error("the VM's memory can't be read: {0}")]
    Other(Errno),
    /// What is there is not what the guest wrote.
    #[error("the VM's memory does not hold what its guest wrote there (is it encrypted?)")]
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

    fn read(&self, bytes: &mut [u8], address: u64) -> Result<(), MemoryError> {
        let wanted = bytes.len();
        whole(pread(&self.file, bytes, address), wanted)
    }

    fn write(&self, bytes: &[u8], address: u64) -> Result<(), MemoryError> {
        whole(pwrite(&self.file, bytes, address), bytes.len())
    }
}

fn whole(copied: Result<usize, Errno>, wanted: usize) -> Result<(), MemoryError> {
    match copied {
        Ok(copied) if copied == wanted => Ok(()),
        // The kernel says so of memory that nobody has any more.
        Ok(0) => Err(MemoryError::Gone),
        Ok(_) | Err(Errno::IO | Errno::INVAL) => Err(MemoryError::Moved),
        Err(error) => Err(MemoryError::Other(error)),
    }
}

/// The rings of a guest, by their pages' addresses in its VM's process.
#[derive(Debug)]
pub struct GuestRings {
    memory: ProcessMemory,
    claim: Claim,
    addresses: Addresses,
}

/// A piece of memory: where it begins, and its length.
type Piece = (u64, usize);

impl GuestRings {
    /// The rings that a guest says to have, in the memory of its VM.
    ///
    /// # Errors
    /// When they can't be where it says.
    pub fn new(
        memory: ProcessMemory,
        claim: Claim,
        regions: &[Region],
    ) -> Result<Self, LayoutError> {
        let addresses = claim.locate(regions)?;
        Ok(Self { memory, claim, addresses })
    }

    /// Whether every ring carries the mark that the guest was asked to write.
    ///
    /// # Errors
    /// When it does not, or can't be read.
    pub fn check_mark(&self, mark: u64) -> Result<(), MemoryError> {
        for ring in 0..self.claim.rings {
            let [found] = self.head_words(ring, [RING_MARK])?;
            if found != mark {
                return Err(MemoryError::Unreadable);
            }
        }
        Ok(())
    }

    /// Looks again whether the memory still is where it was; to be asked before writing, now and then: memory may be
    /// taken out of a running VM.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_regions(&self, regions: &[Region]) -> Result<(), MemoryError> {
        match self.claim.locate(regions) {
            Ok(addresses) if addresses == self.addresses => Ok(()),
            _ => Err(MemoryError::Moved),
        }
    }

    /// How full a ring is, from 0 to 1.
    ///
    /// # Errors
    /// If the memory can't be read.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn fill(&self, ring: usize) -> Result<f64, MemoryError> {
        let (head, tail) = self.counters(ring)?;
        Ok((head.wrapping_sub(tail) as f64 / self.claim.slots_per_ring as f64).min(1.0))
    }

    /// Words of a ring's head.
    fn head_words<const N: usize>(
        &self,
        ring: usize,
        offsets: [usize; N],
    ) -> Result<[u64; N], MemoryError> {
        let mut words = [0_u64; RING_BYTES / 8];
        // SAFETY: any bytes are a word.
        let bytes = unsafe { bytes_of_mut(&mut words) };
        self.memory.read(bytes, self.head_address(ring, 0))?;
        Ok(offsets.map(|offset| words[offset / 8]))
    }

    /// Heads are aligned, so none crosses a page.
    fn head_address(&self, ring: usize, offset: usize) -> u64 {
        let at = ring * RING_BYTES + offset;
        self.addresses.heads[at / PAGE] + (at % PAGE) as u64
    }
}

impl RingMemory for GuestRings {
    type Error = MemoryError;

    fn counters(&self, ring: usize) -> Result<(u64, u64), MemoryError> {
        let [head, tail] = self.head_words(ring, [RING_HEAD, RING_TAIL])?;
        Ok((head, tail))
    }

    /// The kernel copies upwards, in steps that no slot lies across.
    fn read_slots(&self, ring: usize, first: usize, slots: &mut [Slot]) -> Result<(), MemoryError> {
        let start = (ring * self.claim.slots_per_ring + first) * SLOT_BYTES;
        let pieces = pieces(&self.addresses.slots, start, size_of_val(slots));
        // SAFETY: any bytes are a slot.
        let mut bytes = unsafe { bytes_of_mut(slots) };
        for (address, length) in pieces {
            let (now, rest) = bytes.split_at_mut(length);
            self.memory.read(now, address)?;
            bytes = rest;
        }
        Ok(())
    }

    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), MemoryError> {
        self.memory.write(&tail.to_ne_bytes(), self.head_address(ring, RING_TAIL))
    }

    fn lost(&self, ring: usize) -> Result<[u64; KINDS], MemoryError> {
        self.head_words(ring, std::array::from_fn(|kind| RING_LOST + kind * 8))
    }
}

/// The pieces that `bytes` of an array lie in whose pages have these addresses; neighbours are joined.
fn pieces(pages: &[u64], start: usize, bytes: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut at, end) = (start, start + bytes);
    while at < end {
        let length = (PAGE - at % PAGE).min(end - at);
        let address = pages[at / PAGE] + (at % PAGE) as u64;
        match pieces.last_mut() {
            Some((last, joined)) if *last + *joined as u64 == address => *joined += length,
            _ => pieces.push((address, length)),
        }
        at += length;
    }
    pieces
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

    use super::*;

    #[test]
    fn neighbouring_pages_are_one_piece() {
        let pages = [0x1000, 0x2000, 0x9000, 0x3000];
        let check = |start, bytes, expected: &[Piece]| {
            assert_eq!(pieces(&pages, start, bytes), expected, "{start}+{bytes}");
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
    fn own(words: &mut [u64]) -> GuestRings {
        let address = words.as_ptr().addr() as u64;
        let page = address.div_ceil(PAGE as u64);
        let region = Region { first_page: page, pages: 5, address: page * PAGE as u64 };
        let slots = [3, 1, 4, 2].map(|n| page + n).to_vec();
        let claim = Claim { slots_per_ring: 512, rings: 2, heads: vec![page], slots };
        GuestRings::new(memory(std::process::id()), claim, &[region]).unwrap()
    }

    /// The word at an offset from the first page.
    fn word(words: &mut [u64], offset: usize) -> &mut u64 {
        let skipped = words.as_ptr().addr().next_multiple_of(PAGE) - words.as_ptr().addr();
        &mut words[(skipped + offset) / 8]
    }

    #[test]
    fn rings_are_read_and_written_across_scattered_pages() {
        let mut words = vec![0u64; 6 * PAGE / 8];
        let mut rings = own(&mut words);
        *word(&mut words, RING_BYTES) = 5;
        *word(&mut words, RING_BYTES + RING_MARK) = 77;
        *word(&mut words, RING_MARK) = 77;
        *word(&mut words, RING_BYTES + RING_LOST + 8) = 9;
        // Ring 0: pages 3 and 1. Its slot 255 is the last of page 3, slot 256 the first of page 1.
        *word(&mut words, 4 * PAGE - 16) = 0xaa;
        *word(&mut words, PAGE + 8) = 0xbb;
        assert_eq!(rings.counters(1), Ok((5, 0)));
        assert_eq!(rings.check_mark(77), Ok(()));
        assert_eq!(rings.check_mark(78), Err(MemoryError::Unreadable));
        assert_eq!(rings.lost(1).unwrap()[..3], [0, 9, 0]);
        assert!((rings.fill(1).unwrap() - 5.0 / 512.0).abs() < 1e-9);
        let mut slots = [Slot::default(); 2];
        rings.read_slots(0, 255, &mut slots).unwrap();
        assert_eq!(slots, [Slot { tag: 0xaa, payload: 0 }, Slot { tag: 0, payload: 0xbb }]);
        rings.set_tail(1, 4).unwrap();
        assert_eq!(*word(&mut words, RING_BYTES + RING_TAIL), 4);
        assert_eq!(rings.check_regions(&[]), Err(MemoryError::Moved));
    }

    #[test]
    fn a_process_that_is_gone_or_has_no_such_memory_is_an_error() {
        let region = Region { first_page: 0, pages: 1 << 40, address: 0 };
        let claim = Claim { slots_per_ring: 256, rings: 1, heads: vec![0], slots: vec![1] };
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        let mut rings = GuestRings::new(memory(child.id()), claim, &[region]).unwrap();
        assert_eq!(rings.counters(0), Err(MemoryError::Moved));
        assert_eq!(rings.set_tail(0, 1), Err(MemoryError::Moved));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(rings.counters(0), Err(MemoryError::Gone));
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
        assert_eq!(before.read(&mut word, stack()), Ok(()));
        let mut pipes = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // What is echoed is said by the later program.
        pipes.0.write_all(b"go\nx").unwrap();
        pipes.1.read_exact(&mut [0]).unwrap();
        assert_eq!(memory(child.id()).read(&mut word, stack()), Ok(()));
        assert_eq!(before.read(&mut word, stack()), Err(MemoryError::Gone));
        assert_eq!(before.write(&word, stack()), Err(MemoryError::Gone));
        drop(pipes);
        child.wait().unwrap();
    }
}
