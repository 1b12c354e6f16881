//! Where guests' own kernels say who runs on their vCPUs (`struct guest_view` of bpf/abi/sample.h).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::Object;
use model::{GuestCode, TaskOffsets, Tid};

use crate::abi::field;
use crate::vcpus::VcpuTable;
use crate::{MemorySlot, ProbeError, object};
use bpf::Mapped;

const MAP: &str = "guest_views";
/// `GUEST_VIEWS` and `GUEST_SLOTS`.
const VIEWS: usize = 4096;
const SLOTS: usize = 4;
const SLOT_BYTES: usize = 24;
/// `GUEST_PAGES`, and the bytes of `struct guest_page`.
const PAGES: usize = 16;
const PAGE_ENTRY_BYTES: usize = 32;
/// Where a view has its offsets, and its slots.
const OFFSETS: usize = 32;
const SLOTS_AT: usize = 96;
/// What BPF has found of its page tables.
const PAGES_AT: usize = SLOTS_AT + SLOTS * SLOT_BYTES;
const VIEW_BYTES: usize = PAGES_AT + PAGES * PAGE_ENTRY_BYTES;
/// Offsets in the guest's structs that are believed.
const MAX_OFFSET: u32 = 1 << 16;
/// The longest field that is read of a task: its name.
const MAX_FIELD_BYTES: u32 = 16;
const PAGE_BYTES: u64 = 4096;
/// Bytes of `struct guest_code`.
pub(crate) const CODE_BYTES: usize = 136;
/// `GUEST_CODE_SLOTS`.
pub(crate) const CODE_SLOTS: usize = 1024;

/// Where a guest's kernel says who runs on a vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestView {
    /// Guest-physical address of the CPU's `current_task`.
    pub current: u64,
    /// That of the pointer to the last word of its stack for interrupts.
    pub irq_stack: Option<u64>,
    /// Guest-virtual address of guest-physical 0.
    pub direct_map: u64,
    /// The same, for addresses in the kernel's image; wraps.
    pub image: u64,
    pub offsets: TaskOffsets,
}

/// The views of all vCPUs.
#[derive(Debug)]
pub(crate) struct GuestViews {
    memory: Mapped,
    rows: Mutex<Rows>,
}

/// Which rows are in use.
#[derive(Debug)]
struct Rows {
    by_thread: BTreeMap<Tid, usize>,
    /// The one that was in use last comes last: a program may still look into it.
    free: VecDeque<usize>,
}

impl GuestViews {
    pub(crate) fn from_object(object: &Object) -> Result<Self, ProbeError> {
        let memory = object::memory(object, MAP, VIEWS * VIEW_BYTES)?;
        // Row 0 stands for none.
        let rows = Rows { by_thread: BTreeMap::new(), free: (1..VIEWS).collect() };
        Ok(Self { memory, rows: Mutex::new(rows) })
    }

    /// Samples of the vCPU of thread `tid` have the guest's task from now on. False: it is no vCPU, the view is invalid, or there
    /// is no room for one.
    pub(crate) fn set(
        &self,
        vcpus: &VcpuTable,
        tid: Tid,
        view: &GuestView,
        slots: &[MemorySlot],
    ) -> bool {
        let largest = largest(slots);
        let Some(current) = located(&largest, view.current) else { return false };
        if !is_sound(&view.offsets) {
            return false;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(_) = vcpus.set_view(tid, 0) else { return false };
        let known = rows.by_thread.get(&tid).copied();
        let Some(row) = known.or_else(|| rows.free.pop_front()) else { return false };
        self.write(row, current, view, &largest);
        vcpus.set_view(tid, u32::try_from(row).unwrap_or(0));
        rows.by_thread.insert(tid, row);
        true
    }

    /// Nothing is known of this vCPU's tasks any more.
    pub(crate) fn forget(&self, vcpus: &VcpuTable, tid: Tid) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = rows.by_thread.remove(&tid) {
            rows.free.push_back(row);
            vcpus.set_view(tid, 0);
            self.memory.word(row * VIEW_BYTES).store(0, Ordering::Release);
        }
    }

    fn write(&self, row: usize, current: u64, view: &GuestView, slots: &[MemorySlot; SLOTS]) {
        let at = row * VIEW_BYTES;
        let put = |offset: usize, value: u64| {
            self.memory.word(at + offset).store(value, Ordering::Relaxed);
        };
        put(0, 0);
        put(8, view.direct_map);
        put(16, view.image);
        put(24, view.irq_stack.and_then(|at| located(slots, at)).unwrap_or(0));
        for (n, offset) in view.offsets.words().into_iter().enumerate() {
            self.memory.half_word(at + OFFSETS + 4 * n).store(offset, Ordering::Relaxed);
        }
        for (n, slot) in slots.iter().enumerate() {
            let start = slot.first_page * PAGE_BYTES;
            let words = [start, slot.pages * PAGE_BYTES, slot.address.wrapping_sub(start)];
            for (i, word) in words.into_iter().enumerate() {
                put(SLOTS_AT + n * SLOT_BYTES + 8 * i, word);
            }
        }
        // Of another guest, or another boot.
        for word in 0..PAGES * PAGE_ENTRY_BYTES / 8 {
            put(PAGES_AT + 8 * word, 0);
        }
        self.memory.word(at).store(current, Ordering::Release);
    }
}

/// Whether what is read of a task lies inside of it, and no offset is absurd.
fn is_sound(offsets: &TaskOffsets) -> bool {
    let TaskOffsets { mm, stack, fs_base, pid, comm, start_time, task_bytes, .. } = *offsets;
    let of_task = [mm, stack, fs_base, pid, comm, start_time];
    let is_inside = |at: u32| at.checked_add(MAX_FIELD_BYTES).is_some_and(|end| end <= task_bytes);
    of_task.into_iter().all(is_inside) && offsets.words().iter().all(|offset| *offset <= MAX_OFFSET)
}

/// A record of `guest_codes`: the number of its vCPU, and the code.
pub(crate) fn decode_code(record: &[u8]) -> (u32, GuestCode) {
    let word = |n: usize| u64::from_le_bytes(field(record, 8 * n));
    let half = |n: usize| u32::from_le_bytes(field(record, 104 + 4 * n));
    let code = GuestCode {
        time_ns: word(0),
        cr3: word(1),
        fs_base: word(2),
        stack: word(3),
        start_ns: word(4),
        start: word(5),
        end: word(6),
        offset: word(7),
        file: word(8),
        mount: word(9),
        dentry: word(10),
        inode: word(11),
        pages: word(12),
        pid: half(1),
        tid: half(2),
        comm: field(record, 120),
    };
    (half(0), code)
}

/// The largest slots are the guest's RAM; the others are firmware and devices.
fn largest(slots: &[MemorySlot]) -> [MemorySlot; SLOTS] {
    let mut by_size = slots.to_vec();
    by_size.sort_by_key(|slot| std::cmp::Reverse(slot.pages));
    let none = MemorySlot { first_page: 0, pages: 0, address: 0, read_only: false };
    std::array::from_fn(|n| by_size.get(n).copied().unwrap_or(none))
}

/// Where eight bytes of guest-physical memory lie in the VM's process.
fn located(slots: &[MemorySlot], physical: u64) -> Option<u64> {
    slots.iter().find_map(|slot| {
        let within = physical.checked_sub(slot.first_page * PAGE_BYTES)?;
        let fits = within.checked_add(8)? <= slot.pages * PAGE_BYTES;
        (fits && physical.is_multiple_of(8)).then(|| slot.address + within)
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn code_is_decoded_as_the_header_says() {
        let mut record = Vec::new();
        record.extend((1..=13_u64).flat_map(u64::to_le_bytes));
        record.extend([14_u32, 15, 16, 0].into_iter().flat_map(u32::to_le_bytes));
        record.extend(*b"a long name, 16 ");
        assert_eq!(record.len(), CODE_BYTES);
        let (vcpu, code) = decode_code(&record);
        assert_eq!((vcpu, code.pid, code.tid, &code.comm), (14, 15, 16, b"a long name, 16 "));
        let GuestCode { time_ns, cr3, fs_base, stack, start_ns, start, end, offset, .. } = code;
        assert_eq!(
            [time_ns, cr3, fs_base, stack, start_ns, start, end, offset],
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
        let GuestCode { file, mount, dentry, inode, pages, .. } = code;
        assert_eq!([file, mount, dentry, inode, pages], [9, 10, 11, 12, 13]);
    }

    #[test]
    fn offsets_behind_a_task_are_refused() {
        let sound =
            TaskOffsets { mm: 0x100, comm: 0x200, task_bytes: 0x210, ..TaskOffsets::default() };
        assert!(is_sound(&sound));
        assert!(!is_sound(&TaskOffsets { comm: 0x201, ..sound }));
        assert!(!is_sound(&TaskOffsets { mm: u32::MAX, ..sound }));
        assert!(!is_sound(&TaskOffsets { file_path: MAX_OFFSET + 1, ..sound }));
        assert!(!is_sound(&TaskOffsets { task_bytes: MAX_OFFSET + 1, ..sound }));
    }

    #[test]
    fn addresses_are_looked_up_in_the_largest_slots() {
        let slot = |first_page, pages| MemorySlot {
            first_page,
            pages,
            address: 0x7000_0000_0000 + first_page * PAGE_BYTES,
            read_only: false,
        };
        let slots = [slot(0xff000, 1), slot(0, 0x80), slot(0x100, 0x1000), slot(2, 1), slot(9, 2)];
        let largest = largest(&slots);
        assert_eq!(largest.map(|slot| slot.pages), [0x1000, 0x80, 2, 1]);
        assert_eq!(located(&largest, 0x10_0008), Some(0x7000_0010_0008));
        for outside in [0xf_f000, 0x110_0000, 0x10_0001, !7] {
            assert_eq!(located(&largest, outside), None, "{outside:x}");
        }
    }
}
