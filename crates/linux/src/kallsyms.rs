//! The kernel's symbols, from the tables of kallsyms in its image (scripts/kallsyms.c, kernel/kallsyms.c).
//!
//! Names are compressed by a table of 256 tokens. Addresses are in one of four forms:
//!
//! ```text
//! kallsyms_addresses   u64 each                              without CONFIG_KALLSYMS_BASE_RELATIVE, before 6.14
//! kallsyms_offsets     base + u32                            relative; on x86-64 since 6.15
//! kallsyms_offsets     v >= 0: v, otherwise base - 1 - v     absolute per-CPU symbols; x86-64 with SMP before 6.15
//! kallsyms_offsets     own address + i32                     without kallsyms_relative_base, since 7.0
//! ```
//!
//! All of it is a guest's: counts, lengths and offsets are bounded, and what exceeds a bound ends the decoding.

use model::GuestVirt;

use crate::memory::{BlockReader, KernelMemory};
use crate::vmcoreinfo::{KERNEL_MAP, KallsymsSymbols};

/// Most symbols of a kernel, and of all its modules.
pub(crate) const MAX_SYMBOLS: usize = 1 << 20;
/// Most bytes of all names.
const MAX_TEXT: usize = 64 << 20;
/// Most bytes of a name (`KSYM_NAME_LEN`).
pub(crate) const MAX_NAME: usize = 512;
const TOKENS: usize = 256;
/// Bytes of an image, from `_text` to `_end`: modules begin 1 GiB above its first.
const MAX_IMAGE: u64 = 1 << 30;

/// Symbols in the order of their table: by address. Names lie in one text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    addresses: Vec<u64>,
    kinds: Vec<u8>,
    /// Where each name ends in `text`.
    ends: Vec<u32>,
    text: String,
}

/// One symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'s> {
    pub address: GuestVirt,
    /// As `nm` and `/proc/kallsyms` show it: `T` and `t` are functions.
    pub kind: u8,
    pub name: &'s str,
}

impl Symbols {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        (0..self.len()).map(|index| Symbol {
            address: GuestVirt(self.addresses[index]),
            kind: self.kinds[index],
            name: self.name(index),
        })
    }

    /// The address of the first symbol of this name.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<GuestVirt> {
        self.find(name).map(|index| GuestVirt(self.addresses[index]))
    }

    /// The lowest address of a symbol above one: nothing tells sizes.
    pub(crate) fn next_above(&self, address: GuestVirt) -> Option<GuestVirt> {
        let above = self.addresses.iter().filter(|other| address.0 < **other);
        above.min().copied().map(GuestVirt)
    }

    /// Adds a symbol; `None` if there are too many, or its name is empty or too long.
    pub(crate) fn push(&mut self, address: GuestVirt, kind: u8, name: &[u8]) -> Option<()> {
        self.push_name(kind, name)?;
        self.addresses.push(address.0);
        Some(())
    }

    /// Adds all but the address.
    fn push_name(&mut self, kind: u8, name: &[u8]) -> Option<()> {
        let fits = !name.is_empty() && name.len() <= MAX_NAME && self.kinds.len() < MAX_SYMBOLS;
        if !fits || self.text.len() + name.len() > MAX_TEXT {
            return None;
        }
        // No compiler writes others; a guest may.
        let letters = name.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '?' });
        self.text.extend(letters);
        self.kinds.push(kind);
        self.ends.push(u32::try_from(self.text.len()).ok()?);
        Some(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        (0..self.kinds.len()).find(|index| self.name(*index) == name)
    }

    fn name(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[index] as usize]
    }

    /// Moves all addresses, when the tables' own address becomes known later than what they hold.
    pub(crate) fn shift(&mut self, by: u64) {
        for address in &mut self.addresses {
            *address = address.wrapping_add(by);
        }
    }
}

/// Decodes the tables. `stext` proves the form of the addresses; without it, they must be plausible.
#[must_use]
pub fn decode(
    memory: &dyn KernelMemory,
    tables: &KallsymsSymbols,
    stext: Option<GuestVirt>,
) -> Option<Symbols> {
    decode_first(memory, std::slice::from_ref(tables), stext).map(|(symbols, _)| symbols)
}

/// The same of the first tables whose addresses are right. They differ in where the addresses are only.
pub(crate) fn decode_first<'t>(
    memory: &dyn KernelMemory,
    candidates: &'t [KallsymsSymbols],
    stext: Option<GuestVirt>,
) -> Option<(Symbols, &'t KallsymsSymbols)> {
    let tables = candidates.first()?;
    let count = usize::try_from(memory.read_u32(tables.num_syms?)?).ok()?;
    if count == 0 || count > MAX_SYMBOLS {
        return None;
    }
    let tokens = Tokens::read(memory, tables.token_table?, tables.token_index?)?;
    let mut symbols = decode_names(memory, &tokens, tables.names?, count)?;
    let proof = Proof { index: symbols.find("_stext")?, stext };
    let mut decoded = candidates
        .iter()
        .filter_map(|tables| Some((decode_addresses(memory, tables, count, &proof)?, tables)));
    let (addresses, tables) = decoded.next()?;
    symbols.addresses = addresses;
    Some((symbols, tables))
}

/// The strings that bytes of compressed names stand for.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Vec<u8>>);

impl Tokens {
    pub(crate) fn read(
        memory: &dyn KernelMemory,
        table: GuestVirt,
        index: GuestVirt,
    ) -> Option<Self> {
        let mut bytes = [0; 2 * TOKENS];
        memory.read(index, &mut bytes)?;
        let starts: Vec<u16> =
            bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let mut reader = BlockReader::new(memory);
        let mut tokens = Vec::with_capacity(TOKENS);
        let mut at = 0;
        for start in starts {
            // One follows the other, so that none is read twice.
            if usize::from(start) != at {
                return None;
            }
            let address = table.0.checked_add(at as u64)?;
            let token = read_text(&mut reader, GuestVirt(address))?;
            at += token.len() + 1;
            tokens.push(token);
        }
        Some(Self(tokens))
    }
}

/// Bytes up to a NUL; `None` if there are too many.
pub(crate) fn read_text(reader: &mut BlockReader<'_>, address: GuestVirt) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        match reader.byte(GuestVirt(address.0.checked_add(text.len() as u64)?))? {
            0 => return Some(text),
            byte if text.len() < MAX_NAME => text.push(byte),
            _ => return None,
        }
    }
}

/// The compressed length of the name at an address, and where its bytes begin. Bit 7 of the first byte: there is a
/// second, with the upper bits (since Linux 6.1).
pub(crate) fn read_length(reader: &mut BlockReader<'_>, at: u64) -> Option<(usize, u64)> {
    let low = usize::from(reader.byte(GuestVirt(at))?);
    let at = at.checked_add(1)?;
    let (length, at) = if low & 0x80 == 0 {
        (low, at)
    } else {
        let high = usize::from(reader.byte(GuestVirt(at))?);
        (low & 0x7f | high << 7, at.checked_add(1)?)
    };
    (0 < length && length <= MAX_NAME).then_some((length, at))
}

fn decode_names(
    memory: &dyn KernelMemory,
    tokens: &Tokens,
    names: GuestVirt,
    count: usize,
) -> Option<Symbols> {
    let mut reader = BlockReader::new(memory);
    let mut symbols = Symbols::default();
    let mut at = names.0;
    let mut name = Vec::with_capacity(MAX_NAME);
    for _ in 0..count {
        let (length, start) = read_length(&mut reader, at)?;
        name.clear();
        for offset in 0..length as u64 {
            let token = reader.byte(GuestVirt(start.checked_add(offset)?))?;
            name.extend_from_slice(&tokens.0[usize::from(token)]);
            // The first letter is the kind.
            if name.len() > MAX_NAME + 1 {
                return None;
            }
        }
        let (kind, name) = name.split_first()?;
        symbols.push_name(*kind, name)?;
        at = start.checked_add(length as u64)?;
    }
    Some(symbols)
}

/// What addresses must be for their form to be the right one.
struct Proof {
    /// That of `_stext`.
    index: usize,
    stext: Option<GuestVirt>,
}

impl Proof {
    fn holds(&self, addresses: &[u64]) -> bool {
        match self.stext {
            Some(stext) => addresses[self.index] == stext.0,
            // A table is in the order of addresses: the kernel searches it by halves.
            None => {
                let falling = addresses.windows(2).filter(|pair| pair[0] > pair[1]).count();
                falling * 100 <= addresses.len()
            }
        }
    }
}

fn decode_addresses(
    memory: &dyn KernelMemory,
    tables: &KallsymsSymbols,
    count: usize,
    proof: &Proof,
) -> Option<Vec<u64>> {
    let is_in_image = |address: u64| (KERNEL_MAP..KERNEL_MAP + MAX_IMAGE).contains(&address);
    if let Some(addresses) = tables.addresses {
        let mut bytes = vec![0; count * 8];
        memory.read(addresses, &mut bytes)?;
        let addresses: Vec<u64> =
            bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let fits = is_in_image(addresses[proof.index]) && proof.holds(&addresses);
        return fits.then_some(addresses);
    }
    let table = tables.offsets?;
    let mut bytes = vec![0; count * 4];
    memory.read(table, &mut bytes)?;
    let offsets = bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word));
    let Some(base) = tables.relative_base else {
        let own = |index: usize| table.0.wrapping_add(index as u64 * 4);
        let addresses: Vec<u64> = offsets
            .enumerate()
            .map(|(index, offset)| own(index).wrapping_add_signed(offset.into()))
            .collect();
        // Code comes before the tables.
        let before = table.0.wrapping_sub(addresses[proof.index]);
        let fits = (1..MAX_IMAGE).contains(&before) && proof.holds(&addresses);
        return fits.then_some(addresses);
    };
    let base = memory.read_u64(base)?;
    if !is_in_image(base) {
        return None;
    }
    let with_per_cpu = |offset: i32| match u64::try_from(offset) {
        Ok(absolute) => absolute,
        Err(_) => base.wrapping_sub(1).wrapping_add_signed(-i64::from(offset)),
    };
    let relative = |offset: i32| base.wrapping_add(u64::from(offset.cast_unsigned()));
    // Offsets of 2 GiB and more are of no image: `_stext` has a negative one only in the form with per-CPU symbols.
    let is_negative = offsets.clone().nth(proof.index).is_some_and(i32::is_negative);
    let addresses: Vec<u64> = if is_negative {
        offsets.map(with_per_cpu).collect()
    } else {
        offsets.map(relative).collect()
    };
    proof.holds(&addresses).then_some(addresses)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test::{Form, KallsymsImage};

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn names(count: usize) -> Vec<(u64, String)> {
        let functions =
            (0..count as u64).map(|index| (BASE + index * 16, format!("tsymbol_{index:03}")));
        let mut symbols: Vec<_> = functions.collect();
        symbols[0].1 = "T_stext".to_owned();
        symbols
    }

    fn check(form: Form, symbols: &[(u64, String)]) {
        let image = KallsymsImage::new(form, BASE + 0x100_0000, BASE, symbols);
        for stext in [Some(GuestVirt(BASE)), None] {
            let decoded = decode(&image, &image.tables, stext).unwrap();
            let expected: Vec<_> = symbols
                .iter()
                .map(|(address, name)| (*address, name.as_bytes()[0], &name[1..]))
                .collect();
            let found: Vec<_> =
                decoded.iter().map(|symbol| (symbol.address.0, symbol.kind, symbol.name)).collect();
            assert_eq!(found, expected, "{form:?}");
        }
        let wrong = Some(GuestVirt(BASE + 0x20_0000));
        assert_eq!(decode(&image, &image.tables, wrong), None, "{form:?}");
    }

    #[test]
    fn all_forms_of_addresses_are_decoded() {
        for form in [Form::Absolute, Form::Relative, Form::PcRelative] {
            check(form, &names(600));
        }
        let mut symbols =
            vec![(0, "A__per_cpu_start".to_owned()), (0x1fb80, "Acurrent_task".into())];
        symbols.extend(names(600));
        check(Form::PerCpuAbsolute, &symbols);
        check(Form::Absolute, &symbols);
    }

    #[test]
    fn long_names_have_two_bytes_of_length() {
        let mut symbols = names(20);
        symbols[7].1 = format!("t{}", "n".repeat(MAX_NAME - 1));
        check(Form::Relative, &symbols);
        symbols[7].1 = format!("t{}", "n".repeat(128));
        check(Form::PcRelative, &symbols);
    }

    #[test]
    fn symbols_are_found_by_name() {
        let image = KallsymsImage::new(Form::Relative, BASE + 0x100_0000, BASE, &names(300));
        let symbols = decode(&image, &image.tables, None).unwrap();
        assert_eq!(symbols.address("symbol_299"), Some(GuestVirt(BASE + 299 * 16)));
        assert_eq!(symbols.address("symbol_300"), None);
        assert_eq!(symbols.address(""), None);
        assert_eq!(symbols.next_above(GuestVirt(BASE)), Some(GuestVirt(BASE + 16)));
        assert_eq!(symbols.next_above(GuestVirt(BASE + 299 * 16)), None);
    }

    #[test]
    fn hostile_tables_are_refused() {
        let image = || KallsymsImage::new(Form::Relative, BASE + 0x100_0000, BASE, &names(300));
        let refused = |image: KallsymsImage| {
            assert_eq!(decode(&image, &image.tables, None), None);
        };
        for count in [0, 301, u32::MAX] {
            let mut image = image();
            image.put(image.tables.num_syms, &count.to_le_bytes());
            refused(image);
        }
        for (length, why) in [(&[0][..], "empty"), (&[0xff, 0xff], "16 KiB")] {
            let mut image = image();
            image.put(image.tables.names, length);
            assert_eq!(decode(&image, &image.tables, None), None, "{why}");
        }
        let mut unordered = image();
        unordered.put(unordered.tables.token_index, &9_u16.to_le_bytes());
        refused(unordered);
        let mut elsewhere = image();
        elsewhere.put(elsewhere.tables.relative_base, &0x1000_u64.to_le_bytes());
        refused(elsewhere);
        for table in 0..5 {
            let mut image = image();
            let tables = &mut image.tables;
            let outside = Some(GuestVirt(u64::MAX - 2));
            match table {
                0 => tables.num_syms = outside,
                1 => tables.names = outside,
                2 => tables.token_table = outside,
                3 => tables.token_index = outside,
                _ => tables.offsets = outside,
            }
            refused(image);
        }
        let mut bomb = image();
        bomb.put(bomb.tables.names, &[&[100], &[KallsymsImage::LONG_TOKEN; 100][..]].concat());
        refused(bomb);
    }

    #[test]
    fn letters_that_are_no_ascii_are_replaced() {
        let mut symbols = Symbols::default();
        symbols.push(GuestVirt(1), b't', b"a\xffb").unwrap();
        assert_eq!(symbols.iter().next().unwrap().name, "a?b");
        assert_eq!(symbols.push(GuestVirt(1), b't', b""), None);
        assert_eq!(symbols.push(GuestVirt(1), b't', &[b'a'; MAX_NAME + 1]), None);
    }
}
