/* SPDX-License-Identifier: Apache-2.0 */
/* Plans by name: docs/boot.md has the same table in words. */
#ifndef BOOT_PRESETS_H
#define BOOT_PRESETS_H

#include "measure.h"

/* Lists of patterns by ','. A pattern is a name, a group's name, or a beginning and '*'. */
struct pick {
	const char *operations;
	const char *conditions;
	bool first_only; /* each operation under the first of the conditions that it and the machine allow */
};

struct preset {
	const char *name;
	uint32_t repetitions, budget_ms, timeout_ms;
	const struct pick *picks;
	unsigned n_picks;
};

extern const struct preset presets[]; /* the first one is the default */
extern const unsigned n_presets;

#endif
