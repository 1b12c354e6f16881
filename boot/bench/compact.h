/* SPDX-License-Identifier: Apache-2.0 */
/* All results in few characters of QR's alphanumeric set, cut into pieces that a code holds; docs/boot.md describes them. */
#ifndef BOOT_COMPACT_H
#define BOOT_COMPACT_H

#include "report.h"

enum {
	COMPACT_FRAME = 24, /* at most, around a payload: VMB1:, :, :, the check sum, and a number of a number */
};

/* Into how many codes of so many characters of payload they go. */
unsigned compact_codes(const struct report *report, unsigned payload);
/* The text of the i-th of them, counting from 1, into `payload` + COMPACT_FRAME + 1 bytes. */
void compact_code(const struct report *report, unsigned payload, unsigned i, char *to);

/* What an operation is called there: FNV-1a of its name, folded to 24 bits. */
uint32_t compact_hash(const char *name);

#endif
