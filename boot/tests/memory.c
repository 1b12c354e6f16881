/* SPDX-License-Identifier: Apache-2.0 */
/* Which piece of a machine's memory becomes the arena, and what is given out of it. */
#include "machine/memory.c"

#include <assert.h>
#include <stdio.h>

#define MIB (1ull << 20)
#define END { 0, 0 }

struct piece {
	uint64_t start, bytes;
};

static void check_arena(const struct piece *pieces, uint64_t arena, uint64_t arena_bytes)
{
	uint64_t bytes = 0;

	memset(&the_memory, 0, sizeof(the_memory));
	for (; pieces->bytes; pieces++) {
		memory_note(pieces->start, pieces->bytes);
		bytes += pieces->bytes;
	}
	assert(the_memory.bytes == bytes);
	assert(the_memory.arena == arena);
	assert(the_memory.arena_bytes == arena_bytes);
}

static void check_arenas(void)
{
	/* 16 MiB, as QEMU's BIOS tells: what our image leaves of it. */
	check_arena((struct piece[]){ { 0, 0x9fc00 }, { MIB, 0xee0000 }, END }, IMAGE_END, 0xfe0000 - IMAGE_END);
	/* As UEFI leaves it: the largest piece, not the first; no more than the tables have place for. */
	check_arena((struct piece[]){ { MIB, 7 * MIB }, { 0x808000, 0x3000 }, { 0x900000, 240 * MIB }, END }, 0x900000, 64 * MIB);
	/* Nothing where the window of paging.h is, and above it. */
	check_arena((struct piece[]){ { 4 << 20, 5 * MIB }, { 750 * MIB, 2000 * MIB }, { 4096 * MIB, 4096 * MIB }, END }, 750 * MIB,
		    18 * MIB);
	/* Whole pages only. */
	check_arena((struct piece[]){ { 0x1000123, 0x5000 }, END }, 0x1001000, 0x4000);
	check_arena((struct piece[]){ { MIB, 4 * MIB }, END }, 0, 0);
}

static void check_taking(void)
{
	memory_adopt(&(struct memory){ .arena = 0x900000, .arena_bytes = 0x10000 });
	assert(arena_take(1, 1) == (void *)0x900000);
	assert(arena_take(4097, 0x4000) == (void *)0x904000);
	assert(arena_take(0xa001, 1) == NULL);
	assert(arena_take(0xa000, 1) == (void *)0x906000);
	assert(arena_take(1, 1) == NULL);
	arena_reset();
	assert(arena_take(0x10000, 1) == (void *)0x900000);
}

static void check_library(void)
{
	char text[] = "0123456789";

	assert(equal(memmove(text + 1, text, 9) == text + 1 ? text : "", "0012345678"));
	assert(equal(memmove(text, text + 2, 8) == text ? text : "", "1234567878"));
	assert(memcmp("abc", "abd", 3) < 0 && memcmp("abc", "abd", 2) == 0);
	assert(!equal("ab", "abc") && equal("", ""));
}

int main(void)
{
	check_arenas();
	check_taking();
	check_library();
	puts("memory: the arena is where it should be");
	return 0;
}
