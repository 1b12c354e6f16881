/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics.h"

enum { THOUSANDTHS = 1000 };

/* Shell's, with gaps of Knuth's: short, no recursion, fast enough for a thousand. */
static void sort(uint64_t *values, unsigned n)
{
	unsigned gap = 1;

	while (gap < n / 3)
		gap = gap * 3 + 1;
	for (; gap; gap /= 3)
		for (unsigned i = gap; i < n; i++) {
			uint64_t value = values[i];
			unsigned j = i;

			for (; j >= gap && values[j - gap] > value; j -= gap)
				values[j] = values[j - gap];
			values[j] = value;
		}
}

/* With an even number of values, the middle between the two in the middle. */
static uint64_t median_of(const uint64_t *sorted, unsigned n)
{
	return (sorted[(n - 1) / 2] + sorted[n / 2]) * THOUSANDTHS / 2;
}

/* The lowest value that at least 99 % of the values don't exceed. */
static uint64_t p99_of(const uint64_t *sorted, unsigned n)
{
	return sorted[(n * 99 + 99) / 100 - 1] * THOUSANDTHS;
}

struct spread spread_of(uint64_t *ticks, unsigned n)
{
	struct spread spread = { .n = n };

	if (!n)
		return spread;
	sort(ticks, n);
	spread.min = ticks[0] * THOUSANDTHS;
	spread.median = median_of(ticks, n);
	spread.p99 = p99_of(ticks, n);
	spread.max = ticks[n - 1] * THOUSANDTHS;
	return spread;
}

static uint64_t less(uint64_t value, uint64_t cost)
{
	return value < cost ? 0 : value - cost;
}

struct spread spread_less(struct spread spread, uint64_t cost)
{
	spread.min = less(spread.min, cost);
	spread.median = less(spread.median, cost);
	spread.p99 = less(spread.p99, cost);
	spread.max = less(spread.max, cost);
	return spread;
}

uint64_t cost_of_one(uint64_t once, uint64_t twice, uint32_t operations)
{
	return less(twice, once) / operations;
}

bool agree(uint64_t a, uint64_t b, uint64_t slack)
{
	uint64_t low = a < b ? a : b, high = a < b ? b : a;

	return high - low <= low / 10 + slack;
}

bool dearer(uint64_t a, uint64_t b, uint64_t slack)
{
	return b < a && !agree(a, b, slack);
}

bool reliable(uint64_t cost, uint64_t min, uint64_t median, unsigned n, uint64_t slack)
{
	enum { MIN_TIMES = 3 };

	return cost && n >= MIN_TIMES && agree(min, median, slack);
}

uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}
