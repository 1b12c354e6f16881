//! How much memory things may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are left; clones share them.
#[derive(Debug, Clone)]
pub struct Budget {
    left: Arc<AtomicUsize>,
    /// What it is a part of.
    whole: Option<Arc<Self>>,
}

impl Budget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)), whole: None }
    }

    /// A budget of its own whose bytes are this one's, too.
    #[must_use]
    pub fn part(&self, bytes: usize) -> Self {
        Self { whole: Some(Arc::new(self.clone())), ..Self::new(bytes) }
    }

    /// Takes bytes; false, and nothing is taken, if so many are not left.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let rest = |left: usize| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok();
        if taken && self.whole.as_ref().is_some_and(|whole| !whole.take(bytes)) {
            self.left.fetch_add(bytes, Ordering::Relaxed);
            return false;
        }
        taken
    }

    /// Gives back what was taken.
    pub fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        let own = self.left.load(Ordering::Relaxed);
        self.whole.as_ref().map_or(own, |whole| own.min(whole.left()))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn parts_are_limited_each_and_together() {
        let whole = Budget::new(10);
        let (one, other) = (whole.part(8), whole.part(8));
        assert!(!one.take(9));
        assert!(one.clone().take(6));
        assert!(!one.take(3));
        assert_eq!([one.left(), other.left()], [2, 4]);
        assert!(!other.take(5));
        assert!(other.take(4));
        assert_eq!([one.left(), other.left(), whole.left()], [0, 0, 0]);
        assert!(!one.take(1) && one.take(0));
        one.give_back(3);
        assert!(other.take(3));
        assert!(!one.take(1));
    }
}
