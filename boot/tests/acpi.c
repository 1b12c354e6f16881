/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of all sorts, in memory below 4 GiB as a PC has it. */
#define _GNU_SOURCE
#include "machine/acpi.c"

#include <stdio.h>
#include <sys/mman.h>

enum { PLACE = 1 << 16, ROOT = 0x1004, LIST = 0x2000, TABLES = 0x3000, TABLE_STRIDE = 0x400 };

static uint8_t *place;
static unsigned n_tables;
static int n_failed;

static void check(const char *what, uint64_t found, uint64_t expected)
{
	if (found == expected)
		return;
	printf("acpi: %s is %llx, not %llx\n", what, (unsigned long long)found, (unsigned long long)expected);
	n_failed++;
}

static uint8_t sum_to_0(const void *bytes, size_t n)
{
	uint8_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum -= ((const uint8_t *)bytes)[i];
	return sum;
}

static void seal(struct table *table, uint32_t bytes)
{
	table->length = sizeof(*table) + bytes;
	table->checksum = 0;
	table->checksum = sum_to_0(table, table->length);
}

static void begin(void)
{
	struct root_pointer *at = (void *)(place + ROOT);

	memset(place, 0, PLACE);
	n_tables = 0;
	the_acpi = (struct acpi){ .n_cpus = 1, .has_pics = true, .io_apic = 1, .hpet = 1 };
	root = NULL;
	memcpy(at->signature, "RSD PTR ", 8);
	at->rsdt = (uint32_t)(uintptr_t)place + LIST;
	at->checksum = sum_to_0(at, ROOT_POINTER_CHECKED);
	seal((void *)(place + LIST), 0);
}

static struct table *add(const char *signature, const void *body, uint32_t bytes)
{
	struct table *list = (void *)(place + LIST), *table = (void *)(place + TABLES + TABLE_STRIDE * n_tables);
	uint32_t address = (uint32_t)(uintptr_t)table;

	memcpy(table->signature, signature, 4);
	memcpy(table->body, body, bytes);
	seal(table, bytes);
	memcpy(list->body + 4 * n_tables++, &address, 4);
	seal(list, 4 * n_tables);
	return table;
}

static void find(void)
{
	acpi_find_in((uintptr_t)place, PLACE);
}

/* Two usable CPUs around one that is not, an I/O APIC, the timer's override, and an entry that ends beyond the table. */
static const uint8_t madt[] = {
	0, 0, 0xe0, 0xfe, 1, 0, 0, 0,
	4, 6, 0xff, 0, 0, 1, /* of no interest here, and shorter */
	0, 8, 0, 4, 1, 0, 0, 0,
	0, 8, 1, 5, 0, 0, 0, 0,
	0, 8, 2, 6, 1, 0, 0, 0,
	1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0,
	1, 12, 1, 0, 0, 0, 0xc1, 0xfe, 24, 0, 0, 0, /* a second one, for others' interrupts */
	2, 10, 0, 0, 2, 0, 0, 0, 0, 0,
	2, 10, 0, 9, 9, 0, 0, 0, 13, 0,
	9, 16, 0, 0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	0, 200, 3, 7, 1, 0, 0, 0,
};

static void test_madt(void)
{
	begin();
	add("APIC", madt, sizeof(madt));
	find();
	check("found", the_acpi.found, true);
	check("CPUs", the_acpi.n_cpus, 3);
	check("first CPU", the_acpi.first_apic_ids[0], 4);
	check("second CPU", the_acpi.first_apic_ids[1], 6);
	check("I/O APIC", the_acpi.io_apic, 0xfec00000);
	check("pin", the_acpi.io_apic_timer_pin, 2);
	check("8259s", the_acpi.has_pics, true);
	check("no HPET", the_acpi.hpet, 0);
	check("root pointer", acpi_root_pointer(), (uintptr_t)place + ROOT);
}

static void test_timers(void)
{
	static const uint8_t hpet[] = { 1, 2, 3, 4, 0, 64, 0, 0, 0, 0, 0xd0, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0 };
	uint8_t fadt[240] = { [FADT_PM_TIMER] = 0x08, [FADT_PM_TIMER + 1] = 0x06, [FADT_PM_TIMER_LENGTH] = 4 };

	begin();
	add("HPET", hpet, sizeof(hpet));
	add("FACP", fadt, sizeof(fadt));
	find();
	check("HPET", the_acpi.hpet, 0xfed00000);
	check("PM timer", the_acpi.pm_timer_port, 0x608);
	check("PM timer's bits", the_acpi.pm_timer_mask, 0xffffff);

	fadt[FADT_FLAGS + 1] = PM_TIMER_32_BITS >> 8;
	fadt[FADT_X_PM_TIMER] = SPACE_PORT;
	fadt[FADT_X_PM_TIMER + 5] = 0x18;
	begin();
	add("FACP", fadt, sizeof(fadt));
	find();
	check("PM timer elsewhere", the_acpi.pm_timer_port, 0x1800);
	check("PM timer's bits, all", the_acpi.pm_timer_mask, 0xffffffff);

	begin();
	add("FACP", fadt, 20);
	find();
	check("PM timer of a short table", the_acpi.pm_timer_port, 0);
}

static void test_bad_tables(void)
{
	static const uint8_t endless[] = { 0, 0, 0xe0, 0xfe, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
	struct table *table;

	begin();
	table = add("APIC", madt, sizeof(madt));
	table->checksum++;
	find();
	check("CPUs of a wrong checksum", the_acpi.n_cpus, 1);

	begin();
	table = add("APIC", madt, sizeof(madt));
	table->length = UINT32_MAX;
	find();
	check("CPUs of a wrong length", the_acpi.n_cpus, 1);

	begin();
	add("APIC", endless, sizeof(endless));
	find();
	check("CPUs of entries without a length", the_acpi.n_cpus, 1);

	begin();
	add("APIC", madt, 3);
	find();
	check("CPUs of a table cut short", the_acpi.n_cpus, 1);

	begin();
	place[ROOT]++;
	find();
	check("found without a root pointer", the_acpi.found, false);
	check("HPET where no table says", the_acpi.hpet, 1);
}

int main(void)
{
	place = mmap(NULL, PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	if (place == MAP_FAILED) {
		perror("acpi: memory below 4 GiB");
		return 1;
	}
	test_madt();
	test_timers();
	test_bad_tables();
	if (!n_failed)
		puts("acpi: tables read as they are meant, bad ones refused");
	return n_failed != 0;
}
