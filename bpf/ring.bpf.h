/* SPDX-License-Identifier: GPL-2.0 */
/* Writing into the per-CPU rings of struct ring. A ring is an mmapped array: a write is plain stores, allocates nothing
 * and wakes no task. Each ring has one producer at a time; the consumer in user space moves `tail`. */
#ifndef VMSCOPE_RING_BPF_H
#define VMSCOPE_RING_BPF_H

#include <stdbool.h>
#include "kernel.bpf.h"
#include "abi/sample.h"

/* A reserved slot of this CPU's ring. */
struct ring_space {
	struct ring *ring;
	__u64 head;
	__u32 slot; /* among the slots of all CPUs */
};

/* False: the ring is full, and the record is counted as dropped. `rings` has MAX_CPUS elements. */
static __always_inline bool ring_reserve(struct ring_space *space, struct ring *rings, __u32 slot_mask)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (MAX_CPUS <= cpu)
		return false;
	space->ring = &rings[cpu];
	space->head = space->ring->head;
	if (space->head - space->ring->tail > slot_mask) {
		space->ring->dropped++;
		return false;
	}
	space->slot = cpu * (slot_mask + 1) + (space->head & slot_mask);
	return true;
}

/* The consumer must see the whole record before it sees the new head. */
static __always_inline void ring_publish(struct ring_space *space)
{
	store_barrier();
	space->ring->head = space->head + 1;
}

#endif
