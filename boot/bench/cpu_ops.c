/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that stay within the processor, if they are not intercepted: general ones, and those on flags, descriptor
 * tables and control registers. What faults at a level is tried there all the same: that it faults is the result. */
#include "segments.h"
#include "paging.h"
#include "text_operation.h"

#define GENERAL .group = GROUP_GENERAL, .modes = MODES, .rings = RINGS
#define PRIVILEGED .group = GROUP_PRIVILEGED, .modes = MODES, .rings = RINGS
#define SENSITIVE .group = GROUP_SENSITIVE, .modes = MODES, .rings = RINGS

/* What instructions of this file read or write again: as it was. */
static struct table_register table;
static word control, stored;

/* ---- general ---- */

/* Of a register: some processors add constants without a cost. */
TEXT_OPERATION(add, CHEAP, "add %1, %0", "", (: "+r"(stored) : "r"(stored)),
	       .name = "add", .title = "ADD, each waiting for the one before", GENERAL);

TEXT_OPERATION(cwd, CHEAP, "cwtd", "", (: : "a"(0) : "edx"),
	       .name = "cwd", .title = "CWD", GENERAL);

/* ---- flags ---- */

/* Interrupts become allowed, and none is waiting: all lines are masked. */
TEXT_OPERATION(sti, CHEAP, "sti", "", (),
	       .name = "sti", .title = "STI with no interrupt waiting", PRIVILEGED);

TEXT_OPERATION(cli, CHEAP, "cli", "", (),
	       .name = "cli", .title = "CLI", PRIVILEGED);

TEXT_OPERATION(sti_cli, CHEAP, "sti; cli", "", (),
	       .name = "sti-cli", .title = "STI and CLI", PRIVILEGED);

TEXT_OPERATION(pushf, CHEAP, "pushf", POP_ALL, (: : : "memory"),
	       .name = "pushf", .title = "PUSHF", SENSITIVE);

/* IOPL 3, as guarded calls have it, and interrupts off. */
#define FLAGS "$0x3002"

TEXT_OPERATION(popf, CHEAP, "push " FLAGS "; popf", "", (: : : "memory", "cc"),
	       .name = "popf", .title = "PUSH of a constant and POPF", SENSITIVE);

TEXT_OPERATION(pushf_popf, CHEAP, "pushf; popf", "", (: : : "memory", "cc"),
	       .name = "pushf-popf", .title = "PUSHF and POPF", SENSITIVE);

#ifdef __x86_64__
#define IRET "mov %%ss, %%eax; mov %%rsp, %%rdx; push %%rax; push %%rdx; push " FLAGS "; " \
	     "mov %%cs, %%eax; push %%rax; push $1f; iretq; 1:"
#else
#define IRET "push " FLAGS "; push %%cs; push $1f; iret; 1:"
#endif

TEXT_OPERATION(iret, 10, IRET, "", (: : : "eax", "edx", "memory", "cc"),
	       .name = "iret", .title = "IRET to the next instruction, and the pushes that it takes", SENSITIVE);

/* ---- descriptor tables ---- */

static const char *prepare_gdt(void)
{
	table = gdt_register();
	return NULL;
}

static const char *prepare_idt(void)
{
	table = idt_register();
	return NULL;
}

TEXT_OPERATION(lgdt, 10, "lgdt %0", "", (: : "m"(table)),
	       .name = "lgdt", .title = "LGDT of the table in use", PRIVILEGED, .prepare = prepare_gdt);

TEXT_OPERATION(lidt, 10, "lidt %0", "", (: : "m"(table)),
	       .name = "lidt", .title = "LIDT of the table in use", PRIVILEGED, .prepare = prepare_idt);

TEXT_OPERATION(lldt, 10, "lldt %w0", "", (: : "r"(SELECTOR_LDT)),
	       .name = "lldt", .title = "LLDT of an empty table", PRIVILEGED, .finish = segments_load);

/* LTR takes a TSS that is not busy, and makes it so. */
TEXT_OPERATION(ltr, 10, "andb $~2, %1; ltr %w0", "",
	       (: : "r"(SELECTOR_SPARE_TSS), "m"(((uint8_t *)gdt)[SELECTOR_SPARE_TSS + 5]) : "memory"),
	       .name = "ltr", .title = "LTR, and the ANDB that clears the busy bit", PRIVILEGED,
	       .finish = segments_load);

TEXT_OPERATION(sgdt, 10, "sgdt %0", "", (: "=m"(table)),
	       .name = "sgdt", .title = "SGDT", SENSITIVE);

TEXT_OPERATION(sidt, 10, "sidt %0", "", (: "=m"(table)),
	       .name = "sidt", .title = "SIDT", SENSITIVE);

TEXT_OPERATION(sldt, 10, "sldt %0", "", (: "=r"(stored)),
	       .name = "sldt", .title = "SLDT", SENSITIVE);

TEXT_OPERATION(str, 10, "str %0", "", (: "=r"(stored)),
	       .name = "str", .title = "STR", SENSITIVE);

TEXT_OPERATION(smsw, 10, "smsw %0", "", (: "=r"(stored)),
	       .name = "smsw", .title = "SMSW", SENSITIVE);

/* ---- control registers: what is written is what was there ---- */

#define PREPARE_CONTROL(id, register)                                    \
	static const char *prepare_##id(void)                            \
	{                                                                \
		__asm__ volatile("mov %%" register ", %0" : "=r"(control)); \
		return NULL;                                             \
	}

PREPARE_CONTROL(cr0, "cr0")
PREPARE_CONTROL(cr3, "cr3")
PREPARE_CONTROL(cr4, "cr4")

TEXT_OPERATION(lmsw, 10, "lmsw %w0", "", (: : "r"(control)),
	       .name = "lmsw", .title = "LMSW of the same value", PRIVILEGED, .prepare = prepare_cr0);

TEXT_OPERATION(clts, 10, "clts", "", (),
	       .name = "clts", .title = "CLTS", PRIVILEGED);

TEXT_OPERATION(cr0_read, 10, "mov %%cr0, %0", "", (: "=r"(stored)),
	       .name = "mov-from-cr0", .title = "MOV from CR0", PRIVILEGED);

TEXT_OPERATION(cr0_write, 10, "mov %0, %%cr0", "", (: : "r"(control) : "memory"),
	       .name = "mov-to-cr0", .title = "MOV of the same value to CR0", PRIVILEGED, .prepare = prepare_cr0);

TEXT_OPERATION(cr3_read, 10, "mov %%cr3, %0", "", (: "=r"(stored)),
	       .name = "mov-from-cr3", .title = "MOV from CR3", PRIVILEGED);

TEXT_OPERATION(cr3_write, 10, "mov %0, %%cr3", "", (: : "r"(control) : "memory"),
	       .name = "mov-to-cr3", .title = "MOV of the same value to CR3, which flushes the TLB", PRIVILEGED,
	       .prepare = prepare_cr3);

TEXT_OPERATION(cr4_read, 10, "mov %%cr4, %0", "", (: "=r"(stored)),
	       .name = "mov-from-cr4", .title = "MOV from CR4", PRIVILEGED);

TEXT_OPERATION(cr4_write, 10, "mov %0, %%cr4", "", (: : "r"(control) : "memory"),
	       .name = "mov-to-cr4", .title = "MOV of the same value to CR4", PRIVILEGED, .prepare = prepare_cr4);

/* CR8, the task priority, has a name in 64-bit mode only; both programs have the same table. */
#ifdef __x86_64__
#define ONLY_64(text) text
#else
#define ONLY_64(text) "ud2"
#endif

TEXT_OPERATION(cr8_read, 10, ONLY_64("mov %%cr8, %0"), "", (: "=r"(stored)),
	       .name = "mov-from-cr8", .title = "MOV from CR8", .group = GROUP_PRIVILEGED, .modes = LONG,
	       .rings = RINGS);

TEXT_OPERATION(cr8_write, 10, ONLY_64("mov %0, %%cr8"), "", (: : "r"((word)0)),
	       .name = "mov-to-cr8", .title = "MOV of 0 to CR8", .group = GROUP_PRIVILEGED, .modes = LONG,
	       .rings = RINGS);

/* ---- caches and TLB ---- */

TEXT_OPERATION(invlpg, 10, "invlpg %0", "", (: : "m"(*window_page(0)) : "memory"),
	       .name = "invlpg", .title = "INVLPG of a page that is mapped", .group = GROUP_PAGING, .modes = MODES,
	       .rings = RINGS);

/* INVD is left out: it throws away what caches have not written back yet, our own stack and results included. */
TEXT_OPERATION(wbinvd, 1, "wbinvd", "", (: : : "memory"),
	       .name = "wbinvd", .title = "WBINVD with caches as the one before left them", PRIVILEGED);
