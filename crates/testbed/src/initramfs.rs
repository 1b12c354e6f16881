//! Initial RAM file systems: cpio archives in the kernel's `newc` format, written without staging
//! and without root, byte for byte the same for the same content.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Error;
use crate::process;

/// A file system in the making. Parent folders are made as needed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    mode: u32,
    content: Vec<u8>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

impl Archive {
    pub(crate) fn folder(&mut self, path: &str) {
        self.put(path, FOLDER, Vec::new());
    }

    pub(crate) fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.put(path, FILE, content.into());
    }

    pub(crate) fn program(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.put(path, PROGRAM, content.into());
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.put(path, LINK, target.as_bytes().to_vec());
    }

    /// Copies a program of this machine.
    pub(crate) fn copy_program(&mut self, path: &str, from: &Path) -> Result<(), Error> {
        self.program(path, std::fs::read(from).map_err(Error::io("read", from))?);
        Ok(())
    }

    /// Copies a kernel module, unpacked: the loader in the archive is a small one.
    pub(crate) fn copy_module(
        &mut self,
        folder: &str,
        number: usize,
        from: &Path,
    ) -> Result<(), Error> {
        let (name, content) = unpacked_module(from)?;
        self.file(&format!("{folder}/{number:02}-{name}"), content);
        Ok(())
    }

    /// Paths with their kinds, one per line.
    #[cfg(test)]
    pub(crate) fn listing(&self) -> String {
        let line = |(path, entry): (&String, &Entry)| match entry.mode {
            LINK => format!("{path} -> {}\n", String::from_utf8_lossy(&entry.content)),
            FOLDER => format!("{path}/\n"),
            PROGRAM => format!("{path} *\n"),
            _ => format!("{path}\n"),
        };
        self.entries.iter().map(line).collect()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, entry)) in self.entries.iter().enumerate() {
            record(&mut out, number + 1, path, entry);
        }
        record(&mut out, 0, "TRAILER!!!", &Entry { mode: 0, content: Vec::new() });
        out
    }

    fn put(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_start_matches('/');
        let mut parent = path;
        while let Some((folder, _)) = parent.rsplit_once('/') {
            self.entries
                .entry(folder.to_owned())
                .or_insert(Entry { mode: FOLDER, content: Vec::new() });
            parent = folder;
        }
        self.entries.insert(path.to_owned(), Entry { mode, content });
    }
}

/// The name and the content of a kernel module's file, unpacked.
pub(crate) fn unpacked_module(from: &Path) -> Result<(String, Vec<u8>), Error> {
    let name = from.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix(".xz") {
        Some(plain) => {
            let content = process::run(process::tool("xz", "xz-utils")?.arg("-dc").arg(from))?;
            Ok((plain.to_owned(), content))
        }
        None => Ok((name.to_string(), std::fs::read(from).map_err(Error::io("read", from))?)),
    }
}

/// One record: a header of hexadecimal fields, the name and the content, each padded to four bytes.
fn record(out: &mut Vec<u8>, inode: usize, path: &str, entry: &Entry) {
    let (mode, size, name_size) = (entry.mode, entry.content.len(), path.len() + 1);
    let fields = [inode, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(&entry.content);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_appear_before_their_children() {
        let mut archive = Archive::default();
        archive.program("/bin/busybox", b"x".to_vec());
        archive.link("/bin/sh", "busybox");
        archive.file("etc/a/b", "text");
        archive.folder("proc");
        assert_eq!(
            archive.listing(),
            "bin/\nbin/busybox *\nbin/sh -> busybox\netc/\netc/a/\netc/a/b\nproc/\n"
        );
    }

    #[test]
    fn cpio_reads_it_back() {
        let mut archive = Archive::default();
        archive.program("bin/one", b"#!/bin/sh\n".to_vec());
        archive.link("bin/two", "one");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, archive.bytes()).unwrap();
        let Some(cpio) = process::find("busybox") else {
            return skip::skip("busybox is not installed");
        };
        let list = std::process::Command::new(cpio)
            .args(["cpio", "-tv"])
            .stdin(std::fs::File::open(&path).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(list.stdout).unwrap();
        let names: Vec<_> =
            text.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
        assert_eq!(names, ["bin", "bin/one", "bin/two"], "{text}");
        assert!(text.contains("-rwxr-xr-x 0/0        10"), "{text}");
    }
}
