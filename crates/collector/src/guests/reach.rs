//! How the host reaches a VM's guest: by a channel to the program in it, or by its memory.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use guest::Channel;
use guest::outside::GuestMemory;
use host::vms::VmProcess;
use model::Pid;
use probes::{MemorySlot, VmFinder};

use super::policy;
use crate::{GuestError, Roots};

/// Bytes of a page, as KVM counts them.
const PAGE_BYTES: u64 = 4096;

/// The name of a channel in facts of a recording.
pub(crate) fn via(channel: &Channel) -> &'static str {
    match channel {
        Channel::Vsock { .. } | Channel::VsockSocket { .. } => "vsock",
        Channel::Serial { .. } => "virtio-serial",
        Channel::Memory(_) => MEMORY,
    }
}

/// How the map of a guest without a program came.
pub(crate) const MEMORY: &str = "memory";

/// Finds where VMs' memory lies. The first search loads its programs.
#[derive(Debug, Default)]
pub(crate) struct MemoryFinder {
    finder: Mutex<Option<VmFinder>>,
    /// Kernels that are searched for now, by the user of the VM.
    searches: Mutex<BTreeMap<u32, usize>>,
    search_ended: Condvar,
}

/// The right to search one VM's memory.
#[derive(Debug)]
pub(crate) struct Search<'f> {
    finder: &'f MemoryFinder,
    user: u32,
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        let mut searches = self.finder.searches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = searches.get_mut(&self.user) {
            *running = running.saturating_sub(1);
        }
        self.finder.search_ended.notify_all();
    }
}

impl MemoryFinder {
    /// Waits until few enough of this user's VMs are searched: a search takes a CPU for a while, and a user may run many VMs.
    pub(crate) fn wait_for_turn(&self, user: u32) -> Search<'_> {
        let most = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2));
        let searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |searches: &mut BTreeMap<u32, usize>| {
            searches.get(&user).is_some_and(|running| most <= *running)
        };
        let waited = self.search_ended.wait_while(searches, is_full);
        *waited.unwrap_or_else(PoisonError::into_inner).entry(user).or_default() += 1;
        Search { finder: self, user }
    }

    /// Whether the memory of a VM may be read at all. Loads nothing.
    pub(super) fn check(process: &VmProcess, roots: &Roots) -> Result<(), GuestError> {
        policy::check(&roots.config, process)?;
        if process.began_ticks == 0 { Err(GuestError::VmGone) } else { Ok(()) }
    }

    /// The memory of a VM, as KVM has it now. `takes_stacks`: it is read for call stacks, too.
    pub(super) fn find(
        &self,
        process: &VmProcess,
        roots: &Roots,
        takes_stacks: bool,
    ) -> Result<(Channel, Vec<MemorySlot>), GuestError> {
        Self::check(process, roots)?;
        let mut finder = self.finder.lock().unwrap_or_else(PoisonError::into_inner);
        let finder = match &mut *finder {
            Some(finder) => finder,
            none => none.insert(VmFinder::load()?),
        };
        let mut vms = finder.find(Some(Pid(process.pid)))?;
        let (Some(vm), 0) = (vms.pop(), vms.len()) else {
            return Err(if vms.is_empty() { GuestError::VmGone } else { GuestError::SeveralVms });
        };
        if vm.vcpus.iter().any(|vcpu| vcpu.protected) {
            return Err(GuestError::Encrypted);
        }
        let slot = |slot: &MemorySlot| guest::outside::MemorySlot {
            start: slot.first_page * PAGE_BYTES,
            bytes: slot.pages * PAGE_BYTES,
            address: slot.address,
        };
        let channel = Channel::Memory(Box::new(GuestMemory {
            proc: roots.proc.clone(),
            logs: roots.logs.clone(),
            vm: process.name.clone(),
            uuid: process.uuid.clone(),
            user: process.user,
            process: vm.pid,
            began_ticks: process.began_ticks,
            slots: vm.slots.iter().map(slot).collect(),
            takes_stacks,
        }));
        Ok((channel, vm.slots))
    }
}

/// How to reach a VM's guest.
pub(crate) fn channel(process: &VmProcess) -> Result<Channel, GuestError> {
    if let Some(cid) = process.vsock_cid {
        return Ok(Channel::Vsock { cid });
    }
    if let Some(path) = &process.vsock_socket {
        return Ok(Channel::VsockSocket { path: path.clone(), user: process.user });
    }
    if let Some(path) = &process.serial_socket {
        return Ok(Channel::Serial { path: path.clone(), user: process.user });
    }
    Err(GuestError::NoChannel)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_guest_is_reached_somehow() {
        let vm = |vsock_cid, serial: Option<&str>| VmProcess {
            name: String::new(),
            vsock_cid,
            serial_socket: serial.map(Into::into),
            user: 7,
            ..VmProcess::default()
        };
        let reached = |vsock_cid, serial| channel(&vm(vsock_cid, serial)).unwrap();
        assert_eq!(reached(Some(3), Some("/s")), Channel::Vsock { cid: 3 });
        assert_eq!(reached(None, Some("/s")), Channel::Serial { path: "/s".into(), user: 7 });
        assert!(matches!(channel(&vm(None, None)), Err(GuestError::NoChannel)));
    }
}
