/* SPDX-License-Identifier: Apache-2.0 */
/* What a command line asks for: which operations run under which conditions. It is text from outside: bounded, and each
 * word is either understood or refused by name.
 *
 * While a plan is made, `wanted` has a row per condition that there is; at the end rows without operations are dropped.
 */
#include "plan.h"

#include "output.h"
#include "presets.h"

/* A piece of a text that is not ours to change. */
struct piece {
	const char *at;
	size_t length;
};

struct request {
	struct piece plan, operations, conditions, skipped, repetitions, end, qr;
};

/* ---- words ---- */

static const char *const group_names[] = {
	[GROUP_GENERAL] = "general",	 [GROUP_PRIVILEGED] = "privileged", [GROUP_SENSITIVE] = "sensitive",
	[GROUP_PAGING] = "paging",	 [GROUP_EXIT] = "exit",		    [GROUP_INTERRUPT] = "interrupt",
	[GROUP_MEMORY] = "memory",	 [GROUP_IO] = "io",
};
static const char *const keys[] = { "plan=", "ops=", "cond=", "skip=", "reps=", "end=", "qr=" };
static const char *const ends[] = {
	[END_AUTO] = "auto", [END_POWEROFF] = "poweroff", [END_WAIT] = "wait", [END_REBOOT] = "reboot",
};
static const char *const on_off[] = { [QR_AUTO] = "auto", [QR_ON] = "on", [QR_OFF] = "off" };
static const char *const mode_names[] = {
	[MODE_FLAT] = "flat", [MODE_PAGING] = "paging", [MODE_PAE] = "pae", [MODE_LONG] = "long",
};

/* ---- pieces of text ---- */

static struct piece whole(const char *text)
{
	return (struct piece){ text, strlen(text) };
}

static bool same(struct piece piece, const char *text)
{
	return piece.length == strlen(text) && !memcmp(piece.at, text, piece.length);
}

/* Cuts the piece before the first such character off; false: there is nothing left. */
static bool cut(struct piece *rest, char at, struct piece *first)
{
	if (!rest->at)
		return false;
	*first = *rest;
	for (size_t i = 0; i < rest->length; i++)
		if (rest->at[i] == at) {
			first->length = i;
			*rest = (struct piece){ rest->at + i + 1, rest->length - i - 1 };
			return true;
		}
	rest->at = NULL;
	return true;
}

static bool matches(struct piece pattern, const char *name)
{
	bool open = pattern.length && pattern.at[pattern.length - 1] == '*';
	size_t length = strlen(name), fixed = pattern.length - open;

	return (open ? fixed <= length : fixed == length) && !memcmp(pattern.at, name, fixed);
}

static bool refuse(struct plan_error *error, enum plan_choices choices, const char *what, struct piece piece)
{
	enum { MAX = 60 };

	error->choices = choices;
	format(error->message, sizeof(error->message), "%s '%.*s%s'", what, piece.length < MAX ? (int)piece.length : MAX,
	       piece.at, piece.length < MAX ? "" : "...");
	return false;
}

/* ---- conditions ---- */

int condition_id(const struct condition *condition, char *to, size_t size)
{
	return format(to, size, "%s.cpl%u%s%s%s", mode_names[condition->mode % N_MODES], condition->ring,
		      condition->page_size == PAGE_LARGE ? ".2m" : "", condition->cache == CACHE_OFF ? ".nocache" : "",
		      condition->tlb == TLB_COLD ? ".cold" : "");
}

/* Without paging there are no pages and no TLB. */
bool condition_at(unsigned i, struct condition *condition)
{
	enum { RING_COUNT = 4, OF_FLAT = RING_COUNT * 2, OF_RING = 2 * 2 * 2, OF_MODE = RING_COUNT * OF_RING };
	unsigned paged = i - OF_FLAT;

	if (i < OF_FLAT) {
		*condition = (struct condition){ .mode = MODE_FLAT, .ring = i / 2, .cache = i % 2 };
		return true;
	}
	*condition = (struct condition){
		.mode = MODE_PAGING + paged / OF_MODE,
		.ring = paged / OF_RING % RING_COUNT,
		.page_size = paged / 4 % 2 ? PAGE_LARGE : PAGE_4K,
		.cache = paged / 2 % 2,
		.tlb = paged % 2,
	};
	return paged < OF_MODE * (N_MODES - MODE_PAGING);
}

static int condition_named(struct piece pattern, unsigned from)
{
	struct condition condition;
	char id[CONDITION_ID_SIZE];

	for (unsigned i = from; condition_at(i, &condition); i++) {
		condition_id(&condition, id, sizeof(id));
		if (matches(pattern, id))
			return i;
	}
	return -1;
}

/* ---- operations ---- */

static unsigned operations_known(void)
{
	return n_operations < PLAN_MAX_OPERATIONS ? n_operations : PLAN_MAX_OPERATIONS;
}

static bool operation_matches(struct piece pattern, unsigned operation)
{
	const struct operation *o = &operations[operation];

	return matches(pattern, o->name) || same(pattern, group_names[o->group % N_OF(group_names)]);
}

static bool listed(struct piece list, unsigned operation)
{
	struct piece pattern;

	while (cut(&list, ',', &pattern))
		if (operation_matches(pattern, operation))
			return true;
	return false;
}

static bool any_operation(struct piece pattern)
{
	for (unsigned i = 0; i < operations_known(); i++)
		if (operation_matches(pattern, i))
			return true;
	return false;
}

static bool allowed(unsigned operation, const struct condition *condition)
{
	const struct operation *o = &operations[operation];

	return (o->modes >> condition->mode & 1) && (o->rings >> condition->ring & 1);
}

/* ---- the set of what is wanted ---- */

static void want(struct plan *plan, unsigned condition, unsigned operation)
{
	if (allowed(operation, &plan->conditions[condition]))
		plan->wanted[condition][operation / 32] |= 1u << operation % 32;
}

static void forget(struct plan *plan, unsigned condition, unsigned operation)
{
	plan->wanted[condition][operation / 32] &= ~(1u << operation % 32);
}

bool plan_wants(const struct plan *plan, unsigned condition, unsigned operation)
{
	return plan->wanted[condition][operation / 32] >> operation % 32 & 1;
}

unsigned plan_count(const struct plan *plan)
{
	unsigned count = 0;

	for (unsigned condition = 0; condition < plan->n_conditions; condition++)
		for (unsigned operation = 0; operation < operations_known(); operation++)
			count += plan_wants(plan, condition, operation);
	return count;
}

static bool wanted_anywhere(const struct plan *plan, unsigned operation)
{
	for (unsigned condition = 0; condition < plan->n_conditions; condition++)
		if (plan_wants(plan, condition, operation))
			return true;
	return false;
}

static void want_listed(struct plan *plan, const struct pick *pick, unsigned modes, unsigned operation)
{
	struct piece list = whole(pick->conditions), pattern;

	while (cut(&list, ',', &pattern))
		for (int i = condition_named(pattern, 0); i >= 0; i = condition_named(pattern, i + 1)) {
			if (!(modes >> plan->conditions[i].mode & 1) || !allowed(operation, &plan->conditions[i]))
				continue;
			want(plan, i, operation);
			if (pick->first_only)
				return;
		}
}

static void want_preset(struct plan *plan, const struct preset *preset, unsigned modes)
{
	for (unsigned i = 0; i < preset->n_picks; i++)
		for (unsigned operation = 0; operation < operations_known(); operation++)
			if (listed(whole(preset->picks[i].operations), operation))
				want_listed(plan, &preset->picks[i], modes, operation);
}

/* ---- what the command line changes ---- */

/* Of the plan's operations and conditions only those of the list; an operation that the plan has nowhere runs under
 * each of the plan's conditions. */
static bool keep_operations(struct plan *plan, struct piece list, struct plan_error *error)
{
	bool plans_condition[PLAN_MAX_CONDITIONS];
	struct piece rest = list, pattern;

	while (cut(&rest, ',', &pattern))
		if (!any_operation(pattern))
			return refuse(error, CHOICES_OPERATIONS, "unknown operation", pattern);
	for (unsigned i = 0; i < plan->n_conditions; i++) {
		plans_condition[i] = false;
		for (unsigned word = 0; word < PLAN_MAX_OPERATIONS / 32; word++)
			plans_condition[i] |= plan->wanted[i][word] != 0;
	}
	for (unsigned operation = 0; operation < operations_known(); operation++) {
		bool nowhere = !wanted_anywhere(plan, operation), keep = listed(list, operation);

		for (unsigned i = 0; i < plan->n_conditions; i++) {
			if (!keep)
				forget(plan, i, operation);
			else if (nowhere && plans_condition[i])
				want(plan, i, operation);
		}
	}
	return true;
}

/* All operations that are wanted anywhere, under the listed conditions instead. */
static bool set_conditions(struct plan *plan, struct piece list, struct plan_error *error)
{
	uint32_t all[PLAN_MAX_OPERATIONS / 32];
	struct piece pattern;

	memset(all, 0, sizeof(all));
	for (unsigned operation = 0; operation < operations_known(); operation++)
		all[operation / 32] |= (uint32_t)wanted_anywhere(plan, operation) << operation % 32;
	memset(plan->wanted, 0, sizeof(plan->wanted));
	while (cut(&list, ',', &pattern)) {
		int i = condition_named(pattern, 0);

		if (i < 0)
			return refuse(error, CHOICES_CONDITIONS, "unknown condition", pattern);
		for (; i >= 0; i = condition_named(pattern, i + 1))
			for (unsigned operation = 0; operation < operations_known(); operation++)
				if (all[operation / 32] >> operation % 32 & 1)
					want(plan, i, operation);
	}
	return true;
}

/* OP: nowhere; OP@COND: not there. */
static bool skip_one(struct plan *plan, struct piece word, struct plan_error *error)
{
	struct piece rest = word, pattern, place;
	bool everywhere;

	cut(&rest, '@', &pattern);
	everywhere = !rest.at;
	place = everywhere ? whole("*") : rest;
	if (!any_operation(pattern))
		return refuse(error, CHOICES_OPERATIONS, "unknown operation", pattern);
	if (condition_named(place, 0) < 0)
		return refuse(error, CHOICES_CONDITIONS, "unknown condition", place);
	for (int i = condition_named(place, 0); i >= 0; i = condition_named(place, i + 1))
		for (unsigned operation = 0; operation < operations_known(); operation++)
			if (operation_matches(pattern, operation))
				forget(plan, i, operation);
	return true;
}

static bool skip(struct plan *plan, struct piece list, struct plan_error *error)
{
	struct piece word;

	while (cut(&list, ',', &word))
		if (!skip_one(plan, word, error))
			return false;
	return true;
}

/* ADD is the unit that other results are reported in: it is measured wherever anything is. */
static void want_add(struct plan *plan)
{
	for (unsigned operation = 0; operation < operations_known(); operation++) {
		if (!equal(operations[operation].name, "add"))
			continue;
		for (unsigned i = 0; i < plan->n_conditions; i++)
			for (unsigned word = 0; word < PLAN_MAX_OPERATIONS / 32; word++)
				if (plan->wanted[i][word])
					want(plan, i, operation);
	}
}

static void drop_empty_conditions(struct plan *plan)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < plan->n_conditions; i++)
		for (unsigned word = 0; word < PLAN_MAX_OPERATIONS / 32; word++)
			if (plan->wanted[i][word]) {
				plan->conditions[kept] = plan->conditions[i];
				if (kept != i)
					memcpy(plan->wanted[kept], plan->wanted[i], sizeof(plan->wanted[i]));
				kept++;
				break;
			}
	plan->n_conditions = kept;
}

/* ---- the command line ---- */

/* A loader may put the image's path first. */
static bool is_path(struct piece word)
{
	for (size_t i = 0; i < word.length && word.at[i] != '='; i++)
		if (word.at[i] == '/')
			return true;
	return false;
}

static bool begins(struct piece word, const char *with)
{
	return strlen(with) <= word.length && !memcmp(word.at, with, strlen(with));
}

static bool read_words(struct piece line, struct request *request, struct plan_error *error)
{
	struct piece *const values[] = { &request->plan, &request->operations, &request->conditions, &request->skipped,
					 &request->repetitions, &request->end, &request->qr };
	struct piece word;
	bool first = true;

	for (; cut(&line, ' ', &word); first = false) {
		unsigned key = 0;

		if (!word.length || (first && is_path(word)))
			continue;
		while (key < N_OF(keys) && !begins(word, keys[key]))
			key++;
		if (key == N_OF(keys))
			return refuse(error, CHOICES_KEYS, "not understood:", word);
		*values[key] = (struct piece){ word.at + strlen(keys[key]), word.length - strlen(keys[key]) };
	}
	return true;
}

static bool read_choice(struct piece value, const char *const *names, unsigned n, uint8_t *to)
{
	if (!value.at)
		return true;
	for (*to = 0; *to < n; ++*to)
		if (same(value, names[*to]))
			return true;
	return false;
}

static bool read_repetitions(struct piece value, uint32_t *to)
{
	enum { MAX = 100000 };
	uint32_t n = 0;

	if (!value.at)
		return true;
	for (size_t i = 0; i < value.length; i++) {
		if (value.at[i] < '0' || '9' < value.at[i] || n > MAX)
			return false;
		n = n * 10 + (value.at[i] - '0');
	}
	*to = n;
	return 1 <= n && n <= MAX;
}

static const struct preset *find_preset(struct piece name)
{
	if (!name.at)
		return &presets[0];
	for (unsigned i = 0; i < n_presets; i++)
		if (same(name, presets[i].name))
			return &presets[i];
	return NULL;
}

static void start_plan(struct plan *plan, const struct preset *preset, unsigned modes)
{
	format(plan->name, sizeof(plan->name), "%s", preset->name);
	plan->repetitions = preset->repetitions;
	plan->budget_ms = preset->budget_ms;
	plan->timeout_ms = preset->timeout_ms;
	while (condition_at(plan->n_conditions, &plan->conditions[plan->n_conditions]))
		plan->n_conditions++;
	want_preset(plan, preset, modes);
}

static bool change_plan(struct plan *plan, const struct request *request, struct plan_error *error)
{
	if (!read_choice(request->end, ends, N_OF(ends), &plan->end))
		return refuse(error, CHOICES_ENDS, "unknown end", request->end);
	if (!read_choice(request->qr, on_off, N_OF(on_off), &plan->qr))
		return refuse(error, CHOICES_ON_OFF, "qr is on, off or auto, not", request->qr);
	if (!read_repetitions(request->repetitions, &plan->repetitions))
		return refuse(error, CHOICES_NONE, "reps is a number from 1 to 100000, not", request->repetitions);
	if (request->operations.at && !keep_operations(plan, request->operations, error))
		return false;
	if (request->conditions.at && !set_conditions(plan, request->conditions, error))
		return false;
	want_add(plan);
	return !request->skipped.at || skip(plan, request->skipped, error);
}

bool plan_parse(const char *command_line, unsigned modes, struct plan *plan, struct plan_error *error)
{
	enum { MAX_LINE = PLAN_MAX_COMMAND_LINE - 1 }; /* what fills its place may have been cut short */
	struct piece line = { command_line ? command_line : "", 0 };
	struct request request = { 0 };
	const struct preset *preset;

	memset(plan, 0, sizeof(*plan));
	memset(error, 0, sizeof(*error));
	while (line.length < MAX_LINE && line.at[line.length])
		line.length++;
	if (line.length == MAX_LINE)
		return refuse(error, CHOICES_NONE, "too long a command line:", line);
	if (!read_words(line, &request, error))
		return false;
	preset = find_preset(request.plan);
	if (!preset)
		return refuse(error, CHOICES_PLANS, "unknown plan", request.plan);
	start_plan(plan, preset, modes);
	if (!change_plan(plan, &request, error))
		return false;
	drop_empty_conditions(plan);
	if (!plan->n_conditions)
		return refuse(error, CHOICES_NONE, "no operation is left to run under any condition:", line);
	return true;
}

/* ---- choices ---- */

static bool choose(const char *const *names, unsigned n, unsigned i, char *to, size_t size)
{
	if (n <= i)
		return false;
	format(to, size, "%s", names[i]);
	return true;
}

static bool choose_operation(unsigned i, char *to, size_t size)
{
	if (i < N_OF(group_names))
		return choose(group_names, N_OF(group_names), i, to, size);
	i -= N_OF(group_names);
	if (operations_known() <= i)
		return false;
	format(to, size, "%s", operations[i].name);
	return true;
}

bool plan_choice(enum plan_choices choices, unsigned i, char *to, size_t size)
{
	struct condition condition;

	switch (choices) {
	case CHOICES_KEYS: return choose(keys, N_OF(keys), i, to, size);
	case CHOICES_ENDS: return choose(ends, N_OF(ends), i, to, size);
	case CHOICES_ON_OFF: return choose(on_off, N_OF(on_off), i, to, size);
	case CHOICES_OPERATIONS: return choose_operation(i, to, size);
	case CHOICES_PLANS:
		if (n_presets <= i)
			return false;
		format(to, size, "%s", presets[i].name);
		return true;
	case CHOICES_CONDITIONS:
		if (!condition_at(i, &condition))
			return false;
		condition_id(&condition, to, size);
		return true;
	default: return false;
	}
}
