//! Disks' names by the kernel's numbers.

use std::path::Path;

/// Every disk and partition of `proc`: `(dev_t, name)` with dev_t = major << 20 | minor, as the kernel has it. Empty
/// where the list can't be read.
#[must_use]
pub fn names(proc: &Path) -> Vec<(u32, String)> {
    parse(&std::fs::read_to_string(proc.join("partitions")).unwrap_or_default())
}

/// The text of `/proc/partitions`: `major minor #blocks name`.
fn parse(text: &str) -> Vec<(u32, String)> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let major: u32 = fields.next()?.parse().ok()?;
        let minor: u32 = fields.next()?.parse().ok()?;
        let name = fields.nth(1)?.to_owned();
        Some((major << 20 | minor, name))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn partitions() {
        let text =
            "major minor  #blocks  name\n\n 254        0  268435456 vda\n 254 1 7 vda1\n junk\n";
        let vda = 254 << 20;
        assert_eq!(parse(text), [(vda, "vda".to_owned()), (vda | 1, "vda1".to_owned())]);
    }
}
