//! Reading the facts below a root.

use std::fs;
use std::path::Path;

use super::{Facts, KernelFacts, KvmFacts, PerfFacts, ProcessFacts};
use crate::machine;

/// Inodes of the first namespaces of a kernel (include/linux/proc_ns.h, `PROC_PID_INIT_INO`,
/// `PROC_USER_INIT_INO`).
const HOST_PIDS: &str = "pid:[4026531836]";
const HOST_USERS: &str = "user:[4026531837]";

impl Facts {
    /// Reads `proc`, `sys` and `dev` below `root` (`/` for the machine itself).
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let proc = root.join("proc");
        Self {
            kernel: kernel(root),
            process: process(&proc.join("self")),
            vendor: machine::vendor(&proc),
            cpu_virtualises: cpu_virtualises(&proc),
            kvm: kvm(root),
            perf: perf(root),
            vhost_vsock: root.join("dev/vhost-vsock").exists(),
        }
    }
}

fn kernel(root: &Path) -> KernelFacts {
    let sysctl = root.join("proc/sys/kernel");
    let lockdown = fs::read_to_string(root.join("sys/kernel/security/lockdown")).ok();
    KernelFacts {
        release: machine::kernel_release(&root.join("proc")),
        lockdown: lockdown.and_then(|text| chosen(&text)),
        btf: root.join("sys/kernel/btf/vmlinux").exists(),
        unprivileged_bpf_disabled: number(&sysctl.join("unprivileged_bpf_disabled")),
        kptr_restrict: number(&sysctl.join("kptr_restrict")),
    }
}

/// The word in brackets: `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn process(own: &Path) -> ProcessFacts {
    let status = fs::read_to_string(own.join("status")).unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let is = |namespace: &str, first: &str| {
        fs::read_link(own.join("ns").join(namespace)).is_ok_and(|link| link == Path::new(first))
    };
    ProcessFacts {
        capabilities: capabilities.unwrap_or_default(),
        host_pids: is("pid", HOST_PIDS),
        host_users: is("user", HOST_USERS),
        memlock: memlock(&fs::read_to_string(own.join("limits")).unwrap_or_default()),
    }
}

/// The soft limit in `/proc/self/limits`; none if it is unlimited.
fn memlock(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpu_virtualises(proc: &Path) -> bool {
    let text = fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split(' ').any(|f| matches!(f, "svm" | "vmx")))
}

fn kvm(root: &Path) -> KvmFacts {
    let modules = names(&root.join("sys/module"), "kvm_");
    let btf = root.join("sys/kernel/btf");
    let is_on = |module: &str, parameter: &str| {
        let path = root.join("sys/module").join(module).join("parameters").join(parameter);
        fs::read_to_string(path).is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
    };
    KvmFacts {
        device: root.join("dev/kvm").exists(),
        modules_with_btf: modules.iter().filter(|name| btf.join(name).exists()).cloned().collect(),
        nested: modules.iter().any(|module| is_on(module, "nested")),
        mediated_pmu: std::iter::once("kvm")
            .chain(modules.iter().map(String::as_str))
            .any(|module| is_on(module, "enable_mediated_pmu")),
        modules,
    }
}

/// Entries of a folder that begin with `prefix`, sorted.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

fn perf(root: &Path) -> PerfFacts {
    let sysctl = root.join("proc/sys/kernel");
    let devices = root.join("sys/bus/event_source/devices");
    PerfFacts {
        // Hybrid CPUs have one for each kind of core.
        pmu: ["cpu", "cpu_core"].iter().any(|name| devices.join(name).exists()),
        paranoid: number(&sysctl.join("perf_event_paranoid")),
        max_sample_rate: number(&sysctl.join("perf_event_max_sample_rate")),
        mlock_kb: number(&sysctl.join("perf_event_mlock_kb")),
    }
}

pub(super) fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
