/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: latency by size, TLB misses, bandwidth, untouched pages. */
#include "measure.h"
#include "paging.h"

enum { KiB = 1 << 10, MiB = 1 << 20 }; /* as in titles */
enum { TIMEOUT_MS = 20000 }; /* without caches, large blocks take long */

#define MEMORY(id, what) \
	.name = id, .title = what, .group = GROUP_MEMORY, .modes = MODES, .rings = RINGS, .timeout_ms = TIMEOUT_MS

static const char *const no_memory = "too little memory";

/* ---- latency: loads whose address is what the load before found ---- */

enum { LINE = 64, STEPS_PER_LOOP = 64, STEPS = 1024 };

static void *position;

/* Xorshift. */
static uint32_t random_number(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

/* `n` slots in a random cycle through all of them (Sattolo's shuffle), so that no prefetcher guesses the next one. It is
 * the same cycle each time. */
static const char *build_chase(size_t stride, unsigned n)
{
	uint8_t *memory = arena_take(stride * n, PAGE_SIZE);
	uint32_t state = 0x9e3779b9;

	if (!memory)
		return no_memory;
	for (unsigned i = 0; i < n; i++)
		*(void **)(memory + i * stride) = memory + i * stride;
	for (unsigned i = n - 1; i; i--) {
		void **one = (void **)(memory + i * stride);
		void **other = (void **)(memory + random_number(&state) % i * stride);
		void *next = *one;

		*one = *other;
		*other = next;
	}
	position = memory;
	return NULL;
}

static void chase(uint32_t turns)
{
	void *at = position;

	for (uint32_t i = 0; i < turns * (STEPS / STEPS_PER_LOOP); i++)
		__asm__ volatile(".rept %c1\n\tmov (%0), %0\n\t.endr" : "+r"(at) : "i"(STEPS_PER_LOOP) : "memory");
	position = at;
}

static void chase_once(uint32_t turns)
{
	(void)turns;
	__asm__ volatile("mov (%0), %0" : "+r"(position) : : "memory");
}

#define CHASE(size, how)                                                                                     \
	.timing = TIMING_REPEATED, .unroll = STEPS, .prepare = how, .run = chase, .once = chase_once, .bytes = size

/* Lines of a block: caches hold it, or don't. */
#define LATENCY(id, n, unit)                                                         \
	static const char *prepare_latency_##id(void)                                \
	{                                                                            \
		return build_chase(LINE, (n) * unit / LINE);                         \
	}                                                                            \
	__attribute__((no_reorder)) static OPERATIONS(latency_##id) = { {            \
		MEMORY("latency-" #id, "a load from somewhere in " #n " " #unit),    \
		CHASE((n) * unit, prepare_latency_##id)                              \
	} }

LATENCY(4k, 4, KiB);
LATENCY(8k, 8, KiB);
LATENCY(16k, 16, KiB);
LATENCY(32k, 32, KiB);
LATENCY(64k, 64, KiB);
LATENCY(128k, 128, KiB);
LATENCY(256k, 256, KiB);
LATENCY(512k, 512, KiB);
LATENCY(1m, 1, MiB);
LATENCY(2m, 2, MiB);
LATENCY(4m, 4, MiB);
LATENCY(8m, 8, MiB);
LATENCY(16m, 16, MiB);
LATENCY(32m, 32, MiB);

/* A line of each of so many pages, in different sets of a cache: caches hold the lines; the TLB holds the pages or not. */
#define TLB(n)                                                                \
	static const char *prepare_tlb_##n(void)                              \
	{                                                                     \
		return build_chase(PAGE_SIZE + LINE, n);                      \
	}                                                                     \
	__attribute__((no_reorder)) static OPERATIONS(tlb_##n) = { {          \
		MEMORY("tlb-" #n, "a load from one of " #n " pages"),         \
		CHASE((n) * LINE, prepare_tlb_##n)                            \
	} }

TLB(16);
TLB(512);
TLB(4096);

/* ---- bandwidth ---- */

/* Between the blocks, so that the same place in both falls into different sets of caches and TLBs. */
enum { GAP = 7 * PAGE_SIZE + PAGE_SIZE / 2 };

static word *source, *destination;
static size_t block_bytes;

static const char *take_blocks(size_t bytes)
{
	uint8_t *memory = arena_take(2 * bytes + GAP, PAGE_SIZE);

	if (!memory)
		return no_memory;
	memset(memory, 1, 2 * bytes + GAP);
	source = (word *)memory;
	destination = (word *)(memory + bytes + GAP);
	block_bytes = bytes;
	return NULL;
}

static const char *take_1m(void)
{
	return take_blocks(MiB);
}

static const char *take_16m(void)
{
	return take_blocks(16 * MiB);
}

static void read_block(uint32_t turns)
{
	for (; turns; turns--) {
		const volatile word *from = source, *end = source + block_bytes / sizeof(word);

#pragma GCC unroll 16
		while (from < end)
			(void)*from++;
	}
}

static void write_block(uint32_t turns)
{
	for (; turns; turns--) {
		volatile word *to = destination, *end = destination + block_bytes / sizeof(word);

#pragma GCC unroll 16
		while (to < end)
			*to++ = turns;
	}
}

static void copy_block(uint32_t turns)
{
	for (; turns; turns--) {
		const volatile word *from = source;
		volatile word *to = destination, *end = destination + block_bytes / sizeof(word);

#pragma GCC unroll 16
		while (to < end)
			*to++ = *from++;
	}
}

static void rep_stosb(uint32_t turns)
{
	for (; turns; turns--)
		memset(destination, turns, block_bytes);
}

static void rep_movsb(uint32_t turns)
{
	for (; turns; turns--)
		memcpy(destination, source, block_bytes);
}

#define BANDWIDTH(id, size, n, what, body)                                                                   \
	{                                                                                                    \
		MEMORY(id "-" #size, what " " #n " MiB"), .timing = TIMING_REPEATED, .unroll = 1,             \
		.prepare = take_##size, .run = body, .bytes = (n) * MiB                                      \
	}
#define BANDWIDTHS(size, n)                                                        \
	BANDWIDTH("read", size, n, "reading", read_block),                         \
	BANDWIDTH("write", size, n, "writing", write_block),                       \
	BANDWIDTH("copy", size, n, "copying", copy_block),                         \
	BANDWIDTH("stosb", size, n, "REP STOSB over", rep_stosb),                  \
	BANDWIDTH("movsb", size, n, "REP MOVSB of", rep_movsb)

__attribute__((no_reorder)) OPERATIONS(bandwidth) = {
	BANDWIDTHS(1m, 1),
	BANDWIDTHS(16m, 16),
};

/* ---- pages untouched since this machine started: a monitor finds memory for them now ---- */

/* Other operations use the arena's beginning; of what is behind, each program has its own half. */
enum { USED_BY_OTHERS = 33 * MiB, FRESH_AT_LEAST = 8 * MiB, FRESH_PER_CONDITION = 64 };

static uint64_t fresh, fresh_end;
static unsigned n_fresh_left; /* of this condition */

static void find_fresh(void)
{
	uint64_t half = (the_memory.arena_bytes - USED_BY_OTHERS) / 2 & ~(uint64_t)(PAGE_SIZE - 1);

	fresh = the_memory.arena + USED_BY_OTHERS;
	if (sizeof(word) == 8)
		fresh += half;
	fresh_end = fresh + half;
}

static const char *prepare_fresh(void)
{
	if (the_memory.arena_bytes < USED_BY_OTHERS + FRESH_AT_LEAST)
		return "too little memory for untouched pages";
	if (!fresh_end)
		find_fresh();
	n_fresh_left = FRESH_PER_CONDITION;
	return fresh < fresh_end ? NULL : "no untouched memory is left";
}

static uint64_t touch_fresh(void)
{
	uint64_t begin;

	if (!n_fresh_left || fresh >= fresh_end)
		return UINT64_MAX;
	n_fresh_left--;
	begin = tsc_begin();
	*(volatile word *)(word)fresh = 1;
	begin = tsc_end() - begin;
	fresh += PAGE_SIZE;
	return begin;
}

__attribute__((no_reorder)) OPERATIONS(fresh) = {
	{
		MEMORY("first-touch", "the first write ever to a 4 KiB page"), .timing = TIMING_OWN,
		.prepare = prepare_fresh, .sample = touch_fresh, .bytes = PAGE_SIZE,
	},
};
