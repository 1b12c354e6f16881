//! Addresses that say whose they are.

/// A virtual address of the host (kernel or process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostVirt(pub u64);

/// A virtual address inside a guest (kernel or process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestVirt(pub u64);

/// The guest-physical base of a guest's page tables: what stands for a guest process.
///
/// Always normalised: only the page-table base is kept, so that a value read from the VMCB, one read
/// from the guest's `task->mm->pgd`, and one of a kernel with page-table isolation all compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cr3(u64);

impl Cr3 {
    /// Bits 12..51 hold the base; bits 0..11 are the PCID or cache flags, bit 63 "do not flush"
    /// (Intel SDM vol. 3, 4.5). With page-table isolation Linux keeps the user half of a pair in the
    /// odd page: bit 12 tells the halves apart (arch/x86/mm/pti.c), so it is cleared too.
    const BASE: u64 = 0x000f_ffff_ffff_e000;

    /// Normalises the register's raw value.
    #[must_use]
    pub fn new(raw: u64) -> Self {
        Self(raw & Self::BASE)
    }

    /// The page-table base, guest-physical.
    #[must_use]
    pub fn base(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for Cr3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cr3_is_normalised() {
        for (raw, base) in [
            (0x0000_0001_2345_6000, 0x0000_0001_2345_6000),
            (0x0000_0001_2345_6001, 0x0000_0001_2345_6000), // PCID 1
            (0x0000_0001_2345_7801, 0x0000_0001_2345_6000), // user half under isolation, PCID 0x801
            (0x8000_0001_2345_6002, 0x0000_0001_2345_6000), // no-flush bit
        ] {
            assert_eq!(Cr3::new(raw).base(), base, "{raw:#x}");
        }
    }
}
