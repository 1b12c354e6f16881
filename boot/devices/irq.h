/* SPDX-License-Identifier: Apache-2.0 */
/* The interrupt of the one device that is being measured: as a message to this CPU where the device can send one,
 * otherwise by its line through the PICs. */
#ifndef BOOT_DEVICES_IRQ_H
#define BOOT_DEVICES_IRQ_H

#include "pci.h"

/* Called on each interrupt: makes the device take its line back; false: it wasn't this device that interrupted. */
typedef bool (*irq_acknowledge)(void);

/* Each gives a reason why the device can't interrupt that way, or NULL. */
const char *irq_by_msix(pci_function function, irq_acknowledge acknowledge); /* its vector 0 */
const char *irq_by_msi(pci_function function, irq_acknowledge acknowledge);
const char *irq_by_line(pci_function function, irq_acknowledge acknowledge);
void irq_by_isa(unsigned line, irq_acknowledge acknowledge);
void irq_close(void);

/* Forgets interrupts that came before, and has an alarm wake the CPU now and then if none comes. */
void irq_arm(void);
/* Sleeps (HLT) or spins with interrupts on until the interrupt has come; false: it hasn't, by then. Interrupts are off
 * afterwards. */
bool irq_sleep(uint64_t deadline);
bool irq_spin(uint64_t deadline);
/* When its handler began. */
uint64_t irq_time(void);

#endif
