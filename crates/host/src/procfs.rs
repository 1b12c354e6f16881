//! Parsers of the `/proc` files that host and guest read alike. Parsers take text; the few readers take
//! the root of the proc file system.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// One executable line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapsEntry {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    /// Device of the file, as the kernel prints it (`08:01`).
    pub device: String,
    /// Inode of the file; 0 for none.
    pub inode: u64,
    /// Path, `[vdso]`, or empty for anonymous memory. A deleted file's suffix is cut off.
    pub path: String,
    /// Whether the file was deleted.
    pub deleted: bool,
}

/// What was read of `/proc/PID/maps`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maps {
    pub executable: Vec<MapsEntry>,
    pub bytes: u64,
    /// Whether there may be more.
    pub is_cut: bool,
}

/// Bytes of one process's `maps` that are read at most: it may have 65,530 mappings, each with a path of 4 KiB.
pub const MAX_MAPS_BYTES: u64 = 16 << 20;

/// One line of `/proc/modules` (or of `/proc/kallsyms` grouped by the caller).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleEntry {
    pub name: String,
    /// First address; 0 when the reader may not see addresses.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

/// One line of `/proc/kallsyms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KallsymsEntry<'a> {
    /// Its address; 0 when the reader may not see addresses.
    pub address: u64,
    /// Symbol type as `nm` prints it.
    pub kind: char,
    pub name: &'a str,
    /// Its module; `None` for the kernel itself.
    pub module: Option<&'a str>,
}

impl KallsymsEntry<'_> {
    /// Whether the symbol names code.
    #[must_use]
    pub fn is_text(&self) -> bool {
        matches!(self.kind, 't' | 'T' | 'w' | 'W')
    }
}

/// The executable mappings in the text of `/proc/PID/maps`, in address order. Lines that make no
/// sense are passed over. `[vsyscall]` is left out: it is a fixed address of the kernel half.
#[must_use]
pub fn parse_maps(text: &str) -> Vec<MapsEntry> {
    text.lines().filter_map(parse_maps_line).collect()
}

fn parse_maps_line(line: &str) -> Option<MapsEntry> {
    let (range, rest) = line.split_once(' ')?;
    let (permissions, rest) = rest.split_once(' ')?;
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let path = unescape(path.trim_start());
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(kept) => (kept.to_owned(), true),
        None => (path, false),
    };
    let end = u64::from_str_radix(end, 16).ok()?;
    (path != "[vsyscall]").then_some(MapsEntry {
        start: u64::from_str_radix(start, 16).ok()?,
        end,
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: device.to_owned(),
        inode: inode.parse().ok()?,
        path,
        deleted,
    })
}

/// The kernel prints a newline in a path as `\012` (`seq_file_path` with `"\n"`).
fn unescape(path: &str) -> String {
    if path.contains("\\012") { path.replace("\\012", "\n") } else { path.to_owned() }
}

/// The text of `/proc/modules`.
#[must_use]
pub fn parse_modules(text: &str) -> Vec<ModuleEntry> {
    text.lines().filter_map(parse_modules_line).collect()
}

fn parse_modules_line(line: &str) -> Option<ModuleEntry> {
    let mut fields = line.split(' ');
    let name = fields.next()?.to_owned();
    let size = fields.next()?.parse().ok()?;
    let address = fields.find(|field| field.starts_with("0x"))?;
    let start = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
    Some(ModuleEntry { name, start, size })
}

/// The lines of `/proc/kallsyms`, in the kernel's order.
pub fn parse_kallsyms(text: &str) -> impl Iterator<Item = KallsymsEntry<'_>> {
    text.lines().filter_map(parse_kallsyms_line)
}

fn parse_kallsyms_line(line: &str) -> Option<KallsymsEntry<'_>> {
    let (symbol, module) = match line.split_once('\t') {
        Some((symbol, module)) => {
            (symbol, Some(module.trim().strip_prefix('[')?.strip_suffix(']')?))
        }
        None => (line, None),
    };
    let mut fields = symbol.splitn(3, ' ');
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let kind = fields.next()?.chars().next()?;
    Some(KallsymsEntry { address, kind, name: fields.next()?, module })
}

/// The numbers among the names in `directory`: processes of `/proc`, threads of `/proc/PID/task`.
///
/// # Errors
/// If the directory can't be read.
pub fn numbered_entries(directory: &Path) -> io::Result<Vec<u32>> {
    numbered(directory, "")
}

/// The same of names that begin with a prefix: `node0`, `node1`.
pub(crate) fn numbered(directory: &Path, prefix: &str) -> io::Result<Vec<u32>> {
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = fs::read_dir(directory)?
        .filter_map(|entry| number(entry.ok()?.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads `/proc/PID/comm` (or `/proc/PID/task/TID/comm`) below `directory`; bytes that are not UTF-8
/// are replaced.
///
/// # Errors
/// If the file can't be read: mostly the process is gone.
pub fn read_comm(directory: &Path) -> io::Result<String> {
    let bytes = fs::read(directory.join("comm"))?;
    let name = String::from_utf8_lossy(&bytes);
    Ok(name.strip_suffix('\n').unwrap_or(&name).to_owned())
}

/// At most `most` bytes of a file; bytes that are not UTF-8 are replaced.
///
/// # Errors
/// If the file can't be read.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads and parses at most `most` bytes of `/proc/PID/maps` below `directory`.
///
/// # Errors
/// If the file can't be read: mostly the process is gone.
pub fn read_maps(directory: &Path, most: u64) -> io::Result<Maps> {
    let mut text = Vec::new();
    let bytes = File::open(directory.join("maps"))?.take(most).read_to_end(&mut text)? as u64;
    let is_cut = bytes == most;
    if is_cut {
        // The last line may lack its end.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    Ok(Maps { executable: parse_maps(&String::from_utf8_lossy(&text)), bytes, is_cut })
}

/// Where a mapped file of the process at `directory` can be opened whatever happened to its name:
/// first by its name in the process's root, then (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE)
/// through the mapping itself.
#[must_use]
pub fn mapped_file_paths(directory: &Path, entry: &MapsEntry) -> [PathBuf; 2] {
    let in_root = directory.join("root").join(entry.path.trim_start_matches('/'));
    let by_range = directory.join("map_files").join(format!("{:x}-{:x}", entry.start, entry.end));
    if entry.deleted { [by_range, in_root] } else { [in_root, by_range] }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn maps_keep_executable_lines() {
        let text = "\
55d0c8a00000-55d0c8a02000 r--p 00000000 08:01 1234                       /usr/bin/cat
55d0c8a02000-55d0c8a07000 r-xp 00002000 08:01 1234                       /usr/bin/cat
7f0000000000-7f0000001000 r-xp 00000000 00:01 77                         /tmp/with space (deleted)
7f0000002000-7f0000003000 rwxp 00000000 00:00 0 
7f0000004000-7f0000005000 r-xp 00000000 00:01 9                          /a\\012b
7ffd1c5f9000-7ffd1c5fb000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
garbage
";
        let got: Vec<_> = parse_maps(text)
            .into_iter()
            .map(|e| (e.start, e.end, e.offset, e.inode, e.path, e.deleted))
            .collect();
        let expected = [
            (0x55d0_c8a0_2000, 0x55d0_c8a0_7000, 0x2000, 1234, "/usr/bin/cat", false),
            (0x7f00_0000_0000, 0x7f00_0000_1000, 0, 77, "/tmp/with space", true),
            (0x7f00_0000_2000, 0x7f00_0000_3000, 0, 0, "", false),
            (0x7f00_0000_4000, 0x7f00_0000_5000, 0, 9, "/a\nb", false),
            (0x7ffd_1c5f_9000, 0x7ffd_1c5f_b000, 0, 0, "[vdso]", false),
        ];
        assert_eq!(got, expected.map(|(s, e, o, i, p, d)| (s, e, o, i, p.to_owned(), d)));
    }

    #[test]
    fn modules_give_name_address_and_size() {
        let text = "\
virtio_net 73728 0 - Live 0xffffffffc0321000
net_failover 24576 1 virtio_net, Live 0xffffffffc0200000 (E)
hidden 24576 1 - Live 0x0000000000000000
torn 12
";
        let got: Vec<_> =
            parse_modules(text).into_iter().map(|m| (m.name, m.start, m.size)).collect();
        let expected = [
            ("virtio_net", 0xffff_ffff_c032_1000, 73728),
            ("net_failover", 0xffff_ffff_c020_0000, 24576),
            ("hidden", 0, 24576),
        ];
        assert_eq!(got, expected.map(|(n, a, s)| (n.to_owned(), a, s)));
    }

    #[test]
    fn kallsyms_tell_kernel_from_modules() {
        let text = "\
ffffffff81000000 T _stext
ffffffff82000000 D init_task
ffffffffc0321000 t probe\t[virtio_net]
junk
";
        let got: Vec<_> =
            parse_kallsyms(text).map(|s| (s.address, s.name, s.module, s.is_text())).collect();
        assert_eq!(
            got,
            [
                (0xffff_ffff_8100_0000, "_stext", None, true),
                (0xffff_ffff_8200_0000, "init_task", None, false),
                (0xffff_ffff_c032_1000, "probe", Some("virtio_net"), true),
            ]
        );
    }

    #[test]
    fn maps_are_cut_after_a_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let line = "1000-2000 r-xp 00000000 08:01 12 /bin/a\n";
        fs::write(folder.path().join("maps"), line.repeat(3)).unwrap();
        let check = |most: usize, lines, is_cut| {
            let maps = read_maps(folder.path(), most as u64).unwrap();
            assert_eq!((maps.executable.len(), maps.is_cut), (lines, is_cut), "{most}");
            assert!(maps.executable.iter().all(|entry| entry.path == "/bin/a"));
        };
        check(3 * line.len() + 1, 3, false);
        check(3 * line.len() - 1, 2, true);
        check(line.len() - 1, 0, true);
    }

    #[test]
    fn this_process_reads_itself() {
        let own = Path::new("/proc/self");
        assert!(!read_comm(own).unwrap().is_empty());
        let whole = read_maps(own, MAX_MAPS_BYTES).unwrap();
        let maps = &whole.executable;
        assert!(!whole.is_cut && maps.iter().any(|entry| entry.path == "[vdso]"));
        let exe = maps.iter().find(|entry| entry.path.starts_with('/')).unwrap();
        assert!(mapped_file_paths(own, exe)[0].exists());
        assert!(numbered_entries(&own.join("task")).unwrap().contains(&std::process::id()));
    }
}
