//! DINO (Blagodurov and others, USENIX ATC 2011): memory-intensive parts are kept apart, and memory follows vCPUs.

use std::collections::BTreeMap;

use super::{Choice, MemoryChoice, Part, Policy, Room};
use crate::topology::Topology;

/// From here on a part is a devil, in misses per 10,000 instructions.
const DEVIL: f64 = 15.0;
/// And a super-devil.
const SUPER_DEVIL: f64 = 500.0;
/// A class changes by what this many samples say.
const SAMPLES: usize = 10;
/// So many of them must be of another class.
const OUTSIDE: usize = 5;
/// And their mean so far from what the class was given for.
const FAR: f64 = 30.0;

/// Sorts parts into three classes by how often they miss, and deals each class out over the nodes to and fro, so that
/// the heaviest are apart. Parts that already hold a place of their class keep it. That place is where a part's vCPUs are,
/// or where its memory is, whichever has all parts together move less memory.
#[derive(Debug, Clone, Default)]
pub struct Dino {
    /// The signature by which a part's class was decided.
    decided: BTreeMap<(u32, usize), f64>,
}

/// What a part does to others on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Little.
    Turtle,
    /// It uses the shared cache and memory.
    Devil,
    /// It does hardly anything else.
    SuperDevil,
}

impl Class {
    /// The class of a signature, in misses per 10,000 instructions.
    #[must_use]
    pub fn from_signature(signature: f64) -> Self {
        match signature {
            s if s < DEVIL => Self::Turtle,
            s if s < SUPER_DEVIL => Self::Devil,
            _ => Self::SuperDevil,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Turtle => "turtle",
            Self::Devil => "devil",
            Self::SuperDevil => "super-devil",
        }
    }
}

/// Of parts in one group any can have the place of any other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    class: Class,
    vcpus: usize,
    /// The nodes that its parts may be on.
    homes: Vec<bool>,
}

/// The node that a part has already.
type Held = fn(&Part) -> Option<usize>;

/// By its vCPUs, and by its memory.
const HELD: [Held; 2] = [|part| part.home, most_memory];

impl Policy for Dino {
    fn name(&self) -> &'static str {
        "dino"
    }

    fn place(&mut self, topology: &Topology, room: &Room, parts: &[Part]) -> Vec<Choice> {
        let is_known = |part: &&Part| part.may_move && !part.signatures.is_empty();
        let mut room = room.clone();
        for part in parts.iter().filter(|part| part.may_move && part.signatures.is_empty()) {
            room.take(part.home, part, &part.memory);
        }
        self.decide(parts.iter().filter(is_known));
        let class = |part: &Part| self.class(part);
        let mut order: Vec<usize> = (0..parts.len()).filter(|at| is_known(&&parts[*at])).collect();
        order.sort_by_key(|at| {
            let part = &parts[*at];
            // Of equal ones those that can go to few nodes choose first.
            let choice = homes(part).into_iter().filter(|may| *may).count();
            (std::cmp::Reverse((class(part), part.vcpus)), choice, *at)
        });
        let sorted: Vec<&Part> = order.iter().map(|at| &parts[*at]).collect();
        let group =
            |part: &&Part| Group { class: class(part), vcpus: part.vcpus, homes: homes(part) };
        let groups: Vec<Group> = sorted.iter().map(group).collect();
        let homes = cheapest(topology, &room, &sorted, &groups);
        let mut choices: Vec<Choice> =
            parts.iter().map(|_| Choice::stay("its instructions are not counted")).collect();
        for (rank, ((at, home), group)) in order.iter().zip(homes).zip(&groups).enumerate() {
            let of_its_class = groups.iter().filter(|other| other.class == group.class).count();
            let reason = format!("{} of {of_its_class}", group.class.name());
            choices[*at] = match home {
                Some(_) => Choice { home, memory: MemoryChoice::Follow, rank, reason },
                None => parts[*at].homeless(),
            };
        }
        choices
    }
}

impl Dino {
    /// Keeps or changes the signatures by which classes are decided, and forgets parts that are gone.
    fn decide<'a>(&mut self, parts: impl Iterator<Item = &'a Part>) {
        let mut before = std::mem::take(&mut self.decided);
        for part in parts {
            let key = (part.vm, part.number);
            let signature = match before.remove(&key) {
                Some(old) => changed(old, &part.signatures).unwrap_or(old),
                None => replayed(&part.signatures),
            };
            self.decided.insert(key, signature);
        }
    }

    fn class(&self, part: &Part) -> Class {
        Class::from_signature(
            self.decided.get(&(part.vm, part.number)).copied().unwrap_or_default(),
        )
    }
}

/// What a class follows from, of a part that is new: its first sample, and the changes since.
fn replayed(signatures: &[f64]) -> f64 {
    let first = signatures.first().copied().unwrap_or_default();
    (2..=signatures.len()).fold(first, |old, n| changed(old, &signatures[..n]).unwrap_or(old))
}

/// The new signature if the class is to change.
fn changed(old: f64, signatures: &[f64]) -> Option<f64> {
    let last = last(signatures);
    let outside = last
        .iter()
        .filter(|one| Class::from_signature(**one) != Class::from_signature(old))
        .count();
    let mean = mean(last);
    (OUTSIDE <= outside && FAR < (mean - old).abs()).then_some(mean)
}

fn last(signatures: &[f64]) -> &[f64] {
    &signatures[signatures.len().saturating_sub(SAMPLES)..]
}

fn mean(signatures: &[f64]) -> f64 {
    signatures.iter().sum::<f64>() / signatures.len().max(1) as f64
}

/// The nodes that a part may be on: those to which its memory may follow, if there are some.
fn homes(part: &Part) -> Vec<bool> {
    let both = |(home, memory): (&bool, &bool)| *home && *memory;
    let homes: Vec<bool> = part.homes.iter().zip(&part.memory_nodes).map(both).collect();
    if homes.contains(&true) { homes } else { part.homes.clone() }
}

/// The homes with which the parts have least memory to move.
fn cheapest(
    topology: &Topology,
    room: &Room,
    parts: &[&Part],
    groups: &[Group],
) -> Vec<Option<usize>> {
    let homes = HELD.into_iter().map(|held| {
        let start = heaviest_first(topology, parts, groups, held);
        let mut places = deal(&start, room, groups);
        keep(parts, groups, held, &mut places)
    });
    let cost = |homes: &Vec<Option<usize>>| {
        let seconds = |(part, home): (&&Part, &Option<usize>)| {
            let far = home.map_or(0, |home| part.bytes() - part.memory[home]);
            far as f64 * part.seconds_per_byte
        };
        let homeless = homes.iter().filter(|home| home.is_none()).count();
        (homeless, parts.iter().zip(homes).map(seconds).sum::<f64>())
    };
    let cheapest = homes.min_by(|a, b| {
        let (a, b) = (cost(a), cost(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    cheapest.unwrap_or_default()
}

/// The node with most of a part's memory.
fn most_memory(part: &Part) -> Option<usize> {
    let nodes = part.memory.iter().enumerate().filter(|(_, bytes)| 0 < **bytes);
    nodes.max_by_key(|(node, bytes)| (**bytes, std::cmp::Reverse(*node))).map(|(node, _)| node)
}

/// Nodes with those first that have most of the heaviest class: dealing begins there, so that these stay.
fn heaviest_first(
    topology: &Topology,
    parts: &[&Part],
    groups: &[Group],
    held: Held,
) -> Vec<usize> {
    let count = |node: usize, class: Class| {
        let is_there =
            |(part, group): &(&&Part, &Group)| group.class == class && held(part) == Some(node);
        parts.iter().zip(groups).filter(is_there).count()
    };
    let mut nodes: Vec<usize> = (0..topology.len()).collect();
    nodes.sort_by_key(|node| {
        let heavy =
            [Class::SuperDevil, Class::Devil, Class::Turtle].map(|class| count(*node, class));
        (std::cmp::Reverse(heavy), *node)
    });
    nodes
}

/// A node for each group in turn, to and fro over the nodes; `None`: no node that it may use has so many vCPUs left.
fn deal(nodes: &[usize], room: &Room, groups: &[Group]) -> Vec<Option<usize>> {
    let mut left = room.vcpus.clone();
    let mut to_and_fro = nodes.iter().chain(nodes.iter().rev()).cycle().copied();
    let mut place = |group: &Group| {
        let has_room = |node: &usize| group.homes[*node] && group.vcpus <= left[*node];
        let found = to_and_fro.by_ref().take(2 * nodes.len()).find(has_room)?;
        left[found] -= group.vcpus;
        Some(found)
    };
    groups.iter().map(&mut place).collect()
}

/// Gives each place to a part of its group: first to those that hold it already.
fn keep(
    parts: &[&Part],
    groups: &[Group],
    held: Held,
    places: &mut [Option<usize>],
) -> Vec<Option<usize>> {
    let mut homes = vec![None; parts.len()];
    let mut take = |n: usize, wanted: Option<usize>| {
        let is_one = |(other, place): (&Group, &Option<usize>)| {
            place.is_some() && (wanted.is_none() || *place == wanted) && *other == groups[n]
        };
        let found = groups.iter().zip(places.iter()).position(is_one)?;
        places[found].take()
    };
    for (n, part) in parts.iter().enumerate() {
        if let Some(node) = held(part) {
            homes[n] = take(n, Some(node));
        }
    }
    for (n, home) in homes.iter_mut().enumerate() {
        if home.is_none() {
            *home = take(n, None);
        }
    }
    homes
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn classes_have_the_published_borders() {
        let check = |signature, expected| {
            assert_eq!(Class::from_signature(signature), expected, "{signature}")
        };
        check(0.0, Class::Turtle);
        check(14.9, Class::Turtle);
        check(15.0, Class::Devil);
        check(499.9, Class::Devil);
        check(500.0, Class::SuperDevil);
    }

    #[test]
    fn a_class_changes_after_five_of_ten_samples_that_are_far_away() {
        let check = |old, samples: &[(usize, f64)], expected| {
            let samples: Vec<f64> = samples.iter().flat_map(|(n, s)| vec![*s; *n]).collect();
            assert_eq!(changed(old, &samples), expected, "{old}: {samples:?}");
        };
        check(5.0, &[(6, 5.0), (4, 600.0)], None);
        check(5.0, &[(5, 5.0), (5, 605.0)], Some(305.0));
        // Ten samples outside, but near the border.
        check(10.0, &[(10, 40.0)], None);
        check(10.0, &[(10, 40.5)], Some(40.5));
        // Far away, but in the same class.
        check(100.0, &[(10, 400.0)], None);
        // Only the last ten count.
        check(5.0, &[(10, 600.0), (10, 5.0)], None);
    }

    #[test]
    fn a_class_outlives_a_burst() {
        let check = |samples: &[(usize, f64)], expected| {
            let samples: Vec<f64> = samples.iter().flat_map(|(n, s)| vec![*s; *n]).collect();
            assert_eq!(replayed(&samples), expected, "{samples:?}");
        };
        check(&[(60, 20.0)], 20.0);
        // Four of ten are a burst, five are not.
        check(&[(6, 5.0), (4, 600.0)], 5.0);
        check(&[(6, 5.0), (5, 600.0)], 302.5);
        check(&[(6, 5.0), (4, 600.0), (20, 5.0), (4, 600.0)], 5.0);
        // What was odd only at first.
        check(&[(1, 600.0), (60, 5.0)], 5.0);
        check(&[], 0.0);
    }

    #[test]
    fn places_are_dealt_to_and_fro() {
        let check = |room: &[usize], vcpus: &[usize], expected: &[Option<usize>]| {
            let room = Room { vcpus: room.to_vec(), bytes: vec![0; room.len()].into() };
            let group = |n: &usize| Group {
                class: Class::Devil,
                vcpus: *n,
                homes: vec![true; room.vcpus.len()],
            };
            let groups: Vec<Group> = vcpus.iter().map(group).collect();
            let nodes: Vec<usize> = (0..room.vcpus.len()).collect();
            assert_eq!(deal(&nodes, &room, &groups), expected);
        };
        let all = |nodes: &[usize]| nodes.iter().copied().map(Some).collect::<Vec<_>>();
        check(&[4, 4, 4], &[1; 8], &all(&[0, 1, 2, 2, 1, 0, 0, 1]));
        check(&[4, 1, 4], &[1; 6], &all(&[0, 1, 2, 2, 0, 0]));
        check(&[1, 2], &[2, 2], &[Some(1), None]);
    }
}
