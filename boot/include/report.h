/* SPDX-License-Identifier: Apache-2.0 */
/* Results for programs (JSON lines) and to people (the screen, QR codes). docs/boot.md has the schema of both. */
#ifndef BOOT_REPORT_H
#define BOOT_REPORT_H

#include "plan.h"

#define BOOT_VERSION "0.2.0"

/* What the header tells besides the_cpu, the_clock and the_memory. The same shape in both programs. */
struct machine_facts {
	uint32_t cpus;
	uint8_t apic;     /* 0, 1 */
	uint8_t watchdog; /* 0: none, 1: "nmi" */
	uint8_t loader;   /* enum loader */
	uint8_t firmware; /* enum firmware */
};
enum loader { LOADER_MULTIBOOT, LOADER_PVH };
enum firmware { FIRMWARE_UNKNOWN, FIRMWARE_BIOS, FIRMWARE_UEFI };

/* A condition as it was found to be in force; the same shape in both programs, kept for tables and QR codes. */
struct condition_report {
	union {
		const char *reason; /* why it is not effective; set the whole struct to 0 first */
		uint64_t reason_address;
	};
	stable64 empty_ticks_x1000; /* of an empty shot, which was subtracted */
	uint32_t cr0, cr4;
	uint32_t chase_ticks_x100;
	uint8_t effective;
	uint8_t ring;
	uint8_t entered; /* 0: not come to it yet */
	uint8_t unused;
};

/* How it ended. */
struct run_end {
	uint32_t results;
	int32_t tsc_drift_ppm;
	uint32_t backward_jumps;
};

/* All that tables and QR codes are made of. */
struct report {
	const char *command_line;
	const struct plan *plan;
	const struct machine_facts *facts;
	const struct condition_report *conditions; /* plan->n_conditions of them */
	const struct result *results;              /* those of one condition lie together */
	unsigned n_results;
	const struct run_end *end;
};

/* One line each. */
void report_header(const struct report *report);
void report_condition(const struct plan *plan, unsigned condition, const struct condition_report *found);
/* Shows on the bottom line, too, that `done` of plan_count() are done. */
void report_begin(const struct plan *plan, unsigned condition, unsigned operation, unsigned done);
/* Shows a row on the screen, too. */
void report_result(const struct plan *plan, const struct result *result);
void report_warning(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
/* An unusable command line: a line, and on the screen what could be written instead. */
void report_plan_error(const struct plan_error *error);
void report_error(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
void report_end(const struct run_end *end);

/* All results on the screen, and QR codes where wanted. Then powers off if the plan says so and that works; else turns
 * pages by a key or after some seconds until Escape reboots the machine. Comes back if there is no screen, or to
 * reboot. */
void report_show(const struct report *report);

#endif
