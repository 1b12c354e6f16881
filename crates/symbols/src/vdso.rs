//! The vDSO's image: the same for all (64-bit) processes of a boot, so our own will do.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, memfd_create};

/// More than any kernel's.
const MAX_BYTES: u64 = 1 << 20;

/// A file in memory with our own vDSO's image.
pub(crate) fn image() -> io::Result<File> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, "this kernel maps no vDSO");
    let (start, end) = maps.lines().find_map(range_of_vdso).ok_or_else(missing)?;
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    memory.take(end.saturating_sub(start).min(MAX_BYTES)).read_to_end(&mut bytes)?;
    let mut file = File::from(memfd_create("vdso", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(file)
}

fn range_of_vdso(line: &str) -> Option<(u64, u64)> {
    let range = line.ends_with("[vdso]").then(|| line.split(' ').next())??;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}
