//! Which VM the user means.

use std::path::Path;

use api::guest::SERIAL_PORT_NAME;
use guest::Channel;
use host::vms::{VmProcess, describe};
use probes::{FoundVm, VmFinder};

/// A VM by its name, or its process's id.
pub(crate) fn find_vm(proc: &Path, wanted: &str) -> Result<(FoundVm, VmProcess), String> {
    choose(wanted, all_vms(proc)?)
}

/// Every VM that runs here.
pub(crate) fn all_vms(proc: &Path) -> Result<Vec<(FoundVm, VmProcess)>, String> {
    let finder = VmFinder::load().map_err(|error| error.to_string())?;
    let found = finder.find(None).map_err(|error| error.to_string())?;
    let vms = found.into_iter().map(|vm| {
        let process = describe(proc, vm.pid.0, SERIAL_PORT_NAME);
        (vm, process)
    });
    Ok(vms.collect())
}

fn choose(wanted: &str, vms: Vec<(FoundVm, VmProcess)>) -> Result<(FoundVm, VmProcess), String> {
    let is_it = |(vm, process): &(FoundVm, VmProcess)| {
        process.name == wanted || vm.pid.0.to_string() == wanted
    };
    let names: Vec<String> = vms.iter().map(|(_, process)| process.name.clone()).collect();
    let mut chosen: Vec<_> = vms.into_iter().filter(is_it).collect();
    match (chosen.pop(), chosen.len(), names.len()) {
        (Some(vm), 0, _) => Ok(vm),
        (Some(_), others, _) => {
            Err(format!("{} VMs are called that: give its process's id", others + 1))
        }
        (None, _, 0) => Err("no VM runs here".to_owned()),
        (None, _, _) => Err(format!("there is no such VM: there are {}", names.join(", "))),
    }
}

/// How to reach its guest.
pub(super) fn channel(process: &VmProcess) -> Result<Channel, String> {
    if let Some(cid) = process.vsock_cid {
        return Ok(Channel::Vsock { cid });
    }
    match &process.serial_socket {
        Some(path) => Ok(Channel::Serial { path: path.clone() }),
        None => Err(format!(
            "it has no vsock device and no virtio-serial port {SERIAL_PORT_NAME}: add one, and run \
             vmscope-guest in it"
        )),
    }
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    #[test]
    fn a_vm_is_chosen_by_name_or_process() {
        let vms = |names: &[&str]| -> Vec<(FoundVm, VmProcess)> {
            let vm = |(pid, name): (u32, &&str)| {
                let found = FoundVm {
                    pid: Pid(pid),
                    kvm: 0,
                    slots: vec![],
                    more_slots: false,
                    vcpus: vec![],
                };
                (found, VmProcess { name: (*name).to_owned(), ..VmProcess::default() })
            };
            (10..).zip(names).map(vm).collect()
        };
        let check = |wanted, names: &[&str], expected: Result<u32, &str>| {
            let chosen = choose(wanted, vms(names)).map(|(vm, _)| vm.pid.0);
            assert_eq!(chosen, expected.map_err(str::to_owned));
        };
        check("web", &["db", "web"], Ok(11));
        check("10", &["db", "web"], Ok(10));
        check("x", &["db", "web"], Err("there is no such VM: there are db, web"));
        check("x", &[], Err("no VM runs here"));
        check("db", &["db", "db"], Err("2 VMs are called that: give its process's id"));
    }

    #[test]
    fn a_guest_is_reached_somehow() {
        let vm = |vsock_cid, serial: Option<&str>| VmProcess {
            name: String::new(),
            vsock_cid,
            serial_socket: serial.map(Into::into),
        };
        assert_eq!(channel(&vm(Some(3), Some("/s"))), Ok(Channel::Vsock { cid: 3 }));
        assert_eq!(channel(&vm(None, Some("/s"))), Ok(Channel::Serial { path: "/s".into() }));
        assert!(channel(&vm(None, None)).is_err());
    }
}
