//! When workers stop asking.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::VmId;

/// Workers wait here for the end of the collection, or of their VM.
#[derive(Debug, Default)]
pub(super) struct End {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct EndState {
    pub(super) reached: Option<Instant>,
    /// How long guests were waited for before anything was sampled.
    pub(super) waited: Duration,
    pub(super) gone: BTreeSet<VmId>,
}

/// Why a worker goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// It has waited long enough.
    Time,
    /// Its VM has ended: its channel may lead to another one by now.
    VmGone,
    /// The collection has ended.
    End,
}

impl End {
    /// Waits for the end, that of `vm`, or `limit`.
    pub(super) fn wait(&self, vm: VmId, limit: Duration) -> Woken {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = |state: &mut EndState| state.reached.is_none() && !state.gone.contains(&vm);
        let waited = self.changed.wait_timeout_while(state, limit, going_on);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match (state.gone.contains(&vm), state.reached.is_some()) {
            (true, _) => Woken::VmGone,
            (false, true) => Woken::End,
            (false, false) => Woken::Time,
        }
    }

    pub(super) fn is_gone(&self, vm: VmId) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).gone.contains(&vm)
    }

    /// How long guests have been waited for, before and after sampling.
    pub(super) fn waited(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waited + state.reached.map_or(Duration::ZERO, |reached| reached.elapsed())
    }

    /// The same, if the collection has ended.
    pub(super) fn waited_after(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reached.map_or(Duration::ZERO, |reached| state.waited + reached.elapsed())
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut EndState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_end_of_a_vm_and_of_all_wake_workers() {
        let end = End::default();
        let moment = Duration::from_millis(1);
        assert_eq!(end.wait(VmId(0), moment), Woken::Time);
        end.change(|state| state.gone.extend([VmId(1)]));
        assert_eq!(end.wait(VmId(0), moment), Woken::Time);
        end.change(|state| state.reached = Some(Instant::now()));
        let hour = Duration::from_secs(3600);
        assert_eq!([0, 1].map(|vm| end.wait(VmId(vm), hour)), [Woken::End, Woken::VmGone]);
    }
}
