//! A guest's rings in the memory of its VM's process.

use model::Pid;
use rustix::io::Errno;

use super::layout::{Addresses, Claim, LayoutError, PAGE, Region};
use crate::RingMemory;
use crate::slots::{
    KINDS, RING_BYTES, RING_HEAD, RING_LOST, RING_MARK, RING_TAIL, SLOT_BYTES, Slot,
};

/// Pieces that one system call takes (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

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

/// The rings of a guest, by their pages' addresses in its VM's process.
#[derive(Debug)]
pub struct GuestRings {
    process: Pid,
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
    pub fn new(process: Pid, claim: Claim, regions: &[Region]) -> Result<Self, LayoutError> {
        let addresses = claim.locate(regions)?;
        Ok(Self { process, claim, addresses })
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
        let mut words = [0; N];
        let pieces = offsets.map(|offset| (self.head_address(ring, offset), 8));
        // SAFETY: any bytes are a word.
        let bytes = unsafe { bytes_of_mut(&mut words) };
        read(self.process, bytes, &pieces)?;
        Ok(words)
    }

    /// Words are aligned, so none crosses a page.
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
        for pieces in pieces.chunks(MAX_PIECES) {
            let length = pieces.iter().map(|(_, length)| length).sum();
            let (now, rest) = bytes.split_at_mut(length);
            read(self.process, now, pieces)?;
            bytes = rest;
        }
        Ok(())
    }

    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), MemoryError> {
        write(self.process, &tail.to_ne_bytes(), self.head_address(ring, RING_TAIL))
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

fn read(process: Pid, into: &mut [u8], from: &[Piece]) -> Result<(), MemoryError> {
    let remote: Vec<libc::iovec> = from.iter().map(remote).collect();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: `local` is one writable piece of `into`, `remote` is as long as said; the kernel checks the other process's.
    let length = unsafe {
        libc::process_vm_readv(
            id(process),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as u64,
            0,
        )
    };
    whole(length, into.len())
}

fn write(process: Pid, bytes: &[u8; 8], to: u64) -> Result<(), MemoryError> {
    let remote = remote(&(to, bytes.len()));
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `local` is one readable piece, which the call does not write; the kernel checks the other process's.
    let length = unsafe {
        libc::process_vm_writev(id(process), &raw const local, 1, &raw const remote, 1, 0)
    };
    whole(length, bytes.len())
}

fn remote(piece: &Piece) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(piece.0).unwrap_or(0)),
        iov_len: piece.1,
    }
}

/// No process has the id -1.
fn id(process: Pid) -> i32 {
    i32::try_from(process.0).unwrap_or(-1)
}

fn whole(length: isize, wanted: usize) -> Result<(), MemoryError> {
    match usize::try_from(length) {
        Ok(length) if length == wanted => Ok(()),
        Ok(_) => Err(MemoryError::Moved),
        Err(_) => Err(match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ESRCH) => MemoryError::Gone,
            Some(libc::EPERM) => MemoryError::Refused,
            Some(libc::EFAULT) => MemoryError::Moved,
            Some(code) => MemoryError::Other(Errno::from_raw_os_error(code)),
            None => MemoryError::Moved,
        }),
    }
}

#[cfg(test)]
mod test {
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

    /// Rings in this process's own memory: its "guest" is the test.
    fn own(words: &mut [u64]) -> GuestRings {
        let address = words.as_ptr().addr() as u64;
        let page = address.div_ceil(PAGE as u64);
        let region = Region { first_page: page, pages: 5, address: page * PAGE as u64 };
        let slots = [3, 1, 4, 2].map(|n| page + n).to_vec();
        let claim = Claim { slots_per_ring: 512, rings: 2, heads: vec![page], slots };
        GuestRings::new(Pid(std::process::id()), claim, &[region]).unwrap()
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
        let mut rings = GuestRings::new(Pid(child.id()), claim, &[region]).unwrap();
        assert_eq!(rings.counters(0), Err(MemoryError::Moved));
        assert_eq!(rings.set_tail(0, 1), Err(MemoryError::Moved));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(rings.counters(0), Err(MemoryError::Gone));
    }
}
