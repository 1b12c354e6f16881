//! A fleet that is made up: VMs with a daily rhythm, noise heavier than normal and correlated in time, jobs that come
//! every hour, windows that are missing; and faults with a known beginning and cause.

#![allow(dead_code, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use detect::{Cause, Code, ExitUse, FunctionTime, Owner, OwnerUse, Summary, VmSummary};
use model::VcpuTimeState;

/// 2026-02-02 00:00 UTC, a Monday.
pub(crate) const START_S: u32 = 1_769_990_400;
pub(crate) const WINDOW_S: u32 = 60;
const PERIOD_NS: u64 = 1_000_000;
/// Standard deviation of a function's time from window to window, as a part of it.
const FUNCTION_NOISE: f64 = 0.05;
const N_FUNCTIONS: usize = 24;

/// `SplitMix64`.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    /// 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (TAU * self.unit()).cos()
    }

    /// Student's t with 4 degrees of freedom, scaled to a variance of 1, at most 8.
    pub(crate) fn heavy(&mut self) -> f64 {
        let chi: f64 = (0..4).map(|_| self.normal().powi(2)).sum();
        (self.normal() / (chi / 4.0).sqrt() / 2f64.sqrt()).clamp(-8.0, 8.0)
    }
}

/// Noise of variance 1 whose neighbours have a correlation of 0.4.
#[derive(Debug, Clone, Default)]
struct Noise(f64);

impl Noise {
    fn next(&mut self, random: &mut Random) -> f64 {
        self.0 = 0.4 * self.0 + 0.84f64.sqrt() * random.heavy();
        self.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    DisturbingVm,
    SlowFunction,
    ExitStorm,
    Quota,
    LockConvoy,
    KernelThread,
    HaltPolling,
    Overcommit,
    Collection,
}

pub(crate) const FAULTS: [FaultKind; 9] = [
    FaultKind::DisturbingVm,
    FaultKind::SlowFunction,
    FaultKind::ExitStorm,
    FaultKind::Quota,
    FaultKind::LockConvoy,
    FaultKind::KernelThread,
    FaultKind::HaltPolling,
    FaultKind::Overcommit,
    FaultKind::Collection,
];

#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) host: usize,
    pub(crate) vm: usize,
    /// Of the VM, where it is one's.
    pub(crate) function: usize,
    /// Share of the VM's time, or factor.
    pub(crate) size: f64,
    /// s after the start.
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
}

impl Fault {
    /// Somewhere, of any size that an operator would want to hear of.
    pub(crate) fn random(
        kind: FaultKind,
        random: &mut Random,
        fleet: &Fleet,
        begin_s: f64,
    ) -> Self {
        let host = random.below(fleet.hosts.len());
        let vm = random.below(fleet.hosts[host].vms.len());
        let size = match kind {
            FaultKind::SlowFunction => random.between(1.7, 3.0),
            FaultKind::Quota | FaultKind::KernelThread => random.between(0.08, 0.3),
            FaultKind::HaltPolling | FaultKind::Collection => random.between(0.15, 0.4),
            _ => random.between(0.1, 0.4),
        };
        let function = random.below(3);
        Self { kind, host, vm, function, size, begin_s, end_s: f64::MAX }
    }

    /// Which part of a window it was there for.
    fn part(&self, from_s: f64) -> f64 {
        let to_s = from_s + f64::from(WINDOW_S);
        let inside = to_s.min(self.end_s) - from_s.max(self.begin_s);
        inside.clamp(0.0, f64::from(WINDOW_S)) / f64::from(WINDOW_S)
    }

    /// Whether a cause is the right one.
    pub(crate) fn is_caused_by(&self, cause: &Cause, fleet: &Fleet) -> bool {
        let own = &fleet.hosts[self.host].vms[self.vm];
        match (self.kind, cause) {
            (FaultKind::DisturbingVm, Cause::Thief { owner: Owner::Vm(name), functions, .. }) => {
                *name == own.name
                    && functions.first().is_some_and(|(code, _)| code.function == "burn")
            }
            (FaultKind::KernelThread, Cause::Thief { owner, functions, .. }) => {
                *owner == Owner::KernelThread("ksoftirqd".to_owned())
                    && functions.first().is_some_and(|(code, _)| code.function == "net_rx_action")
            }
            (FaultKind::SlowFunction, Cause::Function { code, build, .. }) => {
                *code == own.functions[self.function].code && build.is_some()
            }
            (FaultKind::LockConvoy, Cause::Function { is_lock, .. }) => *is_lock,
            (FaultKind::ExitStorm, Cause::Exits { reason, functions, .. }) => {
                reason == "io" && functions.first().is_some_and(|(code, _)| code.function == "outb")
            }
            (FaultKind::Quota, Cause::Quota { .. })
            | (FaultKind::HaltPolling, Cause::HaltPolling)
            | (FaultKind::Overcommit, Cause::Overcommitted { .. })
            | (FaultKind::Collection, Cause::Collection(_)) => true,
            _ => false,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) code: Code,
    share: f64,
    noise: Noise,
}

#[derive(Debug, Clone)]
pub(crate) struct Vm {
    pub(crate) name: String,
    vcpus: u32,
    /// Part of its vCPUs' time that it works, on average over a day, and by how much the day changes it.
    load: f64,
    rhythm: f64,
    phase: f64,
    /// Minutes after the hour at which a job of a few minutes comes, with its share.
    job: Option<(u32, f64)>,
    pub(crate) functions: Vec<Function>,
    noise: [Noise; 4],
    /// What is left of a blip for the next window.
    blip: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) vms: Vec<Vm>,
}

#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    pub(crate) hosts: Vec<Host>,
    pub(crate) faults: Vec<Fault>,
    /// A function that all VMs have: number and rise of its share of the guest's time from a window on.
    pub(crate) rise: Option<(f64, u32)>,
    random: Random,
    /// Part of the windows that are missing.
    missing: f64,
}

impl Fleet {
    pub(crate) fn new(seed: u64, n_hosts: usize, vms: std::ops::RangeInclusive<usize>) -> Self {
        let mut random = Random(seed);
        let mut host = |number: usize| {
            let n = vms.start() + random.below(vms.end() - vms.start() + 1);
            let vms = (0..n).map(|n| Vm::new(&format!("vm{number}-{n}"), &mut random)).collect();
            Host { name: format!("kvm{number}"), vms }
        };
        let hosts = (0..n_hosts).map(&mut host).collect();
        Self {
            hosts,
            faults: Vec::new(),
            rise: None,
            random: Random(seed ^ 0xf1ee7),
            missing: 0.01,
        }
    }

    /// The windows of all hosts with this number.
    pub(crate) fn windows(&mut self, number: u32) -> Vec<Summary> {
        let mut windows = Vec::new();
        for n in 0..self.hosts.len() {
            let window = self.window(n, number);
            if self.missing <= self.random.unit() {
                windows.push(window);
            }
        }
        windows
    }

    fn window(&mut self, n: usize, number: u32) -> Summary {
        let from_s = f64::from(number) * f64::from(WINDOW_S);
        let length_ns = u64::from(WINDOW_S) * 1_000_000_000;
        let Self { hosts, faults, rise, random, .. } = self;
        let host = &mut hosts[n];
        let vcpus: u32 = host.vms.iter().map(|vm| vm.vcpus).sum();
        let cpus = (vcpus * 17 / 20).max(1);
        let mut window = Summary {
            host: host.name.clone(),
            boot: "b".to_owned(),
            window_ns: u64::from(number) * length_ns,
            start_s: START_S + number * WINDOW_S,
            length_ns,
            cpus,
            kernel: "6.1.0".to_owned(),
            period_ns: PERIOD_NS,
            samples: u64::from(cpus) * length_ns / PERIOD_NS,
            samples_missing: (random.unit() * 2000.0) as u64,
            ..Summary::default()
        };
        let active: Vec<(&Fault, f64)> = faults
            .iter()
            .filter(|fault| fault.host == n)
            .map(|fault| (fault, fault.part(from_s)))
            .filter(|(_, part)| 0.0 < *part)
            .collect();
        let rise = rise.filter(|(_, from)| *from <= number).map_or(0.0, |(rise, _)| rise);
        let names: Vec<String> = host.vms.iter().map(|vm| vm.name.clone()).collect();
        for (n, vm) in host.vms.iter_mut().enumerate() {
            let summary = vm.window(n, &names, number, &active, rise, random);
            let functions = summary.functions.clone();
            let used = OwnerUse { ns: summary.guest_ns(), functions };
            window.owners.insert(Owner::Vm(vm.name.clone()), used);
            window.vms.insert(vm.name.clone(), summary);
        }
        let process = |ns: f64, function: &str| OwnerUse {
            ns: ns as u64,
            functions: vec![FunctionTime { code: code("", "[kernel]", function), ns: ns as u64 }],
        };
        let agent = process(random.between(0.01, 0.03) * length_ns as f64, "do_syscall_64");
        window.owners.insert(Owner::Process("sshd".to_owned()), agent);
        for (fault, part) in active {
            let ns = fault.size * part * length_ns as f64;
            match fault.kind {
                FaultKind::KernelThread => {
                    let used = process(4.0 * ns, "net_rx_action");
                    window.owners.insert(Owner::Process("ksoftirqd".to_owned()), used);
                }
                FaultKind::Collection => {
                    let missing = window.samples as f64 * fault.size * part;
                    window.samples_missing += missing as u64;
                    window.samples -= missing as u64;
                    window.health.insert("ring_full".to_owned(), missing as u64);
                }
                _ => {}
            }
        }
        window
    }
}

fn code(process: &str, module: &str, function: &str) -> Code {
    let [process, module, function] = [process, module, function].map(str::to_owned);
    Code { process, module, function }
}

impl Vm {
    fn new(name: &str, random: &mut Random) -> Self {
        let function = |n: usize| {
            let process = ["nginx", "postgres", "java", "agent"][n % 4];
            let (module, function) = match n % 6 {
                5 => ("[kernel]".to_owned(), format!("sys_{n}")),
                _ => (format!("/usr/bin/{process}"), format!("{process}_fn{n}")),
            };
            let share = 1.0 / (n as f64 + 3.0);
            Function { code: code(process, &module, &function), share, noise: Noise::default() }
        };
        let mut functions: Vec<Function> = (0..N_FUNCTIONS).map(function).collect();
        let sum: f64 = functions.iter().map(|f| f.share).sum();
        functions.iter_mut().for_each(|f| f.share /= sum);
        let job = random.below(4) == 0;
        let minute = random.below(50) as u32;
        Self {
            name: name.to_owned(),
            vcpus: 1 + random.below(4) as u32,
            load: random.between(0.15, 0.5),
            rhythm: random.between(0.0, 0.5),
            phase: random.between(-0.1, 0.1),
            job: job.then_some((minute, 0.08)),
            functions,
            noise: Default::default(),
            blip: 0.0,
        }
    }

    /// VM exits at these rates; each reason's part of the time is that of its rate.
    fn exits(
        &self,
        rates: &BTreeMap<&str, f64>,
        in_vmm: f64,
        exiting: &str,
    ) -> BTreeMap<String, ExitUse> {
        let total_ns = f64::from(self.vcpus) * f64::from(WINDOW_S) * 1e9;
        let counted: f64 = rates.values().sum();
        let exits = rates.iter().map(|(reason, rate)| {
            let ns = (in_vmm * rate / counted * total_ns) as u64;
            let by = FunctionTime { code: code("app", "[kernel]", exiting), ns };
            let count = (rate * f64::from(self.vcpus * WINDOW_S)) as u64;
            ((*reason).to_owned(), ExitUse { count, ns, functions: vec![by] })
        });
        exits.collect()
    }

    /// Its job, in three minutes of every hour.
    fn job(&self, number: u32, load: f64) -> Option<(Code, f64)> {
        let (minute, share) = self.job?;
        let now = number * WINDOW_S / 60 % 60;
        let runs = (minute..minute + 3).contains(&now);
        runs.then(|| (code("cron", "/usr/bin/rsync", "checksum"), share * load))
    }

    /// Time stolen by something that lasts for less than a minute, a few times a week.
    fn blip(&mut self, random: &mut Random) -> f64 {
        let rest = std::mem::take(&mut self.blip);
        if random.unit() < 0.001 {
            let (size, inside) = (random.between(0.05, 0.3), random.unit());
            self.blip = size * (1.0 - inside);
            return rest + size * inside;
        }
        rest
    }

    fn window(
        &mut self,
        n: usize,
        names: &[String],
        number: u32,
        faults: &[(&Fault, f64)],
        rise: f64,
        random: &mut Random,
    ) -> VmSummary {
        let day = f64::from(number * WINDOW_S) / 86_400.0;
        let noise = [0, 1, 2, 3].map(|n: usize| self.noise[n].next(random));
        let load = self.load * (1.0 + self.rhythm * (TAU * (day + self.phase)).sin());
        let load = load * (0.08 * noise[0]).exp();
        let part = |mean: f64, noise: f64| mean * (1.0 + 0.4 * noise).max(0.1);
        let mut stolen = part(0.01, noise[1]) + self.blip(random);
        let mut in_vmm = part(0.02, noise[2]);
        let mut polling = part(0.01, noise[3]);
        let mut throttled = 0.0;
        let mut rates = BTreeMap::from([("hlt", 900.0), ("msr", 1500.0), ("io", 200.0)]);
        rates.values_mut().for_each(|rate| *rate *= (0.15 * random.heavy()).exp());
        let mut times: Vec<f64> = self
            .functions
            .iter_mut()
            .map(|f| f.share * load * (FUNCTION_NOISE * f.noise.next(random)).exp())
            .collect();
        let mut thieves = vec![(Owner::Process("sshd".to_owned()), 0.3 * stolen)];
        let others = names.iter().filter(|name| **name != self.name);
        let n_others = others.clone().count().max(1) as f64;
        thieves.extend(others.clone().map(|o| (Owner::Vm(o.clone()), 0.7 * stolen / n_others)));
        let mut build = "1111".to_owned();
        let mut extra: Vec<(Code, f64)> = Vec::new();
        extra.extend(self.job(number, load));
        let mut exiting = "do_syscall";
        for (fault, part) in faults {
            let size = fault.size * part;
            let is_own = fault.vm == n;
            match fault.kind {
                FaultKind::DisturbingVm if is_own => {
                    extra.push((code("stress", "/usr/bin/stress", "burn"), 0.95 - load));
                }
                FaultKind::DisturbingVm => {
                    stolen += size;
                    thieves.push((Owner::Vm(names[fault.vm].clone()), size));
                }
                FaultKind::SlowFunction if is_own => {
                    let time = &mut times[fault.function];
                    *time *= 1.0 + (fault.size - 1.0) * part;
                    build = "2222".to_owned();
                }
                FaultKind::ExitStorm if is_own => {
                    in_vmm += size;
                    rates.entry("io").and_modify(|rate| *rate += 100_000.0 * size);
                    exiting = "outb";
                }
                FaultKind::Quota if is_own => throttled += size,
                FaultKind::LockConvoy if is_own => {
                    times.iter_mut().for_each(|time| *time *= 1.0 - size);
                    let lock = "native_queued_spin_lock_slowpath";
                    extra.push((code("postgres", "[kernel]", lock), size * load.max(0.3)));
                }
                FaultKind::KernelThread => {
                    stolen += size;
                    thieves.push((Owner::KernelThread("ksoftirqd".to_owned()), size));
                }
                FaultKind::HaltPolling if is_own => polling += size,
                FaultKind::Overcommit => {
                    times.iter_mut().for_each(|time| *time *= 0.8 / load);
                    stolen += 0.5 * size + 0.1;
                    let each = (0.5 * size + 0.1) / n_others;
                    thieves.extend(others.clone().map(|o| (Owner::Vm(o.clone()), each)));
                }
                _ => {}
            }
        }
        let sum: f64 = times.iter().sum();
        times[3] += rise * sum / (1.0 - rise);
        let total_ns = f64::from(self.vcpus) * f64::from(WINDOW_S) * 1e9;
        let codes = self.functions.iter().map(|f| f.code.clone()).zip(times).chain(extra);
        let mut functions: Vec<FunctionTime> = codes
            .map(|(code, part)| FunctionTime { code, ns: sampled(part * total_ns, random) })
            .collect();
        functions.sort_by_key(|f| std::cmp::Reverse(f.ns));
        let scale = |part: f64| (part * total_ns) as u64;
        let mut summary = VmSummary { vcpus: self.vcpus, ..VmSummary::default() };
        for function in &functions {
            *summary.processes.entry(function.code.process.clone()).or_default() += function.ns;
        }
        for (owner, part) in thieves {
            *summary.thieves.entry(owner).or_default() += scale(part);
        }
        let guest_ns = functions.iter().map(|f| f.ns).sum();
        let states = [
            (VcpuTimeState::GuestUser, guest_ns),
            (VcpuTimeState::StealOutside, scale(stolen)),
            (VcpuTimeState::StealVmm, scale(in_vmm)),
            (VcpuTimeState::HaltPolling, scale(polling)),
            (VcpuTimeState::Throttled, scale(throttled)),
        ];
        summary.states.extend(states);
        let rest = (total_ns as u64).saturating_sub(summary.total_ns());
        summary.states.insert(VcpuTimeState::Halt, rest);
        summary.exits = self.exits(&rates, in_vmm, exiting);
        summary.functions = functions;
        for process in ["nginx", "postgres", "java", "agent"] {
            summary.builds.insert(format!("/usr/bin/{process}"), build.clone());
        }
        summary
    }
}

/// As samples tell it.
fn sampled(ns: f64, random: &mut Random) -> u64 {
    let n = ns / PERIOD_NS as f64;
    ((n + n.sqrt() * random.normal()).max(0.0) * PERIOD_NS as f64) as u64
}
