//! Field offsets from the running kernel's BTF (Documentation/bpf/btf.rst): one pass over the types and
//! no copies. General readers build tables of all 100,000 types first, which takes an emulated guest
//! seconds.

use std::path::Path;

use super::InsideError;
use crate::walk::Layout;

/// Anonymous structs and unions within each other, and qualifiers of one type, at most.
const MAX_DEPTH: u32 = 8;
const MAGIC: [u8; 2] = 0xeb9f_u16.to_le_bytes();
/// Name, kind and count, size or type.
const TYPE_BYTES: usize = 12;
/// Name, type, offset.
const MEMBER_BYTES: usize = 12;

/// Reads what the walk needs to know from a BTF file (`/sys/kernel/btf/vmlinux`).
pub(crate) fn read_layout(path: &Path) -> Result<Layout, InsideError> {
    let bytes = std::fs::read(path).map_err(InsideError::read(path))?;
    let btf = Btf::parse(&bytes).ok_or_else(|| InsideError::Content {
        path: path.into(),
        text: "not the kernel's type information".into(),
    })?;
    layout(&btf)
}

fn layout(btf: &Btf<'_>) -> Result<Layout, InsideError> {
    let [task, thread, signal, mm] =
        btf.structs(["task_struct", "thread_struct", "signal_struct", "mm_struct"])?;
    let within = |structure: u32, name: &'static str| {
        btf.offset(structure, name, 0).ok_or(InsideError::NoField(name))
    };
    Ok(Layout {
        tasks: within(task, "tasks")?,
        flags: within(task, "flags")?,
        stack: within(task, "stack")?,
        pid: within(task, "pid")?,
        tgid: within(task, "tgid")?,
        comm: within(task, "comm")?,
        mm: within(task, "mm")?,
        start_time: within(task, "start_time")?,
        fs_base: within(task, "thread")? + within(thread, "fsbase")?,
        signal: within(task, "signal")?,
        thread_node: within(task, "thread_node")?,
        thread_head: within(signal, "thread_head")?,
        pgd: within(mm, "pgd")?,
    })
}

/// The types of a kernel.
struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `types`, by its id; id 0 is void.
    starts: Vec<usize>,
}

/// What follows from a type's first words.
struct TypeHeader {
    name: u32,
    kind: u32,
    count: usize,
    has_bit_fields: bool,
    /// Size of a struct, target of a pointer or qualifier.
    size_or_type: u32,
}

impl TypeHeader {
    fn is_struct(&self) -> bool {
        matches!(self.kind, 4 | 5) // BTF_KIND_STRUCT, BTF_KIND_UNION
    }

    /// Typedef, volatile, const, restrict, type tag.
    fn is_qualifier(&self) -> bool {
        matches!(self.kind, 8..=11 | 18)
    }

    /// Bytes between this type's first words and the next type's.
    fn more_bytes(&self) -> Option<usize> {
        match self.kind {
            2 | 7..=12 | 16 | 18 => Some(0), // pointer, forward, qualifiers, function, float, tag
            1 | 14 | 17 => Some(4),          // integer, variable, declaration tag
            3 => Some(12),                   // array
            6 | 13 => Some(self.count * 8),  // enum, function prototype
            4 | 5 | 15 | 19 => Some(self.count * 12), // struct, union, section, 64-bit enum
            _ => None,
        }
    }
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let header = u32_at(bytes, 4)? as usize;
        let section = |at: usize| {
            let start = header.checked_add(u32_at(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(u32_at(bytes, at + 4)? as usize)?)
        };
        let mut btf = Self { types: section(8)?, strings: section(16)?, starts: vec![0] };
        let mut at = 0;
        while at < btf.types.len() {
            btf.starts.push(at);
            at += TYPE_BYTES + btf.header_at(at)?.more_bytes()?;
        }
        Some(btf)
    }

    fn header_at(&self, at: usize) -> Option<TypeHeader> {
        let info = u32_at(self.types, at + 4)?;
        Some(TypeHeader {
            name: u32_at(self.types, at)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            has_bit_fields: info >> 31 != 0,
            size_or_type: u32_at(self.types, at + 8)?,
        })
    }

    fn header(&self, id: u32) -> Option<TypeHeader> {
        self.header_at(*self.starts.get(id as usize).filter(|_| id != 0)?)
    }

    fn has_name(&self, name_at: u32, name: &str) -> bool {
        let at = self.strings.get(name_at as usize..).unwrap_or_default();
        at.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The ids of these structs.
    fn structs<const N: usize>(&self, names: [&'static str; N]) -> Result<[u32; N], InsideError> {
        let mut ids = [0; N];
        for id in 1..u32::try_from(self.starts.len()).unwrap_or(0) {
            let Some(header) = self.header(id).filter(|header| header.kind == 4) else { continue };
            if let Some(n) = names.iter().position(|name| self.has_name(header.name, name)) {
                ids[n] = id;
            }
        }
        match ids.iter().position(|id| *id == 0) {
            Some(missing) => Err(InsideError::NoField(names[missing])),
            None => Ok(ids),
        }
    }

    /// Byte offset of the member `name` of a struct, also within anonymous structs and unions.
    fn offset(&self, structure: u32, name: &str, depth: u32) -> Option<u64> {
        if depth == MAX_DEPTH {
            return None;
        }
        let header = self.header(structure)?;
        if header.is_qualifier() {
            return self.offset(header.size_or_type, name, depth + 1);
        }
        if !header.is_struct() {
            return None;
        }
        let members = self.starts[structure as usize] + TYPE_BYTES;
        (0..header.count).find_map(|n| {
            let member = members + n * MEMBER_BYTES;
            let bits = u32_at(self.types, member + 8)?;
            let bits = if header.has_bit_fields { bits & 0x00ff_ffff } else { bits };
            let here = u64::from(bits / 8);
            let member_name = u32_at(self.types, member)?;
            if self.has_name(member_name, name) {
                return Some(here);
            }
            if !self.has_name(member_name, "") {
                return None;
            }
            Some(here + self.offset(u32_at(self.types, member + 4)?, name, depth + 1)?)
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod test {
    use super::*;

    /// Types as words; strings as they stand.
    fn file(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let header = [24, 0, length(&types), length(&types), length(strings)];
        let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        [&MAGIC[..], &[1, 0], &header, &types, strings].concat()
    }

    /// ```text
    /// struct outer { int a; const struct { int pad; union { int b; }; }; int c : 3; }
    /// ```
    fn example() -> Vec<u8> {
        const STRINGS: &[u8] = b"\0int\0outer\0a\0b\0c\0pad\0";
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let types: [&[u32]; 5] = [
            &[1, kind(1, 0), 4, 32], // 1: int
            &[5, 1 << 31 | kind(4, 3), 20, 11, 1, 0, 0, 3, 64, 15, 1, 3 << 24 | 128], // 2: outer
            &[0, kind(10, 0), 4],    // 3: const
            &[0, kind(4, 2), 8, 17, 1, 0, 0, 5, 32], // 4: struct { pad, anonymous }
            &[0, kind(5, 1), 4, 13, 1, 0], // 5: union { b }
        ];
        file(&types.concat(), STRINGS)
    }

    #[test]
    fn members_are_found_within_anonymous_ones() {
        let bytes = example();
        let btf = Btf::parse(&bytes).unwrap();
        let [outer] = btf.structs(["outer"]).unwrap();
        for (name, expected) in
            [("a", Some(0)), ("pad", Some(8)), ("b", Some(12)), ("c", Some(16)), ("in", None)]
        {
            assert_eq!(btf.offset(outer, name, 0), expected, "{name}");
        }
        assert!(btf.structs(["int"]).is_err());
    }

    #[test]
    fn broken_files_are_refused() {
        let bytes = example();
        for length in 0..bytes.len() {
            assert!(Btf::parse(&bytes[..length]).is_none(), "cut to {length}");
        }
        // A struct that contains itself.
        let strings = b"\0s\0";
        let bytes = file(&[1, 4 << 24 | 1, 4, 0, 1, 0], strings);
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset(1, "x", 0), None);
        assert!(Btf::parse(&file(&[0, 31 << 24, 0], strings)).is_none());
    }

    #[test]
    fn the_running_kernel_tells_its_layout() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        if !path.exists() {
            return skip::skip("this kernel has no BTF");
        }
        let layout = read_layout(path).unwrap();
        assert!(0 < layout.tasks && 0 < layout.fs_base, "{layout:?}");
        assert_eq!(layout.tgid, layout.pid + 4);
        assert!(read_layout(Path::new("/proc/self/comm")).is_err());
    }
}
