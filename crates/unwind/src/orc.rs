//! Rules of a kernel: ORC tables (arch/x86/include/asm/orc_types.h, arch/x86/kernel/unwind_orc.c), which `objtool` makes
//! for each instruction when the kernel is built.
//!
//! ```text
//!   __start_orc_unwind_ip: address of an instruction, 4 bytes, relative to its own place       ascending
//!   __start_orc_unwind:    from there on: sp and bp offsets, 2 bytes each, and these bits:
//!
//!                          0      3 4      7 8        9  10  11  12
//!     up to Linux 6.2      sp_reg   bp_reg   type       end
//!     6.3                  sp_reg   bp_reg   type       sig end
//!     from 6.4             sp_reg   bp_reg   type           sig
//! ```

use std::ops::Range;

use linux::memory::KernelMemory;
use model::{GuestVirt, StackEnd};

use crate::cfi::Workspace;
use crate::rule::register::{BP, DI, DX, R10, R13, SP};
use crate::rule::{Kind, Rule};
use crate::walk::Code;

/// Most entries of a table: Debian's kernels have 250,000.
const MAX_ENTRIES: u64 = 1 << 22;
/// Entries that are read at once.
const CHUNK: usize = 1 << 14;
const ENTRY_BYTES: usize = 6;
const WORD_BYTES: usize = 4;

/// Which bits of an entry mean what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrcFormat {
    /// Linux 4.14 to 6.2.
    End,
    /// Linux 6.3.
    SignalAndEnd,
    /// Linux 6.4 and later.
    Signal,
}

impl OrcFormat {
    /// By the fields that the kernel's `struct orc_entry` has; `None`: of a format that is not known.
    #[must_use]
    pub fn from_fields(has_signal: bool, has_end: bool) -> Option<Self> {
        match (has_signal, has_end) {
            (false, true) => Some(Self::End),
            (true, true) => Some(Self::SignalAndEnd),
            (true, false) => Some(Self::Signal),
            (false, false) => None,
        }
    }
}

/// The entries of one piece of code.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrcTable {
    /// Of each entry: where its code begins, relative to `base`.
    starts: Vec<i64>,
    entries: Vec<[u8; ENTRY_BYTES]>,
    base: u64,
}

impl OrcTable {
    /// Reads a table of `count` entries; `None`: it is too large, or some of it is not in memory.
    pub fn read(
        memory: &dyn KernelMemory,
        addresses: GuestVirt,
        entries: GuestVirt,
        count: u64,
    ) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|_| count <= MAX_ENTRIES)?;
        let mut table = Self { base: addresses.0, ..Self::default() };
        for first in (0..count).step_by(CHUNK) {
            let n = count.saturating_sub(first).min(CHUNK);
            let mut words = vec![[0; WORD_BYTES]; n];
            read(memory, addresses, first, &mut words)?;
            let places = (first..).map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            table.starts.extend(places.zip(words).map(|(n, word)| {
                i64::from(i32::from_le_bytes(word)).wrapping_add(n.wrapping_mul(4))
            }));
            let mut read_entries = vec![[0; ENTRY_BYTES]; n];
            read(memory, entries, first, &mut read_entries)?;
            table.entries.extend(read_entries);
        }
        Some(table)
    }

    fn rule(&self, address: u64, format: OrcFormat) -> Result<Rule, StackEnd> {
        let wanted = address.wrapping_sub(self.base).cast_signed();
        let after = self.starts.partition_point(|start| *start <= wanted);
        let entry = after.checked_sub(1).and_then(|at| self.entries.get(at));
        entry.and_then(|entry| rule(*entry, format)).ok_or(StackEnd::NoRule)
    }
}

fn read<const N: usize>(
    memory: &dyn KernelMemory,
    start: GuestVirt,
    first: usize,
    into: &mut [[u8; N]],
) -> Option<()> {
    let offset = u64::try_from(first.checked_mul(N)?).ok()?;
    memory.read(GuestVirt(start.0.checked_add(offset)?), into.as_flattened_mut())
}

/// What an entry says.
struct Entry {
    kind: EntryKind,
    is_interrupted: bool,
}

enum EntryKind {
    Call,
    Registers,
    SomeRegisters,
    End,
    Nothing,
}

impl Entry {
    fn new(bits: u16, format: OrcFormat) -> Self {
        let bit = |n: u32| bits.checked_shr(n).is_some_and(|bits| bits & 1 == 1);
        if format == OrcFormat::Signal {
            let kind = match bits >> 8 & 7 {
                1 => EntryKind::End,
                2 => EntryKind::Call,
                3 => EntryKind::Registers,
                4 => EntryKind::SomeRegisters,
                _ => EntryKind::Nothing,
            };
            return Self { kind, is_interrupted: bit(11) };
        }
        let kind = match bits >> 8 & 3 {
            0 => EntryKind::Call,
            1 => EntryKind::Registers,
            2 => EntryKind::SomeRegisters,
            _ => EntryKind::Nothing,
        };
        let (is_end, is_interrupted) = match format {
            OrcFormat::SignalAndEnd => (bit(11), bit(10)),
            _ => (bit(10), !matches!(kind, EntryKind::Call)),
        };
        Self { kind: if is_end { EntryKind::End } else { kind }, is_interrupted }
    }
}

fn rule([s0, s1, b0, b1, low, high]: [u8; ENTRY_BYTES], format: OrcFormat) -> Option<Rule> {
    let (sp_offset, bp_offset) = (i16::from_le_bytes([s0, s1]), i16::from_le_bytes([b0, b1]));
    let bits = u16::from_le_bytes([low, high]);
    let Entry { kind, is_interrupted } = Entry::new(bits, format);
    if let EntryKind::End = kind {
        return Some(Rule::START);
    }
    let (base, offset, indirect) = match bits & 0xf {
        2 => (DX, sp_offset, None),
        3 => (DI, sp_offset, None),
        4 => (BP, sp_offset, None),
        5 => (SP, sp_offset, None),
        6 => (R10, sp_offset, None),
        7 => (R13, sp_offset, None),
        8 => (BP, sp_offset, Some(0)),
        9 => (SP, 0, Some(sp_offset)),
        _ => return None,
    };
    let mut rule = match kind {
        EntryKind::Call => Rule { base, offset: offset.into(), indirect, ..Rule::RETURN },
        EntryKind::Registers => Rule::block(Kind::PtRegs, base, offset.into()),
        EntryKind::SomeRegisters => Rule::block(Kind::Interrupt, base, offset.into()),
        EntryKind::End | EntryKind::Nothing => return None,
    };
    (rule.indirect, rule.is_interrupted) = (indirect, is_interrupted);
    let [saved_bp, ..] = &mut rule.saved;
    match (bits >> 4 & 0xf, rule.kind) {
        // Registers have it.
        (_, Kind::PtRegs | Kind::Interrupt) | (0, _) => {}
        (1, _) => *saved_bp = words(bp_offset)?,
        (4, _) if base == BP && indirect.is_none() => {
            *saved_bp = words(bp_offset.checked_sub(sp_offset)?)?;
        }
        (4, _) if base == BP => {
            *saved_bp = words(bp_offset)?;
            rule.is_saved_from_base = true;
        }
        _ => return None,
    }
    Some(rule)
}

fn words(bytes: i16) -> Option<i16> {
    (bytes & 7 == 0).then_some(bytes >> 3)
}

/// A kernel's code.
#[derive(Debug)]
pub struct Kernel {
    /// See `Code::number`.
    pub number: u32,
    pub format: OrcFormat,
    /// Of the image and of each module: where its code is, and its entries; by address, without overlaps.
    pub tables: Vec<(Range<u64>, OrcTable)>,
}

/// Where modules and generated code are (Documentation/arch/x86/x86_64/mm.rst).
const MODULES: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

impl Code for Kernel {
    fn number(&self) -> u32 {
        self.number
    }

    fn rule(&mut self, address: u64, _: &mut Workspace) -> Result<Rule, StackEnd> {
        let after = self.tables.partition_point(|(text, _)| text.start <= address);
        let table = after.checked_sub(1).and_then(|at| self.tables.get(at));
        match table.filter(|(text, _)| address < text.end) {
            Some((_, table)) => table.rule(address, self.format),
            // Of BPF, which keeps frame pointers.
            None if MODULES.contains(&address) => Ok(Rule::FRAME_POINTER),
            None => Err(StackEnd::Outside),
        }
    }
}

#[cfg(test)]
mod test;
