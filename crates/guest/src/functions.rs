//! A module's functions, checked, and the search for the one at an offset.

use api::guest::{MAX_SYMBOLS, ModuleSymbols};

use crate::check::clean;

/// Longest name that is kept: C++ has some of several thousand characters.
const MAX_NAME_CHARS: usize = 4096;
/// Functions before the nearest that may reach over it (a function within another).
const MAX_NESTED: usize = 16;

/// The functions of one module, by file offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Functions {
    entries: Vec<Function>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    offset: u64,
    size: u64,
    name: String,
}

/// Checks what a guest said about a module's functions.
///
/// # Errors
/// One clause, safe to print: why the guest could not read them.
pub fn functions(answer: ModuleSymbols) -> Result<Functions, String> {
    if let Some(problem) = answer.problem {
        return Err(clean(&problem, 300));
    }
    let mut entries: Vec<Function> = answer
        .symbols
        .into_iter()
        .take(MAX_SYMBOLS)
        .filter(|symbol| !symbol.name.is_empty())
        .filter(|symbol| symbol.offset.checked_add(symbol.size).is_some())
        .map(|symbol| Function {
            offset: symbol.offset,
            size: symbol.size,
            name: clean(&symbol.name, MAX_NAME_CHARS),
        })
        .collect();
    // Of several names for one function the last one is taken: the longest code, then the fewest
    // underscores and characters (`memcpy`, not `__memcpy_avx_unaligned`), then the alphabet.
    entries.sort_by(|a, b| {
        let rank = |function: &Function| {
            let underscores = function.name.len() - function.name.trim_start_matches('_').len();
            (function.size, std::cmp::Reverse((underscores, function.name.len())))
        };
        a.offset.cmp(&b.offset).then(rank(a).cmp(&rank(b))).then(b.name.cmp(&a.name))
    });
    entries.reverse();
    entries.dedup_by(|later, kept| later.offset == kept.offset);
    entries.reverse();
    Ok(Functions { entries })
}

impl Functions {
    /// All of them, by offset.
    #[must_use]
    pub fn into_symbols(self) -> Vec<api::guest::FunctionSymbol> {
        let symbol =
            |Function { offset, size, name }| api::guest::FunctionSymbol { offset, size, name };
        self.entries.into_iter().map(symbol).collect()
    }

    /// The function, mangled as in the file, whose code holds the file offset.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<&str> {
        let after = self.entries.partition_point(|function| function.offset <= offset);
        let nearest = after.checked_sub(1)?;
        let first = nearest.saturating_sub(MAX_NESTED);
        let covers = |function: &&Function| offset - function.offset < function.size;
        if let Some(function) = self.entries[first..after].iter().rev().find(covers) {
            return Some(&function.name);
        }
        // Hand-written assembly often has no size: it reaches to the next function.
        let nearest = &self.entries[nearest];
        (nearest.size == 0).then_some(nearest.name.as_str())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the module is stripped bare.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them: file offset, bytes (0 if unknown), name; by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        self.entries.iter().map(|function| (function.offset, function.size, &*function.name))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use api::guest::FunctionSymbol;

    fn of(symbols: &[(u64, u64, &str)]) -> Functions {
        let symbol = |(offset, size, name): &(u64, u64, &str)| FunctionSymbol {
            offset: *offset,
            size: *size,
            name: (*name).into(),
        };
        let symbols = symbols.iter().map(symbol).collect();
        functions(ModuleSymbols { module: 0, symbols, problem: None }).unwrap()
    }

    fn check(symbols: &[(u64, u64, &str)], expected: &[(u64, Option<&str>)]) {
        let functions = of(symbols);
        for (offset, name) in expected {
            assert_eq!(functions.at(*offset), *name, "at {offset:#x}");
        }
    }

    #[test]
    fn an_offset_finds_the_function_that_covers_it() {
        check(
            &[(0x30, 0, "asm"), (0x10, 0x10, "one"), (0x50, 8, "two")],
            &[
                (0xf, None),
                (0x10, Some("one")),
                (0x1f, Some("one")),
                (0x20, None),
                (0x30, Some("asm")),
                (0x4f, Some("asm")),
                (0x57, Some("two")),
                (0x58, None),
                (u64::MAX, None),
            ],
        );
        check(&[], &[(0, None)]);
    }

    #[test]
    fn a_function_within_another_is_found_and_the_outer_one_after_it() {
        check(
            &[(0x10, 0x100, "outer"), (0x20, 0x10, "inner")],
            &[(0x18, Some("outer")), (0x28, Some("inner")), (0x38, Some("outer"))],
        );
    }

    #[test]
    fn of_aliases_the_plainest_name_is_taken() {
        check(
            &[(0x10, 8, "__memcpy_avx"), (0x10, 8, "memcpy"), (0x10, 8, "memmove"), (0x10, 0, "a")],
            &[(0x12, Some("memcpy"))],
        );
    }

    #[test]
    fn nonsense_is_left_out_and_names_are_cleaned() {
        let functions = of(&[(u64::MAX, 5, "wraps"), (5, 1, ""), (6, 1, "a\nb")]);
        assert_eq!(functions.iter().collect::<Vec<_>>(), [(6, 1, "a\\u{a}b")]);
        let problem = Some("no\nfile".to_owned());
        let refused = ModuleSymbols { module: 0, symbols: Vec::new(), problem };
        assert_eq!(super::functions(refused), Err("no\\u{a}file".to_owned()));
    }
}
