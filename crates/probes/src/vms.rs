//! Where VMs' memory lies in their processes, and how their clocks run (`bpf/vms.bpf.c`).

use libbpf_rs::Object;
use model::{Pid, Tid};

use crate::abi::field;
use crate::{ProbeError, iter, object};

/// Bytes of `struct memory_slot_found` and of `struct vcpu_clock_found`.
const FOUND_BYTES: usize = 40;
/// `MEMORY_SLOT_READ_ONLY`.
const READ_ONLY: u32 = 2;

/// The loaded programs. They run only during `find`.
#[derive(Debug)]
pub struct VmFinder {
    object: Object,
}

/// A VM as its host's kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundVm {
    pub pid: Pid,
    /// Kernel address of the VM: tells VMs of one process apart.
    pub kvm: u64,
    /// Its memory, ascending.
    pub slots: Vec<MemorySlot>,
    /// It has more slots than these.
    pub more_slots: bool,
    /// Its vCPUs, ascending.
    pub vcpus: Vec<VcpuClock>,
}

/// Guest-physical pages of 4 KiB, and where they lie in the VM's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemorySlot {
    pub first_page: u64,
    pub pages: u64,
    /// The first page's address in the VM's process.
    pub address: u64,
    /// The guest can't write it.
    pub read_only: bool,
}

/// A vCPU's clock: guest TSC = (host TSC * `tsc_ratio` >> fraction bits) + `tsc_offset`, wrapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VcpuClock {
    /// KVM's number of it: in QEMU its APIC id, which the guest's number of the CPU need not be.
    pub number: u32,
    /// The thread that runs it; `None`: it has not run yet, or its thread has ended.
    pub tid: Option<Tid>,
    /// See above.
    pub tsc_offset: u64,
    /// See above: 32 fraction bits on AMD, 48 on Intel.
    pub tsc_ratio: u64,
    /// Its registers are encrypted (SEV-ES, SEV-SNP, TDX).
    pub protected: bool,
}

impl VmFinder {
    /// Loads the programs.
    ///
    /// # Errors
    /// When the kernel refuses; the error says what to do.
    pub fn load() -> Result<Self, ProbeError> {
        Ok(Self { object: object::load(object::open(bpf::VMS)?)? })
    }

    /// All VMs of the machine, or those of one process. This walks the open files of all processes, or of the one,
    /// twice. A VM without slots or without vCPUs is left out: it has just begun, or ends.
    ///
    /// # Errors
    /// When an iterator can't be read.
    pub fn find(&self, process: Option<Pid>) -> Result<Vec<FoundVm>, ProbeError> {
        let slots = iter::read(&self.object, "find_slots", process)?;
        let clocks = iter::read(&self.object, "find_clocks", process)?;
        let mut vms = collect(&slots, &clocks);
        vms.retain(|vm| process.is_none_or(|pid| vm.pid == pid));
        Ok(vms)
    }
}

/// The VMs that the two walks met.
fn collect(slots: &[u8], clocks: &[u8]) -> Vec<FoundVm> {
    let mut vms: Vec<FoundVm> = Vec::new();
    for bytes in slots.chunks_exact(FOUND_BYTES) {
        let (kvm, slot) = (long(bytes, 0), decode_slot(bytes));
        let row = vms.iter().position(|vm| vm.kvm == kvm).unwrap_or_else(|| {
            let pid = Pid(word(bytes, 32));
            vms.push(FoundVm { pid, kvm, slots: vec![], more_slots: false, vcpus: vec![] });
            vms.len() - 1
        });
        let vm = &mut vms[row];
        if slot.pages == 0 {
            vm.more_slots = true;
        } else if !vm.slots.contains(&slot) {
            // A descriptor may be open twice.
            vm.slots.push(slot);
        }
    }
    for bytes in clocks.chunks_exact(FOUND_BYTES) {
        let clock = decode_clock(bytes);
        let vm = vms.iter_mut().find(|vm| vm.kvm == long(bytes, 0));
        if let Some(vm) = vm.filter(|vm| vm.vcpus.iter().all(|seen| seen.number != clock.number)) {
            vm.vcpus.push(clock);
        }
    }
    vms.retain(|vm| !vm.slots.is_empty() && !vm.vcpus.is_empty());
    for vm in &mut vms {
        vm.slots.sort_unstable();
        vm.vcpus.sort_unstable();
    }
    vms
}

fn decode_slot(bytes: &[u8]) -> MemorySlot {
    MemorySlot {
        first_page: long(bytes, 8),
        pages: long(bytes, 16),
        address: long(bytes, 24),
        read_only: word(bytes, 36) & READ_ONLY != 0,
    }
}

fn decode_clock(bytes: &[u8]) -> VcpuClock {
    let tid = word(bytes, 28);
    VcpuClock {
        number: word(bytes, 32),
        tid: (tid != 0).then_some(Tid(tid)),
        tsc_offset: long(bytes, 8),
        tsc_ratio: long(bytes, 16),
        protected: word(bytes, 36) != 0,
    }
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(field(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(field(bytes, at))
}

#[cfg(test)]
mod test {
    use super::*;

    fn slot(kvm: u64, first_page: u64, pages: u64, flags: u32) -> Vec<u8> {
        let words = [kvm, first_page, pages, first_page + 0x7f00].map(u64::to_ne_bytes).concat();
        [words, [9u32, flags].map(u32::to_ne_bytes).concat()].concat()
    }

    fn clock(kvm: u64, number: u32, tid: u32) -> Vec<u8> {
        let words = [kvm, 5, 1 << 32].map(u64::to_ne_bytes).concat();
        [words, [9, tid, number, 0].map(u32::to_ne_bytes).concat()].concat()
    }

    #[test]
    fn slots_and_clocks_become_vms() {
        let slots = [slot(1, 16, 4, 2), slot(2, 0, 8, 0), slot(1, 0, 16, 0), slot(1, 0, 16, 0)];
        let clocks = [clock(1, 1, 0), clock(1, 0, 77), clock(1, 0, 77), clock(3, 0, 78)];
        let vms = collect(&slots.concat(), &clocks.concat());
        let memory = |first_page, pages, read_only| MemorySlot {
            first_page,
            pages,
            address: first_page + 0x7f00,
            read_only,
        };
        let vcpu = |number, tid| VcpuClock {
            number,
            tid,
            tsc_offset: 5,
            tsc_ratio: 1 << 32,
            protected: false,
        };
        let expected = FoundVm {
            pid: Pid(9),
            kvm: 1,
            slots: vec![memory(0, 16, false), memory(16, 4, true)],
            more_slots: false,
            vcpus: vec![vcpu(0, Some(Tid(77))), vcpu(1, None)],
        };
        // VM 2 has no vCPU yet, VM 3 no memory.
        assert_eq!(vms, [expected]);
        let more = [slot(1, 0, 16, 0), slot(1, 0, 0, 0)].concat();
        assert!(collect(&more, &clock(1, 0, 7))[0].more_slots);
    }

    #[test]
    fn the_programs_load_and_walk() {
        match VmFinder::load() {
            Ok(finder) => {
                let own = Pid(std::process::id());
                let unused = Pid(1 << 30);
                for process in [own, unused] {
                    assert_eq!(finder.find(Some(process)).unwrap(), []);
                }
                assert!(finder.find(None).is_ok());
            }
            Err(error) => skip::skip_if_refused(error),
        }
    }
}
