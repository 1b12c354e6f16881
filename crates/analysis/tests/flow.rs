//! Flows of the drawn world, one line per thread and stack, outermost frame first.

#![allow(clippy::unwrap_used)]

mod world;

use std::collections::BTreeMap;

use analysis::flow::{Flow, build};
use analysis::{Resolver, Selection, View};

fn flow(view: View, vm: Option<&str>, process: Option<&str>, samples: &str) -> Flow {
    let (tables, header) = (world::tables(), world::header());
    let selection = Selection::new(&tables, view, vm, None, process).unwrap();
    build(&Resolver::new(&tables), &header, selection, world::samples(samples))
}

fn drawn(flow: &Flow) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &flow.samples {
        let thread = &flow.threads[sample.thread as usize];
        let vm = thread.vm.as_deref().unwrap_or("host");
        let frames = flow.stacks[sample.stack as usize].iter().map(|frame| {
            let frame = &flow.frames[*frame as usize];
            format!("{:?}:{}", frame.kind, frame.name)
        });
        let frames: Vec<String> = frames.collect();
        let thread =
            format!("{vm} {}/{} {}/{}", thread.process, thread.pid, thread.thread, thread.tid);
        *lines.entry(format!("{thread} = {}", frames.join(" > "))).or_default() += 1;
    }
    lines.into_iter().map(|(line, count)| format!("{count} {line}\n")).collect()
}

fn check(flow: &Flow, expected: &str) {
    let lines = expected.lines().map(str::trim).filter(|line| !line.is_empty());
    assert_eq!(drawn(flow), lines.map(|line| format!("{line}\n")).collect::<String>());
}

#[test]
fn guests_stand_under_their_vm() {
    let samples = "
        0 10 3 guest 0 user   a000 f0 400010
        0 11 1 guest 1 kernel c000 f2 ffffffff9a000010
        0 60 2 guest 2 user   a000 0  400010
        0 61 1 unknown 1000";
    check(
        &flow(View::Unified, None, None, samples),
        "
        1 vm1 [vm1]/0 [unknown]/0 = Vm:[vm1]
        3 vm1 compute/40 compute/40 = Vm:[vm1] > Process:compute > GuestUser:compute_a
        1 vm1 compute/42 main/42 = Vm:[vm1] > Process:compute > GuestKernel:clear_page
        2 vm2 [vm2]/0 vcpu0/0 = Vm:[vm2]
        ",
    );
    check(
        &flow(View::Host, Some("vm1"), None, samples),
        "
        1 vm1 [vm1]/0 [unknown]/0 = Vm:[vm1]
        3 vm1 [vm1]/0 vcpu0/0 = Vm:[vm1]
        1 vm1 [vm1]/0 vcpu1/0 = Vm:[vm1]
        ",
    );
}

#[test]
fn host_stacks_have_the_kernel_on_top_of_user_code() {
    let samples = "
        0 10 1 stack 1000 kernel ffffffffc0000050
        0 11 2 vmm 0 1000 ffffffffc0000050
        0 12 1 host 300 user 5010
        0 13 1 host 555 kernel ffffffff81000200
        0 14 1 idle ffffffff81000100";
    check(
        &flow(View::Unified, None, None, samples),
        "
        1 host [idle]/0 [idle]/0 = Idle:[idle] > HostKernel:native_safe_halt
        1 host [unknown]/555 [unknown]/555 = Process:[unknown] > HostKernel:schedule
        1 host postgres/300 [unknown]/300 = Process:postgres > HostUser:ExecScan
        2 host qemu-system-x86/1000 qemu-system-x86/1000 = Process:qemu-system-x86 > HostKernel:svm_vcpu_run
        1 host qemu-system-x86/1000 qemu-system-x86/1000 = Process:qemu-system-x86 > HostUser:main_loop > HostUser:kvm_cpu_exec > HostKernel:do_syscall_64 > HostKernel:svm_handle_exit > HostKernel:svm_vcpu_run
        ",
    );
}

#[test]
fn the_selection_applies() {
    let of = |view, vm, process| flow(view, vm, process, world::EVERYTHING).samples.len();
    assert_eq!(of(View::Unified, None, None), 70);
    assert_eq!(of(View::Host, None, None), 70);
    assert_eq!(of(View::Native, None, None), 17);
    assert_eq!(of(View::Guest, Some("vm1"), None), 43);
    assert_eq!(of(View::Unified, None, Some("compute")), 34);
}

#[test]
fn modules_say_whose_they_are_and_times_are_in_order() {
    let flow = flow(View::Unified, None, None, world::EVERYTHING);
    let paths: Vec<&str> = flow.modules.iter().map(|module| module.path.as_str()).collect();
    assert!(paths.contains(&"[vm1]/opt/compute") && paths.contains(&"[vm1][kernel]"), "{paths:?}");
    assert!(paths.contains(&"[kernel]") && paths.contains(&"/usr/bin/qemu-system-x86_64"));
    assert!(flow.samples.is_sorted_by_key(|sample| sample.time));
}
