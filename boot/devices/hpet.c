/* SPDX-License-Identifier: Apache-2.0 */
/* The HPET's main counter: a device register in memory that VMMs emulate. */
#include "devices.h"
#include "machine/acpi.h"

enum { USUAL_PLACE = 0xfed00000u };
enum { IDENTITY = 0x00, PERIOD = 0x04, COUNTER = 0xf0 };
enum { MAX_PERIOD_FS = 100000000 };

static uint64_t registers;

/* Nothing is there where ones or zeros are read, or a period that the standard doesn't allow. */
static bool is_hpet(uint64_t address)
{
	uint32_t identity = mmio_read32(address + IDENTITY), period = mmio_read32(address + PERIOD);

	return identity && identity != ~0u && period && period <= MAX_PERIOD_FS;
}

const char *hpet_prepare(void)
{
	registers = the_acpi.hpet ? the_acpi.hpet : USUAL_PLACE;
	return is_hpet(registers) ? NULL : "no HPET";
}

void hpet_read_once(uint32_t turns)
{
	uint64_t counter = registers + COUNTER;

	for (; turns; turns--)
		mmio_read32(counter);
}

void hpet_read(uint32_t turns)
{
	uint64_t counter = registers + COUNTER;

	for (; turns; turns--)
		for (unsigned i = 0; i < DEVICE_UNROLL; i++)
			mmio_read32(counter);
}
