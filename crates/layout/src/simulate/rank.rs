//! Policies side by side over many random loads.

use super::random::{Random, case};
use crate::load::{Arrival, Load};
use crate::plan::{Options, Outcome, plan};
use crate::policy::{POLICIES, policy_named};
use crate::topology::Topology;

/// Policies within this part of the best are as good.
const AS_GOOD: f64 = 0.001;

/// How policies did over loads that have something in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// What they have in common.
    pub loads: &'static str,
    pub cases: u64,
    pub policies: Vec<Rank>,
}

/// How a policy did.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    pub policy: &'static str,
    /// Loads in which it moved something.
    pub moved: u64,
    /// In so many it was the best, or as good.
    pub best: u64,
    /// Its mean gain over the default, as a part of the default's speed.
    pub mean_gain: f64,
    /// Its mean place, from 1.
    pub mean_place: f64,
    /// Bytes that it moved, in the mean.
    pub mean_bytes: u64,
}

const GROUPS: [(&str, f64); 3] =
    [("memory up to 50 % full", 0.5), ("50 to 80 % full", 0.8), ("more than 80 % full", 2.0)];

/// Compares the policies over `cases` random loads on a host; its memory counts as free.
#[must_use]
pub fn rank_policies(
    topology: &Topology,
    cases: u64,
    seed: u64,
    options: &Options,
) -> Vec<Ranking> {
    let mut random = Random::new(seed);
    let empty = |(loads, _): (&'static str, f64)| Ranking { loads, cases: 0, policies: none() };
    let mut rankings: Vec<Ranking> =
        std::iter::once(("all", 0.0)).chain(GROUPS).map(empty).collect();
    for n in 0..cases {
        let case = case(topology, &mut random, format!("random {n}"));
        let fill = fill(&case.topology, &case.load);
        let group = GROUPS.iter().position(|(_, most)| fill <= *most).unwrap_or(GROUPS.len() - 1);
        let results = POLICIES.map(|name| result(name, &case.topology, &case.load, options));
        for at in [0, group + 1] {
            rankings[at].cases += 1;
            add(&mut rankings[at].policies, &results);
        }
    }
    for ranking in &mut rankings {
        let n = ranking.cases.max(1);
        for rank in &mut ranking.policies {
            rank.mean_gain /= n as f64;
            rank.mean_place /= n as f64;
            rank.mean_bytes /= n;
        }
    }
    rankings.retain(|ranking| 0 < ranking.cases);
    rankings
}

fn none() -> Vec<Rank> {
    let none =
        |policy| Rank { policy, moved: 0, best: 0, mean_gain: 0.0, mean_place: 0.0, mean_bytes: 0 };
    POLICIES.map(none).into()
}

fn fill(topology: &Topology, load: &Load) -> f64 {
    let all: u64 = topology.nodes().iter().map(|node| node.total).sum();
    let free: u64 = topology.nodes().iter().map(|node| node.free).sum();
    let arriving: u64 =
        load.vms.iter().filter(|vm| vm.arrival == Arrival::Incoming).map(|vm| vm.bytes()).sum();
    (all - free + arriving) as f64 / all.max(1) as f64
}

/// The gain, and the bytes that it took.
fn result(policy: &str, topology: &Topology, load: &Load, options: &Options) -> (f64, u64) {
    let Some(mut policy) = policy_named(policy) else { return (0.0, 0) };
    let plan = plan(topology, load, policy.as_mut(), options);
    match plan.outcome {
        Outcome::Move { gain } => (gain, plan.moved_bytes()),
        _ => (0.0, 0),
    }
}

fn add(ranks: &mut [Rank], results: &[(f64, u64)]) {
    let is_better = |gain: f64, than: f64| than + AS_GOOD < gain;
    for (rank, (gain, bytes)) in ranks.iter_mut().zip(results) {
        let better = results.iter().filter(|(other, _)| is_better(*other, *gain)).count();
        rank.moved += u64::from(*gain != 0.0);
        rank.best += u64::from(better == 0);
        rank.mean_place += 1.0 + better as f64;
        rank.mean_gain += gain;
        rank.mean_bytes += bytes;
    }
}
