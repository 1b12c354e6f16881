//! Paths of the files that a trace names.

use std::collections::BTreeMap;
use std::path::Path;

use model::{FileKind, MachineId, TraceFile};
use tracer::StoredFile;

/// `S_IFMT` and the types of files in a mode.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const BLOCK_DEVICE: u32 = 0o060_000;

/// Where file systems are mounted, as far as this process sees them.
#[derive(Debug, Default)]
pub(super) struct Mounts(BTreeMap<u32, Mount>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// What of the file system is there: `/` but for parts of it.
    root: Vec<u8>,
    at: Vec<u8>,
}

impl Mounts {
    /// As `proc` has them.
    pub(super) fn read(proc: &Path) -> Self {
        Self::parse(&std::fs::read(proc.join("self/mountinfo")).unwrap_or_default())
    }

    /// Lines: number, parent, major:minor, root of the mount, where it is mounted, ... Of several mounts of a file system
    /// the one that shows most of it, and of those the first.
    fn parse(text: &[u8]) -> Self {
        let mut mounts = BTreeMap::<u32, Mount>::new();
        for (device, mount) in text.split(|byte| *byte == b'\n').filter_map(parse_mount) {
            let is_larger = |known: &&mut Mount| mount.root.len() < known.root.len();
            match mounts.get_mut(&device) {
                None => _ = mounts.insert(device, mount),
                Some(known) if is_larger(&known) => *known = mount,
                Some(_) => {}
            }
        }
        Self(mounts)
    }

    /// The row of a file.
    pub(super) fn row(&self, machine: MachineId, file: &StoredFile) -> TraceFile {
        TraceFile {
            machine,
            number: file.number,
            device: file.device,
            inode: file.inode,
            generation: file.generation,
            kind: match file.mode & TYPE {
                REGULAR => FileKind::Regular,
                FOLDER => FileKind::Folder,
                BLOCK_DEVICE => FileKind::BlockDevice,
                _ => FileKind::Other,
            },
            links: file.links,
            path: self.path(file),
        }
    }

    /// `None`: the kernel has no name for it.
    fn path(&self, file: &StoredFile) -> Option<String> {
        if file.names.is_empty() && !file.is_whole {
            return None;
        }
        let mut path = Vec::new();
        for name in file.names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        let path = match self.0.get(&file.device) {
            _ if !file.is_whole => [b"...".as_slice(), &path].concat(),
            Some(mount) => match below(&path, &mount.root) {
                Some(rest) => [&mount.at, rest].concat(),
                None => path,
            },
            None => path,
        };
        Some(if path.is_empty() { "/".to_owned() } else { text(&path) })
    }
}

/// What of a path lies below a folder: empty, or it begins with `/`.
fn below<'p>(path: &'p [u8], root: &[u8]) -> Option<&'p [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn parse_mount(line: &[u8]) -> Option<(u32, Mount)> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let (device, root, at) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let device = major.parse::<u32>().ok()?.checked_shl(20)? | minor.parse::<u32>().ok()?;
    let at = unescape(at);
    let at = at.strip_suffix(b"/").map_or(at.clone(), <[u8]>::to_vec);
    Some((device, Mount { root: unescape(root), at }))
}

/// The kernel writes blanks and the like as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(is_octal));
        let value = octal.and_then(|digits| {
            u8::try_from(digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0')))
                .ok()
        });
        bytes.push(value.unwrap_or(first));
        rest = if value.is_some() { &after[3..] } else { after };
    }
    bytes
}

fn is_octal(digit: &u8) -> bool {
    (b'0'..=b'7').contains(digit)
}

/// As text: a byte that is none is `\xHH`.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;

    const MOUNTS: &[u8] = b"\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
26 25 0:22 /sub /mnt/part rw - btrfs /dev/vdb rw
27 25 0:22 / /mnt/a\\040disk rw - btrfs /dev/vdb rw
28 25 254:0 /home /srv rw - ext4 /dev/vda rw
nonsense
";

    fn check(device: u32, names: &[&[u8]], is_whole: bool, expected: Option<&str>) {
        let file = StoredFile {
            number: 1,
            device,
            inode: 7,
            generation: 0,
            mode: 0o100_644,
            links: 1,
            names: names.iter().map(|name| name.to_vec()).collect(),
            is_whole,
        };
        let row = Mounts::parse(MOUNTS).row(MachineId::HOST, &file);
        assert_eq!((row.path.as_deref(), row.kind), (expected, FileKind::Regular));
    }

    #[test]
    fn paths() {
        let root = 254 << 20;
        check(root, &[b"passwd", b"etc"], true, Some("/etc/passwd"));
        check(root, &[], true, Some("/"));
        check(root, &[b"passwd", b"deep"], false, Some(".../deep/passwd"));
        check(root, &[], false, None);
        check(22, &[b"x", b"sub"], true, Some("/mnt/a disk/sub/x"));
        check(22, &[], true, Some("/mnt/a disk"));
        // Mounted elsewhere: in a container.
        check(99, &[b"x"], true, Some("/x"));
        check(root, &[b"a\xffb\x1b", b"\xe2\x82\xac"], true, Some("/\u{20ac}/a\\xffb\x1b"));
    }

    #[test]
    fn parts_of_file_systems() {
        let part = Mounts::parse(b"26 25 0:22 /sub /mnt/part rw - btrfs /dev/vdb rw");
        let file = |names: &[&[u8]]| StoredFile {
            number: 1,
            device: 22,
            inode: 7,
            generation: 0,
            mode: 0o040_755,
            links: 0,
            names: names.iter().map(|name| name.to_vec()).collect(),
            is_whole: true,
        };
        let path = |names: &[&[u8]]| part.row(MachineId::HOST, &file(names)).path;
        assert_eq!(path(&[b"x", b"sub"]).as_deref(), Some("/mnt/part/x"));
        assert_eq!(path(&[b"x", b"subway"]).as_deref(), Some("/subway/x"));
        assert_eq!(unescape(b"a\\134b\\9\\777"), b"a\\b\\9\\777");
    }
}
