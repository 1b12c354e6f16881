/* SPDX-License-Identifier: Apache-2.0 */
/* What the drivers here have in common. They know one device of a kind, set it up for one operation and leave it quiet
 * afterwards. Every wait ends. Disks are read, never written. */
#ifndef BOOT_DEVICES_H
#define BOOT_DEVICES_H

#include "measure.h"

/* A sample that takes longer has failed: as long as a VMM that shares few CPUs among many VMs may need. The watchdog
 * waits a little longer. */
enum { SAMPLE_FAILED_US = 1000000, SAMPLE_TIMEOUT_MS = 1500 };

static inline uint64_t deadline_us(uint32_t us)
{
	return tsc_end() + ticks_of_us(us);
}

static inline bool past(uint64_t deadline)
{
	return tsc_end() >= deadline;
}

/* A serial port in loopback mode; a byte through it. */
const char *uart_prepare(void);
uint64_t uart_round_trip(void);
void uart_finish(void);
const char *uart_register_prepare(void);
void uart_register_read(uint32_t turns);
void uart_register_read_once(uint32_t turns);

const char *hpet_prepare(void);
void hpet_read(uint32_t turns);
void hpet_read_once(uint32_t turns);

/* How often a REPEATED operation is done in each turn. */
enum { DEVICE_UNROLL = 4 };

#endif
