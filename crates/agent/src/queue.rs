//! Windows that wait to be finished: few, and the oldest makes room.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded queue between two threads.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// One was taken, and the next one not requested yet.
    is_at_work: bool,
    is_closed: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        let state = State { waiting: VecDeque::new(), is_at_work: false, is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds one, and returns those that had to make room for it: the oldest of more than `most`.
    pub(crate) fn push(&self, item: T, most: usize) -> Vec<T> {
        let mut state = self.state();
        state.waiting.push_back(item);
        let excess = state.waiting.len().saturating_sub(most.max(1));
        let removed = state.waiting.drain(..excess).collect();
        self.changed.notify_all();
        removed
    }

    /// The oldest, as soon as there is one. `None`: there won't be another one.
    pub(crate) fn pop(&self) -> Option<T> {
        let is_idle = |state: &mut State<T>| state.waiting.is_empty() && !state.is_closed;
        let mut state = self.state();
        state.is_at_work = false;
        let waited = self.changed.wait_while(state, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_at_work = !state.waiting.is_empty();
        state.waiting.pop_front()
    }

    /// No producer is left.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Whether no producer is left.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Whether one that was taken is still being worked on.
    pub(crate) fn is_at_work(&self) -> bool {
        self.state().is_at_work
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let queue = Queue::new();
        assert_eq!([1, 2, 3].map(|n| queue.push(n, 2)), [vec![], vec![], vec![1]]);
        assert_eq!(queue.push(4, 1), [2, 3]);
        assert_eq!(queue.len(), 1);
        queue.close();
        assert!(!queue.is_at_work());
        assert_eq!((queue.pop(), queue.is_at_work()), (Some(4), true));
        assert_eq!((queue.pop(), queue.is_at_work()), (None, false));
    }
}
