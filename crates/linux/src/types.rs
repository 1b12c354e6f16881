//! A kernel's types, from its BTF (Documentation/bpf/btf.rst): where the fields of its structs are. One pass over the
//! types and no copies: general readers build tables of all 100,000 types first, which takes an emulated guest seconds.

use std::collections::BTreeMap;
use std::fmt;

/// Anonymous structs and unions within each other, and qualifiers of one type, at most.
const MAX_DEPTH: u32 = 8;
/// Members that are looked at for one field, at most.
const MAX_MEMBERS: u32 = 1 << 16;
/// Fields that lie further behind the begin of their struct are not believed.
const MAX_OFFSET: u64 = 1 << 16;
const MAGIC: [u8; 2] = 0xeb9f_u16.to_le_bytes();
/// Name, kind and count, size or type.
const TYPE_BYTES: usize = 12;
/// Name, type, offset.
const MEMBER_BYTES: usize = 12;

/// Fields that some kernels keep elsewhere: struct, field, and where it is instead.
const MOVED: &[[&str; 4]] = &[
    // `struct folio` is new in Linux 5.16.
    ["folio", "mapping", "page", "mapping"],
    ["folio", "index", "page", "index"],
    ["folio", "flags", "page", "flags"],
    // What may be written has got its own names, the old ones are constant: Linux 6.3, 6.15.
    ["vm_area_struct", "vm_flags", "vm_area_struct", "__vm_flags"],
    ["vm_area_struct", "vm_flags", "vm_area_struct", "flags"],
    ["dentry", "d_name", "dentry", "__d_name"],
];

/// A struct or field that the kernel's types do not have: `task_struct.mm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingField(pub &'static str, pub &'static str);

impl fmt::Display for MissingField {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0, self.1)
    }
}

impl std::error::Error for MissingField {}

/// Declares a struct of byte offsets, named after the fields that they belong to.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $structure:literal $path:literal,)* }
        optional { $($other:ident: $other_structure:literal $other_path:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $(#[doc = concat!("`", $structure, ".", $path, "`")] pub $field: u64,)*
            $(#[doc = concat!("`", $other_structure, ".", $other_path, "`, which not all kernels have")]
            pub $other: Option<u64>,)*
        }

        impl $name {
            /// Reads it from the kernel's types.
            ///
            /// # Errors
            /// The first field that the kernel does not have.
            pub fn from_types(
                types: &$crate::types::Types<'_>,
            ) -> Result<Self, $crate::types::MissingField> {
                Ok(Self {
                    $($field: types.require($structure, $path)?,)*
                    $($other: types.require($other_structure, $other_path).ok(),)*
                })
            }
        }
    };
}
pub(crate) use layout;

/// The types of a kernel.
#[derive(Debug)]
pub struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `types`, by its id; id 0 is void.
    starts: Vec<u32>,
    /// Ids of the structs that have names.
    structs: BTreeMap<&'a [u8], u32>,
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

const INTEGER: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const VARIABLE: u32 = 14;
const FLOAT: u32 = 16;
const ENUM_64: u32 = 19;

impl TypeHeader {
    fn is_struct(&self) -> bool {
        matches!(self.kind, STRUCT | UNION)
    }

    /// Typedef, volatile, const, restrict, type tag.
    fn is_qualifier(&self) -> bool {
        matches!(self.kind, 8..=11 | 18)
    }

    /// Bytes between this type's first words and the next type's.
    fn more_bytes(&self) -> Option<usize> {
        match self.kind {
            // Forward, qualifiers, function.
            POINTER | 7..=12 | FLOAT | 18 => Some(0),
            // Declaration tag.
            INTEGER | VARIABLE | 17 => Some(4),
            ARRAY => Some(12),
            // Function prototype.
            ENUM | 13 => Some(self.count * 8),
            // Section.
            STRUCT | UNION | 15 | ENUM_64 => Some(self.count * 12),
            _ => None,
        }
    }
}

impl<'a> Types<'a> {
    /// Reads BTF as the kernel has it between `__start_BTF` and `__stop_BTF`, and in `/sys/kernel/btf/vmlinux`.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let header = u32_at(bytes, 4)? as usize;
        let section = |at: usize| {
            let start = header.checked_add(u32_at(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(u32_at(bytes, at + 4)? as usize)?)
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut found = Self { types, strings, starts: vec![0], structs: BTreeMap::new() };
        let mut at = 0;
        while at < types.len() {
            let header = found.header_at(at)?;
            if header.kind == STRUCT && header.name != 0 {
                let id = u32::try_from(found.starts.len()).ok()?;
                found.structs.entry(found.name(header.name)?).or_insert(id);
            }
            found.starts.push(u32::try_from(at).ok()?);
            at += TYPE_BYTES + header.more_bytes()?;
        }
        Some(found)
    }

    /// Byte offset of a field. `path` names a member, also one of anonymous structs and unions, or a member's member:
    /// `thread.fsbase`.
    #[must_use]
    pub fn field(&self, structure: &str, path: &str) -> Option<u64> {
        let moved = MOVED.iter().filter(|[from, field, ..]| (*from, *field) == (structure, path));
        let places = moved.map(|[.., to, field]| (*to, *field));
        std::iter::once((structure, path)).chain(places).find_map(|(structure, path)| {
            let mut id = self.structure(structure)?;
            let mut offset = 0;
            for name in path.split('.') {
                let (at, member) = self.member(id, name, 0, &mut MAX_MEMBERS.clone())?;
                (offset, id) = (offset + at, member);
            }
            Some(offset)
        })
    }

    /// Byte offset of a field that can't be done without.
    ///
    /// # Errors
    /// The kernel does not have it.
    pub fn require(
        &self,
        structure: &'static str,
        path: &'static str,
    ) -> Result<u64, MissingField> {
        let offset = self.field(structure, path).filter(|offset| *offset < MAX_OFFSET);
        offset.ok_or(MissingField(structure, path))
    }

    /// Bytes of a struct; `None`: there is none of this name.
    #[must_use]
    pub fn size(&self, structure: &str) -> Option<u64> {
        self.size_of(self.structure(structure)?, 0)
    }

    /// Bytes of a per-CPU variable.
    #[must_use]
    pub fn variable_size(&self, name: &str) -> Option<u64> {
        let variable = self.find(VARIABLE, name)?;
        self.size_of(self.header(variable)?.size_or_type, 0)
    }

    /// A constant's value: `enumerator("pageflags", "PG_uptodate")`.
    #[must_use]
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        let id = self.find(ENUM, enumeration)?;
        let first = self.start(id)? + TYPE_BYTES;
        (0..self.header(id)?.count).map(|n| first + n * 8).find_map(|at| {
            let is_it = self.has_name(u32_at(self.types, at)?, name);
            is_it.then(|| u32_at(self.types, at + 4))?
        })
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

    fn start(&self, id: u32) -> Option<usize> {
        self.starts.get(id as usize).filter(|_| id != 0).map(|at| *at as usize)
    }

    fn header(&self, id: u32) -> Option<TypeHeader> {
        self.header_at(self.start(id)?)
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        self.strings.get(at as usize..)?.split(|byte| *byte == 0).next()
    }

    fn has_name(&self, name_at: u32, name: &str) -> bool {
        let at = self.strings.get(name_at as usize..).unwrap_or_default();
        at.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn structure(&self, name: &str) -> Option<u32> {
        self.structs.get(name.as_bytes()).copied()
    }

    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let is_it = |id: &u32| {
            let header = self.header(*id);
            header.is_some_and(|header| header.kind == kind && self.has_name(header.name, name))
        };
        (1..u32::try_from(self.starts.len()).ok()?).find(is_it)
    }

    fn size_of(&self, id: u32, depth: u32) -> Option<u64> {
        let header = self.header(id).filter(|_| depth < MAX_DEPTH)?;
        match header.kind {
            POINTER => Some(8),
            INTEGER | STRUCT | UNION | ENUM | FLOAT | ENUM_64 => Some(header.size_or_type.into()),
            ARRAY => {
                let at = self.start(id)? + TYPE_BYTES;
                let element = self.size_of(u32_at(self.types, at)?, depth + 1)?;
                element.checked_mul(u32_at(self.types, at + 8)?.into())
            }
            _ if header.is_qualifier() => self.size_of(header.size_or_type, depth + 1),
            _ => None,
        }
    }

    /// Byte offset and type of the member `name` of a struct, also within anonymous structs and unions.
    fn member(
        &self,
        id: u32,
        name: &str,
        depth: u32,
        members_left: &mut u32,
    ) -> Option<(u64, u32)> {
        if depth == MAX_DEPTH {
            return None;
        }
        let header = self.header(id)?;
        if header.is_qualifier() {
            return self.member(header.size_or_type, name, depth + 1, members_left);
        }
        if !header.is_struct() {
            return None;
        }
        let members = self.start(id)? + TYPE_BYTES;
        for member in (0..header.count).map(|n| members + n * MEMBER_BYTES) {
            // Structs may be members of each other in so many ways that no one sees the end.
            *members_left = members_left.checked_sub(1)?;
            let [member_name, kind, bits] =
                [0, 4, 8].map(|at| u32_at(self.types, member + at).unwrap_or_default());
            let bits = if header.has_bit_fields { bits & 0x00ff_ffff } else { bits };
            let here = u64::from(bits / 8);
            if self.has_name(member_name, name) {
                return Some((here, kind));
            }
            if self.has_name(member_name, "")
                && let Some((within, kind)) = self.member(kind, name, depth + 1, members_left)
            {
                return Some((here + within, kind));
            }
        }
        None
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

    fn kind(kind: u32, count: u32) -> u32 {
        kind << 24 | count
    }

    /// ```text
    /// struct outer { int a; const struct { int pad; union { int b; }; }; int c : 3; }
    /// enum e { x = 7, y = 9 };   int v[5];   struct page { struct outer mapping; }
    /// ```
    fn example() -> Vec<u8> {
        const STRINGS: &[u8] = b"\0int\0outer\0a\0b\0c\0pad\0e\0x\0y\0v\0page\0mapping\0again\0";
        let types: [&[u32]; 10] = [
            &[1, kind(1, 0), 4, 32], // 1: int
            &[5, 1 << 31 | kind(4, 3), 20, 11, 1, 0, 0, 3, 64, 15, 1, 3 << 24 | 128], // 2: outer
            &[0, kind(10, 0), 4],    // 3: const
            &[0, kind(4, 2), 8, 17, 1, 0, 0, 5, 32], // 4: struct { pad, anonymous }
            &[0, kind(5, 1), 4, 13, 1, 0], // 5: union { b }
            &[21, kind(6, 2), 4, 23, 7, 25, 9], // 6: enum
            &[0, kind(3, 0), 0, 1, 1, 5], // 7: int[5]
            &[27, kind(14, 0), 7, 1], // 8: v
            &[29, kind(4, 1), 24, 34, 2, 32], // 9: page
            &[5, kind(4, 0), 99],    // 10: another outer
        ];
        file(&types.concat(), STRINGS)
    }

    #[test]
    fn members_are_found_within_anonymous_ones_and_by_paths() {
        let bytes = example();
        let types = Types::parse(&bytes).unwrap();
        for (structure, path, expected) in [
            ("outer", "a", Some(0)),
            ("outer", "pad", Some(8)),
            ("outer", "b", Some(12)),
            ("outer", "c", Some(16)),
            ("outer", "in", None),
            ("int", "a", None),
            ("page", "mapping.b", Some(16)),
            ("page", "mapping.b.a", None),
            // It was called otherwise once.
            ("folio", "mapping", Some(4)),
        ] {
            assert_eq!(types.field(structure, path), expected, "{structure}.{path}");
        }
        assert_eq!(types.require("outer", "x").unwrap_err().to_string(), "outer.x");
    }

    #[test]
    fn sizes_and_constants_are_found() {
        let bytes = example();
        let types = Types::parse(&bytes).unwrap();
        assert_eq!([types.size("outer"), types.size("v")], [Some(20), None]);
        assert_eq!([types.variable_size("v"), types.variable_size("e")], [Some(20), None]);
        assert_eq!(types.enumerator("e", "y"), Some(9));
        assert_eq!([types.enumerator("e", "z"), types.enumerator("v", "y")], [None, None]);
    }

    #[test]
    fn broken_files_are_refused() {
        let bytes = example();
        for length in 0..bytes.len() {
            assert!(Types::parse(&bytes[..length]).is_none(), "cut to {length}");
        }
        assert!(Types::parse(&file(&[0, 31 << 24, 0], b"\0s\0")).is_none());
    }

    #[test]
    fn types_within_themselves_end() {
        // A struct that contains itself, a constant of itself, an array of itself.
        let bytes = file(&[1, kind(4, 1), 4, 0, 1, 0], b"\0s\0");
        assert_eq!(Types::parse(&bytes).unwrap().field("s", "x"), None);
        let types =
            [&[1, kind(14, 0), 2, 0][..], &[0, kind(10, 0), 3], &[0, kind(3, 0), 0, 2, 2, 9]];
        let bytes = file(&types.concat(), b"\0s\0");
        assert_eq!(Types::parse(&bytes).unwrap().variable_size("s"), None);
        // Each member is such a struct again: 60,000 to the 8th.
        let members = (0..60_000).flat_map(|_| [0, 1, 0]);
        let types: Vec<u32> = [1, kind(4, 60_000), 4].into_iter().chain(members).collect();
        let bytes = file(&types, b"\0s\0");
        assert_eq!(Types::parse(&bytes).unwrap().field("s", "x"), None);
    }
}
