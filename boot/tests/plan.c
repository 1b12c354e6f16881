/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/plan.c"
#include "bench/presets.c"
#include "output/format.c"

#include "check.h"

enum { EVERYTHING = MODES };

OPERATIONS(test) = {
	{ .name = "add", .group = GROUP_GENERAL, .modes = MODES, .rings = RINGS },
	{ .name = "cwd", .group = GROUP_GENERAL, .modes = MODES, .rings = RINGS },
	{ .name = "lgdt", .group = GROUP_PRIVILEGED, .modes = MODES, .rings = RINGS },
	{ .name = "sti", .group = GROUP_PRIVILEGED, .modes = MODES, .rings = RINGS },
	{ .name = "pushf", .group = GROUP_SENSITIVE, .modes = MODES, .rings = RINGS },
	{ .name = "smsw", .group = GROUP_SENSITIVE, .modes = MODES, .rings = RINGS },
	{ .name = "pte-5120", .group = GROUP_PAGING, .modes = MODES, .rings = RING0 },
	{ .name = "pte-5120-flush", .group = GROUP_PAGING, .modes = PAGING | PAE | LONG, .rings = RING0 },
	{ .name = "cpuid", .group = GROUP_EXIT, .modes = MODES, .rings = RINGS },
	{ .name = "syscall", .group = GROUP_INTERRUPT, .modes = LONG, .rings = RING3 },
	{ .name = "lds", .group = GROUP_GENERAL, .modes = FLAT, .rings = RING0 },
	{ .name = "ata-read", .group = GROUP_IO, .modes = MODES, .rings = RING0 },
};

bool equal(const char *a, const char *b)
{
	return !strcmp(a, b);
}

static struct plan plan;
static struct plan_error error;

static int operation_index(const char *name)
{
	for (unsigned i = 0; i < n_operations; i++)
		if (equal(operations[i].name, name))
			return i;
	return -1;
}

/* `long.cpl0: add cpuid; ...` for all that is wanted. */
static const char *described(void)
{
	static char text[20000];
	char *to = text;

	*to = 0;
	for (unsigned c = 0; c < plan.n_conditions; c++) {
		char id[CONDITION_ID_SIZE];

		condition_id(&plan.conditions[c], id, sizeof(id));
		to += sprintf(to, "%s%s:", c ? "; " : "", id);
		for (unsigned i = 0; i < n_operations; i++)
			if (plan_wants(&plan, c, i))
				to += sprintf(to, " %s", operations[i].name);
	}
	return text;
}

static void accepted(const char *line, const char *expected)
{
	bool ok = plan_parse(line, EVERYTHING, &plan, &error);

	CHECK(ok, "'%s' is refused: %s", line, error.message);
	if (ok)
		check_text(described(), expected);
}

static void refused(const char *line, const char *expected, enum plan_choices choices)
{
	CHECK(!plan_parse(line, EVERYTHING, &plan, &error), "'%s' is accepted", line);
	check_text(error.message, expected);
	CHECK(error.choices == choices, "choices %u, expected %u", error.choices, choices);
}

static bool wants(const char *id, const char *name)
{
	for (unsigned c = 0; c < plan.n_conditions; c++) {
		char other[CONDITION_ID_SIZE];

		condition_id(&plan.conditions[c], other, sizeof(other));
		if (equal(id, other))
			return plan_wants(&plan, c, operation_index(name));
	}
	return false;
}

static void conditions(void)
{
	struct condition condition;
	char id[CONDITION_ID_SIZE];
	unsigned n = 0;

	while (condition_at(n, &condition)) {
		condition_id(&condition, id, sizeof(id));
		CHECK(condition_named(whole(id), 0) == (int)n, "%s is found again", id);
		CHECK(condition.mode < N_MODES && condition.ring < 4, "%s", id);
		n++;
	}
	CHECK(n == 104, "%u conditions", n);
	CHECK(!condition_at(~0u, &condition), "no end");
	condition = (struct condition){ MODE_LONG, 3, PAGE_LARGE, CACHE_OFF, TLB_COLD };
	condition_id(&condition, id, sizeof(id));
	check_text(id, "long.cpl3.2m.nocache.cold");
}

static void plans(void)
{
	accepted("plan=original", "flat.cpl0: add cwd lgdt sti pushf smsw pte-5120; flat.cpl3: add pushf smsw; "
				  "paging.cpl0: add pte-5120 pte-5120-flush");
	CHECK(plan.repetitions == 200 && plan.end == END_AUTO && plan.qr == QR_AUTO, "defaults");
	CHECK(plan_count(&plan) == 13, "%u operations", plan_count(&plan));
	accepted("plan=io", "long.cpl0: add ata-read");

	CHECK(plan_parse("", EVERYTHING, &plan, &error), "the short plan");
	check_text(plan.name, "short");
	for (unsigned i = 0; i < n_operations; i++)
		CHECK(wanted_anywhere(&plan, i), "%s is in the short plan", operations[i].name);
	CHECK(wants("long.cpl0", "ata-read") && !wants("flat.cpl0", "ata-read"), "once is enough");
	CHECK(wants("long.cpl3", "syscall") && wants("flat.cpl0", "lds"), "where it can run");
	CHECK(wants("flat.cpl3", "smsw") && wants("paging.cpl0", "pte-5120"), "the original's tables");
	CHECK(wants("long.cpl0.2m", "add") && wants("flat.cpl0.nocache", "smsw"), "each kind of condition");

	CHECK(plan_parse(NULL, FLAT | PAGING, &plan, &error), "a machine of 1995");
	CHECK(wants("paging.cpl0", "ata-read") && !wants("long.cpl0", "add"), "no 64 bits");
	CHECK(plan_parse("plan=full", EVERYTHING, &plan, &error), "the full plan");
	CHECK(plan.n_conditions == 31, "%u conditions", plan.n_conditions);
	CHECK(plan_parse("plan=instructions", EVERYTHING, &plan, &error), "a long name");
	check_text(plan.name, "instructions");
}

static void choices(void)
{
	accepted("plan=original ops=cpuid cond=long.cpl3", "long.cpl3: add cpuid");
	accepted("ops=sti,lgdt cond=flat.cpl0,long.cpl3", "flat.cpl0: add lgdt sti; long.cpl3: add lgdt sti");
	accepted("ops=pu* cond=pae.cpl0*", "pae.cpl0: add pushf; pae.cpl0.cold: add pushf; pae.cpl0.nocache: add pushf; "
					   "pae.cpl0.nocache.cold: add pushf; pae.cpl0.2m: add pushf; pae.cpl0.2m.cold: add pushf; "
					   "pae.cpl0.2m.nocache: add pushf; pae.cpl0.2m.nocache.cold: add pushf");
	accepted("plan=original ops=smsw", "flat.cpl0: add smsw; flat.cpl3: add smsw");
	accepted("plan=original ops=ata-read", "flat.cpl0: add ata-read; paging.cpl0: add ata-read");
	accepted("plan=original cond=long.cpl0", "long.cpl0: add cwd lgdt sti pushf smsw pte-5120 pte-5120-flush");
	accepted("ops=privileged cond=flat.cpl0", "flat.cpl0: add lgdt sti");
	accepted("plan=original skip=pte-*,smsw@flat.cpl3,add", "flat.cpl0: cwd lgdt sti pushf smsw; flat.cpl3: pushf");
	accepted("plan=original skip=sensitive", "flat.cpl0: add cwd lgdt sti pte-5120; flat.cpl3: add; "
						  "paging.cpl0: add pte-5120 pte-5120-flush");
	accepted("  ops=add   cond=flat.cpl0  ", "flat.cpl0: add");
	accepted("/boot/vmscope-boot.elf ops=add cond=flat.cpl0", "flat.cpl0: add");
	accepted("ops=add cond=flat.cpl0 reps=7 end=reboot qr=on", "flat.cpl0: add");
	CHECK(plan.repetitions == 7 && plan.end == END_REBOOT && plan.qr == QR_ON, "numbers and words");
}

static void nonsense(void)
{
	static char line[3000];

	refused("plan=long", "unknown plan 'long'", CHOICES_PLANS);
	refused("plan=", "unknown plan ''", CHOICES_PLANS);
	refused("ops=add,fly", "unknown operation 'fly'", CHOICES_OPERATIONS);
	refused("ops=", "unknown operation ''", CHOICES_OPERATIONS);
	refused("ops=add,,cwd", "unknown operation ''", CHOICES_OPERATIONS);
	refused("cond=flat.cpl4", "unknown condition 'flat.cpl4'", CHOICES_CONDITIONS);
	refused("cond=flat.cpl0.cold", "unknown condition 'flat.cpl0.cold'", CHOICES_CONDITIONS);
	refused("skip=fly", "unknown operation 'fly'", CHOICES_OPERATIONS);
	refused("skip=add@", "unknown condition ''", CHOICES_CONDITIONS);
	refused("skip=add@long.cpl0@x", "unknown condition 'long.cpl0@x'", CHOICES_CONDITIONS);
	refused("end=never", "unknown end 'never'", CHOICES_ENDS);
	refused("qr=yes", "qr is on, off or auto, not 'yes'", CHOICES_ON_OFF);
	refused("reps=0", "reps is a number from 1 to 100000, not '0'", CHOICES_NONE);
	refused("reps=99999999999999", "reps is a number from 1 to 100000, not '99999999999999'", CHOICES_NONE);
	refused("reps=-5", "reps is a number from 1 to 100000, not '-5'", CHOICES_NONE);
	refused("short", "not understood: 'short'", CHOICES_KEYS);
	refused("ops=add /boot/x", "not understood: '/boot/x'", CHOICES_KEYS);
	refused("ops=lds cond=long.cpl0 skip=add", 
		"no operation is left to run under any condition: 'ops=lds cond=long.cpl0 skip=add'", CHOICES_NONE);

	memset(line, 'a', sizeof(line) - 1);
	refused(line,
		"too long a command line: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", CHOICES_NONE);
	line[900] = 0;
	refused(line, "not understood: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", CHOICES_KEYS);
}

/* Words put together at random: whatever comes, it ends, and what is accepted is something to run. */
static void anything(void)
{
	static const char *const pieces[] = { "plan=", "ops=", "cond=", "skip=", "add", "*", ",", "@", " ", "long.cpl0",
					      "flat.", ".2m", "=",
					      "short", "full", "reps=", "9", "end=", "wait", "\xff", "io" };
	unsigned seed = 1, n_accepted = 0;

	for (unsigned round = 0; round < 20000; round++) {
		char line[200] = "";

		for (unsigned i = 0; i < round % 12; i++) {
			seed = seed * 1103515245 + 12345;
			strcat(line, pieces[(seed >> 16) % N_OF(pieces)]);
		}
		if (plan_parse(line, EVERYTHING, &plan, &error)) {
			n_accepted++;
			CHECK(plan_count(&plan) && plan.n_conditions <= PLAN_MAX_CONDITIONS, "'%s'", line);
		} else {
			CHECK(*error.message, "'%s' is refused without a word", line);
		}
	}
	CHECK(n_accepted > 10, "%u accepted", n_accepted);
}

static void every_choice(void)
{
	char choice[64];

	for (unsigned kind = CHOICES_KEYS; kind <= CHOICES_ON_OFF; kind++) {
		unsigned n = 0;

		while (plan_choice(kind, n, choice, sizeof(choice)))
			n++;
		CHECK(n >= 3, "%u choices of kind %u", n, kind);
	}
	CHECK(!plan_choice(CHOICES_NONE, 0, choice, sizeof(choice)), "none");
}

int main(void)
{
	conditions();
	plans();
	choices();
	nonsense();
	anything();
	every_choice();
	return done("plan");
}
