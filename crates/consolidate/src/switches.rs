//! Remedies on the host: nice values, control groups, scheduling policy, KVM's and memory management's parameters.
//!
//! `set` applies a treatment to every switch, and restores those that it does not name: what was set before does not
//! matter. `Switches` puts everything back when dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lab::{Groups, HostSwitches, Scope};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::Error;

/// A VM whose processes are switched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmProcess {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) is_loaded: bool,
}

/// Sets a remedy's switches on the host.
#[derive(Debug)]
pub(crate) struct Switches {
    proc: PathBuf,
    /// The control group that the VMs' groups are in.
    groups: PathBuf,
    cpus: Vec<usize>,
    /// Files of the kernel's parameters, and what they held.
    halt_poll: Parameter,
    ksm: Parameter,
    was: Option<Vec<VmProcess>>,
}

/// A file of the kernel that holds a number.
#[derive(Debug)]
struct Parameter {
    path: PathBuf,
    before: Option<String>,
}

/// `cpu.weight` of an unchanged group.
const USUAL_WEIGHT: u32 = 100;

impl Switches {
    /// Makes the control group. `cpus` are those that vCPUs may be bound to.
    pub(crate) fn new(proc: &Path, sys: &Path, cpus: &[u32]) -> Result<Self, Error> {
        let root = sys.join("fs/cgroup");
        let groups = root.join("vmscope-lab");
        fs::create_dir_all(&groups).map_err(Error::io("create", &groups))?;
        for above in [&root, &groups] {
            write(&above.join("cgroup.subtree_control"), "+cpu")?;
        }
        Ok(Self {
            proc: proc.to_owned(),
            groups,
            cpus: cpus.iter().map(|cpu| *cpu as usize).collect(),
            halt_poll: Parameter::new(sys.join("module/kvm/parameters/halt_poll_ns")),
            ksm: Parameter::new(sys.join("kernel/mm/ksm/run")),
            was: None,
        })
    }

    /// Sets all switches for these VMs.
    pub(crate) fn set(&mut self, wanted: &HostSwitches, vms: &[VmProcess]) -> Result<(), Error> {
        self.was = Some(vms.to_vec());
        let whose = wanted.of.unwrap_or_default();
        for (number, vm) in vms.iter().enumerate() {
            let is_meant = match whose {
                Scope::All => true,
                Scope::Loaded => vm.is_loaded,
                Scope::Idle => !vm.is_loaded,
            };
            let own = if is_meant { wanted.clone() } else { HostSwitches::default() };
            let group = self.join(vm, wanted.groups.unwrap_or_default())?;
            weigh(&group, &own)?;
            self.schedule(vm, &own, number)?;
        }
        self.halt_poll.set(wanted.halt_poll_ns.map(|ns| ns.to_string()))?;
        self.merge(wanted.ksm)
    }

    /// Samepage merging: what was merged is taken apart again when it ends.
    fn merge(&self, wanted: Option<bool>) -> Result<(), Error> {
        if wanted == Some(true) {
            return self.ksm.set(Some("1".to_owned()));
        }
        let ours = self.ksm.before.as_deref() == Some("0");
        if ours && fs::read_to_string(&self.ksm.path).is_ok_and(|now| now.trim() == "1") {
            write(&self.ksm.path, "2")?;
        }
        self.ksm.set(wanted.map(|_| "0".to_owned()))
    }

    /// Moves a VM's process to its group.
    fn join(&self, vm: &VmProcess, groups: Groups) -> Result<PathBuf, Error> {
        let group = self.groups.join(match groups {
            Groups::Each => vm.name.as_str(),
            Groups::One => "together",
        });
        fs::create_dir_all(&group).map_err(Error::io("create", &group))?;
        write(&group.join("cgroup.procs"), &vm.pid.to_string())?;
        Ok(group)
    }

    /// All threads of a VM.
    fn schedule(&self, vm: &VmProcess, own: &HostSwitches, number: usize) -> Result<(), Error> {
        let tasks = self.proc.join(vm.pid.to_string()).join("task");
        let threads = fs::read_dir(&tasks).map_err(Error::io("list", &tasks))?;
        for thread in threads.flatten() {
            let name = thread.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            let cpus = match own.pin {
                Some(true) if name.starts_with("CPU ") => {
                    &self.cpus[number % self.cpus.len()..][..1]
                }
                _ => &self.cpus[..],
            };
            // The thread may have ended.
            schedule_thread(id, own, cpus)
                .or_else(|error| if thread.path().exists() { Err(error) } else { Ok(()) })
                .map_err(Error::io("schedule the threads of", &tasks))?;
        }
        Ok(())
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        let vms = self.was.take().unwrap_or_default();
        for vm in &vms {
            // VMs that still run become as all are; one that ended needs nothing.
            let _ = self.set(&HostSwitches::default(), std::slice::from_ref(vm));
        }
        let _ = self.halt_poll.set(None);
        let _ = self.merge(None);
        for vm in &vms {
            let _ = fs::remove_dir(self.groups.join(&vm.name));
        }
        let _ = fs::remove_dir(self.groups.join("together"));
        let _ = fs::remove_dir(&self.groups);
    }
}

impl Parameter {
    fn new(path: PathBuf) -> Self {
        let before = fs::read_to_string(&path).ok().map(|text| text.trim().to_owned());
        Self { path, before }
    }

    fn set(&self, wanted: Option<String>) -> Result<(), Error> {
        match (wanted, &self.before) {
            (Some(value), _) => write(&self.path, &value),
            (None, Some(before)) => write(&self.path, before),
            (None, None) => Ok(()),
        }
    }
}

fn weigh(group: &Path, own: &HostSwitches) -> Result<(), Error> {
    let idle = group.join("cpu.idle");
    // Kernels before 5.15 have none. A group that is idle has no weight to be set.
    if idle.exists() || own.cpu_idle == Some(true) {
        write(&idle, if own.cpu_idle == Some(true) { "1" } else { "0" })?;
    }
    if own.cpu_idle != Some(true) {
        let weight = own.cpu_weight.unwrap_or(USUAL_WEIGHT);
        write(&group.join("cpu.weight"), &weight.to_string())?;
    }
    Ok(())
}

fn schedule_thread(id: i32, own: &HostSwitches, cpus: &[usize]) -> io::Result<()> {
    let policy = if own.batch == Some(true) { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live during the call, which changes a thread of a process that we started.
    let refused = unsafe { libc::sched_setscheduler(id, policy, &raw const parameters) };
    if refused != 0 {
        return Err(io::Error::last_os_error());
    }
    setpriority_process(Pid::from_raw(id), own.nice.unwrap_or(0))?;
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(Pid::from_raw(id), &set)?)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io("write", path))
}

#[cfg(test)]
mod test {
    use super::*;

    /// The kernel's files, and ourselves as a VM.
    fn check(
        wanted: &HostSwitches,
        is_loaded: bool,
        group: &str,
        weight: &str,
        idle: &str,
        poll: &str,
    ) {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        let parameters = sys.join("module/kvm/parameters");
        for folder in
            ["kernel/mm/ksm", "fs/cgroup/vmscope-lab/vm1", "fs/cgroup/vmscope-lab/together"]
        {
            fs::create_dir_all(sys.join(folder)).unwrap();
        }
        fs::create_dir_all(&parameters).unwrap();
        fs::write(parameters.join("halt_poll_ns"), "200000\n").unwrap();
        fs::write(sys.join("kernel/mm/ksm/run"), "0\n").unwrap();
        let groups = sys.join("fs/cgroup/vmscope-lab");
        for name in ["vm1", "together"] {
            fs::write(groups.join(name).join("cpu.idle"), "0").unwrap();
        }
        let cpus = host_cpus();
        let mut switches = Switches::new(Path::new("/proc"), sys, &cpus).unwrap();
        let vm = VmProcess { name: "vm1".to_owned(), pid: std::process::id(), is_loaded };
        switches.set(wanted, std::slice::from_ref(&vm)).unwrap();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let found = groups.join(group);
        assert_eq!(read(found.join("cgroup.procs")), vm.pid.to_string());
        assert_eq!(read(found.join("cpu.weight")), weight, "{wanted:?}");
        assert_eq!(read(found.join("cpu.idle")), idle, "{wanted:?}");
        assert_eq!(read(parameters.join("halt_poll_ns")), poll);
        drop(switches);
        assert_eq!(read(groups.join("vm1/cgroup.procs")), vm.pid.to_string());
        assert_eq!(read(groups.join("vm1/cpu.weight")), "100");
        assert_eq!(read(groups.join("vm1/cpu.idle")), "0");
        assert_eq!(read(parameters.join("halt_poll_ns")), "200000");
    }

    fn host_cpus() -> Vec<u32> {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        (0..1024).filter(|cpu| set.is_set(*cpu as usize)).collect()
    }

    #[test]
    fn switches_are_set_and_put_back() {
        let nothing = HostSwitches::default();
        check(&nothing, true, "vm1", "100", "0", "200000");
        let weight = HostSwitches { cpu_weight: Some(3), halt_poll_ns: Some(0), ..nothing.clone() };
        check(&weight, true, "vm1", "3", "0", "0");
        let of_idle = HostSwitches { of: Some(Scope::Idle), ..weight };
        check(&of_idle, true, "vm1", "100", "0", "0");
        check(&of_idle, false, "vm1", "3", "0", "0");
        let idle = HostSwitches { cpu_idle: Some(true), batch: Some(true), ..nothing.clone() };
        check(&idle, true, "vm1", "", "1", "200000");
        let one = HostSwitches { groups: Some(Groups::One), ..nothing };
        check(&one, true, "together", "100", "0", "200000");
    }
}
