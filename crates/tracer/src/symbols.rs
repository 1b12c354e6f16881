//! The kernel's functions by address.

use std::io;
use std::path::Path;

use host::procfs::parse_kallsyms;

/// Functions that are kept, at most: kernels have some 200,000.
const MAX_FUNCTIONS: usize = 1 << 20;
/// A name's bytes, at most (`KSYM_NAME_LEN` is 512).
const MAX_NAME: usize = 512;
/// No function is longer: what lies further from the one below it lies in none.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// Innermost functions of a stack among which tracing's own are looked for.
const MAX_OWN_FRAMES: usize = 12;

/// The functions of `/proc/kallsyms`.
#[derive(Debug, Default)]
pub struct Symbols {
    /// `(address, where its name begins, where it ends)`, ascending by address.
    functions: Vec<(u64, u32, u32)>,
    names: String,
}

impl Symbols {
    /// Reads `kallsyms` below `proc`. Empty where the kernel hides addresses (`kernel.kptr_restrict`).
    ///
    /// # Errors
    /// If it can't be read.
    pub fn read(proc: &Path) -> io::Result<Self> {
        let text = std::fs::read(proc.join("kallsyms"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// The text of `/proc/kallsyms`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut symbols = Self::default();
        let is_function = |entry: &host::procfs::KallsymsEntry<'_>| {
            entry.is_text() && entry.address != 0 && entry.name.len() <= MAX_NAME
        };
        for entry in parse_kallsyms(text).filter(is_function).take(MAX_FUNCTIONS) {
            let begin = symbols.names.len();
            symbols.names.push_str(entry.name);
            let place = |at| u32::try_from(at).unwrap_or(u32::MAX);
            symbols.functions.push((entry.address, place(begin), place(symbols.names.len())));
        }
        // Stable: of several names the kernel's first.
        symbols.functions.sort_by_key(|function| function.0);
        symbols.functions.dedup_by_key(|function| function.0);
        symbols
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function that `address` lies in.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&str> {
        let row =
            self.functions.partition_point(|function| function.0 <= address).checked_sub(1)?;
        let (start, begin, end) = self.functions[row];
        if MAX_FUNCTION_BYTES < address - start {
            return None;
        }
        self.names.get(begin as usize..end as usize)
    }

    /// The functions of a stack, innermost first, without those that serve tracing itself. What has no name is written as
    /// an address.
    #[must_use]
    pub fn stack(&self, addresses: &[u64]) -> Vec<String> {
        let name = |&address: &u64| match self.name(address) {
            Some(name) => name.to_owned(),
            None => format!("{address:#x}"),
        };
        let names: Vec<String> = addresses.iter().map(name).collect();
        let own = names.iter().take(MAX_OWN_FRAMES).rposition(|name| serves_tracing(name));
        names.into_iter().skip(own.map_or(0, |last| last + 1)).collect()
    }
}

/// Between a tracepoint and the program that asks for the stack.
fn serves_tracing(name: &str) -> bool {
    ["bpf_", "__bpf_", "__traceiter_"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod test {
    use super::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000000 t first
ffffffff81000100 t schedule
ffffffff81000200 D data
ffffffff81000300 T __schedule
ffffffff81000400 T __traceiter_sched_switch
ffffffffc0001000 t bpf_prog_12_sched_switch\t[bpf]
nonsense
";

    #[test]
    fn names() {
        let symbols = Symbols::parse(TEXT);
        let check = |address, expected| assert_eq!(symbols.name(address), expected, "{address:#x}");
        check(0, None);
        check(0xffff_ffff_80ff_ffff, None);
        check(0xffff_ffff_8100_0000, Some("_text"));
        check(0xffff_ffff_8100_02ff, Some("schedule"));
        check(0xffff_ffff_8100_0300, Some("__schedule"));
        check(0xffff_ffff_a000_0000, None);
        check(u64::MAX, None);
        assert_eq!(Symbols::parse("0000000000000000 T hidden\n").name(5), None);
        assert!(Symbols::parse("").is_empty());
    }

    #[test]
    fn stacks_begin_at_the_tracepoint() {
        let symbols = Symbols::parse(TEXT);
        let check = |addresses: &[u64], expected: &[&str]| {
            assert_eq!(symbols.stack(addresses), expected);
        };
        let (program, iterate) = (0xffff_ffff_c000_1010, 0xffff_ffff_8100_0410);
        let (inner, outer) = (0xffff_ffff_8100_0310, 0xffff_ffff_8100_0110);
        check(&[program, iterate, inner, outer], &["__schedule", "schedule"]);
        check(&[inner, 0x10], &["__schedule", "0x10"]);
        check(&[program], &[]);
        check(&[], &[]);
    }
}
