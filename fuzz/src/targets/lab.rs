//! Results of the consolidation laboratory, from others: a plan, and a measurement.

use ::lab::{AS_IT_IS, Class, Load, Plan, Run, RunKey, Turnarounds, Vms};
use table::Width;

use super::Target;

const PLAN: &str = "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2]\n[service]\nwithin_ms = 9\n\
                    [[remedy]]\nname = \"nice\"\nnice = 19\n";

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target {
            words: &[b"[[remedy]]\n", b"combine = [\"nice\"]\n", b"guest_cmdline = \"x\"\n"],
            ..Target::new("lab-plan", read_plan, || vec![PLAN.into()])
        },
        Target {
            words: &[b"18446744073709551615", b"\"idle\"", b"null", b"[4000000000,4]"],
            ..Target::new("lab-run", read_run, || vec![seed().to_text().into_bytes()])
        },
    ]
}

fn read_plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(plan) = Plan::parse(text) {
        assert!(!::lab::report::dry_run(&plan).text(Width::Unlimited).is_empty());
        assert_eq!(plan.treatments().len(), 1 + plan.remedies.len());
    }
}

fn read_run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(run) = Run::parse(text) else { return };
    let plan = Plan::parse(PLAN).expect("a plan");
    let runs = [seed(), run];
    let report = ::lab::report::results(&plan, &runs, &[]);
    assert!(!report.text(Width::Unlimited).is_empty() && !report.csv().is_empty());
    export::lab::html(&plan, &runs, &[], std::io::sink()).expect("a sink takes everything");
}

fn seed() -> Run {
    let mut turnarounds = Turnarounds::new();
    turnarounds.add(5_000_000);
    turnarounds.add_failed("timeout");
    let load = Load { length_ns: 1_000_000_000, turnarounds, late_p99_ns: 1, cpu_ns: 2 };
    let key = RunKey { vms: 2, treatment: AS_IT_IS.to_owned(), repetition: 0 };
    let mut run = Run::new(key, 1, load);
    let accounts = [("guest".to_owned(), 5), ("steal_outside".to_owned(), 6)].into();
    let exits = [("hlt".to_owned(), ::lab::Exit { ns: 1, n: Some(2) })].into();
    let thieves = [("idle VMs".to_owned(), 3)].into();
    let (injected, private_bytes, huge_bytes) = (Some(1), Some(1), Some(1));
    let vms = Vms { n: 1, accounts, thieves, exits, injected, private_bytes, huge_bytes };
    run.vms.insert(Class::Loaded, vms.clone());
    run.vms.insert(Class::Idle, vms);
    run.window_ns = 11;
    run.cpus.push(::lab::Cpu {
        cpu: 0,
        times: [(::lab::CpuUse::IdleGuest, 10), (::lab::CpuUse::Idle, 1)].into(),
    });
    run.notes.push("a note".to_owned());
    run
}
