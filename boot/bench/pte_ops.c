/* SPDX-License-Identifier: Apache-2.0 */
/* Page table entries: 5120 of them updated, as in the original. With paging on, each maps a page that was read just
 * before: so a monitor that keeps shadows of page tables has one of it. */
#include "measure.h"
#include "paging.h"

enum { N_ENTRIES = 5120 };
enum { TIMEOUT_MS = 60000 }; /* monitors with shadow page tables took 10 s in 2006 */

/* The table's entries are `step` words apart. */
static volatile uint32_t *first_entry;
static unsigned step;
static word cr3;
static bool paging_is_on;

static const char *prepare(void)
{
	word cr0;

	__asm__ volatile("mov %%cr0, %0; mov %%cr3, %1" : "=r"(cr0), "=r"(cr3));
	paging_is_on = cr0 >> 31;
	first_entry = window_entry(0);
	step = window_entry_bytes() / sizeof(*first_entry);
	window_reset();
	return NULL;
}

static void read_page(unsigned page)
{
	*(volatile uint8_t *)window_page(page);
}

static void read_all(void)
{
	if (paging_is_on)
		for (unsigned page = 0; page < N_ENTRIES; page++)
			read_page(page);
}

/* A bit that nothing goes by; but the processor, and so a monitor, must take the entry for a new one. */
static void change(unsigned page)
{
	first_entry[page * step] ^= ENTRY_DIRTY;
}

static void invalidate(unsigned page)
{
	__asm__ volatile("invlpg %0" : : "m"(*window_page(page)) : "memory");
}

static void flush(void)
{
	__asm__ volatile("mov %0, %%cr3" : : "r"(cr3) : "memory");
}

static void update(uint32_t turns)
{
	(void)turns;
	for (unsigned page = 0; page < N_ENTRIES; page++)
		change(page);
}

static void update_flush_once(uint32_t turns)
{
	update(turns);
	flush();
}

static void update_flush(uint32_t turns)
{
	(void)turns;
	for (unsigned page = 0; page < N_ENTRIES; page++) {
		change(page);
		flush();
	}
}

static void update_invalidate(uint32_t turns)
{
	(void)turns;
	for (unsigned page = 0; page < N_ENTRIES; page++) {
		change(page);
		invalidate(page);
	}
}

static void update_invalidate_read(uint32_t turns)
{
	(void)turns;
	for (unsigned page = 0; page < N_ENTRIES; page++) {
		change(page);
		invalidate(page);
		read_page(page);
	}
}

#define UPDATE(id, what, where, body)                                                                   \
	{                                                                                               \
		.name = id, .title = what, .group = GROUP_PAGING, .timing = TIMING_SINGLE,              \
		.modes = where, .rings = RINGS, .unroll = 1, .prepare = prepare, .before = read_all,    \
		.run = body, .finish = window_reset, .timeout_ms = TIMEOUT_MS,                          \
	}

OPERATIONS(pte) = {
	UPDATE("pte-5120", "5120 page table entries updated (paging off: as much memory)", MODES, update),
	UPDATE("pte-5120-flush", "5120 page table entries updated, then CR3 written", PAGING | PAE | LONG,
	       update_flush_once),
	UPDATE("pte-5120-flush-each", "5120 page table entries updated, CR3 written after each", PAGING | PAE | LONG,
	       update_flush),
	UPDATE("pte-5120-invlpg", "5120 page table entries updated, INVLPG after each", PAGING | PAE | LONG,
	       update_invalidate),
	UPDATE("pte-5120-invlpg-read", "5120 page table entries updated, INVLPG and the page read after each",
	       PAGING | PAE | LONG, update_invalidate_read),
};
