/* SPDX-License-Identifier: Apache-2.0 */
/* Tables are believed only as far as their checksums and lengths go, and only below 4 GiB, where all is mapped. */
#include "acpi.h"
#include "measure.h"

#define BELOW_4G (1ull << 32)

enum { DEFAULT_IO_APIC = 0xfec00000u, DEFAULT_TIMER_PIN = 2, DEFAULT_HPET = 0xfed00000u };
enum { MAX_TABLE_BYTES = 1 << 20 };

struct acpi the_acpi = {
	.n_cpus = 1,
	.has_pics = true,
	.io_apic = DEFAULT_IO_APIC,
	.io_apic_timer_pin = DEFAULT_TIMER_PIN,
	.hpet = DEFAULT_HPET,
};

struct __attribute__((packed)) root_pointer {
	char signature[8];
	uint8_t checksum;
	char oem[6];
	uint8_t revision;
	uint32_t rsdt;
	/* from revision 2 on */
	uint32_t length;
	uint64_t xsdt;
};

enum { ROOT_POINTER_CHECKED = 20 }; /* bytes that the checksum covers in all revisions */

struct __attribute__((packed)) table {
	char signature[4];
	uint32_t length;
	uint8_t revision, checksum;
	char oem[26];
	uint8_t body[];
};

/* Generic address structure: where a register is. */
struct __attribute__((packed)) location {
	uint8_t space, width, offset, access;
	uint64_t address;
};

enum { SPACE_MEMORY = 0, SPACE_PORT = 1 };

static const struct root_pointer *root;

static bool sums_up(const void *bytes, size_t n)
{
	uint8_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += ((const uint8_t *)bytes)[i];
	return sum == 0;
}

static uint32_t read32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint64_t read64(const uint8_t *at)
{
	return read32(at) | (uint64_t)read32(at + 4) << 32;
}

/* ---- the tables ---- */

enum { CPU_USABLE = 1 << 0, MADT_HAS_PICS = 1 << 0 };
enum { ENTRY_CPU = 0, ENTRY_IO_APIC = 1, ENTRY_OVERRIDE = 2, ENTRY_X2_CPU = 9 };
enum { MADT_ENTRIES = 8 }; /* offset of the entries in the body */

static void read_cpu(uint32_t apic_id, uint32_t flags)
{
	if (!(flags & CPU_USABLE))
		return;
	if (the_acpi.n_cpus < N_OF(the_acpi.first_apic_ids))
		the_acpi.first_apic_ids[the_acpi.n_cpus] = apic_id;
	the_acpi.n_cpus++;
}

static void read_madt_entry(const uint8_t *entry)
{
	switch (entry[0]) {
	case ENTRY_CPU:
		if (entry[1] >= 8)
			read_cpu(entry[3], read32(entry + 4));
		break;
	case ENTRY_X2_CPU:
		if (entry[1] >= 16)
			read_cpu(read32(entry + 4), read32(entry + 8));
		break;
	case ENTRY_IO_APIC:
		if (entry[1] >= 12 && read32(entry + 8) == 0) /* the one that ISA interrupts go to */
			the_acpi.io_apic = read32(entry + 4);
		break;
	case ENTRY_OVERRIDE:
		if (entry[1] >= 10 && entry[2] == 0 && entry[3] == 0) /* of the ISA bus, interrupt 0 */
			the_acpi.io_apic_timer_pin = read32(entry + 4);
		break;
	}
}

static void read_madt(const uint8_t *body, uint32_t bytes)
{
	if (bytes < MADT_ENTRIES)
		return;
	the_acpi.has_pics = read32(body + 4) & MADT_HAS_PICS;
	the_acpi.n_cpus = 0;
	the_acpi.io_apic = 0;
	the_acpi.io_apic_timer_pin = 0; /* unless an override says otherwise */
	for (uint32_t i = MADT_ENTRIES; i + 2 <= bytes && body[i + 1] >= 2 && i + body[i + 1] <= bytes; i += body[i + 1])
		read_madt_entry(body + i);
	if (!the_acpi.n_cpus)
		the_acpi.n_cpus = 1;
}

static void read_hpet(const uint8_t *body, uint32_t bytes)
{
	struct location at;

	if (bytes < 4 + sizeof(at))
		return;
	memcpy(&at, body + 4, sizeof(at));
	if (at.space == SPACE_MEMORY && at.address < BELOW_4G)
		the_acpi.hpet = at.address;
}

/* Offsets in the table of its fields less those of the table's head. */
enum { FADT_PM_TIMER = 76 - 36, FADT_PM_TIMER_LENGTH = 91 - 36, FADT_FLAGS = 112 - 36, FADT_X_PM_TIMER = 208 - 36 };
enum { PM_TIMER_32_BITS = 1 << 8 };

static void read_fadt(const uint8_t *body, uint32_t bytes)
{
	struct location at;
	uint64_t port;

	if (bytes < FADT_FLAGS + 4)
		return;
	port = body[FADT_PM_TIMER_LENGTH] == 4 ? read32(body + FADT_PM_TIMER) : 0;
	if (bytes >= FADT_X_PM_TIMER + sizeof(at)) {
		memcpy(&at, body + FADT_X_PM_TIMER, sizeof(at));
		if (at.space == SPACE_PORT && at.address)
			port = at.address;
	}
	if (port > 0xffff)
		return;
	the_acpi.pm_timer_port = port;
	the_acpi.pm_timer_mask = read32(body + FADT_FLAGS) & PM_TIMER_32_BITS ? 0xffffffff : 0xffffff;
}

static void read_table(const struct table *table)
{
	static const struct {
		char signature[5];
		void (*read)(const uint8_t *body, uint32_t bytes);
	} readers[] = { { "APIC", read_madt }, { "HPET", read_hpet }, { "FACP", read_fadt } };

	for (unsigned i = 0; i < N_OF(readers); i++)
		if (!memcmp(table->signature, readers[i].signature, sizeof(table->signature)))
			readers[i].read(table->body, table->length - sizeof(*table));
}

static const struct table *table_at(uint64_t address)
{
	const struct table *table = (const struct table *)(word)address;

	if (!address || address + sizeof(*table) > BELOW_4G)
		return NULL;
	if (table->length < sizeof(*table) || table->length > MAX_TABLE_BYTES || address + table->length > BELOW_4G)
		return NULL;
	return sums_up(table, table->length) ? table : NULL;
}

/* The RSDT names tables by 4 bytes each, the XSDT by 8. */
static bool read_all(const struct table *list, unsigned entry_bytes)
{
	if (!list)
		return false;
	for (uint32_t i = 0; i + entry_bytes <= list->length - sizeof(*list); i += entry_bytes) {
		const uint8_t *entry = list->body + i;
		const struct table *table = table_at(entry_bytes == 8 ? read64(entry) : read32(entry));

		if (table)
			read_table(table);
	}
	return true;
}

/* ---- the root pointer ---- */

static bool is_root_pointer(const struct root_pointer *at)
{
	return !memcmp(at->signature, "RSD PTR ", sizeof(at->signature)) && sums_up(at, ROOT_POINTER_CHECKED);
}

static void read_from(const struct root_pointer *at)
{
	root = at;
	the_acpi.hpet = 0;
	the_acpi.found = (at->revision >= 2 && read_all(table_at(at->xsdt), 8)) || read_all(table_at(at->rsdt), 4);
}

/* By steps of 4 bytes: a BIOS keeps it on a multiple of 16, UEFI does not. */
void acpi_find_in(uint64_t address, uint64_t bytes)
{
	if (address + bytes > BELOW_4G)
		return;
	for (uint64_t at = (address + 3) & ~3ull; !the_acpi.found && at + sizeof(*root) <= address + bytes; at += 4)
		if (is_root_pointer((const struct root_pointer *)(word)at))
			read_from((const struct root_pointer *)(word)at);
}

void acpi_find(uint64_t root_pointer)
{
	enum { BIOS_DATA_EBDA = 0x40e, BIOS = 0xe0000, BIOS_END = 0x100000, LOW_END = 0xa0000 };
	volatile word where = BIOS_DATA_EBDA; /* gcc takes constants below 4096 for null pointers */
	uint32_t ebda = *(uint16_t *)where << 4;

	if (root_pointer)
		acpi_find_in(root_pointer, sizeof(*root));
	if (ebda >= 0x400 && ebda < LOW_END - 1024)
		acpi_find_in(ebda, 1024);
	acpi_find_in(BIOS, BIOS_END - BIOS);
}

uint64_t acpi_root_pointer(void)
{
	return (word)root;
}
