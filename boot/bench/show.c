/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a run as people see it: pages of the table, and QR codes for a phone's camera. */
#include "compact.h"
#include "output.h"
#include "power.h"
#include "table.h"

enum { PAGE_MS = 15000, BRIEF_MS = 4000, MIN_SCALE = 5, MAX_PAYLOAD = 1200 };

/* How QR codes are shown. */
struct grid {
	unsigned payload; /* characters in each */
	unsigned columns, rows, scale;
	unsigned side; /* pixels of one, with its margin; columns of text */
};

/* Versions 20, 11 and 6: the larger, the fewer photographs. */
static const struct {
	unsigned payload, modules;
} sizes[] = { { MAX_PAYLOAD, 97 }, { 440, 61 }, { 170, 41 } };

static unsigned smaller(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Room for the bottom line is left. */
static struct grid grid_of_pixels(void)
{
	unsigned width = screen_width(), height = screen_height() - screen_height() / (screen_rows() + 1);
	struct grid g = { 0 };

	for (unsigned i = 0; i < N_OF(sizes) && !g.scale; i++) {
		unsigned modules = sizes[i].modules + 2 * QR_MARGIN;

		g.payload = sizes[i].payload;
		g.columns = width / (modules * MIN_SCALE);
		g.rows = height / (modules * MIN_SCALE);
		if (i + 1 == N_OF(sizes) && !(g.columns && g.rows))
			g.columns = g.rows = 1;
		if (g.columns && g.rows)
			g.scale = smaller(width / g.columns, height / g.rows) / modules;
		g.side = modules * g.scale;
	}
	return g;
}

static struct grid grid_of_screen(void)
{
	unsigned last = N_OF(sizes) - 1;

	if (screen_width())
		return grid_of_pixels();
	return (struct grid){ sizes[last].payload, 1, 1, 1, sizes[last].modules + 2 * QR_MARGIN };
}

/* In text mode a code takes the bottom line, too: what is to be said stands beside it. */
static void say_number(const struct grid *g, unsigned first, unsigned last, unsigned count)
{
	if (screen_width())
		screen_status("QR codes %u to %u of %u. Any key: next. All of them are the results: vmscope bench read",
			      first, last, count);
	else
		screen_print("%*s  QR code %u of %u\n%*s  Any key: next\n%*s  Read: vmscope bench read\n", (int)g->side, "",
			     first, count, (int)g->side, "", (int)g->side, "");
}

static void draw_codes(const struct report *report, const struct grid *g, unsigned first, unsigned last)
{
	static char text[MAX_PAYLOAD + COMPACT_FRAME + 1];

	for (unsigned i = first; i <= last; i++) {
		unsigned place = i - first;

		compact_code(report, g->payload, i, text);
		qr_draw(text, place % g->columns * g->side, place / g->columns * g->side, g->scale);
	}
}

/* False: Escape was pressed. */
static bool show_codes(const struct report *report, unsigned each_ms)
{
	struct grid g = grid_of_screen();
	unsigned count = compact_codes(report, g.payload), at_once = g.columns * g.rows;

	for (unsigned first = 1; first <= count; first += at_once) {
		unsigned last = smaller(first + at_once - 1, count);

		screen_clear();
		say_number(&g, first, last, count);
		draw_codes(report, &g, first, last);
		if (key_wait(each_ms) == KEY_ESCAPE)
			return false;
	}
	return true;
}

static void show_page(const struct report *report, unsigned page, unsigned pages)
{
	table_print_page(report, page);
	screen_status("Page %u of %u. Any key: next page. Escape: reboot", page + 1, pages);
}

static bool waits(const struct plan *plan)
{
	return plan->end == END_WAIT || (plan->end == END_AUTO && !the_cpu.hypervisor_present);
}

static bool wants_codes(const struct plan *plan)
{
	return plan->qr == QR_ON || (plan->qr == QR_AUTO && !lines_have_serial() && !lines_have_debugcon());
}

/* A single page stays as it is, lest it flicker. */
static void show_for_ever(const struct report *report, unsigned pages, bool codes)
{
	for (bool first = true;; first = false) {
		for (unsigned page = 0; page < pages; page++) {
			if (first || codes || pages > 1)
				show_page(report, page, pages);
			if (key_wait(PAGE_MS) == KEY_ESCAPE)
				return;
		}
		if (codes && !show_codes(report, PAGE_MS))
			return;
	}
}

/* A hypervisor whose power-off is not known keeps the machine running: then a person may as well read the results. */
void report_show(const struct report *report)
{
	bool codes = wants_codes(report->plan);
	unsigned pages;

	if (!screen_columns() || !report->n_results)
		return;
	pages = table_pages(report);
	if (!waits(report->plan)) {
		if (codes)
			show_codes(report, BRIEF_MS);
		show_page(report, 0, pages);
		if (report->plan->end == END_REBOOT)
			return;
		power_off();
	}
	show_for_ever(report, pages, codes);
	reboot();
}
