//! A VM's memory through its process: KVM's memory slots say where in the process a guest-physical page lies, and the
//! process's `pagemap` whether it is there.
//!
//! ```text
//!   guest-physical --slot--> address in the VMM --pagemap: present?--> /proc/PID/mem
//! ```
//! A page that is not there is never read: a read of an untouched page of shared memory would allocate it, one of a page
//! that a user-space file system or `userfaultfd` serves would wait for its owner.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use linux::memory::{PAGE_BYTES, PhysicalMemory, PhysicalRange};
use model::{GuestPhys, HostVirt};
use serde::{Deserialize, Serialize};

/// Bytes of an entry of `pagemap` (Documentation/admin-guide/mm/pagemap.rst).
const ENTRY_BYTES: usize = 8;
const PRESENT: u64 = 1 << 63;
/// Pages whose entries are read at once: those of 2 MiB, in one page of the file.
const BLOCK_PAGES: usize = 512;
/// A read costs as much as one of so many bytes.
const READ_COST: u64 = 64;
/// Blocks of entries that are kept during one look.
const MAX_BLOCKS: usize = 1 << 12;

/// Guest-physical memory, and where it lies in the VM's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySlot {
    /// Guest-physical.
    pub start: u64,
    pub bytes: u64,
    /// Address in the VM's process.
    pub address: u64,
}

/// The memory of one VM.
#[derive(Debug)]
pub(crate) struct VmMemory {
    memory: File,
    pagemap: File,
    /// Ascending, without overlaps.
    slots: Vec<MemorySlot>,
    ranges: Vec<PhysicalRange>,
    /// Of the look that is under way.
    bytes_left: Cell<u64>,
    /// By their first page in the process: which of `BLOCK_PAGES` are there.
    blocks: RefCell<BTreeMap<u64, Box<[u64]>>>,
}

impl VmMemory {
    /// The slots as KVM has them. One that overlaps the one before, or is not made of pages, is left out.
    pub(crate) fn new(memory: File, pagemap: File, mut slots: Vec<MemorySlot>) -> Self {
        slots.sort_by_key(|slot| slot.start);
        let mut end = 0;
        slots.retain(|slot| {
            let is_aligned = (slot.start | slot.bytes | slot.address).is_multiple_of(PAGE_BYTES);
            let slot_end = slot.start.checked_add(slot.bytes);
            let is_in_process = slot.address.checked_add(slot.bytes).is_some();
            let fits = is_aligned && is_in_process && end <= slot.start;
            match slot_end.filter(|_| fits && 0 < slot.bytes) {
                Some(slot_end) => end = slot_end,
                None => return false,
            }
            true
        });
        let range =
            |slot: &MemorySlot| PhysicalRange { start: GuestPhys(slot.start), bytes: slot.bytes };
        let ranges = slots.iter().map(range).collect();
        Self {
            memory,
            pagemap,
            slots,
            ranges,
            bytes_left: Cell::new(0),
            blocks: RefCell::default(),
        }
    }

    /// Begins a look: at most so many bytes are read, and pages may be there that were not before.
    pub(crate) fn begin_look(&self, most_bytes: u64) {
        self.bytes_left.set(most_bytes);
        self.blocks.borrow_mut().clear();
    }

    /// Whether the look has read all that it may.
    pub(crate) fn is_used_up(&self) -> bool {
        self.bytes_left.get() == 0
    }

    /// Of all slots.
    pub(crate) fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.bytes).sum()
    }

    /// Where a guest-physical address lies in the process, and how many bytes follow it in its slot.
    pub(crate) fn locate(&self, address: GuestPhys) -> Option<(HostVirt, u64)> {
        let after = self.slots.partition_point(|slot| slot.start <= address.0);
        let slot = &self.slots[after.checked_sub(1)?];
        let within = address.0 - slot.start;
        let left = slot.bytes.checked_sub(within).filter(|left| 0 < *left)?;
        Some((HostVirt(slot.address + within), left))
    }

    /// Whether the process has this page.
    fn is_present(&self, page: u64) -> bool {
        let first = page / BLOCK_PAGES as u64 * BLOCK_PAGES as u64;
        let mut blocks = self.blocks.borrow_mut();
        if MAX_BLOCKS <= blocks.len() {
            blocks.clear();
        }
        let block = blocks.entry(first).or_insert_with(|| self.read_entries(first));
        let entry = usize::try_from(page - first).ok().and_then(|n| block.get(n));
        entry.is_some_and(|entry| entry & PRESENT != 0)
    }

    /// The first page that is there, from `page` on and before `end`.
    fn next_present_page(&self, page: u64, end: u64) -> Option<u64> {
        let mut at = page;
        while at < end {
            let entries = self.read_entries(at);
            let present = entries.iter().position(|entry| entry & PRESENT != 0);
            match present {
                Some(n) => return Some(at + n as u64).filter(|found| *found < end),
                None if entries.is_empty() => return None,
                None => at += entries.len() as u64,
            }
        }
        None
    }

    fn read_entries(&self, first: u64) -> Box<[u64]> {
        let mut bytes = [0; BLOCK_PAGES * ENTRY_BYTES];
        // Of a process that is gone, or addresses that it has not: nothing is there.
        let read = self.pagemap.read_at(&mut bytes, first.saturating_mul(ENTRY_BYTES as u64));
        let entries = bytes[..read.unwrap_or(0)].chunks_exact(ENTRY_BYTES);
        entries.filter_map(|entry| Some(u64::from_le_bytes(*entry.first_chunk()?))).collect()
    }
}

impl PhysicalMemory for VmMemory {
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()> {
        // What fails takes time, too.
        let cost = (buffer.len() as u64).max(READ_COST);
        let Some(left) = self.bytes_left.get().checked_sub(cost) else {
            self.bytes_left.set(0);
            return None;
        };
        self.bytes_left.set(left);
        let (mut at, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let (host, in_slot) = self.locate(GuestPhys(at))?;
            let piece = rest.len().min(usize::try_from(in_slot).unwrap_or(usize::MAX));
            let last = host.0 + (piece as u64 - 1);
            if !(host.0 / PAGE_BYTES..=last / PAGE_BYTES).all(|page| self.is_present(page)) {
                return None;
            }
            let (now, later) = rest.split_at_mut(piece);
            self.memory.read_exact_at(now, host.0).ok()?;
            at += piece as u64;
            rest = later;
        }
        Some(())
    }

    fn ranges(&self) -> &[PhysicalRange] {
        &self.ranges
    }

    fn next_present(&self, from: GuestPhys) -> Option<GuestPhys> {
        let first = self.slots.partition_point(|slot| slot.start + slot.bytes <= from.0);
        self.slots[first..].iter().find_map(|slot| {
            let begin = from.0.max(slot.start).next_multiple_of(PAGE_BYTES) - slot.start;
            let page = (slot.address + begin) / PAGE_BYTES;
            let end = (slot.address + slot.bytes) / PAGE_BYTES;
            let present = self.next_present_page(page, end)?;
            Some(GuestPhys(slot.start + (present * PAGE_BYTES - slot.address)))
        })
    }
}

#[cfg(test)]
mod test {
    use std::ffi::c_void;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;

    /// The own process's memory, with slots of four pages each, of which the second page has been touched.
    fn own_memory(slots: &[u64]) -> (VmMemory, u64) {
        const PAGE: usize = 4096;
        let bytes = 4 * PAGE;
        let flags = MapFlags::SHARED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which stays until the process ends.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        let mapped = mapped.unwrap().cast::<u8>();
        // SAFETY: within the mapping.
        let touched = unsafe { mapped.add(PAGE + 5) };
        // SAFETY: the same.
        unsafe { touched.write(42) };
        let address = mapped.cast::<c_void>() as u64;
        let slot = |start: &u64| MemorySlot { start: *start, bytes: bytes as u64, address };
        let open = |name: &str| File::open(format!("/proc/self/{name}")).unwrap();
        let slots = slots.iter().map(slot).collect();
        (VmMemory::new(open("mem"), open("pagemap"), slots), address)
    }

    #[test]
    fn only_pages_that_are_there_are_read() {
        let (memory, address) = own_memory(&[0x10_0000]);
        memory.begin_look(1 << 20);
        let mut byte = [0];
        assert_eq!(memory.read(GuestPhys(0x10_1005), &mut byte), Some(()));
        assert_eq!(byte, [42]);
        let untouched = [0x10_0000, 0x10_2000, 0x10_3fff];
        for at in untouched {
            assert_eq!(memory.read(GuestPhys(at), &mut byte), None, "{at:x}");
        }
        let mut across = [0; 2];
        assert_eq!(memory.read(GuestPhys(0x10_1fff), &mut across), None);
        let outside = [0, 0xf_ffff, 0x10_4000, u64::MAX];
        for at in outside {
            assert_eq!(memory.read(GuestPhys(at), &mut byte), None, "{at:x}");
        }
        // Nothing was allocated by all this.
        let first = address / PAGE_BYTES;
        memory.begin_look(1 << 20);
        let there: Vec<bool> = (first..first + 4).map(|page| memory.is_present(page)).collect();
        assert_eq!(there, [false, true, false, false]);
        assert_eq!(memory.locate(GuestPhys(0x10_1005)), Some((HostVirt(address + 0x1005), 0x2ffb)));
    }

    #[test]
    fn a_look_reads_no_more_than_it_may() {
        let (memory, _) = own_memory(&[0x10_0000]);
        memory.begin_look(80);
        let mut bytes = [0; 5];
        assert_eq!(memory.read(GuestPhys(0x10_1000), &mut bytes), Some(()));
        assert_eq!(memory.read(GuestPhys(0x10_1000), &mut bytes), None);
        assert!(memory.is_used_up());
    }

    #[test]
    fn slots_that_overlap_are_left_out() {
        let (memory, _) = own_memory(&[0x10_0000, 0x10_1000, 0x20_0000, 0x20_0800]);
        let starts: Vec<u64> = memory.ranges().iter().map(|range| range.start.0).collect();
        assert_eq!(starts, [0x10_0000, 0x20_0000]);
    }
}
