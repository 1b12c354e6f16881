//! Names of kernel functions: without what the compiler adds, and looked up in the tables.

use std::collections::BTreeMap;

/// What is said of functions by their names; a name ending in `*` stands for all that begin so.
#[derive(Debug, Clone)]
pub(super) struct Names<T> {
    whole: BTreeMap<&'static str, T>,
    /// Longest first.
    beginnings: Vec<(&'static str, T)>,
}

impl<T: Copy> Names<T> {
    pub(super) fn new(table: &[(T, &[&'static str])]) -> Self {
        let mut names = Self { whole: BTreeMap::new(), beginnings: Vec::new() };
        let entries =
            table.iter().flat_map(|(says, list)| list.iter().map(move |name| (*says, *name)));
        for (says, name) in entries {
            match name.strip_suffix('*') {
                Some(beginning) => names.beginnings.push((beginning, says)),
                None => drop(names.whole.insert(name, says)),
            }
        }
        names.beginnings.sort_by_key(|(beginning, _)| std::cmp::Reverse(beginning.len()));
        names
    }

    /// What is said of a function; a whole name first, then the longest beginning.
    pub(super) fn get(&self, function: &str) -> Option<T> {
        let whole = self.whole.get(function).copied();
        let begins = |(beginning, _): &&(&str, T)| function.starts_with(beginning);
        whole.or_else(|| self.beginnings.iter().find(begins).map(|(_, says)| *says))
    }
}

/// A function's own name: `.isra.0`, `.part.3.cold`, `.constprop.0`, an offset and a module are cut off.
pub(super) fn plain(function: &str) -> &str {
    let function = function.trim();
    let end = function.find(['.', '+', ' ', '[', '\t']).filter(|end| 0 < *end);
    &function[..end.unwrap_or(function.len())]
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_the_compiler_adds_is_cut_off() {
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
    fn whole_names_go_before_beginnings_and_long_ones_before_short_ones() {
        let names =
            Names::new(&[(1, &["fuse_*", "x"]), (2, &["fuse_dev_do_read"]), (3, &["fuse_dev*"])]);
        let check = |name: &str, expected| assert_eq!(names.get(name), expected, "{name}");
        check("fuse_dev_do_read", Some(2));
        check("fuse_dev_do_write", Some(3));
        check("fuse_lookup", Some(1));
        check("x", Some(1));
        check("xy", None);
        check("", None);
    }
}
