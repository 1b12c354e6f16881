//! The machine itself: its CPUs, its name, its kernel.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use model::{BootId, Vendor};

use crate::procfs;

/// Whether process ids here are the host's: those that samples carry.
#[must_use]
pub fn in_host_pid_namespace(proc: &Path) -> bool {
    // The initial namespace's inode number is fixed (include/linux/proc_ns.h).
    let initial = Path::new("pid:[4026531836]");
    std::fs::read_link(proc.join("self/ns/pid")).map_or(true, |namespace| namespace == initial)
}

/// The CPUs that are online.
///
/// # Errors
/// If `sys` has no such list.
pub fn online_cpus(sys: &Path) -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string(sys.join("devices/system/cpu/online"))?;
    parse_cpu_list(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("CPU list {text:?}")))
}

/// KVM's modules, and which load of each it is: they have other types and addresses after another one. Empty: KVM is built
/// in, or not loaded.
#[must_use]
pub fn kvm_modules(sys: &Path) -> Vec<(&'static str, u64)> {
    let load = |name| {
        let folder = sys.join("module").join(name);
        let state = std::fs::read_to_string(folder.join("initstate")).ok()?;
        let number = folder.metadata().ok()?.ino();
        (state.trim() == "live").then_some((name, number))
    };
    ["kvm", "kvm_amd", "kvm_intel"].into_iter().filter_map(load).collect()
}

/// The kernel's list format: `0-3,8,10-11`.
#[must_use]
pub fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The CPUs' vendor, from `/proc/cpuinfo`.
#[must_use]
pub fn vendor(proc: &Path) -> Vendor {
    let text = std::fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("vendor_id")?.split_once(':'));
    match id.map(|(_, id)| id.trim()) {
        Some("AuthenticAMD" | "HygonGenuine") => Vendor::Amd,
        Some("GenuineIntel") => Vendor::Intel,
        _ => Vendor::Other,
    }
}

/// Each online CPU's number and APIC id, from `/proc/cpuinfo`; empty where that names none.
#[must_use]
pub fn apic_ids(proc: &Path) -> Vec<(u32, u32)> {
    parse_apic_ids(&std::fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default())
}

/// Paragraphs with `processor : 0` and, later, `apicid : 4`.
fn parse_apic_ids(text: &str) -> Vec<(u32, u32)> {
    let mut cpu = None;
    let mut ids = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let number = value.trim().parse().ok();
        match key.trim() {
            "processor" => cpu = number,
            "apicid" => ids.extend(cpu.take().zip(number)),
            _ => {}
        }
    }
    ids
}

/// The host's name; empty if unreadable.
#[must_use]
pub fn hostname(proc: &Path) -> String {
    one_line(&proc.join("sys/kernel/hostname"))
}

/// Which boot of the host this is. `None`: unreadable.
#[must_use]
pub fn boot_id(proc: &Path) -> Option<BootId> {
    one_line(&proc.join("sys/kernel/random/boot_id")).replace('-', "").parse().ok()
}

/// The kernel's release (`uname -r`); empty if unreadable.
#[must_use]
pub fn kernel_release(proc: &Path) -> String {
    one_line(&proc.join("sys/kernel/osrelease"))
}

fn one_line(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Whether an open hardware event would leave VMs alone; if not, why.
///
/// # Errors
/// With a mediated vPMU (Linux 6.20 on) an open hardware event that counts guests keeps new VMs from
/// starting (EBUSY), so it is refused.
pub fn cycles_are_safe(sys: &Path) -> Result<(), String> {
    let mediated = |module| {
        let file = sys.join("module").join(module).join("parameters/enable_mediated_pmu");
        matches!(one_line(&file).as_str(), "Y" | "1")
    };
    if ["kvm", "kvm_amd", "kvm_intel"].into_iter().any(mediated) {
        return Err("KVM's mediated vPMU is on: sampling by cycles would keep VMs from starting; \
                    use --trigger cpu-clock"
            .to_owned());
    }
    if sys.join("bus/event_source/devices/cpu").exists() {
        return Ok(());
    }
    Err("this machine has no cycle counter (PMU): use --trigger cpu-clock".to_owned())
}

/// The CPUs' base frequency, MHz, where the kernel tells it.
#[must_use]
pub fn nominal_mhz(sys: &Path) -> Option<u64> {
    let folder = sys.join("devices/system/cpu/cpu0/cpufreq");
    ["base_frequency", "cpuinfo_max_freq"]
        .iter()
        .find_map(|name| one_line(&folder.join(name)).parse::<u64>().ok())
        .map(|khz| khz / 1000)
}

/// Where the running kernel's code lies, at the addresses of this boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelText {
    /// `_stext`.
    pub start: u64,
    /// `_etext`.
    pub end: u64,
    pub modules: Vec<procfs::ModuleEntry>,
    /// `/proc/kallsyms`.
    pub kallsyms: String,
}

/// Reads it from `proc`. Addresses are 0 where the kernel hides them.
///
/// # Errors
/// If `/proc/kallsyms` can't be read.
pub fn kernel_text(proc: &Path) -> io::Result<KernelText> {
    let kallsyms = std::fs::read_to_string(proc.join("kallsyms"))?;
    let address = |name| {
        procfs::parse_kallsyms(&kallsyms)
            .find(|symbol| symbol.module.is_none() && symbol.name == name)
            .map_or(0, |symbol| symbol.address)
    };
    let (start, end) = (address("_stext"), address("_etext"));
    Ok(KernelText { start, end, modules: kernel_modules(proc), kallsyms })
}

/// The kernel's modules; none if they can't be read.
#[must_use]
pub fn kernel_modules(proc: &Path) -> Vec<procfs::ModuleEntry> {
    procfs::parse_modules(&std::fs::read_to_string(proc.join("modules")).unwrap_or_default())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn apic_ids_are_read_by_cpu() {
        let cpu = |number, id| {
            format!(
                "processor\t: {number}\ncore id\t\t: 0\napicid\t\t: {id}\ninitial apicid\t: 9\n\n"
            )
        };
        let text = cpu("0", "0") + &cpu("1", "4") + &cpu("x", "5") + &cpu("3", "") + &cpu("5", "6");
        assert_eq!(parse_apic_ids(&text), [(0, 0), (1, 4), (5, 6)]);
        assert_eq!(parse_apic_ids("processor\t: 0\nBogoMIPS\t: 50.00\n"), []);
    }

    #[test]
    fn loads_of_kvm_are_distinguished() {
        let sys = tempfile::tempdir().unwrap();
        let folder = |name: &str| sys.path().join("module").join(name);
        let load = |name, state| {
            std::fs::create_dir_all(folder(name)).unwrap();
            std::fs::write(folder(name).join("initstate"), state).unwrap();
        };
        assert_eq!(kvm_modules(sys.path()), []);
        load("kvm", "live\n");
        load("kvm_amd", "coming\n");
        let names = || -> Vec<_> { kvm_modules(sys.path()).iter().map(|it| it.0).collect() };
        assert_eq!(names(), ["kvm"]);
        load("kvm_amd", "live\n");
        assert_eq!(names(), ["kvm", "kvm_amd"]);
        let before = kvm_modules(sys.path());
        std::fs::rename(folder("kvm_amd"), folder("before")).unwrap();
        load("kvm_amd", "live\n");
        assert_ne!(kvm_modules(sys.path()), before);
    }

    #[test]
    fn cpu_lists() {
        let check = |list, expected: Option<&[u32]>| {
            assert_eq!(parse_cpu_list(list).as_deref(), expected, "{list}");
        };
        check("0", Some(&[0]));
        check("0-1", Some(&[0, 1]));
        check("0-2,5,7-8", Some(&[0, 1, 2, 5, 7, 8]));
        check("", None);
        check("x-2", None);
    }
}
