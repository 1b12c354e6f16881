/* SPDX-License-Identifier: Apache-2.0 */
/* 8259 pair, local APIC, I/O APIC. Devices that interrupt by a line do it through the 8259s, which any PC routes as its
 * firmware set it up; the I/O APIC serves the watchdog only. */
#include "interrupts.h"
#include "acpi.h"
#include "guard.h"

/* ---- 8259 pair ---- */

enum { MASTER = 0x20, SLAVE = 0xa0 }; /* ports of command and, one higher, data */
enum { VECTOR_PIC = 0x20, N_IRQS = 16, CASCADE_IRQ = 2 };
enum { INITIALISE = 0x11, MODE_8086 = 0x01, READ_IN_SERVICE = 0x0b, END = 0x20 };

static uint16_t open_lines;

static void pic_init_one(uint16_t port, uint8_t vector, uint8_t wiring)
{
	out8(port, INITIALISE);
	out8(port + 1, vector);
	out8(port + 1, wiring);
	out8(port + 1, MODE_8086);
	out8(port + 1, 0xff);
}

static void pic_init(void)
{
	open_lines = 0;
	pic_init_one(MASTER, VECTOR_PIC, 1 << CASCADE_IRQ);
	pic_init_one(SLAVE, VECTOR_PIC + 8, CASCADE_IRQ);
}

/* LINT0 carries what the 8259s want to say, but only while they have something to say: else the watchdog may use it. */
static void set_lines(uint16_t open)
{
	open_lines = open;
	if (open >> 8)
		open |= 1 << CASCADE_IRQ;
	out8(MASTER + 1, ~open);
	out8(SLAVE + 1, ~(open >> 8));
	if (apic_present())
		apic_write(APIC_LVT_LINT0, open ? DELIVER_EXTERNAL : DELIVER_EXTERNAL | LVT_MASKED);
}

void pic_unmask(unsigned irq)
{
	set_lines(open_lines | 1 << irq);
}

void pic_mask(unsigned irq)
{
	set_lines(open_lines & ~(1 << irq));
}

bool pic_is_open(void)
{
	return open_lines;
}

void pic_eoi(unsigned irq)
{
	if (irq >= 8)
		out8(SLAVE, END);
	out8(MASTER, END);
}

static bool pic_in_service(unsigned irq)
{
	uint16_t port = irq < 8 ? MASTER : SLAVE;

	out8(port, READ_IN_SERVICE);
	return in8(port) >> (irq & 7) & 1;
}

/* ---- local APIC ---- */

enum { MSR_APIC_BASE = 0x1b, MSR_X2APIC = 0x800 };
enum { BASE_X2 = 1 << 10, BASE_ENABLED = 1 << 11 };
enum { COMMAND_PENDING = 1 << 12, DESTINATION_SHIFT = 24 };
#define APIC_ADDRESS 0x000ffffffffff000ull
#define APIC_USUAL_ADDRESS 0xfee00000u

static struct {
	bool present, x2;
	uint64_t base;
} apic;

static void apic_find(void)
{
	uint64_t msr;

	apic.present = the_cpu.has_apic;
	apic.base = APIC_USUAL_ADDRESS;
	if (!apic.present || !the_cpu.has_msr || the_cpu.family < 6) /* the Pentium's has no MSR */
		return;
	msr = rdmsr(MSR_APIC_BASE);
	apic.present = msr & BASE_ENABLED;
	apic.x2 = msr & BASE_X2;
	apic.base = msr & APIC_ADDRESS;
}

bool apic_present(void)
{
	return apic.present;
}

bool apic_is_x2(void)
{
	return apic.x2;
}

uint64_t apic_base(void)
{
	return apic.base;
}

uint32_t apic_read(unsigned offset)
{
	return apic.x2 ? rdmsr(MSR_X2APIC + offset / 16) : mmio_read32(apic.base + offset);
}

void apic_write(unsigned offset, uint32_t value)
{
	if (apic.x2)
		wrmsr(MSR_X2APIC + offset / 16, value);
	else
		mmio_write32(apic.base + offset, value);
}

uint32_t apic_id(void)
{
	if (!apic.present)
		return 0;
	return apic.x2 ? apic_read(APIC_ID) : apic_read(APIC_ID) >> DESTINATION_SHIFT;
}

void apic_eoi(void)
{
	if (apic.present)
		apic_write(APIC_EOI, 0);
}

/* Bounded: a machine that never says so must not hang us. */
static void wait_until_sent(void)
{
	for (unsigned i = 0; i < 1000000 && apic_read(APIC_COMMAND) & COMMAND_PENDING; i++)
		__asm__ volatile("pause");
}

void apic_send_again(uint32_t to, uint32_t command)
{
	if (apic.x2)
		wrmsr(MSR_X2APIC + APIC_COMMAND / 16, (uint64_t)to << 32 | command);
	else
		apic_write(APIC_COMMAND, command);
}

/* An x2APIC takes all in one MSR, and there is nothing to wait for. */
void apic_aim(uint32_t to)
{
	if (!apic.x2)
		apic_write(APIC_DESTINATION, to << DESTINATION_SHIFT);
}

void apic_send(uint32_t to, uint32_t command)
{
	if (!apic.x2)
		wait_until_sent();
	apic_aim(to);
	apic_send_again(to, command);
	if (!apic.x2)
		wait_until_sent();
}

static bool apic_in_service(unsigned vector)
{
	return apic.present && apic_read(APIC_IN_SERVICE + vector / 32 * 16) >> vector % 32 & 1;
}

void apic_enable(void)
{
	if (!apic.present)
		return;
	if (apic.x2)
		wrmsr(MSR_APIC_BASE, rdmsr(MSR_APIC_BASE) | BASE_ENABLED | BASE_X2);
	apic_write(APIC_SPURIOUS, APIC_ENABLED | VECTOR_SPURIOUS);
	apic_write(APIC_TASK_PRIORITY, 0);
	apic_write(APIC_LVT_TIMER, LVT_MASKED);
	apic_write(APIC_TIMER_START, 0);
	apic_write(APIC_LVT_LINT0, DELIVER_EXTERNAL | LVT_MASKED);
	apic_write(APIC_LVT_ERROR, LVT_MASKED);
}

/* ---- I/O APIC ---- */

enum { SELECT = 0x00, WINDOW = 0x10 };              /* offsets of its two registers */
enum { VERSION = 0x01, PINS = 0x10, MAX_PINS = 240 }; /* what SELECT chooses */
enum { PIN_MASKED = 1 << 16 };

static unsigned n_pins;

static uint32_t io_apic_read(unsigned index)
{
	mmio_write32(the_acpi.io_apic + SELECT, index);
	return mmio_read32(the_acpi.io_apic + WINDOW);
}

static void io_apic_write(unsigned index, uint32_t value)
{
	mmio_write32(the_acpi.io_apic + SELECT, index);
	mmio_write32(the_acpi.io_apic + WINDOW, value);
}

bool io_apic_present(void)
{
	return n_pins;
}

void io_apic_open(unsigned pin, uint32_t delivery_and_vector)
{
	if (pin >= n_pins)
		return;
	io_apic_close(pin);
	io_apic_write(PINS + 2 * pin + 1, apic_id() << 24);
	io_apic_write(PINS + 2 * pin, delivery_and_vector);
}

void io_apic_close(unsigned pin)
{
	if (pin < n_pins)
		io_apic_write(PINS + 2 * pin, PIN_MASKED);
}

/* Where there is none, reads give all ones or zeros. UEFI leaves pins open. */
static void io_apic_init(void)
{
	uint32_t version;

	n_pins = 0;
	if (!apic.present || !the_acpi.io_apic)
		return;
	version = io_apic_read(VERSION);
	if ((version & 0xff) == 0xff || !(version & 0xff) || (version >> 16 & 0xff) >= MAX_PINS)
		return;
	n_pins = (version >> 16 & 0xff) + 1;
	for (unsigned pin = 0; pin < n_pins; pin++)
		io_apic_close(pin);
}

/* ---- what arrives ---- */

/* An 8259 that changed its mind says its line 7; that must not be acknowledged, but the master's part in it must. */
static void end_pic(unsigned irq)
{
	if (pic_in_service(irq))
		pic_eoi(irq);
	else if (irq >= 8)
		pic_eoi(CASCADE_IRQ);
}

/* What stays in service holds back others. INT brings vectors here without an end of interrupt. */
void interrupt_dispatch(unsigned vector)
{
	if (interrupt_handlers[vector])
		interrupt_handlers[vector]();
	else if (vector >= VECTOR_PIC && vector < VECTOR_PIC + N_IRQS)
		end_pic(vector - VECTOR_PIC);
	else if (apic_in_service(vector))
		apic_eoi();
}

void interrupts_init(void)
{
	pic_init();
	apic_find();
	apic_enable();
	io_apic_init();
}
