//! A module's functions, checked.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use api::guest::{FunctionSymbol, MAX_SYMBOLS, ModuleSymbols};

use crate::check::clean;

/// Longest name that is kept: C++ has some of several thousand characters.
const MAX_NAME_CHARS: usize = 4096;

/// Checks what a guest said about a module's functions. Looking one up is `symbols::FunctionTable`'s.
///
/// # Errors
/// One clause, safe to print: why the guest could not read them.
pub fn functions(answer: ModuleSymbols) -> Result<Vec<FunctionSymbol>, String> {
    if let Some(problem) = answer.problem {
        return Err(clean(&problem, 300));
    }
    let checked = answer
        .symbols
        .into_iter()
        .take(MAX_SYMBOLS)
        .filter(|symbol| !symbol.name.is_empty())
        .filter(|symbol| symbol.offset.checked_add(symbol.size).is_some())
        .map(|symbol| FunctionSymbol { name: clean(&symbol.name, MAX_NAME_CHARS), ..symbol })
        .collect();
    Ok(checked)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn nonsense_is_left_out_and_names_are_cleaned() {
        let symbol = |(offset, size, name): (u64, u64, &str)| FunctionSymbol {
            offset,
            size,
            name: name.to_owned(),
        };
        let symbols = [(u64::MAX, 5, "wraps"), (5, 1, ""), (6, 1, "a\nb")].map(symbol).to_vec();
        let answer = ModuleSymbols { symbols, ..ModuleSymbols::default() };
        assert_eq!(functions(answer), Ok(vec![symbol((6, 1, "a\\u{a}b"))]));
        let problem = Some("no\nfile".to_owned());
        let refused = ModuleSymbols { problem, ..ModuleSymbols::default() };
        assert_eq!(functions(refused), Err("no\\u{a}file".to_owned()));
    }
}
