/* SPDX-License-Identifier: Apache-2.0 */
/* The table on the screen. A page has one to three blocks beside each other; what does not fit goes to the next block.
 * Where columns are left over, rows say what operations do.
 *
 *	title
 *	long.cpl0        min  median  p99 ...   |  long.cpl3        min  median  p99 ...
 *	add              ...                    |  cpuid            ...
 */
#include "table.h"

#include "numbers.h"
#include "output.h"

enum {
	FIGURES = 79, /* columns of the shortest row */
	MAX_WIDTH = 159,
	TITLE_ROWS = 2,
	MAX_BLOCKS = 3,
	MAX_HEIGHT = 100,
};

static unsigned at_most(unsigned n, unsigned limit)
{
	return n < limit ? n : limit;
}

static unsigned blocks_of_page(void)
{
	unsigned n = at_most((screen_columns() + 1) / (FIGURES + 1), MAX_BLOCKS);

	return n ? n : 1;
}

static unsigned height_of_page(void)
{
	return at_most(screen_rows() - TITLE_ROWS, MAX_HEIGHT);
}

/* Of a block, without the column that keeps it from the next one. */
static unsigned width_of_block(void)
{
	unsigned width = (screen_columns() + 1) / blocks_of_page() - 1;

	return at_most(width < FIGURES ? FIGURES : width, MAX_WIDTH);
}

/* ---- rows ---- */

#define ROW "%-20.20s %10s %10s %10s %10s %11s%s"

static void row_of_heading(const struct condition *condition, char *to)
{
	char id[CONDITION_ID_SIZE];

	condition_id(condition, id, sizeof(id));
	format(to, MAX_WIDTH + 1, ROW, id, "min", "median", "p99", "in batch", "ns each", "");
}

static void row_of_figures(const struct result *r, char *to)
{
	char min[TICKS_TEXT_SIZE] = "", median[TICKS_TEXT_SIZE] = "", p99[TICKS_TEXT_SIZE] = "", batch[TICKS_TEXT_SIZE] = "";
	char ns[TICKS_TEXT_SIZE] = "?";
	const char *mark = r->status == STATUS_INEFFECTIVE ? " !" : r->reliable ? "" : " ~";

	if (r->single.n) {
		short_text(r->single.min, min);
		short_text(r->single.median, median);
		short_text(r->single.p99, p99);
	}
	if (r->batch_of)
		short_text(r->batch, batch);
	if (the_clock.tsc_hz)
		short_text(ns_of(r->batch_of ? r->batch : r->single.median), ns);
	format(to, MAX_WIDTH + 1, ROW, operations[r->operation].name, min, median, p99, batch, ns, mark);
}

static void row_of_result(const struct result *r, char *to)
{
	const char *name = operations[r->operation].name, *fault = fault_name(r->vector);
	size_t length;

	switch (r->status) {
	case STATUS_FAULT:
		format(to, MAX_WIDTH + 1, "%-20.20s fault: vector %u%s%s", name, r->vector, fault ? ", " : "", fault ? fault : "");
		break;
	case STATUS_TIMEOUT:
		format(to, MAX_WIDTH + 1, "%-20.20s did not come back within %u ms", name,
		       (unsigned)measure_timeout_ms(&operations[r->operation]));
		break;
	case STATUS_MISSING:
		format(to, MAX_WIDTH + 1, "%-20.20s missing: %s", name, r->reason ? r->reason : "unknown");
		break;
	default:
		row_of_figures(r, to);
	}
	length = strlen(to);
	if (FIGURES + 10 < width_of_block())
		format(to + length, MAX_WIDTH + 1 - length, "%*s%s", length < FIGURES + 1 ? (int)(FIGURES + 1 - length) : 1, "",
		       operations[r->operation].title);
	to[width_of_block()] = 0;
}

static void row_of_reason(const struct condition_report *found, char *to)
{
	format(to, MAX_WIDTH + 1, "! not in force: %s", found->reason ? found->reason : "unknown");
}

/* ---- while the plan runs ---- */

void table_title(const struct report *report)
{
	const char *hypervisor = hypervisor_name();

	screen_print("vmscope %s, plan %s: %.48s%s%s\n", BOOT_VERSION, report->plan->name,
		     *the_cpu.brand ? the_cpu.brand : the_cpu.vendor, hypervisor ? " in " : "", hypervisor ? hypervisor : "");
	screen_print("Ticks of the TSC at %u MHz. ~ not reliable, ! condition not in force\n",
		     (unsigned)((the_clock.tsc_hz + 500000) / 1000000));
}

void table_print_condition(const struct plan *plan, unsigned condition, const struct condition_report *found)
{
	char row[MAX_WIDTH + 1];

	row_of_heading(&plan->conditions[condition], row);
	screen_print("%s\n", row);
	if (found->effective)
		return;
	row_of_reason(found, row);
	screen_print("%s\n", row);
}

void table_print_result(const struct result *result)
{
	char row[MAX_WIDTH + 1];

	row_of_result(result, row);
	screen_print("%s\n", row);
}

/* ---- pages ---- */

struct layout {
	unsigned height;      /* of a block */
	unsigned block, line; /* where the next row goes */
	unsigned first, n;    /* blocks that are kept */
};

static char rows[MAX_BLOCKS][MAX_HEIGHT][MAX_WIDTH + 1];

static void lay_row(struct layout *l, const char *row)
{
	if (l->first <= l->block && l->block < l->first + l->n)
		format(rows[l->block - l->first][l->line], width_of_block() + 1, "%s", row);
	if (++l->line == l->height) {
		l->line = 0;
		l->block++;
	}
}

/* Says its condition at the top of each block again; never as the last row of one. */
static void lay_heading(struct layout *l, const struct report *report, unsigned condition, bool is_new)
{
	char row[MAX_WIDTH + 1];

	if (l->line && l->line + 2 >= l->height)
		while (l->line)
			lay_row(l, "");
	row_of_heading(&report->plan->conditions[condition], row);
	lay_row(l, row);
	if (!is_new || report->conditions[condition].effective)
		return;
	row_of_reason(&report->conditions[condition], row);
	lay_row(l, row);
}

static void lay_out(struct layout *l, const struct report *report)
{
	char row[MAX_WIDTH + 1];

	for (unsigned i = 0; i < report->n_results; i++) {
		const struct result *r = &report->results[i];
		bool is_new = !i || r->condition != r[-1].condition;

		if (is_new || !l->line)
			lay_heading(l, report, r->condition, is_new);
		row_of_result(r, row);
		lay_row(l, row);
	}
}

unsigned table_pages(const struct report *report)
{
	struct layout l = { .height = height_of_page() };

	lay_out(&l, report);
	return (l.block + (l.line != 0) + blocks_of_page() - 1) / blocks_of_page();
}

void table_print_page(const struct report *report, unsigned page)
{
	struct layout l = { .height = height_of_page(), .first = page * blocks_of_page(), .n = blocks_of_page() };

	memset(rows, 0, sizeof(rows));
	lay_out(&l, report);
	screen_clear();
	table_title(report);
	for (unsigned line = 0; line < l.height; line++) {
		for (unsigned block = 0; block + 1 < l.n; block++)
			screen_print("%-*s", (int)width_of_block() + 1, rows[block][line]);
		screen_print("%.*s\n", (int)screen_columns(), rows[l.n - 1][line]);
	}
}
