//! Names of a kernel's and its modules' functions, from the lines of `/proc/kallsyms`.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::SymbolName;

use crate::demangle::printable;

/// Most symbols that are kept of one kernel.
const MAX_SYMBOLS: usize = 1 << 20;

/// A contiguous piece of kernel code: the kernel's text, or a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPart {
    /// Its `Module::path`: `[kernel]`, `[kvm_amd]`.
    pub path: String,
    /// First address, as it is in this boot.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// The functions of one running kernel. KASLR needs no care: parts and symbols are of the same boot,
/// and look-ups are by offset from the part's start.
#[derive(Debug, Clone, Default)]
pub struct KernelNames {
    parts: BTreeMap<String, (u64, u64)>,
    /// By address, one for each.
    symbols: Arc<[(u64, Box<str>)]>,
}

impl KernelNames {
    /// From text symbols. Those with address 0 are hidden ones and left out. Of several names for one
    /// address the first is kept: the kernel lists the proper one first (scripts/kallsyms.c, strong
    /// before weak, fewest underscores first), and lists them alike on the host and in guests.
    #[must_use]
    pub fn new<N: Into<Box<str>>>(
        symbols: impl IntoIterator<Item = (u64, N)>,
        parts: impl IntoIterator<Item = KernelPart>,
    ) -> Self {
        let visible = symbols.into_iter().filter(|(address, _)| *address != 0);
        let mut symbols: Vec<(u64, Box<str>)> =
            visible.take(MAX_SYMBOLS).map(|(address, name)| (address, name.into())).collect();
        symbols.sort_by_key(|(address, _)| *address);
        symbols.dedup_by_key(|(address, _)| *address);
        Self::shared(symbols.into(), parts)
    }

    /// The same of symbols that are ordered by address, with one name each: copies share them.
    #[must_use]
    pub fn shared(
        symbols: Arc<[(u64, Box<str>)]>,
        parts: impl IntoIterator<Item = KernelPart>,
    ) -> Self {
        let parts = parts.into_iter().map(|part| (part.path, (part.start, part.end))).collect();
        Self { parts, symbols }
    }

    /// Whether a module of this path is part of the kernel.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.parts.contains_key(path)
    }

    /// The function at `offset` of the part `path`. Sizes are unknown: it is the last function that
    /// begins in the part at or before the address.
    #[must_use]
    pub fn name(&self, path: &str, offset: u64) -> SymbolName {
        let unreadable = |reason: &str| SymbolName::Unreadable(reason.to_owned());
        let Some((start, end)) = self.parts.get(path) else {
            return unreadable("not among the kernel's modules");
        };
        if self.symbols.is_empty() {
            return unreadable("the kernel hides its addresses (sysctl kernel.kptr_restrict)");
        }
        let address = match start.checked_add(offset) {
            Some(address) if address < *end => address,
            _ => return SymbolName::Stripped,
        };
        let after = self.symbols.partition_point(|(symbol, _)| *symbol <= address);
        match self.symbols[..after].last() {
            Some((symbol, name)) if start <= symbol => SymbolName::Function(printable(name)),
            _ => SymbolName::Stripped,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn kernel(shift: u64) -> KernelNames {
        let symbols = [
            (0x8100_0000, "_stext"),
            (0x8100_0100, "do_syscall_64"),
            (0x8100_0200, "memcpy"),
            (0x8100_0200, "__memcpy"),
            (0x8100_0200, "abc"),
            (0, "hidden"),
            (0xc000_0040, "svm_vcpu_run\u{1b}[31m"),
            (0xc000_9000, "other"),
        ];
        let part = |path: &str, start: u64, end: u64| KernelPart {
            path: path.to_owned(),
            start: start + shift,
            end: end + shift,
        };
        let moved = |address| if address == 0 { 0 } else { address + shift };
        KernelNames::new(
            symbols.map(|(address, name)| (moved(address), name)),
            [
                part("[kernel]", 0x8100_0000, 0x8100_1000),
                part("[kvm_amd]", 0xc000_0000, 0xc000_1000),
                part("[empty]", 0xc000_2000, 0xc000_3000),
            ],
        )
    }

    fn check(path: &str, offset: u64, expected: &str) {
        // The same offsets give the same names wherever this boot put the kernel.
        for shift in [0, 0x1ee0_0000, 0xffff_ffff_0000_0000] {
            let shown = match kernel(shift).name(path, offset) {
                SymbolName::Function(name) => name,
                SymbolName::Stripped => "(stripped)".into(),
                SymbolName::Unreadable(reason) => reason,
            };
            assert_eq!(shown, expected, "{path}+{offset:#x} shifted by {shift:#x}");
        }
    }

    #[test]
    fn offsets_find_the_function_before() {
        check("[kernel]", 0, "_stext");
        check("[kernel]", 0xff, "_stext");
        check("[kernel]", 0x100, "do_syscall_64");
        check("[kernel]", 0x2ff, "memcpy");
        check("[kernel]", 0x1000, "(stripped)");
        check("[kernel]", u64::MAX, "(stripped)");
    }

    #[test]
    fn modules_end_where_they_end() {
        check("[kvm_amd]", 0x3f, "(stripped)"); // not the kernel's last function
        check("[kvm_amd]", 0x40, "svm_vcpu_run\u{fffd}[31m");
        check("[empty]", 0, "(stripped)");
        check("[nfs]", 0, "not among the kernel's modules");
    }

    #[test]
    fn hidden_addresses_are_said() {
        let part = KernelPart { path: "[kernel]".into(), start: 1, end: 9 };
        let names = KernelNames::new([(0, "a"), (0, "b")], [part]);
        let SymbolName::Unreadable(reason) = names.name("[kernel]", 1) else { panic!() };
        assert!(reason.contains("kptr_restrict"), "{reason}");
    }
}
