//! Names of kernel functions: lookup in the tables, and removal of the suffixes that the compiler adds.

use std::collections::BTreeMap;

/// The meaning of functions by name; a name that ends in `*` is a prefix.
#[derive(Debug, Clone)]
pub(super) struct Names<T> {
    whole: BTreeMap<&'static str, T>,
    /// Longest first.
    prefixes: Vec<(&'static str, T)>,
}

impl<T: Copy> Names<T> {
    pub(super) fn new(rows: impl IntoIterator<Item = (&'static str, T)>) -> Self {
        let mut names = Self { whole: BTreeMap::new(), prefixes: Vec::new() };
        for (name, meaning) in rows {
            match name.strip_suffix('*') {
                Some(prefix) => names.prefixes.push((prefix, meaning)),
                None => drop(names.whole.insert(name, meaning)),
            }
        }
        names.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        names
    }

    /// The meaning of a function: by its whole name, else by the longest prefix.
    pub(super) fn get(&self, function: &str) -> Option<T> {
        let whole = self.whole.get(function).copied();
        let matches = |(prefix, _): &&(&str, T)| function.starts_with(prefix);
        whole.or_else(|| self.prefixes.iter().find(matches).map(|(_, meaning)| *meaning))
    }
}

/// A function's own name, without `.isra.0`, `.part.3.cold`, `.constprop.0`, an offset or a module.
pub(super) fn plain(function: &str) -> &str {
    let function = function.trim();
    let end = function.find(['.', '+', ' ', '[', '\t']).filter(|end| 0 < *end);
    &function[..end.unwrap_or(function.len())]
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn compiler_suffixes_are_cut_off() {
        let check = |name: &str, expected: &str| assert_eq!(plain(name), expected);
        check("pipe_read", "pipe_read");
        check("poll_schedule_timeout.constprop.0", "poll_schedule_timeout");
        check("exit_mm.part.0.cold", "exit_mm");
        check("do_wait+0x12/0x340", "do_wait");
        check(" ext4_readdir [ext4]", "ext4_readdir");
        check("[unknown]", "[unknown]");
        check("0xffffffff81000000", "0xffffffff81000000");
        check("", "");
    }

    #[test]
    fn whole_names_win_over_prefixes_and_long_prefixes_over_short_ones() {
        let names =
            Names::new([("fuse_*", 1), ("x", 1), ("fuse_dev_do_read", 2), ("fuse_dev*", 3)]);
        let check = |name: &str, expected| assert_eq!(names.get(name), expected, "{name}");
        check("fuse_dev_do_read", Some(2));
        check("fuse_dev_do_write", Some(3));
        check("fuse_lookup", Some(1));
        check("x", Some(1));
        check("xy", None);
        check("", None);
    }
}
