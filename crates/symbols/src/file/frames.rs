//! Where functions begin and end, from `.eh_frame`: programs without symbols have it, too, because exceptions and stack
//! traces need it.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection};

use super::bytes::Bytes;
use super::headers::Headers;
use super::wanted::Wanted;
use crate::Function;

/// Larger sections are not read: rustc has 6 MiB.
const MAX_BYTES: u64 = 32 << 20;

/// Most different descriptions that functions may share: linkers leave a few dozens.
const MAX_COMMON: usize = 256;

/// Adds a function `sub_ADDRESS` for each range of code around a wanted address.
pub(crate) fn add(headers: &Headers, bytes: &Bytes<'_>, wanted: &mut Wanted<'_>) {
    let Some(part) = headers.eh_frame else { return };
    let Ok(section) = bytes.window(part.range).all(MAX_BYTES) else {
        wanted.is_cut = true;
        return;
    };
    let text = headers.text.map_or(0, |text| text.address);
    let bases = BaseAddresses::default().set_eh_frame(part.address).set_text(text);
    let mut frames = EhFrame::new(&section, LittleEndian);
    frames.set_address_size(if headers.is_64_bit { 8 } else { 4 });
    for (start, size) in ranges(&frames, &bases) {
        let addresses = wanted.addresses();
        let first = addresses.partition_point(|address| *address < start);
        if addresses.get(first).is_some_and(|first| *first < start.saturating_add(size)) {
            wanted.push(Function { offset: start, size, name: format!("sub_{start:x}") });
        }
    }
}

/// All ranges up to the first entry that makes no sense: nobody knows where the next one begins.
fn ranges<'a>(
    frames: &'a EhFrame<EndianSlice<'a, LittleEndian>>,
    bases: &'a BaseAddresses,
) -> impl Iterator<Item = (u64, u64)> {
    let mut entries = frames.entries(bases);
    let mut common = HashMap::new();
    std::iter::from_fn(move || entries.next().ok()?)
        .filter_map(move |entry| {
            let CieOrFde::Fde(partial) = entry else { return None };
            let at = partial.cie_offset();
            if common.len() == MAX_COMMON && !common.contains_key(&at) {
                return None;
            }
            let cie = common.entry(at).or_insert_with(|| frames.cie_from_offset(bases, at));
            let fde = partial.parse(|_, _, _| cie.clone()).ok()?;
            Some((fde.initial_address(), fde.len()))
        })
        .filter(|(_, size)| 0 < *size)
}
