/* SPDX-License-Identifier: Apache-2.0 */
/* What the firmware's ACPI tables say of CPUs, interrupt controllers and timers. */
#ifndef BOOT_ACPI_H
#define BOOT_ACPI_H

#include "cpu.h"

struct acpi {
	bool found;
	uint32_t n_cpus; /* that may be used; 1 where no table says */
	uint32_t first_apic_ids[2]; /* of the first two of them */
	bool has_pics;   /* a pair of 8259s; true where no table says */
	uint64_t io_apic; /* address of its registers; 0: none known */
	uint32_t io_apic_timer_pin; /* where the PIT's interrupt arrives */
	uint64_t hpet;             /* address of its registers; 0: none. Where no table says, it may be there or not */
	uint16_t pm_timer_port;    /* 0: none known */
	uint32_t pm_timer_mask;    /* the bits that it counts with */
};

extern struct acpi the_acpi;

/* Reads the tables that the root pointer (RSDP) names, if the loader gave its address; 0: searches for it where a BIOS
 * keeps it. Without tables `the_acpi` has what any PC has. */
void acpi_find(uint64_t root_pointer);
/* The same with a root pointer somewhere in this piece of memory, as UEFI leaves it in what the memory map calls
 * ACPI's. Does nothing if tables are known already. */
void acpi_find_in(uint64_t address, uint64_t bytes);
/* Where it was found, for the other program's acpi_find(); 0: nowhere. */
uint64_t acpi_root_pointer(void);

#endif
