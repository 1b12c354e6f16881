//! Profiles of functions and the paths to them, as a fleet's result tables have them: rows of time, added up.

use std::collections::BTreeMap;

/// Bytes of a name at most: guests choose them.
const MAX_NAME: usize = 160;

/// A function of a process of a VM. Unknown texts are empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestFunction {
    pub host: String,
    pub vm: String,
    pub process: String,
    /// Process id in the guest.
    pub pid: Option<u32>,
    /// Path of the module, or a name in brackets.
    pub module: String,
    pub function: String,
    /// Where they are known: the outermost first.
    pub callers: Vec<String>,
}

/// What a function took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FunctionCost {
    /// Samples that saw it.
    pub samples: u64,
    /// Time as it seemed.
    pub ns: u64,
    /// The part of it that is left when everything stolen is taken away.
    pub corrected_ns: u64,
}

/// The functions of a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Functions {
    /// Its first instant, ns since 1970.
    pub start_unix_ns: u64,
    pub length_ns: u64,
    /// Each path to a function once.
    pub costs: BTreeMap<GuestFunction, FunctionCost>,
    /// What a reader should know: why some are missing.
    pub notes: Vec<String>,
}

impl Functions {
    /// Adds a row. Its names are cut to 160 bytes.
    pub fn add(&mut self, function: GuestFunction, cost: FunctionCost) {
        let cut = |mut name: String| {
            let mut end = name.len().min(MAX_NAME);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            name.truncate(end);
            name
        };
        let GuestFunction { host, vm, process, pid, module, function, callers } = function;
        let function = GuestFunction {
            host: cut(host),
            vm: cut(vm),
            process: cut(process),
            pid,
            module: cut(module),
            function: cut(function),
            callers: callers.into_iter().map(cut).collect(),
        };
        let known = self.costs.entry(function).or_default();
        known.samples = known.samples.saturating_add(cost.samples);
        known.ns = known.ns.saturating_add(cost.ns);
        known.corrected_ns = known.corrected_ns.saturating_add(cost.corrected_ns);
    }

    /// Keeps the `most` that took most time, and notes how many were left out.
    pub fn keep_most(&mut self, most: usize) {
        let Some(excess) = self.costs.len().checked_sub(most).filter(|excess| 0 < *excess) else {
            return;
        };
        let mut order: Vec<_> = self.costs.iter().map(|(f, cost)| (cost.ns, f.clone())).collect();
        order.sort();
        for (_, function) in &order[..excess] {
            self.costs.remove(function);
        }
        self.notes.push(format!("{excess} functions that took less time are left out"));
    }
}

impl GuestFunction {
    /// As a frame: what has no name is said in brackets.
    pub(crate) fn frame(&self) -> &str {
        named(&self.function, "[unknown]")
    }

    /// The path from the function outward, without the function.
    pub(crate) fn caller_frames(&self) -> impl Iterator<Item = &str> {
        self.callers.iter().rev().map(|caller| named(caller, "[unknown]"))
    }

    /// The process as a frame.
    pub(crate) fn process_frame(&self) -> &str {
        named(&self.process, "[unknown process]")
    }
}

fn named<'n>(name: &'n str, otherwise: &'n str) -> &'n str {
    if name.is_empty() { otherwise } else { name }
}

#[cfg(test)]
pub(crate) mod test {
    use super::*;

    /// Two functions of one process, one of which has a hostile name.
    pub(crate) fn functions() -> Functions {
        let mut functions = Functions {
            start_unix_ns: 1_800_000_000_000_000_000,
            length_ns: 60_000_000_000,
            ..Functions::default()
        };
        let evil = format!("<b>\u{1b}[31m\u{202e}exe\n{}", "long".repeat(2500));
        for (function, ns) in [("main", 3_000_000), (&evil, 1_000_000), ("main", 2_000_000)] {
            let function = GuestFunction {
                host: "kvm1".to_owned(),
                vm: "db".to_owned(),
                process: "mysqld".to_owned(),
                pid: Some(7),
                module: "/usr/sbin/mysqld".to_owned(),
                function: function.to_owned(),
                callers: vec!["_start".to_owned(), "run".to_owned()],
            };
            functions.add(function, FunctionCost { samples: 1, ns, corrected_ns: ns / 2 });
        }
        functions
    }

    #[test]
    fn rows_are_added_up_and_the_longest_kept() {
        let mut functions = functions();
        assert_eq!(functions.costs.len(), 2);
        assert!(functions.costs.keys().all(|function| function.function.len() <= MAX_NAME));
        functions.keep_most(2);
        assert!(functions.notes.is_empty());
        functions.keep_most(1);
        let (function, cost) = functions.costs.first_key_value().unwrap();
        assert_eq!((function.function.as_str(), cost.ns, cost.samples), ("main", 5_000_000, 2));
        assert_eq!(functions.notes, ["1 functions that took less time are left out"]);
    }
}
