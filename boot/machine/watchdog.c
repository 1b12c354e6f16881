/* SPDX-License-Identifier: Apache-2.0 */
/* Three ways to an NMI, the first that works is taken:
 *
 *   PIT channel 0 --> I/O APIC pin, delivered as NMI
 *   PIT channel 0 --> 8259 --> the local APIC's LINT0, delivered as NMI (unless devices use the 8259s)
 *   the second CPU, which counts TSC ticks and sends one
 *
 * The PIT counts 55 ms at most. Longer times are cut into pieces, each but the last of which ends in an NMI that lets
 * the call go on.
 */
#include "watchdog.h"
#include "acpi.h"
#include "clock.h"
#include "guard.h"
#include "interrupts.h"
#include "measure.h"
#include "smp.h"

struct way {
	const char *name;
	bool (*possible)(void);
	void (*start)(uint32_t pit_ticks);
	void (*stop)(void);
	bool (*over)(void); /* whether what start() said has passed */
	uint32_t longest;   /* ticks of the PIT that start() can wait for */
};

/* ---- PIT channel 0 in mode 0: its output rises when the count is over ---- */

enum { PIT_CHANNEL_0 = 0x40, PIT_CONTROL = 0x43 };
enum { CHANNEL_0_MODE_0 = 0x30, READ_STATUS_0 = 0xe2, STATUS_OUTPUT = 0x80 };
enum { PIT_LONGEST = 60000, SHORTEST = 100 };

static void pit_start(uint32_t ticks)
{
	out8(PIT_CONTROL, CHANNEL_0_MODE_0);
	out8(PIT_CHANNEL_0, ticks);
	out8(PIT_CHANNEL_0, ticks >> 8);
}

static bool pit_over(void)
{
	out8(PIT_CONTROL, READ_STATUS_0);
	return in8(PIT_CHANNEL_0) & STATUS_OUTPUT;
}

/* A count from before must not come to its end once NMIs are let through. */
static void pit_forget(void)
{
	pit_start(PIT_LONGEST);
}

static void pin_start(uint32_t ticks)
{
	pit_forget();
	io_apic_open(the_acpi.io_apic_timer_pin, DELIVER_NMI);
	pit_start(ticks);
}

static void pin_stop(void)
{
	io_apic_close(the_acpi.io_apic_timer_pin);
}

/* The 8259 must forget the last time, or its output stays as it is and does not rise again: a poll command takes the
 * interrupt from it as the CPU would. */
enum { PIC_COMMAND = 0x20, PIC_MASK = 0x21 };
enum { PIC_POLL = 0x0c, PIC_POLLED = 0x80, PIC_ONLY_TIMER = 0xfe, PIC_NOTHING = 0xff };

static void pic_forget(void)
{
	out8(PIC_COMMAND, PIC_POLL);
	if (in8(PIC_COMMAND) & PIC_POLLED)
		pic_eoi(0);
}

static void lint0_start(uint32_t ticks)
{
	if (pic_is_open())
		return;
	pit_forget();
	out8(PIC_MASK, PIC_ONLY_TIMER);
	pic_forget();
	apic_write(APIC_LVT_LINT0, DELIVER_NMI);
	pit_start(ticks);
}

static void lint0_stop(void)
{
	if (pic_is_open())
		return;
	apic_write(APIC_LVT_LINT0, DELIVER_EXTERNAL | LVT_MASKED);
	out8(PIC_MASK, PIC_NOTHING);
}

/* ---- the second CPU ---- */

static void second_start(uint32_t pit_ticks)
{
	smp_watch(ticks_of_us((uint64_t)pit_ticks * 1000000 / PIT_HZ));
}

/* ---- the watchdog ---- */

static const struct way ways[] = {
	{ "pit-io-apic", io_apic_present, pin_start, pin_stop, pit_over, PIT_LONGEST },
	{ "pit-lint0", apic_present, lint0_start, lint0_stop, pit_over, PIT_LONGEST },
	{ "second-cpu", smp_second_runs, second_start, smp_watch_stop, smp_watch_over, UINT32_MAX },
};

static const struct way *way;
static volatile bool armed;
static uint32_t left, running; /* ticks of the PIT: after this piece, and in it */
static volatile uint32_t n_early;

bool watchdog_works(void)
{
	return way;
}

const char *watchdog_way(void)
{
	return way ? way->name : NULL;
}

uint32_t watchdog_early(void)
{
	return n_early;
}

static void start_piece(void)
{
	running = left < way->longest ? left : way->longest;
	if (running < SHORTEST)
		running = SHORTEST;
	left -= running < left ? running : left;
	way->start(running);
}

void watchdog_arm(unsigned timeout_ms)
{
	uint64_t ticks = (uint64_t)timeout_ms * PIT_HZ / 1000;

	if (!way)
		return;
	left = ticks < UINT32_MAX ? ticks : UINT32_MAX;
	armed = true;
	start_piece();
}

void watchdog_disarm(void)
{
	if (!way)
		return;
	armed = false;
	way->stop();
}

/* An emulated PIT may say some ticks late that its time is over: it must not be taken for an NMI that others sent. */
static bool over_soon(void)
{
	for (unsigned i = 0; i < 16; i++)
		if (way->over())
			return true;
	return false;
}

/* NMIs that others sent are none of its business. */
bool watchdog_expired(void)
{
	if (!armed || !over_soon())
		return false;
	if (left) {
		n_early++;
		start_piece();
		return false;
	}
	armed = false;
	return true;
}

/* ---- proof ---- */

enum { PROOF_MS = 5, PROOF_LONG_MS = 70 }; /* one piece; more than one */
/* The endless loop's end, if there is no other end. Busy hosts let an emulated timer wait for long. */
enum { PROOF_FAILED_US = 1500000 };

static void loop(void *unused)
{
	uint64_t end = tsc_begin() + ticks_of_us(PROOF_FAILED_US);

	(void)unused;
	while (tsc_begin() < end)
		;
}

static bool proved(const struct way *candidate)
{
	way = candidate;
	if (candidate->possible() && guarded_call(loop, NULL, 0, PROOF_MS).outcome == OUTCOME_TIMEOUT &&
	    guarded_call(loop, NULL, 0, PROOF_LONG_MS).outcome == OUTCOME_TIMEOUT)
		return true;
	way = NULL;
	return false;
}

void watchdog_init(void)
{
	way = NULL;
	for (unsigned i = 0; i < N_OF(ways); i++)
		if (proved(&ways[i]))
			return;
}
