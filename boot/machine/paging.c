/* SPDX-License-Identifier: Apache-2.0 */
/* Page tables of every mode. Entries of 8 bytes (PAE, 64-bit) and of 4 bytes differ in how many fit into a table, and so
 * in what a large page is; their low bits mean the same. */
#include "paging.h"
#include "start/shared.h"

enum { USABLE = ENTRY_PRESENT | ENTRY_WRITABLE | ENTRY_USER, LARGE = 1 << 7 };
enum {
	ENTRIES = 512,
	N_DIRECTORIES = 4,
	ARENA_TABLES = (64 << 20) / (2 << 20) + 1,
	IMAGE_TABLES = 4,
};

/* Tables for entries of 8 bytes; of 4 bytes, twice as many fit in each. */
static uint64_t top[ENTRIES] __attribute__((aligned(PAGE_SIZE)));
static uint64_t pointers[ENTRIES] __attribute__((aligned(PAGE_SIZE)));
static uint64_t directories[N_DIRECTORIES * ENTRIES] __attribute__((aligned(PAGE_SIZE)));
static uint64_t tables[ARENA_TABLES + IMAGE_TABLES][ENTRIES] __attribute__((aligned(PAGE_SIZE)));
static uint64_t window[WINDOW_PAGES] __attribute__((aligned(PAGE_SIZE)));
static uint8_t window_frame[PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));

static enum mode mode;
static bool narrow = sizeof(word) == 4; /* entries of 4 bytes */
static unsigned n_tables;

static void put(void *table, unsigned index, uint64_t entry)
{
	if (narrow)
		((volatile uint32_t *)table)[index] = entry;
	else
		((volatile uint64_t *)table)[index] = entry;
}

static unsigned entries_per_table(void)
{
	return narrow ? 2 * ENTRIES : ENTRIES;
}

static uint64_t large_size(void)
{
	return (uint64_t)entries_per_table() * PAGE_SIZE;
}

static void map_all_by_large_pages(void)
{
	for (uint64_t at = 0; at < 1ull << 32; at += large_size())
		put(directories, at / large_size(), at | USABLE | LARGE);
}

static void map_by_small_pages(uint64_t start, uint64_t end)
{
	for (uint64_t at = start & ~(large_size() - 1); at < end && n_tables < N_OF(tables); at += large_size()) {
		uint64_t *table = tables[n_tables++];

		for (unsigned i = 0; i < entries_per_table(); i++)
			put(table, i, (at + (uint64_t)i * PAGE_SIZE) | USABLE);
		put(directories, at / large_size(), (word)table | USABLE);
	}
}

static void map_window(void)
{
	for (unsigned i = 0; i < WINDOW_PAGES / entries_per_table(); i++)
		put(directories, WINDOW_ADDRESS / large_size() + i, ((word)window + i * PAGE_SIZE) | USABLE);
}

/* In PAE mode these have no other bits. */
static void map_directories(void)
{
	for (unsigned i = 0; i < N_DIRECTORIES; i++)
		pointers[i] = (word)&directories[i * ENTRIES] | (mode == MODE_LONG ? USABLE : ENTRY_PRESENT);
	top[0] = (word)pointers | USABLE;
}

word paging_build(enum mode new_mode, enum page_size size)
{
	mode = new_mode;
	narrow = mode == MODE_FLAT || mode == MODE_PAGING;
	n_tables = 0;
	map_all_by_large_pages();
	if (size == PAGE_4K) {
		map_by_small_pages(0, IMAGE_END);
		map_by_small_pages(the_memory.arena, the_memory.arena + the_memory.arena_bytes);
	}
	map_window();
	map_directories();
	window_reset();
	if (mode == MODE_LONG)
		return (word)top;
	return mode == MODE_PAE ? (word)pointers : (word)directories;
}

volatile uint32_t *window_entry(unsigned page)
{
	return narrow ? (volatile uint32_t *)window + page : (volatile uint32_t *)&window[page];
}

unsigned window_entry_bytes(void)
{
	return narrow ? 4 : 8;
}

void window_map(unsigned page, uint32_t frame)
{
	*window_entry(page) = frame | USABLE;
}

void window_unmap(unsigned page)
{
	*window_entry(page) = 0;
}

void window_reset(void)
{
	for (unsigned page = 0; page < WINDOW_PAGES; page++)
		put(window, page, (word)window_frame | USABLE);
	tlb_flush();
}

void tlb_flush(void)
{
	word cr3;

	if (mode != MODE_FLAT)
		__asm__ volatile("mov %%cr3, %0; mov %0, %%cr3" : "=r"(cr3) : : "memory");
}
