/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are a few instructions. */
#ifndef BOOT_TEXT_OPERATION_H
#define BOOT_TEXT_OPERATION_H

#include "measure.h"

/* How often the text of an operation stands there, for the text that takes back what it did. */
#define TIMES ".Ltimes"

#ifdef __x86_64__
#define WORD_BYTES "8"
#define STACK_POINTER "%%rsp"
#else
#define WORD_BYTES "4"
#define STACK_POINTER "%%esp"
#endif

/* Takes back what was pushed by each. */
#define POP_ALL "lea " TIMES "*" WORD_BYTES "(" STACK_POINTER "), " STACK_POINTER

#define TEXT_ASM_(times, text, after, ...) \
	__asm__ volatile(".set " TIMES ", " #times "\n\t.rept " TIMES "\n\t" text "\n\t.endr\n\t" after __VA_ARGS__)
#define TEXT_ASM(...) TEXT_ASM_(__VA_ARGS__)
#define BARE(...) __VA_ARGS__

/* One entry of the table: `text` is the operation, `after` stands once behind the last of them, `operands` are those of
 * an asm statement, in parentheses; then the rest of the entry.
 *
 *	TEXT_OPERATION(cpuid, 4, "xor %%eax, %%eax; cpuid", "", (: : : "eax", "ebx", "ecx", "edx"),
 *		       .name = "cpuid", .title = "CPUID", .group = GROUP_EXIT, .modes = MODES, .rings = RINGS);
 *
 * no_reorder: the table has them in the order of the file. */
#define TEXT_OPERATION(id, times, text, after, operands, ...)                                       \
	static void id##_times(uint32_t turns)                                                      \
	{                                                                                           \
		for (; turns; turns--)                                                              \
			TEXT_ASM(times, text, after, BARE operands);                                \
	}                                                                                           \
	static void id##_once(uint32_t turns)                                                       \
	{                                                                                           \
		(void)turns;                                                                        \
		TEXT_ASM(1, text, after, BARE operands);                                            \
	}                                                                                           \
	__attribute__((no_reorder)) static OPERATIONS(id) = { {                                     \
		.timing = TIMING_REPEATED, .unroll = times, .run = id##_times, .once = id##_once,   \
		__VA_ARGS__                                                                         \
	} }

/* Unrolled so often: what takes a few ticks; what takes a VMM some thousands. */
#define CHEAP 50
#define DEAR 4

#endif
