//! Guests of the virtual host, traced from outside: their clocks, their kernels, what it costs them, and what they do to
//! their own traces.

use std::path::Path;

use acceptance::shared::{Part, SharedHost};
use acceptance::trace::{check_sums, clock_fit, report, stretches};
use acceptance::{in_testbed, text};
use serde_json::Value;

static HOST: SharedHost = SharedHost::new(
    "trace-guests",
    &[
        Part { test: "garbage_in_guests_rings_ends_their_traces_alone", script: garbage },
        // It ends a guest.
        Part { test: "a_guest_is_traced_from_outside", script: from_outside },
    ],
);

/// Five sleeps of 0.2 s between other work.
const SLEEPS: &str =
    "sh -c 'for n in 1 2 3 4 5; do dd if=/dev/zero of=/dev/null bs=64k count=20; sleep 0.2; done'";

/// The whole report of a machine that was traced to the end without losses.
fn whole(trace: &Path, machine: &str) -> Value {
    let found = report(trace, &["--machine", machine, "--limit", "0"]).unwrap();
    assert!(found["trace"]["complete"].as_bool().unwrap());
    assert_eq!(found["machine"]["lost"], Value::Array(vec![]), "{machine}");
    assert!(found["machine"]["ended_early"].is_null(), "{}", found["machine"]);
    check_sums(&found).unwrap();
    found
}

/// The guest's kernel writes to its memory, and the host reads it from there.
fn is_traced_from_outside(rec: &Path) -> Value {
    let guest = whole(rec, "a");
    whole(rec, "host");
    let (machine, command) = (&guest["machine"], &guest["command"]);
    assert_eq!(text(machine, "path"), "guest memory", "{machine}");
    let error = machine["clock_error_ns"].as_u64().unwrap();
    eprintln!("trace: the guest's clock is known to {error} ns");
    assert!(error < 10_000, "{error} ns");
    assert_eq!(command["exit_code"].as_i64(), Some(0));
    let slept = slept_ns(&guest);
    assert!((950_000_000..3_000_000_000).contains(&slept), "5 sleeps of 0.2 s took {slept} ns");

    fits_the_host_s_events(rec, error);
    guest
}

/// The host's own events are the witness of the guest's clock.
fn fits_the_host_s_events(rec: &Path, error_ns: u64) {
    let fit = clock_fit(&stretches(rec).unwrap(), "a");
    eprintln!("trace: {fit:?}");
    assert!(100 <= fit.instants, "{fit:?}");
    assert!(fit.outside.iter().all(|ns| *ns <= error_ns), "{fit:?}");
    assert!(fit.early_at_most_ns < 1_000_000 && fit.late_at_most_ns < 1_000_000, "{fit:?}");
}

fn slept_ns(guest: &Value) -> u64 {
    let names = guest["waits"]["names"].as_array().unwrap().iter();
    let sleeps = names.filter(|row| text(row, "name") == "sleep").flat_map(|row| {
        let causes = row["life"]["causes"].as_array().cloned().unwrap_or_default();
        causes.into_iter().filter(|cause| text(cause, "cause") == "timer")
    });
    sleeps.filter_map(|cause| cause["ns"].as_u64()).sum()
}

/// The guest is gone in the middle of the second trace: how its command ended is not known.
fn from_outside() -> String {
    format!(
        "vmscope trace record -o rec --vm a -- {SLEEPS}
        vmscope trace record -o ended --vm a -- idle || echo $? >code.txt &
        recorder=$!
        until vmscope testbed exec a -- pidof idle; do sleep 0.2; done
        vmscope testbed end a
        wait $recorder"
    )
}

pub(crate) fn a_guest_is_traced_from_outside() {
    let files = HOST.succeeded("a_guest_is_traced_from_outside").files;
    is_traced_from_outside(&files.join("rec"));
    assert_eq!(std::fs::read_to_string(files.join("code.txt")).unwrap(), "1\n");
    let ended = report(&files.join("ended"), &["--machine", "a", "--limit", "0"]).unwrap();
    assert!(ended["machine"]["ended_early"].is_string(), "{}", ended["machine"]);
    assert!(ended["command"]["exit_code"].is_null(), "{}", ended["command"]);
    check_sums(&ended).unwrap();
}

pub(crate) fn a_guest_with_another_kernel_is_traced() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("vmscope trace record -o rec --vm a -- {SLEEPS}");
    let ran = in_testbed("trace-guest-6.12", folder.path(), &script).unwrap();
    if ran.stderr.contains("no kernel package") {
        return skip::skip("a guest with Linux 6.12: neither apt nor the cache has one");
    }
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let guest = is_traced_from_outside(&folder.path().join("rec"));
    let (guest, host) = (&guest["machine"], &whole(&folder.path().join("rec"), "host")["machine"]);
    assert!(text(guest, "kernel").starts_with("6.12."), "{guest}");
    assert_ne!(guest["kernel"], host["kernel"]);
}

/// Two guests write into their own rings, through the maps that the probes write: their root can. `spoil` ends only when
/// the host has taken events before it, and the third guest works after it.
fn garbage() -> String {
    format!(
        "vmscope trace record -o rec --vm a --vm b --vm c 2>said.txt &
        recorder=$!
        vmscope testbed exec a -- spoil slots
        vmscope testbed exec b -- spoil heads
        vmscope testbed exec c -- {SLEEPS}
        kill -INT $recorder
        wait $recorder"
    )
}

pub(crate) fn garbage_in_guests_rings_ends_their_traces_alone() {
    let files = HOST.succeeded("garbage_in_guests_rings_ends_their_traces_alone").files;
    let rec = files.join("rec");
    let said = std::fs::read_to_string(files.join("said.txt")).unwrap();
    for (guest, reason) in [("a", "unknown event kind 200"), ("b", "is damaged: head")] {
        let found = report(&rec, &["--machine", guest, "--limit", "0"]).unwrap();
        let ended = text(&found["machine"], "ended_early");
        assert!(ended.contains(reason), "{guest}: {ended}");
        assert!(said.contains(&format!("{guest}: its trace ended early: {ended}")), "{said}");
        check_sums(&found).unwrap();
        let names = found["waits"]["names"].as_array().unwrap();
        assert!(names.iter().any(|row| text(row, "name") == "spoil"), "{guest}: what came before");
    }
    let arguments = ["--machine", "a", "--view", "waits", "--process", "spoil", "--limit", "0"];
    let waits = report(&rec, &arguments).unwrap();
    let details = waits["waits"]["details"].as_array().unwrap();
    let slept_in = |row: &Value| text(row, "function").contains("nanosleep");
    assert!(details.iter().any(slept_in), "its stacks have names: {details:?}");
    let slept = slept_ns(&whole(&rec, "c"));
    assert!((950_000_000..3_000_000_000).contains(&slept), "5 sleeps of 0.2 s took {slept} ns");
    whole(&rec, "host");
}

/// The same job twice. What is compared is what the guest's kernel says, in the traces, of the CPU time of `vmscope-guest`:
/// reading the guest's memory costs it nothing but looks at its clocks. A guest takes time for its own that its host had for
/// others: this test needs a quiet machine.
pub(crate) fn taking_events_from_memory_costs_the_guest_next_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let job = "dd if=/dev/zero of=/dev/null bs=1 count=40000";
    let script = format!(
        "vmscope trace record -o memory --vm a -- {job}
        vmscope trace record -o link --vm a --by-link -- {job}"
    );
    let ran = in_testbed("trace-guest", folder.path(), &format!("set -e\n{script}")).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let [memory, link] = [("memory", "guest memory"), ("link", "vsock")].map(|(name, path)| {
        let trace = folder.path().join(name);
        assert_eq!(text(&whole(&trace, "a")["machine"], "path"), path);
        let (ran, calls) = cost(&trace);
        eprintln!("trace: by {path}: vmscope-guest ran for {ran} ns while {calls} calls were made");
        ran as f64 / calls as f64
    });
    assert!(memory * 5.0 < link, "{memory} ns a call from memory, {link} ns by vsock");
}

/// For how long `vmscope-guest` ran, ns, and how many system calls others made meanwhile: each is two events.
fn cost(trace: &Path) -> (u64, u64) {
    let arguments = ["--machine", "a", "--view", "process", "--all", "--limit", "0"];
    let found = report(trace, &arguments).unwrap();
    let processes = found["processes"].as_array().unwrap().iter();
    let (ours, others): (Vec<&Value>, Vec<&Value>) =
        processes.partition(|row| text(row, "name") == "vmscope-guest");
    let ran = ours.iter().map(|row| row["life"]["running_ns"].as_u64().unwrap()).sum();
    let calls = others.iter().map(|row| row["calls"].as_u64().unwrap()).sum();
    assert!(0 < ran && 80_000 <= calls, "{ran} ns, {calls} calls");
    (ran, calls)
}
