/* SPDX-License-Identifier: Apache-2.0 */
/* Time, beyond what machine.h tells. */
#ifndef BOOT_CLOCK_H
#define BOOT_CLOCK_H

#include "machine.h"

/* How far the TSC's frequency is now from what was found at the start (by the same timer), in millionths. */
int32_t clock_drift_ppm(void);

/* The PIT's rate: the one timer that has had the same everywhere since 1981. */
enum { PIT_HZ = 1193182 };

#endif
