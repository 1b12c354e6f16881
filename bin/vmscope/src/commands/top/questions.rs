//! When guests are queried for names: by themselves at most every 10 s, and a guest that doesn't answer ever more
//! seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::VmId;

/// A guest is not queried by itself again before this time.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// However often it did not answer, it is queried again after this time.
const ASK_AT_LATEST: Duration = Duration::from_secs(640);

/// What was queried, and when.
#[derive(Debug, Default)]
pub(crate) struct Questions(BTreeMap<VmId, LastQuery>);

#[derive(Debug, Clone, Copy)]
struct LastQuery {
    at: Instant,
    /// Time until the next query.
    wait: Duration,
}

impl Questions {
    /// Of these VMs, those whose guests may be queried now.
    pub(crate) fn due(&self, vms: impl Iterator<Item = VmId>, now: Instant) -> BTreeSet<VmId> {
        let may =
            |requested: &LastQuery| requested.wait <= now.saturating_duration_since(requested.at);
        vms.filter(|vm| self.0.get(vm).is_none_or(may)).collect()
    }

    /// Notes that they are queried now.
    pub(crate) fn requested(&mut self, vms: &BTreeSet<VmId>, now: Instant) {
        for vm in vms {
            self.0.entry(*vm).or_insert(LastQuery { at: now, wait: ASK_AGAIN }).at = now;
        }
    }

    /// What came of the last questions, which were put to `vms`.
    pub(crate) fn answered(&mut self, vms: &BTreeSet<VmId>, has_answered: impl Fn(VmId) -> bool) {
        for vm in vms {
            let Some(requested) = self.0.get_mut(vm) else { continue };
            requested.wait = match has_answered(*vm) {
                true => ASK_AGAIN,
                false => (requested.wait * 2).min(ASK_AT_LATEST),
            };
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_silent_guest_is_queried_ever_more_seldom_and_alone() {
        let [talks, silent] = [VmId(0), VmId(1)];
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut questions = Questions::default();
        let mut requested_at = Vec::new();
        for second in 0..200 {
            // The silent guest's time never has names, the other's lacks them at first.
            let unnamed = [talks, silent].into_iter().filter(|vm| *vm == silent || second == 0);
            let due = questions.due(unnamed, at(second));
            if !due.is_empty() {
                questions.requested(&due, at(second));
                questions.answered(&due, |vm| vm == talks);
                requested_at.push((second, due.len()));
            }
        }
        assert_eq!(requested_at, [(0, 2), (20, 1), (60, 1), (140, 1)]);
        questions.answered(&[silent].into(), |_| true);
        assert_eq!(questions.due([silent].into_iter(), at(151)), [silent].into());
    }
}
