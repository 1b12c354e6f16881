//! Simple, the policy of S3's original: who misses most gets the best of what is left.

use super::{Choice, MemoryChoice, Part, Policy, Room};
use crate::topology::Topology;

/// Parts choose in the order of their misses: the place with the nearest memory, then the one with least to move.
#[derive(Debug, Clone, Copy, Default)]
pub struct Simple;

impl Policy for Simple {
    fn name(&self) -> &'static str {
        "simple"
    }

    fn place(&mut self, topology: &Topology, room: &Room, parts: &[Part]) -> Vec<Choice> {
        let mut choices: Vec<Choice> =
            parts.iter().map(|_| Choice::stay("it may not be moved")).collect();
        let mut order: Vec<usize> = (0..parts.len()).filter(|at| parts[*at].may_move).collect();
        order.sort_by(|a, b| {
            parts[*b].misses_per_s.total_cmp(&parts[*a].misses_per_s).then(a.cmp(b))
        });
        let mut room = room.clone();
        for (rank, at) in order.into_iter().enumerate() {
            let part = &parts[at];
            let Some(home) = best(topology, &room, part) else {
                choices[at] = part.homeless();
                continue;
            };
            let memory = room.nearest(topology, home, part);
            room.take(Some(home), part, &memory);
            let reason = format!("number {} by cache misses", rank + 1);
            choices[at] = Choice { home: Some(home), memory: MemoryChoice::Follow, rank, reason };
        }
        choices
    }
}

fn best(topology: &Topology, room: &Room, part: &Part) -> Option<usize> {
    let homes = (0..topology.len()).filter(|node| room.has_vcpus(*node, part));
    let cost = |home: &usize| {
        let memory = room.nearest(topology, *home, part);
        let far = |(node, bytes): (usize, &u64)| {
            u128::from(*bytes) * u128::from(topology.distance(*home, node))
        };
        let distance: u128 = memory.iter().enumerate().map(far).sum();
        let moved: u64 =
            memory.iter().zip(&part.memory).map(|(to, now)| to.saturating_sub(*now)).sum();
        let missing = part.bytes() - memory.iter().sum::<u64>();
        (missing, distance, moved, part.home != Some(*home), *home)
    };
    homes.min_by_key(cost)
}
