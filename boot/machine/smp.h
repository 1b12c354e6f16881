/* SPDX-License-Identifier: Apache-2.0 */
/* The second CPU: it sleeps, or waits spinning, and answers what the first one sends. Its tables, stack and interrupt
 * handlers are its own, so nothing that the first does to its own harms it. */
#ifndef BOOT_SMP_H
#define BOOT_SMP_H

#include "machine.h"

/* How many CPUs the firmware's tables name; 1 at least. */
unsigned smp_cpus(void);
/* Starts the second CPU in this program's mode, if there is one, and if need be anew: the other program may have had
 * it. After interrupts_init() and clock_calibrate(). */
void smp_init(void);
bool smp_second_runs(void);

/* Whether it waits awake rather than in HLT. */
void smp_second_spins(bool spins);
/* Sends it an interrupt; its handler counts, and sends vector `reply` back if that isn't 0. Takes the least of time, so
 * smp_second_spins() must have been the last to send something. */
void smp_ping(uint8_t reply);
/* How many it has handled. */
uint32_t smp_pings(void);

/* Lets it send an NMI to the first CPU after so many ticks of the TSC, unless it is called off before that. */
void smp_watch(uint64_t ticks);
void smp_watch_stop(void);
/* Whether it has sent one since smp_watch. */
bool smp_watch_over(void);

#endif
