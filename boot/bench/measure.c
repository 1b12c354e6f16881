/* SPDX-License-Identifier: Apache-2.0 */
/* How operations are timed. docs/measuring.md says why so.
 *
 *	prepare -> first shot (guarded alone: faults and hangs show here, and how slow it is)
 *	        -> single shots until there are enough of them or a third of the budget is used up
 *	        -> batches of N and of 2N operations, by turns, as large and as many as the rest of the budget allows
 *	        -> finish
 */
#include "measure.h"
#include "paging.h"
#include "statistics.h"

enum {
	MAX_TIMES = 1000,
	BATCH = 100,     /* operations, as in the original */
	BATCH_US = 1000, /* N take no longer than this: the longer, the surer something of the host's gets in between */
	MIN_BATCHES = 5, /* of N and of 2N; smaller batches rather than fewer */
	PREPARE_MS = 5000,
	MAX_FAILURES = 3, /* of an OWN operation's samples; each may take until its own time-out */
};

struct effort the_effort = { .repetitions = 200, .budget_ms = 50, .timeout_ms = 200 };

/* What a guarded call is to do, and what it did. */
struct work {
	const struct operation *operation;
	void (*run)(uint32_t turns);
	uint32_t turns;
	unsigned wanted; /* times, in this call */
	uint64_t deadline;
	unsigned n, n_failed; /* so far, over several calls */
};

static uint64_t times[MAX_TIMES], times_of_twice[MAX_TIMES];
static uint32_t backward_jumps;
static uint64_t turns_done;

uint32_t measure_backward_jumps(void)
{
	return backward_jumps;
}

uint32_t measure_timeout_ms(const struct operation *operation)
{
	return operation->timeout_ms > the_effort.timeout_ms ? operation->timeout_ms : the_effort.timeout_ms;
}

/* ---- in guarded calls, at the condition's ring ---- */

static void interrupts_off(void)
{
	__asm__ volatile("cli" : : : "memory");
}

/* One copy of this code for all, so that what it costs is the same for all, the empty shot included. */
static __attribute__((noinline, noclone)) uint64_t shot(void (*run)(uint32_t), uint32_t turns)
{
	uint64_t begin = tsc_begin(), end;

	run(turns);
	end = tsc_end();
	interrupts_off(); /* some operations allow them; nothing is allowed to interrupt the next shot */
	turns_done += turns;
	if (begin <= end)
		return end - begin;
	backward_jumps++;
	return UINT64_MAX;
}

static void keep(struct work *work, uint64_t ticks)
{
	if (ticks == UINT64_MAX)
		work->n_failed++;
	else if (work->n < MAX_TIMES)
		times[work->n++] = ticks;
}

static bool go_on(const struct work *work)
{
	return work->n_failed < MAX_FAILURES && tsc_end() < work->deadline;
}

static void time_shots(void *argument)
{
	struct work *work = argument;
	unsigned left = work->wanted;

	do
		keep(work, shot(work->run, work->turns));
	while (--left && go_on(work));
}

static void time_own(void *argument)
{
	struct work *work = argument;
	unsigned left = work->wanted;

	do {
		keep(work, work->operation->sample());
		turns_done++;
		interrupts_off();
	} while (--left && go_on(work));
}

/* By turns, so that both have the same share of good and bad times. */
static void time_batches(void *argument)
{
	struct work *work = argument;
	unsigned left = work->wanted;

	do {
		uint64_t once = shot(work->run, work->turns), twice = shot(work->run, 2 * work->turns);

		times_of_twice[work->n] = twice;
		keep(work, twice == UINT64_MAX ? twice : once);
	} while (--left && go_on(work));
}

/* No loop, as single shots have none: what is taken off must not be more than what they contain. */
static void empty(uint32_t turns)
{
	(void)turns;
}

/* ---- around them ---- */

static bool succeeded(struct guarded call, struct result *result)
{
	result->vector = call.vector;
	result->status = call.outcome == OUTCOME_FAULT ? STATUS_FAULT
		: call.outcome == OUTCOME_TIMEOUT      ? STATUS_TIMEOUT
						       : STATUS_OK;
	return call.outcome == OUTCOME_DONE;
}

static void missing(struct result *result, const char *reason)
{
	result->status = STATUS_MISSING;
	result->reason_address = (word)reason;
}

static uint64_t budget(void)
{
	return ticks_of_us(1000) * the_effort.budget_ms;
}

static unsigned repetitions(void)
{
	unsigned n = the_effort.repetitions;

	return n < 1 ? 1 : n > MAX_TIMES ? MAX_TIMES : n;
}

/* Times `wanted` shots, or until the deadline, but one at least: in one guarded call if they can follow one another at
 * once, else in one call each. */
static bool take(struct work *work, void (*body)(void *), unsigned wanted, const struct condition *condition,
		 struct result *result)
{
	const struct operation *operation = work->operation;
	bool one_by_one = operation->before || condition->tlb == TLB_COLD;
	uint32_t timeout_ms = measure_timeout_ms(operation);

	work->wanted = one_by_one ? 1 : wanted;
	if (work->wanted > 1)
		timeout_ms = MAX_FAILURES * timeout_ms + the_effort.budget_ms;
	do {
		if (operation->before)
			operation->before();
		if (condition->tlb == TLB_COLD)
			tlb_flush();
		if (!succeeded(guarded_call(body, work, condition->ring, timeout_ms), result))
			return false;
		wanted -= work->wanted;
	} while (wanted && go_on(work));
	return true;
}

/* The smallest step by which the TSC counts here. */
static uint64_t clock_granularity(void)
{
	static uint64_t step;

	if (step)
		return step;
	for (unsigned i = 0; i < 100; i++) {
		uint64_t begin = tsc_begin();

		step = greatest_common_divisor(step, tsc_end() - begin);
	}
	return step;
}

uint64_t measure_empty(const struct condition *condition)
{
	static const struct operation nothing = { .name = "empty", .unroll = 1, .run = empty };
	static struct condition known;
	static bool is_known;
	static uint64_t cost;
	struct work work = { .operation = &nothing, .run = empty, .turns = 1, .deadline = tsc_end() + budget() };
	struct result result;

	if (is_known && !memcmp(&known, condition, sizeof(known)))
		return cost;
	known = *condition;
	is_known = true;
	cost = take(&work, time_shots, repetitions(), condition, &result) ? spread_of(times, work.n).min : 0;
	return cost;
}

/* The first one is left out (nothing was warm), unless it was so slow that it has to do. */
static bool take_singles(struct work *work, void (*body)(void *), const struct condition *condition, uint64_t ticks,
			 struct result *result)
{
	uint64_t slack = 2000 * clock_granularity();
	struct spread raw;
	unsigned n_first;

	work->deadline = tsc_end() + ticks;
	if (!take(work, body, 1, condition, result))
		return false;
	n_first = work->n;
	if (go_on(work) && !take(work, body, repetitions(), condition, result))
		return false;
	if (n_first && work->n > n_first)
		times[0] = times[--work->n];
	raw = spread_of(times, work->n);
	result->single = body == time_own ? raw : spread_less(raw, measure_empty(condition));
	result->reliable = reliable(result->single.median, raw.min, raw.median, raw.n, slack);
	/* Others had the time that more shots would have taken. */
	if (work->n + work->n_failed < repetitions() && raw.median / 1000 * repetitions() < ticks)
		result->reliable = false;
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How many turns make about a batch, and how many batches of N and 2N there is time for. False: a single shot takes so
 * long that it needs no batch, or there is no time for any. */
static bool plan_batches(struct work *work, uint64_t ticks_of_turn, uint64_t ticks)
{
	uint64_t turns = BATCH / work->operation->unroll, affordable, n;

	if (!turns)
		turns = 1;
	if (!ticks_of_turn)
		ticks_of_turn = 1;
	affordable = least(ticks_of_us(BATCH_US), ticks / (3 * MIN_BATCHES)) / ticks_of_turn;
	if (!affordable)
		return false;
	work->turns = least(turns, affordable);
	n = ticks / (3 * work->turns * ticks_of_turn);
	work->wanted = least(n, repetitions());
	return true;
}

uint64_t measure_cost(const struct result *result)
{
	return result->batch_of ? result->batch : result->single.median;
}

uint64_t measure_slack(const struct result *result)
{
	return 2000 * clock_granularity() / (result->batch_of ? result->batch_of : 1);
}

/* Batches that make an operation dearer than good single shots do were disturbed: work of others took part of their
 * time. What single shots can't tell is about what an empty one takes. */
static void choose_figure(const struct condition *condition, bool singles_are_good, struct result *result)
{
	uint64_t slack = measure_empty(condition) + 2000 * clock_granularity();

	if (!singles_are_good || !result->batch_of || !dearer(result->batch, result->single.median, slack))
		return;
	result->batch_of = 0;
	result->batch = result->batch_median = 0;
	result->reliable = true;
}

static bool take_batches(struct work *work, const struct condition *condition, uint64_t ticks, struct result *result)
{
	uint32_t operations;
	uint64_t slack;
	struct spread once, twice;

	work->run = work->operation->run;
	work->turns = 1;
	work->n = work->n_failed = 0;
	work->deadline = tsc_end() + ticks;
	if (!take(work, time_shots, 3, condition, result))
		return false;
	once = spread_of(times, work->n);
	if (!once.n || !plan_batches(work, spread_less(once, measure_empty(condition)).min / 1000, ticks))
		return true;
	work->n = 0;
	if (!take(work, time_batches, work->wanted, condition, result))
		return false;

	once = spread_of(times, work->n);
	twice = spread_of(times_of_twice, work->n);
	operations = work->turns * work->operation->unroll;
	slack = 2000 * clock_granularity() / operations;
	result->batch = cost_of_one(once.min, twice.min, operations);
	result->batch_median = cost_of_one(once.median, twice.median, operations);
	result->batch_of = operations;
	result->reliable = reliable(result->batch, result->batch, result->batch_median, once.n, slack);
	return true;
}

/* Figures of an operation that is prepared. */
static void take_figures(const struct operation *operation, const struct condition *condition, struct result *result)
{
	bool batches = operation->timing == TIMING_REPEATED && condition->tlb == TLB_WARM;
	bool singles = operation->timing != TIMING_REPEATED || operation->once || operation->unroll <= 1;
	struct work work = { .operation = operation, .turns = 1 };
	uint64_t all = budget(), third = all / 3;
	uint32_t jumps = backward_jumps;
	bool singles_are_good;

	work.run = operation->once ? operation->once : operation->run;
	measure_empty(condition); /* now: it uses the same memory for its times */
	turns_done = 0;
	if (singles && !take_singles(&work, operation->timing == TIMING_OWN ? time_own : time_shots, condition,
				     batches ? third : all, result))
		return;
	singles_are_good = result->reliable;
	result->done = turns_done;
	turns_done = 0;
	if (batches && !take_batches(&work, condition, all - third, result))
		return;
	result->done += turns_done * operation->unroll;
	choose_figure(condition, singles_are_good, result);
	if (backward_jumps != jumps)
		result->reliable = false;
	if (!result->single.n && !result->batch_of)
		missing(result, "none of it came to its end in time");
}

struct preparation {
	const struct operation *operation;
	const char *reason;
};

static void prepare(void *argument)
{
	struct preparation *preparation = argument;

	preparation->reason = preparation->operation->prepare();
}

static void finish(void *argument)
{
	((const struct operation *)argument)->finish();
}

/* Preparing is guarded, too: it tries what this machine may lack. */
static bool prepared(const struct operation *operation, struct result *result)
{
	struct preparation preparation = { .operation = operation };
	uint32_t own = operation->timeout_ms, timeout_ms = own < PREPARE_MS ? PREPARE_MS : own;

	if (!operation->prepare)
		return true;
	if (!succeeded(guarded_call(prepare, &preparation, 0, timeout_ms), result))
		return false;
	if (preparation.reason)
		missing(result, preparation.reason);
	return !preparation.reason;
}

void measure(const struct operation *operation, const struct condition *condition, struct result *result)
{
	uint16_t operation_index = result->operation, condition_index = result->condition;

	memset(result, 0, sizeof(*result));
	result->operation = operation_index;
	result->condition = condition_index;
	interrupts_off();
	if (!(operation->modes & 1 << condition->mode) || !(operation->rings & 1 << condition->ring)) {
		missing(result, "not of this mode or ring");
		return;
	}
	arena_reset();
	if (prepared(operation, result))
		take_figures(operation, condition, result);
	if (operation->finish)
		guarded_call(finish, (void *)operation, 0, PREPARE_MS);
}
