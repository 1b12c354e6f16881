/* SPDX-License-Identifier: Apache-2.0 */
/* PCI functions, by configuration mechanism 1: found, switched on, their registers made reachable. */
#ifndef BOOT_DEVICES_PCI_H
#define BOOT_DEVICES_PCI_H

#include "machine.h"

/* Bus, device and function as port 0xcf8 wants them, register 0; 0: none. */
typedef uint32_t pci_function;

enum {
	PCI_ID = 0x00, /* device << 16 | vendor */
	PCI_COMMAND = 0x04,
	PCI_CLASS = 0x08, /* class << 24 | subclass << 16 | interface << 8 | revision */
	PCI_BAR0 = 0x10,
	PCI_INTERRUPT_LINE = 0x3c,
	PCI_INTERRUPT_PIN = 0x3d,
};

enum {
	PCI_COMMAND_IO = 1 << 0,
	PCI_COMMAND_MEMORY = 1 << 1,
	PCI_COMMAND_MASTER = 1 << 2,
	PCI_COMMAND_NO_LINE = 1 << 10, /* no interrupts by its line */
};

enum { PCI_CAPABILITY_MSI = 0x05, PCI_CAPABILITY_VENDOR = 0x09, PCI_CAPABILITY_MSIX = 0x11 };

bool pci_present(void);

uint32_t pci_read32(pci_function function, unsigned offset);
uint16_t pci_read16(pci_function function, unsigned offset);
uint8_t pci_read8(pci_function function, unsigned offset);
void pci_write32(pci_function function, unsigned offset, uint32_t value);
void pci_write16(pci_function function, unsigned offset, uint16_t value);

/* The first function whose register `offset` (PCI_ID or PCI_CLASS) is `value` where `mask` has ones; bridges are
 * followed. */
pci_function pci_find(unsigned offset, uint32_t mask, uint32_t value);

/* The offset of the next capability of a kind after the one at `after` (0: the first); 0: there is none. */
unsigned pci_capability(pci_function function, uint8_t kind, unsigned after);

/* Lets it answer to its ports and memory and reach memory by itself, its interrupt line off; gives the command register
 * as it was. */
uint16_t pci_enable(pci_function function);
/* Puts the command register back, but leaves the function unable to reach memory or to interrupt. */
void pci_disable(pci_function function, uint16_t command);

/* A base address register. */
struct pci_bar {
	uint64_t address;
	bool is_port;
};

/* Where a BAR lies, made reachable (released by map_release): a reason why it can't be, or NULL. */
const char *pci_bar(pci_function function, unsigned index, struct pci_bar *bar);

#endif
