/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOOT_MACHINE_MEMORY_H
#define BOOT_MACHINE_MEMORY_H

#include "machine.h"

/* Notes a piece of usable memory; the arena is to be the largest piece of what is noted. */
void memory_note(uint64_t start, uint64_t bytes);
/* For the 64-bit program, whose memory is what the 32-bit one found. */
void memory_adopt(const struct memory *memory);

void *memmove(void *to, const void *from, size_t n);

#endif
