/* SPDX-License-Identifier: Apache-2.0 */
/* What all tests have in common. They run on the developer's machine and include the files that they test. */
#ifndef BOOT_CHECK_H
#define BOOT_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned checks, failures;

#define CHECK(condition, ...)                                            \
	do {                                                             \
		checks++;                                                \
		if (!(condition)) {                                      \
			failures++;                                      \
			printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
			printf(__VA_ARGS__);                             \
			printf("\n");                                    \
		}                                                        \
	} while (0)

static inline void check_text(const char *got, const char *expected)
{
	CHECK(!strcmp(got, expected), "got '%s', expected '%s'", got, expected);
}

static inline int done(const char *what)
{
	printf("boot/tests/%s: %u checks, %u failed\n", what, checks, failures);
	return failures != 0;
}

#endif
