//! Counts of VM exits (`EXIT_*` of bpf/abi/switch.h).

use libbpf_rs::{Link, Object};
use model::{ExitCount, VcpuId, Vendor};

use crate::{ProbeError, Sampler, object, vcpus};
use bpf::Mapped;

const CODES: u32 = 0x100;
const NPF: u32 = 0x400;
const NPF_CODES: u32 = 4;
const SLOTS: u32 = CODES + NPF_CODES + 1;

/// vCPUs that are counted: 4 MiB. The exits of further ones are not.
const ROWS: u32 = 2048;

/// The loaded program and its counts.
#[derive(Debug)]
pub struct ExitCounter {
    counts: Mapped,
    object: Object,
}

/// The attached program; counting stops when this is dropped.
#[derive(Debug)]
pub struct ExitLink {
    _links: Vec<Link>,
}

impl ExitCounter {
    /// Most vCPUs whose exits are counted.
    pub const MAX_VCPUS: u32 = ROWS;

    /// Loads the program for the vCPUs that `sampler` watches; nothing is counted yet.
    ///
    /// # Errors
    /// When the kernel refuses, or KVM is not there.
    pub fn load(sampler: &Sampler, vendor: Vendor) -> Result<Self, ProbeError> {
        let mut open = object::open(bpf::EXITS)?;
        let config = [ROWS, object::vendor_word(vendor)];
        object::configure(&mut open, &[("counts", ROWS * SLOTS)], &config)?;
        object::share(&mut open, vcpus::MAP, sampler.vcpus().fd())?;
        let object = object::load(open)?;
        let counts = object::memory(&object, "counts", (ROWS * SLOTS) as usize * 8)?;
        Ok(Self { counts, object })
    }

    /// Attaches the program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(&self) -> Result<ExitLink, ProbeError> {
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = self.object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(ExitLink { _links: links.map_err(ProbeError::Trace)? })
    }

    /// What the first `vcpus` vCPUs have exited for so far, without zeros.
    #[must_use]
    pub fn counts(&self, vcpus: u32) -> Vec<ExitCount> {
        let slots = (0..vcpus.min(ROWS)).flat_map(|row| (0..SLOTS).map(move |slot| (row, slot)));
        slots
            .map(|(row, slot)| ExitCount {
                vcpu: VcpuId(row),
                reason: reason(slot),
                count: self.counts.load((row * SLOTS + slot) as usize * 8),
            })
            .filter(|exits| 0 < exits.count)
            .collect()
    }
}

/// The exit reason counted in a slot. The last slot's is that of a failed entry (AMD's -1), among others that
/// no CPU has today.
fn reason(slot: u32) -> u32 {
    match slot {
        0..CODES => slot,
        CODES..=0x103 => NPF + (slot - CODES),
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn slots_stand_for_reasons() {
        let check = |slot, expected| assert_eq!(reason(slot), expected, "{slot:#x}");
        check(0, 0);
        check(0x78, 0x78);
        check(0xff, 0xff);
        check(0x100, 0x400);
        check(0x103, 0x403);
        check(SLOTS - 1, u32::MAX);
    }
}
