/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#define BELOW_4G (1ull << 32)

#ifdef __x86_64__

enum { ENTRIES = 512 };
/* present, writable, user, write-through, uncached */
enum { TABLE = 0x07, DEVICE = 0x1f, LARGE = 0x80 };
#define ADDRESS 0x000ffffffffff000ull

/* Enough for one GiB, wherever it lies: that's where firmware puts all BARs of a small machine. */
static uint64_t pointers[ENTRIES] __attribute__((aligned(4096)));
static uint64_t directory[ENTRIES] __attribute__((aligned(4096)));
static uint64_t *top_entry, *pointer_entry; /* those that we filled */

static uint64_t read_cr3(void)
{
	uint64_t cr3;

	__asm__ volatile("mov %%cr3, %0" : "=r"(cr3));
	return cr3;
}

static void flush(void)
{
	__asm__ volatile("mov %0, %%cr3" : : "r"(read_cr3()) : "memory");
}

static void fill_directory(uint64_t gib)
{
	for (unsigned i = 0; i < ENTRIES; i++)
		directory[i] = (gib << 30) | (uint64_t)i << 21 | LARGE | DEVICE;
}

static uint64_t *table_of(uint64_t entry)
{
	return (uint64_t *)(entry & ADDRESS);
}

const char *map_above_4g(uint64_t address)
{
	uint64_t *top = table_of(read_cr3()) + (address >> 39) % ENTRIES, *third;

	if (address < BELOW_4G)
		return NULL;
	if (!(*top & 1)) {
		if (top_entry)
			return "its registers lie too far apart above 4 GiB";
		memset(pointers, 0, sizeof(pointers));
		*top = (uint64_t)pointers | TABLE;
		top_entry = top;
	}
	third = table_of(*top) + (address >> 30) % ENTRIES;
	if (*third & 1)
		return NULL;
	if (pointer_entry)
		return "its registers lie too far apart above 4 GiB";
	fill_directory(address >> 30);
	*third = (uint64_t)directory | TABLE;
	pointer_entry = third;
	flush();
	return NULL;
}

void map_release(void)
{
	if (pointer_entry)
		*pointer_entry = 0;
	if (top_entry)
		*top_entry = 0;
	if (pointer_entry || top_entry)
		flush();
	pointer_entry = top_entry = NULL;
}

#else

const char *map_above_4g(uint64_t address)
{
	return address < BELOW_4G ? NULL : "its registers lie above 4 GiB";
}

void map_release(void)
{
}

#endif
