/* SPDX-License-Identifier: Apache-2.0 */
/* Segments and gates: one table of each, with everything for privilege levels 0 to 3. Readable by assembly, too. */
#ifndef BOOT_SEGMENTS_H
#define BOOT_SEGMENTS_H

/* Flat code and data of a privilege level; code is 32-bit or 64-bit as the program is. */
#define CODE_SELECTOR(ring) (((1 + 2 * (ring)) << 3) | (ring))
#define DATA_SELECTOR(ring) (((2 + 2 * (ring)) << 3) | (ring))

/* In the order that SYSENTER/SYSEXIT and SYSCALL/SYSRET want: code and data of level 0; 32-bit code, data of level 3;
 * 64-bit code, data of level 3. For SYSENTER_CS and as STAR's kernel base take SELECTOR_FAST, as STAR's user base
 * SELECTOR_FAST_USER. */
#define SELECTOR_FAST (9 << 3)
#define SELECTOR_FAST_USER ((11 << 3) | 3)

#define SELECTOR_TSS (15 << 3)       /* loaded */
#define SELECTOR_SPARE_TSS (17 << 3) /* available, for tests of LTR; segments_spare_tss() makes it so again */
#define SELECTOR_LDT (19 << 3)       /* an empty one, for tests of LLDT */
#define GDT_ENTRIES 24               /* those from 21 on are free */

#define VECTOR_NMI 2
#define VECTOR_DOUBLE_FAULT 8
#define VECTOR_RETURN 0x81 /* the gate by which guarded calls come back */

#ifndef __ASSEMBLER__
#include "cpu.h"

struct __attribute__((packed)) table_register {
	uint16_t limit;
	word base;
};

extern uint64_t gdt[GDT_ENTRIES];

/* Builds the tables and loads them. */
void segments_init(void);
/* Loads the registers again: GDT, IDT, LDT, TSS and data segments as this program wants them. A second CPU that calls it
 * must not be the first to be interrupted at another level than 0: there is one TSS. */
void segments_load(void);
struct table_register gdt_register(void);
struct table_register idt_register(void);
void segments_spare_tss(void);

/* An entry point of one's own for a vector, reachable by INT from `ring` inwards; it ends with IRET. NULL: the common
 * one again, which calls the handler of interrupt_set(). */
void gate_set(uint8_t vector, void (*entry)(void), unsigned ring);
#endif

#endif
