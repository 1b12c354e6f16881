//! Executable mappings of a process: its memory's tree of VMAs (maple tree, Linux 6.1), or their list before that.
//!
//! ```text
//!  mm.mm_mt.ma_root -> node: slot 0 | pivot 0 | slot 1 | pivot 1 ...     slot n: addresses up to pivot n
//!                              '-> node: ...  '-> leaf: VMAs
//!  mm.mmap -> VMA -vm_next-> VMA -> ...                                  by address
//! ```
//!
//! The tree changes while it is read. A VMA counts if it is this memory's and has just the range that the tree says.

use model::GuestVirt;

use crate::fields::Fields;
use crate::memory::KernelMemory;
use crate::types::layout;

/// Trees of 10 and 16 branches are less deep.
const MAX_DEPTH: u32 = 8;
/// Most VMAs of a process: 65,530 unless its administrator says otherwise (`vm.max_map_count`).
const MAX_VMAS: usize = 1 << 17;
/// Most mappings that are kept.
const MAX_KEPT: usize = 1 << 14;
/// Trees that changed while they were read are read so often.
const MAX_ATTEMPTS: usize = 3;
/// `struct maple_node`, aligned to its size.
const NODE_BYTES: u64 = 256;
/// Entries of leaves and of nodes without gaps (`MAPLE_RANGE64_SLOTS`).
const RANGE_SLOTS: u64 = 16;
/// Entries of nodes with gaps (`MAPLE_ARANGE64_SLOTS`).
const GAP_SLOTS: u64 = 10;
const VM_EXEC: u64 = 4;
const PAGE_SHIFT: u32 = 12;

const ASTRAY: &str = "mappings changed while they were read";

layout! {
    /// Where the kernel keeps a process' mappings: byte offsets of fields.
    Layout {
        start: "vm_area_struct" "vm_start",
        end: "vm_area_struct" "vm_end",
        owner: "vm_area_struct" "vm_mm",
        flags: "vm_area_struct" "vm_flags",
        page_offset: "vm_area_struct" "vm_pgoff",
        file: "vm_area_struct" "vm_file",
    }
    optional {
        root: "mm_struct" "mm_mt.ma_root",
        range_pivots: "maple_range_64" "pivot",
        range_slots: "maple_range_64" "slot",
        gap_pivots: "maple_arange_64" "pivot",
        gap_slots: "maple_arange_64" "slot",
        first: "mm_struct" "mmap",
        next: "vm_area_struct" "vm_next",
    }
}

impl Layout {
    /// Whether the tree has the node layout of all kernels so far, the only one that the BPF programs can walk.
    #[must_use]
    pub fn has_usual_nodes(&self) -> bool {
        const PIVOTS: Option<u64> = Some(8);
        let slots = |n_slots: u64| Some(8 * n_slots);
        (self.range_pivots, self.range_slots) == (PIVOTS, slots(RANGE_SLOTS))
            && (self.gap_pivots, self.gap_slots) == (PIVOTS, slots(GAP_SLOTS))
    }
}

/// A range of a process' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`; 0 without a file.
    pub offset: u64,
    /// `vm_flags`
    pub flags: u64,
    /// Its `struct file`.
    pub file: Option<GuestVirt>,
    /// Its `vm_area_struct`.
    pub vma: GuestVirt,
}

/// A process' executable mappings, by address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mappings {
    pub executable: Vec<Mapping>,
    /// VMAs that were left out, because they were no longer what the tree said.
    pub n_dropped: usize,
    /// Why there may be more.
    pub problem: Option<&'static str>,
}

/// The executable mappings of the process that has this `mm_struct`.
pub fn executable(memory: &dyn KernelMemory, layout: &Layout, mm: GuestVirt) -> Mappings {
    read(memory, layout, mm, 0, u64::MAX)
}

/// The executable mapping that holds an address.
pub fn holding(
    memory: &dyn KernelMemory,
    layout: &Layout,
    mm: GuestVirt,
    address: u64,
) -> Option<Mapping> {
    read(memory, layout, mm, address, address).executable.pop()
}

fn read(
    memory: &dyn KernelMemory,
    layout: &Layout,
    mm: GuestVirt,
    first: u64,
    last: u64,
) -> Mappings {
    let quality = |found: &Mappings| (found.problem.is_some(), found.n_dropped);
    let mut best: Option<Mappings> = None;
    for _ in 0..MAX_ATTEMPTS {
        let mut reader =
            Reader { memory, layout, mm, first, last, left: MAX_VMAS, found: Mappings::default() };
        reader.found.problem = reader.read().err();
        let found = reader.found;
        if best.as_ref().is_none_or(|best| quality(&found) < quality(best)) {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|best| quality(best) == (false, 0)) {
            break;
        }
    }
    best.unwrap_or_default()
}

struct Reader<'a> {
    memory: &'a dyn KernelMemory,
    layout: &'a Layout,
    mm: GuestVirt,
    /// Mappings outside of these addresses are not looked at.
    first: u64,
    last: u64,
    /// How many nodes and VMAs may still be read.
    left: usize,
    found: Mappings,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<(), &'static str> {
        let Some(root) = self.layout.root else { return self.list() };
        match self.memory.u64_at(self.mm.0, root).ok_or(ASTRAY)? {
            0 => Ok(()),
            node if is_internal(node) => self.node(node, 0, u64::MAX, 0),
            // A tree of one entry, at address 0.
            _ => Err(ASTRAY),
        }
    }

    fn step(&mut self) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(1).ok_or("the process has too many mappings")?;
        Ok(())
    }

    /// A node that the tree says holds the addresses from `min` to `max`.
    fn node(&mut self, entry: u64, min: u64, max: u64, depth: u32) -> Result<(), &'static str> {
        const UNKNOWN: &str = "the kernel keeps mappings in an unknown way";
        let is_leaf = match entry >> 3 & 0xf {
            1 => true,
            2 | 3 => false,
            _ => return Err(UNKNOWN),
        };
        let layout = self.layout;
        let (pivots, slots, n_slots) = if entry >> 3 & 0xf == 3 {
            (layout.gap_pivots, layout.gap_slots, GAP_SLOTS)
        } else {
            (layout.range_pivots, layout.range_slots, RANGE_SLOTS)
        };
        let (pivots, slots) = pivots.zip(slots).ok_or(UNKNOWN)?;
        if depth == MAX_DEPTH {
            return Err(ASTRAY);
        }
        self.step()?;
        let address = entry & !(NODE_BYTES - 1);
        let node = Fields::read(self.memory, address, &[(0, NODE_BYTES)]).ok_or(ASTRAY)?;
        // What was taken out of the tree is its own parent.
        if node.u64(0).is_none_or(|parent| parent & !(NODE_BYTES - 1) == address) {
            return Err(ASTRAY);
        }
        let mut start = min;
        for n in 0..n_slots {
            let pivot =
                if n + 1 < n_slots { node.u64(pivots + n * 8).ok_or(UNKNOWN)? } else { max };
            let end = if pivot == 0 && 0 < n { max } else { pivot.min(max) };
            if end < start {
                return Err(ASTRAY);
            }
            if start <= self.last && self.first <= end {
                match node.u64(slots + n * 8).ok_or(UNKNOWN)? {
                    0 => {}
                    vma if is_leaf => self.vma(vma, start, end)?,
                    child => self.node(child, start, end, depth + 1)?,
                }
            }
            if end == max {
                break;
            }
            start = end + 1;
        }
        Ok(())
    }

    /// A VMA that the tree says has the addresses from `first` to `last`.
    fn vma(&mut self, vma: u64, first: u64, last: u64) -> Result<(), &'static str> {
        // Marks of a fork that is going on.
        if is_internal(vma) {
            return Ok(());
        }
        self.step()?;
        match self.mapping(vma) {
            Some((mapping, _)) if (mapping.start, mapping.end) == (first, last.wrapping_add(1)) => {
                self.keep(mapping)
            }
            _ => {
                self.found.n_dropped += 1;
                Ok(())
            }
        }
    }

    fn keep(&mut self, mapping: Mapping) -> Result<(), &'static str> {
        if mapping.flags & VM_EXEC != 0 {
            if MAX_KEPT <= self.found.executable.len() {
                return Err("the process has too many executable mappings");
            }
            self.found.executable.push(mapping);
        }
        Ok(())
    }

    /// A VMA of this memory, and the next one's address.
    fn mapping(&self, vma: u64) -> Option<(Mapping, u64)> {
        let at = self.layout;
        let next = at.next.unwrap_or(at.start);
        let offsets = [at.start, at.end, at.owner, at.flags, at.page_offset, at.file, next];
        let fields = Fields::read(self.memory, vma, &offsets.map(|offset| (offset, 8)))?;
        let file = fields.u64(at.file).filter(|file| *file != 0).map(GuestVirt);
        let pages = fields.u64(at.page_offset)?;
        let mapping = Mapping {
            start: fields.u64(at.start)?,
            end: fields.u64(at.end)?,
            offset: file.map_or(0, |_| pages << PAGE_SHIFT),
            flags: fields.u64(at.flags)?,
            file,
            vma: GuestVirt(vma),
        };
        let is_sound = fields.u64(at.owner)? == self.mm.0 && mapping.start < mapping.end;
        is_sound.then_some((mapping, fields.u64(next)?))
    }

    fn list(&mut self) -> Result<(), &'static str> {
        let (Some(first), Some(_)) = (self.layout.first, self.layout.next) else {
            return Err("the kernel has neither a tree of mappings nor a list");
        };
        let mut vma = self.memory.u64_at(self.mm.0, first).ok_or(ASTRAY)?;
        let mut end = 0;
        while vma != 0 {
            self.step()?;
            let (mapping, next) = self.mapping(vma).ok_or(ASTRAY)?;
            if mapping.start < end {
                return Err(ASTRAY);
            }
            if self.last < mapping.start {
                break;
            }
            if self.first < mapping.end {
                self.keep(mapping)?;
            }
            (vma, end) = (next, mapping.end);
        }
        Ok(())
    }
}

/// Nodes, and marks in place of pointers.
fn is_internal(entry: u64) -> bool {
    entry & 3 == 2
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fields::test::Drawn;

    const LAYOUT: Layout = Layout {
        start: 0,
        end: 8,
        owner: 0x10,
        flags: 0x20,
        page_offset: 0x28,
        file: 0x30,
        root: Some(0x48),
        range_pivots: Some(8),
        range_slots: Some(128),
        gap_pivots: Some(8),
        gap_slots: Some(80),
        first: Some(0x50),
        next: Some(0x18),
    };
    const LIST: Layout = Layout { root: None, ..LAYOUT };
    const MM: GuestVirt = GuestVirt(0xffff_8880_0000_1000);
    const VMAS: u64 = 0xffff_8880_0001_0000;
    const NODES: u64 = 0xffff_8880_0002_0000;

    fn vma(n: u64) -> u64 {
        VMAS + n * 0x40
    }

    fn node(n: u64, kind: u64) -> u64 {
        (NODES + n * NODE_BYTES) | kind << 3 | 2
    }

    /// VMA `n`: pages `pages`, a file if `n` is odd.
    fn draw_vma(memory: &Drawn, n: u64, pages: (u64, u64), flags: u64) {
        let file = if n % 2 == 1 { 0xffff_8880_0f00_0000 + n * 0x100 } else { 0 };
        let words = [pages.0 << 12, pages.1 << 12, MM.0, 0, flags, n + 5, file];
        words.iter().zip((vma(n)..).step_by(8)).for_each(|(word, at)| memory.write(at, *word));
    }

    fn draw_node(memory: &Drawn, entry: u64, pivots: &[u64], slots: &[u64]) {
        let address = entry & !0xff;
        let slots_at = address + if entry >> 3 & 0xf == 3 { 80 } else { 128 };
        memory.write(address, MM.0 | 1);
        (address + 8..).step_by(8).zip(pivots).for_each(|(at, pivot)| memory.write(at, *pivot));
        (slots_at..).step_by(8).zip(slots).for_each(|(at, slot)| memory.write(at, *slot));
    }

    /// Pages 1 to 3: code of VMA 1; 3 to 4: data of VMA 2; 16 to 20: code of VMA 4; behind a gap, code of VMA 5.
    fn example() -> Drawn {
        let memory = Drawn::default();
        for (n, pages, flags) in
            [(1, (1, 3), 5), (2, (3, 4), 3), (4, (16, 20), 4), (5, (0x7000, 0x7001), 5)]
        {
            draw_vma(&memory, n, pages, flags);
        }
        let (root, left, right) = (node(0, 3), node(1, 1), node(2, 1));
        memory.write(MM.0 + 0x48, root);
        draw_node(&memory, root, &[0xffff, u64::MAX], &[left, right]);
        draw_node(&memory, left, &[0xfff, 0x2fff, 0x3fff], &[0, vma(1), vma(2), 0]);
        draw_node(&memory, right, &[0x13fff, 0x6ff_ffff, 0x700_0fff], &[vma(4), 0, vma(5), 0]);
        memory
    }

    fn list() -> Drawn {
        let memory = example();
        memory.write(MM.0 + 0x50, vma(1));
        [(1, 2), (2, 4), (4, 5)]
            .iter()
            .for_each(|(n, next)| memory.write(vma(*n) + 0x18, vma(*next)));
        memory
    }

    fn check(
        memory: &Drawn,
        layout: &Layout,
        expected: &[u64],
        dropped: usize,
        problem: Option<&str>,
    ) {
        let found = executable(memory, layout, MM);
        let vmas: Vec<u64> = found.executable.iter().map(|it| (it.vma.0 - VMAS) / 0x40).collect();
        assert_eq!((&vmas[..], found.n_dropped, found.problem), (expected, dropped, problem));
    }

    #[test]
    fn executable_mappings_of_trees_and_lists_are_found() {
        for (memory, layout) in [(example(), LAYOUT), (list(), LIST)] {
            check(&memory, &layout, &[1, 4, 5], 0, None);
            let found = executable(&memory, &layout, MM).executable;
            let expected = Mapping {
                start: 0x1000,
                end: 0x3000,
                offset: 0x6000,
                flags: 5,
                file: Some(GuestVirt(0xffff_8880_0f00_0100)),
                vma: GuestVirt(vma(1)),
            };
            assert_eq!(found[0], expected);
            assert_eq!((found[1].file, found[1].offset), (None, 0));
            for (address, expected) in [
                (0xfff, None),
                (0x1000, Some(1)),
                (0x2fff, Some(1)),
                (0x3000, None),
                (0x13fff, Some(4)),
                (0x700_0fff, Some(5)),
                (u64::MAX, None),
            ] {
                let found = holding(&memory, &layout, MM, address);
                assert_eq!(found.map(|found| (found.vma.0 - VMAS) / 0x40), expected, "{address:x}");
            }
        }
    }

    #[test]
    fn full_nodes_have_no_last_pivot() {
        let memory = Drawn::default();
        let leaf = node(0, 1);
        memory.write(MM.0 + 0x48, leaf);
        let pivots: Vec<u64> = (1..16).map(|n| n * 0x1000 - 1).collect();
        let slots: Vec<u64> = (0..15).map(vma).chain([0]).collect();
        (0..15).for_each(|n| draw_vma(&memory, n, (n, n + 1), 4));
        draw_node(&memory, leaf, &pivots, &slots);
        check(&memory, &LAYOUT, &(0..15).collect::<Vec<_>>(), 0, None);
    }

    #[test]
    fn vmas_of_other_ranges_or_memories_are_left_out() {
        let memory = example();
        memory.write(vma(1) + 8, 0x4000);
        memory.write(vma(5) + 0x10, MM.0 + 8);
        check(&memory, &LAYOUT, &[4], 2, None);
        let memory = list();
        memory.write(vma(4) + 0x10, MM.0 + 8);
        check(&memory, &LIST, &[1], 0, Some(ASTRAY));
    }

    #[test]
    fn endless_and_wild_trees_end() {
        let memory = example();
        // A node below itself: each of 10 branches, 8 deep, would be 10^8.
        let root = node(0, 3);
        draw_node(&memory, root, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &[root; 10]);
        check(&memory, &LAYOUT, &[], 0, Some(ASTRAY));
        for wild in [6, 0x5555_0000_100a, node(1000, 1), node(0, 9), VMAS] {
            memory.write(MM.0 + 0x48, wild);
            assert!(executable(&memory, &LAYOUT, MM).problem.is_some(), "{wild:x}");
        }
        // A node that was taken out; pivots that descend.
        let memory = example();
        memory.write(NODES, NODES);
        check(&memory, &LAYOUT, &[], 0, Some(ASTRAY));
        let memory = example();
        memory.write(NODES + NODE_BYTES + 16, 5);
        check(&memory, &LAYOUT, &[], 0, Some(ASTRAY));
        // A list that comes back.
        let memory = list();
        memory.write(vma(5) + 0x18, vma(1));
        check(&memory, &LIST, &[1, 4, 5], 0, Some(ASTRAY));
    }
}
