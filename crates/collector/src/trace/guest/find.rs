//! Which VM the user means.

use std::collections::BTreeMap;
use std::path::Path;

use api::guest::SERIAL_PORT_NAME;
use host::vms::{STATE_FOLDER, VmNames, VmProcess, describe};
use probes::{FoundVm, VmFinder};

use crate::GuestError;

/// Why a VM that the user named is not traced.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// It is not the only one of its name.
    #[error("{0} VMs have this name: give the process id")]
    Several(usize),
    /// There is none at all.
    #[error("no VM runs here")]
    NoneRuns,
    /// There are others.
    #[error("no such VM: there are {}", .0.join(", "))]
    NoSuch(Vec<String>),
    /// Its guest can't be traced.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// The process of a VM, by the VM's name or the process's id.
///
/// # Errors
/// When there is none, or several of that name; or the kernel does not tell.
pub fn vm_process(proc: &Path, wanted: &str) -> Result<u32, VmError> {
    find_vm(proc, wanted).map(|(vm, ..)| vm.pid.0)
}

/// A VM that was found, what its process says of it, and its name on this host.
pub(crate) type NamedVm = (FoundVm, VmProcess, String);

/// A VM by its name, or its process's id.
pub(crate) fn find_vm(proc: &Path, wanted: &str) -> Result<NamedVm, VmError> {
    choose(wanted, all_vms(proc)?)
}

/// Every VM that runs here.
pub(crate) fn all_vms(proc: &Path) -> Result<Vec<NamedVm>, GuestError> {
    let finder = VmFinder::load()?;
    let found = finder.find(None)?;
    let processes: Vec<VmProcess> =
        found.iter().map(|vm| describe(proc, vm.pid.0, SERIAL_PORT_NAME)).collect();
    let names = VmNames::in_folder(Path::new(STATE_FOLDER));
    let names = names.of(&processes.iter().collect::<Vec<_>>(), &BTreeMap::new());
    let vms = found.into_iter().zip(processes).zip(names);
    Ok(vms.map(|((vm, process), name)| (vm, process, name)).collect())
}

fn choose(wanted: &str, vms: Vec<NamedVm>) -> Result<NamedVm, VmError> {
    let is_it = |(vm, _, name): &NamedVm| name == wanted || vm.pid.0.to_string() == wanted;
    let names: Vec<String> = vms.iter().map(|(_, _, name)| name.clone()).collect();
    let mut chosen: Vec<_> = vms.into_iter().filter(is_it).collect();
    match (chosen.pop(), chosen.len(), names.len()) {
        (Some(vm), 0, _) => Ok(vm),
        (Some(_), others, _) => Err(VmError::Several(others + 1)),
        (None, _, 0) => Err(VmError::NoneRuns),
        (None, _, _) => Err(VmError::NoSuch(names)),
    }
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    #[test]
    fn a_vm_is_chosen_by_name_or_process() {
        let vms = |names: &[&str]| -> Vec<NamedVm> {
            let vm = |(pid, name): (u32, &&str)| {
                let found = FoundVm {
                    pid: Pid(pid),
                    kvm: 0,
                    slots: vec![],
                    more_slots: false,
                    vcpus: vec![],
                };
                (found, VmProcess::default(), (*name).to_owned())
            };
            (10..).zip(names).map(vm).collect()
        };
        let check = |wanted, names: &[&str], expected: Result<u32, &str>| {
            let chosen = choose(wanted, vms(names)).map(|(vm, ..)| vm.pid.0);
            assert_eq!(chosen.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        };
        check("web", &["db", "web"], Ok(11));
        check("10", &["db", "web"], Ok(10));
        check("x", &["db", "web"], Err("no such VM: there are db, web"));
        check("x", &[], Err("no VM runs here"));
        check("db", &["db", "db"], Err("2 VMs have this name: give the process id"));
    }
}
