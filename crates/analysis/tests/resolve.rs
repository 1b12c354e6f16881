//! Which process and function a sample is given, case by case.

#![allow(clippy::unwrap_used)]

mod world;

use analysis::vcpu_timeline::VcpuTimelinesBuilder;
use analysis::{Aggregator, By, Label, Query, Resolver, SelectError, Selection, View};
use model::{
    GuestStack, GuestVirt, HostNs, Image, ImageId, ImageKind, KernelStack, Owner, Pid,
    RecordConsumer as _, Sample, Stack, StackId, SymbolName, Tables, Thread, Tid, VmId,
};
use resolve::Addresses;

fn labels(tables: &Tables, samples: &str, by: By) -> Vec<(u64, Label)> {
    let (resolver, header) = (Resolver::new(tables), world::header());
    let selection = Selection::all(tables, View::Unified).unwrap();
    let mut aggregator = Aggregator::new(&resolver, &header, Query { selection, by, limit: None });
    world::samples(samples).iter().for_each(|sample| aggregator.push(sample));
    aggregator.finish().rows.into_iter().map(|row| (row.samples, row.label)).collect()
}

/// One sample: process and function.
fn check(tables: &Tables, sample: &str, expected: &str) {
    let labels = labels(tables, sample, By::Function);
    let [(1, label)] = &labels[..] else { panic!("{labels:?}") };
    let pid = label.pid.map_or(String::new(), |pid| format!("/{pid}"));
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let actual = format!("{}{pid} {}", text(&label.process), text(&label.function));
    assert_eq!(actual, expected, "{sample}");
}

fn check_thread(sample: &str, expected: &str) {
    let labels = labels(&world::tables(), sample, By::Thread);
    let [(1, label)] = &labels[..] else { panic!("{labels:?}") };
    assert_eq!(label.thread.as_deref(), Some(expected), "{sample}");
}

#[test]
fn a_reused_cr3_is_distinguished_by_time() {
    let tables = world::tables();
    check(&tables, "0 10 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 59 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 61 1 guest 0 user a000 f0 401234", "worker/41 (stripped)");
}

#[test]
fn lifetimes_may_miss_by_the_clock_error_and_a_little() {
    // compute -> 10 ms ... 80 ms -> worker; the slack is 2 ms + 50 ms.
    let mut tables = world::tables();
    let at = |ms| Some(HostNs(world::START.0 + ms * world::MS));
    tables.images[5].end = at(10);
    tables.images[6].start = at(80);
    check(&tables, "0 10 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 44 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 46 1 guest 0 user a000 f0 401234", "worker/41 (stripped)");
    tables.images[6].start = at(99);
    check(&tables, "0 40 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    tables.images[6].start = at(200);
    check(&tables, "0 61 1 guest 0 user a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 63 1 guest 0 user a000 f0 400010", "[unknown] [unknown]");
}

#[test]
fn page_table_bits_that_are_no_address_do_not_matter() {
    let tables = world::tables();
    check(&tables, "0 10 1 guest 0 user b801 f0 400010", "compute/40 compute_a");
}

#[test]
fn guest_kernel_time_belongs_to_the_process_of_the_page_tables() {
    let tables = world::tables();
    check(&tables, "0 10 1 guest 0 kernel a000 f0 ffffffff9a000010", "compute/40 clear_page");
    check(&tables, "0 10 1 guest 0 kernel 1000000 0 ffffffff9a000020", "[kernel] do_idle");
    check(&tables, "0 10 1 guest 0 kernel - 0 ffffffff9a000020", "[unknown] do_idle");
    // The upper half is the kernel's, whatever the privilege level.
    check(&tables, "0 10 1 guest 0 user a000 f0 ffffffff9a000020", "compute/40 do_idle");
}

/// A kernel thread of vm1, alive from `start` to `end` ms.
fn kernel_thread(name: &str, stack: u32, start: u64, end: u64) -> Image {
    let at = |ms| Some(HostNs(world::START.0 + ms * world::MS));
    Image {
        owner: Owner::Vm(VmId(0)),
        kind: ImageKind::Process,
        pid: Pid(12),
        name: name.to_owned(),
        cr3: None,
        kernel_stack: Some(KernelStack(stack)),
        kernel_thread: None,
        of_command: None,
        start: at(start),
        end: at(end),
    }
}

#[test]
fn a_kernel_thread_is_known_by_its_stack() {
    let mut tables = world::tables();
    tables.images.push(kernel_thread("[ksoftirqd/0]", 24, 0, 50));
    tables.images.push(kernel_thread("[kworker/0:1]", 24, 60, 100));
    let image = ImageId::from_index(tables.images.len() - 2);
    let name = "ksoftirqd/0".to_owned();
    tables.threads.push(Thread { image, tid: Tid(12), name, fs_base: None });
    let check = |ms, stack, cr3, expected| {
        let sample = format!("0 {ms} 1 guest 0 kernel@{stack} {cr3} 0 ffffffff9a000010");
        check(&tables, &sample, &format!("{expected} clear_page"));
    };
    check(10, 24, "a000", "[ksoftirqd/0]/12");
    check(10, 24, "-", "[ksoftirqd/0]/12");
    check(10, 25, "a000", "compute/40");
    check(70, 24, "a000", "[kworker/0:1]/12");
    // Between the two the stack was another task's: only the clocks' error (2 ms) is let pass.
    check(51, 24, "a000", "[ksoftirqd/0]/12");
    check(53, 24, "a000", "compute/40");
    let labels = labels(&tables, "0 10 1 guest 0 kernel@24 a000 0 ffffffff9a000010", By::Thread);
    assert_eq!(labels[0].1.thread.as_deref(), Some("ksoftirqd/0"));
}

#[test]
fn the_task_that_the_guest_says_runs_comes_before_its_page_tables() {
    let mut tables = world::tables();
    // The page tables of a process that ended, or that a kernel thread has borrowed.
    check(&tables, "0 10 1 guest 0 user#40/40 a000 f0 400010", "compute/40 compute_a");
    check(&tables, "0 10 1 guest 0 user#41/41 a000 f0 401234", "worker/41 (stripped)");
    check(&tables, "0 10 1 guest 0 kernel#41/41 - 0 ffffffff9a000010", "worker/41 clear_page");
    check(&tables, "0 10 1 guest 0 user#99/99 a000 f0 400010", "[unknown] [unknown]");
    tables.images.push(kernel_thread("[ksoftirqd/0]", 24, 0, 50));
    check(
        &tables,
        "0 10 1 guest 0 kernel#12/12 a000 0 ffffffff9a000010",
        "[ksoftirqd/0]/12 clear_page",
    );
    // One that executes another program has other page tables from then on.
    let at = |ms| Some(HostNs(world::START.0 + ms * world::MS));
    let executed = Image {
        cr3: Some(model::Cr3::new(0xe000)),
        name: "executed".into(),
        start: at(30),
        end: None,
        ..tables.images[5].clone()
    };
    tables.images.push(executed);
    check(&tables, "0 20 1 guest 0 kernel#40/40 e000 0 ffffffff9a000010", "executed/40 clear_page");
    check(&tables, "0 40 1 guest 0 user#40/40 a000 f0 400010", "compute/40 compute_a");
    // Idle tasks all have the number 0.
    check(
        &tables,
        "0 10 1 guest 0 kernel@24#0/0 a000 0 ffffffff9a000010",
        "[ksoftirqd/0]/12 clear_page",
    );
}

#[test]
fn a_guests_guest_is_the_process_that_runs_it() {
    let tables = world::tables();
    check(&tables, "0 10 1 guest 0 nested#40/40 - 0 0", "compute/40 [nested]");
    // Without the guest's memory no process is known. It is not the one with these page tables.
    check(&tables, "0 10 1 guest 0 nested - 0 0", "[unknown] [nested]");
    check(&tables, "0 10 1 guest 0 nested a000 f0 400010", "[unknown] [nested]");
}

#[test]
fn a_task_is_its_thread() {
    check_thread("0 10 1 guest 0 user#42/43 c000 99 400010", "helper");
    check_thread("0 10 1 guest 0 kernel#42/42 c000 f3 ffffffff9a000010", "main");
    check_thread("0 10 1 guest 0 kernel#42/77 c000 f3 ffffffff9a000010", "[unknown]");
}

#[test]
fn a_stack_of_another_vm_is_another() {
    let mut tables = world::tables();
    let elsewhere = Owner::Vm(VmId(1));
    tables.images.push(Image { owner: elsewhere, ..kernel_thread("[kworker/0:1]", 24, 0, 100) });
    check(&tables, "0 10 1 guest 0 kernel@24 a000 0 ffffffff9a000010", "compute/40 clear_page");
}

#[test]
fn nothing_is_dropped_when_tables_are_empty() {
    let tables = Tables::default();
    check(&tables, "0 10 1 guest 0 user a000 f0 400010", "[pid 1000] [unknown]");
    check(&tables, "0 10 1 host 300 user 5010", "[unknown]/300 [unknown]");
    check(&tables, "0 10 1 stack 300 kernel ffffffff81000200", "[unknown]/300 [unknown]");
    check(&tables, "0 10 1 idle ffffffff81000100", "[idle] [unknown]");
    check(&tables, "0 10 1 unknown 1000", "[pid 1000] [unknown]");
}

#[test]
fn a_vcpu_not_found_yet_still_has_its_vm() {
    let tables = world::tables();
    check(&tables, "0 99 1 unknown 1000", "[vm1] [unknown]");
    // Long before vm2 was first seen.
    check(&tables, "0 0 1 unknown 2000", "[vm2] [vm2]");
}

#[test]
fn threads() {
    check_thread("0 10 1 guest 0 user c000 f2 400010", "main");
    check_thread("0 10 1 guest 0 user c000 f3 400010", "helper");
    check_thread("0 10 1 guest 0 user c000 99 400010", "[unknown]");
    // The only thread of its process, before it set its FS base.
    check_thread("0 10 1 guest 0 user a000 0 400010", "compute");
    // In the kernel it may be a kernel thread on borrowed page tables.
    check_thread("0 10 1 guest 0 kernel a000 0 ffffffff9a000010", "[unknown]");
    check_thread("0 10 1 guest 0 kernel a000 f0 ffffffff9a000010", "compute");
    check_thread("0 10 1 host 1000 user 5010", "qemu-system-x86");
}

#[test]
fn addresses_are_what_the_report_then_needs() {
    let mut tables = world::tables();
    let all = std::mem::take(&mut tables.symbols);
    let mut addresses = Addresses::new(&tables);
    world::samples(world::EVERYTHING).iter().for_each(|sample| addresses.add(sample));
    let found = addresses.into_sorted();
    let named = |place| all.iter().find(|s| (s.module, s.offset) == place).map(|s| &s.name);
    let text = |place: &(model::ModuleId, u64)| match named(*place) {
        Some(SymbolName::Function(name)) => name.clone(),
        Some(_) => "unnamed".to_owned(),
        None => format!("{:x}", place.1),
    };
    let actual: Vec<String> = found.iter().map(text).collect();
    let expected = "native_safe_halt schedule schedule do_syscall_64 svm_vcpu_run svm_handle_exit \
                    kvm_cpu_exec main_loop ExecScan clear_page do_idle compute_a compute_a compute_b \
                    quantum_toffoli unnamed unnamed 9999";
    assert_eq!(actual.join(" "), expected);
}

#[test]
fn selections_that_do_not_fit_say_what_there_is() {
    let tables = world::tables();
    let error =
        |view, vm, vcpu| Selection::new(&tables, view, vm, vcpu, None).unwrap_err().to_string();
    assert_eq!(
        error(View::Unified, Some("vm9"), None),
        "no VM named \"vm9\" in this recording; it has: vm1, vm2"
    );
    assert_eq!(error(View::Guest, None, None), "choose a VM with --vm: vm1, vm2");
    assert_eq!(
        error(View::Guest, Some("vm1"), Some(7)),
        "VM \"vm1\" has no vCPU 7 in this recording; it has: 0, 1"
    );
    let none = SelectError::NoVms;
    assert_eq!(Selection::all(&Tables::default(), View::Guest), Err(none));
}

/// Of two VMs one may have half of all paths; its later samples have their function, and are counted.
#[test]
fn a_guest_whose_stacks_are_all_different_loses_its_own_callers() {
    const STACKS: u32 = 40_000;
    let mut tables = world::tables();
    // The digits of a number as calls of two functions.
    let frame = |n: u32, digit: u32| GuestVirt(0x40_0010 + 0x10 * u64::from(n >> digit & 1));
    let stack = |n| {
        let user = (0..16).map(|digit| frame(n, digit)).collect();
        Stack { guest: GuestStack { user, ..GuestStack::default() }, ..Stack::default() }
    };
    tables.stacks = (0..STACKS).map(stack).collect();
    let (resolver, header) = (Resolver::new(&tables), world::header());
    let source = header.off_cpu_source;
    let mut timelines = VcpuTimelinesBuilder::new(&resolver, &header, source).with_callers();
    let [sample] = world::samples("0 10 1 guest 0 user c000 f2 400010")[..] else { panic!() };
    for n in 0..STACKS {
        let time = HostNs(sample.time.0 + u64::from(n));
        timelines.push_sample(&Sample { time, stack: Some(StackId(n)), ..sample });
    }
    let axis = timelines.finish();
    assert_eq!(axis.places.len(), 32_768 + 1);
    let without = axis.places.iter().filter(|place| place.callers.is_empty());
    assert_eq!(without.map(|place| place.function.as_str()).collect::<Vec<_>>(), ["compute_a"]);
    let left_out = axis.problems.iter().find(|(what, _)| what.contains("without callers"));
    assert_eq!(left_out.map(|(_, n)| *n), Some(u64::from(STACKS) - 32_768));
}
