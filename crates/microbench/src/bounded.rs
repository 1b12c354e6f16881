//! Limits on what a machine may tell.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::results::Measurement;

/// Longer texts are cut.
const TEXT_CHARS: usize = 200;
/// Further notes are counted.
const NOTES: usize = 100;
/// All operations under all conditions that there are, and some.
const MEASUREMENTS: usize = 1 << 15;

/// A text of bounded length; what was cut away is an ellipsis.
pub(crate) fn text(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Notes for the reader, at most this many.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(into = "Vec<String>")]
pub struct Notes {
    kept: Vec<String>,
    more: usize,
}

impl Notes {
    /// Keeps it, unless it is there already or there are too many.
    pub fn add(&mut self, note: &str) {
        let note = text(note);
        if self.kept.contains(&note) {
            return;
        }
        if self.kept.len() < NOTES {
            self.kept.push(note);
        } else {
            self.more += 1;
        }
    }

    /// All of them; the last says how many there was no room for.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more notes", self.more));
        self.kept.iter().cloned().chain(more).collect()
    }
}

impl From<Notes> for Vec<String> {
    fn from(notes: Notes) -> Self {
        notes.all()
    }
}

/// One after the other: a file may have any number of them.
impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
            type Value = Notes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Notes, A::Error> {
                let mut notes = Notes::default();
                while let Some(note) = list.next_element::<String>()? {
                    notes.add(&note);
                }
                Ok(notes)
            }
        }

        deserializer.deserialize_seq(Each)
    }
}

impl<S: AsRef<str>> Extend<S> for Notes {
    fn extend<I: IntoIterator<Item = S>>(&mut self, notes: I) {
        notes.into_iter().for_each(|note| self.add(note.as_ref()));
    }
}

impl<S: AsRef<str>> FromIterator<S> for Notes {
    fn from_iter<I: IntoIterator<Item = S>>(notes: I) -> Self {
        let mut all = Self::default();
        all.extend(notes);
        all
    }
}

/// Outcomes in the order in which they came, one of an operation under a condition.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    all: Vec<Measurement>,
    places: BTreeMap<(String, Condition), usize>,
    refused: usize,
}

impl Outcomes {
    /// Keeps it in place of an earlier one that says less, unless there are too many.
    pub(crate) fn add(&mut self, new: Measurement) {
        let key = (new.operation.clone(), new.condition);
        if let Some(&place) = self.places.get(&key) {
            let old = &mut self.all[place];
            if old.outcome.gives_way_to(&new.outcome) {
                *old = new;
            }
        } else if self.all.len() < MEASUREMENTS {
            self.places.insert(key, self.all.len());
            self.all.push(new);
        } else {
            self.refused += 1;
        }
    }

    pub(crate) fn all(&self) -> &[Measurement] {
        &self.all
    }

    pub(crate) fn into_all(self) -> Vec<Measurement> {
        self.all
    }

    /// Says what there was no room for.
    pub(crate) fn note_refused(&self, notes: &mut Notes) {
        if 0 < self.refused {
            notes.add(&format!("{} results too many, left out", self.refused));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        assert_eq!(text(&"é".repeat(300)).chars().count(), TEXT_CHARS + 1);
        assert_eq!(text("é"), "é");
        let notes: Notes = (0..NOTES + 2).map(|n| n.to_string()).chain(["0".to_owned()]).collect();
        assert_eq!(notes.all().len(), NOTES + 1);
        assert_eq!(notes.all().last().map(String::as_str), Some("and 2 more notes"));
        let many = vec!["same"; 1000];
        let read: Notes = serde_json::from_str(&serde_json::to_string(&many).unwrap()).unwrap();
        assert_eq!(read.all(), ["same"]);
    }
}
