//! The NUMA nodes that a guest has of its own: which vCPUs and which of the process's memory are in each.
//!
//! QEMU gives each one a memory backend, a mapping of its own in the process. The first begins where the guest's memory
//! does; each further one is a run of slots of exactly its size.

use host::vms::GuestCell;
use layout::Cell;
use probes::{FoundVm, MemorySlot};

use crate::read::{MemoryRange, slot_end};

/// A NUMA node of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCell {
    /// Its vCPUs, by their places among the VM's, and its memory on each node of the host.
    pub cell: Cell,
    /// Where its memory lies in the process.
    pub ranges: Vec<MemoryRange>,
}

/// The slots and vCPUs of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) vcpus: Vec<usize>,
    pub(crate) slots: Vec<MemorySlot>,
}

/// Those of a VM with so many vCPUs.
///
/// # Errors
/// Why they are not known: moving some of the memory could part vCPUs from it.
pub(crate) fn find(
    guest: &[GuestCell],
    vm: &FoundVm,
    vcpus: usize,
) -> Result<Vec<Found>, &'static str> {
    if guest.len() < 2 {
        return Ok(Vec::new());
    }
    let vcpus_of = |cell: &GuestCell| -> Vec<usize> {
        cell.vcpus.iter().map(|vcpu| *vcpu as usize).filter(|vcpu| *vcpu < vcpus).collect()
    };
    let cells: Vec<Vec<usize>> = guest.iter().map(vcpus_of).collect();
    if cells.iter().map(Vec::len).sum::<usize>() != vcpus {
        return Err("which vCPUs are in which NUMA node of its guest is not known");
    }
    let memory = windows(guest, &vm.slots).filter(|_| !vm.more_slots);
    let memory = memory.ok_or("which memory is in which NUMA node of its guest is not known")?;
    let found = |(vcpus, (start, end)): (Vec<usize>, (u64, u64))| {
        let is_inside = |slot: &&MemorySlot| start <= slot.address && slot_end(slot) <= end;
        Found { vcpus, slots: vm.slots.iter().filter(is_inside).cloned().collect() }
    };
    Ok(cells.into_iter().zip(memory).map(found).collect())
}

/// Where each one's memory lies in the process.
fn windows(guest: &[GuestCell], slots: &[MemorySlot]) -> Option<Vec<(u64, u64)>> {
    let first = slots.iter().find(|slot| slot.first_page == 0)?.address;
    let first = (first, first.checked_add(guest[0].bytes).filter(|end| first < *end)?);
    let is_elsewhere =
        |slot: &&MemorySlot| !slot.read_only && !(first.0..first.1).contains(&slot.address);
    let mut others: Vec<&MemorySlot> = slots.iter().filter(is_elsewhere).collect();
    others.sort_by_key(|slot| slot.address);
    // Start, end and first guest page of slots side by side.
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for slot in others {
        match runs.last_mut().filter(|run| run.1 == slot.address) {
            Some(run) => (run.1, run.2) = (slot_end(slot), run.2.min(slot.first_page)),
            None => runs.push((slot.address, slot_end(slot), slot.first_page)),
        }
    }
    runs.sort_by_key(|run| run.2);
    let mut windows = vec![first];
    let mut runs = runs.into_iter();
    for cell in &guest[1..] {
        let (start, end, _) = runs.find(|(start, end, _)| end - start == cell.bytes)?;
        windows.push((start, end));
    }
    Some(windows)
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    const G: u64 = 1 << 30;

    fn vm(slots: &[(u64, u64, u64)]) -> FoundVm {
        let slot = |(guest, address, bytes): &(u64, u64, u64)| MemorySlot {
            first_page: guest / 4096,
            pages: bytes / 4096,
            address: *address,
            read_only: false,
        };
        let slots = slots.iter().map(slot).collect();
        FoundVm { pid: Pid(1), kvm: 1, slots, more_slots: false, vcpus: Vec::new() }
    }

    fn cell(vcpus: &[u32], bytes: u64) -> GuestCell {
        GuestCell { vcpus: vcpus.iter().copied().collect(), bytes }
    }

    #[test]
    fn each_has_the_slots_of_its_backend() {
        // A PC: the second one's memory goes round the hole below 4 GiB; 16 MiB of video memory lie in the hole.
        let (a, b, video) = (0x7f00_0000_0000, 0x7e00_0000_0000, 0x7d00_0000_0000);
        let slots = [
            (0, a, 0xa_0000),
            (0x10_0000, a + 0x10_0000, 2 * G - 0x10_0000),
            (2 * G, b, G),
            (0xfd00_0000, video, 16 << 20),
            (4 * G, b + G, G),
        ];
        let found = |guest: &[GuestCell], vcpus| {
            let found = find(guest, &vm(&slots), vcpus)?;
            let first = |found: &Found| {
                let addresses = found.slots.iter().map(|slot| slot.address).collect::<Vec<_>>();
                (found.vcpus.clone(), addresses)
            };
            Ok(found.iter().map(first).collect::<Vec<_>>())
        };
        let two = [cell(&[0, 2], 2 * G), cell(&[1, 3, 4], 2 * G)];
        let expected = vec![(vec![0, 2], vec![a, a + 0x10_0000]), (vec![1, 3], vec![b, b + G])];
        assert_eq!(found(&two, 4), Ok(expected));
        assert_eq!(found(&two[..1], 4), Ok(Vec::new()));
        let vcpus = Err("which vCPUs are in which NUMA node of its guest is not known");
        assert_eq!(found(&[cell(&[], 2 * G), cell(&[], 2 * G)], 4), vcpus);
        assert_eq!(found(&two, 6), vcpus);
        let memory = Err("which memory is in which NUMA node of its guest is not known");
        assert_eq!(found(&[cell(&[0, 2], 2 * G), cell(&[1, 3], G)], 4), memory);
        assert_eq!(found(&[cell(&[0, 2], 0), cell(&[1, 3], 0)], 4), memory);
    }
}
