//! Adds up a host's rows, and gives ids to the rows of answers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use detect::{Action, Cause, Code, Measure, NAME_BYTES, Owner};
use model::{CpuTimeRow, VcpuTimeRow, VcpuTimeState};

use crate::source::Part;

/// Time of something.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    /// With what was lost meanwhile.
    pub(crate) apparent_ns: u64,
    /// Without.
    pub(crate) corrected_ns: u64,
    pub(crate) samples: u64,
}

/// Whether a row's VM is the one of this name in the summary, which cuts names.
pub(crate) fn is_vm(of_row: &str, vm: &str) -> bool {
    let is_cut = NAME_BYTES - 4 < vm.len();
    of_row == vm || (is_cut && of_row.starts_with(vm))
}

/// A sum for each key, the longest first.
pub(crate) fn sums<K: Ord>(items: impl IntoIterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut sums = BTreeMap::<K, u64>::new();
    for (key, ns) in items {
        *sums.entry(key).or_default() += ns;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    sums
}

impl Part {
    /// What a VM's vCPUs did.
    pub(crate) fn vcpu_rows(&self, vm: &str) -> impl Iterator<Item = &VcpuTimeRow> {
        self.results.vcpu_time.iter().map(|row| &row.row).filter(move |row| is_vm(&row.vm, vm))
    }

    /// What the host's CPUs did.
    pub(crate) fn cpu_rows(&self) -> impl Iterator<Item = &CpuTimeRow> {
        self.results.cpu_time.iter().map(|row| &row.row)
    }

    /// Time of a VM in each state, the longest first.
    pub(crate) fn states(&self, vm: &str) -> Vec<(VcpuTimeState, u64)> {
        let states = self.summary.vms.get(vm).map(|vm| vm.states.clone()).unwrap_or_default();
        sums(states)
    }

    /// Functions of a VM's guest, the longest first.
    pub(crate) fn functions(&self, vm: &str) -> Vec<(Code, Time)> {
        let mut functions = BTreeMap::<Code, Time>::new();
        for row in self.vcpu_rows(vm) {
            let (Some(function), true) = (&row.code.function, is_apparent(row)) else { continue };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (process, module) = (text(&row.code.process), text(&row.code.module));
            let code = Code { process, module, function: function.clone() };
            functions.entry(code).or_default().add(row);
        }
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by_key(|(_, time)| std::cmp::Reverse(time.apparent_ns));
        functions
    }

    /// Who had the CPU while a VM waited for one, the longest first.
    pub(crate) fn takers(&self, vm: &str) -> Vec<(Owner, u64)> {
        sums(self.vcpu_rows(vm).filter_map(|row| Some((Owner::of_thief(row)?, row.ns))))
    }
}

impl Time {
    pub(crate) fn add(&mut self, row: &VcpuTimeRow) {
        self.apparent_ns += row.ns;
        self.corrected_ns += row.corrected_ns;
        self.samples += row.samples;
    }
}

/// Whether the guest wanted to run.
pub(crate) fn is_apparent(row: &VcpuTimeRow) -> bool {
    VcpuTimeState::from_name(&row.state).is_apparent()
}

/// The id of a row: the same names give the same one.
pub(crate) fn id(kind: &str, names: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    format!("{kind}-{:08x}", hasher.finish() >> 32)
}

/// A function's id.
pub(crate) fn function_id(vm: &str, code: &Code) -> String {
    id("function", &[vm, &code.process, &code.module, &code.function])
}

/// An owner's id.
pub(crate) fn owner_id(owner: &Owner) -> String {
    id("taker", &[owner_kind(owner), owner.name()])
}

/// The id of a VM exit's reason.
pub(crate) fn exit_id(vm: &str, reason: &str) -> String {
    id("exit", &[vm, reason])
}

/// What an owner is.
pub(crate) fn owner_kind(owner: &Owner) -> &'static str {
    match owner {
        Owner::Vm(_) => "vm",
        Owner::Process(_) => "process",
        Owner::KernelThread(_) => "kernel_thread",
        Owner::Idle => "idle",
        Owner::Unknown => "unknown",
    }
}

/// What a measure is of.
pub(crate) fn measure_kind(measure: &Measure) -> &'static str {
    match measure {
        Measure::SamplesMissing => "samples_missing",
        Measure::Windows => "windows_missing",
        Measure::Demand => "demand",
        Measure::Throttled => "throttled",
        Measure::StealOutside => "steal_type_1",
        Measure::Exits(_) => "exits_per_s",
        Measure::StealVmm => "steal_type_2",
        Measure::HaltPolling => "halt_polling",
        Measure::Function(_) => "function",
        Measure::Process(_) => "process",
        Measure::Useful => "useful",
    }
}

/// A cause's kind, and the name of what it is about.
pub(crate) fn cause_words(cause: &Cause) -> (&'static str, &str) {
    match cause {
        Cause::Thief { owner, .. } => {
            let kind = match owner {
                Owner::Vm(_) => "taken_by_vm",
                Owner::Process(_) => "taken_by_process",
                Owner::KernelThread(_) => "taken_by_kernel_thread",
                Owner::Idle | Owner::Unknown => "taken_by_unknown",
            };
            (kind, owner.name())
        }
        Cause::Overcommitted { .. } => ("overcommitted", ""),
        Cause::Quota { .. } => ("cpu_quota", ""),
        Cause::Exits { reason, .. } => ("vm_exits", reason),
        Cause::HaltPolling => ("halt_polling", ""),
        Cause::Function { code, is_lock: true, .. } => ("lock_waits", &code.function),
        Cause::Function { code, .. } => ("function", &code.function),
        Cause::Process { process, .. } => ("process", process),
        Cause::Kernel { after, .. } => ("kernel_changed", after),
        Cause::Collection(_) => ("samples_lost", ""),
        Cause::Silent => ("host_silent", ""),
        Cause::Unknown => ("unknown", ""),
    }
}

/// The functions that a cause names, with CPUs.
pub(crate) fn cause_functions(cause: &Cause) -> &[(Code, f64)] {
    match cause {
        Cause::Thief { functions, .. } | Cause::Exits { functions, .. } => functions,
        _ => &[],
    }
}

/// An action's kind, and the name of what it is about.
pub(crate) fn action_words(action: &Action) -> (&'static str, &str) {
    match action {
        Action::Pin(vm) => ("pin_vm_to_own_cpus", vm),
        Action::Move(vm) => ("move_vm_to_another_host", vm),
        Action::RaiseWeight(vm) => ("raise_cpu_weight_of_vm", vm),
        Action::Limit(owner) => ("limit_or_move_taker", owner.name()),
        Action::LowerHaltPoll => ("lower_halt_poll_ns", ""),
        Action::RaiseQuota(vm) => ("raise_cpu_max_of_vm", vm),
        Action::Fix(code) => ("make_function_cheaper", &code.function),
        Action::AvoidExits(reason) => ("avoid_vm_exits", reason),
        Action::CheckAgent(host) => ("check_agent_of_host", host),
    }
}
