/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the benchmark drives it: conditions, guarded calls, interrupts, time.
 *
 * All C of boot/ is compiled twice, for 32-bit and for 64-bit mode (`#ifdef __x86_64__` where they differ). The 32-bit
 * program boots, runs the 32-bit conditions and jumps to the 64-bit one for the rest; what both know
 * lies in `struct shared`, at one physical address, with the same shape in both.
 */
#ifndef BOOT_MACHINE_H
#define BOOT_MACHINE_H

#include "cpu.h"

/* ---- conditions ---- */

enum mode { MODE_FLAT, MODE_PAGING, MODE_PAE, MODE_LONG, N_MODES }; /* flat: 32-bit, paging off */
enum page_size { PAGE_NONE, PAGE_4K, PAGE_LARGE };                  /* large: 2 MiB; 4 MiB in MODE_PAGING */
enum cache { CACHE_ON, CACHE_OFF };
enum tlb { TLB_WARM, TLB_COLD };

struct condition {
	uint8_t mode;      /* enum mode */
	uint8_t ring;      /* privilege level 0..3 */
	uint8_t page_size; /* enum page_size */
	uint8_t cache;     /* enum cache */
	uint8_t tlb;       /* enum tlb */
};

/* What was read back once the condition was said to be in force. */
struct in_force {
	bool effective;
	const char *reason; /* why not; NULL: it is */
	uint32_t cr0, cr4;
	uint8_t ring;
	uint32_t chase_ticks_x100; /* a step of the pointer chase that tells whether caches work, in hundredths of a tick */
};

/* Puts mode, page size and cache in force, as far as this program (32 or 64 bits) can; the ring is each guarded call's.
 * False: this machine can't, with the reason in the second. All memory below 4 GiB stays identity-mapped, reachable at every ring. */
bool condition_enter(const struct condition *condition, struct in_force *in_force);
/* Back to the program's plain state: ring 0, caches on, paging as at the start. */
void condition_leave(void);

/* ---- guarded calls ---- */

enum outcome { OUTCOME_DONE, OUTCOME_FAULT, OUTCOME_TIMEOUT };

struct guarded {
	enum outcome outcome;
	uint8_t vector; /* of the fault */
	uint32_t error_code;
	word address; /* where */
};

/* Calls body(argument) at a privilege level, interrupts off, on a stack of its own; comes back to ring 0 whatever it
 * does. What runs there may read and write all memory and use I/O ports and RDTSC at every ring (IOPL 3, CR4.TSD 0). A
 * watchdog (NMI from the PIT or the second CPU) ends what does not come back; without one, `watchdog_works()` is false. */
struct guarded guarded_call(void (*body)(void *), void *argument, unsigned ring, unsigned timeout_ms);
bool watchdog_works(void);

/* ---- interrupts ---- */

enum { VECTOR_FIRST_FREE = 0x30, VECTOR_SYSCALL = 0x80, VECTOR_SPURIOUS = 0xff };

/* Called at ring 0 with interrupts off, on whatever stack; acknowledges by itself (apic_eoi, pic_eoi). NULL: none. */
typedef void (*interrupt_handler)(void);
void interrupt_set(uint8_t vector, interrupt_handler handler);

bool apic_present(void);
uint64_t apic_base(void); /* of the local APIC's registers */
void apic_eoi(void);
uint32_t apic_id(void);
/* ISA interrupts 0..15 arrive at vector 0x20 + irq once unmasked. */
void pic_unmask(unsigned irq);
void pic_mask(unsigned irq);
void pic_eoi(unsigned irq);

/* ---- time ---- */

struct clock {
	uint64_t tsc_hz; /* 0: could not be found out */
	const char *calibrated_by;
	uint32_t spread_ppm; /* of the calibrations */
};

extern struct clock the_clock;
void clock_calibrate(void);
/* Waits, by the TSC. */
void delay_us(uint32_t us);
/* Ticks of the TSC in so many microseconds. */
uint64_t ticks_of_us(uint32_t us);

/* ---- memory ---- */

struct memory {
	uint64_t bytes;              /* usable, as the firmware or loader says */
	uint64_t arena, arena_bytes; /* one free piece below 4 GiB, page-aligned, for tests and drivers */
};

extern struct memory the_memory;
/* Page-aligned memory that is never given back; NULL: there is no more. `arena_reset` takes all of it back. */
void *arena_take(size_t bytes, size_t alignment);
void arena_reset(void);

/* Copies of the libc functions that gcc calls by itself, too. */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);
bool equal(const char *a, const char *b);

#endif
