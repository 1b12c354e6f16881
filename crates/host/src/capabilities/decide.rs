//! What the facts mean.

use model::Vendor;

use super::{Area, AreaVerdict, Facts, Finding, State, Trial, Trials, Verdict};

/// The oldest kernel that vmscope is tried on.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// From here on perf asks KVM for a guest's IP before the BPF program runs.
const GUEST_IP_ON_INTEL: (u32, u32) = (6, 3);

/// Samples a second at the default period.
const DEFAULT_RATE: i64 = 1000;

/// Memory that the kernel lets every user lock for perf rings of one CPU, KiB: ours and its header.
const RING_KB: i64 = 516;

/// Bits of the capability sets (include/uapi/linux/capability.h).
mod capability {
    pub(super) const NET_BIND_SERVICE: u32 = 10;
    pub(super) const IPC_LOCK: u32 = 14;
    pub(super) const SYS_PTRACE: u32 = 19;
    pub(super) const SYS_ADMIN: u32 = 21;
    pub(super) const SYSLOG: u32 = 34;
    pub(super) const PERFMON: u32 = 38;
    pub(super) const BPF: u32 = 39;
    pub(super) const CHECKPOINT_RESTORE: u32 = 40;
}

/// `kernel.perf_event_paranoid` up to which the kernel asks for CAP_PERFMON; distributions have higher ones, which are stricter.
const MOST_PARANOID: i64 = 2;

/// All findings: the host's first, each area in order of importance.
#[must_use]
pub fn findings(facts: &Facts, trials: &Trials) -> Vec<Finding> {
    let host = [
        privileges(facts),
        pid_namespace(facts),
        kernel(facts),
        bpf(facts),
        btf(facts),
        lockdown(facts),
        perf_events(facts),
        locked_memory(facts),
        kernel_names(facts),
        cycle_counter(facts),
    ];
    let guests = [kvm(facts), registers(facts), kvm_types(facts), vsock(facts), vpmu(facts)];
    let mut all: Vec<Finding> = host.into();
    all.push(sampler(&trials.sampler));
    all.push(child(&trials.child, trials.landlock));
    all.extend(guests);
    all.push(guest_trial(trials));
    all.extend(trials.vms.as_deref().map(running_vms));
    all
}

/// What the findings come to.
#[must_use]
pub fn verdict(findings: &[Finding]) -> Verdict {
    let of = |area: Area| {
        let in_area = || findings.iter().filter(move |finding| finding.area == area);
        let state = in_area().map(|finding| finding.state).max().unwrap_or(State::Works);
        let worst = in_area().filter(|finding| finding.state == state && state != State::Works);
        let reason = |finding: &Finding| format!("{}: {}", finding.what, finding.reason);
        AreaVerdict { state, reasons: worst.map(reason).collect() }
    };
    Verdict { host: of(Area::Host), guests: of(Area::Guests) }
}

/// A thing that was looked at, before it is known how it is.
struct Requirement(Area, &'static str);

impl Requirement {
    fn works(self, reason: impl Into<String>) -> Finding {
        self.finding(State::Works, reason.into(), None)
    }

    fn limited(self, reason: impl Into<String>, advice: &str) -> Finding {
        self.finding(State::Limited, reason.into(), Some(advice.to_owned()))
    }

    /// Nothing can be done about it.
    fn limited_for_good(self, reason: impl Into<String>) -> Finding {
        self.finding(State::Limited, reason.into(), None)
    }

    fn missing(self, reason: impl Into<String>, advice: &str) -> Finding {
        self.finding(State::Missing, reason.into(), Some(advice.to_owned()))
    }

    fn finding(self, state: State, reason: String, advice: Option<String>) -> Finding {
        Finding { area: self.0, what: self.1, state, reason, advice }
    }
}

fn has(facts: &Facts, capability: u32) -> bool {
    facts.process.capabilities >> capability & 1 == 1
}

fn privileges(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "privileges");
    let admin = has(facts, capability::SYS_ADMIN);
    let sampling = has(facts, capability::BPF) && has(facts, capability::PERFMON);
    if !admin && !sampling {
        return thing
            .missing("not root: sampling needs CAP_BPF and CAP_PERFMON", "run it with sudo");
    }
    let paranoid = facts.perf.paranoid.unwrap_or(0);
    if !admin && MOST_PARANOID < paranoid {
        return thing.missing(
            format!("kernel.perf_event_paranoid is {paranoid}: perf events need CAP_SYS_ADMIN"),
            "add CAP_SYS_ADMIN, or run it with sudo",
        );
    }
    if !facts.process.host_users {
        return thing.missing(
            "root in a user namespace only, which may neither sample nor load BPF",
            "run it on the host, as root there",
        );
    }
    let files = admin || has(facts, capability::CHECKPOINT_RESTORE);
    if !has(facts, capability::SYS_PTRACE) || !has(facts, capability::SYSLOG) || !files {
        return thing.limited(
            "other users' processes or the kernel will have no names",
            "add CAP_SYS_PTRACE, CAP_SYSLOG and CAP_CHECKPOINT_RESTORE, or run it with sudo",
        );
    }
    thing.works("sufficient for sampling and naming")
}

fn pid_namespace(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "process ids");
    if facts.process.host_pids {
        return thing.works("those of the host");
    }
    thing.missing(
        "this container has its own PID namespace: samples cannot be matched to processes",
        "run it on the host, or in a container with the host's (--pid=host --privileged)",
    )
}

fn kernel(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "kernel");
    let release = &facts.kernel.release;
    match version(release) {
        Some(version) if OLDEST_KERNEL <= version => thing.works(release.clone()),
        Some(_) => thing.missing(
            format!("{release} is older than {}.{}", OLDEST_KERNEL.0, OLDEST_KERNEL.1),
            "use Debian 12's kernel or a later one",
        ),
        None => thing.limited("its version could not be read", "check that /proc is mounted"),
    }
}

/// `6.1.0-18-amd64` is (6, 1).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn bpf(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "BPF");
    match facts.kernel.unprivileged_bpf_disabled {
        None => thing.missing(
            "this kernel has no bpf system call, or /proc/sys is not mounted",
            "use a kernel built with CONFIG_BPF_SYSCALL",
        ),
        Some(0) => thing.works("allowed, for unprivileged users too"),
        Some(_) => thing.works("allowed for root"),
    }
}

fn btf(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "kernel types (BTF)");
    if facts.kernel.btf {
        return thing.works("/sys/kernel/btf/vmlinux");
    }
    thing.missing(
        "no /sys/kernel/btf/vmlinux: the sampler needs the kernel's BTF",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF (all of Debian's are)",
    )
}

fn lockdown(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "lockdown");
    match facts.kernel.lockdown.as_deref() {
        None => thing.works("this kernel has none"),
        Some("confidentiality") => thing.missing(
            "confidentiality: BPF may not read kernel memory",
            "boot with lockdown=integrity, or without lockdown",
        ),
        Some(mode) => thing.works(format!("{mode}: does not affect sampling")),
    }
}

fn perf_events(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "perf events");
    if facts.perf.paranoid.is_none() {
        return thing.missing(
            "this kernel has none, or /proc/sys is not mounted",
            "use a kernel built with CONFIG_PERF_EVENTS",
        );
    }
    match facts.perf.max_sample_rate {
        Some(rate) if rate < DEFAULT_RATE => thing.limited(
            format!("at most {rate} samples a second and CPU: some will be missed at 1 ms"),
            "sysctl kernel.perf_event_max_sample_rate=100000, or record with a longer --period",
        ),
        Some(rate) => {
            let shortest_us = (1_000_000 / rate).max(100);
            thing.works(format!(
                "up to {rate} samples a second and CPU: periods from {shortest_us} us"
            ))
        }
        None => thing.works("the kernel reports no limit"),
    }
}

fn locked_memory(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "locked memory");
    let enough_for_all = facts.perf.mlock_kb.is_none_or(|kb| RING_KB <= kb);
    let own = facts.process.memlock;
    if has(facts, capability::IPC_LOCK) || own.is_none() || enough_for_all {
        return thing.works("enough for the rings");
    }
    thing.limited(
        "perf's rings may not fit: starts and ends of processes could be missed",
        "sysctl kernel.perf_event_mlock_kb=516, or ulimit -l unlimited",
    )
}

fn kernel_names(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "kernel symbols");
    match facts.kernel.kptr_restrict {
        Some(2) => thing.limited(
            "hidden from all users (kernel.kptr_restrict=2): kernel functions will have no names",
            "sysctl kernel.kptr_restrict=1",
        ),
        _ if has(facts, capability::SYSLOG) => thing.works("/proc/kallsyms shows addresses"),
        _ => thing.limited(
            "hidden from this user: kernel functions will have no names",
            "run it with sudo",
        ),
    }
}

fn cycle_counter(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Host, "cycle counter (PMU)");
    if !facts.perf.pmu {
        return thing.limited(
            "none: sampling uses a kernel timer, which cannot see code with interrupts off",
            "in a virtual machine its VMM may offer a virtual PMU",
        );
    }
    if facts.kvm.mediated_pmu {
        return thing.limited(
            "KVM's mediated vPMU is on: an open cycle counter would keep VMs from starting",
            "record with --trigger cpu-clock (the default)",
        );
    }
    thing.works("available for --trigger cycles")
}

fn sampler(trial: &Trial) -> Finding {
    let thing = Requirement(Area::Host, "sampler");
    match trial {
        Trial::Passed => thing.works("loaded, attached and removed again"),
        Trial::Failed(reason) => {
            thing.missing(reason.clone(), "see the lines above for the likely cause")
        }
        Trial::NotTried(reason) => thing.limited(format!("not tried: {reason}"), "see above"),
    }
}

fn child(trial: &Trial, landlock: bool) -> Finding {
    let thing = Requirement(Area::Host, "unprivileged child");
    match trial {
        Trial::Passed if landlock => thing.works("started; it reads host programs' files"),
        Trial::Passed => thing.limited(
            "started, but the kernel has no Landlock: seccomp alone keeps it from files".to_owned(),
            "add landlock to the kernel's lsm= (Linux 5.13 or later)",
        ),
        Trial::Failed(reason) | Trial::NotTried(reason) => thing.limited(
            format!("{reason}: functions of host programs have no names"),
            "use a kernel built with CONFIG_SECCOMP_FILTER, in a container allow seccomp",
        ),
    }
}

fn kvm(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Guests, "KVM");
    let vendors = ["kvm_amd", "kvm_intel"];
    let module = facts.kvm.modules.iter().find(|module| vendors.contains(&module.as_str()));
    match (module, facts.kvm.modules.first()) {
        (Some(module), _) if facts.kvm.device => {
            let nested = if facts.kvm.nested { ", guests may be hosts" } else { "" };
            thing.works(format!("{module}{nested}"))
        }
        (Some(module), _) => thing.missing(
            format!("{module} is loaded but there is no /dev/kvm"),
            "run it where /dev is the host's",
        ),
        (None, Some(other)) => thing.missing(
            format!(
                "provided by {other}, neither AMD's nor Intel's: its guests cannot be inspected"
            ),
            "`vmscope demo` brings its own virtual KVM host",
        ),
        (None, None) if facts.cpu_virtualises => {
            thing.missing("its module is not loaded", "modprobe kvm_amd or kvm_intel")
        }
        (None, None) => thing.missing(
            "missing, and the CPU has no virtualisation",
            "enable it in the firmware; `vmscope demo` brings its own virtual KVM host",
        ),
    }
}

fn registers(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Guests, "guest registers");
    match facts.vendor {
        Vendor::Amd if kvm(facts).state != State::Works => thing.limited(
            "AMD: address, page tables and thread of every sample, as soon as KVM works",
            "see KVM",
        ),
        Vendor::Amd => thing.works("AMD: address, page tables and thread of every sample"),
        Vendor::Intel if version(&facts.kernel.release) < Some(GUEST_IP_ON_INTEL) => thing.limited(
            "Intel: neither page tables nor, before kernel 6.3, addresses can be read",
            "use kernel 6.3 or later; guests show as one line each",
        ),
        Vendor::Intel => thing.limited_for_good(
            "Intel: no page tables: guests whose memory is not read have kernel functions, and users as one line",
        ),
        Vendor::Other => thing.missing("neither AMD nor Intel", "use an x86-64 host"),
    }
}

fn kvm_types(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Guests, "KVM types (BTF)");
    let kvm = &facts.kvm;
    if kvm.modules.is_empty() {
        return thing.limited("not known: no KVM module is loaded", "see KVM");
    }
    if kvm.modules_with_btf.is_empty() {
        // A built-in module's types are the kernel's own; then there is no file to see.
        return thing.limited(
            format!("none for {}, unless it is built into the kernel", kvm.modules.join(", ")),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF_MODULES (all of Debian's are)",
        );
    }
    if !has(facts, capability::SYS_ADMIN) {
        return thing.limited(
            format!("those of {} need CAP_SYS_ADMIN", kvm.modules_with_btf.join(", ")),
            "add CAP_SYS_ADMIN, or run it with sudo",
        );
    }
    thing.works(kvm.modules_with_btf.join(", "))
}

fn vsock(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Guests, "vsock");
    if facts.vhost_vsock && !has(facts, capability::NET_BIND_SERVICE) {
        return thing.limited(
            "guests answer privileged ports only, which this user may not use",
            "add CAP_NET_BIND_SERVICE, or run it with sudo",
        );
    }
    if facts.vhost_vsock {
        return thing.works("/dev/vhost-vsock");
    }
    thing.limited(
        "no /dev/vhost-vsock: names come from guests' memory; vmscope-guest needs a virtio-serial port",
        "modprobe vhost_vsock",
    )
}

fn vpmu(facts: &Facts) -> Finding {
    let thing = Requirement(Area::Guests, "mediated vPMU");
    if facts.kvm.mediated_pmu {
        return thing.works("on: guests count by themselves; --trigger cycles is refused");
    }
    thing.works("off")
}

fn guest_trial(trials: &Trials) -> Finding {
    let thing = Requirement(Area::Guests, "running a guest");
    if trials.vms.as_ref().is_some_and(|names| !names.is_empty()) {
        return thing.works("VMs are running");
    }
    match &trials.guest {
        Trial::Passed => thing.works("a small guest ran under /dev/kvm"),
        Trial::Failed(reason) => thing.missing(
            reason.clone(),
            "check that VMs run here; `vmscope demo` brings its own virtual KVM host",
        ),
        Trial::NotTried(reason) => thing.limited_for_good(format!("not tried: {reason}")),
    }
}

fn running_vms(names: &[String]) -> Finding {
    let thing = Requirement(Area::Guests, "running VMs");
    match names {
        [] => thing.works("none now; those that start while recording are picked up"),
        names => thing.works(format!("{}: {}", names.len(), names.join(", "))),
    }
}
