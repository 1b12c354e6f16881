//! Where functions begin and end, from `.eh_frame`: programs without symbols have it, too, because exceptions and stack
//! traces need it.

use gimli::{BaseAddresses, EhFrame, LittleEndian};
use linux::elf::{Bytes, Headers, Part};
use unwind::{DescribedFunction, described_functions};

use super::wanted::Wanted;
use crate::Function;

/// Larger sections are not read: rustc has 6 MiB.
const MAX_BYTES: u64 = 32 << 20;

/// Adds a function `sub_ADDRESS` for each range of code around a wanted address, and `[plt]` for stubs.
pub(crate) fn add(headers: &Headers, bytes: &Bytes<'_>, wanted: &mut Wanted<'_>) {
    for stubs in &headers.stubs {
        add_range(wanted, stubs.address, stubs.range.1, || "[plt]".to_owned());
    }
    let Some(part) = headers.eh_frame else { return };
    let Ok(section) = bytes.window(part.range).all(MAX_BYTES) else {
        wanted.is_cut = true;
        return;
    };
    let text = headers.text.map_or(0, |text| text.address);
    let bases = BaseAddresses::default().set_eh_frame(part.address).set_text(text);
    let mut frames = EhFrame::new(&section, LittleEndian);
    frames.set_address_size(if headers.is_64_bit { 8 } else { 4 });
    for DescribedFunction { start, size, .. } in described_functions(&frames, &bases) {
        let is_stubs = |part: &Part| {
            start.checked_sub(part.address).is_some_and(|within| within < part.range.1)
        };
        if !headers.stubs.iter().any(is_stubs) {
            add_range(wanted, start, size, || format!("sub_{start:x}"));
        }
    }
}

fn add_range(wanted: &mut Wanted<'_>, start: u64, size: u64, name: impl FnOnce() -> String) {
    let addresses = wanted.addresses();
    let first = addresses.partition_point(|address| *address < start);
    if addresses.get(first).is_some_and(|first| *first < start.saturating_add(size)) {
        wanted.push(Function { offset: start, size, name: name() });
    }
}

#[cfg(test)]
mod test {
    use unwind::MAX_COMMON;

    use super::*;

    const SECTION: u32 = 0x2000;

    /// One common description, and a frame for each (address, size).
    fn section(frames: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = [16_u32, 0].map(u32::to_le_bytes).concat();
        // Version 1, addresses relative to their place in 4 bytes, nothing else.
        bytes.extend(b"\x01zR\0\x01\x78\x10\x01\x1b\0\0\0");
        for (address, size) in frames {
            let at = u32::try_from(bytes.len()).unwrap();
            let relative = address.wrapping_sub(SECTION + at + 8);
            bytes.extend([16, at + 4, relative, *size, 0].map(u32::to_le_bytes).concat());
        }
        bytes.extend([0; 4]);
        bytes
    }

    fn names(section: &[u8], addresses: &[u64]) -> Vec<(u64, u64, String)> {
        let bytes = Bytes::new(&section, 1 << 20);
        let part = Part { address: SECTION.into(), range: (0, section.len() as u64) };
        let stubs = vec![Part { address: 0x3000, range: (0, 0x20) }];
        let headers =
            Headers { eh_frame: Some(part), stubs, is_64_bit: true, ..Headers::default() };
        let mut wanted = Wanted::new(addresses);
        add(&headers, &bytes, &mut wanted);
        wanted.into_functions().into_iter().map(|f| (f.offset, f.size, f.name)).collect()
    }

    #[test]
    fn frames_around_wanted_addresses() {
        let section = section(&[(0x1000, 0x40), (0x1040, 0x20), (0x9000, 0), (0x1100, 8)]);
        let expected = [(0x1000, 0x40, "sub_1000".into()), (0x1100, 8, "sub_1100".into())];
        assert_eq!(names(&section, &[0xfff, 0x103f, 0x1060, 0x1100, 0x1108, 0x9000]), expected);
    }

    #[test]
    fn stubs_are_no_function() {
        let expected = [(0x3000, 0x20, "[plt]".to_owned())];
        assert_eq!(names(&section(&[(0x3000, 0x20)]), &[0x3010, 0x3020]), expected);
        assert_eq!(names(&section(&[]), &[0x3010]), expected);
    }

    #[test]
    fn damaged_frames_give_nothing_or_something() {
        let whole = section(&[(0x1000, 0x40), (0x1040, 0x20)]);
        for cut in 0..whole.len() {
            names(&whole[..cut], &[0x1000, 0x1050]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x1b, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                names(&bytes, &[0, 0x1000, 0x1050, u64::MAX]);
            }
        }
    }

    #[test]
    fn common_descriptions_are_bounded() {
        let mut bytes = Vec::new();
        for _ in 0..MAX_COMMON + 10 {
            // Each frame has its own.
            let at = u32::try_from(bytes.len()).unwrap();
            let frame = section(&[(0x1000_u32.wrapping_sub(at), 8)]);
            bytes.extend_from_slice(&frame[..40]);
        }
        assert_eq!(names(&bytes, &[0x1000]).len(), MAX_COMMON);
    }
}
