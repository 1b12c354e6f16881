//! A window's result rows, summed up.

use std::collections::BTreeMap;

use model::{CpuTimeRow, ResultCode, ResultStack, Results, VcpuTimeRow, VcpuTimeState, VmLabels};

use crate::summary::{bounded, without_cpu};
use crate::{
    CallerTime, Code, FunctionTime, MAX_CALLERS, MAX_FUNCTIONS, MAX_OTHERS, MAX_VMS, Owner,
    Summary, VmSummary,
};

/// Guest functions of an exit reason at most.
const MAX_EXITING: usize = 3;

impl Summary {
    /// From a window's rows. Empty `hosts` give `None`: the rows are no window's.
    #[must_use]
    pub fn from_results(results: &Results) -> Option<Self> {
        let host = results.hosts.first()?;
        let start_s = host.slice_unix_us.div_euclid(1_000_000);
        let mut summary = Self {
            host: bounded(&host.window.host),
            boot: bounded(&host.window.boot),
            window_ns: host.window.window_ns,
            start_s: u32::try_from(start_s).unwrap_or(0),
            length_ns: host.row.length_ns,
            cpus: host.row.cpus,
            kernel: bounded(&host.row.kernel),
            period_ns: host.row.period_ns,
            samples: host.row.samples,
            samples_missing: host.row.samples_lost.saturating_add(host.row.samples_missed),
            ..Self::default()
        };
        for vm in results.vms.iter().map(|row| &row.row) {
            let labels = VmLabels::NAMES.into_iter().zip(vm.labels.values());
            let labels =
                labels.filter_map(|(name, value)| Some((name.to_owned(), bounded(value?))));
            let labels = labels.collect();
            let kept = VmSummary { vcpus: vm.vcpus, labels, ..VmSummary::default() };
            summary.vms.insert(bounded(&vm.vm), kept);
        }
        while MAX_VMS < summary.vms.len() {
            summary.vms.pop_last();
        }
        summary.take_vcpu_time(results.vcpu_time.iter().map(|row| &row.row));
        for exits in results.exits.iter().map(|row| &row.row) {
            if let Some(vm) = summary.vms.get_mut(&bounded(&exits.vm)) {
                let reason = vm.exits.entry(bounded(&exits.exit_reason)).or_default();
                reason.count = reason.count.saturating_add(exits.exits);
            }
        }
        summary.take_cpu_time(results.cpu_time.iter().map(|row| &row.row));
        for health in results.health.iter().map(|row| &row.row) {
            let Some(count) = health.count else { continue };
            let what = summary.health.entry(bounded(&health.what)).or_default();
            *what = what.saturating_add(count);
        }
        keep_most(&mut summary.health, MAX_OTHERS, |count| *count);
        Some(summary)
    }

    fn take_vcpu_time<'r>(&mut self, rows: impl Iterator<Item = &'r VcpuTimeRow>) {
        let mut functions: BTreeMap<(String, Code), u64> = BTreeMap::new();
        let mut callers: BTreeMap<(String, Code, String), u64> = BTreeMap::new();
        let mut exiting: BTreeMap<(String, String, Code), u64> = BTreeMap::new();
        let mut builds: BTreeMap<(String, String), BTreeMap<String, u64>> = BTreeMap::new();
        for row in rows {
            let name = bounded(&row.vm);
            let Some(vm) = self.vms.get_mut(&name) else { continue };
            let state = VcpuTimeState::from_name(&row.state);
            *vm.states.entry(state).or_default() += row.ns;
            if let Some(owner) = Owner::of_thief(row) {
                *vm.thieves.entry(owner).or_default() += row.ns;
            }
            if let Some(reason) = &row.exit_reason {
                let reason = bounded(reason);
                vm.exits.entry(reason.clone()).or_default().ns += row.ns;
                *exiting.entry((name, reason, code(&row.code))).or_default() += row.ns;
            } else if 0 < row.corrected_ns && row.code.process.is_some() {
                let code = code(&row.code);
                *vm.processes.entry(code.process.clone()).or_default() += row.corrected_ns;
                if let Some(build) = &row.code.build_id {
                    let module = builds.entry((name.clone(), code.module.clone())).or_default();
                    *module.entry(bounded(build)).or_default() += row.corrected_ns;
                }
                if let Some(caller) =
                    row.stack.as_ref().and_then(|it| ResultStack::names(&it.functions).nth_back(1))
                {
                    let key = (name.clone(), code.clone(), bounded(&caller));
                    *callers.entry(key).or_default() += row.corrected_ns;
                }
                *functions.entry((name, code)).or_default() += row.corrected_ns;
            }
        }
        for ((vm, code), ns) in functions {
            if let Some(vm) = self.vms.get_mut(&vm).filter(|_| !code.function.is_empty()) {
                vm.functions.push(FunctionTime { code, ns });
            }
        }
        for ((vm, code, caller), ns) in callers {
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.callers.push(CallerTime { code, caller, ns });
            }
        }
        for ((vm, reason, code), ns) in exiting {
            let vm = self.vms.get_mut(&vm).filter(|_| !code.function.is_empty());
            if let Some(exits) = vm.and_then(|vm| vm.exits.get_mut(&reason)) {
                exits.functions.push(FunctionTime { code, ns });
            }
        }
        for vm in self.vms.values_mut() {
            keep_longest(&mut vm.functions, MAX_FUNCTIONS);
            vm.callers.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.code.cmp(&b.code)));
            vm.callers.truncate(MAX_CALLERS);
            keep_most(&mut vm.processes, MAX_OTHERS, |ns| *ns);
            keep_most(&mut vm.thieves, MAX_OTHERS, |ns| *ns);
            keep_most(&mut vm.exits, MAX_OTHERS, |exits| exits.ns.max(exits.count));
            vm.exits.values_mut().for_each(|e| keep_longest(&mut e.functions, MAX_EXITING));
        }
        for ((vm, module), times) in builds {
            let runs = |vm: &&mut VmSummary| vm.functions.iter().any(|f| f.code.module == module);
            let vm = self.vms.get_mut(&vm).filter(runs);
            // Containers may have other builds under the same path.
            let most = times.into_iter().max_by_key(|(_, ns)| *ns);
            if let (Some(vm), Some((build, _))) = (vm, most) {
                vm.builds.insert(module, build);
            }
        }
    }

    fn take_cpu_time<'r>(&mut self, rows: impl Iterator<Item = &'r CpuTimeRow>) {
        let mut functions: BTreeMap<(Owner, Code), u64> = BTreeMap::new();
        for row in rows {
            let Some(owner) = cpu_owner(row) else { continue };
            self.owners.entry(owner.clone()).or_default().ns += row.ns;
            *functions.entry((owner, code(&row.code))).or_default() += row.ns;
        }
        for ((owner, code), ns) in functions {
            let owner = self.owners.get_mut(&owner).filter(|_| !code.function.is_empty());
            if let Some(owner) = owner {
                owner.functions.push(FunctionTime { code, ns });
            }
        }
        keep_most(&mut self.owners, MAX_VMS + MAX_OTHERS, |owner| owner.ns);
        self.owners.values_mut().for_each(|o| keep_longest(&mut o.functions, MAX_FUNCTIONS));
    }
}

/// `None`: the CPU was idle.
fn cpu_owner(row: &CpuTimeRow) -> Option<Owner> {
    if let Some(vm) = &row.vm {
        return Some(Owner::Vm(bounded(vm)));
    }
    let process = row.code.process.as_deref()?;
    match row.level.as_str() {
        "idle" | "not_sampled" => None,
        // `cpu_time` does not say whether it is a kernel thread.
        "host_kernel" => Some(Owner::Process(without_cpu(process))),
        _ => Some(Owner::Process(bounded(process))),
    }
}

fn code(code: &ResultCode) -> Code {
    let name = |name: &Option<String>| bounded(name.as_deref().unwrap_or_default());
    Code {
        process: name(&code.process),
        module: name(&code.module),
        function: name(&code.function),
    }
}

fn keep_longest(functions: &mut Vec<FunctionTime>, n: usize) {
    functions.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.code.cmp(&b.code)));
    functions.truncate(n);
}

/// Keeps the `n` with most; among equals those with the first names.
fn keep_most<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, n: usize, most: impl Fn(&V) -> u64) {
    if map.len() <= n {
        return;
    }
    let mut order: Vec<(u64, K)> =
        map.iter().map(|(key, value)| (most(value), key.clone())).collect();
    order.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    order[n..].iter().for_each(|(_, key)| drop(map.remove(key)));
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use model::{
        ExitsRow, HealthRow, HostRow, ResultRow, ResultThief, ThiefKind, VmRow, WindowKey,
    };

    use super::*;
    use crate::NAME_BYTES;

    fn row<T>(row: T) -> ResultRow<T> {
        let window =
            WindowKey { host: "kvm1".to_owned(), boot: "b".to_owned(), window_ns: 60_000_000_000 };
        ResultRow { window: Arc::new(window), slice_unix_us: 1_700_000_000_000_000, row }
    }

    fn host() -> HostRow {
        HostRow {
            length_ns: 60_000_000_000,
            hostname: "h".to_owned(),
            kernel: "6.1".to_owned(),
            vmscope_version: "0".to_owned(),
            period_ns: 1_000_000,
            cpus: 4,
            vms: 1,
            samples: 240_000,
            samples_lost: 3,
            samples_missed: 4,
        }
    }

    fn vm(name: &str) -> VmRow {
        let vm = name.to_owned();
        VmRow {
            vm,
            pid: 1,
            vcpus: 2,
            vcpu_ns: 0,
            steal_outside_ns: None,
            steal_vmm_ns: None,
            throttled_ns: None,
            map_via: None,
            no_map_reason: None,
            labels: model::VmLabels { project: Some("shop".into()), ..Default::default() },
        }
    }

    /// `state process function thief exit_reason ns`, `-`: none.
    fn vcpu_time(line: &str) -> VcpuTimeRow {
        let words: Vec<&str> = line.split(' ').collect();
        let word = |n: usize| (words[n] != "-").then(|| words[n].replace('_', " "));
        let state = words[0].to_owned();
        let ns = words[5].parse().unwrap();
        let (process, function, module) = (word(1), word(2), Some("/m".to_owned()));
        VcpuTimeRow {
            vm: "a".to_owned(),
            vcpu: 0,
            code: ResultCode {
                process,
                build_id: function.as_ref().map(|name| format!("{name}{name}")),
                function,
                module,
                ..ResultCode::default()
            },
            stack: None,
            thief: word(3),
            thief_vm: word(3).filter(|t| t.contains("vcpu")).map(|_| "b".to_owned()),
            thief_is: None,
            exit_reason: word(4),
            ns,
            corrected_ns: if state.starts_with("guest") { ns } else { 0 },
            samples: 1,
            state,
        }
    }

    #[test]
    fn a_process_is_one_whatever_it_calls_itself() {
        let row = |kind, name: Option<&str>, vm: Option<&str>| {
            let thief = Some(format!("{} (42)", name.unwrap_or("[unknown]")));
            let name = name.map(str::to_owned);
            let thief_is = Some(ResultThief { kind, name, pid: Some(42) });
            let thief_vm = vm.map(str::to_owned);
            VcpuTimeRow { thief, thief_vm, thief_is, ..vcpu_time("steal_outside - - - - 1") }
        };
        let check = |row: VcpuTimeRow, expected: Owner| {
            assert_eq!(Owner::of_thief(&row), Some(expected), "{row:?}");
        };
        for name in ["[idle]", "[unknown]", "[kvm]", "VM web", "web vcpu0", "a (b)"] {
            check(row(ThiefKind::Process, Some(name), None), Owner::Process(name.to_owned()));
        }
        let thread = Owner::KernelThread("ksoftirqd".to_owned());
        check(row(ThiefKind::KernelThread, Some("ksoftirqd/0"), None), thread);
        check(row(ThiefKind::Process, None, None), Owner::Unknown);
        check(row(ThiefKind::Idle, None, None), Owner::Idle);
        check(row(ThiefKind::Vcpu, None, Some("b")), Owner::Vm("b".to_owned()));
        assert_eq!(Owner::of_thief(&vcpu_time("halt - - - - 1")), None);
    }

    #[test]
    fn rows_are_added_up() {
        let lines = [
            "guest_user app f - - 10",
            "guest_user app g - - 30",
            "guest_kernel app f - - 15",
            "guest_user app - - - 5",
            "steal_outside app f b_vcpu0 - 7",
            "steal_outside app g postgres_(300) - 8",
            "steal_outside app g [ksoftirqd/3]_(14) - 9",
            "steal_vmm app g - io 4",
            "steal_vmm_waiting app f - io 6",
            "halt - - - - 100",
        ];
        let exits =
            ExitsRow { vm: "a".to_owned(), vcpu: 0, exit_reason: "io".to_owned(), exits: 9 };
        let lost =
            HealthRow { subject: "host".to_owned(), what: "lost".to_owned(), count: Some(2) };
        let results = Results {
            vcpu_time: lines.iter().map(|line| row(vcpu_time(line))).collect(),
            exits: vec![row(exits.clone()), row(exits)],
            hosts: vec![row(host())],
            vms: vec![row(vm("a"))],
            health: vec![row(lost)],
            ..Results::default()
        };
        let summary = Summary::from_results(&results).unwrap();
        assert_eq!((summary.start_s, summary.samples_missing), (1_700_000_000, 7));
        assert_eq!(summary.health, BTreeMap::from([("lost".to_owned(), 2)]));
        let vm = &summary.vms["a"];
        assert_eq!([vm.total_ns(), vm.guest_ns(), vm.demand_ns()], [194, 60, 94]);
        let functions: Vec<_> =
            vm.functions.iter().map(|f| (f.code.function.as_str(), f.ns)).collect();
        assert_eq!(functions, [("g", 30), ("f", 25)]);
        assert_eq!(vm.processes, BTreeMap::from([("app".to_owned(), 60)]));
        // 30 ns of one build, 25 ns of another.
        assert_eq!(vm.builds, BTreeMap::from([("/m".to_owned(), "gg".to_owned())]));
        let thieves = BTreeMap::from([
            (Owner::Vm("b".to_owned()), 7),
            (Owner::Process("postgres".to_owned()), 8),
            (Owner::KernelThread("ksoftirqd".to_owned()), 9),
        ]);
        assert_eq!(vm.thieves, thieves);
        let io = &vm.exits["io"];
        assert_eq!((io.count, io.ns, io.functions[0].code.function.as_str()), (18, 10, "f"));
    }

    #[test]
    fn what_a_guest_can_multiply_is_bounded() {
        let long = "é".repeat(10_000);
        let line = |n: u64| {
            let row = vcpu_time(&format!("guest_user - - - - {n}"));
            let process = Some(format!("{}{long}", n % 1000));
            let function = Some(format!("{n}{long}"));
            let functions =
                ResultStack::join(["main", "a;b", function.as_deref().unwrap()].into_iter());
            let stack = Some(ResultStack { functions, n_kernel: 0 });
            let code = ResultCode { process, function, ..ResultCode::default() };
            VcpuTimeRow { code, stack, ..row }
        };
        let results = Results {
            vcpu_time: (1..5000).map(|n| row(line(n))).collect(),
            hosts: vec![row(host())],
            vms: (0..600).map(|n| row(vm(&format!("vm{n:03}")))).chain([row(vm("a"))]).collect(),
            ..Results::default()
        };
        let summary = Summary::from_results(&results).unwrap();
        assert_eq!(summary.vms.len(), MAX_VMS);
        let vm = &summary.vms["a"];
        assert_eq!((vm.functions.len(), vm.processes.len()), (MAX_FUNCTIONS, MAX_OTHERS));
        assert_eq!(vm.functions[0].ns, 4999);
        assert_eq!((vm.callers.len(), vm.callers[0].ns), (MAX_CALLERS, 4999));
        assert!(vm.callers.iter().all(|it| it.caller == "a;b"));
        assert!(vm.functions.iter().all(|f| f.code.function.len() <= NAME_BYTES));
        assert_eq!(vm.guest_ns(), (1..5000).sum::<u64>());
        assert_eq!(Summary::from_results(&Results::default()), None);
    }
}
