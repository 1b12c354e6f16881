//! What the host's kernel counts; every reader takes a root.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel's files are.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    pub(crate) proc: PathBuf,
    pub(crate) sys: PathBuf,
}

/// Counters at an instant.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Counters {
    context_switches: u64,
    /// Time that threads ran and waited for CPUs, ns.
    run_and_wait_ns: Option<u64>,
    /// Interrupts that KVM injected, by QEMU's process.
    injected: BTreeMap<u32, u64>,
}

impl Roots {
    pub(crate) fn of_this_machine() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> Counters {
        let stat = self.read_proc("stat");
        let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.parse().ok());
        Counters {
            context_switches: switches.unwrap_or(0),
            run_and_wait_ns: run_and_wait_ns(&self.read_proc("schedstat")),
            injected: injected(&self.sys.join("kernel/debug/kvm")),
        }
    }

    /// What happened between two readings, `ns` apart; the rest is as it is now.
    pub(crate) fn since(&self, before: &Counters, now: &Counters, ns: u64) -> lab::Host {
        let memory = self.read_proc("meminfo");
        let load = self.read_proc("loadavg");
        let busy = before.run_and_wait_ns.zip(now.run_and_wait_ns);
        lab::Host {
            context_switches: now.context_switches.saturating_sub(before.context_switches),
            runnable: busy.map(|(b, n)| n.saturating_sub(b) as f64 / ns.max(1) as f64),
            load_average: load.split_whitespace().next().and_then(|word| word.parse().ok()),
            memory_bytes: kibibytes(&memory, "MemTotal").unwrap_or(0),
            available_bytes: kibibytes(&memory, "MemAvailable").unwrap_or(0),
            merged_bytes: self.merged_bytes(),
        }
    }

    /// Whether a process is still there.
    pub(crate) fn runs(&self, pid: u32) -> bool {
        self.proc.join(pid.to_string()).exists()
    }

    /// Bytes that more programs can have.
    pub(crate) fn available_bytes(&self) -> u64 {
        kibibytes(&self.read_proc("meminfo"), "MemAvailable").unwrap_or(0)
    }

    /// Memory that a process shares with no other.
    pub(crate) fn private_bytes(&self, pid: u32) -> Option<u64> {
        let text = self.read_proc(&format!("{pid}/smaps_rollup"));
        let (clean, dirty) =
            (kibibytes(&text, "Private_Clean")?, kibibytes(&text, "Private_Dirty")?);
        clean.checked_add(dirty)
    }

    /// Memory that a process has in huge pages, its own or shared.
    pub(crate) fn huge_bytes(&self, pid: u32) -> Option<u64> {
        let text = self.read_proc(&format!("{pid}/smaps_rollup"));
        let kinds = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];
        kinds.iter().map(|kind| kibibytes(&text, kind)).sum()
    }

    fn merged_bytes(&self) -> Option<u64> {
        let path = self.sys.join("kernel/mm/ksm/pages_sharing");
        let pages: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some(pages.saturating_mul(rustix::param::page_size() as u64))
    }

    fn read_proc(&self, name: &str) -> String {
        // What a kernel does not tell stays unknown.
        fs::read_to_string(self.proc.join(name)).unwrap_or_default()
    }
}

impl Counters {
    /// Interrupts that KVM injected since `before` into the guests of these processes; `None`: the kernel does not tell.
    pub(crate) fn injected_since(&self, before: &Self, pids: &[u32]) -> Option<u64> {
        let of =
            |pid: &u32| Some(self.injected.get(pid)?.saturating_sub(*before.injected.get(pid)?));
        pids.iter().map(of).sum()
    }
}

/// The sum of all CPUs; the seventh and eighth number of their lines since version 15 (Linux 2.6.30).
fn run_and_wait_ns(schedstat: &str) -> Option<u64> {
    let cpus = schedstat.lines().filter(|line| line.starts_with("cpu"));
    let of_cpu = |line: &str| -> Option<u64> {
        let mut numbers = line.split_whitespace().skip(7).map(str::parse::<u64>);
        Some(numbers.next()?.ok()?.saturating_add(numbers.next()?.ok()?))
    };
    let times: Vec<u64> = cpus.map(of_cpu).collect::<Option<_>>()?;
    (!times.is_empty()).then(|| times.iter().sum())
}

/// KVM has a folder `PID-FD` for each VM.
fn injected(folder: &Path) -> BTreeMap<u32, u64> {
    let vms = fs::read_dir(folder).into_iter().flatten().flatten();
    vms.filter_map(|vm| {
        let pid = vm.file_name().to_str()?.split_once('-')?.0.parse().ok()?;
        let count = fs::read_to_string(vm.path().join("irq_injections")).ok()?;
        Some((pid, count.trim().parse().ok()?))
    })
    .collect()
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    let value: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    value.checked_mul(1024)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_happened_between_two_readings() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { proc: root.path().join("proc"), sys: root.path().join("sys") };
        let kvm = roots.sys.join("kernel/debug/kvm/77-12");
        fs::create_dir_all(&kvm).unwrap();
        fs::create_dir_all(&roots.proc).unwrap();
        let write = |switches: u64, ran: u64, injected: u64| {
            fs::write(roots.proc.join("stat"), format!("cpu 1 2\nctxt {switches}\n")).unwrap();
            let cpus = format!(
                "version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 {ran} 50 9\ndomain0 3 1 2\ncpu1 0 0 0 0 0 0 10 20 9\n"
            );
            fs::write(roots.proc.join("schedstat"), cpus).unwrap();
            fs::write(kvm.join("irq_injections"), format!("{injected}\n")).unwrap();
            roots.counters()
        };
        fs::write(roots.proc.join("meminfo"), "MemTotal:  100 kB\nMemAvailable: 40 kB\n").unwrap();
        fs::write(roots.proc.join("loadavg"), "1.50 1.00 0.50 2/100 4711\n").unwrap();
        let (before, now) = (write(1000, 100, 7), write(1500, 400, 20));
        let host = roots.since(&before, &now, 100);
        assert_eq!((host.context_switches, host.runnable), (500, Some(3.0)));
        assert_eq!((host.memory_bytes, host.available_bytes), (102_400, 40_960));
        assert_eq!((host.load_average, host.merged_bytes), (Some(1.5), None));
        assert_eq!(now.injected_since(&before, &[77]), Some(13));
        assert_eq!(now.injected_since(&before, &[77, 78]), None);
        fs::create_dir_all(roots.proc.join("77")).unwrap();
        let rollup = "Rss: 9 kB\nPrivate_Clean:  1 kB\nPrivate_Dirty:  4 kB\n";
        fs::write(roots.proc.join("77/smaps_rollup"), rollup).unwrap();
        assert_eq!((roots.private_bytes(77), roots.private_bytes(78)), (Some(5 << 10), None));
    }

    #[test]
    fn what_a_kernel_does_not_tell_is_unknown() {
        assert_eq!(run_and_wait_ns(""), None);
        assert_eq!(run_and_wait_ns("cpu0 0 0 0\n"), None);
        assert_eq!(kibibytes("MemTotal: x kB\n", "MemTotal"), None);
    }
}
