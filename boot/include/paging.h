/* SPDX-License-Identifier: Apache-2.0 */
/* Page tables: the identity mapping that all conditions share, and a window whose entries tests may change. */
#ifndef BOOT_PAGING_H
#define BOOT_PAGING_H

#include "machine.h"

/* Virtual memory [WINDOW_ADDRESS, + WINDOW_PAGES * 4 KiB) is mapped by 4 KiB entries whatever the page size, each page at first to
 * one and the same frame. Everything else below 4 GiB is mapped to itself: memory that the benchmark uses (both programs,
 * the arena) by pages of the condition's size, the rest by large ones. */
enum { WINDOW_ADDRESS = 0x30000000, WINDOW_PAGES = 6144, PAGE_SIZE = 4096 };

static inline uint8_t *window_page(unsigned page)
{
	return (uint8_t *)(word)WINDOW_ADDRESS + (size_t)page * PAGE_SIZE;
}

/* The (low half of the) entry of a page; entries lie one behind the other. With paging off it is the memory where the
 * entry would be (of 4 bytes, as in MODE_PAGING). */
volatile uint32_t *window_entry(unsigned page);
/* 4 in MODE_FLAT and MODE_PAGING, else 8. */
unsigned window_entry_bytes(void);

enum { ENTRY_PRESENT = 1 << 0, ENTRY_WRITABLE = 1 << 1, ENTRY_USER = 1 << 2, ENTRY_ACCESSED = 1 << 5, ENTRY_DIRTY = 1 << 6 };

/* Maps a page of the window to a frame below 4 GiB; doesn't flush the TLB. */
void window_map(unsigned page, uint32_t frame);
void window_unmap(unsigned page);
/* All pages to their one frame again, TLB flushed. */
void window_reset(void);

/* Flushes the TLB by writing CR3 (nothing is mapped as global); with paging off: nothing. */
void tlb_flush(void);

/* ---- by conditions.c only ---- */

/* Builds tables; gives what CR3 is to be. CR0 and CR4 are the caller's. */
word paging_build(enum mode mode, enum page_size size);

#endif
