/* SPDX-License-Identifier: Apache-2.0 */
/* Figures from times. Pure. Times go in as ticks and come out in thousandths of ticks. */
#ifndef BOOT_STATISTICS_H
#define BOOT_STATISTICS_H

#include "measure.h"

/* Minimum, median, 99th percentile, maximum. Sorts the times. */
struct spread spread_of(uint64_t *ticks, unsigned n);
/* The same with a cost taken off that every time contains; never below 0. */
struct spread spread_less(struct spread spread, uint64_t cost);

/* Of one of `operations`, of which there were twice as many in `twice` as in `once`: (T(2N) - T(N)) / N. What both
 * times have in common cancels out. 0: the longer one did not take longer. */
uint64_t cost_of_one(uint64_t once, uint64_t twice, uint32_t operations);

/* Whether two figures for one thing differ by at most 10 % of the lower and some slack. */
bool agree(uint64_t a, uint64_t b, uint64_t slack);

/* Whether the first is more, and they don't agree. */
bool dearer(uint64_t a, uint64_t b, uint64_t slack);

/* Whether a cost can be trusted that comes from n times, or pairs of times: one or two can't be ordered to be good, minimum
 * and median have to agree, and nothing costs nothing. */
bool reliable(uint64_t cost, uint64_t min, uint64_t median, unsigned n, uint64_t slack);

uint64_t greatest_common_divisor(uint64_t a, uint64_t b);

#endif
