/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupts, and ways into level 0 and back: what they cost where a monitor delivers or sees them. */
#include "machine/interrupts.h"
#include "machine/smp.h"
#include "machine/watchdog.h"
#include "segments.h"
#include "text_operation.h"

#define INTERRUPT .group = GROUP_INTERRUPT, .modes = MODES

enum { VECTOR_TIMER = 0x32, VECTOR_SELF = 0x33, VECTOR_REPLY = 0x34 };
#define VECTOR_INT 0x31
#define TEXT_OF(number) TEXT_OF_(number)
#define TEXT_OF_(number) #number

#ifdef __x86_64__
#define A "%%rax"
#else
#define A "%%eax"
#endif

/* ---- there and back: entries that do nothing but return ---- */

void entry_return(void), entry_skip_ud2(void), entry_sysexit(void), entry_sysret(void);

#ifdef __x86_64__
__asm__(".text\n"
	"entry_return: iretq\n"
	"entry_skip_ud2: addq $2, (%rsp); iretq\n"
	"entry_sysexit: rex.w sysexit\n"
	"entry_sysret: sysretq\n");
#else
__asm__(".text\n"
	"entry_return: iret\n"
	"entry_skip_ud2: addl $2, (%esp); iret\n"
	"entry_sysexit: sysexit\n");
#endif

enum { VECTOR_BREAKPOINT = 3, VECTOR_UD = 6 };

static const char *prepare_int(void)
{
	gate_set(VECTOR_INT, entry_return, 3);
	return NULL;
}

static void finish_int(void)
{
	gate_set(VECTOR_INT, NULL, 0);
}

TEXT_OPERATION(int_gate, DEAR, "int $" TEXT_OF(VECTOR_INT), "", (: : : "memory"),
	       .name = "int", .title = "INT to level 0 and IRET", INTERRUPT, .rings = RINGS, .prepare = prepare_int,
	       .finish = finish_int);

static const char *prepare_ud(void)
{
	gate_set(VECTOR_UD, entry_skip_ud2, 0);
	return NULL;
}

static void finish_ud(void)
{
	gate_set(VECTOR_UD, NULL, 0);
}

TEXT_OPERATION(exception, DEAR, "ud2", "", (: : : "memory"),
	       .name = "exception", .title = "UD2, its exception (#UD) and IRET behind it", INTERRUPT, .rings = RINGS,
	       .prepare = prepare_ud, .finish = finish_ud);

static const char *prepare_breakpoint(void)
{
	gate_set(VECTOR_BREAKPOINT, entry_return, 3);
	return NULL;
}

static void finish_breakpoint(void)
{
	gate_set(VECTOR_BREAKPOINT, NULL, 0);
}

TEXT_OPERATION(breakpoint, DEAR, "int3", "", (: : : "memory"),
	       .name = "breakpoint", .title = "INT3, its exception (#BP) and IRET", INTERRUPT, .rings = RINGS,
	       .prepare = prepare_breakpoint, .finish = finish_breakpoint);

/* ---- SYSENTER and SYSCALL ---- */

enum { MSR_SYSENTER_CS = 0x174, MSR_SYSENTER_STACK = 0x175, MSR_SYSENTER_ENTRY = 0x176 };

/* Only an NMI uses it. */
static uint8_t sysenter_stack[4096] __attribute__((aligned(16)));

static const char *prepare_sysenter(void)
{
	if (!the_cpu.has_sysenter)
		return "the processor has no SYSENTER";
	wrmsr(MSR_SYSENTER_CS, SELECTOR_FAST);
	wrmsr(MSR_SYSENTER_STACK, (word)(sysenter_stack + sizeof(sysenter_stack)));
	wrmsr(MSR_SYSENTER_ENTRY, (word)entry_sysexit);
	return NULL;
}

static void finish_sysenter(void)
{
	if (the_cpu.has_sysenter)
		wrmsr(MSR_SYSENTER_CS, 0); /* SYSENTER faults again */
}

/* SYSEXIT goes on at EDX, with the stack at ECX. */
#ifdef __x86_64__
#define SYSENTER "lea 1f(%%rip), %%rdx; mov %%rsp, %%rcx; sysenter; 1:"
#else
#define SYSENTER "mov $1f, %%edx; mov %%esp, %%ecx; sysenter; 1:"
#endif

TEXT_OPERATION(sysenter, DEAR, SYSENTER, "", (: : : "ecx", "edx", "memory"),
	       .name = "sysenter", .title = "SYSENTER and SYSEXIT, with the two MOVs that it takes", INTERRUPT,
	       .rings = RING3, .prepare = prepare_sysenter, .finish = finish_sysenter);

#ifdef __x86_64__
enum { MSR_EFER = 0xc0000080u, MSR_STAR = 0xc0000081u, MSR_LSTAR = 0xc0000082u, MSR_FMASK = 0xc0000084u };
enum { EFER_SYSCALL = 1 << 0, FLAGS_OFF = 0x700 /* traps, interrupts, direction */ };

static const char *prepare_syscall(void)
{
	if (!the_cpu.has_syscall)
		return "the processor has no SYSCALL";
	wrmsr(MSR_STAR, (uint64_t)SELECTOR_FAST_USER << 48 | (uint64_t)SELECTOR_FAST << 32);
	wrmsr(MSR_LSTAR, (word)entry_sysret);
	wrmsr(MSR_FMASK, FLAGS_OFF);
	wrmsr(MSR_EFER, rdmsr(MSR_EFER) | EFER_SYSCALL);
	return NULL;
}

static void finish_syscall(void)
{
	if (the_cpu.has_syscall)
		wrmsr(MSR_EFER, rdmsr(MSR_EFER) & ~EFER_SYSCALL);
}
#define SYSCALL "syscall"
#define SYSCALL_CLOBBERS , "r11"
#else
/* Never called here; the table of both programs has the same operations. */
static const char *prepare_syscall(void)
{
	return "SYSCALL is for 64-bit code";
}
#define finish_syscall NULL
#define SYSCALL "ud2"
#define SYSCALL_CLOBBERS
#endif

TEXT_OPERATION(syscall, DEAR, SYSCALL, "", (: : : "ecx", "memory" SYSCALL_CLOBBERS),
	       .name = "syscall", .title = "SYSCALL and SYSRET", .group = GROUP_INTERRUPT, .modes = LONG, .rings = RING3,
	       .prepare = prepare_syscall, .finish = finish_syscall);

/* ---- the local APIC's registers ---- */

static word apic_registers;

static const char *prepare_apic(void)
{
	if (!apic_present())
		return "no local APIC";
	if (apic_is_x2())
		return "the local APIC is driven by MSRs (x2APIC)";
	apic_registers = apic_base();
	return NULL;
}

TEXT_OPERATION(apic_read, DEAR, "mov 0x20(%0), %%eax", "", (: : "r"(apic_registers) : "eax", "memory"),
	       .name = "mmio-apic-read", .title = "MOV from the local APIC's identity register", INTERRUPT, .rings = RINGS,
	       .prepare = prepare_apic);

/* The timer, which stands still, is ordered to divide by 1. */
TEXT_OPERATION(apic_write, DEAR, "movl $0xb, 0x3e0(%0)", "", (: : "r"(apic_registers) : "memory"),
	       .name = "mmio-apic-write", .title = "MOV to the local APIC's register that divides its timer's clock",
	       INTERRUPT, .rings = RINGS, .prepare = prepare_apic);

/* Monitors treat it apart: KVM leaves it to QEMU. */
TEXT_OPERATION(apic_priority, DEAR, "movl $0, 0x80(%0)", "", (: : "r"(apic_registers) : "memory"),
	       .name = "mmio-apic-tpr", .title = "MOV of 0 to the local APIC's task priority", INTERRUPT,
	       .rings = RINGS, .prepare = prepare_apic);

/* An end of interrupt where none is in service. */
TEXT_OPERATION(apic_end, DEAR, "movl $0, 0xb0(%0)", "", (: : "r"(apic_registers) : "memory"),
	       .name = "mmio-apic-eoi", .title = "MOV to the local APIC's end-of-interrupt register", INTERRUPT,
	       .rings = RINGS, .prepare = prepare_apic);

/* ---- waiting ---- */

TEXT_OPERATION(pause_, CHEAP, "pause", "", (: : : "memory"),
	       .name = "pause", .title = "PAUSE", INTERRUPT, .rings = RINGS);

static uint32_t monitored[64] __attribute__((aligned(256)));

static const char *prepare_mwait(void)
{
	if (!the_cpu.has_monitor)
		return "the processor has no MONITOR";
	return watchdog_works() ? NULL : "no watchdog could end its sleep";
}

/* A sleep that only the watchdog ends goes on until it is the watchdog's last word. */
static void run_mwait(uint32_t turns)
{
	uint32_t early = watchdog_early();

	while (turns) {
		__asm__ volatile("mov %0, " A "; xor %%ecx, %%ecx; xor %%edx, %%edx; monitor\n\t"
				 "movl $0, (%0); xor %%eax, %%eax; mwait" : : "r"(monitored) : "eax", "ecx", "edx", "memory");
		if (watchdog_early() == early)
			turns--;
		early = watchdog_early();
	}
}

__attribute__((no_reorder)) static OPERATIONS(mwait) = { {
	.name = "mwait", .title = "MONITOR, a store that ends the wait already, MWAIT", INTERRUPT, .timing = TIMING_REPEATED,
	.rings = RING0, .unroll = 1, .run = run_mwait, .prepare = prepare_mwait,
} };

/* ---- interrupts that come ---- */

enum { MAX_LATE_US = 400000, TIMEOUT_MS = 500 }; /* busy hosts are slow, but not lost */

static volatile uint64_t arrived; /* when a handler began; 0: not yet */

static void on_interrupt(void)
{
	arrived = tsc_end();
	apic_eoi();
}

static void interrupts_on(void)
{
	__asm__ volatile("sti" : : : "memory");
}

static void interrupts_off(void)
{
	__asm__ volatile("cli" : : : "memory");
}

/* What came too late for the sample before must not be taken for this one's. */
static void expect_interrupt(void)
{
	__asm__ volatile("sti; nop; nop; cli" : : : "memory");
	arrived = 0;
}

static bool past(uint64_t deadline)
{
	return tsc_begin() >= deadline;
}

static void spin(uint64_t deadline)
{
	interrupts_on();
	while (!arrived && !past(deadline))
		;
	interrupts_off();
}

/* Something else may end the sleep: an NMI of the watchdog. */
static void halt(uint64_t deadline)
{
	while (!arrived && !past(deadline))
		__asm__ volatile("sti; hlt; cli" : : : "memory");
}

/* The NOP is for QEMU, which lets interrupts in after the instruction behind MWAIT. */
static void monitor_and_wait(uint64_t deadline)
{
	while (!arrived && !past(deadline))
		__asm__ volatile("mov %0, " A "; xor %%ecx, %%ecx; xor %%edx, %%edx; monitor\n\t"
				 "xor %%eax, %%eax; sti; mwait; nop; cli" : : "r"(monitored) : "eax", "ecx", "edx", "memory");
}

static const char *prepare_arrivals(uint8_t vector)
{
	if (!apic_present())
		return "no local APIC";
	interrupt_set(vector, on_interrupt);
	return NULL;
}

/* ---- the local APIC's timer ---- */

enum { SLEEP_US = 500, SPIN_US = 50, RATE_US = 20000 };

/* How fast the timer counts: so many ticks of it in so many of the TSC. */
static uint32_t rate_timer;
static uint64_t rate_tsc;

static void timer_stop(void)
{
	if (!apic_present())
		return;
	apic_write(APIC_TIMER_START, 0);
	apic_write(APIC_LVT_TIMER, LVT_MASKED);
}

/* The TSC's and the timer's time, read at once: the closest pair of several. */
static uint32_t read_timer(uint64_t *tsc)
{
	uint64_t closest = UINT64_MAX;
	uint32_t count = 0;

	for (unsigned i = 0; i < 8; i++) {
		uint64_t before = tsc_begin();
		uint32_t now = apic_read(APIC_TIMER_NOW);
		uint64_t after = tsc_end();

		if (after - before >= closest)
			continue;
		closest = after - before;
		*tsc = before + closest / 2;
		count = now;
	}
	return count;
}

static void find_rate(void)
{
	uint64_t begin, end;
	uint32_t from, to;

	if (rate_timer)
		return;
	apic_write(APIC_LVT_TIMER, LVT_MASKED);
	apic_write(APIC_TIMER_START, UINT32_MAX);
	from = read_timer(&begin);
	delay_us(RATE_US);
	to = read_timer(&end);
	timer_stop();
	rate_timer = from - to;
	rate_tsc = end - begin;
}

/* A latency counts from the time for which the interrupt was queried, and that from just before the asking. The rate may
 * be wrong by some millionths: what would be less than 0 is 0. */
static uint64_t timer_latency(uint32_t us, void (*wait)(uint64_t deadline))
{
	uint64_t ticks = ticks_of_us(us), due;
	uint32_t count = ticks * rate_timer / rate_tsc;

	expect_interrupt();
	apic_write(APIC_LVT_TIMER, VECTOR_TIMER);
	due = tsc_begin() + ticks;
	apic_write(APIC_TIMER_START, count);
	wait(due + ticks_of_us(MAX_LATE_US));
	if (!arrived) {
		timer_stop();
		return UINT64_MAX;
	}
	return arrived > due ? arrived - due : 0;
}

static const char *prepare_timer(void)
{
	const char *reason = prepare_arrivals(VECTOR_TIMER);

	if (reason)
		return reason;
	apic_write(APIC_TIMER_DIVIDE, TIMER_DIVIDE_BY_1);
	find_rate();
	if (!rate_timer || timer_latency(SPIN_US, spin) == UINT64_MAX)
		return "the local APIC's timer does not interrupt";
	return NULL;
}

static const char *prepare_mwait_timer(void)
{
	const char *reason = prepare_mwait();

	return reason ? reason : prepare_timer();
}

static void finish_timer(void)
{
	timer_stop();
	interrupt_set(VECTOR_TIMER, NULL);
}

static uint64_t sample_hlt_timer(void)
{
	return timer_latency(SLEEP_US, halt);
}

static uint64_t sample_mwait_timer(void)
{
	return timer_latency(SLEEP_US, monitor_and_wait);
}

static uint64_t sample_apic_timer(void)
{
	return timer_latency(SPIN_US, spin);
}

/* ---- interrupts between processors ---- */

static uint64_t arrival_after(uint64_t begin)
{
	spin(begin + ticks_of_us(MAX_LATE_US));
	return arrived ? arrived - begin : UINT64_MAX;
}

static const char *prepare_self(void)
{
	return prepare_arrivals(VECTOR_SELF);
}

static void finish_self(void)
{
	interrupt_set(VECTOR_SELF, NULL);
}

static uint64_t sample_self(void)
{
	uint64_t begin;

	expect_interrupt();
	interrupts_on();
	begin = tsc_begin();
	apic_write(APIC_COMMAND, COMMAND_TO_SELF | COMMAND_ASSERT | VECTOR_SELF);
	return arrival_after(begin);
}

static const char *prepare_second(bool spins)
{
	const char *reason = prepare_arrivals(VECTOR_REPLY);

	if (reason)
		return reason;
	if (smp_cpus() < 2)
		return "there is one CPU only";
	if (!smp_second_runs())
		return "the second CPU did not start";
	smp_second_spins(spins);
	return NULL;
}

static const char *prepare_awake(void)
{
	return prepare_second(true);
}

static const char *prepare_asleep(void)
{
	return prepare_second(false);
}

static void finish_second(void)
{
	if (smp_second_runs())
		smp_second_spins(false);
	interrupt_set(VECTOR_REPLY, NULL);
}

static uint64_t sample_round_trip(void)
{
	uint64_t begin;

	expect_interrupt();
	interrupts_on();
	begin = tsc_begin();
	smp_ping(VECTOR_REPLY);
	return arrival_after(begin);
}

static uint64_t sample_answer(void)
{
	enum { REST_US = 50 }; /* it is to be where it waits again */
	uint32_t before;
	uint64_t begin, deadline, end;

	delay_us(REST_US);
	before = smp_pings();
	begin = tsc_begin();
	deadline = begin + ticks_of_us(MAX_LATE_US);
	smp_ping(0);
	while (smp_pings() == before && !past(deadline))
		;
	end = tsc_end();
	return end < deadline ? end - begin : UINT64_MAX;
}

#define SAMPLED INTERRUPT, .timing = TIMING_OWN, .rings = RING0, .unroll = 1, .timeout_ms = TIMEOUT_MS

__attribute__((no_reorder)) static OPERATIONS(interrupt) = {
	{ .name = "hlt-timer", .title = "HLT until the APIC timer's interrupt: how late its handler begins", SAMPLED,
	  .prepare = prepare_timer, .sample = sample_hlt_timer, .finish = finish_timer },
	{ .name = "mwait-timer", .title = "MWAIT until the APIC timer's interrupt: how late its handler begins", SAMPLED,
	  .prepare = prepare_mwait_timer, .sample = sample_mwait_timer, .finish = finish_timer },
	{ .name = "apic-timer", .title = "the APIC timer's interrupt while the CPU spins: how late its handler begins",
	  SAMPLED, .prepare = prepare_timer, .sample = sample_apic_timer, .finish = finish_timer },
	{ .name = "self-ipi", .title = "an IPI to this CPU, until its handler begins", SAMPLED,
	  .prepare = prepare_self, .sample = sample_self, .finish = finish_self },
	{ .name = "ipi-round-trip", .title = "an IPI to the second CPU, which spins, and one back", SAMPLED,
	  .prepare = prepare_awake, .sample = sample_round_trip, .finish = finish_second },
	{ .name = "ipi-answer", .title = "an IPI to the second CPU, which spins, until it answers in memory", SAMPLED,
	  .prepare = prepare_awake, .sample = sample_answer, .finish = finish_second },
	{ .name = "ipi-wake", .title = "an IPI to the second CPU, which sleeps in HLT, until it answers in memory", SAMPLED,
	  .prepare = prepare_asleep, .sample = sample_answer, .finish = finish_second },
};
