//! Names of VM exits.
//!
//! The numbers are those of the kernel's `uapi/asm/svm.h` and `uapi/asm/vmx.h` and of the vendors' manuals
//! (AMD64 APM vol. 2, appendix C; Intel SDM vol. 3, appendix C). What means the same has the same name on both.

use std::borrow::Cow;

use model::Vendor;

/// Intel: the basic reason; the bits above say how the exit came about.
const INTEL_BASIC: u32 = 0xffff;

/// What a VM exit is called: lower case but for exception mnemonics; `exit 0x123` when it has no name.
#[must_use]
pub fn name(vendor: Vendor, reason: u32) -> Cow<'static, str> {
    let known = match vendor {
        Vendor::Amd => listed(AMD, reason).map(Cow::Borrowed).or_else(|| amd_numbered(reason)),
        Vendor::Intel => listed(INTEL, reason & INTEL_BASIC).map(Cow::Borrowed),
        Vendor::Other => None,
    };
    known.unwrap_or_else(|| Cow::Owned(format!("exit {reason:#x}")))
}

/// Whether the guest said that it has nothing to do.
#[must_use]
pub fn is_halt(vendor: Vendor, reason: u32) -> bool {
    match vendor {
        // HLT, MWAIT, MWAIT with its condition met, HLT that only exits when idle, an AP of an encrypted guest.
        Vendor::Amd => matches!(reason, 0x78 | 0x8b | 0x8c | 0xa6 | 0x8000_0004),
        // HLT, MWAIT.
        Vendor::Intel => matches!(reason & INTEL_BASIC, 12 | 36),
        Vendor::Other => false,
    }
}

/// Whether the exit was for an interrupt of the host's. Intel has one reason for the host's NMIs and the guest's
/// exceptions: that one does not count.
#[must_use]
pub fn is_interrupt(vendor: Vendor, reason: u32) -> bool {
    match vendor {
        Vendor::Amd => matches!(reason, 0x60..=0x62),
        Vendor::Intel => matches!(reason & INTEL_BASIC, 1 | 5 | 6),
        Vendor::Other => false,
    }
}

fn listed(table: &[(u32, &'static str)], reason: u32) -> Option<&'static str> {
    let at = table.binary_search_by_key(&reason, |(number, _)| *number).ok()?;
    Some(table[at].1)
}

/// AMD has a code per register and per exception.
fn amd_numbered(reason: u32) -> Option<Cow<'static, str>> {
    let number = reason & 0xf;
    let text = match reason {
        0x00..=0x0f => format!("cr{number} read"),
        0x10..=0x1f => format!("cr{number} write"),
        0x20..=0x2f => format!("dr{number} read"),
        0x30..=0x3f => format!("dr{number} write"),
        0x40..=0x5f => exception(reason - 0x40),
        0x90..=0x9f => format!("cr{number} write trap"),
        _ => return None,
    };
    Some(Cow::Owned(text))
}

fn exception(vector: u32) -> String {
    match listed(EXCEPTIONS, vector) {
        Some(mnemonic) => format!("exception #{mnemonic}"),
        None => format!("exception {vector}"),
    }
}

const EXCEPTIONS: &[(u32, &str)] = &[
    (0, "DE"),
    (1, "DB"),
    (3, "BP"),
    (4, "OF"),
    (5, "BR"),
    (6, "UD"),
    (7, "NM"),
    (8, "DF"),
    (10, "TS"),
    (11, "NP"),
    (12, "SS"),
    (13, "GP"),
    (14, "PF"),
    (16, "MF"),
    (17, "AC"),
    (18, "MC"),
    (19, "XF"),
    (21, "CP"),
    (28, "HV"),
    (29, "VC"),
    (30, "SX"),
];

/// In order of the numbers, without those of `amd_numbered`.
const AMD: &[(u32, &str)] = &[
    (0x60, "external interrupt"),
    (0x61, "nmi"),
    (0x62, "smi"),
    (0x63, "init"),
    (0x64, "interrupt window"),
    (0x65, "cr0 selective write"),
    (0x66, "idtr read"),
    (0x67, "gdtr read"),
    (0x68, "ldtr read"),
    (0x69, "tr read"),
    (0x6a, "idtr write"),
    (0x6b, "gdtr write"),
    (0x6c, "ldtr write"),
    (0x6d, "tr write"),
    (0x6e, "rdtsc"),
    (0x6f, "rdpmc"),
    (0x70, "pushf"),
    (0x71, "popf"),
    (0x72, "cpuid"),
    (0x73, "rsm"),
    (0x74, "iret"),
    (0x75, "software interrupt"),
    (0x76, "invd"),
    (0x77, "pause"),
    (0x78, "hlt"),
    (0x79, "invlpg"),
    (0x7a, "invlpga"),
    (0x7b, "io"),
    (0x7c, "msr"),
    (0x7d, "task switch"),
    (0x7e, "ferr freeze"),
    (0x7f, "triple fault"),
    (0x80, "vmrun"),
    (0x81, "hypercall"),
    (0x82, "vmload"),
    (0x83, "vmsave"),
    (0x84, "stgi"),
    (0x85, "clgi"),
    (0x86, "skinit"),
    (0x87, "rdtscp"),
    (0x88, "icebp"),
    (0x89, "wbinvd"),
    (0x8a, "monitor"),
    (0x8b, "mwait"),
    (0x8c, "mwait conditional"),
    (0x8d, "xsetbv"),
    (0x8e, "rdpru"),
    (0x8f, "efer write trap"),
    (0xa0, "invlpgb"),
    (0xa1, "invlpgb illegal"),
    (0xa2, "invpcid"),
    (0xa3, "mcommit"),
    (0xa4, "tlbsync"),
    (0xa5, "bus lock"),
    (0xa6, "hlt idle"),
    (0x400, "nested page fault"),
    (0x401, "avic incomplete ipi"),
    (0x402, "avic unaccelerated access"),
    (0x403, "vmgexit"),
    (0x8000_0001, "mmio read"),
    (0x8000_0002, "mmio write"),
    (0x8000_0003, "nmi complete"),
    (0x8000_0004, "ap hlt loop"),
    (0x8000_0005, "ap jump table"),
    (0x8000_0010, "page state change"),
    (0x8000_0011, "guest request"),
    (0x8000_0012, "extended guest request"),
    (0x8000_0013, "ap creation"),
    (0x8000_fffd, "hypervisor features"),
    (0x8000_fffe, "termination request"),
    (0x8000_ffff, "unsupported event"),
    (0xffff_fffe, "busy"),
    (0xffff_ffff, "invalid guest state"),
];

/// In order of the numbers.
const INTEL: &[(u32, &str)] = &[
    (0, "exception or nmi"),
    (1, "external interrupt"),
    (2, "triple fault"),
    (3, "init"),
    (4, "sipi"),
    (5, "io smi"),
    (6, "smi"),
    (7, "interrupt window"),
    (8, "nmi window"),
    (9, "task switch"),
    (10, "cpuid"),
    (11, "getsec"),
    (12, "hlt"),
    (13, "invd"),
    (14, "invlpg"),
    (15, "rdpmc"),
    (16, "rdtsc"),
    (17, "rsm"),
    (18, "hypercall"),
    (19, "vmclear"),
    (20, "vmlaunch"),
    (21, "vmptrld"),
    (22, "vmptrst"),
    (23, "vmread"),
    (24, "vmresume"),
    (25, "vmwrite"),
    (26, "vmxoff"),
    (27, "vmxon"),
    (28, "cr access"),
    (29, "dr access"),
    (30, "io"),
    (31, "msr read"),
    (32, "msr write"),
    (33, "invalid guest state"),
    (34, "msr load failure"),
    (36, "mwait"),
    (37, "monitor trap flag"),
    (39, "monitor"),
    (40, "pause"),
    (41, "machine check at entry"),
    (43, "tpr below threshold"),
    (44, "apic access"),
    (45, "eoi induced"),
    (46, "gdtr or idtr access"),
    (47, "ldtr or tr access"),
    (48, "nested page fault"),
    (49, "ept misconfiguration"),
    (50, "invept"),
    (51, "rdtscp"),
    (52, "preemption timer"),
    (53, "invvpid"),
    (54, "wbinvd"),
    (55, "xsetbv"),
    (56, "apic write"),
    (57, "rdrand"),
    (58, "invpcid"),
    (59, "vmfunc"),
    (60, "encls"),
    (61, "rdseed"),
    (62, "page modification log full"),
    (63, "xsaves"),
    (64, "xrstors"),
    (65, "pconfig"),
    (66, "sub-page permission"),
    (67, "umwait"),
    (68, "tpause"),
    (69, "loadiwkey"),
    (70, "enclv"),
    (72, "enqcmd"),
    (73, "enqcmds"),
    (74, "bus lock"),
    (75, "notify window"),
    (76, "seamcall"),
    (77, "tdcall"),
    (78, "rdmsrlist"),
    (79, "wrmsrlist"),
    (84, "msr read immediate"),
    (85, "msr write immediate"),
];

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names() {
        let check = |vendor, reason, expected: &str| assert_eq!(name(vendor, reason), expected);
        check(Vendor::Amd, 0x60, "external interrupt");
        check(Vendor::Intel, 1, "external interrupt");
        check(Vendor::Amd, 0x400, "nested page fault");
        check(Vendor::Intel, 48, "nested page fault");
        check(Vendor::Amd, 0x7b, "io");
        check(Vendor::Intel, 30, "io");
        check(Vendor::Amd, 0x00, "cr0 read");
        check(Vendor::Amd, 0x18, "cr8 write");
        check(Vendor::Amd, 0x37, "dr7 write");
        check(Vendor::Amd, 0x94, "cr4 write trap");
        check(Vendor::Amd, 0x4e, "exception #PF");
        check(Vendor::Amd, 0x5f, "exception 31");
        check(Vendor::Amd, u32::MAX, "invalid guest state");
        check(Vendor::Amd, 0x123, "exit 0x123");
        check(Vendor::Intel, 0x8000_0021, "invalid guest state");
        check(Vendor::Intel, 0x0800_000a, "cpuid");
        check(Vendor::Intel, 0x78, "exit 0x78");
        check(Vendor::Other, 12, "exit 0xc");
    }

    #[test]
    fn tables_are_in_order_and_no_name_stands_for_two_reasons() {
        for table in [EXCEPTIONS, AMD, INTEL] {
            assert!(table.is_sorted_by(|(a, _), (b, _)| a < b));
            let mut names: Vec<&str> = table.iter().map(|(_, name)| *name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.len());
        }
    }

    #[test]
    fn halts_and_interrupts() {
        let named = |vendor, is: fn(Vendor, u32) -> bool| {
            let reasons = (0..0x500).chain(0x8000_0000..0x8000_0020);
            let names: Vec<_> =
                reasons.filter(|r| is(vendor, *r)).map(|r| name(vendor, r).into_owned()).collect();
            names.join(", ")
        };
        let halts = "hlt, mwait, mwait conditional, hlt idle, ap hlt loop";
        assert_eq!(named(Vendor::Amd, is_halt), halts);
        assert_eq!(named(Vendor::Amd, is_interrupt), "external interrupt, nmi, smi");
        assert!(is_halt(Vendor::Intel, 12) && is_halt(Vendor::Intel, 0x8000_000c));
        assert!(is_halt(Vendor::Intel, 36) && !is_halt(Vendor::Intel, 40));
        assert!(is_interrupt(Vendor::Intel, 1) && !is_interrupt(Vendor::Intel, 0));
        assert!(!is_halt(Vendor::Other, 12) && !is_interrupt(Vendor::Other, 1));
    }
}
