//! The end-to-end tests, one after the other: what a user's commands do on real KVM guests.
//!
//! ```text
//! e2e --tier smoke|main|all [NAME...]     NAME: a part of a test's name
//! ```
//!
//! One program of its own, so that tests are compiled and linked once, and each one's time is known. A test fails by
//! panicking. The last lines say how long each took, and which runs an emulator's crash made necessary again.

#![allow(clippy::unwrap_used)]

mod agent;
mod axis;
mod bench;
mod boot;
mod boot_bad_input;
mod boot_exits;
mod ci;
mod fleet;
mod guests;
mod hostile;
mod hosts;
mod intel;
mod iso;
mod kernel_threads;
mod lab;
mod layout;
mod migrate;
mod names;
mod nested;
mod packages;
mod quota;
mod refusals;
mod stacks;
mod testbed;
mod together;
mod trace;
mod trace_guest;
mod trace_vcpus;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acceptance::{retries, shared};
use clap::{Parser, ValueEnum};

/// Which make target runs a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Tier {
    /// `make smoke`, `make test` and `make test-all`.
    Smoke,
    /// `make test` and `make test-all`: one test per behaviour.
    Main,
    /// `make test-all`: further machines, and how exact figures are.
    All,
}

struct Test {
    tier: Tier,
    name: &'static str,
    run: fn(),
}

/// The table of tests: `TIER module::function`.
macro_rules! tests {
    ($($tier:ident $module:ident::$function:ident,)*) => {
        &[$(Test {
            tier: Tier::$tier,
            name: concat!(stringify!($module), "::", stringify!($function)),
            run: $module::$function,
        }),*]
    };
}

const TESTS: &[Test] = tests! {
    Smoke together::samples_and_a_trace_of_one_moment_lie_on_one_time_axis,
    Smoke refusals::recordings_that_are_none,
    Smoke refusals::usage,
    Main refusals::recording_on_a_host_without_guests,
    Main guests::three_guests_are_distinguished_down_to_their_functions,
    Main guests::nothing_is_installed_in_guests_that_have_names,
    Main guests::guests_that_start_late_or_keep_silent_still_show,
    Main stacks::guests_call_stacks_are_those_of_the_source,
    Main stacks::pythons_functions_are_in_guests_call_stacks,
    Main ci::a_slower_job_is_found_with_its_function,
    Main nested::time_of_a_guests_guest_is_its_process_that_runs_it,
    Main agent::windows_follow_one_another_and_a_kill_costs_one,
    Main fleet::windows_reach_the_server_and_say_who_took_whose_time,
    Main axis::three_vms_of_one_cpu_are_each_others_thieves,
    Main names::look_alike_names_change_no_thief,
    Main axis::time_in_kvm_is_not_the_guests,
    Main axis::two_recorders_and_top_agree_on_a_quota,
    Main quota::a_quota_that_siblings_use_up_throttles_them_all,
    Main quota::a_wait_beside_a_neighbour_outside_the_slice_is_steal,
    Main quota::quotas_of_version_1_throttle_as_long_as_their_queues_are,
    Main quota::a_quota_throttles_as_long_as_its_queue_is,
    Main axis::a_stopped_vm_is_paused_and_loses_nothing,
    Main trace::waits_have_user_stacks_of_the_functions_that_waited,
    Main trace::waits_have_their_causes_and_witnesses_agree,
    Main trace::a_command_alone_is_traced_by_events_of_its_own,
    Main trace::a_flight_recorder_keeps_the_last_seconds,
    Main trace::files_have_their_bytes_waits_and_requests,
    Main trace::disturbed_traces_say_what_is_missing,
    Main trace_guest::a_guest_is_traced_from_outside,
    Main trace_guest::garbage_in_guests_rings_ends_their_traces_alone,
    Main trace_vcpus::vcpus_that_never_leave_and_who_stole_from_them,
    Main bench::the_image_and_the_catalogue_have_the_same_operations,
    Main bench::what_the_image_does_not_know_is_refused_with_what_it_knows,
    Main boot::in_emulation_everything_has_an_answer_and_two_runs_agree,
    Main boot_bad_input::damaged_results_are_refused_and_damaged_logs_read_as_far_as_they_go,
    Main boot_bad_input::one_cpu_and_16_mib_are_enough_and_what_is_missing_is_named,
    Main iso::by_bios_the_table_is_on_the_screen,
    Main layout::memory_and_vcpus_go_where_the_plan_says,
    Main layout::a_vm_that_a_cpuset_holds_stays_as_a_whole,
    Main layout::a_policy_of_ones_own_and_a_plan_made_before,
    Main layout::what_holds_a_vm_holds_it_as_a_whole,
    Main migrate::memory_and_vcpus_of_all_vms_are_in_place_before_the_vm_arrives,
    Main lab::a_ladder_is_climbed_interrupted_resumed_and_reported,
    All intel::a_vm_on_an_intel_host_is_recorded,
    Main hosts::what_stays_distinguishes_vms_of_one_name,
    Main hosts::vms_that_start_again_keep_their_names,
    Main hostile::files_and_names_leave_the_rows_of_others_alone,
    All boot_exits::kvm_counts_an_exit_each_time_for_those_said_to_exit_and_none_for_the_others,
    All agent::clocks_that_jump_and_cpus_that_go_and_come_cost_no_window,
    All agent::vms_are_found_when_kvm_is_loaded_under_the_agent,
    All packages::packages_are_installed_used_and_removed_in_a_clean_root,
    All hostile::an_unprivileged_user_spoils_no_row_of_others,
    All layout::damon_counts_where_nothing_else_does,
    All intel::doctor_and_top_know_an_intel_host,
    All testbed::guests_boot_again_and_answer,
    All testbed::guests_are_stopped_moved_and_get_cpus,
    All testbed::guests_reach_each_other_and_the_host_has_nodes,
    All iso::by_uefi_the_table_is_on_the_screen,
    All iso::without_a_port_for_lines_qr_codes_are_on_the_screen,
    All guests::two_processes_of_one_program_are_two,
    All kernel_threads::kernel_threads_have_the_time_that_perf_in_the_guest_gives_them,
    All guests::guests_that_boot_again_or_are_killed_keep_their_names,
    All guests::a_reset_ends_a_map,
    All guests::a_vcpu_that_comes_and_goes_has_names_and_its_own_time,
    All axis::a_vm_in_a_debugger_is_paused_and_loses_nothing,
    All trace_guest::a_guest_with_another_kernel_is_traced,
    All trace_guest::taking_events_from_memory_costs_the_guest_next_to_nothing,
    All boot::a_kvm_guest_pays_for_exits_and_for_nothing_else,
};

/// End-to-end tests on real KVM guests.
#[derive(Debug, Parser)]
struct Args {
    /// How much to run.
    #[arg(long, value_enum)]
    tier: Tier,
    /// Only tests with one of these in their names, of any tier.
    names: Vec<String>,
}

impl Args {
    fn selects(&self, test: &Test) -> bool {
        if self.names.is_empty() {
            return test.tier <= self.tier;
        }
        self.names.iter().any(|name| test.name.contains(name.as_str()))
    }
}

struct Finished {
    name: &'static str,
    took: Duration,
    passed: bool,
}

fn main() -> ExitCode {
    // `cargo test` starts this program like any other, with the arguments of the usual test harness.
    if !std::env::args().any(|argument| argument == "--tier") {
        eprintln!("end-to-end tests take minutes: `make test` runs them");
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let tests: Vec<&Test> = TESTS.iter().filter(|test| args.selects(test)).collect();
    shared::select(tests.iter().map(|test| test.name.to_owned()).collect());
    let finished: Vec<Finished> = tests.into_iter().map(Finished::run).collect();
    shared::remove_files();
    summary(&finished)
}

impl Finished {
    /// A test's part in a shared boot is its own time, whichever test booted the host.
    fn run(test: &Test) -> Self {
        eprintln!("\n== {}", test.name);
        let (start, boots) = (Instant::now(), shared::times().len());
        let passed = catch_unwind(test.run).is_ok();
        let booted: Duration = shared::times()[boots..].iter().map(|times| times.all).sum();
        let parts = shared::times().into_iter().flat_map(|times| times.parts);
        let of_test = parts.filter(|(part, _)| test.name.rsplit("::").next() == Some(part));
        let took = start.elapsed() - booted + of_test.map(|(_, took)| took).sum();
        Self { name: test.name, took, passed }
    }
}

fn summary(finished: &[Finished]) -> ExitCode {
    let failed = finished.iter().filter(|test| !test.passed).count();
    eprintln!("\n{} end-to-end tests, {failed} failed", finished.len());
    for test in finished {
        let verdict = if test.passed { "ok" } else { "FAILED" };
        eprintln!("{:7.1} s  {verdict:6}  {}", test.took.as_secs_f64(), test.name);
    }
    for times in shared::times() {
        let parts: Duration = times.parts.iter().map(|(_, took)| *took).sum();
        let boot_s = times.all.saturating_sub(parts).as_secs_f64();
        eprintln!("{boot_s:7.1} s  boot    {}, for {} tests", times.scenario, times.parts.len());
    }
    eprintln!("runs repeated after a crash of the emulator: {}", retries().len());
    for retry in retries() {
        eprintln!("  {retry}");
    }
    if finished.is_empty() || failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
