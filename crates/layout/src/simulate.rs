//! A migration in time, by the memory model: by default, re-optimised afterwards, and planned ahead.
//!
//! ```text
//!            start                    end
//!  default     |----- pre-copy ---------|  the layout the kernel chose, for good
//!  afterwards  |----- pre-copy ---------|  observe, plan, move, repaired
//!  ahead       |counters, plan, move -- |  in place
//! ```

mod random;
mod rank;

use crate::load::{Arrival, Load, Placed, Vm};
use crate::moves::Move;
use crate::plan::{Options, Outcome, Plan, plan};
use crate::policy::policy_named;
use crate::topology::Topology;

pub use random::random_case;
pub use rank::{Rank, Ranking, rank_policies};

/// A VM is repaired when it is as fast as this part of the best way.
const REPAIRED: f64 = 0.98;
/// Seconds after the migration that are shown.
const AFTERWARDS_S: u32 = 60;

/// A host, its VMs, and a migration to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub name: String,
    /// The destination's nodes.
    pub topology: Topology,
    /// The destination's VMs, and those that arrive.
    pub load: Load,
    /// When and how they do.
    pub migration: Migration,
}

/// When a migration happens, and what it costs until it is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Migration {
    /// Pre-copy begins, and counters are sent, at this second.
    pub start_s: u32,
    /// VMs run on the destination from this second on.
    pub end_s: u32,
    /// Seconds that a policy must observe before it plans afterwards.
    pub observe_s: u32,
    /// The part of a VM's speed that pre-copy costs.
    pub precopy: f64,
    /// The part of a VM's speed that moving its pages costs.
    pub moving: f64,
    /// The part of the second in which a VM switches hosts that it does not run.
    pub downtime_s: f64,
}

impl Default for Migration {
    /// The original's times; the ten samples of a second that DINO wants.
    fn default() -> Self {
        Self {
            start_s: 20,
            end_s: 100,
            observe_s: 10,
            precopy: 0.02,
            moving: 0.05,
            downtime_s: 0.2,
        }
    }
}

/// What is done about the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing.
    Default,
    /// All VMs are observed once the migration is over, and then moved.
    Afterwards,
    /// Counters are sent ahead, and everything is in place when the VM arrives.
    Ahead,
}

/// A migration in each way.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    pub case: String,
    pub policy: &'static str,
    pub migration: Migration,
    /// Default, afterwards, ahead.
    pub ways: Vec<WayResult>,
}

/// A migration in one way.
#[derive(Debug, Clone, PartialEq)]
pub struct WayResult {
    pub way: Strategy,
    /// Each VM's speed in time.
    pub curves: Vec<Curve>,
    /// Seconds from the migration's end until all VMs that arrived are as fast as they can be; `None`: never.
    pub repaired_s: Option<u32>,
    /// Bytes that were moved within the host.
    pub moved_bytes: u64,
    /// What was planned; by default nothing.
    pub plan: Option<Plan>,
}

/// A VM's speed in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub vm: String,
    /// Whether it is the one that migrates.
    pub arrival: Arrival,
    /// Its speed in each second, relative to being alone with local memory.
    pub speeds: Vec<f64>,
    /// Its speed in the end.
    pub last: f64,
}

impl Strategy {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Afterwards => "afterwards",
            Self::Ahead => "ahead",
        }
    }
}

/// Plays a migration in each way. `None`: there is no such policy.
#[must_use]
pub fn simulate(case: &Case, policy: &str, options: &Options) -> Option<Simulation> {
    let name = policy_named(policy)?.name();
    let ways = [Strategy::Default, Strategy::Afterwards, Strategy::Ahead];
    let mut ways: Vec<WayResult> =
        ways.iter().map(|way| Player::new(case, *way, policy, options).play()).collect();
    let best = |n: usize| ways.iter().map(|way| way.curves[n].last).fold(0.0, f64::max);
    let best: Vec<f64> = (0..case.load.vms.len()).map(best).collect();
    let migration = case.migration;
    for way in &mut ways {
        way.repaired_s = repaired(way, &best, migration.end_s);
        for curve in way.curves.iter_mut().filter(|curve| curve.arrival == Arrival::Incoming) {
            if let Some(speed) = curve.speeds.get_mut(migration.end_s as usize) {
                *speed *= 1.0 - migration.downtime_s;
            }
        }
    }
    Some(Simulation { case: case.name.clone(), policy: name, migration, ways })
}

fn repaired(way: &WayResult, best: &[f64], end_s: u32) -> Option<u32> {
    let arrived = || way.curves.iter().zip(best).filter(|(c, _)| c.arrival == Arrival::Incoming);
    let seconds = arrived().map(|(curve, _)| curve.speeds.len()).max()?;
    let is_good = |second: &usize| {
        arrived().all(|(curve, best)| curve.speeds[*second..].iter().all(|s| REPAIRED * best <= *s))
    };
    let second = (end_s as usize..seconds).find(is_good)?;
    u32::try_from(second).ok().map(|second| second - end_s)
}

/// The state of a host while a migration is played.
struct Player<'a> {
    case: &'a Case,
    way: Strategy,
    policy: &'a str,
    options: &'a Options,
    placed: Vec<Placed>,
    free: Vec<u64>,
    queue: std::collections::VecDeque<Move>,
    plan: Option<Plan>,
    moved_bytes: u64,
    /// The speeds of VMs that are here, while nothing changes.
    known: Option<Vec<f64>>,
}

impl<'a> Player<'a> {
    fn new(case: &'a Case, way: Strategy, policy: &'a str, options: &'a Options) -> Self {
        Self {
            case,
            way,
            policy,
            options,
            placed: case.load.vms.iter().map(|vm| vm.now.clone()).collect(),
            free: case.topology.nodes().iter().map(|node| node.free).collect(),
            queue: Default::default(),
            plan: None,
            moved_bytes: 0,
            known: None,
        }
    }

    fn play(mut self) -> WayResult {
        let Migration { start_s, end_s, observe_s, .. } = self.case.migration;
        let last = end_s + observe_s + AFTERWARDS_S;
        let curve = |vm: &Vm| Curve {
            vm: vm.name.clone(),
            arrival: vm.arrival,
            speeds: Vec::new(),
            last: 0.0,
        };
        let mut curves: Vec<Curve> = self.case.load.vms.iter().map(curve).collect();
        for second in 0..last {
            if second == start_s || second == end_s || second == end_s + observe_s {
                self.known = None;
            }
            if second == start_s && self.way == Strategy::Ahead {
                self.plan(false);
            }
            if second == end_s {
                self.arrive();
            }
            if second == end_s + observe_s && self.way == Strategy::Afterwards {
                self.plan(true);
            }
            let moving = self.move_for_a_second();
            for ((curve, speed), moving) in curves.iter_mut().zip(self.speeds(second)).zip(moving) {
                let cost = if moving { self.case.migration.moving } else { 0.0 };
                curve.speeds.push(speed * (1.0 - cost));
            }
        }
        for (curve, speed) in curves.iter_mut().zip(self.speeds(last)) {
            curve.last = speed;
        }
        WayResult {
            way: self.way,
            curves,
            repaired_s: None,
            moved_bytes: self.moved_bytes,
            plan: self.plan,
        }
    }

    /// Plans for the VMs as they are; `arrived`: those that migrate are residents by now.
    fn plan(&mut self, arrived: bool) {
        let vm = |(vm, placed): (&Vm, &Placed)| Vm {
            now: placed.clone(),
            arrival: if arrived { Arrival::Resident } else { vm.arrival },
            ..vm.clone()
        };
        let load = Load { vms: self.case.load.vms.iter().zip(&self.placed).map(vm).collect() };
        let topology = self.case.topology.clone().with_free(&self.free);
        let Some(mut policy) = policy_named(self.policy) else { return };
        let plan = plan(&topology, &load, policy.as_mut(), self.options);
        if matches!(plan.outcome, Outcome::Move { .. }) {
            for ((placed, vm), planned) in self.placed.iter_mut().zip(&load.vms).zip(&plan.vms) {
                placed.vcpus.clone_from(&planned.after.vcpus);
                if vm.arrival == Arrival::Incoming {
                    placed.memory.clone_from(&planned.after.memory);
                }
            }
            self.queue.extend(plan.moves.iter().copied());
        }
        self.plan = Some(plan);
    }

    /// VMs that migrate get their memory: what finds no room where it was planned goes to the nearest.
    fn arrive(&mut self) {
        for (vm, placed) in self.case.load.vms.iter().zip(&mut self.placed) {
            if vm.arrival == Arrival::Resident {
                continue;
            }
            let home = placed.vcpus.iter().flatten().next().copied().unwrap_or_default();
            let mut missing = 0;
            for (bytes, free) in placed.memory.iter_mut().zip(&mut self.free) {
                let has = (*bytes).min(*free);
                missing += *bytes - has;
                (*bytes, *free) = (has, *free - has);
            }
            for node in self.case.topology.nearest(home) {
                let has = missing.min(self.free[node]);
                placed.memory[node] += has;
                self.free[node] -= has;
                missing -= has;
            }
        }
    }

    /// Moves as much memory as a second allows; which VMs' that is.
    fn move_for_a_second(&mut self) -> Vec<bool> {
        let mut moving = vec![false; self.placed.len()];
        let rate = self.case.load.vms.iter().map(|vm| vm.move_bytes_per_s).min().unwrap_or(0);
        let mut left = rate;
        while 0 < left {
            let Some(step) = self.queue.front_mut() else { break };
            let has = self.placed[step.vm].memory[step.from];
            let bytes = step.bytes.min(left).min(self.free[step.to]).min(has);
            step.bytes -= bytes;
            let Move { vm, from, to, bytes: rest, .. } = *step;
            self.placed[vm].memory[from] -= bytes;
            self.placed[vm].memory[to] += bytes;
            self.free[from] += bytes;
            self.free[to] -= bytes;
            self.moved_bytes += bytes;
            self.known = None;
            moving[vm] = true;
            left -= bytes;
            if rest == 0 || bytes == 0 {
                // Done, or a VM that arrived has taken the room.
                self.queue.pop_front();
            }
        }
        moving
    }

    fn speeds(&mut self, second: u32) -> Vec<f64> {
        let Migration { start_s, end_s, precopy, .. } = self.case.migration;
        let is_here = |vm: &Vm| vm.arrival == Arrival::Resident || end_s <= second;
        let here = |(vm, placed): (&Vm, &Placed)| is_here(vm).then(|| placed.clone());
        let (case, options, placed) = (self.case, self.options, &self.placed);
        let vms = &case.load.vms;
        let speeds = self.known.get_or_insert_with(|| {
            let layout: Vec<Option<Placed>> = vms.iter().zip(placed).map(here).collect();
            options.model.speeds(&case.topology, &case.load, &layout)
        });
        let elsewhere = if second < start_s { 1.0 } else { 1.0 - precopy };
        let speed = |(vm, speed): (&Vm, &f64)| if is_here(vm) { *speed } else { elsewhere };
        vms.iter().zip(speeds.iter()).map(speed).collect()
    }
}
