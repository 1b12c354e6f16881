//! The operations that are known here by name: what kind they are, and what they do.
//!
//! QR codes and lines have names only; `catalogue.txt` has a line for each entry of the image's table, and a test
//! (`tests/acceptance/tests/bench.rs`) holds it against what the image says it knows. An image of another version may have
//! others: they are measured and compared like any, but have no title and stand in no table of the original.

use serde::Serialize;

/// `KIND NAME TITLE`, a line each.
const CATALOGUE: &str = include_str!("catalogue.txt");

/// What kind of operation it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Runs on the CPU itself, in any VM.
    General,
    /// Faults outside level 0.
    Privileged,
    /// Is no fault at any level, but tells or changes what a VMM must hide.
    Sensitive,
    /// Page tables and TLB.
    Paging,
    /// Made to leave the guest.
    Exit,
    /// Interrupts, exceptions, system calls.
    Interrupt,
    /// Memory and caches.
    Memory,
    Io,
    Other,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Operation<'n> {
    pub name: &'n str,
    pub group: Group,
    /// What it does; empty: not known.
    pub title: &'static str,
}

impl Group {
    /// All kinds, as they are listed.
    pub const ALL: [Self; 9] = [
        Self::General,
        Self::Privileged,
        Self::Sensitive,
        Self::Paging,
        Self::Exit,
        Self::Interrupt,
        Self::Memory,
        Self::Io,
        Self::Other,
    ];

    /// As in the catalogue and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Privileged => "privileged",
            Self::Sensitive => "sensitive",
            Self::Paging => "paging",
            Self::Exit => "exit",
            Self::Interrupt => "interrupt",
            Self::Memory => "memory",
            Self::Io => "io",
            Self::Other => "other",
        }
    }
}

/// Every operation known here.
pub fn all() -> impl Iterator<Item = Operation<'static>> {
    CATALOGUE.lines().filter_map(operation)
}

/// The operation of this name.
#[must_use]
pub fn find(name: &str) -> Option<Operation<'static>> {
    all().find(|operation| operation.name == name)
}

/// The operation of this name, or one of which nothing else is known.
#[must_use]
pub fn find_or_unknown(name: &str) -> Operation<'_> {
    find(name).unwrap_or(Operation { name, group: Group::Other, title: "" })
}

/// The group of the operation with this name.
#[must_use]
pub fn group(name: &str) -> Group {
    find_or_unknown(name).group
}

/// Whether it updates 5120 page-table entries, as in the original's Table 3.
#[must_use]
pub fn is_page_table_update(name: &str) -> bool {
    name.starts_with("pte-5120")
}

/// What QR codes call an operation: FNV-1a of its name, folded to 24 bits.
#[must_use]
pub fn hash(name: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = name.bytes().fold(0x811c_9dc5, step);
    ((hash >> 24) ^ hash) & 0xff_ffff
}

fn operation(line: &'static str) -> Option<Operation<'static>> {
    let mut words = line.splitn(3, ' ');
    let kind = words.next()?;
    let group = Group::ALL.into_iter().find(|group| group.name() == kind)?;
    Some(Operation { group, name: words.next()?, title: words.next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_is_an_operation_of_its_own() {
        let names: BTreeSet<&str> = all().map(|operation| operation.name).collect();
        assert_eq!(names.len(), CATALOGUE.lines().count());
        assert!(all().all(|operation| crate::lines::is_name(operation.name)));
        let hashes: BTreeSet<u32> = names.iter().map(|name| hash(name)).collect();
        assert_eq!(hashes.len(), names.len(), "two operations have one hash");
        assert_eq!(group("add"), Group::General);
        assert_eq!(group("nosuch"), Group::Other);
    }

    #[test]
    fn titles_name_sizes_by_their_units() {
        for (name, expected) in [("latency-4k", "in 4 KiB"), ("copy-16m", "copying 16 MiB")] {
            let title = find(name).unwrap().title;
            assert!(title.ends_with(expected), "{title}");
        }
    }
}
