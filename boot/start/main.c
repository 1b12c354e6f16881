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
#include "bench/statistics.h"
#include "watchdog.h"

#ifdef __x86_64__
void main(void);
#else
void main(uint32_t magic, uint32_t information);
void jump_to_64(void);
#endif

/* ---- one condition ---- */

/* What is measured while the machine is slower than usual looks as good as anything. So each figure is taken again, when
 * all others of the condition were, until two takes agree. */
enum { MAX_ROUNDS = 4 };

/* The good takes so far, by operation and round; 0: none. */
static uint64_t takes[PLAN_MAX_OPERATIONS][MAX_ROUNDS];

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
	takes[operation][0] = result->reliable ? measure_cost(result) : 0;
	result->reliable = false; /* so far */
	report_result(plan, result);
}

static bool has_figures(const struct result *result)
{
	return result->status == STATUS_OK || result->status == STATUS_INEFFECTIVE;
}

/* Whether a good take agrees with that of the round before; of more than two takes any two may agree by chance, then
 * three have to. */
static bool settles(const struct result *take, unsigned round)
{
	uint64_t *earlier = takes[take->operation], cost = measure_cost(take);
	unsigned n_agree = 0;

	for (unsigned i = 0; take->reliable && i < round; i++)
		n_agree += earlier[i] && agree(cost, earlier[i], measure_slack(take));
	earlier[round] = take->reliable ? cost : 0;
	return n_agree >= (round == 1 ? 1 : 2);
}

static void run_again(struct result *kept, unsigned round)
{
	const struct plan *plan = &shared->plan;
	struct result take = *kept;
	uint64_t done = kept->done;

	report_begin(plan, kept->condition, kept->operation, shared->n_done - 1);
	measure(&operations[kept->operation], &plan->conditions[kept->condition], &take);
	if (take.status == STATUS_OK) {
		take.status = kept->status;
		take.reason_address = kept->reason_address;
		take.reliable = settles(&take, round);
		if (take.reliable || measure_cost(&take) < measure_cost(kept))
			*kept = take;
	}
	kept->done = done + take.done;
	report_result(plan, kept);
}

static void run_rounds(unsigned condition, uint32_t first_result)
{
	for (unsigned round = 1; round < MAX_ROUNDS; round++)
		for (uint32_t i = first_result; i < shared->n_results; i++) {
			struct result *result = &shared->results[i];

			if (result->condition == condition && has_figures(result) && !result->reliable)
				run_again(result, round);
		}
}

static void run_condition(unsigned condition)
{
	const struct plan *plan = &shared->plan;
	struct condition_report *report = &shared->conditions[condition];
	struct in_force found;
	uint32_t first_result;
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
	first_result = shared->n_results;
	for (unsigned operation = 0; operation < n_operations; operation++)
		if (plan_wants(plan, condition, operation))
			run_operation(condition, operation, entered, &found);
	run_rounds(condition, first_result);
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
