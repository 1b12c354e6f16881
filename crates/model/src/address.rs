//! Addresses that say whose they are.

/// A virtual address of the host (kernel or process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostVirt(pub u64);

/// A virtual address inside a guest (kernel or process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestVirt(pub u64);

/// A physical address inside a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestPhys(pub u64);

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

/// The number of a guest's kernel stack: bits 14 to 45 of each address in it. Stacks of x86-64 kernels are 16 KiB and aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelStack(pub u32);

impl KernelStack {
    /// Bytes of a stack (`THREAD_SIZE`, without KASAN).
    pub const BYTES: u64 = 1 << 14;

    /// The stack that holds an address of the kernel.
    #[must_use]
    pub fn holding(address: GuestVirt) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the number has 32 bits")]
        Self((address.0 / Self::BYTES) as u32)
    }

    /// As the sampler writes it, for which 0 is none.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn all_addresses_of_a_stack_have_its_number() {
        let stack = 0xffff_c900_0012_c000;
        let number = KernelStack::holding(GuestVirt(stack));
        assert_eq!(number, KernelStack(0x2400_004b));
        assert_eq!(KernelStack::holding(GuestVirt(stack + 0x3ff8)), number);
        assert_ne!(KernelStack::holding(GuestVirt(stack + 0x4000)), number);
        assert_ne!(KernelStack::holding(GuestVirt(stack - 8)), number);
    }

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
