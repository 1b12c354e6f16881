/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit division for the 32-bit program: gcc calls these of its own library, which for -m32 is not always installed. (In the
 * 64-bit program nothing calls them.) */
#include <stdint.h>

uint64_t __udivmoddi4(uint64_t n, uint64_t divisor, uint64_t *remainder);
uint64_t __udivdi3(uint64_t n, uint64_t divisor);
uint64_t __umoddi3(uint64_t n, uint64_t divisor);
int64_t __divdi3(int64_t n, int64_t divisor);
int64_t __moddi3(int64_t n, int64_t divisor);
int64_t __divmoddi4(int64_t n, int64_t divisor, int64_t *remainder);

/* Digit by digit, a digit being 32 bits wide: the first step leaves a remainder below the divisor, so the second can't
 * overflow. */
static uint64_t divide_by_32(uint64_t n, uint32_t divisor, uint64_t *remainder)
{
	uint32_t high = n >> 32, low = n, rest;
	uint32_t high_digit = high / divisor;

	rest = high % divisor;
	__asm__("divl %2" : "+a"(low), "+d"(rest) : "r"(divisor));
	*remainder = rest;
	return (uint64_t)high_digit << 32 | low;
}

uint64_t __udivmoddi4(uint64_t n, uint64_t divisor, uint64_t *remainder)
{
	uint64_t quotient = 0;
	unsigned shift = 0;

	if (!(divisor >> 32)) {
		uint64_t rest;

		quotient = divide_by_32(n, divisor, &rest);
		if (remainder)
			*remainder = rest;
		return quotient;
	}
	while (!(divisor >> 63) && divisor << 1 <= n) {
		divisor <<= 1;
		shift++;
	}
	for (unsigned i = 0; i <= shift; i++, divisor >>= 1) {
		quotient <<= 1;
		if (divisor <= n) {
			n -= divisor;
			quotient |= 1;
		}
	}
	if (remainder)
		*remainder = n;
	return quotient;
}

uint64_t __udivdi3(uint64_t n, uint64_t divisor)
{
	return __udivmoddi4(n, divisor, 0);
}

uint64_t __umoddi3(uint64_t n, uint64_t divisor)
{
	uint64_t remainder;

	__udivmoddi4(n, divisor, &remainder);
	return remainder;
}

static uint64_t magnitude(int64_t n)
{
	return n < 0 ? -(uint64_t)n : (uint64_t)n;
}

int64_t __divmoddi4(int64_t n, int64_t divisor, int64_t *remainder)
{
	uint64_t rest, quotient = __udivmoddi4(magnitude(n), magnitude(divisor), &rest);

	*remainder = n < 0 ? -rest : rest;
	return (n < 0) != (divisor < 0) ? -quotient : quotient;
}

int64_t __divdi3(int64_t n, int64_t divisor)
{
	int64_t remainder;

	return __divmoddi4(n, divisor, &remainder);
}

int64_t __moddi3(int64_t n, int64_t divisor)
{
	int64_t remainder;

	__divmoddi4(n, divisor, &remainder);
	return remainder;
}
