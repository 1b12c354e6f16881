/* SPDX-License-Identifier: Apache-2.0 */
/* The 32-bit program's division against this machine's own. */
#include "machine/divide.c"

#include <assert.h>
#include <stdio.h>

static void check(uint64_t n, uint64_t divisor)
{
	uint64_t remainder;

	assert(__udivmoddi4(n, divisor, &remainder) == n / divisor);
	assert(remainder == n % divisor);
	assert(__udivdi3(n, divisor) == n / divisor);
	assert(__umoddi3(n, divisor) == n % divisor);
	if (n == (uint64_t)INT64_MIN && divisor == UINT64_MAX)
		return; /* has no answer */
	assert(__divdi3(n, divisor) == (int64_t)n / (int64_t)divisor);
	assert(__moddi3(n, divisor) == (int64_t)n % (int64_t)divisor);
}

int main(void)
{
	static const uint64_t edges[] = { 1, 2, 3, 10, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x100000001,
					  0x7fffffffffffffff, 0x8000000000000000, 0xfffffffffffffffe, UINT64_MAX };
	uint64_t random = 88172645463325252;

	check(0, 1);
	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
		for (unsigned j = 0; j < sizeof(edges) / sizeof(edges[0]); j++)
			check(edges[i], edges[j]);
	for (unsigned i = 0; i < 100000; i++) {
		uint64_t n;

		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		n = random;
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		check(n, (random >> (i % 64)) | 1);
	}
	puts("divide: as this machine divides");
}
