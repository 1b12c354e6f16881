//! The shared libraries a program needs, as this machine's loader finds them.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::process;

/// The files a dynamically linked program needs besides itself; none for a static one.
pub(crate) fn list(program: &Path) -> Result<Vec<PathBuf>, Error> {
    if !is_dynamic(program)? {
        return Ok(Vec::new());
    }
    let output = process::run(process::tool("ldd", "libc-bin")?.arg(program))?;
    parse(&String::from_utf8_lossy(&output)).map_err(|library| Error::Command {
        command: format!("ldd {}", program.display()),
        output: format!("{library} not found"),
    })
}

/// Whether a program names a loader (`PT_INTERP`).
fn is_dynamic(program: &Path) -> Result<bool, Error> {
    let content = std::fs::read(program).map_err(Error::io("read", program))?;
    Ok(has_interpreter(&content).unwrap_or(false))
}

fn has_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if !elf.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let half =
        |at: usize| Some(usize::from(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?)));
    let start = usize::try_from(u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    let kind = |i: usize| {
        Some(u32::from_le_bytes(elf.get(start + i * size..)?.get(..4)?.try_into().ok()?))
    };
    Some((0..count).any(|i| kind(i) == Some(PT_INTERP)))
}

/// Reads `ldd`'s output; fails with the name of a library that was not found.
fn parse(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if place.starts_with("not found") {
            return Err(name.to_owned());
        }
        let place = place.split(" (").next().unwrap_or(place);
        if place.starts_with('/') {
            files.push(PathBuf::from(place));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[&str], &str>) {
        let expected =
            expected.map(|files| files.iter().map(PathBuf::from).collect()).map_err(str::to_owned);
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn ldd_output() {
        check(
            "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibquantum.so.8 => /lib/libquantum.so.8 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n",
            Ok(&["/lib/libquantum.so.8", "/lib64/ld-linux-x86-64.so.2"]),
        );
        check("\tlibno.so.1 => not found\n", Err("libno.so.1"));
    }

    #[test]
    fn static_programs_need_nothing() {
        assert_eq!(has_interpreter(b"#!/bin/sh"), None);
        assert_eq!(has_interpreter(&[0x7f, b'E', b'L', b'F', 2]), None);
        assert_eq!(has_interpreter(&std::fs::read("/proc/self/exe").unwrap()), Some(true));
    }
}
