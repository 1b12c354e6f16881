//! Look-ups by time and by address, bounded whatever a guest claims.

use std::hash::Hash;

use model::{HostNs, ImageId, Mapping, ModuleId};
use rustc_hash::FxHashMap;

/// How many entries a look-up examines at most. Honest tables overlap at an exec or not at all; a
/// lying guest can make its own samples unresolved, but not the look-up slow.
const PROBES: usize = 16;

/// Things that existed for a time, found by key and time.
#[derive(Debug)]
pub struct Lifetimes<K, T> {
    by_key: FxHashMap<K, Vec<Lifetime<T>>>,
}

#[derive(Debug, Clone, Copy)]
struct Lifetime<T> {
    start: u64,
    end: u64,
    what: T,
}

impl<K: Hash + Eq, T: Copy> Lifetimes<K, T> {
    /// From `(key, start, end, what)`; an open end is `None`.
    pub fn new(entries: impl Iterator<Item = (K, Option<HostNs>, Option<HostNs>, T)>) -> Self {
        let mut by_key: FxHashMap<K, Vec<Lifetime<T>>> = FxHashMap::default();
        for (key, start, end, what) in entries {
            let (start, end) = (start.map_or(0, |t| t.0), end.map_or(u64::MAX, |t| t.0));
            by_key.entry(key).or_default().push(Lifetime { start, end, what });
        }
        for list in by_key.values_mut() {
            list.sort_by_key(|l| l.start);
        }
        Self { by_key }
    }

    /// What `key` meant at `time`: of those that cover it the latest to start, else the nearest that
    /// misses by at most `slack_ns`.
    pub fn at(&self, key: &K, time: HostNs, slack_ns: u64) -> Option<T> {
        let list = self.by_key.get(key)?;
        let later = list.partition_point(|l| l.start <= time.0);
        let before = &list[later.saturating_sub(PROBES)..later];
        if let Some(covering) = before.iter().rev().find(|l| time.0 <= l.end) {
            return Some(covering.what);
        }
        let missed_end = before.iter().map(|l| (time.0 - l.end, l.what));
        let missed_start = list.get(later).map(|l| (l.start - time.0, l.what));
        let nearest = missed_end.chain(missed_start).min_by_key(|(miss, _)| *miss)?;
        (nearest.0 <= slack_ns).then_some(nearest.1)
    }
}

/// The executable mappings of all images.
#[derive(Debug)]
pub(crate) struct Spaces {
    spans: Vec<Span>,
    /// Where each image's spans begin in `spans`; one more entry than images.
    begin: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    offset: u64,
    module: ModuleId,
}

impl Spaces {
    pub(crate) fn new(n_images: usize, mappings: &[Mapping]) -> Self {
        let mut sorted: Vec<&Mapping> =
            mappings.iter().filter(|m| m.image.index() < n_images && m.start < m.end).collect();
        sorted.sort_by_key(|m| (m.image, m.start));
        let begin = (0..=n_images)
            .map(|image| sorted.partition_point(|m| m.image.index() < image))
            .collect();
        let span =
            |m: &Mapping| Span { start: m.start, end: m.end, offset: m.offset, module: m.module };
        Self { spans: sorted.into_iter().map(span).collect(), begin }
    }

    /// Whether the image has any mapping.
    pub(crate) fn knows(&self, image: ImageId) -> bool {
        !self.of(image).is_empty()
    }

    /// The module at `ip` and the offset in it; the innermost of overlapping mappings.
    pub(crate) fn find(&self, image: ImageId, ip: u64) -> Option<(ModuleId, u64)> {
        let spans = self.of(image);
        let after = spans.partition_point(|s| s.start <= ip);
        let span = spans[after.saturating_sub(PROBES)..after].iter().rev().find(|s| ip < s.end)?;
        Some((span.module, span.offset.wrapping_add(ip - span.start)))
    }

    fn of(&self, image: ImageId) -> &[Span] {
        match (self.begin.get(image.index()), self.begin.get(image.index() + 1)) {
            (Some(from), Some(to)) => &self.spans[*from..*to],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// `lives`: one letter per life, drawn over the time axis; spaces are gaps.
    fn check_time(lives: &[&str], slack: u64, expected: &str) {
        let entries = lives.iter().map(|line| {
            let start = line.find(|c| c != ' ').unwrap();
            let name = line.trim().chars().next().unwrap();
            let (start, end) = (start as u64, line.len() as u64 - 1);
            ((), (start > 0).then_some(HostNs(start)), Some(HostNs(end)), name)
        });
        let lifetimes = Lifetimes::new(entries);
        let found: String = (0..expected.len() as u64)
            .map(|t| lifetimes.at(&(), HostNs(t), slack).unwrap_or('.'))
            .collect();
        assert_eq!(found, expected, "{lives:?} slack {slack}");
    }

    #[test]
    fn lifetimes() {
        check_time(&["  aaa", "       bbb"], 0, "..aaa..bbb..");
        check_time(&["  aaa", "       bbb"], 1, ".aaaaabbbbb.");
        check_time(&["aaaaaaaa", "   bb"], 0, "aaabbaaa.");
        check_time(&["aaaa", "   bbbb"], 9, "aaabbbbbb");
    }

    #[test]
    fn mappings() {
        let mapping = |image, start, end, offset, module| Mapping {
            image: ImageId(image),
            start,
            end,
            offset,
            module: ModuleId(module),
        };
        let spaces = Spaces::new(
            2,
            &[
                mapping(1, 100, 200, 0x10, 0),
                mapping(1, 120, 130, 0, 1),
                mapping(0, 100, 101, 0, 2),
                mapping(7, 0, 9, 0, 3),
            ],
        );
        let find = |image, ip| spaces.find(ImageId(image), ip).map(|(m, o)| (m.0, o));
        assert_eq!(find(1, 100), Some((0, 0x10)));
        assert_eq!(find(1, 125), Some((1, 5)));
        assert_eq!(find(1, 199), Some((0, 0x10 + 99)));
        assert_eq!(find(1, 200), None);
        assert_eq!(find(0, 100), Some((2, 0)));
        assert_eq!(find(0, 99), None);
        assert_eq!(find(7, 1), None);
        assert!(!spaces.knows(ImageId(7)) && spaces.knows(ImageId(0)));
    }
}
