/* SPDX-License-Identifier: Apache-2.0 */
/* What interrupts, faults and the watchdog have to do with guarded calls. */
#ifndef BOOT_GUARD_H
#define BOOT_GUARD_H

#include "machine.h"

/* What the common entry of all vectors saved. */
struct trap_frame {
#ifdef __x86_64__
	uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
	uint64_t vector, error_code, ip, cs, flags, sp, ss;
#else
	uint32_t es, ds, edi, esi, ebp, unused, ebx, edx, ecx, eax;
	uint32_t vector, error_code, ip, cs, flags, sp, ss; /* the last two only from another level */
#endif
};

/* Of the interrupt whose handler is running, for handlers that change where it goes on. */
extern struct trap_frame *the_trap_frame;

/* Handlers by vector; those for exceptions come before the guard's own. interrupt_set() (guard.c) fills it. */
extern interrupt_handler interrupt_handlers[256];

/* ---- by watchdog.c: guarded_call() arms it with its timeout_ms if watchdog_works() ---- */

void watchdog_arm(unsigned timeout_ms);
void watchdog_disarm(void);
/* An NMI arrived in a guarded call: has its time run out? False: the call goes on (one that came early; arm it again). */
bool watchdog_expired(void);

#endif
