//! Executable mappings of processes. A fork shares those of its parent, and everybody the files that all map: a process
//! with many mappings costs no more for forking often.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use model::BuildId;

/// A file as processes map it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct MappedFile {
    /// Path as the process sees it, `[vdso]`, or empty for anonymous memory.
    pub path: String,
    /// Build id, when the kernel reported it.
    pub build_id: Option<BuildId>,
}

/// An executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessMapping {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    pub file: Arc<MappedFile>,
}

/// The mappings of an image, in the order they were made: a later one hides an earlier one.
#[derive(Debug, Clone, Default)]
pub struct Mappings {
    /// The longest and oldest first; each is longer than the one after it.
    shared: Vec<Arc<Segment>>,
    /// Those after them.
    own: Vec<ProcessMapping>,
}

#[derive(Debug)]
struct Segment {
    in_order: Vec<ProcessMapping>,
    /// Rows of `in_order` by address.
    sorted: Vec<u32>,
}

/// So many are looked through one by one.
const OWN: usize = 32;

impl ProcessMapping {
    /// A build id that only one of two records tells makes no difference.
    fn place(&self, other: &Self) -> Ordering {
        let key = |m: &Self| (m.start, m.end, m.offset);
        key(self).cmp(&key(other)).then_with(|| self.file.path.cmp(&other.file.path))
    }
}

impl Mappings {
    /// Adds a mapping; false if it is there.
    pub fn push(&mut self, mapping: ProcessMapping) -> bool {
        let is_known = self.own.iter().any(|own| own.place(&mapping).is_eq())
            || self.shared.iter().any(|segment| segment.contains(&mapping));
        if is_known {
            return false;
        }
        self.own.push(mapping);
        if OWN <= self.own.len() {
            self.share();
        }
        true
    }

    /// The mappings of a child.
    pub(super) fn fork(&mut self) -> Self {
        self.share();
        Self { shared: self.shared.clone(), own: Vec::new() }
    }

    /// In the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = &ProcessMapping> {
        self.shared.iter().flat_map(|segment| &segment.in_order).chain(&self.own)
    }

    /// The number of mappings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.iter().map(|segment| segment.in_order.len()).sum::<usize>() + self.own.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.own.is_empty()
    }

    /// How many of them `seen` does not know by the segments that hold them; it knows them afterwards.
    pub(super) fn len_unseen(&self, seen: &mut HashSet<usize>) -> usize {
        let unseen = self.shared.iter().filter(|segment| seen.insert(Arc::as_ptr(segment).addr()));
        unseen.map(|segment| segment.in_order.len()).sum::<usize>() + self.own.len()
    }

    /// Each is copied at most once whenever its segment's length doubles.
    fn share(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let mut newest = std::mem::take(&mut self.own);
        while let Some(last) = self.shared.pop_if(|segment| segment.in_order.len() <= newest.len())
        {
            let mut older = match Arc::try_unwrap(last) {
                Ok(segment) => segment.in_order,
                Err(segment) => segment.in_order.clone(),
            };
            older.append(&mut newest);
            newest = older;
        }
        self.shared.push(Arc::new(Segment::new(newest)));
    }
}

impl FromIterator<ProcessMapping> for Mappings {
    fn from_iter<I: IntoIterator<Item = ProcessMapping>>(mappings: I) -> Self {
        let mut all = Self::default();
        mappings.into_iter().for_each(|mapping| {
            all.push(mapping);
        });
        all
    }
}

impl Segment {
    fn new(in_order: Vec<ProcessMapping>) -> Self {
        let mut sorted: Vec<u32> = (0..).take(in_order.len()).collect();
        sorted.sort_by(|a, b| in_order[*a as usize].place(&in_order[*b as usize]));
        Self { in_order, sorted }
    }

    fn contains(&self, mapping: &ProcessMapping) -> bool {
        self.sorted.binary_search_by(|row| self.in_order[*row as usize].place(mapping)).is_ok()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn mapping(start: u64) -> ProcessMapping {
        ProcessMapping { start, end: start + 1, offset: 0, file: Arc::default() }
    }

    fn starts(mappings: &Mappings) -> Vec<u64> {
        mappings.iter().map(|mapping| mapping.start).collect()
    }

    #[test]
    fn order_is_kept_and_none_is_there_twice() {
        let order: Vec<u64> = (0..1000).map(|n| n * 7919 % 1009).collect();
        let mut mappings: Mappings = order.iter().map(|start| mapping(*start)).collect();
        assert!(order.iter().all(|start| !mappings.push(mapping(*start))));
        assert_eq!((starts(&mappings), mappings.len()), (order, 1000));
    }

    #[test]
    fn forks_share_and_go_their_own_ways() {
        let mut parent: Mappings = (0..30_000).map(mapping).collect();
        let mut seen = HashSet::new();
        let alone = parent.len_unseen(&mut seen);
        let children: Vec<Mappings> = (0..1000)
            .map(|n| {
                let mut child = parent.fork();
                child.push(mapping(1_000_000 + n));
                parent.push(mapping(2_000_000 + n));
                child
            })
            .collect();
        assert_eq!(starts(&children[7])[30_000..].last(), Some(&1_000_007));
        assert_eq!(children[7].len(), 30_008);
        assert_eq!(parent.len(), 31_000);
        let more: usize = children.iter().map(|child| child.len_unseen(&mut seen)).sum();
        // Without sharing there would be 30 millions.
        assert!(more < alone / 2, "{more} copies");
    }
}
