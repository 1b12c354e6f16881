//! Changing files for the worse.

use std::fs;
use std::path::Path;

use super::synthetic::Random;

/// Puts other text where it stands first.
pub(crate) fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// A few bytes changed, or the end cut off, or a piece repeated.
pub(crate) fn mutated(random: &mut Random, whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let at = |random: &mut Random| usize::try_from(random.below(whole.len() as u64)).unwrap();
    match random.below(8) {
        0 => bytes.truncate(at(random)),
        1 => {
            let from = at(random);
            bytes.splice(from..from, whole[from..].iter().copied().take(9));
        }
        _ => {
            for _ in 0..=random.below(3) {
                let place = at(random);
                bytes[place] ^= random.next().to_le_bytes()[0] | 1;
            }
        }
    }
    bytes
}

/// The manifest with the new bytes' size and checksum in place of the old ones'.
pub(crate) fn with_checksum(json: &str, table: &str, old: &[u8], new: &[u8]) -> String {
    let entry = |bytes: &[u8]| {
        let crc32 = crc32fast::hash(bytes);
        format!("\"bytes\": {},\n      \"crc32\": \"{crc32:08x}\"", bytes.len())
    };
    assert!(json.contains(table) && json.contains(&entry(old)), "{json}");
    json.replacen(&entry(old), &entry(new), 1)
}
