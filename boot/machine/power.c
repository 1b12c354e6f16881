/* SPDX-License-Identifier: Apache-2.0 */
#include "power.h"
#include "segments.h"

enum { KEYBOARD_DATA = 0x60, KEYBOARD_STATUS = 0x64, KEYBOARD_FULL = 1 << 0, KEYBOARD_BUSY = 1 << 1, KEYBOARD_RESET = 0xfe };
enum { SCANCODE_ESCAPE = 0x01, NOTHING_THERE = 0xff };
enum { ACPI_SLEEP_S5 = 1 << 13 };

/* The PM1a control ports of QEMU's two PCs and of Bochs, and VirtualBox's. S5 is sleep type 0 in QEMU and Bochs, 5 in VirtualBox. */
void power_off(void)
{
	if (!the_cpu.hypervisor_present)
		return;
	out16(0x604, ACPI_SLEEP_S5);
	out16(0xb004, ACPI_SLEEP_S5);
	out16(0x4004, ACPI_SLEEP_S5 | 5 << 10);
}

void reboot(void)
{
	struct table_register empty = { 0, 0 };

	for (unsigned tries = 0; tries < 100000 && in8(KEYBOARD_STATUS) & KEYBOARD_BUSY; tries++)
		;
	out8(KEYBOARD_STATUS, KEYBOARD_RESET);
	out8(0xcf9, 0x06);
	/* Neither did: a fault that can't be delivered resets the CPU. */
	for (;;)
		__asm__ volatile("lidt %0; int3" : : "m"(empty));
}

void wait_for_ever(void)
{
	for (;;) {
		uint8_t status = in8(KEYBOARD_STATUS);

		if (status != NOTHING_THERE && status & KEYBOARD_FULL && in8(KEYBOARD_DATA) == SCANCODE_ESCAPE)
			reboot();
		__asm__ volatile("pause");
	}
}
