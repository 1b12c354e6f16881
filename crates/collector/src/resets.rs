//! Signs in samples that a guest's kernel is another one than before. Its map of before must not name what follows: page
//! tables and addresses are used again. Pure.
//!
//! ```text
//!   samples:   kernel  kernel  firmware, boot loader, unpacker   another kernel
//!   signs:                     ^ low addresses with CPL 0        ^ code where the map's kernel has none
//!   answers:        ^ reported                                                ^ reported (another boot)
//!   map:       -----|----------|                                 |--------
//! ```
//!
//! A guest's answer proves that its boot was running then: earlier signs do not count. A false sign (the firmware of a running
//! system, a wake-up from suspend) costs names until the next answer, and is forgotten then.

use std::collections::{BTreeMap, HashMap};

use model::{GuestVirt, HostNs, Vcpu, VmId};

use crate::vm_table::RowRemap;

/// Where x86-64 Linux lies, at an address of its boot's choice; with it modules, from `MODULES` on or from `LOW_MODULES` on
/// without address randomization.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
const MODULES: u64 = 0xffff_ffff_c000_0000;
const LOW_MODULES: u64 = 0xffff_ffff_a000_0000;
/// Kernels lie at multiples of it.
const SLOT_BITS: u32 = 21;
/// A sign is a new one if the last one is longer ago.
const GAP_NS: u64 = 1_000_000_000;
/// Signs of one kind that are distinguished; more run into each other.
const MAX_SIGNS: usize = 16;

/// Signs of all guests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resets {
    by_vm: HashMap<VmId, Signs>,
}

/// Signs of one guest.
#[derive(Debug, Clone, Default)]
struct Signs {
    /// Its first vCPU was in kernel mode below all kernels.
    low: Times,
    /// By place, where kernel code ran.
    kernel: BTreeMap<u64, Times>,
}

/// Times from first to last, in order.
#[derive(Debug, Clone, Default)]
struct Times(Vec<(HostNs, HostNs)>);

/// What a map says of its kernel's code.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelCode {
    /// First and last address of its text.
    pub(crate) text: (u64, u64),
    /// The first address of its modules.
    pub(crate) modules: Option<u64>,
}

impl Resets {
    /// Adds a sample of a guest in kernel mode. Low addresses count on the first vCPU only: the others start there each time
    /// they come online.
    pub(crate) fn see(&mut self, time: HostNs, vcpu: &Vcpu, ip: GuestVirt) {
        let signs = self.by_vm.entry(vcpu.vm).or_default();
        if ip.0 >> 63 == 0 {
            if vcpu.number == 0 {
                signs.low.add(time);
            }
        } else if (KERNEL..MODULES).contains(&ip.0) {
            signs.kernel.entry(ip.0 >> SLOT_BITS).or_default().add(time);
        }
    }

    /// When the boot ended that sent its last map at `reported`; `None`: no sign of an end.
    pub(crate) fn end_of(&self, vm: VmId, reported: HostNs, kernel: &KernelCode) -> Option<HostNs> {
        let signs = self.by_vm.get(&vm)?;
        let elsewhere = signs.kernel.iter().filter(|(slot, _)| kernel.is_not_at(**slot));
        let times = elsewhere.map(|(_, times)| times).chain([&signs.low]);
        times.filter_map(|times| times.first_after(reported)).min()
    }

    /// Drops signs from before the window, except for the latest ones.
    pub(crate) fn forget_before(&mut self, start: HostNs) {
        for signs in self.by_vm.values_mut() {
            signs.low.forget_before(start);
            signs.kernel.values_mut().for_each(|times| times.forget_before(start));
        }
    }

    /// VMs have other rows from now on, or none.
    pub(crate) fn remap(&mut self, moved: &RowRemap) {
        let signs = std::mem::take(&mut self.by_vm).into_iter();
        self.by_vm = signs.filter_map(|(vm, signs)| Some((moved.vm(vm)?, signs))).collect();
    }
}

impl KernelCode {
    fn is_not_at(&self, slot: u64) -> bool {
        let (start, end) = self.text;
        let has_low_modules = self.modules.is_none_or(|first| first < MODULES);
        let kernels_end = if has_low_modules { LOW_MODULES } else { MODULES };
        let is_kernels = slot < kernels_end >> SLOT_BITS;
        let is_text = (start >> SLOT_BITS..=end >> SLOT_BITS).contains(&slot);
        start != 0 && is_kernels && !is_text
    }
}

impl Times {
    /// Times of several CPUs come in no order.
    fn add(&mut self, time: HostNs) {
        let Some((first, last)) = self.0.last_mut() else { return self.0.push((time, time)) };
        if time.since(*last) <= GAP_NS {
            (*first, *last) = ((*first).min(time), (*last).max(time));
            return;
        }
        if MAX_SIGNS <= self.0.len() {
            self.0[1].0 = self.0[0].0;
            self.0.remove(0);
        }
        self.0.push((time, time));
    }

    /// Within some time of which only the ends are known: its begin.
    fn first_after(&self, reported: HostNs) -> Option<HostNs> {
        let (first, _) = self.0.iter().find(|(_, last)| reported < *last)?;
        Some((*first).max(reported))
    }

    fn forget_before(&mut self, start: HostNs) {
        let over = self.0.iter().take_while(|(_, last)| *last < start).count();
        self.0.drain(..over.saturating_sub(1));
    }
}

#[cfg(test)]
mod test {
    use model::Tid;

    use super::*;

    const TEXT: u64 = 0xffff_ffff_9a00_0000;
    const TEXT_END: u64 = 0xffff_ffff_9ac0_0000;
    const MODULE: u64 = 0xffff_ffff_c040_0000;

    /// `samples`: where kernel code ran, `PLACE@SECONDS`. The map was reported at `reported`, and ends at `expected`,
    /// s.
    fn check(samples: &str, reported: u64, expected: Option<u64>) {
        let second = |n: u64| HostNs(n * 1_000_000_000);
        let mut resets = Resets::default();
        for sample in samples.split(' ') {
            let (place, time) = sample.split_once('@').unwrap();
            let (number, ip) = match place {
                "firmware" => (0, 0xfff0),
                "second-vcpu" => (1, 0x9_a000),
                "unpacker" => (0, 0x0320_0000),
                "text" => (1, TEXT + 0x1234),
                "module" => (0, MODULE),
                "bpf" => (0, 0xffff_ffff_c0a0_0000),
                "vmalloc" => (0, 0xffff_c900_0000_0000),
                "other-text" => (1, 0xffff_ffff_8100_0000),
                _ => panic!("{place}"),
            };
            let vcpu = Vcpu { vm: VmId(3), number, tid: Tid(1), started: None, ended: None };
            resets.see(second(time.parse().unwrap()), &vcpu, GuestVirt(ip));
        }
        let kernel = KernelCode { text: (TEXT, TEXT_END), modules: Some(MODULE) };
        let end = resets.end_of(VmId(3), second(reported), &kernel);
        assert_eq!(end, expected.map(second), "{samples}, reported at {reported}");
        assert_eq!(resets.end_of(VmId(4), second(reported), &kernel), None);
    }

    #[test]
    fn a_reset_ends_the_earlier_map() {
        check("text@1 module@2 bpf@3 vmalloc@4 text@9", 0, None);
        check("text@1 firmware@5 text@9", 3, Some(5));
        check("text@1 unpacker@5 other-text@8", 3, Some(5));
        check("text@1 other-text@8 other-text@9", 3, Some(8));
        // It was not seen in firmware, and is back at the same place: nothing shows it.
        check("text@1 text@8", 3, None);
    }

    #[test]
    fn a_later_report_disproves_a_sign() {
        check("text@1 firmware@5 text@9", 6, None);
        check("firmware@5 other-text@6 firmware@15", 10, Some(15));
        check("firmware@5 firmware@6 firmware@7", 6, Some(6));
    }

    #[test]
    fn a_vcpu_that_is_switched_on_is_no_reset() {
        check("text@1 second-vcpu@5 text@9", 3, None);
    }

    #[test]
    fn signs_are_bounded_and_the_last_one_outlives_its_window() {
        let mut times = Times::default();
        (0..100).for_each(|n| times.add(HostNs(n * 10 * GAP_NS)));
        assert_eq!(times.0.len(), MAX_SIGNS);
        assert_eq!(times.first_after(HostNs(0)), Some(HostNs(0)));
        times.forget_before(HostNs(5000 * GAP_NS));
        assert_eq!(times.first_after(HostNs(0)), Some(HostNs(990 * GAP_NS)));
        // An earlier time of another CPU.
        times.add(HostNs(990 * GAP_NS - 5));
        assert_eq!(times.first_after(HostNs(0)), Some(HostNs(990 * GAP_NS - 5)));
    }

    #[test]
    fn without_address_randomization_modules_lie_where_kernels_would() {
        let code = |modules| KernelCode { text: (TEXT, TEXT_END), modules };
        let slot = 0xffff_ffff_a040_0000_u64 >> SLOT_BITS;
        assert!(code(Some(MODULE)).is_not_at(slot));
        assert!(!code(Some(LOW_MODULES)).is_not_at(slot));
        assert!(!code(None).is_not_at(slot));
        assert!(!KernelCode::default().is_not_at(slot));
    }
}
