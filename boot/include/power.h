/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ends. */
#ifndef BOOT_POWER_H
#define BOOT_POWER_H

#include "cpu.h"

/* Works on hypervisors whose power-off ports are known; gives up otherwise: the caller may say so and wait. */
void power_off(void);
__attribute__((noreturn)) void reboot(void);
/* Until Escape is pressed, which reboots. */
__attribute__((noreturn)) void wait_for_ever(void);

#endif
