/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up run, as lines, QR text and pages of the screen, against the files in golden/, which crates/microbench reads,
 * too. UPDATE=1 writes them anew. Run in boot/. */
#include "cpu.h"

static uint8_t fake_in8(uint16_t port);
static void fake_out8(uint16_t port, uint8_t value);
static void fake_out8_string(uint16_t port, const void *bytes, size_t n);
static uint64_t fake_tsc(void);
#define in8 fake_in8
#define out8 fake_out8
#define out8_string fake_out8_string
#define tsc_end fake_tsc

#include "bench/compact.c"
#include "bench/numbers.c"
#include "bench/plan.c"
#include "bench/presets.c"
#include "bench/report.c"
#include "bench/show.c"
#include "bench/table.c"
#include "output/format.c"
#include "output/lines.c"

#include "check.h"

#include <setjmp.h>

static jmp_buf off;

/* ---- a UART and a debugcon ---- */

/* A slow one is busy with a burst for BUSY_READS, on a host that has no time for it; a full one is never empty. */
enum uart { UART_MISSING, UART_DEAD, UART_SLOW, UART_FULL, UART_GOOD };
enum { TICKS_PER_US = 2000, TICKS_OF_READ = TICKS_PER_US, BUSY_READS = 5 * PATIENCE_US };

static struct {
	enum uart kind;
	bool debugcon;
	uint8_t scratch;
	char sent[100000], logged[100000];
	size_t n_sent, n_logged;
	unsigned reads, busy;
	uint64_t tsc;
} ports;

static uint64_t fake_tsc(void)
{
	return ports.tsc;
}

uint64_t ticks_of_us(uint32_t us)
{
	return (uint64_t)us * TICKS_PER_US;
}

static uint8_t line_status(void)
{
	bool busy = ports.busy && ports.busy--;

	if (ports.kind == UART_DEAD || busy)
		return 0;
	return ports.kind == UART_FULL ? CAN_SEND : CAN_SEND | ALL_SENT;
}

static uint8_t fake_in8(uint16_t port)
{
	ports.reads++;
	ports.tsc += TICKS_OF_READ;
	if (port == DEBUGCON)
		return ports.debugcon ? DEBUGCON : 0xff;
	if (ports.kind == UART_MISSING || port < COM1 || SCRATCH < port)
		return 0xff;
	if (port == SCRATCH)
		return ports.scratch;
	if (port == LINE_STATUS)
		return line_status();
	return port == FIFO_CONTROL ? 0xc1 : 0;
}

static void fake_out8(uint16_t port, uint8_t value)
{
	if (port == SCRATCH)
		ports.scratch = value;
}

static void fake_out8_string(uint16_t port, const void *bytes, size_t n)
{
	bool debugcon = port == DEBUGCON;
	char *to = debugcon ? ports.logged : ports.sent;
	size_t *length = debugcon ? &ports.n_logged : &ports.n_sent;

	CHECK(debugcon || n <= FIFO_SIZE, "%zu bytes at once", n);
	if (!debugcon && ports.kind == UART_SLOW)
		ports.busy = BUSY_READS;
	memcpy(to + *length, bytes, n);
	to[*length += n] = 0;
}

static void plug_in(enum uart kind, bool debugcon)
{
	memset(&ports, 0, sizeof(ports));
	ports.kind = kind;
	ports.debugcon = debugcon;
	lines_init();
}

/* ---- a screen ---- */

static struct {
	unsigned columns, rows, width, height;
	char text[200000], status[300];
	size_t length;
	unsigned codes;
} shown;

void screen_print(const char *pattern, ...)
{
	va_list arguments;

	va_start(arguments, pattern);
	shown.length += vsprintf(shown.text + shown.length, pattern, arguments);
	va_end(arguments);
}

void screen_status(const char *pattern, ...)
{
	va_list arguments;

	va_start(arguments, pattern);
	vsnprintf(shown.status, sizeof(shown.status), pattern, arguments);
	va_end(arguments);
}

void screen_clear(void)
{
	shown.length = 0;
	*shown.text = 0;
}

unsigned screen_columns(void) { return shown.columns; }
unsigned screen_rows(void) { return shown.rows; }
unsigned screen_width(void) { return shown.width; }
unsigned screen_height(void) { return shown.height; }

static char drawn[300][1500];

bool qr_draw(const char *text, unsigned left, unsigned top, unsigned scale)
{
	unsigned side = grid_of_screen().side;
	bool fits = !shown.width || (left + side <= shown.width && top + side <= shown.height - 16);

	CHECK(fits && scale, "code at %u, %u, scale %u", left, top, scale);
	strcpy(drawn[shown.codes++ % 300], text);
	return true;
}

/* ---- a machine ---- */

struct cpu the_cpu = {
	.vendor = "AuthenticAMD", .brand = "AMD Opteron(tm) \"X\"", .hypervisor = "KVMKVMKVM", .family = 15, .model = 107,
	.stepping = 1, .hypervisor_present = true, .invariant_tsc = true, .has_lfence = true,
};
struct clock the_clock = { .tsc_hz = 2000123456, .calibrated_by = "pm-timer", .spread_ppm = 12 };
struct memory the_memory = { .bytes = 134086656 };

static const struct machine_facts facts = { .cpus = 2, .apic = 1, .watchdog = 1, .loader = LOADER_PVH,
					    .firmware = FIRMWARE_BIOS };

void delay_us(uint32_t us) { (void)us; }
void power_off(void) { longjmp(off, 1); }
void reboot(void) { exit(1); }
uint32_t measure_timeout_ms(const struct operation *operation) { (void)operation; return 1000; }

bool equal(const char *a, const char *b)
{
	return !strcmp(a, b);
}

#define ANYWHERE_AT_ALL .modes = MODES, .rings = RINGS

OPERATIONS(test) = {
	{ .name = "add", .title = "ADD, each waiting for the one before", .group = GROUP_GENERAL, ANYWHERE_AT_ALL },
	{ .name = "cpuid", .title = "CPUID", .group = GROUP_EXIT, ANYWHERE_AT_ALL },
	{ .name = "memory-latency-64k", .title = "LATENCY", .group = GROUP_MEMORY, ANYWHERE_AT_ALL, .bytes = 65536 },
	{ .name = "mwait", .title = "MWAIT", .group = GROUP_EXIT, ANYWHERE_AT_ALL },
	{ .name = "nvme-read-irq", .title = "a block from an NVMe disk, slept for", .group = GROUP_IO, ANYWHERE_AT_ALL },
	{ .name = "self-ipi", .title = "SELF-IPI", .group = GROUP_INTERRUPT, ANYWHERE_AT_ALL },
	{ .name = "vmcall", .title = "VMCALL", .group = GROUP_EXIT, ANYWHERE_AT_ALL },
};
enum { ADD, CPUID, MEMORY, MWAIT, NVME, IPI, VMCALL };

/* ---- a run ---- */

static struct plan plan;
static struct condition_report conditions[4];
static struct result results[4000];
static unsigned n_results;
static const struct run_end run_end = { .results = 9, .tsc_drift_ppm = -3, .backward_jumps = 0 };
static const char line_of_commands[] = "plan=short cond=long.cpl0,flat.cpl0.nocache";

static struct result *add_result(unsigned condition, unsigned operation, enum status status, const char *reason)
{
	struct result *r = &results[n_results++];

	*r = (struct result){ .condition = condition, .operation = operation, .status = status, .reason = reason,
			       .reliable = 1, .done = 15210 };
	return r;
}

static void with_batch(struct result *r, unsigned of, uint64_t min, uint64_t median)
{
	r->batch_of = of;
	r->batch = min;
	r->batch_median = median;
}

static void make_run(void)
{
	static const char why[] = "a pointer chase is as fast as with caches";
	struct plan_error error;
	struct result *r;

	CHECK(plan_parse(line_of_commands, MODES, &plan, &error), "%s", error.message);
	CHECK(plan.n_conditions == 2, "%u conditions", plan.n_conditions);
	conditions[0] = (struct condition_report){ .reason = why, .cr0 = 0x60000011, .ring = 0, .chase_ticks_x100 = 312,
						   .empty_ticks_x1000 = 41000, .entered = 1 };
	conditions[1] = (struct condition_report){ .effective = 1, .cr0 = 0x80000011, .cr4 = 0x20, .ring = 0,
						   .chase_ticks_x100 = 310, .empty_ticks_x1000 = 40500, .entered = 1 };
	n_results = 0;

	r = add_result(0, ADD, STATUS_INEFFECTIVE, why);
	with_batch(r, 100, 800, 802);
	r = add_result(0, CPUID, STATUS_INEFFECTIVE, "another reason");
	r->reliable = 0;
	r->single = (struct spread){ 1900000, 1910000, 2500000, 9000000, 200 };

	r = add_result(1, ADD, STATUS_OK, NULL);
	with_batch(r, 100, 800, 799);
	r->single = (struct spread){ 0, 1000, 2000, 512000, 50 };
	r = add_result(1, CPUID, STATUS_OK, NULL);
	r->single = (struct spread){ 1900000, 1910500, 2500000, 9000000, 200 };
	with_batch(r, 100, 1856500, 1857000);
	r = add_result(1, MEMORY, STATUS_OK, NULL);
	with_batch(r, 4096, 4033, 4100);
	add_result(1, MWAIT, STATUS_TIMEOUT, NULL);
	add_result(1, NVME, STATUS_MISSING, "no NVMe controller (PCI class 01-08)");
	r = add_result(1, IPI, STATUS_OK, NULL);
	r->reliable = 0;
	r->single = (struct spread){ 34000000000000, 34000000001000, 34000000002000, 35000000000000, 7 };
	r = add_result(1, VMCALL, STATUS_FAULT, NULL);
	r->vector = 6;
}

static struct report whole_run(void)
{
	return (struct report){ line_of_commands, &plan, &facts, conditions, results, n_results, &run_end };
}

/* ---- golden files ---- */

static void check_golden(const char *name, const char *text)
{
	static char expected[200000];
	char path[200];
	FILE *file;

	snprintf(path, sizeof(path), "tests/golden/%s", name);
	file = fopen(path, getenv("UPDATE") ? "w" : "r");
	CHECK(file, "%s opens; the test runs in boot/", path);
	if (!file)
		return;
	if (getenv("UPDATE")) {
		fputs(text, file);
	} else {
		expected[fread(expected, 1, sizeof(expected) - 1, file)] = 0;
		CHECK(!strcmp(expected, text), "%s differs (UPDATE=1 rewrites it); now it is:\n%s", path, text);
	}
	fclose(file);
}

static void lines(void)
{
	struct report report = whole_run();

	plug_in(UART_GOOD, true);
	report_header(&report);
	for (unsigned i = 0; i < n_results; i++) {
		const struct result *r = &results[i];

		if (!i || r->condition != r[-1].condition)
			report_condition(&plan, r->condition, &conditions[r->condition]);
		report_begin(&plan, r->condition, r->operation, i);
		report_result(&plan, r);
	}
	report_warning("the TSC jumped %d times", 0);
	report_end(&run_end);
	CHECK(!strcmp(ports.sent, ports.logged), "the same on both");
	CHECK(ports.sent[0] == '\n', "a line of its own, whatever came before");
	check_golden("lines.jsonl", ports.sent + 1);
}

static unsigned longest_row(const char *text)
{
	unsigned longest = 0;

	for (; *text; text++) {
		unsigned length = strcspn(text, "\n");

		longest = length > longest ? length : longest;
		text += length;
	}
	return longest;
}

static unsigned count_of(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)); text++)
		n++;
	return n;
}

static void set_screen(unsigned columns, unsigned rows, unsigned width, unsigned height)
{
	memset(&shown, 0, sizeof(shown));
	shown.columns = columns;
	shown.rows = rows;
	shown.width = width;
	shown.height = height;
}

static void errors(void)
{
	struct plan_error error;

	plug_in(UART_GOOD, false);
	set_screen(80, 24, 0, 0);
	CHECK(!plan_parse("plan=\"\x01\xe9", MODES, &plan, &error), "nonsense");
	report_plan_error(&error);
	check_text(ports.sent, "{\"error\":\"unknown plan '\\\"\\u0001\\u00e9'\",\"choices\":[\"short\",\"original\",\"full\","
			       "\"instructions\",\"exits\",\"interrupts\",\"memory\",\"io\"]}\n");
	check_text(shown.text, "short original full instructions exits interrupts memory io \n\nunknown plan '\"\x01\xe9'\n"
			       "What it could be stands above.\n");
	screen_clear();
	plan_parse("cond=never", MODES, &plan, &error);
	report_plan_error(&error);
	CHECK(longest_row(shown.text) <= shown.columns && count_of(shown.text, "\n") == 4, "%s", shown.text);
	CHECK(strstr(shown.text, "[.cold]"), "%s", shown.text);
	plug_in(UART_GOOD, false);
	report_error("no memory");
	check_text(ports.sent, "{\"error\":\"no memory\"}\n");
}

/* Text of QR's alphabet, cut at every place, comes together again. */
static void codes(void)
{
	static char all[20000], again[20000], text[1500], codes[20000];
	struct report report = whole_run();
	char *to = all;

	for (unsigned payload = 7; payload <= 1200; payload += 57) {
		unsigned count = compact_codes(&report, payload);

		to = payload == 7 ? all : again;
		for (unsigned i = 1; i <= count; i++) {
			char frame[COMPACT_FRAME];
			size_t length, start = sprintf(frame, "VMB1:%u/%u:", i, count);

			compact_code(&report, payload, i, text);
			length = strlen(text);
			CHECK(!strncmp(text, frame, start) && text[length - 9] == ':', "%s", text);
			CHECK(length <= payload + COMPACT_FRAME, "%zu characters", length);
			CHECK(strtoul(text + length - 8, NULL, 16) == crc32(0, text, length - 9), "check sum of %s", text);
			CHECK(strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:") == length, "alphabet of %s", text);
			to += sprintf(to, "%.*s", (int)(length - 9 - start), text + start);
		}
		CHECK(payload == 7 || !strcmp(all, again), "cut to %u", payload);
	}
	to = codes;
	for (unsigned i = 1; i <= compact_codes(&report, 170); i++) {
		compact_code(&report, 170, i, text);
		to += sprintf(to, "%s\n", text);
	}
	check_golden("qr.txt", codes);
	CHECK(compact_hash("add") != compact_hash("adc"), "hashes");
}

/* ---- pages ---- */

static void pages(void)
{
	static const unsigned columns[] = { 80, 100, 128, 160, 240 };
	struct report report = whole_run();
	unsigned seen = 0;

	set_screen(128, 47, 0, 0);
	table_print_page(&report, 0);
	check_golden("table-wide.txt", shown.text);
	set_screen(80, 24, 0, 0);
	CHECK(table_pages(&report) == 1, "%u pages", table_pages(&report));
	table_print_page(&report, 0);
	CHECK(longest_row(shown.text) <= 80 && count_of(shown.text, "\n") <= 24, "fits");
	check_golden("table.txt", shown.text);

	/* Many results: each is on one page, under its condition's name. */
	for (unsigned i = 0; i < 500; i++)
		with_batch(add_result(i / 200 % 2, ADD, STATUS_OK, NULL), 100, 123456, 123456);
	report = whole_run();
	for (unsigned i = 0; i < N_OF(columns); i++) {
		set_screen(columns[i], i ? 66 : 24, 0, 0);
		seen = 0;
		for (unsigned page = 0; page < table_pages(&report); page++) {
			table_print_page(&report, page);
			CHECK(longest_row(shown.text) <= shown.columns && count_of(shown.text, "\n") <= shown.rows, "page %u fits", page);
			seen += count_of(shown.text, " 123.4 ");
		}
		CHECK(seen == 500, "%u of 500 results on %u pages", seen, table_pages(&report));
	}
}

static void show_until_off(const struct report *report)
{
	if (!setjmp(off)) {
		report_show(report);
		CHECK(false, "it comes back without powering off");
	}
}

static void show(void)
{
	static const unsigned sizes[][2] = { { 640, 480 }, { 800, 600 }, { 1024, 768 }, { 1920, 1080 }, { 0, 0 } };
	struct report report = whole_run();

	plan.end = END_POWEROFF;
	for (unsigned i = 0; i < N_OF(sizes); i++) {
		bool graphics = sizes[i][0];

		plug_in(UART_MISSING, false);
		set_screen(graphics ? sizes[i][0] / 8 : 80, graphics ? sizes[i][1] / 16 - 1 : 24, sizes[i][0], sizes[i][1]);
		show_until_off(&report);
		CHECK(shown.codes == compact_codes(&report, grid_of_screen().payload), "%u codes", shown.codes);
		CHECK(shown.codes > 2, "%u codes", shown.codes);
	}
	plug_in(UART_GOOD, false);
	shown.codes = 0;
	show_until_off(&report);
	CHECK(!shown.codes, "there is a serial line");
	plan.qr = QR_ON;
	show_until_off(&report);
	CHECK(shown.codes, "wanted all the same");
}

static void numbers_for_people(void)
{
	static const struct {
		uint64_t thousandths;
		const char *exact, *brief;
	} cases[] = {
		{ 0, "0.0", "0.000" }, { 802, "0.802", "0.802" }, { 41000, "41.0", "41.00" }, { 1856500, "1856.5", "1856.5" },
		{ 123456789, "123456.789", "123456" }, { 34000000000000, "34000000000.0", "34.000e9" },
	};

	for (unsigned i = 0; i < N_OF(cases); i++) {
		char text[TICKS_TEXT_SIZE];

		exact_text(cases[i].thousandths, text);
		check_text(text, cases[i].exact);
		short_text(cases[i].thousandths, text);
		check_text(text, cases[i].brief);
	}
	CHECK(ns_of(2000123) == 1000000, "%llu", (wide)ns_of(2000123));
	CHECK(ns_of(34000000000000) / 1000000000 == 16998, "%llu", (wide)ns_of(34000000000000));
}

/* A UART that answers and never sends: the run goes on, and soon without it. */
static void dead_lines(void)
{
	plug_in(UART_MISSING, false);
	CHECK(!lines_have_serial() && !lines_have_debugcon(), "nothing is there");
	line_add("%s", "text");
	line_end();

	plug_in(UART_DEAD, true);
	CHECK(lines_have_serial(), "it looks like one");
	for (unsigned i = 0; i < 1000; i++) {
		line_add("%u ", i);
		line_add_string("\\\"");
		line_end();
	}
	CHECK(!lines_have_serial() && ports.n_sent == 0, "given up");
	CHECK(ports.tsc < 2000000ull * TICKS_PER_US, "after %llu ticks", (unsigned long long)ports.tsc);
	CHECK(count_of(ports.logged, "\n") == 1000, "debugcon has all lines");
}

enum { N_LATE = 30 };

static void some_lines(enum uart kind)
{
	plug_in(kind, true);
	for (unsigned i = 0; i < N_LATE; i++) {
		line_add("%u: what is longer than one burst", i);
		line_end();
	}
	CHECK(lines_have_serial() && !strcmp(ports.sent, ports.logged), "all of it was sent");
}

static void late_lines(void)
{
	some_lines(UART_SLOW);
	some_lines(UART_FULL);
	CHECK(ports.tsc < 1100000ull * TICKS_PER_US, "after %llu ticks", (unsigned long long)ports.tsc);
}

/* Where reading the clock is an exception, reads are counted. */
static void lines_without_a_clock(void)
{
	the_cpu.has_lfence = false;
	plug_in(UART_DEAD, false);
	line_add("{}");
	line_end();
	CHECK(!lines_have_serial() && ports.reads <= TIMEOUTS_TO_GIVE_UP * PATIENCE_READS + 100, "%u reads", ports.reads);
	the_cpu.has_lfence = true;
}

/* Xen's debug port can only be written. */
static void lines_in_xen(void)
{
	struct cpu before = the_cpu;

	strcpy(the_cpu.hypervisor, "XenVMMXenVMM");
	plug_in(UART_MISSING, false);
	line_add("{}");
	line_end();
	CHECK(lines_have_debugcon() && !strcmp(ports.logged, "{}\n"), "logged: %s", ports.logged);
	the_cpu = before;
	plug_in(UART_MISSING, false);
	CHECK(!lines_have_debugcon(), "no debugcon elsewhere");
}

int main(void)
{
	set_screen(80, 24, 0, 0);
	numbers_for_people();
	dead_lines();
	late_lines();
	lines_without_a_clock();
	lines_in_xen();
	make_run();
	lines();
	codes();
	pages();
	show();
	errors();
	return done("report");
}
