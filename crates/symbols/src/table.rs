//! The functions of one file, by file offset.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Most functions that are kept of one file.
const MAX_FUNCTIONS: usize = 1 << 20;

/// Longer names are cut.
const MAX_NAME_BYTES: usize = 8 << 10;

/// Most bytes of names that are kept of one file.
const MAX_TABLE_BYTES: usize = 256 << 20;

/// A function of unknown size reaches to the next one, but not further than this.
pub(crate) const MAX_GUESSED_SIZE: u64 = 4096;

/// Steps back that look for a function which encloses others.
const MAX_ENCLOSING: usize = 256;

/// A function of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// File offset of its first byte.
    pub offset: u64,
    /// Bytes; 0 if unknown.
    pub size: u64,
    /// Its name, as in the file.
    pub name: String,
}

/// The functions of one file, ready for look-ups. Takes anything, keeps what makes sense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FunctionTable {
    /// By offset; of those at one offset, the preferred one is last.
    functions: Vec<Function>,
    /// For each function, the first offset after it.
    ends: Vec<u64>,
    /// For each function, the highest end up to it.
    reach: Vec<u64>,
}

impl FunctionTable {
    /// Builds the table. What exceeds the limits is left out.
    #[must_use]
    pub fn new(functions: impl IntoIterator<Item = Function>) -> Self {
        let mut bytes = 0_usize;
        let mut kept: Vec<Function> = functions
            .into_iter()
            .filter(|function| !function.name.is_empty())
            .take(MAX_FUNCTIONS)
            .map(cut_name)
            .take_while(|function| {
                bytes += function.name.len();
                bytes <= MAX_TABLE_BYTES
            })
            .collect();
        kept.sort_by(|a, b| preference(a).cmp(&preference(b)));
        // Of several names for the same bytes only the preferred one is ever found.
        kept.dedup_by(|later, earlier| {
            let same_size = later.size == earlier.size || earlier.size == 0;
            let hidden = later.offset == earlier.offset && same_size;
            if hidden {
                std::mem::swap(later, earlier);
            }
            hidden
        });
        let ends = ends(&kept);
        let reach = ends
            .iter()
            .scan(0, |highest: &mut u64, end| {
                *highest = (*highest).max(*end);
                Some(*highest)
            })
            .collect();
        Self { functions: kept, ends, reach }
    }

    /// The function that holds the byte at `offset`: the innermost one if functions overlap.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<&Function> {
        self.row(offset).map(|row| &self.functions[row])
    }

    fn row(&self, offset: u64) -> Option<usize> {
        let after = self.functions.partition_point(|function| function.offset <= offset);
        (0..after)
            .rev()
            .take(MAX_ENCLOSING)
            .take_while(|row| offset < self.reach[*row])
            .find(|row| offset < self.ends[*row])
    }

    /// What it takes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names: usize = self.functions.iter().map(|function| function.name.len()).sum();
        names + self.functions.len() * (size_of::<Function>() + 2 * size_of::<u64>())
    }

    /// Only the functions that hold the bytes at `offsets`.
    #[must_use]
    pub fn around(&self, offsets: impl IntoIterator<Item = u64>) -> Self {
        let rows: BTreeSet<usize> =
            offsets.into_iter().filter_map(|offset| self.row(offset)).collect();
        // A function of unknown size ends where the next one began.
        let sized = |row: usize| {
            let function = &self.functions[row];
            Function { size: self.ends[row] - function.offset, ..function.clone() }
        };
        Self::new(rows.into_iter().map(sized))
    }

    /// All functions, by offset.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }
}

/// Order of the table. The longest code is preferred (no size is the shortest), then the plainest name:
/// fewest leading underscores, shortest, first in the alphabet (`read` rather than `__libc_read`). The
/// choice depends on nothing but the symbols, so that host and guest make the same one.
fn preference(function: &Function) -> (u64, u64, Reverse<(usize, usize, &str)>) {
    let name = function.name.as_str();
    let underscores = name.len() - name.trim_start_matches('_').len();
    (function.offset, function.size, Reverse((underscores, name.len(), name)))
}

fn cut_name(mut function: Function) -> Function {
    if MAX_NAME_BYTES < function.name.len() {
        let is_boundary = |at: &usize| function.name.is_char_boundary(*at);
        let end = (0..=MAX_NAME_BYTES).rev().find(is_boundary).unwrap_or(0);
        function.name.truncate(end);
    }
    function
}

fn ends(functions: &[Function]) -> Vec<u64> {
    let mut next_offset = u64::MAX;
    let mut ends: Vec<u64> = functions
        .iter()
        .enumerate()
        .rev()
        .map(|(row, function)| {
            let end = match function.size {
                0 => function.offset.saturating_add(guessed_size(&function.name)).min(next_offset),
                size => function.offset.saturating_add(size),
            };
            let is_first_at_offset = row == 0 || functions[row - 1].offset < function.offset;
            if is_first_at_offset {
                next_offset = function.offset;
            }
            end
        })
        .collect();
    ends.reverse();
    ends
}

/// `_init` and `_fini` are stubs of at most 32 bytes whose size is never given. The procedure linkage
/// table lies right behind `_init`: it must not be taken for it.
fn guessed_size(name: &str) -> u64 {
    if matches!(name, "_init" | "_fini") { 32 } else { MAX_GUESSED_SIZE }
}

#[cfg(test)]
mod test {
    use super::*;

    fn table(rows: &[(u64, u64, &str)]) -> FunctionTable {
        FunctionTable::new(rows.iter().map(|(offset, size, name)| Function {
            offset: *offset,
            size: *size,
            name: (*name).to_owned(),
        }))
    }

    fn check(rows: &[(u64, u64, &str)], expected: &[(u64, &str)]) {
        let table = table(rows);
        for (offset, name) in expected {
            let found = table.find(*offset).map_or("-", |function| function.name.as_str());
            assert_eq!(found, *name, "at {offset} of {rows:?}");
        }
    }

    #[test]
    fn an_address_belongs_to_the_function_that_covers_it() {
        check(
            &[(200, 10, "b"), (100, 50, "a")],
            &[(99, "-"), (100, "a"), (149, "a"), (150, "-"), (209, "b"), (210, "-")],
        );
    }

    #[test]
    fn an_unknown_size_reaches_to_the_next_function() {
        check(
            &[(100, 0, "a"), (200, 10, "b"), (300, 0, "last")],
            &[(199, "a"), (205, "b"), (250, "-"), (300, "last"), (4395, "last"), (4396, "-")],
        );
        check(&[(0, 0, "_init"), (500, 5, "main")], &[(31, "_init"), (32, "-"), (500, "main")]);
        check(&[(10, 0, "a"), (10, 0, "bb"), (20, 1, "c")], &[(10, "a"), (19, "a"), (21, "-")]);
    }

    #[test]
    fn what_is_around_offsets_stays() {
        let rows = [(100, 0, "a"), (200, 10, "b"), (300, 100, "outer"), (320, 10, "inner")];
        let some = table(&rows).around([150, 199, 325]);
        let found = |offset| some.find(offset).map_or("-", |function| function.name.as_str());
        assert_eq!([100, 150, 199].map(found), ["a", "a", "a"]);
        assert_eq!([200, 205, 310, 325, 330].map(found), ["-", "-", "-", "inner", "-"]);
        assert!(some.bytes() < table(&rows).bytes());
    }

    #[test]
    fn overlapping_functions_give_the_innermost() {
        check(
            &[(100, 100, "outer"), (120, 10, "inner"), (150, 10, "other")],
            &[(110, "outer"), (125, "inner"), (140, "outer"), (155, "other"), (199, "outer")],
        );
        check(&[(100, 100, "long"), (100, 10, "short")], &[(105, "long"), (150, "long")]);
    }

    #[test]
    fn one_of_several_names_is_chosen_whatever_their_order() {
        let names = [(8, 4, "__read"), (8, 4, "_re"), (8, 4, "read"), (8, 4, "reae"), (8, 0, "r")];
        check(&names, &[(8, "read"), (11, "read"), (12, "-")]);
        let mut backwards = names;
        backwards.reverse();
        check(&backwards, &[(8, "read"), (12, "-")]);
        assert_eq!(table(&names).functions().len(), 1);
    }

    #[test]
    fn hostile_tables_are_bounded() {
        check(&[(u64::MAX, u64::MAX, "end"), (1, u64::MAX, "all")], &[(5, "all"), (0, "-")]);
        check(&[(0, 1, "")], &[(0, "-")]);
        let long = "ä".repeat(MAX_NAME_BYTES);
        let cut = table(&[(0, 1, &long)]).functions()[0].name.len();
        assert!((MAX_NAME_BYTES - 3..=MAX_NAME_BYTES).contains(&cut));
        // A million functions that all end before the wanted byte, under one that reaches over all.
        let many = (0..1_u64 << 20).map(|n| Function { offset: n, size: 1, name: "f".into() });
        let table = FunctionTable::new(many);
        assert_eq!(table.find((1 << 20) + 5), None);
        assert_eq!(table.functions().len(), MAX_FUNCTIONS);
    }
}
