//! Marks for the host: an instruction that always makes the vCPU leave the guest, whoever executes it.

use std::arch::asm;

use api::guest::MAX_MARKS;

/// `MARK_LEAF` of bpf/abi/vm.h.
const LEAF: u32 = 0x7673_6d6b;

/// Makes so many marks, each one more than the one before. The clock just before and after each, ns.
pub(crate) fn make(first: u32, count: u32) -> Vec<(u64, u64)> {
    let count = count.min(u32::try_from(MAX_MARKS).unwrap_or(0));
    let mark = |n: u32| {
        let before = super::now_ns();
        cpuid(LEAF, first.wrapping_add(n));
        (before, super::now_ns())
    };
    (0..count).map(mark).collect()
}

/// What it returns is of no interest.
fn cpuid(leaf: u32, value: u32) {
    // SAFETY: the instruction changes four registers and nothing else; `rbx`, which the compiler keeps for itself, is put
    // back.
    unsafe {
        asm!(
            "mov {kept:r}, rbx",
            "cpuid",
            "mov rbx, {kept:r}",
            kept = out(reg) _,
            inout("eax") leaf => _,
            inout("ecx") value => _,
            out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    };
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn marks_lie_between_readings_of_the_clock() {
        let marks = make(7, 5);
        assert_eq!(marks.len(), 5);
        assert!(marks.iter().all(|(before, after)| before <= after));
        assert!(marks.is_sorted());
        assert_eq!(make(u32::MAX, 1 << 20).len(), MAX_MARKS);
    }
}
