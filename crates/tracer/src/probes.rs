//! The programs in the kernel: each is loaded, attached and detached separately.
//!
//! A program has the name of its tracepoint or kernel function.

use std::os::fd::{AsFd, AsRawFd};

use aya::programs::fentry::FEntryLink;
use aya::programs::fexit::FExitLink;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf};

/// A probe and why it can't be used (or what it missed).
pub(crate) type Missing = (String, String);

/// The attached programs. They are detached when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Links {
    tracepoints: Vec<BtfTracePointLink>,
    exits: Vec<FExitLink>,
    entries: Vec<FEntryLink>,
}

impl Links {
    pub(crate) fn is_empty(&self) -> bool {
        self.tracepoints.is_empty() && self.exits.is_empty()
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.tracepoints.extend(more.tracepoints);
        self.exits.extend(more.exits);
        self.entries.extend(more.entries);
    }
}

/// Sees system calls of single tasks (`by_task.rs`).
const CALLS_BY_TASK: &str = "perf_trace_run_bpf_submit";
/// See those of every task. Only one of the two is attached.
pub(crate) const CALLS_OF_ALL: [&str; 2] = ["sys_enter", "sys_exit"];

/// Sees only what files need: without them it would cost every task that reads a file.
pub(crate) const OF_FILES: &str = "mm_filemap_add_to_page_cache";

/// Loads every program that is `wanted` and that this kernel takes. Those that it does not are added to `missing`.
pub(crate) fn load(
    bpf: &mut Ebpf,
    btf: &Btf,
    wanted: impl Fn(&str) -> bool,
    missing: &mut Vec<Missing>,
) {
    for (name, program) in bpf.programs_mut().filter(|(name, _)| wanted(name)) {
        let result = match program {
            Program::BtfTracePoint(program) => program.load(name, btf),
            Program::FExit(program) => program.load(name, btf),
            Program::FEntry(_) => continue,
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        if !matches!(result, Err(ProgramError::Btf(_)) if is_rare_vector(name)) {
            note(name, result, missing);
        }
    }
    missing.sort();
}

/// Loads the program that sees system calls of single tasks. Where a kernel refuses it, the others see them.
pub(crate) fn load_by_task(bpf: &mut Ebpf, btf: &Btf) {
    if let Some(Program::FEntry(program)) = bpf.program_mut(CALLS_BY_TASK) {
        let _ = program.load(CALLS_BY_TASK, btf);
    }
}

/// Attaches it, if it was loaded.
pub(crate) fn attach_by_task(bpf: &mut Ebpf) -> Option<Links> {
    let Some(Program::FEntry(program)) = bpf.program_mut(CALLS_BY_TASK) else { return None };
    let id = program.attach().ok()?;
    let entries = vec![program.take_link(id).ok()?];
    Some(Links { entries, ..Links::default() })
}

/// Vectors that not every kernel has: those that lack the tracepoint lack the interrupt.
fn is_rare_vector(name: &str) -> bool {
    ["threshold_apic_", "deferred_error_apic_", "thermal_apic_", "x86_platform_ipi_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Those that come most often are attached last: attaching all takes milliseconds (in emulation seconds), in which
/// nothing drains the rings.
const LAST: [&str; 9] = [
    "page_fault_kernel",
    "handle_mm_fault",
    "page_fault_user",
    "sched_waking",
    "sched_wakeup",
    "sched_wakeup_new",
    "sched_switch",
    "sys_exit",
    "sys_enter",
];

/// Attaches those that were loaded and that are `wanted`.
pub(crate) fn attach(
    bpf: &mut Ebpf,
    wanted: impl Fn(&str) -> bool,
    missing: &mut Vec<Missing>,
) -> Links {
    let mut links = Links::default();
    let mut programs: Vec<_> = bpf
        .programs_mut()
        .filter(|(name, program)| wanted(name) && *name != CALLS_BY_TASK && program.fd().is_ok())
        .collect();
    programs.sort_by_key(|&(name, _)| (LAST.iter().position(|&last| last == name), name));
    for (name, program) in programs {
        let result = match program {
            Program::BtfTracePoint(program) => program
                .attach()
                .and_then(|id| program.take_link(id))
                .map(|link| links.tracepoints.push(link)),
            Program::FExit(program) => program
                .attach()
                .and_then(|id| program.take_link(id))
                .map(|link| links.exits.push(link)),
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        note(name, result, missing);
    }
    links
}

fn note(name: &str, result: Result<(), ProgramError>, missing: &mut Vec<Missing>) {
    if let Err(error) = result {
        missing.push((name.to_owned(), reason(&error)));
    }
}

/// Events that were missed because their program was interrupted by one of the same kind: the kernel does not run a
/// program on top of itself.
pub(crate) fn missed(bpf: &Ebpf) -> Vec<Missing> {
    let row = |(name, program): (&str, &Program)| {
        let fd = program.fd().ok()?.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let count = recursion_misses(&info).filter(|count| 0 < *count)?;
        Some((name.to_owned(), format!("missed {count} events that came on top of another")))
    };
    bpf.programs().filter_map(row).collect()
}

/// Of the text of a program's `/proc/self/fdinfo/FD`.
fn recursion_misses(text: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix("recursion_misses:")?.trim().parse().ok();
    text.lines().find_map(value)
}

/// An error and its causes in one line: aya's own text names only the step that failed. Lines after the first are the
/// verifier's log, which is long.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    model::error_chain(error).lines().next().unwrap_or_default().to_owned()
}

fn reason(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            match complaint(&log) {
                Some(complaint) => {
                    format!("the kernel refused the program: {io_error}: {complaint}")
                }
                None => format!("the kernel refused the program: {io_error}"),
            }
        }
        ProgramError::Btf(_) => "this kernel has no such tracepoint or function".to_owned(),
        error => error_chain(error),
    }
}

/// What the verifier did not like: the last line of its log that is no statistics.
fn complaint(log: &str) -> Option<&str> {
    let is_statistics = |line: &&str| {
        line.starts_with("processed ")
            || line.starts_with("verification time")
            || line.starts_with("stack depth")
    };
    log.lines().map(str::trim).filter(|line| !line.is_empty()).rfind(|line| !is_statistics(line))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn misses() {
        let check = |text, expected| assert_eq!(recursion_misses(text), expected);
        check("prog_type:\t26\nrun_cnt:\t0\nrecursion_misses:\t7\n", Some(7));
        check("prog_type:\t26\n", None);
        check("recursion_misses:\tmany\n", None);
    }

    #[test]
    fn complaints() {
        let check = |log, expected| assert_eq!(complaint(log), expected);
        check(
            "0: R1=ctx()\ninvalid access\nprocessed 4 insns (limit 1000000)\n",
            Some("invalid access"),
        );
        check("", None);
        check("processed 4 insns", None);
    }
}
