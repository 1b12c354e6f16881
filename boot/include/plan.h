/* SPDX-License-Identifier: Apache-2.0 */
/* What to run: a plan by name, changed by the command line. Pure: no machine is touched. */
#ifndef BOOT_PLAN_H
#define BOOT_PLAN_H

#include "measure.h"

enum {
	PLAN_MAX_CONDITIONS = 112, /* all that the architecture allows are 104 */
	PLAN_MAX_OPERATIONS = 256,
	PLAN_MAX_COMMAND_LINE = 1024,
	CONDITION_ID_SIZE = 32,
};

enum at_end { END_AUTO, END_POWEROFF, END_WAIT, END_REBOOT }; /* auto: power off if a hypervisor is there, else wait */
enum qr_wanted { QR_AUTO, QR_ON, QR_OFF };                     /* auto: only without a serial line */

/* The same shape in the 32-bit and the 64-bit program. */
struct plan {
	char name[16];
	uint8_t end;           /* enum at_end */
	uint8_t qr;            /* enum qr_wanted */
	uint16_t n_conditions;
	uint32_t repetitions;  /* of each timing, unless the budget cuts them down */
	uint32_t budget_ms;    /* of TSC time, for one operation under one condition */
	uint32_t timeout_ms;   /* when the watchdog ends it */
	struct condition conditions[PLAN_MAX_CONDITIONS]; /* flat, paging, pae, long: in this order */
	uint32_t wanted[PLAN_MAX_CONDITIONS][PLAN_MAX_OPERATIONS / 32]; /* bit sets of operations; see plan_wants */
};

enum plan_choices {
	CHOICES_NONE,
	CHOICES_KEYS,
	CHOICES_PLANS,
	CHOICES_OPERATIONS,
	CHOICES_CONDITIONS,
	CHOICES_ENDS,
	CHOICES_ON_OFF,
};

struct plan_error {
	char message[160];
	uint8_t choices; /* enum plan_choices: what could have been written instead */
};

/* Reads `plan= ops= cond= skip= reps= end= qr=`; an absent or empty command line is the plan `short`. `modes`: what
 * this machine has of FLAT | PAGING | PAE | LONG; a plan leaves out conditions of others, `cond=` may name them all the
 * same. False: nothing is to be run, and the error says why. */
bool plan_parse(const char *command_line, unsigned modes, struct plan *plan, struct plan_error *error);

/* Whether the operation runs under the plan's condition of this index. */
bool plan_wants(const struct plan *plan, unsigned condition, unsigned operation);
/* Operations to be run, each counted once per condition. */
unsigned plan_count(const struct plan *plan);

/* The id of a condition as results and the command line write it, `long.cpl3.2m.cold`; at most CONDITION_ID_SIZE. */
int condition_id(const struct condition *condition, char *to, size_t size);
/* The i-th of all conditions that there are; false: there are fewer. */
bool condition_at(unsigned i, struct condition *condition);
/* The i-th choice of a kind into `to`; false: there are fewer. */
bool plan_choice(enum plan_choices choices, unsigned i, char *to, size_t size);

#endif
