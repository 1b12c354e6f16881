//! AsymSched (Lepers, Quema and Fedorova, USENIX ATC 2015): who uses other nodes' memory most gets the fastest way to it.

use super::{Choice, MemoryChoice, Part, Policy, Room};
use crate::topology::{NodeBytes, Topology};

/// A placement this near to the best is as good.
const NEAR_THE_BEST: f64 = 0.9;
/// Moving memory takes no more of the time that a VM has run.
const MAX_OF_RUN_TIME: f64 = 0.05;
/// When more of its accesses stay remote, all memory of a part follows.
const MOSTLY_REMOTE: f64 = 0.9;
/// Combinations of candidates that are compared one by one; of more, parts choose one after the other.
const MAX_COMBINATIONS: usize = 20_000;

/// Maximises the sum over parts of log(remote accesses) x bandwidth between a part's vCPUs and its memory. Of the
/// placements within 90 % of the best it takes the one that moves least. Parts without remote accesses stay.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsymSched;

/// What can be done with a part.
#[derive(Debug, Clone)]
struct Candidate {
    home: Option<usize>,
    memory: MemoryChoice,
    /// Where its memory then lies.
    lies: Vec<u64>,
    /// log(remote accesses) x bandwidth.
    weighted: f64,
    moving_s: f64,
}

/// One candidate of each part.
type Combination = Vec<usize>;

impl Policy for AsymSched {
    fn name(&self) -> &'static str {
        "asymsched"
    }

    fn place(&mut self, topology: &Topology, room: &Room, parts: &[Part]) -> Vec<Choice> {
        let movable: Vec<&Part> = parts.iter().filter(|part| part.may_move).collect();
        let candidates: Vec<Vec<Candidate>> =
            movable.iter().map(|part| candidates(topology, room, part)).collect();
        let search = Search::new(room, &movable, &candidates);
        let mut chosen = search.best().into_iter().zip(&candidates).zip(&movable);
        let choice = |part: &Part| {
            if !part.may_move {
                return Choice::stay("it may not be moved");
            }
            let Some(((which, candidates), _)) = chosen.next() else {
                return Choice::stay("it was not looked at");
            };
            chosen_for(topology, room, part, &candidates[which])
        };
        parts.iter().map(choice).collect()
    }
}

fn chosen_for(topology: &Topology, room: &Room, part: &Part, candidate: &Candidate) -> Choice {
    if part.remote <= 0.0 {
        return Choice::stay("all its accesses are local");
    }
    let home = candidate.home.or(part.home);
    let remote = home.map_or(part.remote, |home| remote_from(home, &candidate.lies));
    let mut memory = candidate.memory;
    if let (MemoryChoice::Stay, Some(home), true) = (memory, home, MOSTLY_REMOTE < remote) {
        let near = room.nearest(topology, home, part);
        if part.holds(&near) && part.moving_s(&near) <= MAX_OF_RUN_TIME * part.ran_s {
            memory = MemoryChoice::Follow;
        }
    }
    let rank = if memory == MemoryChoice::Follow { 0 } else { usize::MAX };
    let percent = 100.0 * part.remote;
    Choice { home: candidate.home, memory, rank, reason: format!("{percent:.0} % remote accesses") }
}

fn remote_from(home: usize, memory: &[u64]) -> f64 {
    let all: u64 = memory.iter().sum();
    1.0 - memory[home] as f64 / all.max(1) as f64
}

/// The first is always to leave everything as it is.
fn candidates(topology: &Topology, room: &Room, part: &Part) -> Vec<Candidate> {
    let weight = (1.0 + part.misses_per_s * part.remote).log2();
    let candidate = |home: Option<usize>, memory: MemoryChoice, lies: Vec<u64>| Candidate {
        weighted: weight * bandwidth(topology, home.or(part.home), &lies),
        moving_s: part.moving_s(&lies),
        home,
        memory,
        lies,
    };
    let mut found = vec![candidate(None, MemoryChoice::Stay, part.memory.clone())];
    if part.remote <= 0.0 {
        return found;
    }
    for home in (0..topology.len()).filter(|node| room.has_vcpus(*node, part)) {
        found.push(candidate(Some(home), MemoryChoice::Stay, part.memory.clone()));
        let near = room.nearest(topology, home, part);
        let follow = candidate(Some(home), MemoryChoice::Follow, near);
        if part.holds(&follow.lies) && follow.moving_s <= MAX_OF_RUN_TIME * part.ran_s {
            found.push(follow);
        }
    }
    found
}

/// The mean over its accesses; in GB/s.
fn bandwidth(topology: &Topology, home: Option<usize>, memory: &[u64]) -> f64 {
    let all = memory.iter().sum::<u64>().max(1) as f64;
    let from = |home: usize| -> f64 {
        let of = |(node, bytes): (usize, &u64)| {
            *bytes as f64 / all * topology.bandwidth(home, node) as f64 / 1e9
        };
        memory.iter().enumerate().map(of).sum()
    };
    let cpus = topology.cpus() as f64;
    let anywhere = || {
        let of = |(at, node): (usize, &crate::Node)| from(at) * node.cpus.len() as f64 / cpus;
        topology.nodes().iter().enumerate().map(of).sum()
    };
    home.map_or_else(anywhere, from)
}

/// vCPUs and bytes on each node.
#[derive(Debug, Clone, Default)]
struct Usage {
    vcpus: Vec<usize>,
    bytes: NodeBytes,
}

impl Usage {
    fn add(&mut self, part: &Part, candidate: &Candidate) {
        if let Some(home) = candidate.home.or(part.home) {
            self.vcpus[home] += part.vcpus;
        }
        self.bytes.add(part.page, &candidate.lies);
    }

    fn remove(&mut self, part: &Part, candidate: &Candidate) {
        if let Some(home) = candidate.home.or(part.home) {
            self.vcpus[home] = self.vcpus[home].saturating_sub(part.vcpus);
        }
        self.bytes.take(part.page, &candidate.lies);
    }

    fn is_within(&self, most: &Self) -> bool {
        let vcpus = self.vcpus.iter().zip(&most.vcpus).all(|(used, most)| used <= most);
        vcpus && self.bytes.is_within(&most.bytes)
    }
}

struct Search<'a> {
    parts: &'a [&'a Part],
    candidates: &'a [Vec<Candidate>],
    /// What nodes have room for, or more where more is used as it is.
    most: Usage,
}

impl<'a> Search<'a> {
    fn new(room: &Room, parts: &'a [&'a Part], candidates: &'a [Vec<Candidate>]) -> Self {
        let none = Usage { vcpus: vec![0; room.vcpus.len()], bytes: NodeBytes::default() };
        let mut search = Self { parts, candidates, most: none };
        let mut most = search.usage(&vec![0; parts.len()]);
        most.vcpus.iter_mut().zip(&room.vcpus).for_each(|(used, room)| *used = (*used).max(*room));
        most.bytes.at_least(&room.bytes);
        search.most = most;
        search
    }

    fn best(&self) -> Combination {
        let sizes = self.candidates.iter().map(Vec::len);
        let combinations = sizes.fold(1_usize, usize::saturating_mul);
        if combinations <= MAX_COMBINATIONS { self.compared() } else { self.one_after_the_other() }
    }

    fn compared(&self) -> Combination {
        let mut all: Vec<(f64, f64, Combination)> = Vec::new();
        let mut at = vec![0; self.parts.len()];
        loop {
            if self.usage(&at).is_within(&self.most) {
                let (weighted, moving_s) = self.sums(&at);
                all.push((weighted, moving_s, at.clone()));
            }
            if !self.advance(&mut at) {
                break;
            }
        }
        let best = all.iter().map(|(weighted, ..)| *weighted).fold(0.0, f64::max);
        all.retain(|(weighted, ..)| NEAR_THE_BEST * best <= *weighted);
        let least = all.into_iter().min_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
        least.map_or_else(|| vec![0; self.parts.len()], |(.., at)| at)
    }

    /// The next combination, if there is one.
    fn advance(&self, at: &mut Combination) -> bool {
        for (which, candidates) in at.iter_mut().zip(self.candidates) {
            *which += 1;
            if *which < candidates.len() {
                return true;
            }
            *which = 0;
        }
        false
    }

    /// The part with most to gain chooses first. Afterwards each takes back what is not needed to stay near the best, the
    /// one with least to gain first.
    fn one_after_the_other(&self) -> Combination {
        let mut at = vec![0; self.parts.len()];
        let mut usage = self.usage(&at);
        let gain = |part: &usize| {
            let all = self.candidates[*part].iter().map(|candidate| candidate.weighted);
            all.fold(0.0, f64::max) - self.candidates[*part][0].weighted
        };
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then(a.cmp(b)));
        for part in order.iter().copied() {
            let by_value = self.sorted(part, |a, b| {
                b.weighted.total_cmp(&a.weighted).then(a.moving_s.total_cmp(&b.moving_s))
            });
            let mut by_value = by_value.into_iter();
            at[part] = by_value.find(|to| self.change(&mut usage, part, 0, *to)).unwrap_or(0);
        }
        let mut sum = self.sums(&at).0;
        let enough = NEAR_THE_BEST * sum;
        for part in order.into_iter().rev() {
            let by_cost = self.sorted(part, |a, b| {
                a.moving_s.total_cmp(&b.moving_s).then(b.weighted.total_cmp(&a.weighted))
            });
            let now = at[part];
            let of = |which: usize| self.candidates[part][which].weighted;
            let is_enough = |to: &usize| {
                enough <= sum - of(now) + of(*to) && self.change(&mut usage, part, now, *to)
            };
            at[part] = by_cost.into_iter().find(is_enough).unwrap_or(now);
            sum += of(at[part]) - of(now);
        }
        at
    }

    fn sorted(
        &self,
        part: usize,
        order: impl Fn(&Candidate, &Candidate) -> std::cmp::Ordering,
    ) -> Vec<usize> {
        let candidates = &self.candidates[part];
        let mut sorted: Vec<usize> = (0..candidates.len()).collect();
        sorted.sort_by(|a, b| order(&candidates[*a], &candidates[*b]));
        sorted
    }

    /// Changes a part's candidate in the usage, if there is room for it.
    fn change(&self, usage: &mut Usage, part: usize, from: usize, to: usize) -> bool {
        let (candidates, part) = (&self.candidates[part], self.parts[part]);
        usage.remove(part, &candidates[from]);
        usage.add(part, &candidates[to]);
        let fits = usage.is_within(&self.most);
        if !fits {
            usage.remove(part, &candidates[to]);
            usage.add(part, &candidates[from]);
        }
        fits
    }

    fn chosen<'s>(&'s self, at: &'s Combination) -> impl Iterator<Item = &'s Candidate> {
        at.iter().zip(self.candidates).map(|(which, candidates)| &candidates[*which])
    }

    /// The sum of what is maximised, and how long moving takes.
    fn sums(&self, at: &Combination) -> (f64, f64) {
        self.chosen(at).fold((0.0, 0.0), |(weighted, moving_s), candidate| {
            (weighted + candidate.weighted, moving_s + candidate.moving_s)
        })
    }

    fn usage(&self, at: &Combination) -> Usage {
        let mut usage =
            Usage { vcpus: vec![0; self.most.vcpus.len()], bytes: NodeBytes::default() };
        self.chosen(at).zip(self.parts).for_each(|(candidate, part)| usage.add(part, candidate));
        usage
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::simulate::random_case;
    use crate::topology::Node;

    fn part(home: usize, memory: &[u64]) -> Part {
        Part {
            vm: 1,
            name: String::new(),
            number: 0,
            home: Some(home),
            vcpus: 1,
            vcpus_on: (0..memory.len()).map(|node| usize::from(node == home)).collect(),
            homes: vec![true; memory.len()],
            memory: memory.to_vec(),
            page: None,
            memory_nodes: vec![true; memory.len()],
            misses_per_s: 1e7,
            remote: remote_from(home, memory),
            signatures: Vec::new(),
            may_move: true,
            ran_s: 100.0,
            seconds_per_byte: 1.0,
        }
    }

    /// Two nodes with a link of so many per cent of a memory's bandwidth.
    fn host(link: u64) -> Topology {
        let node = |id| Node {
            id,
            cpus: vec![2 * id, 2 * id + 1],
            total: 100,
            free: 100,
            ..Node::default()
        };
        let distances = vec![vec![10, 20], vec![20, 10]];
        let bandwidths = vec![vec![100, link], vec![link, 100]];
        Topology::new(vec![node(0), node(1)], distances, Some(bandwidths)).unwrap()
    }

    fn check(link: u64, room: [usize; 2], part: Part, expected: (Option<usize>, MemoryChoice)) {
        let room = Room { vcpus: room.to_vec(), bytes: vec![100, 100].into() };
        let choice = AsymSched.place(&host(link), &room, &[part]).remove(0);
        assert_eq!((choice.home.or(Some(0)), choice.memory), expected, "link {link}");
    }

    #[test]
    fn of_layouts_near_the_best_the_one_that_moves_least() {
        use MemoryChoice::{Follow, Stay};
        // Half of the memory is remote. Moving it takes 2 s of the 5 that are allowed.
        let half = || part(0, &[2, 2]);
        check(70, [2, 2], half(), (Some(0), Follow));
        // As it is, it has 90 % of the best bandwidth.
        check(80, [2, 2], half(), (Some(0), Stay));
        // Moving 6 bytes would take too long; vCPUs can go.
        check(70, [2, 2], part(0, &[0, 6]), (Some(1), Stay));
        // They can't; and 5 s are not too long.
        check(70, [2, 0], part(0, &[0, 5]), (Some(0), Follow));
        check(70, [2, 0], part(0, &[0, 6]), (Some(0), Stay));
        // All accesses would stay remote: memory follows although the link is nearly as fast.
        check(95, [2, 0], part(0, &[0, 5]), (Some(0), Follow));
        check(95, [2, 0], part(0, &[1, 4]), (Some(0), Stay));
    }

    #[test]
    fn choosing_one_after_the_other_is_nearly_as_good_as_comparing() {
        let mut compared = 0;
        for seed in 0..500 {
            let case = random_case(seed);
            let nodes = case.topology.len();
            let vms = case.load.vms.iter().take(3);
            let parts: Vec<Part> = vms
                .enumerate()
                .map(|(n, vm)| Part { vm: n as u32, ..part(n % nodes, &vm.now.memory) })
                .collect();
            let parts: Vec<&Part> = parts.iter().collect();
            let bytes: Vec<u64> = case.topology.nodes().iter().map(|node| node.total).collect();
            let room = Room { vcpus: vec![2; nodes], bytes: bytes.into() };
            let candidates: Vec<_> =
                parts.iter().map(|part| candidates(&case.topology, &room, part)).collect();
            let search = Search::new(&room, &parts, &candidates);
            if MAX_COMBINATIONS < candidates.iter().map(Vec::len).product() {
                continue;
            }
            compared += 1;
            let (best, quick) = (search.compared(), search.one_after_the_other());
            assert!(search.usage(&quick).is_within(&search.most), "seed {seed}");
            let (best, quick) = (search.sums(&best).0, search.sums(&quick).0);
            assert!(0.75 * best <= quick, "seed {seed}: {quick} of {best}");
        }
        assert!(400 < compared, "{compared}");
    }
}
