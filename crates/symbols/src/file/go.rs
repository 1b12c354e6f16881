//! Go's own table of functions (`.gopclntab`), which the runtime needs and `strip` leaves.
//!
//! ```text
//!   magic, 0, 0, instruction unit, word size
//!   1.2:   n                                                          words; names and functions are relative to the table
//!   1.16:  n, files, names, units, paths, counters, functions         words, offsets in the table
//!   1.18:  n, files, text, names, units, paths, counters, functions   1.20 has another magic; from 1.26 on text is 0
//!
//!   at functions:  (entry, offset of its description) x n, end        words; from 1.18 on 4 bytes each, relative to text
//!   description:   entry, offset of its name (4 bytes), ...
//! ```

use linux::elf::{Bytes, Headers, NoBytes, Window};

use super::wanted::Wanted;
use crate::Function;

const GO_1_2: u32 = 0xffff_fffb;
const GO_1_16: u32 = 0xffff_fffa;
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// The module data's word that holds the address of the code.
const TEXT_WORD: u64 = 22;

/// Adds the functions around wanted addresses.
pub(crate) fn add(headers: &Headers, bytes: &Bytes<'_>, wanted: &mut Wanted<'_>) {
    let Some(part) = headers.go_table else { return };
    let Ok(mut table) = Table::read(bytes.window(part.range)) else { return };
    if table.text == Some(0) {
        table.text = text(headers, bytes, table.word);
    }
    let mut end = 0;
    for address in wanted.addresses() {
        if *address < end {
            continue;
        }
        // A function whose name can't be read costs itself only.
        let Ok(Some(function)) = table.find(*address) else { continue };
        end = function.offset.saturating_add(function.size);
        wanted.push(function);
    }
}

/// Where the code begins that the table is about: code of other languages may lie before it.
fn text(headers: &Headers, bytes: &Bytes<'_>, word: u64) -> Option<u64> {
    let of_module = headers.go_module.and_then(|part| {
        let window = bytes.window(part.range);
        number(window, TEXT_WORD.checked_mul(word)?, word).ok()
    });
    of_module.filter(|text| *text != 0).or(headers.text.map(|text| text.address))
}

struct Table<'a> {
    window: Window<'a>,
    /// Bytes of a word.
    word: u64,
    /// Bytes of an entry address, and of an offset beside it.
    field: u64,
    /// How many functions.
    n: u64,
    /// Where names are relative to.
    names: u64,
    /// Where the functions' list is.
    list: u64,
    /// Where descriptions are relative to.
    descriptions: u64,
    /// What entries are relative to; `None`: they are addresses.
    text: Option<u64>,
}

impl<'a> Table<'a> {
    fn read(window: Window<'a>) -> Result<Self, NoBytes> {
        let [m0, m1, m2, m3, 0, 0, _, size] = window.array::<8>(0)? else { return Err(NoBytes) };
        let word = u64::from(size);
        if !matches!(word, 4 | 8) {
            return Err(NoBytes);
        }
        let head = |index: u64| number(window, index.saturating_mul(word).saturating_add(8), word);
        let n = head(0)?;
        let table = |names, list, descriptions, field, text| Self {
            window,
            word,
            field,
            n,
            names,
            list,
            descriptions,
            text,
        };
        let table = match u32::from_le_bytes([m0, m1, m2, m3]) {
            GO_1_18 | GO_1_20 => table(head(3)?, head(7)?, head(7)?, 4, Some(head(2)?)),
            GO_1_16 => table(head(2)?, head(6)?, head(6)?, word, None),
            GO_1_2 => table(0, word.saturating_add(8), 0, word, None),
            _ => return Err(NoBytes),
        };
        let most = table.window.size.checked_div(table.field.saturating_mul(2)).unwrap_or_default();
        if most < table.n { Err(NoBytes) } else { Ok(table) }
    }

    fn find(&self, address: u64) -> Result<Option<Function>, NoBytes> {
        // The first function that begins behind the address; `n` is the end of the last one.
        let (mut low, mut high) = (0, self.n.saturating_add(1));
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle)? <= address {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        let Some(index) = low.checked_sub(1).filter(|index| *index < self.n) else {
            return Ok(None);
        };
        let (start, end) = (self.entry(index)?, self.entry(low)?);
        let description = self.at(self.slot(index).saturating_add(self.field), self.field)?;
        let description = self.descriptions.saturating_add(description);
        let name = self.at(description.saturating_add(self.field), 4)?;
        let name = self.window.string(self.names.saturating_add(name))?;
        let size = end.saturating_sub(start);
        let is_sound = start <= address && address < end && !name.is_empty();
        Ok(is_sound.then_some(Function { offset: start, size, name }))
    }

    fn entry(&self, index: u64) -> Result<u64, NoBytes> {
        let entry = self.at(self.slot(index), self.field)?;
        Ok(self.text.unwrap_or_default().saturating_add(entry))
    }

    fn slot(&self, index: u64) -> u64 {
        index.saturating_mul(2).saturating_mul(self.field).saturating_add(self.list)
    }

    fn at(&self, at: u64, size: u64) -> Result<u64, NoBytes> {
        number(self.window, at, size)
    }
}

fn number(window: Window<'_>, at: u64, size: u64) -> Result<u64, NoBytes> {
    match size {
        4 => Ok(u32::from_le_bytes(window.array(at)?).into()),
        _ => Ok(u64::from_le_bytes(window.array(at)?)),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use linux::elf::Part;

    const MAGICS: [u32; 4] = [GO_1_2, GO_1_16, GO_1_18, GO_1_20];
    const TEXT: u64 = 0x40_1000;

    /// Three functions of 16 bytes, from `TEXT` on.
    fn table(magic: u32, word: usize) -> Vec<u8> {
        let relative = matches!(magic, GO_1_18 | GO_1_20);
        let field = if relative { 4 } else { word };
        let put = |bytes: &mut Vec<u8>, value: u64, size: usize| {
            bytes.extend(&value.to_le_bytes()[..size]);
        };
        let mut head = magic.to_le_bytes().to_vec();
        head.extend([0, 0, 1, u8::try_from(word).unwrap()]);
        let n_words = match magic {
            GO_1_2 => 1,
            GO_1_16 => 7,
            _ => 8,
        };
        let list_at = 8 + n_words * word;
        let descriptions_at = list_at + 7 * field;
        let names_at = descriptions_at + 3 * (field + 4);
        let (list, names) = if magic == GO_1_2 { (0, 0) } else { (list_at, names_at) };
        let mut words = vec![3_u64; n_words];
        match magic {
            GO_1_2 => {}
            GO_1_16 => (words[2], words[6]) = (names as u64, list as u64),
            _ => (words[2], words[3], words[7]) = (TEXT, names as u64, list as u64),
        }
        words.iter().for_each(|value| put(&mut head, *value, word));
        let entry = |index: u64| if relative { 16 * index } else { TEXT + 16 * index };
        let description = |index: usize| (descriptions_at + index * (field + 4) - list) as u64;
        for index in 0..3 {
            put(&mut head, entry(index as u64), field);
            put(&mut head, description(index), field);
        }
        put(&mut head, entry(3), field);
        for index in 0..3 {
            put(&mut head, entry(index), field);
            put(&mut head, (names_at - names) as u64 + 7 * index, 4);
        }
        head.extend(b"main.a\0main.b\0main.c\0");
        head
    }

    fn names(table: &[u8], addresses: &[u64], text: Option<Part>) -> Vec<(u64, u64, String)> {
        let bytes = Bytes::new(&table, 1 << 20);
        let part = Part { address: 0, range: (0, table.len() as u64) };
        let headers = Headers { go_table: Some(part), text, ..Headers::default() };
        let mut wanted = Wanted::new(addresses);
        add(&headers, &bytes, &mut wanted);
        wanted.into_functions().into_iter().map(|f| (f.offset, f.size, f.name)).collect()
    }

    #[test]
    fn all_versions() {
        let addresses = [TEXT - 1, TEXT, TEXT + 15, TEXT + 40, TEXT + 48, u64::MAX];
        let expected = [(TEXT, 16, "main.a".to_owned()), (TEXT + 32, 16, "main.c".to_owned())];
        for magic in MAGICS {
            for word in [4, 8] {
                let table = table(magic, word);
                assert_eq!(names(&table, &addresses, None), expected, "{magic:#x} {word}");
            }
        }
    }

    #[test]
    fn the_text_section_stands_in_for_a_text_of_zero() {
        let mut table = table(GO_1_20, 8);
        table[8 + 16..8 + 24].fill(0);
        let text = Some(Part { address: TEXT, range: (0, 0) });
        assert_eq!(names(&table, &[TEXT], text), [(TEXT, 16, "main.a".to_owned())]);
        assert_eq!(names(&table, &[TEXT], None), []);
    }

    #[test]
    fn damaged_tables_give_nothing_or_something() {
        let mut seed = 1_u64;
        for magic in MAGICS {
            let whole = table(magic, 8);
            for cut in 0..whole.len() {
                names(&whole[..cut], &[TEXT, TEXT + 20, TEXT + 40], None);
            }
            for _ in 0..5000 {
                let mut bytes = whole.clone();
                for _ in 0..3 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let random = usize::try_from(seed >> 33).unwrap();
                    let at = random % bytes.len();
                    bytes[at] = [0, 1, 0x7f, 0x80, 0xff][(random >> 16) % 5];
                }
                names(&bytes, &[TEXT, TEXT + 20, TEXT + 40, u64::MAX], None);
            }
        }
    }
}
