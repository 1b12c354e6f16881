//! A kernel's modules, with their code and symbols (kernel/module/kallsyms.c).
//!
//! The list may change while it is read, and may be a hostile guest's: it ends where a link back doesn't fit, and
//! modules, symbols and bytes are bounded.

use std::ops::Range;

use model::GuestVirt;

use crate::kallsyms::{MAX_SYMBOLS, Symbols, read_text};
use crate::memory::{BlockReader, KernelMemory};
use crate::vmcoreinfo::text_before_nul;

const MAX_MODULES: usize = 4096;
/// Bytes of `name` (`MODULE_NAME_LEN`).
const NAME_BYTES: usize = 56;
/// `MODULE_STATE_UNFORMED`: it is being loaded, and its symbols are not there yet.
const UNFORMED: u32 = 3;
/// Most bytes of all modules' names.
const MAX_TEXT: u64 = 64 << 20;
/// Bytes of an `Elf64_Sym`.
const SYMBOL_BYTES: usize = 24;

/// Offsets of fields, as the kernel's types have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleLayout {
    /// Of `struct module`.
    pub list: u64,
    pub name: u64,
    pub state: u64,
    pub kallsyms: u64,
    /// Where its code begins, and how long it is: `mem[MOD_TEXT].base` and `.size`, or before Linux 6.4
    /// `core_layout.base` and `.text_size`.
    pub text_base: u64,
    pub text_size: u64,
    /// Of its unwind tables, if the kernel has such: `arch.num_orcs`, `arch.orc_unwind_ip`, `arch.orc_unwind`.
    pub orc: Option<[u64; 3]>,
    /// Of `struct mod_kallsyms`.
    pub symtab: u64,
    pub num_symtab: u64,
    pub strtab: u64,
    pub typetab: u64,
}

/// A module that is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelModule {
    pub name: String,
    /// Where its code is.
    pub text: Range<u64>,
    pub orc: Option<OrcPlace>,
    /// In the order of its table. `/proc/kallsyms` shows the kinds of those that it exports by capitals instead.
    pub symbols: Symbols,
}

/// Where the unwind tables of a piece of code are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrcPlace {
    pub addresses: GuestVirt,
    pub entries: GuestVirt,
    pub count: u64,
}

/// Reads the modules of the list at the symbol `modules`, the last loaded first.
#[must_use]
pub fn read_modules(
    memory: &dyn KernelMemory,
    list: GuestVirt,
    layout: &ModuleLayout,
) -> Vec<KernelModule> {
    let mut modules = Vec::new();
    let mut budget = Budget { symbols: MAX_SYMBOLS, text: MAX_TEXT };
    let mut at = list;
    for _ in 0..MAX_MODULES {
        let Some(next) = read_next(memory, at).filter(|next| *next != list) else { break };
        at = next;
        let module = next.0.wrapping_sub(layout.list);
        modules.extend(read_module(memory, module, layout, &mut budget));
    }
    modules
}

/// What may still be read of all modules together.
struct Budget {
    symbols: usize,
    /// Bytes of the names.
    text: u64,
}

/// The next element of a list; `None` if that doesn't link back.
fn read_next(memory: &dyn KernelMemory, at: GuestVirt) -> Option<GuestVirt> {
    let next = memory.read_u64(at)?;
    let back = memory.read_u64(GuestVirt(next.checked_add(8)?))?;
    (back == at.0).then_some(GuestVirt(next))
}

fn read_module(
    memory: &dyn KernelMemory,
    module: u64,
    layout: &ModuleLayout,
    budget: &mut Budget,
) -> Option<KernelModule> {
    let field = |offset: u64| GuestVirt(module.wrapping_add(offset));
    if memory.read_u32(field(layout.state))? == UNFORMED {
        return None;
    }
    let mut name = [0; NAME_BYTES];
    memory.read(field(layout.name), &mut name)?;
    let name = text_before_nul(&name)?;
    let start = memory.read_u64(field(layout.text_base))?;
    let bytes = memory.read_u32(field(layout.text_size))?;
    let text = start..start.checked_add(u64::from(bytes))?;
    let table = memory.read_u64(field(layout.kallsyms))?;
    let orc = layout.orc.and_then(|[count, addresses, entries]| {
        Some(OrcPlace {
            addresses: GuestVirt(memory.read_u64(field(addresses))?),
            entries: GuestVirt(memory.read_u64(field(entries))?),
            count: memory.read_u32(field(count))?.into(),
        })
    });
    // Names of code are worth less than the code's owner: a module without symbols has its range.
    let symbols = read_symbols(memory, table, layout, budget).unwrap_or_default();
    Some(KernelModule { name, text, orc, symbols })
}

fn read_symbols(
    memory: &dyn KernelMemory,
    table: u64,
    layout: &ModuleLayout,
    budget: &mut Budget,
) -> Option<Symbols> {
    let field = |offset: u64| GuestVirt(table.wrapping_add(offset));
    let count = usize::try_from(memory.read_u32(field(layout.num_symtab))?).ok()?;
    budget.symbols = budget.symbols.checked_sub(count)?;
    let symtab = memory.read_u64(field(layout.symtab))?;
    let strtab = memory.read_u64(field(layout.strtab))?;
    let typetab = memory.read_u64(field(layout.typetab))?;
    let mut entries = vec![0; count * SYMBOL_BYTES];
    memory.read(GuestVirt(symtab), &mut entries)?;
    let mut kinds = vec![0; count];
    memory.read(GuestVirt(typetab), &mut kinds)?;

    let mut reader = BlockReader::new(memory);
    let mut symbols = Symbols::default();
    let mut before = 0;
    for (entry, kind) in entries.as_chunks::<SYMBOL_BYTES>().0.iter().zip(kinds) {
        let name_offset = u32::from_le_bytes(*entry.first_chunk()?);
        let address = u64::from_le_bytes(*entry[8..].first_chunk()?);
        // Names are in the order of their symbols once a module is loaded, so that each is read once.
        budget.text = budget.text.checked_sub(name_offset.checked_sub(before)?.into())?;
        before = name_offset;
        let name = strtab.checked_add(u64::from(name_offset))?;
        let Some(name) = read_text(&mut reader, GuestVirt(name)) else { continue };
        // The first entry has no name, nor have sections'.
        if !name.is_empty() {
            symbols.push(GuestVirt(address), kind, &name)?;
        }
    }
    Some(symbols)
}

#[cfg(test)]
mod test {
    use model::GuestPhys;

    use super::*;
    use crate::paging::{AddressSpace, PagingLevels};
    use crate::test::Ram;

    const ROOT: u64 = 0x10_0000;
    const MODULES: u64 = 0xffff_ffff_c000_0000;
    const PHYSICAL: u64 = 0x20_0000;
    /// The list's head, in the first page.
    const LIST: u64 = MODULES + 0x40;
    const LAYOUT: ModuleLayout = ModuleLayout {
        list: 8,
        name: 24,
        state: 0,
        kallsyms: 96,
        text_base: 104,
        text_size: 112,
        orc: None,
        symtab: 0,
        num_symtab: 8,
        strtab: 16,
        typetab: 24,
    };

    /// A module's name, state, and symbols.
    type Module<'m> = (&'m str, u32, &'m [(&'m str, u64)]);

    /// Modules at every page behind the first.
    fn ram_with(modules: &[Module<'_>]) -> Ram {
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.map_range(ROOT, PagingLevels::Four, MODULES, PHYSICAL, 0x1_0000);
        ram.write(PHYSICAL, &[0; 0x1_0000]);
        let mut put =
            |at: u64, value: u64| ram.write(at - MODULES + PHYSICAL, &value.to_le_bytes());
        let elements: Vec<u64> =
            (1..=modules.len() as u64).map(|page| MODULES + page * 0x1000 + LAYOUT.list).collect();
        let ring = [&[LIST], &elements[..], &[LIST]].concat();
        for pair in ring.windows(2) {
            put(pair[0], pair[1]);
            put(pair[1] + 8, pair[0]);
        }
        for (element, (name, state, symbols)) in elements.iter().zip(modules) {
            let module = element - LAYOUT.list;
            let at = module - MODULES + PHYSICAL;
            let table = module + 0x100;
            ram.write(at + LAYOUT.name, name.as_bytes());
            for (offset, value) in [
                (LAYOUT.state, u64::from(*state)),
                (LAYOUT.kallsyms, table),
                (LAYOUT.text_base, module),
                (LAYOUT.text_size, 0x800),
                (0x100, module + 0x200),
                (0x108, symbols.len() as u64),
                (0x110, module + 0x400),
                (0x118, module + 0x600),
            ] {
                // States and sizes have four bytes.
                let bytes = if offset < 8 { 4 } else { 8 };
                ram.write(at + offset, &value.to_le_bytes()[..bytes]);
            }
            let mut text = 0;
            for (index, (name, address)) in (0..).zip(*symbols) {
                ram.write(at + 0x200 + index * 24, &u32::to_le_bytes(text));
                ram.write(at + 0x208 + index * 24, &address.to_le_bytes());
                ram.write(at + 0x400 + u64::from(text), name.as_bytes());
                ram.write(at + 0x600 + index, b"t");
                text += u32::try_from(name.len()).unwrap() + 1;
            }
        }
        ram
    }

    fn read(ram: &Ram) -> Vec<KernelModule> {
        let space = AddressSpace::new(ram, GuestPhys(ROOT), PagingLevels::Four, 0);
        read_modules(&space, GuestVirt(LIST), &LAYOUT)
    }

    const XFS: &[(&str, u64)] = &[("", 0), ("xfs_iget", 0xc0de), ("init_module", 0xc0ff)];

    #[test]
    fn modules_have_code_and_symbols() {
        let ram =
            ram_with(&[("xfs", 0, XFS), ("tun", UNFORMED, &[]), ("", 0, &[]), ("loop", 1, &[])]);
        let modules = read(&ram);
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["xfs", "loop"]);
        assert_eq!(modules[0].text, MODULES + 0x1000..MODULES + 0x1800);
        let symbols = modules[0].symbols.iter();
        let symbols: Vec<_> = symbols.map(|symbol| (symbol.address.0, symbol.name)).collect();
        assert_eq!(symbols, [(0xc0de, "xfs_iget"), (0xc0ff, "init_module")]);
    }

    #[test]
    fn a_module_without_readable_symbols_keeps_its_code() {
        let mut ram = ram_with(&[("xfs", 0, XFS)]);
        ram.write(PHYSICAL + 0x1108, &u32::MAX.to_le_bytes());
        let modules = read(&ram);
        assert_eq!(modules[0].name, "xfs");
        assert!(modules[0].symbols.is_empty());
    }

    #[test]
    fn names_are_read_in_their_order() {
        for (offset, count) in [(u32::MAX, 1), (0, 2)] {
            let mut ram = ram_with(&[("xfs", 0, XFS)]);
            // The second symbol's name, or the third's.
            ram.write(PHYSICAL + 0x1200 + 24 * count, &u32::to_le_bytes(offset));
            let modules = read(&ram);
            assert!(modules[0].symbols.is_empty(), "{offset}");
        }
    }

    #[test]
    fn hostile_lists_end() {
        // The second module's link goes to itself: it doesn't link back.
        let mut ram = ram_with(&[("xfs", 0, XFS), ("loop", 0, &[])]);
        let second = MODULES + 0x2000 + LAYOUT.list;
        ram.write(PHYSICAL + 0x2000 + LAYOUT.list, &second.to_le_bytes());
        assert_eq!(read(&ram).len(), 2);
        // Then it does: the list is endless, and bounded.
        ram.write(PHYSICAL + 0x2000 + LAYOUT.list + 8, &second.to_le_bytes());
        ram.write(PHYSICAL + 0x40, &second.to_le_bytes());
        assert_eq!(read(&ram).len(), 0, "the head's next one must link back to the head");
        ram.write(PHYSICAL + 0x40, &u64::MAX.to_le_bytes());
        assert_eq!(read(&ram).len(), 0);
        assert_eq!(read(&Ram::new(&[])).len(), 0);
    }
}
