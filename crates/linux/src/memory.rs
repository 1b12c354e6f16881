//! What is read: memory by guest-physical addresses, or by a kernel's own virtual ones.

use model::{GuestPhys, GuestVirt};

/// Bytes of the smallest page.
pub const PAGE_BYTES: u64 = 4096;

/// A machine's memory by guest-physical addresses.
pub trait PhysicalMemory {
    /// Fills `buffer` from `address` on; `None` if any of it is no RAM, or is not there now.
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()>;

    /// The ranges of RAM, in order. They may be wholly or partly absent.
    fn ranges(&self) -> &[PhysicalRange];
}

/// A range of RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysicalRange {
    pub start: GuestPhys,
    pub bytes: u64,
}

/// The memory of a kernel, by the kernel's own virtual addresses.
pub trait KernelMemory {
    /// Fills `buffer` from `address` on; `None` if any of it can't be read.
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()>;
}
