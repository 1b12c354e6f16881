//! Why something changed, from what the window and the host's past say.

use crate::host::{Host, cpus_of, thieves, waits};
use model::VcpuTimeState;

use crate::{
    Action, Advice, Cause, Code, FunctionTime, Measure, Owner, SeriesName, Summary, Symptom,
    VmSummary,
};

/// Demand on a host's CPUs, and part of their time that vCPUs wait, from which on it is overcommitted.
const OVERCOMMITTED: f32 = 1.0;
const WAITING: f64 = 0.05;
/// No owner takes more of the time stolen than this where all of them together are too many.
const TO_BLAME: f64 = 0.5;
/// Where samples are missing, some thieves are unknown: the known ones decide if they have this part.
const KNOWN: f64 = 0.3;
/// Functions that are named as evidence at most.
const NAMED: usize = 3;
/// Part of an increase that one exit reason has if it is the cause.
const MAIN: f64 = 0.25;
/// Names of functions in which threads wait for one another, or parts of them.
const LOCKS: [&str; 12] = [
    "queued_spin_lock_slowpath",
    "pv_queued_spin_lock",
    "osq_lock",
    "mutex_spin_on_owner",
    "rwsem_spin_on_owner",
    "rwsem_optimistic_spin",
    "rt_mutex_slowlock",
    "futex",
    "lll_lock",
    "pthread_mutex_lock",
    "pthread_spin_lock",
    "pthread_rwlock",
];

/// Who wanted a host's CPUs in a window.
#[derive(Debug)]
pub(crate) struct Contention {
    /// Part of the CPUs' time that is wanted.
    pub(crate) wanted: f32,
    /// Part of the CPUs' time that vCPUs waited for one.
    pub(crate) waiting: f64,
    /// VMs that waited.
    pub(crate) n_waiting: usize,
    /// The share of the thief that took most; 1: too little is known.
    pub(crate) blame: f64,
}

impl Contention {
    /// Whether all of them together are too many, and none alone.
    pub(crate) fn is_overcommitted(&self) -> bool {
        OVERCOMMITTED <= self.wanted
            && WAITING <= self.waiting
            && self.blame < TO_BLAME
            && 2 <= self.n_waiting
    }

    pub(crate) fn new(window: &Summary) -> Self {
        let cpus = f64::from(window.cpus.max(1));
        let all = window.length_ns.saturating_mul(u64::from(window.cpus)).max(1);
        let waiting: u64 = window.vms.values().map(|vm| vm.ns(VcpuTimeState::StealOutside)).sum();
        let mut by_thief = std::collections::BTreeMap::<&Owner, u64>::new();
        for (owner, ns) in window.vms.values().flat_map(|vm| &vm.thieves) {
            *by_thief.entry(owner).or_default() += ns;
        }
        by_thief.retain(|owner, _| !matches!(owner, Owner::Unknown | Owner::Idle));
        let most = by_thief.values().max().copied().unwrap_or(0);
        let known: u64 = by_thief.values().sum();
        // Where too little is known, a cause may be missing.
        let is_known = KNOWN * waiting as f64 <= known as f64;
        Self {
            wanted: wants(window).iter().map(|(_, ns)| ns).sum::<u64>() as f32 / all as f32,
            waiting: cpus_of(window, waiting) / cpus,
            n_waiting: window.vms.values().filter(|vm| waits(vm)).count(),
            blame: if is_known { most as f64 / known.max(1) as f64 } else { 1.0 },
        }
    }
}

/// CPU time that VMs and processes had or wanted, the most first.
fn wants(window: &Summary) -> Vec<(Owner, u64)> {
    let vms = window.vms.iter().map(|(name, vm)| {
        let wanted =
            vm.demand_ns() - vm.ns(VcpuTimeState::Throttled) + vm.ns(VcpuTimeState::HaltPolling);
        (Owner::Vm(name.clone()), wanted)
    });
    let mut all: Vec<_> = vms.chain(others(window)).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all
}

/// Why a series of a host changed.
pub(crate) fn cause(host: &Host, window: &Summary, symptom: &Symptom) -> Cause {
    let SeriesName { vm, measure, .. } = &symptom.series;
    let near_s = near_s(window);
    let kernel =
        host.kernel_before.as_ref().filter(|(_, at)| at.abs_diff(symptom.began_s) <= near_s);
    let by_kernel = matches!(measure, Measure::Exits(_) | Measure::StealVmm | Measure::HaltPolling);
    if let Some((before, _)) = kernel.filter(|_| by_kernel || vm.is_none()) {
        return Cause::Kernel { before: before.clone(), after: host.kernel.clone() };
    }
    let Some(name) = vm else {
        return match measure {
            Measure::Demand => overcommitted(host, window, symptom),
            _ => Cause::Collection(window.health.iter().map(|(w, n)| (w.clone(), *n)).collect()),
        };
    };
    let (Some(vm), Some(summary)) = (host.vms.get(name), window.vms.get(name)) else {
        return Cause::Unknown;
    };
    match measure {
        Measure::StealOutside => steal(host, window, symptom, name),
        Measure::Throttled => quota(window, summary),
        Measure::HaltPolling => Cause::HaltPolling,
        Measure::StealVmm => {
            let total = summary.total_ns().max(1) as f64;
            let more = summary.exits.iter().map(|(reason, exits)| {
                let usual = vm.reasons.of(reason);
                (reason, (exits.ns as f64 / total - usual).max(0.0))
            });
            let all: Vec<_> = more.collect();
            let sum: f64 = all.iter().map(|(_, more)| more).sum();
            let most = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
            let most = most.filter(|(_, more)| MAIN * sum < *more);
            most.map_or(Cause::Unknown, |(reason, _)| exits(window, summary, reason, 0.0))
        }
        Measure::Exits(reason) => exits(window, summary, reason, symptom.after - symptom.before),
        Measure::Function(code) => function(vm, summary, code, symptom, near_s),
        Measure::Useful => match vm.most_lost(summary) {
            Some(measure) => {
                let series = SeriesName { measure, ..symptom.series.clone() };
                cause(host, window, &Symptom { series, ..symptom.clone() })
            }
            None => Cause::Unknown,
        },
        Measure::Process(process) => {
            Cause::Process { process: process.clone(), is_new: is_new(symptom) }
        }
        _ => Cause::Unknown,
    }
}

/// The VM's own quota, or one that it shares with others.
fn quota(window: &Summary, vm: &VmSummary) -> Cause {
    let got = cpus_of(window, vm.used_ns());
    let wanted = got + cpus_of(window, vm.ns(VcpuTimeState::Throttled));
    let used =
        |name: &String| Some((name.clone(), cpus_of(window, window.vms.get(name)?.used_ns())));
    let mut others: Vec<_> = vm.same_quota.iter().filter_map(used).collect();
    others.sort_by(|a, b| b.1.total_cmp(&a.1));
    Cause::Quota { wanted, got, others }
}

/// Changes this close to one another may have one cause.
pub(crate) fn near_s(window: &Summary) -> u32 {
    u32::try_from(window.length_ns.saturating_mul(5) / 1_000_000_000).unwrap_or(u32::MAX)
}

fn is_new(symptom: &Symptom) -> bool {
    symptom.before < 0.002
}

fn steal(host: &Host, window: &Summary, symptom: &Symptom, name: &str) -> Cause {
    let Some(vm) = host.vms.get(name) else { return Cause::Unknown };
    let thieves = thieves(vm, window, name);
    let now = Contention::new(window);
    if now.is_overcommitted() {
        return overcommitted(host, window, symptom);
    }
    let Some((owner, part)) = to_blame(host, window, &thieves) else { return Cause::Unknown };
    // A VM that has begun to run a lot is itself to blame for what others take from it.
    let own = Owner::Vm(name.to_owned());
    let grown = growth(host, window, &own);
    let is_own =
        host.uses.is_known() && symptom.cpus / 2.0 < grown && growth(host, window, owner) < grown;
    let owner = if is_own { &own } else { owner };
    if matches!(owner, Owner::Unknown | Owner::Idle) {
        return Cause::Unknown;
    }
    let functions = window.owner_use(owner).map_or(&[][..], |used| &used.functions);
    let is_new = matches!(owner, Owner::Vm(thief) if arrived(host, thief, symptom, window));
    Cause::Thief { owner: owner.clone(), part, functions: named(window, functions), is_new }
}

/// Who took most of the additional steal type 1, as far as thieves are known; if none took half of it, the one that
/// grew more than all others together.
fn to_blame<'t>(
    host: &Host,
    window: &Summary,
    thieves: &'t [(Owner, f64)],
) -> Option<(&'t Owner, f64)> {
    let is_known = |(owner, _): &&(Owner, f64)| !matches!(owner, Owner::Unknown | Owner::Idle);
    let known: f64 = thieves.iter().filter(is_known).map(|(_, part)| part).sum();
    let least = if KNOWN <= known { TO_BLAME * known } else { TO_BLAME };
    let most = thieves.iter().find(is_known);
    if let Some((owner, part)) = most.filter(|(_, part)| least <= *part) {
        return Some((owner, *part));
    }
    if !host.uses.is_known() {
        return None;
    }
    let grown = |owner: &Owner| growth(host, window, owner).max(0.0);
    let all: f64 = uses(window).iter().map(|(owner, _)| grown(owner)).sum();
    let grew = |(owner, part): &&(Owner, f64)| 0.2 <= *part && 0.6 * all < grown(owner);
    thieves.iter().find(grew).map(|(owner, part)| (owner, *part))
}

/// CPUs that an owner uses more than usual.
fn growth(host: &Host, window: &Summary, owner: &Owner) -> f64 {
    // Here kernel threads are not distinguished from processes.
    let owner = match owner {
        Owner::KernelThread(name) => Owner::Process(name.clone()),
        owner => owner.clone(),
    };
    let now = uses(window).into_iter().find(|(other, _)| *other == owner);
    now.map_or(0.0, |(_, cpus)| cpus) - host.uses.of(&owner)
}

/// CPUs that each owner used.
pub(crate) fn uses(window: &Summary) -> Vec<(Owner, f64)> {
    let vms = window.vms.iter().map(|(name, vm)| {
        let used = vm.guest_ns() + vm.ns_in(&[VcpuTimeState::StealVmm, VcpuTimeState::HaltPolling]);
        (Owner::Vm(name.clone()), used)
    });
    vms.chain(others(window)).map(|(owner, ns)| (owner, cpus_of(window, ns))).collect()
}

/// CPU time that processes and kernel threads used.
fn others(window: &Summary) -> impl Iterator<Item = (Owner, u64)> {
    let others = window.owners.iter().filter(|(owner, _)| !matches!(owner, Owner::Vm(_)));
    others.map(|(owner, used)| (owner.clone(), used.ns))
}

fn overcommitted(host: &Host, window: &Summary, symptom: &Symptom) -> Cause {
    let cpus = |(owner, ns): (Owner, u64)| (owner, cpus_of(window, ns));
    let owners: Vec<_> = wants(window).into_iter().map(cpus).collect();
    let newcomer = host.vms.keys().find(|vm| arrived(host, vm, symptom, window));
    Cause::Overcommitted {
        wanted: owners.iter().map(|(_, cpus)| cpus).sum(),
        cpus: window.cpus,
        owners: owners.into_iter().take(NAMED).collect(),
        arrived: newcomer.cloned(),
    }
}

/// Whether a VM came when something began, and not with the host's first windows.
fn arrived(host: &Host, vm: &str, symptom: &Symptom, window: &Summary) -> bool {
    let near = near_s(window);
    let first_s = host.vms.get(vm).map_or(0, |vm| vm.first_s);
    host.first_s.saturating_add(near) < first_s && first_s.abs_diff(symptom.began_s) <= near
}

fn exits(window: &Summary, vm: &VmSummary, reason: &str, per_s: f64) -> Cause {
    let functions = vm.exits.get(reason).map_or(&[][..], |exits| &exits.functions);
    Cause::Exits { reason: reason.to_owned(), per_s, functions: named(window, functions) }
}

/// The first functions, with CPUs.
fn named(window: &Summary, functions: &[FunctionTime]) -> Vec<(Code, f64)> {
    let first = functions.iter().take(NAMED);
    first.map(|f| (f.code.clone(), cpus_of(window, f.ns))).collect()
}

fn function(
    vm: &crate::vm::Vm,
    summary: &VmSummary,
    code: &Code,
    symptom: &Symptom,
    near_s: u32,
) -> Cause {
    Cause::Function {
        code: code.clone(),
        is_lock: is_lock(code),
        is_new: is_new(symptom),
        build: vm.rebuilt(&code.module, symptom.began_s, near_s),
        caller: vm.grown_caller(summary, code),
    }
}

/// Whether threads wait for one another in a function.
pub(crate) fn is_lock(code: &Code) -> bool {
    LOCKS.iter().any(|lock| code.function.contains(lock))
}

/// What can be done; each with the CPUs that it would give back.
pub(crate) fn advice(cause: &Cause, symptoms: &[Symptom]) -> Vec<Advice> {
    let lost = |is: fn(&Measure) -> bool| -> f64 {
        let lasting = symptoms.iter().filter(|s| is(&s.series.measure) && !s.is_over);
        lasting.map(|s| s.cpus).sum()
    };
    let first = symptoms.first();
    let vm = first.and_then(|s| s.series.vm.clone()).unwrap_or_default();
    let host = first.and_then(|s| s.series.host.clone()).unwrap_or_default();
    let waited = lost(|measure| matches!(measure, Measure::StealOutside));
    let in_vmm = lost(|measure| matches!(measure, Measure::StealVmm));
    let all = |actions: Vec<Action>, cpus: f64| -> Vec<Advice> {
        actions.into_iter().map(|action| Advice { action, cpus }).collect()
    };
    match cause {
        Cause::Thief { owner: Owner::Vm(thief), .. } => all(
            vec![Action::Move(thief.clone()), Action::Pin(vm.clone()), Action::RaiseWeight(vm)],
            waited,
        ),
        Cause::Thief { owner, .. } => all(
            vec![Action::Limit(owner.clone()), Action::Pin(vm.clone()), Action::RaiseWeight(vm)],
            waited,
        ),
        Cause::Overcommitted { owners, wanted, cpus, .. } => {
            let most = owners.iter().find_map(|(owner, cpus)| match owner {
                Owner::Vm(name) => Some((name.clone(), *cpus)),
                _ => None,
            });
            let over = (wanted - f64::from(*cpus)).max(waited);
            most.map_or(Vec::new(), |(vm, cpus)| all(vec![Action::Move(vm)], cpus.min(over)))
        }
        Cause::Quota { wanted, got, others } => {
            // Who uses more of it than the VM itself uses it up.
            let sibling = others.first().filter(|(_, cpus)| got < cpus);
            let limit = sibling.map(|(sibling, _)| Action::Limit(Owner::Vm(sibling.clone())));
            all(limit.into_iter().chain([Action::RaiseQuota(vm)]).collect(), wanted - got)
        }
        Cause::Exits { reason, .. } => all(vec![Action::AvoidExits(reason.clone())], in_vmm),
        Cause::HaltPolling => {
            all(vec![Action::LowerHaltPoll], lost(|m| matches!(m, Measure::HaltPolling)))
        }
        Cause::Function { code, .. } => {
            let is_code = |m: &Measure| matches!(m, Measure::Function(_));
            all(vec![Action::Fix(code.clone())], lost(is_code))
        }
        Cause::Collection(_) | Cause::Silent => all(vec![Action::CheckAgent(host)], 0.0),
        Cause::Process { .. } | Cause::Kernel { .. } | Cause::Unknown => Vec::new(),
    }
}
