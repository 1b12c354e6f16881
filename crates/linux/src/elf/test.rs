//! A drawn ELF file that lacks pages.
//!
//! ```text
//!  page 0    headers, note, dynamic section, hash table, index of frames
//!  1, 2      dynamic symbols `d0` to `d3`, `d0` is another file's; their names
//!  3         code, frames
//!  4, 5      full table: `full_0` to `full_199` at 0x3000, 0x3010, ...
//!  6, 7      their names
//!  8         section headers
//! ```

use std::collections::BTreeSet;

use super::*;

const PAGE: usize = 4096;
const ID: [u8; 20] = [7; 20];
const N_FULL: usize = 200;

struct File {
    bytes: Vec<u8>,
    missing: BTreeSet<usize>,
}

impl ReadAt for File {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let start = usize::try_from(at).unwrap();
        let end = start.checked_add(buffer.len())?;
        if self.missing.range(start / PAGE..end.div_ceil(PAGE)).next().is_some() {
            return None;
        }
        buffer.copy_from_slice(self.bytes.get(start..end)?);
        Some(())
    }

    fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let end = at + what.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(what);
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn symbol(name: usize, section: u16, address: u64, size: u64) -> Vec<u8> {
    let info =
        [u8::try_from(name & 0xff).unwrap(), u8::try_from(name >> 8).unwrap(), 0, 0, 0x12, 0];
    [&info[..], &section.to_le_bytes(), &words(&[address, size])].concat()
}

fn program(kind: u32, flags: u32, at: u64, size: u64) -> Vec<u8> {
    [halves(&[kind, flags]), words(&[at, at, at, size, size, 4])].concat()
}

fn section(kind: u32, at: u64, size: u64, link: u32) -> Vec<u8> {
    let entry_bytes = if kind == 3 { 0 } else { 24 };
    [halves(&[0, kind]), words(&[0, at, at, size]), halves(&[link, 0]), words(&[1, entry_bytes])]
        .concat()
}

fn example() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    file.extend(words(&[0, 64, 0x8000]));
    let counts: [u16; 8] = [0, 0, 64, 56, 4, 64, 5, 0];
    file.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    for program in [
        program(1, 5, 0, 0x4000),
        program(4, 4, 0x200, 36),
        program(2, 6, 0x300, 0x60),
        program(0x6474_e550, 4, 0x500, 12),
    ] {
        file.extend(program);
    }
    put(&mut file, 0x200, &[&halves(&[4, 20, 3])[..], b"GNU\0", &ID].concat());
    let dynamic = [6, 0x1000, 5, 0x2000, 10, 13, 0x6fff_fef5, 0x400, 0, 0, 6, 0x9999];
    put(&mut file, 0x300, &words(&dynamic));
    // Two buckets, first symbol 1, one word of filter; buckets; hashes of symbols 1 to 3.
    put(&mut file, 0x400, &halves(&[2, 1, 1, 0, 0, 0, 1, 3, 2, 3, 5]));
    put(&mut file, 0x500, &[&[1, 0x1b, 3, 0x3b][..], &halves(&[0x3f00 - 0x504])].concat());
    put(&mut file, 0x1000, &symbol(1, 0, 0, 0));
    for n in 1..4 {
        put(&mut file, 0x1000 + n * 24, &symbol(n * 3 + 1, 3, 0x3000 + n as u64 * 64, 64));
    }
    put(&mut file, 0x2000, b"\0d0\0d1\0d2\0d3\0");
    let mut names = vec![0];
    for n in 0..N_FULL {
        put(&mut file, 0x4000 + n * 24, &symbol(names.len(), 3, 0x3000 + n as u64 * 16, 16));
        names.extend(format!("full_{n}_with_a_name_of_some_more_bytes\0").bytes());
    }
    put(&mut file, 0x6000, &names);
    let n_names = names.len() as u64;
    for (n, section) in [
        section(0, 0, 0, 0),
        section(11, 0x1000, 96, 2),
        section(3, 0x2000, 13, 0),
        section(2, 0x4000, N_FULL as u64 * 24, 4),
        section(3, 0x6000, n_names, 0),
    ]
    .iter()
    .enumerate()
    {
        put(&mut file, 0x8000 + n * 64, section);
    }
    file
}

/// Numbers of dynamic and of other functions, and why there may be more.
fn read(bytes: &[u8], missing: &[usize]) -> Result<(usize, usize, Option<&'static str>), String> {
    let file = File { bytes: bytes.to_vec(), missing: missing.iter().copied().collect() };
    let bytes = Bytes::new(&file, 1 << 24);
    let headers = Headers::read(&bytes)?;
    assert_eq!(headers.build_id.as_ref().unwrap().bytes(), ID);
    let (mut dynamic, mut full) = (0, 0);
    let read = for_each_function(&bytes, &headers, &mut |offset, size, name| {
        match name.strip_prefix('d') {
            Some(n) => {
                assert_eq!((offset, size), (0x3000 + n.parse::<u64>().unwrap() * 64, 64));
                dynamic += 1;
            }
            None => {
                let n: u64 = name.split('_').nth(1).unwrap().parse().unwrap();
                assert_eq!((offset, size), (0x3000 + n * 16, 16));
                assert!(name.ends_with("_with_a_name_of_some_more_bytes"));
                full += 1;
            }
        }
        true
    });
    Ok((dynamic, full, read.err()))
}

#[test]
fn what_is_there_of_a_file_is_read() {
    const HEADERS: Option<&str> = Some("section headers or the dynamic table are missing");
    const SYMBOLS: Option<&str> = Some("a part of a symbol table is missing");
    const NAMES: Option<&str> = Some("some names of functions are missing");
    let file = example();
    for (missing, expected) in [
        (&[][..], (3, N_FULL, None)),
        // Code is not looked at.
        (&[3], (3, N_FULL, None)),
        (&[8], (3, 0, HEADERS)),
        // The 171st entry is in both pages.
        (&[5], (3, 170, SYMBOLS)),
        (&[4], (3, 29, SYMBOLS)),
        (&[6], (3, 94, NAMES)),
        (&[7], (3, 105, NAMES)),
        (&[4, 5, 6, 7], (3, 0, SYMBOLS)),
        (&[1], (0, N_FULL, SYMBOLS)),
        (&[2], (0, N_FULL, NAMES)),
        (&[1, 2, 4, 5, 6, 7, 8], (0, 0, HEADERS)),
    ] {
        assert_eq!(read(&file, missing), Ok(expected), "{missing:?}");
    }
    assert!(read(&file, &[0]).is_err());
}

#[test]
fn frames_are_found_without_sections() {
    let file = File { bytes: example(), missing: [8].into() };
    let headers = Headers::read(&Bytes::new(&file, 1 << 20)).unwrap();
    let frames = Part { address: 0x3f00, range: (0x3f00, 0x100) };
    assert_eq!(headers.eh_frame, Some(frames));
}

#[test]
fn a_visitor_ends_it() {
    let file = example();
    let file = file.as_slice();
    let bytes = Bytes::new(&file, 1 << 24);
    let headers = Headers::read(&bytes).unwrap();
    let mut n = 0;
    let _ = for_each_function(&bytes, &headers, &mut |_, _, _| {
        n += 1;
        n < 5
    });
    assert_eq!(n, 5);
}

#[test]
fn absurd_tables_are_refused() {
    for (at, half) in [
        (0x308, 0xffff_f000), // symbols are nowhere
        (0x318, 0xffff_f000), // names are nowhere
        (0x338, 0xffff_f000), // the hash table is nowhere
        (0x330, 0x1234),      // there is none
        (0x400, 0xffff_ffff), // buckets
        (0x408, 0xffff_ffff), // words of the filter
        (0x41c, 0xffff_fff0), // the last symbol
    ] {
        let mut file = example();
        put(&mut file, at, &halves(&[half]));
        let (dynamic, full, problem) = read(&file, &[8]).unwrap();
        assert_eq!((dynamic, full), (0, 0), "{at:x}");
        assert!(problem.is_some(), "{at:x}");
    }
}

#[test]
fn damaged_files_give_nothing_or_something() {
    let whole = example();
    for at in (0..0x600).chain(0x1000..0x1060).chain(0x8000..whole.len()) {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut file = whole.clone();
            file[at] = value;
            for cut in [file.len(), 0x8000] {
                let file = &file[..cut];
                let bytes = Bytes::new(&file, 1 << 24);
                let Ok(headers) = Headers::read(&bytes) else { continue };
                let mut n = 0;
                let _ = for_each_function(&bytes, &headers, &mut |_, _, _| {
                    n += 1;
                    n < 10_000
                });
            }
        }
    }
}

#[test]
fn a_file_of_debugging_symbols_has_no_dynamic_ones() {
    let mut file = example();
    // Sections have names, that of dynamic symbols is empty.
    put(&mut file, 62, &[2]);
    put(&mut file, 0x8000 + 64 + 4, &halves(&[8]));
    assert_eq!(read(&file, &[]), Ok((0, N_FULL, None)));
    let file = file.as_slice();
    assert_eq!(Headers::read(&Bytes::new(&file, 1 << 20)).unwrap().eh_frame, None);
}
