/* SPDX-License-Identifier: Apache-2.0 */
/* Finding functions and capabilities in a configuration space that is made up:
 *
 *   bus 0: 00.0 host bridge, 01.0 + 01.3 a device of two functions, 02.0 bridge to bus 5, 03.0 bridge to bus 0 (!)
 *   bus 5: 00.0 bridge to bus 6, bus 6: 1f.0 NVMe controller
 */
#define in32 machine_in32
#define out32 machine_out32
#define out16 machine_out16
#include "cpu.h"
#undef in32
#undef out32
#undef out16

static uint32_t in32(uint16_t port);
static void out32(uint16_t port, uint32_t value);
static void out16(uint16_t port, uint16_t value);

#include "devices/pci.c"

#include "check.h"

enum { MULTIPLE = 0x80 << 16, BRIDGE = 0x01 << 16 }; /* header types, in register 0x0c */

static struct {
	pci_function function;
	uint8_t registers[256];
} functions[16];

static unsigned n_functions, n_accesses;
static uint32_t address;
static uint64_t mapped;

/* ---- the machine ---- */

static uint8_t *registers_of(pci_function function)
{
	for (unsigned i = 0; i < n_functions; i++)
		if (functions[i].function == function)
			return functions[i].registers;
	return NULL;
}

static uint32_t in32(uint16_t port)
{
	uint8_t *registers = registers_of(address & ~0xffu);
	uint32_t value = ~0u;

	n_accesses++;
	if (port == CONFIG_ADDRESS)
		return address;
	if (registers)
		memcpy(&value, registers + (address & 0xfc), 4);
	return value;
}

static void out32(uint16_t port, uint32_t value)
{
	uint8_t *registers = registers_of(address & ~0xffu);

	if (port == CONFIG_ADDRESS)
		address = value;
	else if (registers)
		memcpy(registers + (address & 0xfc), &value, 4);
}

static void out16(uint16_t port, uint16_t value)
{
	uint8_t *registers = registers_of(address & ~0xffu);

	if (registers)
		memcpy(registers + (address & 0xfc) + (port & 2), &value, 2);
}

const char *map_above_4g(uint64_t where)
{
	mapped = where;
	return NULL;
}

static uint8_t *add(unsigned bus, unsigned device, unsigned function, uint32_t id, uint32_t class, uint32_t header)
{
	uint8_t *registers = functions[n_functions].registers;

	functions[n_functions++].function = function_at(bus, device, function);
	memcpy(registers + PCI_ID, &id, 4);
	memcpy(registers + PCI_CLASS, &class, 4);
	memcpy(registers + 0x0c, &header, 4);
	return registers;
}

static void add_bridge(unsigned bus, unsigned device, uint8_t behind)
{
	add(bus, device, 0, 0x00011b36, 0x06040000, BRIDGE)[0x19] = behind;
}

static void add_all(void)
{
	add(0, 0, 0, 0x12378086, 0x06000002, 0);
	add(0, 1, 0, 0x70008086, 0x06010000, MULTIPLE);
	add(0, 1, 3, 0x71138086, 0x06800003, 0);
	add_bridge(0, 2, 5);
	add_bridge(0, 3, 0);
	add_bridge(5, 0, 6);
	add(6, 31, 0, 0x00101b36, 0x01080202, 0);
}

/* ---- tests ---- */

static void finds_functions(void)
{
	CHECK(pci_find(PCI_ID, ~0u, 0x71138086) == function_at(0, 1, 3), "a function other than 0");
	CHECK(pci_find(PCI_CLASS, 0xffffff00, 0x01080200) == function_at(6, 31, 0), "behind two bridges");
	n_accesses = 0;
	CHECK(pci_find(PCI_ID, ~0u, 0x10421af4) == 0, "what is not there");
	CHECK(n_accesses < 1000, "%u accesses to three buses", n_accesses);
}

/* Capabilities: vendor's at 0x40, MSI-X at 0x50, vendor's again at 0x60, and so on in a circle. */
static void finds_capabilities(void)
{
	pci_function nvme = function_at(6, 31, 0);
	uint8_t *registers = registers_of(nvme);

	CHECK(pci_capability(nvme, PCI_CAPABILITY_MSIX, 0) == 0, "the status knows of no list");
	registers[0x06] = 1 << 4;
	CHECK(pci_capability(nvme, PCI_CAPABILITY_MSIX, 0) == 0, "the list is empty");
	registers[0x34] = 0x41; /* the two lowest bits mean nothing */
	memcpy(registers + 0x40, (uint8_t[]){ PCI_CAPABILITY_VENDOR, 0x50 }, 2);
	memcpy(registers + 0x50, (uint8_t[]){ PCI_CAPABILITY_MSIX, 0x60 }, 2);
	memcpy(registers + 0x60, (uint8_t[]){ PCI_CAPABILITY_VENDOR, 0x00 }, 2);
	CHECK(pci_capability(nvme, PCI_CAPABILITY_MSIX, 0) == 0x50, "the second one");
	CHECK(pci_capability(nvme, PCI_CAPABILITY_VENDOR, 0) == 0x40, "the first one");
	CHECK(pci_capability(nvme, PCI_CAPABILITY_VENDOR, 0x40) == 0x60, "the next one");
	CHECK(pci_capability(nvme, PCI_CAPABILITY_VENDOR, 0x60) == 0, "the last one");
	registers[0x61] = 0x40;
	CHECK(pci_capability(nvme, PCI_CAPABILITY_MSI, 0) == 0, "none in a circle");
}

static void reads_bars(void)
{
	pci_function nvme = function_at(6, 31, 0);
	uint32_t wide[2] = { 0x0000400c, 0x00000008 }, ports = 0x0000c041;
	uint8_t *registers = registers_of(nvme);
	struct pci_bar bar;

	CHECK(pci_bar(nvme, 0, &bar) && !mapped, "it has no address");
	memcpy(registers + PCI_BAR0, wide, sizeof(wide));
	memcpy(registers + PCI_BAR0 + 8, &ports, sizeof(ports));
	CHECK(!pci_bar(nvme, 0, &bar) && !bar.is_port, "memory");
	CHECK(bar.address == 0x800004000 && mapped == bar.address, "of 64 bits, and mapped");
	CHECK(!pci_bar(nvme, 2, &bar) && bar.is_port && bar.address == 0xc040, "ports");
}

static void switches_on_and_off(void)
{
	pci_function nvme = function_at(6, 31, 0);
	uint8_t *registers = registers_of(nvme);
	uint16_t before;

	registers[PCI_COMMAND] = PCI_COMMAND_IO | PCI_COMMAND_MASTER;
	before = pci_enable(nvme);
	CHECK(pci_read16(nvme, PCI_COMMAND) == 0x407, "0x%x", pci_read16(nvme, PCI_COMMAND));
	pci_disable(nvme, before);
	CHECK(pci_read16(nvme, PCI_COMMAND) == 0x401, "0x%x", pci_read16(nvme, PCI_COMMAND));
	CHECK(pci_read16(nvme, 0x06) == 1 << 4, "the status beside it is left alone");
}

int main(void)
{
	add_all();
	finds_functions();
	finds_capabilities();
	reads_bars();
	switches_on_and_off();
	return done("pci");
}
