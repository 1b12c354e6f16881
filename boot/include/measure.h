/* SPDX-License-Identifier: Apache-2.0 */
/* Operations and how they are timed. */
#ifndef BOOT_MEASURE_H
#define BOOT_MEASURE_H

#include "machine.h"

enum group { GROUP_GENERAL, GROUP_PRIVILEGED, GROUP_SENSITIVE, GROUP_PAGING, GROUP_EXIT, GROUP_INTERRUPT, GROUP_MEMORY, GROUP_IO };

/* How an operation is timed:
 * - REPEATED: `run` does it `unroll` times for each of its `n` turns; cost = (T(2N) - T(N)) / N.
 * - SINGLE: `run(1)` does it once, each time under fresh circumstances that `before` prepares, untimed.
 * - OWN: `sample` times it by itself and gives ticks (interrupt latency, I/O waiting). */
enum timing { TIMING_REPEATED, TIMING_SINGLE, TIMING_OWN };

enum {
	RING0 = 1 << 0,
	RING1 = 1 << 1,
	RING2 = 1 << 2,
	RING3 = 1 << 3,
	RINGS = RING0 | RING1 | RING2 | RING3,
	FLAT = 1 << MODE_FLAT,
	PAGING = 1 << MODE_PAGING,
	PAE = 1 << MODE_PAE,
	LONG = 1 << MODE_LONG,
	MODES = FLAT | PAGING | PAE | LONG,
};

struct operation {
	const char *name;  /* short, lower case, words by '-': the name in results and on the command line, for ever */
	const char *title; /* what it does, in one line */
	uint8_t group;     /* enum group */
	uint8_t timing;    /* enum timing */
	uint8_t modes;     /* where the architecture allows to try it at all */
	uint8_t rings;
	uint16_t unroll; /* operations per turn of `run` */
	/* NULL: nothing to prepare. Otherwise at ring 0, untimed, interrupts off: a reason why this machine lacks it, or NULL. */
	const char *(*prepare)(void);
	void (*before)(void);        /* SINGLE: before each shot, untimed */
	void (*run)(uint32_t turns); /* REPEATED, SINGLE: at the condition's ring */
	uint64_t (*sample)(void);    /* OWN: ticks of one; UINT64_MAX: this one failed */
	void (*finish)(void);        /* undoes `prepare`, at ring 0, even after a fault; or NULL */
	uint32_t bytes;              /* of memory that one operation moves (bandwidth), or the size of what it works on (latency); 0 */
	/* REPEATED with unroll > 1: does it just once, for single shots; NULL: no single shots. */
	void (*once)(uint32_t turns);
	uint32_t timeout_ms; /* of one shot, where it may take longer than the plan's time-out; 0: it may not */
};

/* Each file's part of the table of all operations lies beside what it needs: `OPERATIONS(cpu) = { { .name = "add", ... }, ... };`
 * The linker joins the parts in the order of the object files; both programs must be linked in the same order. */
#define OPERATIONS(part)                          \
	const struct operation part##_operations[] \
		__attribute__((section("operation_table"), aligned(sizeof(void *)), used))

extern const struct operation operations[] __asm__("__start_operation_table");
extern const struct operation operations_end[] __asm__("__stop_operation_table");
#define n_operations ((unsigned)(operations_end - operations))
#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

enum status { STATUS_OK, STATUS_FAULT, STATUS_TIMEOUT, STATUS_MISSING, STATUS_INEFFECTIVE };

/* Results lie in memory that both programs share: 64-bit numbers are aligned alike in both. */
typedef uint64_t stable64 __attribute__((aligned(8)));

/* Ticks of one operation, in thousandths. */
struct spread {
	stable64 min, median, p99, max;
	uint32_t n;
};

struct result {
	uint16_t operation;
	uint16_t condition; /* index into shared->conditions */
	uint8_t status;     /* enum status */
	uint8_t vector;     /* STATUS_FAULT */
	uint8_t reliable;   /* takes agree, the spread is small, and time did not jump */
	uint8_t n_reasons;
	union { /* set the whole result to 0 first: the other program reads all 64 bits */
		const char *reason; /* STATUS_MISSING, STATUS_INEFFECTIVE; in the memory of the program that measured it */
		uint64_t reason_address;
	};
	struct spread single;  /* single shots less the empty shot's minimum (min, median); outliers kept (p99, max) */
	stable64 batch;        /* per operation, from (T(2N) - T(N)) / N of minima; batch_of 0: not timed so */
	stable64 batch_median; /* of medians */
	stable64 done;         /* how many times in all it was done for these figures */
	uint32_t batch_of;     /* operations in a batch of N */
};

/* How much is done for a figure: as the plan says. Set before the first `measure`. */
struct effort {
	uint32_t repetitions, budget_ms, timeout_ms;
};
extern struct effort the_effort;

/* Runs one operation under a condition that is in force, and gives figures or the reason why there are none: one take of
 * them, reliable if its spread is small. Calls
 * `prepare`, `before` and `finish` at ring 0. Before `prepare`, arena_reset(): what an operation takes, it has until its `finish`. */
void measure(const struct operation *operation, const struct condition *condition, struct result *result);
/* The figure of a result, and by how much two of them may differ anyway; in thousandths of ticks. */
uint64_t measure_cost(const struct result *result);
uint64_t measure_slack(const struct result *result);
/* Of an empty shot under this condition, which is in force: its minimum, in thousandths of ticks. */
uint64_t measure_empty(const struct condition *condition);
/* After how long one shot of it counts as hanging. */
uint32_t measure_timeout_ms(const struct operation *operation);
/* How often time was earlier after a shot than before it, since the start of this program. */
uint32_t measure_backward_jumps(void);

#endif
