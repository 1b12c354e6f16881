/* SPDX-License-Identifier: Apache-2.0 */
/* What ends an operation that does not come back: an NMI, which no instruction can switch off. guard.h has what guarded
 * calls want of it. */
#ifndef BOOT_WATCHDOG_H
#define BOOT_WATCHDOG_H

#include "machine.h"

/* Looks for a way to get an NMI after some time, and proves it by letting an endless loop be ended. After
 * interrupts_init() and smp_init(). Once in each program. */
void watchdog_init(void);
/* "pit-io-apic", "pit-lint0", "second-cpu"; NULL: there is no way on this machine. */
const char *watchdog_way(void);
/* How many NMIs came before their guarded call's time was over. They end any sleep: a sleeper that finds one was
 * not woken by what he waited for. */
uint32_t watchdog_early(void);

#endif
