/* SPDX-License-Identifier: Apache-2.0 */
/* Puts conditions in force, and looks whether they are. */
#include "machine.h"
#include "measure.h"
#include "paging.h"

enum { CR0_WRITE_THROUGH = 1 << 29, CR0_CACHE_DISABLE = 1 << 30 };
#define CR0_PAGING (1u << 31)
enum { CR4_LARGE_PAGES = 1 << 4, CR4_PAE = 1 << 5 };
enum { MSR_MTRR_DEFAULT = 0x2ff, MTRR_ENABLE = 1 << 11, MTRR_FIXED_ENABLE = 1 << 10 };
enum { MSR_EFER = 0xc0000080u, EFER_LONG_MODE_ACTIVE = 1 << 10 };
enum { RING_CHECK_MS = 200 };

#define DEFINE_ACCESS(name)                                                  \
	static inline word name##_read(void)                                    \
	{                                                                    \
		word value;                                                  \
                                                                             \
		__asm__ volatile("mov %%" #name ", %0" : "=r"(value));       \
		return value;                                                \
	}                                                                    \
	static inline void name##_write(word value)                             \
	{                                                                    \
		__asm__ volatile("mov %0, %%" #name : : "r"(value) : "memory"); \
	}

DEFINE_ACCESS(cr0)
DEFINE_ACCESS(cr3)
DEFINE_ACCESS(cr4)

/* ---- paging ---- */

#ifdef __x86_64__

static word plain_cr3;

static const char *why_no_mode(const struct condition *wanted)
{
	return wanted->mode == MODE_LONG ? NULL : "a 64-bit program can't";
}

static void paging_enter(const struct condition *wanted)
{
	plain_cr3 = cr3_read();
	cr3_write(paging_build(wanted->mode, wanted->page_size));
}

static void paging_leave(void)
{
	if (plain_cr3)
		cr3_write(plain_cr3);
}

static const char *why_other_mode(const struct condition *wanted)
{
	(void)wanted;
	return rdmsr(MSR_EFER) & EFER_LONG_MODE_ACTIVE ? NULL : "EFER says that this is no 64-bit mode";
}

#else

static const char *why_no_mode(const struct condition *wanted)
{
	if (wanted->mode == MODE_LONG)
		return the_cpu.has_long_mode ? "a 32-bit program can't" : "this CPU has no 64-bit mode";
	if (wanted->mode == MODE_PAE && !the_cpu.has_pae)
		return "this CPU has no PAE";
	if (wanted->mode == MODE_PAGING && !the_cpu.has_pse)
		return "this CPU has no large pages";
	return NULL;
}

static void paging_leave(void)
{
	cr0_write(cr0_read() & ~CR0_PAGING);
	cr3_write(0);
	cr4_write(cr4_read() & ~(CR4_PAE | CR4_LARGE_PAGES));
}

/* The window of paging.h is there in flat mode, too, as memory. */
static void paging_enter(const struct condition *wanted)
{
	word cr3 = paging_build(wanted->mode, wanted->page_size);

	if (wanted->mode == MODE_FLAT)
		return;
	cr4_write(cr4_read() | (wanted->mode == MODE_PAE ? CR4_PAE : CR4_LARGE_PAGES));
	cr3_write(cr3);
	cr0_write(cr0_read() | CR0_PAGING);
}

static const char *why_other_mode(const struct condition *wanted)
{
	if ((wanted->mode != MODE_FLAT) != !!(cr0_read() & CR0_PAGING))
		return "CR0 says otherwise of paging";
	if ((wanted->mode == MODE_PAE) != !!(cr4_read() & CR4_PAE))
		return "CR4 says otherwise of PAE";
	return NULL;
}

#endif

/* ---- caches ---- */

static uint64_t usual_mtrr_default;
static bool mtrr_changed;

/* As the manuals have it: no fills, write back what is there, then no memory type but "uncached". */
static void caches_off(void)
{
	cr0_write((cr0_read() | CR0_CACHE_DISABLE) & ~CR0_WRITE_THROUGH);
	__asm__ volatile("wbinvd" : : : "memory");
	if (!the_cpu.has_mtrr || !the_cpu.has_msr)
		return;
	usual_mtrr_default = rdmsr(MSR_MTRR_DEFAULT);
	wrmsr(MSR_MTRR_DEFAULT, usual_mtrr_default & ~(uint64_t)(MTRR_ENABLE | MTRR_FIXED_ENABLE));
	mtrr_changed = true;
	__asm__ volatile("wbinvd" : : : "memory");
	tlb_flush();
}

static void caches_on(void)
{
	if (mtrr_changed)
		wrmsr(MSR_MTRR_DEFAULT, usual_mtrr_default);
	mtrr_changed = false;
	cr0_write(cr0_read() & ~(CR0_CACHE_DISABLE | CR0_WRITE_THROUGH));
	tlb_flush();
}

/* A chain through a piece of memory that fits into every first-level cache, in no order that a prefetcher knows. */
enum { LINE = 64, N_LINES = 128, STRIDE = 37, ROUNDS = 4, TRIALS = 8, SLOWER = 4 };

static struct {
	void *next;
	uint8_t rest[LINE - sizeof(void *)];
} chain[N_LINES] __attribute__((aligned(LINE)));

static void chain_build(void)
{
	for (unsigned i = 0; i < N_LINES; i++)
		chain[i].next = &chain[(i + STRIDE) % N_LINES];
}

static uint64_t chase_once(void)
{
	void *at = chain;
	uint64_t start = tsc_begin();

	for (unsigned i = 0; i < ROUNDS * N_LINES; i++)
		at = *(void *volatile *)at;
	return tsc_end() - start;
}

/* Hundredths of a tick for a step: the least of some trials. */
static uint32_t chase(void)
{
	uint64_t least = UINT64_MAX;

	chain_build();
	for (unsigned i = 0; i < TRIALS; i++) {
		uint64_t ticks = chase_once();

		if (ticks < least)
			least = ticks;
	}
	return (uint32_t)(least > UINT32_MAX / 100 ? UINT32_MAX : least * 100) / (ROUNDS * N_LINES);
}

/* ---- together ---- */

static void read_ring(void *argument)
{
	word cs;

	__asm__ volatile("mov %%cs, %0" : "=r"(cs));
	*(uint8_t *)argument = cs & 3;
}

static const char *why_not_effective(const struct condition *wanted, const struct in_force *found, uint32_t fast_chase)
{
	const char *reason = why_other_mode(wanted);

	if (reason)
		return reason;
	if (found->ring != wanted->ring)
		return "CS says another privilege level";
	if (wanted->cache == CACHE_ON)
		return NULL;
	if (!(found->cr0 & CR0_CACHE_DISABLE))
		return "CR0 says that caches are on";
	if (found->chase_ticks_x100 < SLOWER * fast_chase)
		return "a pointer chase is as fast as with caches";
	return NULL;
}

bool condition_enter(const struct condition *wanted, struct in_force *found)
{
	uint32_t fast_chase;

	*found = (struct in_force){ .reason = why_no_mode(wanted) };
	if (found->reason)
		return false;
	condition_leave();
	paging_enter(wanted);
	fast_chase = found->chase_ticks_x100 = chase();
	if (wanted->cache == CACHE_OFF) {
		caches_off();
		found->chase_ticks_x100 = chase();
	}
	found->cr0 = cr0_read();
	found->cr4 = cr4_read();
	found->ring = 0xff;
	guarded_call(read_ring, &found->ring, wanted->ring, RING_CHECK_MS);
	found->reason = why_not_effective(wanted, found, fast_chase);
	found->effective = !found->reason;
	return true;
}

void condition_leave(void)
{
	caches_on();
	paging_leave();
}
