//! From what a guest claims about its rings to addresses in its VM's process.

use crate::slots::{RING_BYTES, SLOT_BYTES};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Most rings of a guest.
pub const MAX_RINGS: usize = 4096;
/// Most slots of a ring.
pub const MAX_SLOTS: usize = 1 << 24;
/// Most pages of all rings of a guest: 4 GiB.
pub const MAX_PAGES: usize = 1 << 20;

/// A piece of guest-physical memory that the guest can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// Its first page's number.
    pub first_page: u64,
    pub pages: u64,
    /// Where it lies in the VM's process.
    pub address: u64,
}

/// What a guest says about where its rings lie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub slots_per_ring: usize,
    pub rings: usize,
    /// Pages of the array of `struct trace_ring`.
    pub heads: Vec<u64>,
    /// Pages of the array of slots.
    pub slots: Vec<u64>,
}

/// Why a guest's rings can't be where it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("it claims {rings} rings of {slots} slots")]
    Size {
        rings: usize,
        /// Slots of each.
        slots: usize,
    },
    /// Fewer or more pages than that takes.
    #[error("it names {claimed} pages for rings of {needed}")]
    Pages { claimed: usize, needed: usize },
    /// A page that is none of its memory, or that it can't write itself.
    #[error("page {0:#x} is not in the memory it can write")]
    Page(u64),
}

/// Addresses in the VM's process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses {
    /// Of the pages of the array of `struct trace_ring`.
    pub heads: Vec<u64>,
    /// Of the pages of the array of slots.
    pub slots: Vec<u64>,
}

impl Claim {
    /// Whether the sizes are possible at all.
    ///
    /// # Errors
    /// If not.
    pub fn check_sizes(&self) -> Result<(), LayoutError> {
        let (rings, slots) = (self.rings, self.slots_per_ring);
        let possible = (1..=MAX_RINGS).contains(&rings)
            && (1..=MAX_SLOTS).contains(&slots)
            && slots.is_power_of_two()
            && rings * slots <= MAX_PAGES * (PAGE / SLOT_BYTES);
        if possible { Ok(()) } else { Err(LayoutError::Size { rings, slots }) }
    }

    /// Where all this lies in the VM's process, whose memory that the guest can write is in `regions`.
    ///
    /// # Errors
    /// When it can't be.
    pub fn locate(&self, regions: &[Region]) -> Result<Addresses, LayoutError> {
        self.check_sizes()?;
        check_pages(&self.heads, self.rings * RING_BYTES)?;
        check_pages(&self.slots, self.rings * self.slots_per_ring * SLOT_BYTES)?;
        Ok(Addresses { heads: locate(regions, &self.heads)?, slots: locate(regions, &self.slots)? })
    }
}

fn check_pages(pages: &[u64], bytes: usize) -> Result<(), LayoutError> {
    let (claimed, needed) = (pages.len(), bytes.div_ceil(PAGE));
    if claimed == needed { Ok(()) } else { Err(LayoutError::Pages { claimed, needed }) }
}

fn locate(regions: &[Region], pages: &[u64]) -> Result<Vec<u64>, LayoutError> {
    pages.iter().map(|&page| address(regions, page)).collect()
}

fn address(regions: &[Region], page: u64) -> Result<u64, LayoutError> {
    let inside =
        |region: &&Region| region.first_page <= page && page - region.first_page < region.pages;
    let found = regions.iter().find(inside).and_then(|region| {
        let offset = (page - region.first_page).checked_mul(PAGE as u64)?;
        region.address.checked_add(offset)
    });
    found.ok_or(LayoutError::Page(page))
}

#[cfg(test)]
mod test {
    use super::*;

    const REGIONS: [Region; 2] = [
        Region { first_page: 0, pages: 160, address: 0x7f00_0000_0000 },
        Region { first_page: 0x10_0000, pages: 4, address: 0x7f11_0000_0000 },
    ];

    fn claim() -> Claim {
        // Two rings of 512 slots: 1024 bytes of heads, 16 KiB of slots.
        Claim { slots_per_ring: 512, rings: 2, heads: vec![7], slots: vec![0x10_0003, 0, 159, 2] }
    }

    #[test]
    fn pages_become_addresses() {
        let expected = Addresses {
            heads: vec![0x7f00_0000_7000],
            slots: vec![0x7f11_0000_3000, 0x7f00_0000_0000, 0x7f00_0009_f000, 0x7f00_0000_2000],
        };
        assert_eq!(claim().locate(&REGIONS), Ok(expected));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let check = |change: &dyn Fn(&mut Claim), expected: &str| {
            let mut claim = claim();
            change(&mut claim);
            let error = claim.locate(&REGIONS).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        check(&|claim| claim.heads = vec![160], "page 0xa0 is not in the memory it can write");
        check(
            &|claim| claim.slots[1] = u64::MAX,
            &format!("page {:#x} is not in the memory it can write", u64::MAX),
        );
        check(&|claim| claim.heads = vec![], "it names 0 pages for rings of 1");
        check(&|claim| claim.slots.push(1), "it names 5 pages for rings of 4");
        check(&|claim| claim.rings = 0, "it claims 0 rings of 512 slots");
        check(&|claim| claim.slots_per_ring = 511, "it claims 2 rings of 511 slots");
        check(&|claim| claim.slots_per_ring = 0, "it claims 2 rings of 0 slots");
        check(
            &|claim| (claim.rings, claim.slots_per_ring) = (4096, 1 << 24),
            "it claims 4096 rings of 16777216 slots",
        );
        check(
            &|claim| (claim.rings, claim.slots_per_ring) = (usize::MAX, 1 << 63),
            "it claims 18446744073709551615 rings of 9223372036854775808 slots",
        );
    }
}
