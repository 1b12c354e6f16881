/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers that lines, the table and QR codes have in common. */
#ifndef BOOT_NUMBERS_H
#define BOOT_NUMBERS_H

#include "report.h"

/* For %llu, which uint64_t is not everywhere. */
typedef unsigned long long wide;

enum { TICKS_TEXT_SIZE = 32 };

/* Thousandths as JSON has numbers: all digits that count, at least one after the point. */
int exact_text(uint64_t thousandths, char to[TICKS_TEXT_SIZE]);
/* The same for people: at most 10 characters. */
int short_text(uint64_t thousandths, char to[TICKS_TEXT_SIZE]);
/* Thousandths of ns from thousandths of ticks; 0: a tick's length is unknown. */
uint64_t ns_of(uint64_t ticks_thousandths);

/* "#UD"; NULL: no exception has this vector. */
const char *fault_name(uint8_t vector);
const char *loader_name(uint8_t loader);
const char *firmware_name(uint8_t firmware);
/* The hypervisor's own name; NULL: none. */
const char *hypervisor_name(void);

#endif
