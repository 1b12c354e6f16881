//! One function at 0x1000 of 0x100 bytes, described by what each test says.

use linux::elf::Bytes;

use super::*;
use crate::rule::NOT_SAVED;

const SECTION: u64 = 0x4000;
const START: u64 = 0x1000;

/// `DW_CFA_def_cfa rsp, 8; DW_CFA_offset RA, -8`
const AT_ENTRY: &[u8] = &[0x0c, 7, 8, 0x80 | 16, 1];

/// A section: what functions share, then one function.
fn section_bytes(augmentation: &[u8], common: &[u8], own: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut entry = |content: &[u8]| {
        let mut content = content.to_vec();
        content.resize(content.len().next_multiple_of(8) + 4, 0);
        bytes.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        bytes.extend(content);
        bytes.len()
    };
    // Version 1, factors 1 and -8, return address in 16, addresses relative in 4 bytes.
    let shared = [&[0; 4], &b"\x01"[..], augmentation, b"\0\x01\x78\x10\x01\x1b", common].concat();
    let at = entry(&shared);
    let relative = START.wrapping_sub(SECTION + at as u64 + 8).to_le_bytes();
    let back = u32::try_from(at + 4).unwrap().to_le_bytes();
    entry(&[&back[..], &relative[..4], &0x100_u32.to_le_bytes(), &[0], own].concat());
    bytes.extend([0; 4]);
    bytes
}

fn table(section: &[u8]) -> FrameTable {
    let bytes = Bytes::new(&section, 1 << 20);
    let present = bytes.window((0, section.len() as u64)).present(1 << 20);
    let mut frames = Frames { address: SECTION, present, index: Vec::new(), is_index_cut: false };
    frames.make_index();
    FrameTable { headers: Headers::default(), frames: Some(frames) }
}

fn rule_at(table: &FrameTable, address: u64) -> Result<Rule, StackEnd> {
    let mut workspace = Workspace::default();
    workspace.allow(1 << 20);
    table.rule(address, &mut workspace)
}

fn rule(own: &[u8]) -> Result<Rule, StackEnd> {
    rule_at(&table(&section_bytes(b"zR", AT_ENTRY, own)), START + 0x20)
}

/// `DW_CFA_def_cfa_expression`, or `DW_CFA_expression` of a register.
fn cfa(expression: &[u8]) -> Vec<u8> {
    [&[0x0f, u8::try_from(expression.len()).unwrap()], expression].concat()
}

fn saved(register: u8, expression: &[u8]) -> Vec<u8> {
    [&[0x10, register, u8::try_from(expression.len()).unwrap()], expression].concat()
}

fn kept(values: &[(usize, i16)]) -> [i16; KEPT.len()] {
    let mut all = [NOT_SAVED; KEPT.len()];
    values.iter().for_each(|(at, value)| all[*at] = *value);
    all
}

#[test]
fn rows_are_those_of_the_address() {
    // push %rbx; sub $32,%rsp
    let own = [0x41, 0x0e, 16, 0x83, 2, 0x44, 0x0e, 48];
    let table = table(&section_bytes(b"zR", AT_ENTRY, &own));
    let pushed = Rule { offset: 16, saved: kept(&[(1, -2)]), ..Rule::RETURN };
    for (address, expected) in [
        (START - 1, Err(StackEnd::NoRule)),
        (START, Ok(Rule::RETURN)),
        (START + 1, Ok(pushed)),
        (START + 4, Ok(pushed)),
        (START + 5, Ok(Rule { offset: 48, ..pushed })),
        (START + 0xff, Ok(Rule { offset: 48, ..pushed })),
        (START + 0x100, Err(StackEnd::NoRule)),
        (u64::MAX, Err(StackEnd::NoRule)),
    ] {
        assert_eq!(rule_at(&table, address), expected, "{address:x}");
    }
}

#[test]
fn expressions_that_compilers_write_are_known() {
    // A stack that was realigned: everything is relative to rbp.
    let realigned =
        [cfa(&[0x76, 0x78, 0x06]), saved(6, &[0x76, 0]), saved(3, &[0x76, 0x68])].concat();
    let expected = Rule {
        base: 6,
        offset: -8,
        indirect: Some(0),
        saved: kept(&[(0, 0), (1, -3)]),
        is_saved_from_base: true,
        ..Rule::RETURN
    };
    assert_eq!(rule(&realigned), Ok(expected));
    // Of OpenSSL: the stack pointer was stored.
    let stored = cfa(&[0x77, 40, 0x06, 0x23, 8]);
    assert_eq!(rule(&stored), Ok(Rule { offset: 40, indirect: Some(8), ..Rule::RETURN }));
    // A stub that pushes in its bytes from 11 on.
    let stub = table(&section_bytes(
        b"zR",
        AT_ENTRY,
        &cfa(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]),
    ));
    assert_eq!(rule_at(&stub, START + 0x2a), Ok(Rule::RETURN));
    assert_eq!(rule_at(&stub, START + 0x2b), Ok(Rule { offset: 16, ..Rule::RETURN }));
    // No return address: the first function.
    assert_eq!(rule(&[0x07, 16]), Ok(Rule::START));
}

#[test]
fn a_signal_frame_is_known_by_its_form() {
    let own = [cfa(&[0x77, 0xa0, 1, 0x06]), saved(16, &[0x77, 0xa8, 1])].concat();
    let signal = table(&section_bytes(b"zRS", AT_ENTRY, &own));
    assert_eq!(rule_at(&signal, START), Ok(Rule::block(Kind::Signal, 7, 0)));
    let other = table(&section_bytes(b"zR", AT_ENTRY, &own));
    assert_eq!(rule_at(&other, START), Err(StackEnd::NoRule));
}

#[test]
fn absurd_tables_have_no_rules() {
    for own in [
        // An endless loop, a division, an empty one, one that is cut.
        cfa(&[0x2f, 0xfd, 0xff]),
        cfa(&[0x77, 8, 0x30, 0x1b]),
        cfa(&[]),
        cfa(&[0x77]),
        cfa(&[0x76, 0x78, 0x06, 0x06]),
        // Registers that x86-64 has not, offsets that no stack has.
        vec![0x0c, 99, 8],
        vec![0x0c, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        vec![0x86, 0xff, 0xff, 0xff, 0x7f],
        saved(6, &[0x77, 3]),
        // States that are remembered without end, or never were.
        vec![0x0a; 100],
        vec![0x0b],
        // An unknown instruction.
        vec![0x3f],
    ] {
        assert_eq!(rule(&own), Err(StackEnd::NoRule), "{own:x?}");
    }
}

#[test]
fn damaged_tables_cost_their_rules_only() {
    let own = [&[0x41, 0x0e, 16, 0x83, 2][..], &cfa(&[0x76, 0x78, 0x06])].concat();
    let whole = section_bytes(b"zRS", AT_ENTRY, &own);
    for at in 0..whole.len() {
        for value in [0, 1, 0x0f, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let table = table(&bytes);
            for address in [0, START, START + 1, START + 0xff, u64::MAX] {
                let _ = rule_at(&table, address);
            }
        }
        let _ = rule_at(&table(&whole[..at]), START);
    }
}

#[test]
fn work_and_sizes_are_bounded() {
    let long = vec![0; MAX_ENTRY_BYTES];
    assert_eq!(rule(&long), Err(StackEnd::NoRule));
    let table = table(&section_bytes(b"zR", AT_ENTRY, &[]));
    let mut workspace = Workspace::default();
    workspace.allow(1000);
    let ends: Vec<_> = (0..20).map(|_| table.rule(START, &mut workspace)).collect();
    assert_eq!(ends[0], Ok(Rule::RETURN));
    assert_eq!(ends[19], Err(StackEnd::TooMuchWork));
}

/// A file of which only the first pages are in memory.
struct Cut<'a>(&'a [u8], usize);

impl ReadAt for Cut<'_> {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        (&self.0[..self.1]).read_at(at, buffer)
    }

    fn n_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

#[test]
fn missing_pages_say_so() {
    let section = section_bytes(b"zR", AT_ENTRY, &vec![0; 5000]);
    for (there, expected) in [(4096, Err(StackEnd::NoTables)), (8192, Ok(Rule::RETURN))] {
        let file = Cut(&section, there.min(section.len()));
        let bytes = Bytes::new(&file, 1 << 20);
        let present = bytes.window((0, section.len() as u64)).present(1 << 20);
        let at = u32::from_le_bytes(*section.first_chunk().unwrap()) + 4;
        let start = i32::try_from(START.cast_signed() - SECTION.cast_signed()).unwrap();
        let frames =
            Frames { address: SECTION, present, index: vec![(start, at)], is_index_cut: false };
        let table = FrameTable { headers: Headers::default(), frames: Some(frames) };
        assert_eq!(rule_at(&table, START), expected);
        assert_eq!(table.is_cut(), expected.is_err());
    }
}
