//! The tables of kallsyms in memory that nothing says where they are: by their shape.
//!
//! ```text
//! before 6.4: addresses, [relative_base], num_syms, names, markers, [seqs_of_names since 6.2], token_table, token_index
//! since  6.4: num_syms, names, markers, token_table, token_index, addresses, [relative_base], seqs_of_names
//! ```
//!
//! Tokens of the digits follow each other, so `0\0 1\0 ... 9\0` finds the table of tokens; its index behind it proves it
//! and has its start. Markers, names of 256 symbols a marker, and the count before them fit each other only where they are.
//! Each starts at a multiple of 8; since 7.0 of 4. What was found may still be of a kernel that ran before, or forged.

use std::ops::{Range, RangeInclusive};

use memchr::memmem::Finder;
use model::{GuestPhys, GuestVirt};

use crate::kallsyms::{MAX_SYMBOLS, Symbols, Tokens, decode_first, read_length, read_text};
use crate::memory::{BlockReader, KernelMemory, PAGE_BYTES, PhysicalMemory};
use crate::vmcoreinfo::{KallsymsSymbols, for_each_chunk};

const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// The token of the first digit.
const FIRST_DIGIT: usize = b'0' as usize;
const TOKENS: usize = 256;
/// Bytes that are read at once in the search.
const STEP: usize = 1 << 20;
/// Most digits, and most tables of tokens, that are looked at: a guest can fill its memory with them.
const MAX_DIGITS: usize = 1 << 12;
const MAX_TABLES: usize = 16;
/// Bytes before the tokens in which the markers are: those of 2^20 symbols, and their order by name.
const MARKERS_WITHIN: usize = 4 << 20;
/// Symbols of one marker.
const GROUP: usize = 256;
/// Most places for names that are looked at for one table of tokens.
const MAX_PLACES: usize = 1 << 22;
/// What is done more seldom than for each place counts as so many.
const PLACES_OF_MARKERS: usize = 4096;
const PLACES_OF_NAMES: usize = 256;
/// Fewest and most bytes of the names of one marker: each has a length, and up to `MAX_NAME` bytes.
const GROUP_BYTES: RangeInclusive<u32> = 2 * 256..=256 * 514;

/// Tables that were found, decoded.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) symbols: Symbols,
    /// Whether addresses are physical ones: they are relative to the table, whose virtual address isn't known.
    pub(crate) is_physical: bool,
    /// Where the tokens are.
    pub(crate) token_table: GuestPhys,
}

/// Searches the part `within` of memory. `accept` sees what is found until it returns true.
pub(crate) fn search(
    memory: &dyn PhysicalMemory,
    within: &Range<u64>,
    mut accept: impl FnMut(Found) -> bool,
) {
    let finder = Finder::new(DIGITS);
    let (mut hits, mut tables, mut last) = (0, 0, None);
    for_each_chunk(memory, within, &mut vec![0; STEP], PAGE_BYTES, |start, chunk| {
        for offset in finder.find_iter(chunk) {
            let digits = start.0 + offset as u64;
            // Pieces overlap.
            if last.is_some_and(|last| digits <= last) {
                continue;
            }
            last = Some(digits);
            hits += 1;
            let memory = Physical(memory);
            let tokens = find_tokens(&memory, digits);
            tables += usize::from(tokens.is_some());
            let found = tokens.and_then(|tokens| decode_at(&memory, tokens));
            if found.is_some_and(&mut accept) || hits == MAX_DIGITS || tables == MAX_TABLES {
                return false;
            }
        }
        true
    });
}

/// Physical memory as an image has it: in one piece.
struct Physical<'m>(&'m dyn PhysicalMemory);

impl KernelMemory for Physical<'_> {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        self.0.read(GuestPhys(address.0), buffer)
    }
}

/// Decodes what is around a table of tokens and its index.
fn decode_at(memory: &Physical<'_>, (token_table, token_index): (u64, u64)) -> Option<Found> {
    let (num_syms, names) = find_names(memory, token_table)?;
    let count = u64::from(memory.read_u32(GuestVirt(num_syms))?);
    let at = |address: u64| Some(GuestVirt(address));
    let tables = KallsymsSymbols {
        num_syms: at(num_syms),
        names: at(names),
        token_table: at(token_table),
        token_index: at(token_index),
        ..KallsymsSymbols::default()
    };
    let offsets_bytes = (count * 4).next_multiple_of(8);
    let behind = token_index + 2 * TOKENS as u64;
    let aligned = behind.next_multiple_of(8);
    let base = num_syms.checked_sub(8)?;
    let relative = |offsets: u64, base: u64| KallsymsSymbols {
        offsets: at(offsets),
        relative_base: at(base),
        ..tables
    };
    let candidates = [
        relative(aligned, aligned + offsets_bytes),
        relative(base.wrapping_sub(offsets_bytes), base),
        KallsymsSymbols { addresses: at(aligned), ..tables },
        KallsymsSymbols { addresses: at(num_syms.wrapping_sub(count * 8)), ..tables },
        KallsymsSymbols { offsets: at(behind), ..tables },
    ];
    let (symbols, tables) = decode_first(memory, &candidates, None)?;
    let is_physical = tables.relative_base.is_none() && tables.addresses.is_none();
    Some(Found { symbols, is_physical, token_table: GuestPhys(token_table) })
}

/// The table of tokens that holds the digits at an address, and its index.
fn find_tokens(memory: &Physical<'_>, digits: u64) -> Option<(u64, u64)> {
    let mut reader = BlockReader::new(memory);
    let mut at = digits;
    let mut starts = Vec::with_capacity(TOKENS);
    for _ in FIRST_DIGIT..TOKENS {
        starts.push(at - digits);
        at = at.checked_add(read_text(&mut reader, GuestVirt(at))?.len() as u64 + 1)?;
    }
    [8, 4].into_iter().find_map(|align| {
        let index = at.checked_next_multiple_of(align)?;
        let entry = |token: usize| memory.read_u16(GuestVirt(index + 2 * token as u64));
        let first = u64::from(entry(FIRST_DIGIT)?);
        for (token, start) in (FIRST_DIGIT..).zip(&starts) {
            if u64::from(entry(token)?) != first + start {
                return None;
            }
        }
        let table = digits.checked_sub(first)?;
        Tokens::read(memory, GuestVirt(table), GuestVirt(index))?;
        Some((table, index))
    })
}

/// Where the number of symbols is, and the names, before a table of tokens.
fn find_names(memory: &Physical<'_>, token_table: u64) -> Option<(u64, u64)> {
    let window = read_before(memory, token_table, MARKERS_WITHIN);
    let words: Vec<u32> =
        window.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let start = token_table - window.len() as u64;
    let mut reader = BlockReader::new(memory);
    let mut places = 0;
    for index in (0..words.len().saturating_sub(1)).rev() {
        let markers = &words[index..];
        let count = count_markers(markers);
        let address = start + 4 * index as u64;
        // What follows the markers may look like one more.
        for count in [count, count.saturating_sub(1)].into_iter().filter(|count| 1 < *count) {
            let markers = &markers[..count];
            let found = find_names_before(memory, address, markers, &mut reader, &mut places);
            if found.is_some() || places > MAX_PLACES {
                return found;
            }
        }
    }
    None
}

/// Markers begin with 0, and rise by the bytes of 256 names.
fn count_markers(words: &[u32]) -> usize {
    if words[0] != 0 {
        return 0;
    }
    let is_step = |pair: &&[u32]| {
        let step = pair[1].checked_sub(pair[0]);
        step.is_some_and(|step| GROUP_BYTES.contains(&step))
    };
    1 + words.windows(2).take(MAX_SYMBOLS / GROUP).take_while(is_step).count()
}

/// The names end before their markers. The place is right where the number of symbols before it is one of so many
/// markers, and the first names end where the markers say.
fn find_names_before(
    memory: &Physical<'_>,
    markers_at: u64,
    markers: &[u32],
    reader: &mut BlockReader<'_>,
    places: &mut usize,
) -> Option<(u64, u64)> {
    *places += PLACES_OF_MARKERS;
    let last = u64::from(*markers.last()?);
    let highest = markers_at.checked_sub(last)?;
    let window = read_before(memory, highest, *GROUP_BYTES.end() as usize + 16);
    let word = |offset: usize| {
        let bytes = window.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let start = highest - window.len() as u64;
    // From the end, at addresses that 4 divides.
    let first = (start + 8).next_multiple_of(4);
    let candidates = (first..highest).rev().filter(|names| names.is_multiple_of(4));
    for names in candidates {
        *places += 1;
        let before = |bytes: u64| word(usize::try_from(names - bytes - start).ok()?);
        let is_right = |count: u32| {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            count <= MAX_SYMBOLS && count.div_ceil(GROUP) == markers.len()
        };
        let mut sizes = [8, 4].into_iter().filter(|bytes| before(*bytes).is_some_and(is_right));
        let Some(bytes) = sizes.next() else { continue };
        *places += PLACES_OF_NAMES;
        if names_fit(reader, names, markers) {
            return Some((names - bytes, names));
        }
        if MAX_PLACES < *places {
            break;
        }
    }
    None
}

/// Whether names from an address on end where the first markers say.
fn names_fit(reader: &mut BlockReader<'_>, names: u64, markers: &[u32]) -> bool {
    let mut at = names;
    markers.iter().skip(1).take(4).all(|marker| {
        for _ in 0..GROUP {
            let Some((length, start)) = read_length(reader, at) else { return false };
            at = start + length as u64;
        }
        at == names + u64::from(*marker)
    })
}

/// Up to `bytes` before an address, as far as they can be read.
fn read_before(memory: &Physical<'_>, end: u64, bytes: usize) -> Vec<u8> {
    let lowest = end.saturating_sub(bytes as u64);
    let mut pages = Vec::new();
    let mut at = end;
    while lowest < at {
        let start = ((at - 1) & !(PAGE_BYTES - 1)).max(lowest);
        let mut page = vec![0; usize::try_from(at - start).unwrap_or(0)];
        if memory.read(GuestVirt(start), &mut page).is_none() {
            break;
        }
        pages.push(page);
        at = start;
    }
    pages.reverse();
    let mut window = pages.concat();
    // Words are at addresses that 4 divides.
    let odd = window.len() % 4;
    window.drain(..odd);
    window
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test::{Form, KallsymsImage, Order, Ram};
    use crate::vmcoreinfo::ALL;

    const BASE: u64 = 0xffff_ffff_8100_0000;
    const PHYSICAL: u64 = 0x30_0000;

    fn symbols() -> Vec<(u64, String)> {
        let mut symbols: Vec<_> = (0..1100_u64)
            .map(|index| (BASE + index * 16, format!("tsymbol_{}", index.pow(4))))
            .collect();
        symbols[0].1 = "T_stext".to_owned();
        symbols
    }

    fn ram_with(order: Order, form: Form, symbols: &[(u64, String)]) -> Ram {
        let image = KallsymsImage::in_order(order, form, BASE + 0x10_0000, BASE, symbols);
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.write(PHYSICAL, &image.bytes);
        ram
    }

    fn find(ram: &Ram) -> Vec<Found> {
        let mut all = Vec::new();
        search(ram, &ALL, |found| {
            all.push(found);
            false
        });
        all
    }

    #[test]
    fn tables_of_all_orders_and_forms_are_found() {
        let per_cpu = vec![(0, "A__per_cpu_start".to_owned()), (0x1fb80, "Acurrent_task".into())];
        let per_cpu = [per_cpu, symbols()].concat();
        for (order, form, symbols) in [
            (Order::Before6_2, Form::Absolute, &symbols()),
            (Order::Before6_2, Form::Relative, &symbols()),
            (Order::Before6_2, Form::PerCpuAbsolute, &per_cpu),
            (Order::From6_2, Form::PerCpuAbsolute, &per_cpu),
            (Order::From6_4, Form::Absolute, &symbols()),
            (Order::From6_4, Form::PerCpuAbsolute, &per_cpu),
            (Order::From6_4, Form::Relative, &symbols()),
            (Order::From7_0, Form::PcRelative, &symbols()),
        ] {
            let mut found = find(&ram_with(order, form, symbols));
            assert_eq!(found.len(), 1, "{order:?} {form:?}");
            let mut found = found.remove(0);
            assert_eq!(found.is_physical, form == Form::PcRelative);
            if found.is_physical {
                found.symbols.shift(BASE + 0x10_0000 - PHYSICAL);
            }
            let names = found.symbols.iter().map(|symbol| (symbol.address.0, symbol.name));
            let expected = symbols.iter().map(|(address, name)| (*address, &name[1..]));
            assert!(names.eq(expected), "{order:?} {form:?}");
        }
    }

    #[test]
    fn damaged_tables_are_not_found() {
        let check = |damage: fn(&mut KallsymsImage)| {
            let mut image = KallsymsImage::new(Form::Relative, BASE, BASE, &symbols());
            damage(&mut image);
            let mut ram = Ram::new(&[(0, 0x1000_0000)]);
            ram.write(PHYSICAL, &image.bytes);
            assert_eq!(find(&ram).len(), 0);
        };
        check(|image| image.put(image.tables.token_index, &[7; 512]));
        check(|image| image.put(image.tables.names, &[0; 64]));
        check(|image| image.put(image.tables.num_syms, &u32::MAX.to_le_bytes()));
        check(|image| image.put(image.tables.relative_base, &[0; 8]));
    }

    #[test]
    fn memory_full_of_digits_ends_the_search() {
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.write(0x1000, &DIGITS.repeat(10_000));
        assert_eq!(find(&ram).len(), 0);
        let mut zeros = Ram::new(&[(0, 0x1000_0000)]);
        let image = KallsymsImage::new(Form::Relative, BASE, BASE, &symbols());
        // Tokens behind much that begins like markers.
        let markers: Vec<u8> = [0_u32, 1000].iter().flat_map(|word| word.to_le_bytes()).collect();
        zeros.write(0x10_0000, &markers.repeat(1 << 17));
        let tokens = usize::try_from(image.tables.token_table.unwrap().0 - BASE).unwrap();
        zeros.write(0x20_0000, &image.bytes[tokens..]);
        assert_eq!(find(&zeros).len(), 0);
    }

    #[test]
    fn the_search_keeps_to_its_part() {
        let ram = ram_with(Order::From6_4, Form::Relative, &symbols());
        let mut hits = 0;
        search(&ram, &(0..PHYSICAL), |_| {
            hits += 1;
            false
        });
        assert_eq!(hits, 0);
    }
}
