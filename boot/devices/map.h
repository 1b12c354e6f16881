/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory above the 4 GiB that are always mapped. */
#ifndef BOOT_DEVICES_MAP_H
#define BOOT_DEVICES_MAP_H

#include "machine.h"

/* Makes the GiB around an address reachable, uncached, if it isn't: a reason why that can't be, or NULL. */
const char *map_above_4g(uint64_t address);
/* Takes that back. */
void map_release(void);

#endif
