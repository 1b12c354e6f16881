//! ELF files that no compiler made.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;

use model::{BuildId, Module, ModuleId, Owner, SymbolName};
use sandbox::Sandbox;
use symbols::{HostSource, KernelNames, Place, Places, Source};

/// A source that reads files in this process.
fn source(places: Places) -> HostSource {
    let mut source = HostSource::new(KernelNames::default()).with_sandbox(Sandbox::here());
    source.reuse(places);
    source
}

fn name_at(file: &Path, offset: u64) -> SymbolName {
    let module = Module { owner: Owner::Host, path: "/program".into(), build_id: None };
    let places = BTreeMap::from([(ModuleId(0), vec![Place::from(file)])]);
    let mut source = source(places);
    source.names(ModuleId(0), &module, &[offset]).pop().unwrap()
}

/// Attack: `n` function symbols, all of whose names share one string of `name_bytes` bytes.
fn overlapping_names(n: u32, name_bytes: u32) -> Vec<u8> {
    let symbols = (0..n).flat_map(|at| {
        let mut symbol = Vec::from((1 + at % name_bytes).to_le_bytes());
        symbol.extend([2, 0, 1, 0]);
        symbol.extend(0x1000_u64.to_le_bytes());
        symbol.extend(0x1000_u64.to_le_bytes());
        symbol
    });
    let symbols: Vec<u8> = symbols.collect();
    let mut names = vec![b'a'; name_bytes as usize + 1];
    names.extend([0]);
    elf(&[(2, 2, &symbols), (3, 0, &names)], &[])
}

/// A 64-bit ELF file of sections (kind, link, bytes) and one segment of notes, its code at 0x1000.
fn elf(sections: &[(u32, u32, &[u8])], notes: &[u8]) -> Vec<u8> {
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut body = vec![0; 0x3000];
    let mut headers = vec![0; 64];
    for (kind, link, bytes) in sections {
        headers.extend([[0; 4], kind.to_le_bytes()].concat());
        headers.extend(words(&[
            0,
            0,
            body.len() as u64,
            bytes.len() as u64,
            u64::from(*link),
            1,
            24,
        ]));
        body.extend_from_slice(bytes);
    }
    let notes_at = body.len() as u64;
    body.extend_from_slice(notes);
    let headers_at = body.len() as u64;
    body.extend(headers);
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    header.extend(words(&[0, 64, headers_at]));
    header.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0]);
    header.extend([u8::try_from(sections.len() + 1).unwrap(), 0, 0, 0]);
    let segment = |kind: u32, flags: u32, offset: u64, size: u64| {
        let mut segment = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
        segment.extend(words(&[offset, offset, offset, size, size, 1]));
        segment
    };
    header.extend(segment(1, 5, 0, 0x3000));
    header.extend(segment(4, 4, notes_at, notes.len() as u64));
    body[..header.len()].copy_from_slice(&header);
    body
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn overlapping_names_cost_no_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), overlapping_names(90_000, 60_000)).unwrap();
    let before = peak_kib();
    let SymbolName::Function(name) = name_at(file.path(), 0x1500) else { panic!() };
    assert!(name.starts_with("aaa") && name.chars().count() <= 512, "{name}");
    let grown = peak_kib() - before;
    assert!(grown < 64 << 10, "{grown} KiB more");
}

#[test]
fn one_bad_symbol_costs_that_symbol() {
    let symbol = |name: u32, section: u16, start: u64| {
        let mut symbol = name.to_le_bytes().to_vec();
        symbol.extend([2, 0]);
        symbol.extend(section.to_le_bytes());
        symbol.extend([start.to_le_bytes(), 16_u64.to_le_bytes()].concat());
        symbol
    };
    // A section that is not there (as BOLT writes them), a name that is not there, and a good one.
    let symbols = [symbol(1, 48, 0), symbol(9999, 1, 0x1100), symbol(1, 1, 0x1000)].concat();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), elf(&[(2, 2, &symbols), (3, 0, b"\0good\0")], &[])).unwrap();
    let good = SymbolName::Function("good".into());
    assert_eq!(name_at(file.path(), 0x1000), good);
    assert_eq!(name_at(file.path(), 0x1100), SymbolName::Stripped);
}

#[test]
fn notes_that_overflow_are_no_build_id() {
    let id = |bytes: &[u8]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), elf(&[], bytes)).unwrap();
        source(BTreeMap::new()).build_id(file.as_file())
    };
    let note = |name: u32, description: u32| {
        let mut note = [name, description, 3].map(u32::to_le_bytes).concat();
        note.extend(b"GNU\0\x01\x02\x03\x04");
        note
    };
    assert_eq!(id(&note(4, 4)), BuildId::new(&[1, 2, 3, 4]));
    for (name, description) in [(u32::MAX, 4), (4, u32::MAX), (u32::MAX, u32::MAX), (4, 5)] {
        assert_eq!(id(&note(name, description)), None, "{name:#x} {description:#x}");
    }
}
