/* SPDX-License-Identifier: Apache-2.0 */
#include "output/format.c"

#include "check.h"

/* The same as the C library's. */
#define SAME(...)                                                                   \
	do {                                                                        \
		char ours[100], theirs[100];                                        \
		int length = format(ours, sizeof(ours), __VA_ARGS__);               \
		int expected = snprintf(theirs, sizeof(theirs), __VA_ARGS__);       \
		check_text(ours, theirs);                                           \
		CHECK(length == expected, "length %d, expected %d", length, expected); \
	} while (0)

static void numbers(void)
{
	SAME("%d %d %d", 0, -1, 2147483647);
	SAME("%d", -2147483647 - 1);
	SAME("%u %x %X", 4294967295u, 0xdeadbeefu, 0xdeadbeefu);
	SAME("%llu %llx %llX", 18446744073709551615ull, 0x123456789abcdefull, 0xabcull);
	SAME("%lld %lld", -9223372036854775807ll - 1, 9223372036854775807ll);
	SAME("%lu %zu", 1ul << 40, (size_t)1 << 40);
	SAME("[%5d] [%-5d] [%05d] [%05d]", 42, 42, 42, -42);
	SAME("[%08x] [%*d] [%-*d]", 0x1234u, 7, 5, 7, 5);
	SAME("[%1d] [%20llu]", 12345, 1ull << 63);
}

static void strings(void)
{
	SAME("%s, %c%c %%", "text", 'a', 'b');
	SAME("[%8s] [%-8s] [%.2s] [%-6.3s] [%.*s]", "abc", "abc", "abc", "abcdef", 4, "abcdefgh");
	SAME("%s", "");
}

static void bounds(void)
{
	char small[4] = "xxx";
	const char *volatile cut_short = "a%";

	CHECK(format(small, sizeof(small), "%s", "abcdef") == 6, "wanted length");
	check_text(small, "abc");
	CHECK(format(small, 1, "%d", 1234) == 4, "wanted length");
	check_text(small, "");
	CHECK(format(NULL, 0, "%d", 1234) == 4, "no memory at all");
	format(small, sizeof(small), cut_short);
	check_text(small, "a");
}

int main(void)
{
	numbers();
	strings();
	bounds();
	CHECK(crc32(0, "123456789", 9) == 0xcbf43926, "the check value of CRC-32");
	CHECK(crc32(crc32(0, "1234", 4), "56789", 5) == 0xcbf43926, "the same in two pieces");
	return done("format");
}
