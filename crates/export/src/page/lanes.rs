//! What `timeline.js` draws: lanes of pieces as JSON.
//!
//! A lane's pieces are one array of numbers, in which a piece is
//!
//! ```text
//!  length, kind, word                               exactly this
//!  length, -n, n times (kind, thousandths, word)    a mixture of n, too short to tell apart
//! ```
//!
//! with lengths in ns: pieces touch, so a lane's begin and these say it all. Kinds and words are indices into lists; word
//! -1: nothing to add.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Words at most, of all lanes.
const MAX_WORDS: usize = 50_000;

/// Causes and names, each once.
#[derive(Debug, Default)]
pub(crate) struct Words {
    list: Vec<String>,
    ids: HashMap<String, usize>,
}

/// A part of a piece: its kind, its time, its word.
pub(crate) type Part = (usize, u64, Option<usize>);

impl Words {
    /// `None`: there are too many.
    pub(crate) fn id(&mut self, word: String) -> Option<usize> {
        if let Some(id) = self.ids.get(&word) {
            return Some(*id);
        }
        if self.list.len() == MAX_WORDS {
            return None;
        }
        self.list.push(word.clone());
        self.ids.insert(word, self.list.len() - 1);
        Some(self.list.len() - 1)
    }
}

/// The component's data. Kinds have a name and a style.
pub(crate) fn data(kinds: &[(&str, &str)], runs: Vec<Value>, words: Words) -> Value {
    json!({ "doings": kinds, "runs": runs, "words": words.list })
}

/// Appends a piece's numbers.
pub(crate) fn push_piece(row: &mut Vec<Value>, length_ns: u64, parts: &[Part]) {
    let id = |word: Option<usize>| word.map_or(json!(-1), |word| json!(word));
    row.push(json!(length_ns));
    if let [(kind, _, word)] = *parts {
        row.extend([json!(kind), id(word)]);
        return;
    }
    let whole: u64 = parts.iter().map(|(_, ns, _)| ns).sum();
    row.push(json!(-i64::try_from(parts.len()).unwrap_or(0)));
    for (kind, ns, word) in parts {
        row.extend([json!(kind), json!(thousandths(*ns, whole)), id(*word)]);
    }
}

fn thousandths(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 1_000 + u128::from(whole) / 2) / u128::from(whole.max(1))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pieces_are_exact_or_mixtures() {
        let mut row = Vec::new();
        push_piece(&mut row, 7, &[(2, 7, None)]);
        push_piece(&mut row, 3, &[(0, 1, Some(5)), (1, 2, None)]);
        assert_eq!(Value::from(row), json!([7, 2, -1, 3, -2, 0, 333, 5, 1, 667, -1]));
    }

    #[test]
    fn words_are_kept_once() {
        let mut words = Words::default();
        let ids = ["a", "b", "a"].map(|word| words.id(word.to_owned()));
        assert_eq!(ids, [Some(0), Some(1), Some(0)]);
        assert_eq!(words.list, ["a", "b"]);
    }
}
