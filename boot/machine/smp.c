/* SPDX-License-Identifier: Apache-2.0 */
/* The second CPU.
 *
 *   INIT, start-up IPI --> start/ap.S --> second_cpu_main --> wait --+
 *                                                 ^    interrupt     |
 *                                                 +------------------+
 *
 * What both CPUs look at lies in `second`; each field has one writer at a time.
 */
#include "smp.h"
#include "acpi.h"
#include "interrupts.h"
#include "segments.h"

/* One free page below 1 MiB, which a start-up IPI names by its number. It gets its bytes back. */
enum { TRAMPOLINE = 0x8000, PAGE_SHIFT = 12 };
enum { VECTOR_PING = 0x30 }; /* in its own table */
enum { START_TRIES = 2, START_WAIT_US = 50000, INIT_WAIT_US = 10000 };

extern const uint8_t ap_trampoline[], ap_trampoline_end[]; /* start/ap.S */
void second_cpu_main(void);

static struct {
	/* written by the second CPU */
	volatile bool runs;
	volatile uint32_t pings;
	volatile uint32_t watch_over; /* the last watch that came to its end */
	/* written by the first */
	volatile bool spins;
	volatile uint8_t reply;
	volatile uint32_t watch; /* number of the watch; odd: it is on */
	volatile uint64_t watch_ticks;
	uint32_t first_id, second_id;
} second;

/* For ap.S: the page tables and EFER that it is to run with. */
uint32_t ap_cr3, ap_efer;

/* ---- on the second CPU ---- */

struct interrupt_frame;

__attribute__((interrupt)) static void on_ping(struct interrupt_frame *frame)
{
	(void)frame;
	second.pings++;
	if (second.reply)
		apic_send_again(second.first_id, second.reply | COMMAND_ASSERT);
	apic_eoi();
}

/* Spurious interrupts, and NMIs that were not meant for this CPU. */
__attribute__((interrupt)) static void on_others(struct interrupt_frame *frame)
{
	(void)frame;
}

struct gate {
	uint16_t offset_low, selector, type, offset_middle;
#ifdef __x86_64__
	uint32_t offset_high, unused;
#endif
};

enum { INTERRUPT_GATE = 0x8e00, N_GATES = 256 };
#ifdef __x86_64__
enum { AP_CODE_SELECTOR = 0x18 }; /* as in ap.S */
#else
enum { AP_CODE_SELECTOR = 0x08 };
#endif

static struct gate gates[N_GATES] __attribute__((aligned(16)));

static void gate_to(unsigned vector, void (*handler)(struct interrupt_frame *))
{
	uint64_t address = (word)handler;

	gates[vector] = (struct gate){
		.offset_low = address,
		.selector = AP_CODE_SELECTOR,
		.type = INTERRUPT_GATE,
		.offset_middle = address >> 16,
#ifdef __x86_64__
		.offset_high = address >> 32,
#endif
	};
}

static void load_gates(void)
{
	struct table_register idtr = { sizeof(gates) - 1, (word)gates };

	for (unsigned vector = 0; vector < N_GATES; vector++)
		gate_to(vector, on_others);
	gate_to(VECTOR_PING, on_ping);
	__asm__ volatile("lidt %0" : : "m"(idtr));
}

static bool watches(uint32_t number)
{
	return number & 1 && second.watch == number;
}

static void watch(uint32_t number)
{
	uint64_t start = tsc_begin();

	__asm__ volatile("sti");
	while (watches(number) && tsc_begin() - start < second.watch_ticks)
		__asm__ volatile("pause");
	__asm__ volatile("cli");
	if (!watches(number))
		return;
	second.watch_over = number;
	apic_send(second.first_id, DELIVER_NMI | COMMAND_ASSERT);
	while (watches(number))
		__asm__ volatile("pause");
}

/* STI lets interrupts in only after the instruction that follows it: none can come between the look at what is wanted
 * and the sleep. No PAUSE: monitors take it for a wish to run later. */
static void wait(void)
{
	if (second.spins)
		__asm__ volatile("sti; nop; nop; cli" : : : "memory");
	else
		__asm__ volatile("sti; hlt; cli" : : : "memory");
}

void second_cpu_main(void)
{
	load_gates();
	apic_enable();
	apic_aim(second.first_id);
	second.runs = true;
	for (;;) {
		if (watches(second.watch))
			watch(second.watch);
		else
			wait();
	}
}

/* ---- on the first ---- */

unsigned smp_cpus(void)
{
	return the_acpi.n_cpus;
}

bool smp_second_runs(void)
{
	return second.runs;
}

static void wait_for_it(uint32_t us)
{
	uint64_t end = tsc_begin() + ticks_of_us(us);

	while (!second.runs && tsc_begin() < end)
		__asm__ volatile("pause");
}

static void start_it(void)
{
	uint8_t *trampoline = (uint8_t *)(word)TRAMPOLINE;
	size_t size = ap_trampoline_end - ap_trampoline;
	uint8_t saved[128];

	if (size > sizeof(saved))
		return;
	memcpy(saved, trampoline, size);
	memcpy(trampoline, ap_trampoline, size);
	apic_send(second.second_id, DELIVER_INIT | COMMAND_ASSERT);
	delay_us(INIT_WAIT_US);
	for (unsigned i = 0; i < START_TRIES && !second.runs; i++) {
		apic_send(second.second_id, DELIVER_START | COMMAND_ASSERT | TRAMPOLINE >> PAGE_SHIFT);
		wait_for_it(START_WAIT_US);
	}
	memcpy(trampoline, saved, size);
}

static void read_mode(void)
{
#ifdef __x86_64__
	enum { MSR_EFER = 0xc0000080u, EFER_LONG_MODE_ACTIVE = 1 << 10 };
	word cr3;

	__asm__ volatile("mov %%cr3, %0" : "=r"(cr3));
	ap_cr3 = cr3;
	ap_efer = rdmsr(MSR_EFER) & ~EFER_LONG_MODE_ACTIVE;
#endif
}

void smp_init(void)
{
	second.runs = false;
	if (the_acpi.n_cpus < 2 || !apic_present())
		return;
	second.first_id = apic_id();
	second.second_id = the_acpi.first_apic_ids[the_acpi.first_apic_ids[0] == second.first_id];
	read_mode();
	start_it();
}

static void wake(void)
{
	apic_send(second.second_id, VECTOR_PING | COMMAND_ASSERT);
}

void smp_second_spins(bool spins)
{
	second.spins = spins;
	second.reply = 0;
	if (second.runs)
		wake();
}

void smp_ping(uint8_t reply)
{
	second.reply = reply;
	apic_send_again(second.second_id, VECTOR_PING | COMMAND_ASSERT);
}

uint32_t smp_pings(void)
{
	return second.pings;
}

void smp_watch(uint64_t ticks)
{
	second.watch_ticks = ticks;
	second.reply = 0;
	second.watch = (second.watch | 1) + 2;
	wake();
}

void smp_watch_stop(void)
{
	second.watch = (second.watch | 1) + 1;
}

bool smp_watch_over(void)
{
	return second.watch_over == second.watch;
}
