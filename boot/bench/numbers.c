/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include "output.h"

int exact_text(uint64_t thousandths, char to[TICKS_TEXT_SIZE])
{
	int length = format(to, TICKS_TEXT_SIZE, "%llu.%03u", (wide)(thousandths / 1000), (unsigned)(thousandths % 1000));

	while (to[length - 1] == '0' && to[length - 2] != '.')
		to[--length] = 0;
	return length;
}

/* Four digits are more than such figures are good for; whole ticks are all shown, up to ten digits of them. */
int short_text(uint64_t thousandths, char to[TICKS_TEXT_SIZE])
{
	static const uint64_t ten_digits = 10000000000ull;
	uint64_t whole = thousandths / 1000;
	unsigned rest = thousandths % 1000;

	if (whole < 10)
		return format(to, TICKS_TEXT_SIZE, "%llu.%03u", (wide)whole, rest);
	if (whole < 100)
		return format(to, TICKS_TEXT_SIZE, "%llu.%02u", (wide)whole, rest / 10);
	if (whole < 100000)
		return format(to, TICKS_TEXT_SIZE, "%llu.%u", (wide)whole, rest / 100);
	if (whole < ten_digits)
		return format(to, TICKS_TEXT_SIZE, "%llu", (wide)whole);
	return format(to, TICKS_TEXT_SIZE, "%llu.%03ue9", (wide)(whole / 1000000000), (unsigned)(whole / 1000000 % 1000));
}

uint64_t ns_of(uint64_t ticks_thousandths)
{
	static const uint64_t overflows = UINT64_MAX / 1000000;
	uint64_t khz = the_clock.tsc_hz / 1000;

	if (!khz)
		return 0;
	if (ticks_thousandths < overflows)
		return ticks_thousandths * 1000000 / khz;
	return ticks_thousandths / khz * 1000000;
}

const char *fault_name(uint8_t vector)
{
	static const char *const names[32] = {
		[0] = "#DE",  [1] = "#DB",  [2] = "NMI",  [3] = "#BP",  [4] = "#OF",  [5] = "#BR",  [6] = "#UD",  [7] = "#NM",
		[8] = "#DF",  [10] = "#TS", [11] = "#NP", [12] = "#SS", [13] = "#GP", [14] = "#PF", [16] = "#MF", [17] = "#AC",
		[18] = "#MC", [19] = "#XM", [20] = "#VE", [21] = "#CP", [28] = "#HV", [29] = "#VC", [30] = "#SX",
	};

	return vector < N_OF(names) ? names[vector] : NULL;
}

const char *loader_name(uint8_t loader)
{
	return loader == LOADER_PVH ? "pvh" : "multiboot";
}

const char *firmware_name(uint8_t firmware)
{
	return firmware == FIRMWARE_BIOS ? "bios" : firmware == FIRMWARE_UEFI ? "uefi" : "unknown";
}

const char *hypervisor_name(void)
{
	if (!the_cpu.hypervisor_present)
		return NULL;
	return *the_cpu.hypervisor ? the_cpu.hypervisor : "unknown";
}
