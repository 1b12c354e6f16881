/* SPDX-License-Identifier: Apache-2.0 */
/* The arena, and what gcc expects of a C library. */
#include "memory.h"
#include "paging.h"
#include "start/shared.h"

enum { ARENA_MAX = 64 << 20 }; /* 4 KiB mappings of it have to fit into tables of a fixed size (paging.c) */

struct memory the_memory;
static uint64_t taken;

/* ---- the arena: the largest free piece below the window of paging.h ---- */

static uint64_t page_up(uint64_t address)
{
	return (address + PAGE_SIZE - 1) & ~(uint64_t)(PAGE_SIZE - 1);
}

static void offer(uint64_t start, uint64_t end)
{
	start = page_up(start);
	end &= ~(uint64_t)(PAGE_SIZE - 1);
	if (end > WINDOW_ADDRESS)
		end = WINDOW_ADDRESS;
	if (end <= start || end - start <= the_memory.arena_bytes)
		return;
	the_memory.arena = start;
	the_memory.arena_bytes = end - start < ARENA_MAX ? end - start : ARENA_MAX;
}

void memory_note(uint64_t start, uint64_t bytes)
{
	uint64_t end = start + bytes;

	the_memory.bytes += bytes;
	if (end <= IMAGE_START)
		return;
	if (start < IMAGE_START)
		start = IMAGE_START;
	if (start < IMAGE_END)
		start = IMAGE_END;
	offer(start, end);
}

void memory_adopt(const struct memory *memory)
{
	the_memory = *memory;
	taken = 0;
}

void *arena_take(size_t bytes, size_t alignment)
{
	uint64_t start;

	if (alignment < PAGE_SIZE)
		alignment = PAGE_SIZE;
	start = (the_memory.arena + taken + alignment - 1) & ~(uint64_t)(alignment - 1);
	if (start + bytes > the_memory.arena + the_memory.arena_bytes)
		return NULL;
	taken = start + page_up(bytes) - the_memory.arena;
	return (void *)(word)start;
}

void arena_reset(void)
{
	taken = 0;
}

/* ---- the C library ---- */

void *memcpy(void *to, const void *from, size_t n)
{
	void *result = to;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
	return result;
}

void *memmove(void *to, const void *from, size_t n)
{
	uint8_t *t = to;
	const uint8_t *f = from;

	if (t <= f || t >= f + n)
		return memcpy(to, from, n);
	t += n - 1;
	f += n - 1;
	__asm__ volatile("std; rep movsb; cld" : "+D"(t), "+S"(f), "+c"(n) : : "memory");
	return to;
}

void *memset(void *to, int byte, size_t n)
{
	void *result = to;

	__asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(byte) : "memory");
	return result;
}

int memcmp(const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;

	for (size_t i = 0; i < n; i++)
		if (x[i] != y[i])
			return x[i] - y[i];
	return 0;
}

/* By volatile, lest gcc sees that this is strlen and calls it. */
size_t strlen(const char *s)
{
	const volatile char *end = s;

	while (*end)
		end++;
	return end - s;
}

bool equal(const char *a, const char *b)
{
	size_t n = strlen(a);

	return n == strlen(b) && !memcmp(a, b, n);
}
