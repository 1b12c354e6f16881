/* SPDX-License-Identifier: Apache-2.0 */
/* Figures from times. */
#include "bench/statistics.c"

#include <stdio.h>

static int n_failed;

static void check(const char *what, uint64_t found, uint64_t expected)
{
	if (found == expected)
		return;
	printf("statistics: %s is %llu, not %llu\n", what, (unsigned long long)found, (unsigned long long)expected);
	n_failed++;
}

static void check_spread(const char *what, struct spread s, uint64_t min, uint64_t median, uint64_t p99, uint64_t max)
{
	int n_failed_before = n_failed;

	check("min", s.min, min);
	check("median", s.median, median);
	check("p99", s.p99, p99);
	check("max", s.max, max);
	if (n_failed != n_failed_before)
		printf("statistics: ... in the case '%s'\n", what);
}

static void one_to_a_hundred(uint64_t *ticks)
{
	for (unsigned i = 0; i < 100; i++)
		ticks[i] = (i * 37) % 100 + 1;
}

int main(void)
{
	const uint64_t huge = 1ull << 40;
	uint64_t one[] = { 7 }, two[] = { 9, 4 }, three[] = { huge, 5, 6 }, same[] = { 3, 3, 3, 3 }, many[100];
	struct spread costs;

	check("n of none", spread_of(one, 0).n, 0);
	check_spread("one value", spread_of(one, 1), 7000, 7000, 7000, 7000);
	check_spread("two: the median lies between", spread_of(two, 2), 4000, 6500, 9000, 9000);
	check_spread("an outlier stays the maximum", spread_of(three, 3), 5000, 6000, huge * 1000, huge * 1000);
	check_spread("all the same", spread_of(same, 4), 3000, 3000, 3000, 3000);

	one_to_a_hundred(many);
	costs = spread_of(many, 100);
	check_spread("1..100, mixed", costs, 1000, 50500, 99000, 100000);
	check("n", costs.n, 100);
	for (unsigned i = 0; i < 100; i++)
		check("sorted", many[i], i + 1);
	check_spread("less a cost, not below 0", spread_less(costs, 2000), 0, 48500, 97000, 98000);

	check("(T(2N) - T(N)) / N", cost_of_one(140000, 220000, 100), 800);
	check("a time that went back", cost_of_one(220000, 140000, 100), 0);

	check("10 % apart", agree(1000, 1100, 0), true);
	check("more than 10 % apart", agree(1000, 1101, 0), false);
	check("more, the other way round", agree(1101, 1000, 0), false);
	check("but within the slack", agree(0, 2000, 2000), true);

	check("a batch of CPUID on a busy machine", dearer(969021000, 99632000, 2000), true);
	check("which is cheaper than by itself", dearer(800, 21000, 2000), false);
	check("or as dear", dearer(1050, 1000, 0), false);

	check("a steady cost is reliable", reliable(1000, 1000, 1050, 3, 0), true);
	check("one of two times is not", reliable(1000, 1000, 1050, 2, 0), false);
	check("one with a large spread is not", reliable(1000, 1000, 2000, 200, 0), false);
	check("nothing costs nothing: batches", reliable(0, 0, 0, 200, 2000), false);
	check("nothing costs nothing: as much as an empty shot", reliable(0, 41000, 41000, 200, 2000), false);

	check("gcd(36, 48)", greatest_common_divisor(36, 48), 12);
	check("gcd(0, 5)", greatest_common_divisor(0, 5), 5);
	check("gcd(7, 0)", greatest_common_divisor(7, 0), 7);
	return n_failed != 0;
}
