/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the TSC ticks, found out by timers of known frequency. All are used that this machine has; one that another
 * agrees with is believed.
 *
 * A calibration is a row of windows. At each of their edges the timer is read between two reads of the TSC, several
 * times over, and the closest pair counts: an interrupted or stolen moment makes that pair wide, so it is not taken.
 *
 *     edge                 window 1                 edge            window 2            edge
 *   tsc timer tsc  ------- about 20 ms -------  tsc timer tsc  ---------------------  tsc timer tsc
 */
#include "clock.h"
#include "acpi.h"
#include "measure.h"

struct clock the_clock;

enum { WINDOWS = 5, WINDOW_MS = 20, TRIES = 8, ROWS = 3 };
enum { READS_TO_SEE_IT_COUNT = 1000, AGREE_PPM = 1000, STEADY_PPM = 500 };
/* Taken for the TSC's frequency where none could be found, so that waits rather last too long. */
#define FAST_TSC_HZ 6000000000ull

/* One reading of a timer, with the TSC before and after it. */
struct reading {
	uint64_t before, after;
	uint32_t count;
};

struct timer {
	const char *name;
	uint32_t (*start)(uint32_t *mask); /* gives its frequency, or 0 where there is none, and the bits that count */
	void (*read)(struct reading *reading);
	void (*stop)(void);
};

struct calibration {
	uint64_t tsc_hz; /* 0: none */
	uint32_t spread_ppm;
};

/* ---- PIT channel 2: its gate is in software's hands, and nothing else uses it ---- */

enum { PIT_CHANNEL_2 = 0x42, PIT_CONTROL = 0x43, SYSTEM_CONTROL = 0x61 };
enum { GATE_2 = 1 << 0, SPEAKER = 1 << 1 };
enum { CHANNEL_2_MODE_2 = 0xb4, LATCH_CHANNEL_2 = 0x80 };

static uint8_t system_control;

static uint32_t pit_start(uint32_t *mask)
{
	system_control = in8(SYSTEM_CONTROL);
	out8(SYSTEM_CONTROL, (system_control & ~SPEAKER) | GATE_2);
	out8(PIT_CONTROL, CHANNEL_2_MODE_2);
	out8(PIT_CHANNEL_2, 0); /* 65536 */
	out8(PIT_CHANNEL_2, 0);
	*mask = 0xffff;
	return PIT_HZ;
}

static void pit_read(struct reading *reading)
{
	uint16_t count;

	reading->before = tsc_begin();
	out8(PIT_CONTROL, LATCH_CHANNEL_2);
	reading->after = tsc_end();
	count = in8(PIT_CHANNEL_2);
	count |= in8(PIT_CHANNEL_2) << 8;
	reading->count = -count; /* it counts down */
}

static void pit_stop(void)
{
	out8(SYSTEM_CONTROL, system_control & ~(SPEAKER | GATE_2));
}

/* ---- ACPI PM timer ---- */

static uint32_t pm_timer_start(uint32_t *mask)
{
	enum { PM_TIMER_HZ = 3579545 };

	*mask = the_acpi.pm_timer_mask;
	return the_acpi.pm_timer_port ? PM_TIMER_HZ : 0;
}

static void pm_timer_read(struct reading *reading)
{
	reading->before = tsc_begin();
	reading->count = in32(the_acpi.pm_timer_port);
	reading->after = tsc_end();
}

/* ---- HPET ---- */

enum { HPET_PERIOD = 0x04, HPET_CONFIGURATION = 0x10, HPET_COUNTER = 0xf0 }; /* offsets of its registers */
enum { HPET_RUNS = 1 << 0, HPET_TAKES_PIT_IRQ = 1 << 1, MAX_PERIOD_FS = 100000000 };

static uint32_t hpet_configuration;

static uint32_t hpet_start(uint32_t *mask)
{
	uint32_t period_fs;

	if (!the_acpi.hpet)
		return 0;
	period_fs = mmio_read32(the_acpi.hpet + HPET_PERIOD);
	if (!period_fs || period_fs > MAX_PERIOD_FS)
		return 0;
	hpet_configuration = mmio_read32(the_acpi.hpet + HPET_CONFIGURATION) & ~HPET_TAKES_PIT_IRQ;
	mmio_write32(the_acpi.hpet + HPET_CONFIGURATION, hpet_configuration | HPET_RUNS);
	*mask = 0xffffffff;
	return 1000000000000000ull / period_fs;
}

static void hpet_counter_read(struct reading *reading)
{
	reading->before = tsc_begin();
	reading->count = mmio_read32(the_acpi.hpet + HPET_COUNTER);
	reading->after = tsc_end();
}

static void hpet_stop(void)
{
	mmio_write32(the_acpi.hpet + HPET_CONFIGURATION, hpet_configuration);
}

/* ---- calibration ---- */

static const struct timer timers[] = {
	{ "pit", pit_start, pit_read, pit_stop },
	{ "pm-timer", pm_timer_start, pm_timer_read, NULL },
	{ "hpet", hpet_start, hpet_counter_read, hpet_stop },
};

static uint32_t deviation_ppm(uint64_t a, uint64_t b)
{
	uint64_t low = a < b ? a : b, high = a < b ? b : a;

	if (!low || high / low >= 4)
		return UINT32_MAX;
	return (high - low) * 1000000 / low;
}

static bool counts(const struct timer *timer, uint32_t mask)
{
	struct reading first, now;

	timer->read(&first);
	for (unsigned i = 0; i < READS_TO_SEE_IT_COUNT; i++) {
		timer->read(&now);
		if ((now.count ^ first.count) & mask)
			return true;
	}
	return false;
}

static void read_closely(const struct timer *timer, struct reading *best)
{
	struct reading reading;

	timer->read(best);
	for (unsigned i = 1; i < TRIES; i++) {
		timer->read(&reading);
		if (reading.after - reading.before < best->after - best->before)
			*best = reading;
	}
}

/* A timer that stops in mid-window must not keep us waiting: it counts, or this ends. */
static void wait_for(const struct timer *timer, uint32_t from, uint32_t mask, uint32_t counts_to_wait)
{
	struct reading now;
	uint32_t last = from;
	unsigned unchanged = 0;

	do {
		timer->read(&now);
		unchanged = (now.count ^ last) & mask ? 0 : unchanged + 1;
		last = now.count;
	} while (((now.count - from) & mask) < counts_to_wait && unchanged < READS_TO_SEE_IT_COUNT);
}

static uint64_t middle(const struct reading *reading)
{
	return reading->before + (reading->after - reading->before) / 2;
}

static uint64_t median_of(uint64_t *values, unsigned n)
{
	for (unsigned i = 1; i < n; i++)
		for (unsigned j = i; j > 0 && values[j] < values[j - 1]; j--) {
			uint64_t swapped = values[j];

			values[j] = values[j - 1];
			values[j - 1] = swapped;
		}
	return values[n / 2];
}

/* The whole row is one long window if its parts agree. Otherwise something came between (a timer may even have wrapped
 * around meanwhile), and the median of the windows is believed. */
static struct calibration run_windows(const struct timer *timer, uint32_t hz, uint32_t mask)
{
	struct calibration result = { 0 };
	struct reading edge, next;
	uint64_t window_hz[WINDOWS], ticks = 0, count = 0, median;

	read_closely(timer, &edge);
	for (unsigned i = 0; i < WINDOWS; i++, edge = next) {
		uint32_t counted;
		uint64_t passed;

		wait_for(timer, edge.count, mask, hz / 1000 * WINDOW_MS);
		read_closely(timer, &next);
		counted = (next.count - edge.count) & mask;
		passed = middle(&next) - middle(&edge);
		if (!counted)
			return result;
		window_hz[i] = passed * hz / counted;
		ticks += passed;
		count += counted;
	}
	median = median_of(window_hz, WINDOWS);
	result.spread_ppm = deviation_ppm(window_hz[0], window_hz[WINDOWS - 1]);
	result.tsc_hz = result.spread_ppm <= STEADY_PPM ? ticks * hz / count : median;
	return result;
}

/* Another row, if something came between in the one before; the steadiest counts. */
static struct calibration run_rows(const struct timer *timer, uint32_t hz, uint32_t mask)
{
	struct calibration best = run_windows(timer, hz, mask);

	for (unsigned i = 1; i < ROWS && best.spread_ppm > STEADY_PPM; i++) {
		struct calibration another = run_windows(timer, hz, mask);

		if (another.tsc_hz && another.spread_ppm < best.spread_ppm)
			best = another;
	}
	return best;
}

static struct calibration calibrate_by(const struct timer *timer)
{
	struct calibration result = { 0 };
	uint32_t mask, hz = timer->start(&mask);

	if (!hz)
		return result;
	if (counts(timer, mask))
		result = run_rows(timer, hz, mask);
	if (timer->stop)
		timer->stop();
	return result;
}

/* That which most agree with; among equals a steady one; among those the first. */
void clock_calibrate(void)
{
	struct calibration by[N_OF(timers)];
	unsigned most_trust = 0;

	the_clock = (struct clock){ 0 };
	for (unsigned i = 0; i < N_OF(timers); i++)
		by[i] = calibrate_by(&timers[i]);
	for (unsigned i = 0; i < N_OF(timers); i++) {
		unsigned trust = by[i].tsc_hz && by[i].spread_ppm <= STEADY_PPM;

		for (unsigned j = 0; j < N_OF(timers); j++)
			if (by[j].tsc_hz && deviation_ppm(by[i].tsc_hz, by[j].tsc_hz) <= AGREE_PPM)
				trust += 2;
		if (trust <= most_trust)
			continue;
		most_trust = trust;
		the_clock = (struct clock){ by[i].tsc_hz, timers[i].name, by[i].spread_ppm };
	}
}

int32_t clock_drift_ppm(void)
{
	for (unsigned i = 0; i < N_OF(timers); i++) {
		uint64_t now;
		uint32_t ppm;

		if (!the_clock.tsc_hz || !equal(timers[i].name, the_clock.calibrated_by))
			continue;
		now = calibrate_by(&timers[i]).tsc_hz;
		ppm = deviation_ppm(now, the_clock.tsc_hz);
		if (ppm > INT32_MAX)
			ppm = INT32_MAX;
		return now < the_clock.tsc_hz ? -(int32_t)ppm : (int32_t)ppm;
	}
	return 0;
}

/* ---- waiting ---- */

uint64_t ticks_of_us(uint32_t us)
{
	return us * (the_clock.tsc_hz ? the_clock.tsc_hz : FAST_TSC_HZ) / 1000000;
}

void delay_us(uint32_t us)
{
	uint64_t end = tsc_begin() + ticks_of_us(us);

	while (tsc_begin() < end)
		__asm__ volatile("pause");
}
