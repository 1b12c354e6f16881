//! Tests that a machine can't run: they say so on standard error, and fail in CI.
//!
//! Design constraints: a dev-dependency of every crate, so it depends on nothing. CI runs as root, with all packages of
//! the Makefile: the only thing it may lack is a kernel that takes every kind of BPF program.

#![forbid(unsafe_code)]

use std::fmt::Display;

/// Says that the calling test does not run on this machine, and why.
///
/// # Panics
/// With `CI=true` in the environment: CI must have what the test needs.
pub fn skip(reason: impl Display) {
    eprintln!("skipped: {reason}");
    assert!(!is_ci(), "skipped in CI, which must be able to run this test: {reason}");
}

/// The same for a test whose BPF program the running kernel did not take. A kernel may be built or locked down so that it
/// takes no such program from anybody; any other error is a fault of the program and fails in CI. So does a refusal for
/// want of a capability, which looks the same. That the kernel takes BPF programs at all, a test in `probes` shows.
///
/// # Panics
/// With `CI=true` when the error is not a refusal, or this process lacks a capability.
pub fn skip_if_refused(error: impl Display) {
    let error = error.to_string();
    eprintln!("skipped: {error}");
    if !is_ci() {
        return;
    }
    assert!(is_refusal(&error), "not a refusal of the kernel: {error}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    assert!(may_load(&status), "this process may not load BPF programs: {error}");
}

/// Whether a process with this `/proc/PID/status` has CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF.
fn may_load(status: &str) -> bool {
    const NEEDED: u64 = 1 << 21 | 1 << 38 | 1 << 39;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_some_and(|set| set & NEEDED == NEEDED)
}

/// EPERM and EOPNOTSUPP: the verifier's errors are EACCES and EINVAL.
fn is_refusal(error: &str) -> bool {
    ["Operation not permitted", "os error 1)", "Operation not supported", "os error 95)"]
        .iter()
        .any(|refusal| error.contains(refusal))
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_capability_is_known() {
        assert!(may_load("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        // Without CAP_BPF; without any; unknown.
        for status in ["CapEff:\t0000017fffffffff\n", "CapEff:\t0000000000000000\n", ""] {
            assert!(!may_load(status), "{status}");
        }
    }

    #[test]
    fn refusals_are_distinguished_from_faults() {
        assert!(is_refusal("failed to attach: Operation not permitted (os error 1)"));
        assert!(!is_refusal("failed to load: Permission denied (os error 13)"));
        assert!(!is_refusal("failed to load: Invalid argument (os error 22)"));
    }
}
