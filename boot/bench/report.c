/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines for programs, with a trace of each on the screen; docs/boot.md has their schema. */
#include "report.h"

#include "compact.h"
#include "numbers.h"
#include "output.h"
#include "table.h"

/* ---- pieces of lines ---- */

static void add_string(const char *key, const char *text)
{
	line_add("\"%s\":", key);
	if (text)
		line_add_string(text);
	else
		line_add("null");
}

static void add_flag(const char *key, bool set)
{
	line_add("\"%s\":%s", key, set ? "true" : "false");
}

static void add_ticks(const char *key, uint64_t thousandths)
{
	char text[TICKS_TEXT_SIZE];

	exact_text(thousandths, text);
	line_add("\"%s\":%s", key, text);
}

static void add_condition(const char *key, const struct condition *condition)
{
	char id[CONDITION_ID_SIZE];

	condition_id(condition, id, sizeof(id));
	add_string(key, id);
}

static void comma(void)
{
	line_add(",");
}

/* ---- header ---- */

static void add_cpu(void)
{
	line_add("\"cpu\":{");
	add_string("vendor", the_cpu.vendor);
	comma();
	add_string("brand", the_cpu.brand);
	line_add(",\"family\":%u,\"model\":%u,\"stepping\":%u,", (unsigned)the_cpu.family, (unsigned)the_cpu.model,
		 (unsigned)the_cpu.stepping);
	add_string("hypervisor", hypervisor_name());
	line_add("}");
}

static void add_clock(void)
{
	line_add("\"tsc\":{\"hz\":");
	if (the_clock.tsc_hz)
		line_add("%llu,", (wide)the_clock.tsc_hz);
	else
		line_add("null,");
	add_flag("invariant", the_cpu.invariant_tsc);
	comma();
	add_string("calibrated_by", the_clock.calibrated_by);
	line_add(",\"spread_ppm\":%u}", (unsigned)the_clock.spread_ppm);
}

static void add_facts(const struct machine_facts *facts)
{
	line_add("\"memory_bytes\":%llu,\"cpus\":%u,", (wide)the_memory.bytes, (unsigned)facts->cpus);
	add_flag("apic", facts->apic);
	comma();
	add_string("watchdog", facts->watchdog ? "nmi" : NULL);
	comma();
	add_string("loader", loader_name(facts->loader));
	comma();
	add_string("firmware", firmware_name(facts->firmware));
}

/* Firmware and loaders may have left half a line behind. */
void report_header(const struct report *report)
{
	line_end();
	line_add("{\"vmscope_boot\":1,");
	add_string("version", BOOT_VERSION);
	comma();
	add_cpu();
	comma();
	add_clock();
	comma();
	add_facts(report->facts);
	comma();
	add_string("plan", report->plan->name);
	comma();
	add_string("command_line", report->command_line);
	line_add(",\"operations\":%u}", plan_count(report->plan));
	line_end();
	table_title(report);
}

/* ---- conditions and results ---- */

void report_condition(const struct plan *plan, unsigned condition, const struct condition_report *found)
{
	line_add("{");
	add_condition("condition", &plan->conditions[condition]);
	comma();
	add_flag("effective", found->effective);
	comma();
	add_string("reason", found->effective ? NULL : found->reason ? found->reason : "unknown");
	line_add(",\"cr0\":%u,\"cr4\":%u,\"ring\":%u,", (unsigned)found->cr0, (unsigned)found->cr4, found->ring);
	add_ticks("chase_ticks", 10ull * found->chase_ticks_x100);
	comma();
	add_ticks("empty_ticks", found->empty_ticks_x1000);
	line_add("}");
	line_end();
	table_print_condition(plan, condition, found);
}

void report_begin(const struct plan *plan, unsigned condition, unsigned operation, unsigned done)
{
	char id[CONDITION_ID_SIZE];

	line_add("{");
	add_string("begin", operations[operation].name);
	comma();
	add_condition("condition", &plan->conditions[condition]);
	line_add("}");
	line_end();
	condition_id(&plan->conditions[condition], id, sizeof(id));
	screen_status("%u of %u  %s  %s", done + 1, plan_count(plan), id, operations[operation].name);
}

static void add_single(const struct spread *spread)
{
	if (!spread->n) {
		line_add("\"single\":null");
		return;
	}
	line_add("\"single\":{");
	add_ticks("min", spread->min);
	comma();
	add_ticks("median", spread->median);
	comma();
	add_ticks("p99", spread->p99);
	comma();
	add_ticks("max", spread->max);
	line_add(",\"n\":%u}", (unsigned)spread->n);
}

static void add_batch(const struct result *result)
{
	if (!result->batch_of) {
		line_add("\"batch\":null");
		return;
	}
	line_add("\"batch\":{\"of\":%u,", (unsigned)result->batch_of);
	add_ticks("min", result->batch);
	comma();
	add_ticks("median", result->batch_median);
	line_add("}");
}

static void add_figures(const struct result *result)
{
	line_add("\"status\":\"ok\",\"unit\":\"ticks\",");
	add_single(&result->single);
	comma();
	add_batch(result);
	line_add(",\"bytes\":%u,\"done\":%llu,", (unsigned)operations[result->operation].bytes, (wide)result->done);
	add_flag("reliable", result->reliable);
	if (result->status == STATUS_INEFFECTIVE) {
		comma();
		add_string("ineffective", result->reason ? result->reason : "unknown");
	}
}

static void add_status(const struct result *result)
{
	switch (result->status) {
	case STATUS_FAULT:
		line_add("\"status\":\"fault\",\"vector\":%u,", result->vector);
		add_string("name", fault_name(result->vector));
		break;
	case STATUS_TIMEOUT:
		line_add("\"status\":\"timeout\",\"after_ms\":%u", (unsigned)measure_timeout_ms(&operations[result->operation]));
		break;
	case STATUS_MISSING:
		line_add("\"status\":\"missing\",");
		add_string("reason", result->reason ? result->reason : "unknown");
		break;
	default:
		add_figures(result);
	}
}

void report_result(const struct plan *plan, const struct result *result)
{
	line_add("{");
	add_string("result", operations[result->operation].name);
	comma();
	add_condition("condition", &plan->conditions[result->condition]);
	comma();
	add_status(result);
	line_add("}");
	line_end();
	table_print_result(result);
}

/* ---- messages ---- */

static void message(const char *kind, const char *text)
{
	line_add("{");
	add_string(kind, text);
	line_add("}");
	line_end();
	screen_print("%s: %s\n", kind, text);
}

void report_warning(const char *pattern, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, pattern);
	format_list(text, sizeof(text), pattern, arguments);
	va_end(arguments);
	message("warning", text);
}

void report_error(const char *pattern, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, pattern);
	format_list(text, sizeof(text), pattern, arguments);
	va_end(arguments);
	message("error", text);
}

/* Words are kept whole. */
static void print_word(const char *word, unsigned *column)
{
	unsigned length = strlen(word) + 1;

	if (*column + length > screen_columns()) {
		screen_print("\n");
		*column = 0;
	}
	screen_print("%s ", word);
	*column += length;
}

/* On the screen the message comes last, and conditions, which are more than it holds, are described. */
void report_plan_error(const struct plan_error *error)
{
	char choice[64];
	unsigned column = 0;

	line_add("{");
	add_string("error", error->message);
	line_add(",\"choices\":[");
	for (unsigned i = 0; plan_choice(error->choices, i, choice, sizeof(choice)); i++) {
		if (i)
			comma();
		line_add_string(choice);
		if (error->choices != CHOICES_CONDITIONS)
			print_word(choice, &column);
	}
	line_add("]}");
	line_end();
	if (error->choices == CHOICES_CONDITIONS)
		screen_print("{flat,paging,pae,long}.cpl{0,1,2,3}[.2m][.nocache][.cold]; flat: only .nocache");
	screen_print("\n\n%s\n", error->message);
	if (error->choices)
		screen_print("What it could be stands above.\n");
}

void report_end(const struct run_end *end)
{
	line_add("{\"end\":\"complete\",\"results\":%u,\"tsc_drift_ppm\":%d,\"backward_jumps\":%u}", (unsigned)end->results,
		 (int)end->tsc_drift_ppm, (unsigned)end->backward_jumps);
	line_end();
}
