/* SPDX-License-Identifier: Apache-2.0 */
/* The run, from what the loader tells to the end. The 32-bit program does what is wanted in 32-bit conditions; if any
 * are of 64 bits, the 64-bit one does those and the end.
 *
 *   32: loader, clock, plan, header line -> conditions --+--> end
 *                                                        | jump_to_64
 *   64:                                    conditions ---+--> end
 */
#include "acpi.h"
#include "clock.h"
#include "guard.h"
#include "interrupts.h"
#include "loader.h"
#include "memory.h"
#include "power.h"
#include "segments.h"
#include "shared.h"
#include "smp.h"
#include "watchdog.h"

#ifdef __x86_64__
void main(void);
#else
void main(uint32_t magic, uint32_t information);
void jump_to_64(void);
#endif

/* ---- one condition ---- */

static struct result *new_result(unsigned condition, unsigned operation)
{
	static struct result spare;
	struct result *result = &spare;

	if (shared->n_results < MAX_RESULTS)
		result = &shared->results[shared->n_results++];
	else
		report_warning("no place for more than %d results", MAX_RESULTS);
	memset(result, 0, sizeof(*result));
	result->condition = condition;
	result->operation = operation;
	return result;
}

/* Every operation that the plan wants gets a result, even where the condition can't be had. */
static void run_operation(unsigned condition, unsigned operation, bool entered, const struct in_force *found)
{
	const struct plan *plan = &shared->plan;
	struct result *result = new_result(condition, operation);

	report_begin(plan, condition, operation, shared->n_done++);
	if (entered) {
		measure(&operations[operation], &plan->conditions[condition], result);
		result->condition = condition;
		result->operation = operation;
	} else {
		result->status = STATUS_MISSING;
		result->reason = found->reason;
	}
	if (result->status == STATUS_OK && !found->effective) {
		result->status = STATUS_INEFFECTIVE;
		result->reason = found->reason;
	}
	report_result(plan, result);
}

static void run_condition(unsigned condition)
{
	const struct plan *plan = &shared->plan;
	struct condition_report *report = &shared->conditions[condition];
	struct in_force found;
	bool entered = condition_enter(&plan->conditions[condition], &found);

	report->entered = 1;
	report->effective = found.effective;
	report->reason = found.reason;
	report->cr0 = found.cr0;
	report->cr4 = found.cr4;
	report->ring = found.ring;
	report->chase_ticks_x100 = found.chase_ticks_x100;
	if (entered)
		report->empty_ticks_x1000 = measure_empty(&plan->conditions[condition]);
	report_condition(plan, condition, report);
	for (unsigned operation = 0; operation < n_operations; operation++)
		if (plan_wants(plan, condition, operation))
			run_operation(condition, operation, entered, &found);
	condition_leave();
}

/* A plan has its 64-bit conditions last. */
static bool is_for_64(unsigned condition)
{
	return shared->plan.conditions[condition].mode == MODE_LONG && the_cpu.has_long_mode;
}

static void run_conditions(void)
{
	const struct plan *plan = &shared->plan;

	the_effort = (struct effort){ plan->repetitions, plan->budget_ms, plan->timeout_ms };
	for (; shared->next_condition < plan->n_conditions; shared->next_condition++) {
		if (sizeof(word) == 4 && is_for_64(shared->next_condition))
			return;
		run_condition(shared->next_condition);
	}
}

/* ---- the end ---- */

__attribute__((noreturn)) static void end_as_planned(void)
{
	if (shared->plan.end == END_REBOOT)
		reboot();
	if (shared->plan.end != END_WAIT)
		power_off();
	wait_for_ever();
}

static struct report whole_report(const struct run_end *end)
{
	return (struct report){
		.command_line = shared->command_line,
		.plan = &shared->plan,
		.facts = &shared->facts,
		.conditions = shared->conditions,
		.results = shared->results,
		.n_results = shared->n_results,
		.end = end,
	};
}

__attribute__((noreturn)) static void finish(void)
{
	struct run_end end = {
		.results = shared->n_results,
		.tsc_drift_ppm = clock_drift_ppm(),
		.backward_jumps = shared->backward_jumps + measure_backward_jumps(),
	};
	struct report report = whole_report(&end);

	report_end(&end);
	report_show(&report);
	end_as_planned();
}

/* ---- the beginning ---- */

#ifdef __x86_64__

void main(void)
{
	segments_init();
	cpu_probe();
	lines_init();
	memory_adopt(&shared->memory);
	acpi_find(shared->acpi_root);
	screen_init(&shared->framebuffer);
	the_clock.tsc_hz = shared->tsc_hz;
	the_clock.calibrated_by = (const char *)(word)shared->calibrated_by;
	the_clock.spread_ppm = shared->spread_ppm;
	interrupts_init();
	smp_init();
	watchdog_init();
	run_conditions();
	finish();
}

#else

static unsigned modes_here(void)
{
	return FLAT | (the_cpu.has_pse ? PAGING : 0) | (the_cpu.has_pae ? PAE : 0) | (the_cpu.has_long_mode ? LONG : 0);
}

static void find_facts(void)
{
	shared->memory = the_memory;
	shared->acpi_root = acpi_root_pointer();
	shared->tsc_hz = the_clock.tsc_hz;
	shared->calibrated_by = (word)the_clock.calibrated_by;
	shared->spread_ppm = the_clock.spread_ppm;
	shared->facts.cpus = smp_cpus();
	shared->facts.apic = apic_present();
	shared->facts.watchdog = watchdog_works();
}

static void say_header(void)
{
	static const struct run_end not_yet;
	struct report report = whole_report(&not_yet);

	report_header(&report);
	if (!the_memory.arena_bytes)
		report_warning("no free memory between 8 and 768 MiB: operations that need some are missing");
}

static void go_on_in_64(void)
{
	shared->backward_jumps = measure_backward_jumps();
	jump_to_64();
}

void main(uint32_t magic, uint32_t information)
{
	struct plan_error error;

	segments_init();
	cpu_probe();
	lines_init();
	loader_read(magic, information);
	screen_init(&shared->framebuffer);
	if (!the_cpu.has_lfence) {
		report_error("this processor is too old: it has no LFENCE (SSE2), which times are taken with");
		end_as_planned();
	}
	interrupts_init();
	condition_leave(); /* whatever state the loader left */
	clock_calibrate();
	smp_init();
	watchdog_init();
	find_facts();
	if (!plan_parse(shared->command_line, modes_here(), &shared->plan, &error)) {
		report_plan_error(&error);
		end_as_planned();
	}
	say_header();
	run_conditions();
	if (shared->next_condition < shared->plan.n_conditions)
		go_on_in_64();
	finish();
}

#endif
