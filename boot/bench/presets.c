/* SPDX-License-Identifier: Apache-2.0 */
/* The plans that a command line names. */
#include "presets.h"

#define ANYWHERE                                                                                          \
	"long.cpl0,pae.cpl0,paging.cpl0,flat.cpl0,long.cpl3,pae.cpl3,paging.cpl3,flat.cpl3,flat.cpl1," \
	"long.cpl1,flat.cpl2,long.cpl2"
#define EVERY_RING(mode) mode ".cpl0," mode ".cpl1," mode ".cpl2," mode ".cpl3"
#define EVERY_MODE_AND_RING \
	EVERY_RING("flat") "," EVERY_RING("paging") "," EVERY_RING("pae") "," EVERY_RING("long")
#define INSTRUCTIONS "general,privileged,sensitive"
#define THE_ORIGINALS \
	{ "add,cwd,lgdt,sti", "flat.cpl0", false }, { "pushf,smsw", "flat.cpl0,flat.cpl3", false }, \
	{ "pte-5120", "flat.cpl0,paging.cpl0", false }

static const struct pick short_picks[] = {
	{ "*", ANYWHERE, true },
	THE_ORIGINALS,
	{ "add,pushf,smsw,cpuid", EVERY_RING("long") "," EVERY_RING("flat"), false },
	{ "add,pushf,smsw,cpuid", "paging.cpl0,paging.cpl3,pae.cpl0,pae.cpl3", false },
	{ "add,smsw,tlb-*", "long.cpl0.2m,long.cpl0.cold,pae.cpl0.2m,paging.cpl0.2m,paging.cpl3.cold", false },
	{ "add,smsw", "long.cpl0.nocache,flat.cpl0.nocache,flat.cpl3.nocache", false },
};

static const struct pick original_picks[] = { THE_ORIGINALS, { "pte-*", "paging.cpl0", false } };

static const struct pick full_picks[] = {
	{ "*", ANYWHERE, true },
	{ INSTRUCTIONS ",paging,exit,interrupt,memory", EVERY_MODE_AND_RING, false },
	{ INSTRUCTIONS ",paging,memory", "paging.cpl0.2m,pae.cpl0.2m,long.cpl0.2m", false },
	{ INSTRUCTIONS ",paging,memory", "paging.cpl3.2m,pae.cpl3.2m,long.cpl3.2m", false },
	{ INSTRUCTIONS ",paging,memory", "paging.cpl0.cold,pae.cpl0.cold,long.cpl0.cold", false },
	{ INSTRUCTIONS ",paging,memory", "long.cpl3.cold,long.cpl0.2m.cold", false },
	{ INSTRUCTIONS ",paging,memory", "flat.cpl0.nocache,paging.cpl0.nocache,long.cpl0.nocache", false },
	{ INSTRUCTIONS ",paging,memory", "flat.cpl3.nocache", false },
};

static const struct pick instruction_picks[] = { { INSTRUCTIONS, EVERY_MODE_AND_RING, false } };
static const struct pick exit_picks[] = { { "privileged,sensitive,paging,exit", ANYWHERE, true } };
static const struct pick interrupt_picks[] = {
	{ "interrupt", ANYWHERE, true },
	{ "interrupt", "flat.cpl0,long.cpl3", false },
};
static const struct pick memory_picks[] = {
	{ "memory,paging", ANYWHERE, true },
	{ "memory,paging", "flat.cpl0,pae.cpl0,long.cpl0.2m,long.cpl0.cold,long.cpl0.2m.cold,long.cpl0.nocache", false },
};
static const struct pick io_picks[] = { { "io", ANYWHERE, true } };

#define PICKS(picks) picks, N_OF(picks)
const struct preset presets[] = {
	{ "short", 50, 50, 1000, PICKS(short_picks) },
	{ "original", 200, 500, 5000, PICKS(original_picks) },
	{ "full", 200, 500, 5000, PICKS(full_picks) },
	{ "instructions", 200, 200, 2000, PICKS(instruction_picks) },
	{ "exits", 200, 500, 5000, PICKS(exit_picks) },
	{ "interrupts", 200, 500, 5000, PICKS(interrupt_picks) },
	{ "memory", 100, 500, 5000, PICKS(memory_picks) },
	{ "io", 200, 2000, 10000, PICKS(io_picks) },
};

const unsigned n_presets = N_OF(presets);
