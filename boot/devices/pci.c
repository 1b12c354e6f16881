/* SPDX-License-Identifier: Apache-2.0 */
#include "pci.h"
#include "map.h"

enum { CONFIG_ADDRESS = 0xcf8, CONFIG_DATA = 0xcfc };
enum { CONFIG_ENABLE = 0x80000000u };

enum { N_DEVICES = 32, N_FUNCTIONS = 8, MAX_DEPTH = 8 };

static pci_function function_at(unsigned bus, unsigned device, unsigned function)
{
	return CONFIG_ENABLE | bus << 16 | device << 11 | function << 8;
}

bool pci_present(void)
{
	uint32_t before = in32(CONFIG_ADDRESS);
	bool present;

	out32(CONFIG_ADDRESS, CONFIG_ENABLE);
	present = in32(CONFIG_ADDRESS) == CONFIG_ENABLE;
	out32(CONFIG_ADDRESS, before);
	return present;
}

uint32_t pci_read32(pci_function function, unsigned offset)
{
	out32(CONFIG_ADDRESS, function | (offset & 0xfc));
	return in32(CONFIG_DATA);
}

uint16_t pci_read16(pci_function function, unsigned offset)
{
	return pci_read32(function, offset) >> (offset & 2) * 8;
}

uint8_t pci_read8(pci_function function, unsigned offset)
{
	return pci_read32(function, offset) >> (offset & 3) * 8;
}

void pci_write32(pci_function function, unsigned offset, uint32_t value)
{
	out32(CONFIG_ADDRESS, function | (offset & 0xfc));
	out32(CONFIG_DATA, value);
}

/* Not by reading and writing 32 bits: beside the command register lies the status, whose ones writing clears. */
void pci_write16(pci_function function, unsigned offset, uint16_t value)
{
	out32(CONFIG_ADDRESS, function | (offset & 0xfc));
	out16(CONFIG_DATA + (offset & 2), value);
}

/* ---- finding ---- */

struct wanted {
	unsigned offset;
	uint32_t mask, value;
};

static pci_function find_on_bus(unsigned bus, const struct wanted *wanted, unsigned depth);

/* The bus behind a bridge, or 0: it is none, or its bus has no number. */
static unsigned bus_behind(pci_function function, unsigned bus)
{
	unsigned header_type = pci_read8(function, 0x0e) & 0x7f;
	unsigned behind = header_type == 1 ? pci_read8(function, 0x19) : 0;

	return behind > bus ? behind : 0; /* downwards only: wrong numbers must not lead in circles */
}

static pci_function find_in(pci_function function, unsigned bus, const struct wanted *wanted, unsigned depth)
{
	unsigned behind;

	if ((pci_read32(function, wanted->offset) & wanted->mask) == wanted->value)
		return function;
	behind = bus_behind(function, bus);
	return behind && depth < MAX_DEPTH ? find_on_bus(behind, wanted, depth + 1) : 0;
}

static pci_function find_in_device(unsigned bus, unsigned device, const struct wanted *wanted, unsigned depth)
{
	unsigned n_functions = 1;
	pci_function found;

	for (unsigned i = 0; i < n_functions; i++) {
		pci_function function = function_at(bus, device, i);

		if (pci_read16(function, PCI_ID) == 0xffff)
			continue;
		if (i == 0 && pci_read8(function, 0x0e) & 0x80)
			n_functions = N_FUNCTIONS;
		found = find_in(function, bus, wanted, depth);
		if (found)
			return found;
	}
	return 0;
}

static pci_function find_on_bus(unsigned bus, const struct wanted *wanted, unsigned depth)
{
	for (unsigned device = 0; device < N_DEVICES; device++) {
		pci_function found = find_in_device(bus, device, wanted, depth);

		if (found)
			return found;
	}
	return 0;
}

pci_function pci_find(unsigned offset, uint32_t mask, uint32_t value)
{
	struct wanted wanted = { offset, mask, value };

	return pci_present() ? find_on_bus(0, &wanted, 0) : 0;
}

unsigned pci_capability(pci_function function, uint8_t kind, unsigned after)
{
	unsigned at = after ? pci_read8(function, after + 1) : pci_read8(function, 0x34);

	if (!(pci_read16(function, 0x06) & 1 << 4)) /* status: it has a list */
		return 0;
	for (unsigned n = 0; n < 48 && (at & 0xfc) >= 0x40; n++) { /* no more fit: a list in a circle ends, too */
		at &= 0xfc;
		if (pci_read8(function, at) == kind)
			return at;
		at = pci_read8(function, at + 1);
	}
	return 0;
}

/* ---- switching on and off ---- */

uint16_t pci_enable(pci_function function)
{
	uint16_t command = pci_read16(function, PCI_COMMAND);

	pci_write16(function, PCI_COMMAND,
		    command | PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_NO_LINE);
	return command;
}

void pci_disable(pci_function function, uint16_t command)
{
	pci_write16(function, PCI_COMMAND, (command & ~PCI_COMMAND_MASTER) | PCI_COMMAND_NO_LINE);
}

const char *pci_bar(pci_function function, unsigned index, struct pci_bar *bar)
{
	uint32_t low = pci_read32(function, PCI_BAR0 + index * 4);

	bar->is_port = low & 1;
	bar->address = low & (bar->is_port ? ~3u : ~15u);
	if (!bar->is_port && (low & 6) == 4)
		bar->address |= (uint64_t)pci_read32(function, PCI_BAR0 + index * 4 + 4) << 32;
	if (!bar->address)
		return "the firmware gave it no address";
	return bar->is_port ? NULL : map_above_4g(bar->address);
}
