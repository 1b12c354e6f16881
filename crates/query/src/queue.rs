//! Which query is answered next: a limited number of places, and a queue of queries that wait for one.
//!
//! A place that becomes free goes to the asker that has the fewest, and of that one's to the query that waits longest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Queries that wait, of all and of one asker; further ones are refused at once.
const MAX_WAITING: usize = 64;
const MAX_OF_ONE: usize = 16;
/// How long a query waits.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Queries that are answered, and those that wait.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Places of each asker.
    taken: HashMap<String, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    asker: String,
    turn: oneshot::Sender<Place>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    state: Arc<Mutex<State>>,
    asker: String,
}

impl Queue {
    pub(crate) fn new(places: usize) -> Self {
        let (taken, waiting) = (HashMap::new(), VecDeque::new());
        Self { state: Arc::new(Mutex::new(State { free: places, taken, waiting })) }
    }

    /// A place; `None`: too many wait, or it waited too long.
    pub(crate) async fn enter(&self, asker: &str) -> Option<Place> {
        let turn = self.wait(asker)?;
        tokio::time::timeout(LONGEST_WAIT, turn).await.ok()?.ok()
    }

    fn wait(&self, asker: &str) -> Option<oneshot::Receiver<Place>> {
        let (turn, waits) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            // Those that gave up have no place here any more.
            state.waiting.retain(|waiting| !waiting.turn.is_closed());
            let of_one = state.waiting.iter().filter(|waiting| waiting.asker == asker).count();
            if MAX_WAITING <= state.waiting.len() || MAX_OF_ONE <= of_one {
                return None;
            }
            state.waiting.push_back(Waiting { asker: asker.to_owned(), turn });
        }
        give_places(&self.state);
        Some(waits)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.state);
            state.free += 1;
            if let Some(taken) = state.taken.get_mut(&self.asker) {
                *taken -= 1;
                if *taken == 0 {
                    state.taken.remove(&self.asker);
                }
            }
        }
        give_places(&self.state);
    }
}

/// Gives free places to those that wait.
fn give_places(state: &Arc<Mutex<State>>) {
    loop {
        let Some(Waiting { asker, turn }) = lock(state).next() else { return };
        // If the query has given up, the place is dropped, which gives it to the next.
        drop(turn.send(Place { state: Arc::clone(state), asker }));
    }
}

impl State {
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.turn.is_closed());
        if self.free == 0 {
            return None;
        }
        let taken = |waiting: &Waiting| self.taken.get(&waiting.asker).copied().unwrap_or(0);
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| taken(waiting))?;
        let next = self.waiting.remove(at)?;
        self.free -= 1;
        *self.taken.entry(next.asker.clone()).or_default() += 1;
        Some(next)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod test {
    use super::*;

    fn has_place(turn: &mut oneshot::Receiver<Place>) -> Option<Place> {
        turn.try_recv().ok()
    }

    #[test]
    fn the_asker_with_fewest_places_is_next() {
        let queue = Queue::new(2);
        let mut many: Vec<_> = (0..5).map(|_| queue.wait("many").unwrap()).collect();
        let mut other = queue.wait("other").unwrap();
        let first = has_place(&mut many[0]).unwrap();
        let second = has_place(&mut many[1]).unwrap();
        assert!(has_place(&mut many[2]).is_none() && has_place(&mut other).is_none());
        drop(first);
        let of_other = has_place(&mut other).unwrap();
        assert!(has_place(&mut many[2]).is_none());
        drop(second);
        let third = has_place(&mut many[2]).unwrap();
        // A query that gave up is passed over.
        drop(many.remove(3));
        drop(of_other);
        assert!(has_place(&mut many[3]).is_some());
        drop(third);
        assert_eq!(lock(&queue.state).free, 2);
        assert!(lock(&queue.state).taken.is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = Queue::new(1);
        let _place = queue.wait("a").unwrap();
        let of_one: Vec<_> = (0..40).map_while(|_| queue.wait("a")).collect();
        assert_eq!(of_one.len(), MAX_OF_ONE);
        let names: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        let all: Vec<_> = names.iter().map_while(|name| queue.wait(name)).collect();
        assert_eq!(all.len(), MAX_WAITING - MAX_OF_ONE);
        drop(all);
        assert!(queue.wait("a").is_none() && queue.wait("b").is_some());
    }
}
