/* SPDX-License-Identifier: Apache-2.0 */
/* Records end at '*', fields at '+'. They are made anew for every code and only the part that belongs to it is kept:
 * that takes no memory, however many results there are. */
#include "compact.h"

#include "numbers.h"
#include "output.h"

struct writer {
	uint32_t position, from, to; /* characters of these positions are kept */
	uint32_t crc;                /* of all characters so far */
	char *out;
};

/* ---- characters and fields ---- */

static void emit(struct writer *w, char c)
{
	if (w->from <= w->position && w->position < w->to)
		*w->out++ = c;
	w->position++;
	w->crc = crc32(w->crc, &c, 1);
}

static char digit(unsigned value)
{
	return value < 10 ? '0' + value : 'A' + value - 10;
}

static void put_base36(struct writer *w, uint64_t n, unsigned digits)
{
	char text[13];
	unsigned length = 0;

	for (; n || length < digits; n /= 36)
		text[length++] = digit(n % 36);
	while (length)
		emit(w, text[--length]);
}

static void number(struct writer *w, uint64_t n)
{
	emit(w, '+');
	put_base36(w, n, 1);
}

static void nothing(struct writer *w)
{
	emit(w, '+');
}

/* Whole ticks as they are; otherwise thousandths, and a point behind them. */
static void ticks(struct writer *w, int64_t thousandths)
{
	uint64_t n = thousandths < 0 ? 0 - (uint64_t)thousandths : (uint64_t)thousandths;
	bool whole = n % 1000 == 0;

	emit(w, '+');
	if (thousandths < 0)
		emit(w, '-');
	put_base36(w, whole ? n / 1000 : n, 1);
	if (!whole)
		emit(w, '.');
}

/* Most letters are small ones: they stand for themselves, '$' makes the next one a capital, '-' is a space. */
static void string(struct writer *w, const char *text)
{
	emit(w, '+');
	for (; text && *text; text++) {
		uint8_t c = *text;

		if (('0' <= c && c <= '9') || c == '.') {
			emit(w, c);
		} else if ('a' <= c && c <= 'z') {
			emit(w, c - 'a' + 'A');
		} else if ('A' <= c && c <= 'Z') {
			emit(w, '$');
			emit(w, c);
		} else if (c == ' ') {
			emit(w, '-');
		} else {
			emit(w, '%');
			emit(w, digit(c >> 4));
			emit(w, digit(c & 15));
		}
	}
}

/* ---- records ---- */

static void header(struct writer *w, const struct report *report)
{
	emit(w, 'H');
	string(w, BOOT_VERSION);
	string(w, the_cpu.vendor);
	string(w, the_cpu.brand);
	number(w, the_cpu.family);
	number(w, the_cpu.model);
	number(w, the_cpu.stepping);
	string(w, hypervisor_name());
	if (the_clock.tsc_hz)
		number(w, the_clock.tsc_hz);
	else
		nothing(w);
	number(w, the_cpu.invariant_tsc);
	string(w, the_clock.calibrated_by);
	number(w, the_clock.spread_ppm);
	number(w, the_memory.bytes);
	number(w, report->facts->cpus);
	number(w, report->facts->apic);
	string(w, report->facts->watchdog ? "nmi" : NULL);
	string(w, loader_name(report->facts->loader));
	string(w, firmware_name(report->facts->firmware));
	string(w, report->plan->name);
	string(w, report->command_line);
	number(w, plan_count(report->plan));
	emit(w, '*');
}

static unsigned packed(const struct condition *c)
{
	return c->mode | c->ring << 2 | (c->page_size == PAGE_LARGE) << 4 | (c->cache == CACHE_OFF) << 5 |
	       (c->tlb == TLB_COLD) << 6;
}

static void condition(struct writer *w, const struct condition *condition, const struct condition_report *found)
{
	emit(w, 'C');
	number(w, packed(condition));
	number(w, found->effective);
	string(w, found->effective ? NULL : found->reason ? found->reason : "unknown");
	number(w, found->cr0);
	number(w, found->cr4);
	number(w, found->ring);
	ticks(w, 10ll * found->chase_ticks_x100);
	ticks(w, found->empty_ticks_x1000);
	emit(w, '*');
}

static void single(struct writer *w, const struct spread *s)
{
	if (!s->n) {
		nothing(w);
		return;
	}
	number(w, s->n);
	ticks(w, s->min);
	ticks(w, s->median - s->min);
	ticks(w, s->p99 - s->median);
	ticks(w, s->max - s->p99);
}

static void batch(struct writer *w, const struct result *r)
{
	if (!r->batch_of) {
		nothing(w);
		return;
	}
	number(w, r->batch_of);
	ticks(w, r->batch);
	ticks(w, r->batch_median - r->batch);
}

uint32_t compact_hash(const char *name)
{
	uint32_t hash = 0x811c9dc5;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 0x01000193;
	return (hash >> 24 ^ hash) & 0xffffff;
}

static void kind(struct writer *w, char letter, const struct result *r)
{
	enum { HASH_DIGITS = 5 };

	emit(w, letter);
	put_base36(w, compact_hash(operations[r->operation].name), HASH_DIGITS);
}

/* The condition's reason, which is the usual one, need not be said again. */
static void why_ineffective(struct writer *w, const struct result *r, const struct condition_report *found)
{
	if (r->reason && (!found->reason || !equal(r->reason, found->reason)))
		string(w, r->reason);
	else
		nothing(w);
}

static void result(struct writer *w, const struct result *r, const struct condition_report *found)
{
	switch (r->status) {
	case STATUS_FAULT:
		kind(w, 'F', r);
		number(w, r->vector);
		break;
	case STATUS_TIMEOUT:
		kind(w, 'T', r);
		number(w, measure_timeout_ms(&operations[r->operation]));
		break;
	case STATUS_MISSING:
		kind(w, 'M', r);
		string(w, r->reason ? r->reason : "unknown");
		break;
	case STATUS_INEFFECTIVE:
		kind(w, r->reliable ? 'I' : 'J', r);
		single(w, &r->single);
		batch(w, r);
		number(w, operations[r->operation].bytes);
		why_ineffective(w, r, found);
		break;
	default:
		kind(w, r->reliable ? 'O' : 'U', r);
		single(w, &r->single);
		batch(w, r);
		if (operations[r->operation].bytes)
			number(w, operations[r->operation].bytes);
	}
	emit(w, '*');
}

static void end(struct writer *w, const struct run_end *end)
{
	emit(w, 'E');
	number(w, end->results);
	emit(w, '+');
	if (end->tsc_drift_ppm < 0)
		emit(w, '-');
	put_base36(w, end->tsc_drift_ppm < 0 ? -(int64_t)end->tsc_drift_ppm : end->tsc_drift_ppm, 1);
	number(w, end->backward_jumps);
	emit(w, '*');
}

static void check_sum(struct writer *w)
{
	uint32_t crc = w->crc;

	emit(w, 'X');
	emit(w, '+');
	for (int shift = 28; shift >= 0; shift -= 4)
		emit(w, digit(crc >> shift & 15));
}

static void write_all(struct writer *w, const struct report *report)
{
	header(w, report);
	for (unsigned i = 0; i < report->n_results; i++) {
		const struct result *r = &report->results[i];

		if (!i || r->condition != r[-1].condition)
			condition(w, &report->plan->conditions[r->condition], &report->conditions[r->condition]);
		result(w, r, &report->conditions[r->condition]);
	}
	end(w, report->end);
	check_sum(w);
}

/* ---- codes ---- */

unsigned compact_codes(const struct report *report, unsigned payload)
{
	struct writer counting = { 0 };

	write_all(&counting, report);
	return (counting.position + payload - 1) / payload;
}

void compact_code(const struct report *report, unsigned payload, unsigned i, char *to)
{
	struct writer w = { .from = (i - 1) * payload, .to = i * payload };
	int length = format(to, COMPACT_FRAME, "VMB1:%u/%u:", i, compact_codes(report, payload));

	w.out = to + length;
	write_all(&w, report);
	length = w.out - to;
	format(w.out, 10, ":%08X", (unsigned)crc32(0, to, length));
}
