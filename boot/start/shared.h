/* SPDX-License-Identifier: Apache-2.0 */
/* What the 32-bit program hands over to the 64-bit one. Both see it at the same address and with the same shape.
 *
 *  0x100000  32-bit program, with the image of the 64-bit one in it
 *  0x400000  64-bit program
 *  0x600000  struct shared
 *  0x7f0000  end of what the loader set aside for us (link32.ld)
 */
#ifndef BOOT_SHARED_H
#define BOOT_SHARED_H

#define PROGRAM64_ADDRESS 0x400000
#define SHARED_ADDRESS 0x600000
#define IMAGE_START 0x100000
#define IMAGE_END 0x7f0000

#ifndef __ASSEMBLER__
#include "output.h"
#include "report.h"

enum { MAX_RESULTS = 16384 };

#define SAME_SHAPE __attribute__((aligned(8)))

struct shared {
	char command_line[PLAN_MAX_COMMAND_LINE];
	struct framebuffer framebuffer SAME_SHAPE;
	struct memory memory SAME_SHAPE;
	struct machine_facts facts SAME_SHAPE;
	struct plan plan SAME_SHAPE;

	/* struct clock; its name by address, for that is 64 bits wide in one program only */
	stable64 tsc_hz;
	uint32_t calibrated_by, spread_ppm;
	stable64 acpi_root; /* see acpi_find() */

	/* How far the run has come. */
	uint32_t next_condition, n_done, n_results;
	uint32_t backward_jumps;            /* seen by the 32-bit program */
	struct condition_report conditions[PLAN_MAX_CONDITIONS];
	struct result results[MAX_RESULTS];
};

static struct shared *const shared = (struct shared *)SHARED_ADDRESS;

_Static_assert(sizeof(struct shared) <= IMAGE_END - SHARED_ADDRESS, "struct shared is too large for its place");
#endif

#endif
