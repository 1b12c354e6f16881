//! A recording of a measurement as figures: what the VMs' time went to, and what each CPU did for whom.

use std::collections::BTreeMap;
use std::net::IpAddr;

use analysis::exit_reason;
use analysis::steal::{Thief, ThiefNames, TimelineInput, balances};
use analysis::vcpu_timeline::Occupant;
use model::{CpuId, Pid, RecordConsumer, Sample, Tables, TimeAccount, VcpuId, VcpuState, VmId};

use split::{Part, Split, TimeAxis};

use crate::run::{Class, Cpu, CpuUse, Load, PartTime, Vms};
use crate::turnaround::Turnarounds;

/// Who takes part in a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmRoles {
    /// The VMs by their processes; others are the host's. (A recording gives a VM another name if it saw one of the same name.)
    pub vms: BTreeMap<u32, Class>,
    /// The load generator's process.
    pub generator: Option<u32>,
    /// vmscope's process.
    pub recorder: u32,
    /// Processes of VMs by the VM's address.
    pub addresses: BTreeMap<IpAddr, u32>,
}

/// What captured requests can't be split are called.
pub const NOT_SPLIT: &str = "not split";
/// The account of what is not in the recording.
pub const NOT_RECORDED: &str = "not_recorded";

/// What the time of the VMs of each class went to.
#[must_use]
pub fn vms(evidence: &TimelineInput<'_>, cast: &VmRoles) -> BTreeMap<Class, Vms> {
    let tables = evidence.tables;
    let names = ThiefNames::new(tables);
    let mut classes: BTreeMap<Class, Vms> = BTreeMap::new();
    for vm in &tables.vms {
        if let Some(class) = cast.vms.get(&vm.pid.0) {
            classes.entry(*class).or_default().n += 1;
        }
    }
    for (vcpu, balance) in balances(evidence, &names) {
        let Some(class) = cast.of_vcpu(tables, vcpu) else { continue };
        let sum = classes.entry(class).or_default();
        for account in TimeAccount::ALL {
            let ns = balance.accounts.get(account);
            *sum.accounts.entry(account.name().to_owned()).or_default() += ns;
        }
        for (thief, ns) in balance.thieves {
            *sum.thieves.entry(cast.thief(tables, &names, thief)).or_default() += ns;
        }
        for (reason, time) in balance.reasons {
            sum.exits.entry(reason_name(evidence, reason)).or_default().ns += time.total_ns();
        }
    }
    for exit in &tables.exits {
        let Some(class) = cast.of_vcpu(tables, exit.vcpu) else { continue };
        let exits = &mut classes.entry(class).or_default().exits;
        let sum = exits.entry(reason_name(evidence, Some(exit.reason))).or_default();
        sum.n = Some(sum.n.unwrap_or(0) + exit.count);
    }
    classes
}

/// What VMs did during the parts of captured requests' turnarounds.
#[must_use]
pub fn parts(
    evidence: &TimelineInput<'_>,
    cast: &VmRoles,
    split: &Split,
) -> BTreeMap<String, PartTime> {
    let tables = evidence.tables;
    let names = ThiefNames::new(tables);
    let row = |pid: u32| tables.vms.iter().position(|vm| vm.pid.0 == pid).map(VmId::from_index);
    let addresses = cast.addresses.iter();
    let vms = addresses.filter_map(|(address, pid)| Some((*address, row(*pid)?))).collect();
    let axis = TimeAxis { evidence: *evidence, names: &names, vms: &vms };
    let mut parts: BTreeMap<String, PartTime> = BTreeMap::new();
    for (part, _, sum) in axis.sums(split.requests.iter()) {
        let name = part.map_or(NOT_SPLIT, Part::name);
        let part = parts.entry(name.to_owned()).or_default();
        part.requests += sum.requests;
        let mut add = |account: &str, ns: u64| {
            if 0 < ns {
                *part.accounts.entry(account.to_owned()).or_default() += ns;
            }
        };
        let balance = sum.spent.balance;
        TimeAccount::ALL.iter().for_each(|of| add(of.name(), balance.accounts.get(*of)));
        add(NOT_RECORDED, sum.spent.outside_ns + sum.spent.no_vm_ns);
        for (thief, ns) in balance.thieves {
            *part.thieves.entry(cast.thief(tables, &names, thief)).or_default() += ns;
        }
        for (reason, time) in balance.reasons {
            *part.exits.entry(reason_name(evidence, reason)).or_default() += time.total_ns();
        }
    }
    parts
}

/// How captured requests to these addresses were answered: a server's own errors are failures.
#[must_use]
pub fn answered(split: Option<&Split>, addresses: &BTreeMap<IpAddr, u32>, length_ns: u64) -> Load {
    let mut turnarounds = Turnarounds::new();
    let requests = split.into_iter().flat_map(|split| &split.requests);
    for request in requests.filter(|request| addresses.contains_key(&request.server.ip())) {
        match request.status {
            500.. => turnarounds.add_failed(&format!("status {}", request.status)),
            _ => turnarounds.add(request.turnaround_ns()),
        }
    }
    Load { length_ns, turnarounds, late_p99_ns: 0, cpu_ns: 0 }
}

fn reason_name(evidence: &TimelineInput<'_>, reason: Option<u32>) -> String {
    reason.map_or_else(
        || "not known".to_owned(),
        |reason| exit_reason::name(evidence.header.vendor, reason).into_owned(),
    )
}

/// Takes samples, and tells what each CPU did: a sample stands for a period.
#[derive(Debug)]
pub struct CpuUses<'a> {
    cast: &'a VmRoles,
    tables: &'a Tables,
    names: ThiefNames<'a>,
    samples: BTreeMap<CpuId, BTreeMap<CpuUse, u64>>,
}

impl<'a> CpuUses<'a> {
    /// An observation without samples.
    #[must_use]
    pub fn new(cast: &'a VmRoles, tables: &'a Tables, cpus: &[u32]) -> Self {
        let samples = cpus.iter().map(|cpu| (CpuId(*cpu), BTreeMap::new())).collect();
        Self { cast, tables, names: ThiefNames::new(tables), samples }
    }

    /// What each CPU did in the window; what has no sample is unknown.
    #[must_use]
    pub fn finish(self, window_ns: u64, period_ns: u64) -> Vec<Cpu> {
        let cpu = |(cpu, samples): (CpuId, BTreeMap<CpuUse, u64>)| {
            let n: u64 = samples.values().sum();
            // More samples than periods: each stands for a little less.
            let reported_ns = window_ns.min(n.saturating_mul(period_ns));
            let share = |n_samples: u64| {
                u64::try_from(
                    u128::from(reported_ns) * u128::from(n_samples) / u128::from(n.max(1)),
                )
                .unwrap_or(u64::MAX)
            };
            let mut times: BTreeMap<CpuUse, u64> =
                samples.into_iter().map(|(which, n)| (which, share(n))).collect();
            let rest = window_ns - times.values().sum::<u64>();
            times.insert(CpuUse::Unknown, rest);
            Cpu { cpu: cpu.0, times }
        };
        self.samples.into_iter().map(cpu).collect()
    }

    fn which(&self, sample: &Sample) -> CpuUse {
        let (vm, is_guest) = match sample.vcpu {
            VcpuState::Guest(vcpu) => (self.vm_of(vcpu.vcpu), true),
            VcpuState::Vmm(vcpu) => (self.vm_of(vcpu.vcpu), false),
            VcpuState::None | VcpuState::Unknown => {
                let occupant = Occupant::Thread(sample.pid, sample.tid);
                let thief = self.names.thief(occupant, sample.time);
                (self.names.vm(thief), sample.vcpu == VcpuState::Unknown)
            }
        };
        let class = vm.and_then(|vm| self.cast.of_vm(self.tables, vm));
        match (class, is_guest) {
            (Some(Class::Loaded), true) => CpuUse::LoadedGuest,
            (Some(Class::Loaded), false) => CpuUse::LoadedVmm,
            (Some(Class::Idle), true) => CpuUse::IdleGuest,
            (Some(Class::Idle), false) => CpuUse::IdleVmm,
            (None, _) if sample.pid == Pid(0) => CpuUse::Idle,
            (None, _) if Some(sample.pid.0) == self.cast.generator => CpuUse::Generator,
            (None, _) if sample.pid.0 == self.cast.recorder => CpuUse::Recorder,
            (None, _) => CpuUse::Host,
        }
    }

    fn vm_of(&self, vcpu: VcpuId) -> Option<VmId> {
        self.tables.vcpus.get(vcpu.index()).map(|row| row.vm)
    }
}

impl RecordConsumer for CpuUses<'_> {
    fn push_sample(&mut self, sample: &Sample) {
        let which = self.which(sample);
        *self.samples.entry(sample.cpu).or_default().entry(which).or_default() += 1;
    }
}

impl VmRoles {
    fn of_vm(&self, tables: &Tables, vm: VmId) -> Option<Class> {
        self.vms.get(&tables.vms.get(vm.index())?.pid.0).copied()
    }

    fn of_vcpu(&self, tables: &Tables, vcpu: VcpuId) -> Option<Class> {
        self.of_vm(tables, tables.vcpus.get(vcpu.index())?.vm)
    }

    /// Thieves of one kind under one name: a step has dozens of VMs.
    fn thief(&self, tables: &Tables, names: &ThiefNames<'_>, thief: Thief) -> String {
        match (names.vm(thief).map(|vm| self.of_vm(tables, vm)), thief) {
            (Some(Some(Class::Loaded)), _) => "loaded VMs".to_owned(),
            (Some(Some(Class::Idle)), _) => "idle VMs".to_owned(),
            (Some(None), _) => "other VMs".to_owned(),
            (None, Thief::Process(image)) => {
                let pid = tables.images.get(image.index()).map(|image| image.pid.0);
                match pid {
                    Some(pid) if Some(pid) == self.generator => "the load generator".to_owned(),
                    Some(pid) if pid == self.recorder => "vmscope".to_owned(),
                    _ => "other processes".to_owned(),
                }
            }
            (None, Thief::UnseenProcess(pid)) if Some(pid.0) == self.generator => {
                "the load generator".to_owned()
            }
            (None, Thief::UnseenProcess(_)) => "other processes".to_owned(),
            (None, Thief::KernelThread(_)) => "kernel threads".to_owned(),
            (None, Thief::Idle) => "none: on its way to the CPU".to_owned(),
            (None, _) => "not known".to_owned(),
        }
    }
}
