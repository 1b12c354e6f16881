/* SPDX-License-Identifier: Apache-2.0 */
/* The interrupt controllers, as far as machine.h doesn't tell: for what drives the local APIC itself. */
#ifndef BOOT_INTERRUPTS_H
#define BOOT_INTERRUPTS_H

#include "machine.h"

/* Finds the controllers and silences them all: after acpi_find(), interrupts off. */
void interrupts_init(void);
/* What an interrupt (vector >= 0x20) comes to: its handler, or an end to it if it has none. */
void interrupt_dispatch(unsigned vector);

/* ---- local APIC: registers by their offset in memory, also where it is driven by MSRs (x2APIC) ---- */

enum {
	APIC_ID = 0x20,
	APIC_TASK_PRIORITY = 0x80,
	APIC_EOI = 0xb0,
	APIC_SPURIOUS = 0xf0,
	APIC_IN_SERVICE = 0x100, /* eight of them, 16 bytes apart */
	APIC_COMMAND = 0x300,
	APIC_DESTINATION = 0x310,
	APIC_LVT_TIMER = 0x320,
	APIC_LVT_PERFORMANCE = 0x340,
	APIC_LVT_LINT0 = 0x350,
	APIC_LVT_ERROR = 0x370,
	APIC_TIMER_START = 0x380,
	APIC_TIMER_NOW = 0x390,
	APIC_TIMER_DIVIDE = 0x3e0,
};

enum { APIC_ENABLED = 1 << 8, LVT_MASKED = 1 << 16, TIMER_DIVIDE_BY_1 = 0xb };

/* Delivery modes of interrupt commands, LVTs and I/O APIC pins. */
enum { DELIVER_NMI = 4 << 8, DELIVER_INIT = 5 << 8, DELIVER_START = 6 << 8, DELIVER_EXTERNAL = 7 << 8 }; /* 0: fixed */
enum { COMMAND_ASSERT = 1 << 14, COMMAND_TO_SELF = 1 << 18 };

uint32_t apic_read(unsigned offset);
void apic_write(unsigned offset, uint32_t value);
bool apic_is_x2(void);
/* On the CPU that calls: on, in the mode of the first CPU, all its own interrupts masked. */
void apic_enable(void);
/* Sends an interrupt and waits until it has gone out. */
void apic_send(uint32_t apic_id, uint32_t command);
/* The same without waiting and with the least of instructions; this CPU must have sent to or aimed at that one last. */
void apic_send_again(uint32_t apic_id, uint32_t command);
void apic_aim(uint32_t apic_id);

/* ---- I/O APIC ---- */

bool io_apic_present(void);
/* A pin's interrupt goes to this CPU, on a rising edge; or nowhere. */
void io_apic_open(unsigned pin, uint32_t delivery_and_vector);
void io_apic_close(unsigned pin);

/* ---- 8259 pair ---- */

/* Whether a device's interrupts come by the 8259s: then the local APIC's LINT0 is theirs. */
bool pic_is_open(void);

#endif
