/* SPDX-License-Identifier: Apache-2.0 */
#include "irq.h"
#include "devices.h"
#include "machine/interrupts.h"

enum { VECTOR_DEVICE = 0x40, VECTOR_ALARM = 0x41, VECTOR_ISA = 0x20 };
enum { MSI_ADDRESS = 0xfee00000u };
enum { MSIX_ENABLE = 1 << 15, MSIX_MASK_ALL = 1 << 14, MSI_ENABLE = 1 << 0, MSI_64 = 1 << 7 };
/* A line may be shared with devices that can't be silenced here. */
enum { MAX_FOREIGN = 1000 };

/* 0.25 s where the timer's clock is 1 GHz (QEMU, KVM), a few seconds on slow buses. */
enum { TIMER_DIVIDE_BY_128 = 0x0a, TIMER_PERIODIC = 1 << 17, ALARM_COUNT = 2000000 };

enum kind { NONE, BY_MSIX, BY_MSI, BY_LINE };

static struct {
	enum kind kind;
	pci_function function;
	unsigned capability; /* BY_MSIX, BY_MSI */
	unsigned line;
	unsigned n_foreign;
	irq_acknowledge acknowledge;
	volatile bool arrived;
	volatile uint64_t time;
} irq;

/* ---- the alarm: HLT ends by interrupts only ---- */

static void handle_alarm(void)
{
	apic_eoi();
}

static void alarm_set(void)
{
	if (!apic_present())
		return;
	interrupt_set(VECTOR_ALARM, handle_alarm);
	apic_write(APIC_TIMER_DIVIDE, TIMER_DIVIDE_BY_128);
	apic_write(APIC_LVT_TIMER, TIMER_PERIODIC | VECTOR_ALARM);
	apic_write(APIC_TIMER_START, ALARM_COUNT);
}

static void alarm_stop(void)
{
	if (!apic_present())
		return;
	apic_write(APIC_TIMER_START, 0);
	apic_write(APIC_LVT_TIMER, LVT_MASKED | VECTOR_ALARM);
}

/* ---- the interrupt ---- */

static void end_of_interrupt(void)
{
	if (irq.kind == BY_LINE)
		pic_eoi(irq.line);
	else
		apic_eoi();
}

static void handle(void)
{
	uint64_t now = tsc_end();

	if (irq.acknowledge && irq.acknowledge()) {
		irq.time = now;
		irq.arrived = true;
	} else if (irq.kind == BY_LINE && ++irq.n_foreign == MAX_FOREIGN) {
		pic_mask(irq.line);
	}
	end_of_interrupt();
}

static void open(enum kind kind, irq_acknowledge acknowledge)
{
	irq.kind = kind;
	irq.acknowledge = acknowledge;
	irq.n_foreign = 0;
	irq.arrived = false;
}

const char *irq_by_msix(pci_function function, irq_acknowledge acknowledge)
{
	unsigned capability = pci_capability(function, PCI_CAPABILITY_MSIX, 0);
	struct pci_bar bar;
	const char *reason;
	uint32_t table;

	if (!apic_present())
		return "no local APIC";
	if (!capability)
		return "no MSI-X";
	table = pci_read32(function, capability + 4);
	reason = pci_bar(function, table & 7, &bar);
	if (reason)
		return reason;

	open(BY_MSIX, acknowledge);
	irq.function = function;
	irq.capability = capability;
	interrupt_set(VECTOR_DEVICE, handle);
	pci_write16(function, capability + 2, MSIX_ENABLE | MSIX_MASK_ALL);
	bar.address += table & ~7u;
	mmio_write32(bar.address, MSI_ADDRESS | apic_id() << 12);
	mmio_write32(bar.address + 4, 0);
	mmio_write32(bar.address + 8, VECTOR_DEVICE);
	mmio_write32(bar.address + 12, 0);
	pci_write16(function, capability + 2, MSIX_ENABLE);
	return NULL;
}

const char *irq_by_msi(pci_function function, irq_acknowledge acknowledge)
{
	unsigned capability = pci_capability(function, PCI_CAPABILITY_MSI, 0);
	bool wide;

	if (!apic_present())
		return "no local APIC";
	if (!capability)
		return "no MSI";

	open(BY_MSI, acknowledge);
	irq.function = function;
	irq.capability = capability;
	interrupt_set(VECTOR_DEVICE, handle);
	wide = pci_read16(function, capability + 2) & MSI_64;
	pci_write32(function, capability + 4, MSI_ADDRESS | apic_id() << 12);
	if (wide)
		pci_write32(function, capability + 8, 0);
	pci_write16(function, capability + (wide ? 12 : 8), VECTOR_DEVICE);
	pci_write16(function, capability + 2, MSI_ENABLE); /* and one message only */
	return NULL;
}

void irq_by_isa(unsigned line, irq_acknowledge acknowledge)
{
	open(BY_LINE, acknowledge);
	irq.function = 0;
	irq.line = line;
	interrupt_set(VECTOR_ISA + line, handle);
	pic_unmask(line);
}

const char *irq_by_line(pci_function function, irq_acknowledge acknowledge)
{
	unsigned line = pci_read8(function, PCI_INTERRUPT_LINE);

	if (!pci_read8(function, PCI_INTERRUPT_PIN) || line == 0 || line > 15)
		return "the firmware gave it no interrupt line";
	irq_by_isa(line, acknowledge);
	irq.function = function;
	pci_write16(function, PCI_COMMAND, pci_read16(function, PCI_COMMAND) & ~PCI_COMMAND_NO_LINE);
	return NULL;
}

/* Lets in what is waiting, while there still are handlers for it. */
static void drain(void)
{
	__asm__ volatile("sti; nop; nop; cli" : : : "memory");
}

void irq_close(void)
{
	if (irq.kind == NONE)
		return;
	alarm_stop();
	if (irq.kind == BY_LINE)
		pic_mask(irq.line);
	else
		pci_write16(irq.function, irq.capability + 2, 0);
	drain();
	interrupt_set(irq.kind == BY_LINE ? VECTOR_ISA + irq.line : VECTOR_DEVICE, NULL);
	if (apic_present())
		interrupt_set(VECTOR_ALARM, NULL);
	irq.kind = NONE;
	irq.acknowledge = NULL;
}

/* ---- waiting ---- */

void irq_arm(void)
{
	alarm_set();
	irq.arrived = false;
}

/* STI lets interrupts in only after the instruction that follows it: none can come between the look at `arrived` and
 * the sleep. */
bool irq_sleep(uint64_t deadline)
{
	while (!irq.arrived && !past(deadline))
		__asm__ volatile("sti; hlt; cli" : : : "memory");
	return irq.arrived;
}

bool irq_spin(uint64_t deadline)
{
	while (!irq.arrived && !past(deadline))
		__asm__ volatile("sti; nop; nop; cli" : : : "memory");
	return irq.arrived;
}

uint64_t irq_time(void)
{
	return irq.time;
}
