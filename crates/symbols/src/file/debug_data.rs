//! `.gnu_debugdata`: a small ELF file with the symbols that `strip` took away, compressed with xz.

use std::io::Read;

use linux::elf::{Bytes, NoBytes, Part};
use lzma_rust2::XzReader;

const MAX_COMPRESSED_BYTES: u64 = 8 << 20;
const MAX_BYTES: u64 = 32 << 20;
/// For the decoder; distributions compress with a dictionary of 8 MiB.
const MAX_DECODER_KIB: u32 = 20 << 10;

/// The file inside.
pub(crate) fn unpack(part: Part, bytes: &Bytes<'_>) -> Result<Vec<u8>, NoBytes> {
    let packed = bytes.window(part.range).all(MAX_COMPRESSED_BYTES)?;
    let reader = XzReader::new_mem_limit(packed.as_slice(), false, MAX_DECODER_KIB);
    let mut unpacked = Vec::new();
    reader.take(MAX_BYTES + 1).read_to_end(&mut unpacked).map_err(|_| NoBytes)?;
    if MAX_BYTES < unpacked.len() as u64 { Err(NoBytes) } else { Ok(unpacked) }
}
