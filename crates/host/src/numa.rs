//! NUMA nodes of the host, and on which of them a process's memory lies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::machine::parse_cpu_list;
use crate::procfs::numbered;

/// Nodes at most: what the kernel can be built for.
const MAX_NODES: usize = 1024;
/// Bytes of one process's `numa_maps` that are read at most. A process can have 65,530 mappings, each with a path of 4 KiB.
const MAX_NUMA_MAPS_BYTES: u64 = 16 << 20;
/// Sizes of huge pages at most; an arm64 has four.
const MAX_SIZES: usize = 16;
/// Bytes of a file of `/sys` that are read at most.
const MAX_SYS_BYTES: u64 = 64 << 10;

/// A node as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    pub id: u32,
    /// Its CPUs that are online.
    pub cpus: Vec<u32>,
    /// Bytes of its memory.
    pub total: u64,
    /// Bytes that are free, or hold files' contents that nothing used lately.
    pub free: u64,
    /// Bytes of free huge pages, by the pages' size: a pool of its own.
    pub huge_free: BTreeMap<u64, u64>,
    /// How far each node is, in the order of the nodes.
    pub distances: Vec<u32>,
    /// Read bandwidth from its nearest CPUs, bytes/s; `None`: the firmware has no HMAT.
    pub read_bandwidth: Option<u64>,
}

/// A mapping of a process, and where its pages are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaMapping {
    pub start: u64,
    /// Its memory policy is the default one.
    pub default_policy: bool,
    pub page_bytes: u64,
    /// Its pages are of the pool of huge pages.
    pub is_huge: bool,
    /// Pages on each node, by the node's number.
    pub pages: Vec<(u32, u64)>,
}

/// What was read of `/proc/PID/numa_maps`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaMaps {
    /// Its mappings that have pages, in the order of their addresses.
    pub mappings: Vec<NumaMapping>,
    /// There may be more than what was read.
    pub is_cut: bool,
}

/// The size of huge pages that programs get which name none, of `/proc/meminfo`.
#[must_use]
pub fn default_huge_page(proc: &Path) -> Option<u64> {
    let text = text(&proc.join("meminfo")).ok()?;
    let size = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads the nodes of a host from `sys`. A kernel without NUMA has none.
///
/// # Errors
/// If a node can't be read.
pub fn nodes(sys: &Path) -> io::Result<Vec<NumaNode>> {
    let folder = sys.join("devices/system/node");
    let ids = match numbered(&folder, "node") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    ids.into_iter().take(MAX_NODES).map(|id| node(&folder.join(format!("node{id}")), id)).collect()
}

fn node(folder: &Path, id: u32) -> io::Result<NumaNode> {
    let invalid = |what: &str| {
        let path = folder.join(what);
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: invalid content", path.display()))
    };
    let list = text(&folder.join("cpulist"))?;
    let cpus = match list.trim() {
        "" => Vec::new(),
        list => parse_cpu_list(list).ok_or_else(|| invalid("cpulist"))?,
    };
    let (total, free) =
        parse_meminfo(&text(&folder.join("meminfo"))?).ok_or_else(|| invalid("meminfo"))?;
    let distances = text(&folder.join("distance"))?;
    let distances: Option<Vec<u32>> =
        distances.split_whitespace().map(|distance| distance.parse().ok()).collect();
    // MiB a second (Documentation/admin-guide/mm/numaperf.rst).
    let bandwidth = text(&folder.join("access0/initiators/read_bandwidth")).ok();
    let bandwidth = bandwidth.and_then(|text| text.trim().parse::<u64>().ok()).filter(|n| 0 < *n);
    Ok(NumaNode {
        id,
        cpus,
        total,
        free,
        huge_free: huge_free(folder),
        distances: distances.ok_or_else(|| invalid("distance"))?,
        read_bandwidth: bandwidth.map(|mib| mib.saturating_mul(1 << 20)),
    })
}

/// Of its folder: `hugepages/hugepages-2048kB/free_hugepages`. A kernel without huge pages has none.
fn huge_free(folder: &Path) -> BTreeMap<u64, u64> {
    let sizes = std::fs::read_dir(folder.join("hugepages")).into_iter().flatten().flatten();
    let free = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let size = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let size = size.parse::<u64>().ok()?.checked_mul(1024)?;
        let pages: u64 = text(&entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some((size, pages.checked_mul(size)?))
    };
    sizes.take(MAX_SIZES).filter_map(free).collect()
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    file.take(MAX_SYS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Bytes in all and free of a node's `meminfo`: lines such as `Node 0 MemTotal:  16384 kB`.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = lines.find(|(key, _)| key.rsplit(' ').next() == Some(name))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let (total, free) = (value("MemTotal")?, value("MemFree")?);
    let unused_files = value("Inactive(file)").unwrap_or(0);
    Some((total, free.saturating_add(unused_files).min(total)))
}

/// Reads where the memory of the process at `directory` lies.
///
/// # Errors
/// If the file can't be read: mostly the process is gone, or is another user's.
pub fn read_numa_maps(directory: &Path) -> io::Result<NumaMaps> {
    let mut text = Vec::new();
    let file = File::open(directory.join("numa_maps"))?;
    let bytes = file.take(MAX_NUMA_MAPS_BYTES).read_to_end(&mut text)? as u64;
    let is_cut = bytes == MAX_NUMA_MAPS_BYTES;
    if is_cut {
        // The last line may lack its end.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    Ok(NumaMaps { is_cut, ..parse_numa_maps(&String::from_utf8_lossy(&text)) })
}

/// The mappings with pages in the text of `/proc/PID/numa_maps`. Lines that make no sense are passed over.
#[must_use]
pub fn parse_numa_maps(text: &str) -> NumaMaps {
    let mut mappings: Vec<NumaMapping> = text.lines().filter_map(parse_numa_maps_line).collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings.dedup_by_key(|mapping| mapping.start);
    NumaMaps { mappings, is_cut: false }
}

/// `7f5c default file=/dev/shm/N0=7 anon=512 dirty=512 N0=500 N1=12 kernelpagesize_kB=4`. A path has its blanks escaped, so
/// that what it contains is no field of its own.
fn parse_numa_maps_line(line: &str) -> Option<NumaMapping> {
    let mut fields = line.split(' ');
    let start = u64::from_str_radix(fields.next()?, 16).ok()?;
    let default_policy = fields.next()? == "default";
    let (mut page_bytes, mut pages, mut is_huge) = (4096, Vec::new(), false);
    for field in fields {
        is_huge |= field == "huge";
        let Some((key, value)) = field.split_once('=') else { continue };
        if key == "kernelpagesize_kB" {
            page_bytes = value
                .parse::<u64>()
                .ok()?
                .checked_mul(1024)
                .filter(|n| (4096..=1 << 34).contains(n))?;
        } else if let Some(node) = key.strip_prefix('N').and_then(|node| node.parse().ok()) {
            let count: u64 = value.parse().ok()?;
            let is_new = pages.iter().all(|(other, _)| *other != node);
            if is_new && pages.len() < MAX_NODES && count.checked_mul(page_bytes).is_some() {
                pages.push((node, count));
            }
        }
    }
    (!pages.is_empty()).then_some(NumaMapping { start, default_policy, page_bytes, is_huge, pages })
}

impl NumaMapping {
    /// Bytes on each node.
    pub fn bytes(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.pages.iter().map(|(node, pages)| (*node, pages.saturating_mul(self.page_bytes)))
    }
}

impl NumaMaps {
    /// The mappings that hold an address range, `end` excluded. `numa_maps` does not say where mappings end: the last one
    /// that begins before the range may reach into it.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = &NumaMapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= start);
        let first = after.saturating_sub(1);
        self.mappings[first..].iter().take_while(move |mapping| mapping.start < end)
    }
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    #[test]
    fn lines_of_numa_maps() {
        let check = |line: &str, page_bytes: u64, pages: &[(u32, u64)]| {
            let found = parse_numa_maps_line(line);
            let found = found.as_ref().map(|found| (found.page_bytes, &found.pages[..]));
            let expected = (!pages.is_empty()).then_some((page_bytes, pages));
            assert_eq!(found, expected, "{line}");
        };
        let kib4 = "kernelpagesize_kB=4";
        check(&format!("7f00 default anon=3 dirty=3 N0=2 N3=1 {kib4}"), 4096, &[(0, 2), (3, 1)]);
        check("7f00 bind:2 anon=3 N2=3 kernelpagesize_kB=2048", 2 << 20, &[(2, 3)]);
        check(&format!("7f00 default file=/a\\040N7=9 N0=1 {kib4}"), 4096, &[(0, 1)]);
        check("7f00 default N0=1 N0=7", 4096, &[(0, 1)]);
        for nonsense in
            ["7f00 default heap", "7f00 default N0=99999999999999999999", "", "xyz default N0=1"]
        {
            check(nonsense, 0, &[]);
        }
        check("7f00 default N0=1 kernelpagesize_kB=0", 0, &[]);
        let is_huge = |line: &str| parse_numa_maps_line(line).unwrap().is_huge;
        let huge = "7f00 bind:1 file=/dev/hugepages/a huge dirty=8 N1=8 kernelpagesize_kB=2048";
        assert_eq!([is_huge("7f00 default file=/huge N0=1"), is_huge(huge)], [false, true]);
        let policy = |line: &str| parse_numa_maps_line(line).unwrap().default_policy;
        assert_eq!([policy("7f00 default N0=1"), policy("7f00 bind:2 N0=1")], [true, false]);
    }

    #[test]
    fn a_range_has_the_mappings_that_can_reach_into_it() {
        let maps = parse_numa_maps("1000 default N0=1\n3000 default N0=1\n5000 default N1=1\n");
        let check = |start, end, expected: &[u64]| {
            let found: Vec<u64> = maps.within(start, end).map(|mapping| mapping.start).collect();
            assert_eq!(found, expected, "{start:x}-{end:x}");
        };
        check(0x3000, 0x5000, &[0x3000]);
        check(0x3800, 0x5001, &[0x3000, 0x5000]);
        check(0x0, 0x1000, &[]);
        check(0x0, 0x2000, &[0x1000]);
        check(0x9000, 0xa000, &[0x5000]);
    }

    #[test]
    fn nodes_of_a_host() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(nodes(sys.path()).unwrap(), []);
        let write = |node: u32, name: &str, text: &str| {
            let path = sys.path().join(format!("devices/system/node/node{node}")).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (node, cpus) in [(0, "0-1\n"), (1, "\n")] {
            write(node, "cpulist", cpus);
            write(node, "distance", "10 20\n");
            let meminfo = format!(
                "\nNode {node} MemTotal:       4096 kB\nNode {node} MemFree:        1024 kB\nNode {node} Inactive(file):  512 kB\n"
            );
            write(node, "meminfo", &meminfo);
        }
        write(1, "hugepages/hugepages-2048kB/free_hugepages", "3\n");
        write(1, "hugepages/hugepages-1048576kB/free_hugepages", "0\n");
        write(1, "access0/initiators/read_bandwidth", "100\n");
        fs::create_dir(sys.path().join("devices/system/node/nodes")).unwrap();
        let read = nodes(sys.path()).unwrap();
        let expected = |id, cpus, read_bandwidth| NumaNode {
            id,
            cpus,
            total: 4 << 20,
            free: 1536 << 10,
            huge_free: BTreeMap::new(),
            distances: vec![10, 20],
            read_bandwidth,
        };
        let huge = NumaNode {
            huge_free: [(2 << 20, 6 << 20), (1 << 30, 0)].into(),
            ..expected(1, vec![], Some(100 << 20))
        };
        assert_eq!(read, [expected(0, vec![0, 1], None), huge]);
        write(1, "distance", "10 x\n");
        assert!(
            nodes(sys.path()).unwrap_err().to_string().contains("node1/distance: invalid content")
        );
    }

    #[test]
    fn this_process_reads_itself() {
        match read_numa_maps(Path::new("/proc/self")) {
            Ok(maps) => assert!(!maps.mappings.is_empty() && !maps.is_cut),
            // A kernel without NUMA.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }
}
