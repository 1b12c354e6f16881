//! Call stacks inside guests, against programs whose calls are known (workloads/calls.c).

use std::collections::BTreeMap;
use std::path::Path;

use acceptance::{in_testbed, report, run, text};
use serde_json::Value;

/// Of the program's branches, the function of each that no other has.
const BRANCHES: [&str; 5] = ["recurse", "compare", "on_signal", "tail", "look"];
/// As deep as `recurse` calls itself.
const DEPTH: usize = 40;

/// A stack and its samples.
struct Stack {
    /// The innermost function first.
    frames: Vec<String>,
    samples: u64,
}

impl Stack {
    fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame == function)
    }

    /// Of a thread's first deep stacks too little is copied: more from then on.
    fn is_whole(&self) -> bool {
        !self.frames.iter().any(|frame| frame.starts_with("[cut: "))
    }

    /// Whether these functions call each other, the innermost first.
    fn has_calls(&self, calls: &[&str]) -> bool {
        self.frames.windows(calls.len()).any(|frames| frames == calls)
    }
}

pub(crate) fn guests_call_stacks_are_those_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let script = "vmscope record -o rec --duration 15 --call-graph";
    let ran = in_testbed("call-stacks", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let recording = folder.path().join("rec");
    let unified = report(&recording, &["--limit", "100000"]).unwrap();
    assert_eq!(unified.sum(|_| true), unified.samples(), "the rows add up to the total");
    assert_eq!(unified.counter("samples_dropped"), 0);
    let stacks = &unified.0["guest_stacks"];
    for (mode, least) in [("user", 95), ("kernel", 98)] {
        let [all, whole] = ["samples", "whole"].map(|key| stacks[mode][key].as_u64().unwrap());
        eprintln!("{mode}: {whole} of {all} guest stacks are whole: {stacks}");
        assert!(500 < all && least * all <= 100 * whole, "{mode}: {whole} of {all} are whole");
    }
    for vm in ["old", "new"] {
        for process in ["calls", "calls-fp"] {
            stacks_are_those_of_the_source(&recording, vm, process);
        }
    }
    callers_and_callees_add_up(&recording);
    time_by_stack_is_that_by_function(&recording);
}

/// The stacks of a process' samples in a guest.
fn stacks_of(recording: &Path, vm: &str, process: &str) -> Vec<Stack> {
    let whose = ["--view", "guest", "--vm", vm, "--process", process];
    let found = report(recording, &[&whose[..], &["--by", "stack"]].concat()).unwrap();
    assert_eq!(found.sum(|_| true), found.samples(), "each sample has one stack");
    let stack = |row: &Value| Stack {
        frames: row["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_str().unwrap().to_owned())
            .collect(),
        samples: row["samples"].as_u64().unwrap(),
    };
    found.rows().iter().map(stack).collect()
}

/// Against what workloads/calls.py measures itself: the share of its CPU time that each branch takes.
pub(crate) fn pythons_functions_are_in_guests_call_stacks() {
    let folder = tempfile::tempdir().unwrap();
    // What is read of the program's file beforehand is in the guest's memory, its unwind tables too.
    let script = format!(
        "code=$(base64 -w0 {}/../../workloads/calls.py)
        (sleep 4; vmscope record -o rec --duration 8 --call-graph >&2; echo $? >code) &
        vmscope testbed exec py -- sh -c 'echo $1 | base64 -d >/tmp/calls.py; \
            cat /usr/bin/python3.* >/dev/null; python3 /tmp/calls.py 16' sh $code
        wait; exit $(cat code)",
        env!("CARGO_MANIFEST_DIR")
    );
    let ran = in_testbed("python", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let stacks = stacks_of(&folder.path().join("rec"), "py", "python3");
    let sum = |is_it: &dyn Fn(&Stack) -> bool| -> u64 {
        stacks.iter().filter(|stack| is_it(stack)).map(|stack| stack.samples).sum()
    };
    let branches: [(&str, &[&str]); 3] = [
        ("recurse", &["recurse"]),
        ("by_key", &["through_c"]),
        ("worker", &["in_thread", "Thread._bootstrap"]),
    ];
    let samples = branches.map(|(branch, functions)| {
        (branch, sum(&|stack| functions.iter().any(|function| stack.has(function))))
    });
    for calls in [
        &["leaf", "Handler.handle", "recurse", "recurse"][..],
        // Functions of C called `by_key`, and were called by `through_c`.
        &["leaf", "by_key", "_PyFunction_Vectorcall"],
        &["leaf", "worker"],
        &["Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"],
    ] {
        assert!(20 * sum(&|stack| stack.has_calls(calls)) > sum(&|_| true), "{calls:?}");
    }
    let (all, named) = (sum(&|_| true), samples.iter().map(|(_, samples)| samples).sum::<u64>());
    eprintln!("{named} of {all} stacks have Python's functions");
    // Those of the first looks at the rings have not: BPF learns of the interpreter by them.
    assert!(4_000 < all && 80 * all < 100 * named, "{named} of {all}");
    for (branch, found) in samples {
        let line =
            ran.stdout.lines().find_map(|line| line.strip_prefix(branch)?.trim().parse().ok());
        let measured: f64 = line.unwrap_or_else(|| panic!("{branch}: {}", ran.stdout));
        let share = 100.0 * found as f64 / named as f64;
        eprintln!("{branch}: {share:.2} %, by its own clock {measured:.2} %");
        assert!((share - measured).abs() < 2.0, "{branch}: {share:.2} %, not {measured:.2} %");
    }
}

/// What a victim or a cause of exits had, by function.
fn ns_by_function(rows: &Value, key: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in rows.as_array().unwrap() {
        *sums.entry(text(row, "function").to_owned()).or_default() += row[key].as_u64().unwrap();
    }
    sums
}

fn time_by_stack_is_that_by_function(recording: &Path) {
    let path = recording.to_str().unwrap();
    let json = |words: &[&str]| -> Value {
        let command = [words, &["--vm", "old", "--format", "json"]].concat();
        let ran = run(&command).unwrap();
        assert!(ran.status.success(), "{command:?} {ran:?}");
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let [by_stack, by_function] =
        ["stack", "function"].map(|by| json(&["steal", path, "--by", by])["vms"][0].clone());
    let own = ns_by_function(&by_stack["victims"], "own_ns");
    assert_eq!(own, ns_by_function(&by_function["victims"], "own_ns"));
    let callers = |row: &Value| -> Vec<String> {
        let callers = row["callers"].as_array().unwrap().iter();
        callers.map(|caller| caller.as_str().unwrap().to_owned()).collect()
    };
    let rows = by_stack["victims"].as_array().unwrap();
    let of_compare: u64 = rows
        .iter()
        .filter(|row| callers(row).first().is_some_and(|it| it == "burn"))
        .filter(|row| callers(row).iter().any(|it| it == "compare"))
        .map(|row| row["own_ns"].as_u64().unwrap())
        .sum();
    let whole: u64 = own.values().sum();
    eprintln!("turn < burn < compare: {of_compare} of {whole} ns");
    assert!(100 * of_compare > 5 * whole, "{of_compare} of {whole}");
    let [by_stack, by_function] = ["stack", "function"].map(|by| {
        let exits = json(&["exits", path, "--by", by])["vms"][0]["exits"].clone();
        let causes = |row: &Value| ns_by_function(&row["causes"], "ns");
        exits.as_array().unwrap().iter().map(causes).collect::<Vec<_>>()
    });
    assert_eq!(by_stack, by_function);
    let correct = |words: &[&str]| {
        let found = json(&[&["correct", path, "--process", "calls"], words].concat());
        found["correction"]["samples"].as_u64().unwrap()
    };
    let [all, below] = [correct(&[]), correct(&["--callees", "sort"])];
    eprintln!("{below} of {all} samples are below sort");
    assert!((10..30).contains(&(100 * below / all)), "{below} of {all}");
}

fn stacks_are_those_of_the_source(recording: &Path, vm: &str, process: &str) {
    let stacks = stacks_of(recording, vm, process);
    let sum = |is_it: &dyn Fn(&Stack) -> bool| -> u64 {
        stacks.iter().filter(|stack| is_it(stack)).map(|stack| stack.samples).sum()
    };
    let all = sum(&|stack| BRANCHES.iter().any(|branch| stack.has(branch)));
    assert!(1000 < all, "{vm} {process}: {all} samples");
    for branch in BRANCHES {
        let of_branch = sum(&|stack| stack.has(branch));
        let share = 100.0 * of_branch as f64 / all as f64;
        eprintln!("{vm} {process} {branch}: {share:.1} % of {all}");
        // Each takes a fifth: three standard errors, and what the program spends between two branches.
        let limit = 300.0 * (0.2 * 0.8 / all as f64).sqrt() + 1.0;
        assert!((share - 20.0).abs() < limit, "{vm} {process} {branch}: {share:.1} %");
    }
    let most = |name: &str, of: u64, all: u64| {
        assert!(0 < all && 97 * all <= 100 * of, "{vm} {process} {name}: {of} of {all}");
    };
    let with = |function: &'static str| {
        move |it: &Stack| it.is_whole() && it.has("turn") && it.has(function)
    };
    let deep = |stack: &Stack| stack.frames.iter().filter(|it| *it == "recurse").count() == DEPTH;
    most("recursion", sum(&|it| with("recurse")(it) && deep(it)), sum(&with("recurse")));
    let back = ["turn", "burn", "compare"];
    let is_back =
        |it: &Stack| it.has_calls(&back) && it.has_calls(&["sort", "main"]) && it.has("qsort_r");
    most("callback", sum(&is_back), sum(&with("compare")));
    let signal = |it: &Stack| {
        it.has_calls(&["burn", "on_signal"]) && it.has_calls(&["raise", "send_signal", "main"])
    };
    most("signal", sum(&|it| it.is_whole() && signal(it)), sum(&with("on_signal")));
    let tail = |it: &Stack| it.has_calls(&["turn", "burn", "tail", "main"]);
    most("tail call", sum(&tail), sum(&with("tail")));
    let call =
        |it: &Stack| it.has_calls(&["entry_SYSCALL_64_after_hwframe", "access", "look", "main"]);
    most(
        "system call",
        sum(&|it| it.has("do_faccessat") && call(it)),
        sum(&|it| it.is_whole() && it.has("do_faccessat")),
    );
    let thread = |it: &Stack| it.has_calls(&["turn", "burn", "in_thread"]) && !it.has("main");
    most("thread", sum(&thread), sum(&with("in_thread")));
}

/// The samples of a function are those of its tree, of callers and of callees.
fn callers_and_callees_add_up(recording: &Path) {
    let whose = ["--view", "guest", "--vm", "old", "--process", "calls"];
    let with = |more: &[&str]| report(recording, &[&whose[..], more].concat()).unwrap();
    let children = with(&["--children"]);
    let burn = children.sum(|row| text(row, "function") == "burn");
    assert!(500 < burn);
    let callers = with(&["--callers", "burn"]);
    assert_eq!(callers.0["totals"]["matched"].as_u64(), Some(burn));
    let at = |depth: u64| callers.sum(|row| row["depth"].as_u64() == Some(depth));
    assert_eq!([at(0), at(1)], [burn, burn], "each call of it has a caller");
    let callees = with(&["--callees", "burn"]);
    assert_eq!(callees.0["totals"]["matched"].as_u64(), Some(burn));
    let own: u64 = callees.rows().iter().map(|row| row["self_samples"].as_u64().unwrap()).sum();
    assert_eq!(own, burn, "each sample is in one function of the tree");
    let path = recording.to_str().unwrap();
    let folded = run(&["export", path, "--format", "folded", "-o", "-"]).unwrap();
    let folded = String::from_utf8(folded.stdout).unwrap();
    assert!(folded.contains(";main;sort;qsort_r;"), "exports have the stacks");
    let none = run(&["report", path, "--callers", "nothing"]).unwrap();
    assert_eq!(none.status.code(), Some(1), "{none:?}");
}
