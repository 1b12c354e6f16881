/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOOT_LOADER_H
#define BOOT_LOADER_H

#include <stdint.h>

/* Copies what the loader left in EAX and behind EBX into `shared`, notes memory, and finds the firmware's ACPI tables. */
void loader_read(uint32_t magic, uint32_t information);

#endif
