//! What is no finding, and whose fault one is.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod fleet;

use detect::{Cause, Change, Detector, Finding, Measure, Owner, Summary, VmSummary};
use fleet::Fleet;
use model::VcpuTimeState;

/// The change comes with this window: functions are known by then.
const FROM: u32 = 100;

/// The findings of three hosts, and how many functions only took over cost; from [`FROM`] on `change` changes host kvm0.
fn found(change: impl Fn(&mut Summary)) -> (Vec<Finding>, u64) {
    found_in(|number, window| {
        if FROM <= number {
            change(window);
        }
    })
}

/// The same where every window of host kvm0 is made over.
fn found_in(make_over: impl Fn(u32, &mut Summary)) -> (Vec<Finding>, u64) {
    let mut fleet = Fleet::new(11, 3, 3..=3);
    let mut detector = Detector::new();
    let mut opened = Vec::new();
    for number in 0..FROM + 40 {
        for mut window in fleet.windows(number) {
            if window.host == "kvm0" {
                make_over(number, &mut window);
            }
            let opens = |change| match change {
                Change::Opened(finding) => Some(finding.id),
                _ => None,
            };
            opened.extend(detector.take(window).into_iter().filter_map(opens));
        }
    }
    let open = detector.open().filter(|finding| opened.contains(&finding.id));
    (open.cloned().collect(), detector.left_out().moved)
}

fn vm(window: &mut Summary) -> &mut VmSummary {
    window.vms.get_mut("vm0-1").unwrap()
}

/// Moves a part of the first function's time into another function.
fn move_time(window: &mut Summary, part: f64, to: &str) {
    let vm = vm(window);
    let (mut moved, mut code) = (0, None);
    for function in vm.functions.iter_mut().filter(|f| f.code.function == "nginx_fn0") {
        moved = (function.ns as f64 * part) as u64;
        function.ns -= moved;
        code = Some(function.code.clone());
    }
    match vm.functions.iter_mut().find(|f| f.code.function == to) {
        Some(function) => function.ns += moved,
        None => {
            let code = detect::Code { function: to.to_owned(), ..code.unwrap() };
            vm.functions.push(detect::FunctionTime { code, ns: moved });
        }
    }
    vm.functions.retain(|f| 0 < f.ns);
}

#[test]
fn cost_that_only_moved_to_another_function_is_no_finding() {
    // Inlined into another function, partly or all; renamed.
    for (part, to) in [(0.8, "nginx_fn4"), (1.0, "nginx_fn4"), (1.0, "nginx_fn0.llvm.1")] {
        let (findings, moved) = found(|window| move_time(window, part, to));
        assert_eq!(findings, [], "{to}");
        assert_eq!(moved, 1, "{to}");
    }
}

#[test]
fn the_same_rise_is_a_finding_when_nothing_gave_it() {
    let grown = |window: &mut Summary| {
        let vm = vm(window);
        let ns: u64 =
            vm.functions.iter().filter(|f| f.code.function == "nginx_fn0").map(|f| f.ns).sum();
        vm.functions.iter_mut().filter(|f| f.code.function == "nginx_fn4").for_each(|f| f.ns += ns);
        *vm.states.get_mut(&VcpuTimeState::GuestUser).unwrap() += ns;
    };
    let (findings, moved) = found(grown);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(matches!(&finding.cause, Cause::Function { code, .. } if code.function == "nginx_fn4"));
    assert_eq!(moved, 0);
}

#[test]
fn the_caller_behind_a_rise_is_named() {
    let caller_of = |by_parse: f64| {
        let (findings, _) = found_in(|number, window| {
            let vm = vm(window);
            let of = |name: &str| vm.functions.iter().position(|f| f.code.function == name);
            let (Some(rises), Some(other)) = (of("nginx_fn4"), of("nginx_fn0")) else { return };
            let (before, more) = (vm.functions[rises].ns, vm.functions[other].ns);
            let more = if FROM <= number { more } else { 0 };
            vm.functions[rises].ns += more;
            *vm.states.get_mut(&VcpuTimeState::GuestUser).unwrap() += more;
            let parse = before / 2 + (more as f64 * by_parse) as u64;
            let code = &vm.functions[rises].code;
            vm.callers = [("parse", parse), ("render", before + more - parse)]
                .map(|(caller, ns)| detect::CallerTime {
                    code: code.clone(),
                    caller: caller.to_owned(),
                    ns,
                })
                .to_vec();
        });
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        let Cause::Function { caller, .. } = &finding.cause else { panic!("{finding:?}") };
        caller.clone()
    };
    assert_eq!(caller_of(1.0).as_deref(), Some("parse"));
    assert_eq!(caller_of(0.0).as_deref(), Some("render"));
    assert_eq!(caller_of(0.5), None);
}

#[test]
fn what_comes_with_another_kernel_of_the_host_is_its_fault() {
    let slower = |window: &mut Summary| {
        window.kernel = "6.12.0".to_owned();
        for vm in window.vms.values_mut() {
            let more = vm.total_ns() / 8;
            *vm.states.get_mut(&VcpuTimeState::StealVmm).unwrap() += more;
            vm.exits.get_mut("msr").unwrap().ns += more;
        }
    };
    let (findings, _) = found(slower);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    let (before, after) = ("6.1.0".to_owned(), "6.12.0".to_owned());
    assert_eq!(finding.cause, Cause::Kernel { before, after });
    let vms = ["vm0-0", "vm0-1", "vm0-2"];
    let has = |vm: &&str| {
        let is_its = |series: &detect::SeriesName| {
            series.vm.as_deref() == Some(vm) && series.measure == Measure::StealVmm
        };
        finding.symptoms.iter().any(|symptom| is_its(&symptom.series))
    };
    assert!(vms.iter().all(has), "{finding:?}");
}

#[test]
fn another_kernel_alone_is_no_finding() {
    let (findings, _) = found(|window| window.kernel = "6.12.0".to_owned());
    assert_eq!(findings, []);
}

/// A VM that uses one CPU, which it takes from the others.
fn arrive(window: &mut Summary, name: &str) {
    let ns = window.length_ns;
    let n = window.vms.len() as u64;
    for vm in window.vms.values_mut() {
        *vm.states.get_mut(&VcpuTimeState::StealOutside).unwrap() += ns / n;
        *vm.thieves.entry(Owner::Vm(name.to_owned())).or_default() += ns / n;
    }
    let code = detect::Code { function: "burn".to_owned(), ..Default::default() };
    let functions = vec![detect::FunctionTime { code, ns }];
    let states = [(VcpuTimeState::GuestUser, ns)].into();
    let arrived =
        VmSummary { vcpus: 1, states, functions: functions.clone(), ..VmSummary::default() };
    window.vms.insert(name.to_owned(), arrived);
    window.owners.insert(Owner::Vm(name.to_owned()), detect::OwnerUse { ns, functions });
}

#[test]
fn a_vm_that_has_just_arrived_is_named_as_the_thief() {
    let (findings, _) = found(|window| arrive(window, "new"));
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    let Cause::Thief { owner, is_new, functions, .. } = &finding.cause else {
        panic!("{finding:?}")
    };
    assert_eq!((owner, is_new), (&Owner::Vm("new".to_owned()), &true));
    assert_eq!(functions[0].0.function, "burn");
    assert!((functions[0].1 - 1.0).abs() < 0.01, "{functions:?}");
}

#[test]
fn a_vm_that_leaves_is_no_finding() {
    let (findings, _) = found(|window| {
        window.vms.remove("vm0-2");
        window.owners.remove(&Owner::Vm("vm0-2".to_owned()));
    });
    assert_eq!(findings, []);
}
