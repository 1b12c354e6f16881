//! What the VMs of one user may cost others. Any user of the host may run VMs, as many as it likes, whose guests never answer.
//! So limits are by the user that runs the VMM: how many of its guests are queried, how long they are waited for. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Guests of one user that are queried: each takes a thread and a connection.
pub(super) const MAX_QUERIED: usize = 256;

/// So many silent guests of one user are waited for as long as one is; more of them share that time.
const FULL_TIME_GUESTS: u32 = 16;

/// How long guests are waited for that were queried together.
///
/// ```text
///   queried   answer    answer                  the user's others are given up
///   |-------|---------|------ share ----------|               limit
///                                                             the wait ends
/// ```
/// The more guests of a user have not answered, the shorter is its share of the limit.
#[derive(Debug)]
pub(super) struct Patience {
    queried: Instant,
    limit: Duration,
    users: BTreeMap<u32, Waiting>,
}

/// The guests of one user that have not answered.
#[derive(Debug)]
struct Waiting {
    guests: u32,
    /// When the last one answered, or all were queried.
    since: Instant,
}

impl Patience {
    /// `users`: the user of each guest that was queried at `queried`.
    pub(super) fn new(users: impl Iterator<Item = u32>, queried: Instant, limit: Duration) -> Self {
        let mut patience = Self { queried, limit, users: BTreeMap::new() };
        for user in users {
            patience.users.entry(user).or_insert(Waiting { guests: 0, since: queried }).guests += 1;
        }
        patience
    }

    /// A guest of this user has answered, or failed to.
    pub(super) fn end_one(&mut self, user: u32, now: Instant) {
        if let Some(waiting) = self.users.get_mut(&user) {
            *waiting = Waiting { guests: waiting.guests.saturating_sub(1), since: now };
        }
    }

    /// How much longer any guest is waited for; zero: none is.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let ends = self.users.values().filter(|waiting| 0 < waiting.guests);
        let ends = ends.map(|waiting| self.end_of(waiting).saturating_duration_since(now));
        ends.max().unwrap_or_default()
    }

    /// Guests of this user that have not answered.
    pub(super) fn silent(&self, user: u32) -> u32 {
        self.users.get(&user).map_or(0, |waiting| waiting.guests)
    }

    fn end_of(&self, waiting: &Waiting) -> Instant {
        let share = self.limit / waiting.guests.max(FULL_TIME_GUESTS) * FULL_TIME_GUESTS;
        (self.queried + self.limit).min(waiting.since + share)
    }
}

/// In the order in which to ask: the first of each user, then the second of each, and so on. Those of one user stay in order.
pub(crate) fn in_turns<T>(all: Vec<T>, user_of: impl Fn(&T) -> u32) -> Vec<T> {
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    let turn = |one: T| {
        let turn = turns.entry(user_of(&one)).or_default();
        *turn += 1;
        (*turn, one)
    };
    let mut all: Vec<_> = all.into_iter().map(turn).collect();
    all.sort_by_key(|(turn, _)| *turn);
    all.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Guests by user, as `USER*NUMBER`; answers, as `USER@SECONDS`; until when any is waited for, in tenths of a second.
    fn check(guests: &str, answers: &str, until: u64) {
        let queried = Instant::now();
        let number = |text: &str| text.parse::<u32>().unwrap();
        let users = guests.split_whitespace().flat_map(|of_user| {
            let (user, n) = of_user.split_once('*').unwrap();
            std::iter::repeat_n(number(user), number(n) as usize)
        });
        let mut patience = Patience::new(users, queried, LIMIT);
        for answer in answers.split_whitespace() {
            let (user, second) = answer.split_once('@').unwrap();
            patience.end_one(number(user), queried + Duration::from_secs(number(second).into()));
        }
        let left = patience.left(queried).as_millis();
        assert_eq!(left / 100, until.into(), "{guests}; {answers}");
    }

    #[test]
    fn silent_guests_of_one_user_share_its_time() {
        check("", "", 0);
        check("0*1", "", 300);
        check("0*1", "0@3", 0);
        check("0*16", "", 300);
        check("7*400", "", 12);
        // The limit is one for all, however many answer.
        check("7*32", "7@1", 10 + 154);
        check("7*17", "7@29", 300);
    }

    #[test]
    fn a_user_with_many_silent_guests_costs_others_nothing() {
        let (queried, second) = (Instant::now(), Duration::from_secs(1));
        let users = || std::iter::repeat_n(7, 400).chain([0]);
        let mut patience = Patience::new(users(), queried, LIMIT);
        assert_eq!(patience.left(queried), LIMIT);
        assert_eq!([0, 7].map(|user| patience.silent(user)), [1, 400]);
        // The other user's guest has answered: only the crowd is left, whose time is over.
        patience.end_one(0, queried + 2 * second);
        assert_eq!(patience.left(queried + 2 * second), Duration::ZERO);
        // Strangers' answers change nothing.
        patience.end_one(8, queried + 2 * second);
        assert_eq!([0, 7, 8].map(|user| patience.silent(user)), [0, 400, 0]);
    }

    #[test]
    fn users_take_turns() {
        let vms = vec![(7, 'a'), (7, 'b'), (7, 'c'), (0, 'x'), (5, 'p'), (0, 'y')];
        let order: String = in_turns(vms, |vm| vm.0).iter().map(|vm| vm.1).collect();
        assert_eq!(order, "axpbyc");
    }
}
