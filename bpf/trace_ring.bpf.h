/* SPDX-License-Identifier: GPL-2.0 */
/* Writing records into the rings of abi/trace.h, and the configuration of the probes. */
#ifndef VMSCOPE_TRACE_RING_BPF_H
#define VMSCOPE_TRACE_RING_BPF_H

#include "trace_kernel.bpf.h"
#include "abi/trace.h"

/* Constants for the verifier, which removes the code that they disable. The Rust twin is in crates/tracer/src/load.rs. */
const volatile struct {
	__u64 base_ns;     /* CLOCK_MONOTONIC: records' times count from here */
	__u64 slots_shift; /* slots per CPU: a power of two */
	__u64 slots_mask;  /* slots per CPU - 1 */
	__u64 filter;      /* FILTER_* of trace_filter.bpf.h */
	__u64 filter_id;   /* process or control group */
	__u64 filter_level;
	__u64 exclude; /* a process; 0: none */
	__u64 stacks;  /* whether stacks are kept */
	__u64 user_stacks_mask; /* rows for user stacks, a power of two, - 1; 0: none are kept */
	__u64 enter_type; /* numbers of the trace events raw_syscalls:sys_enter and sys_exit; 0: unused */
	__u64 exit_type;
	__u64 files_mask; /* rows for files, a power of two, - 1; 0: none are kept */
} config = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs */
	__type(key, __u32);
	__type(value, struct trace_ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * slots */
	__type(key, __u32);
	__type(value, struct trace_slot);
} slots SEC(".maps");

/* The reserved slots of a record, and its time. */
struct ring_space {
	__u64 position;
	__u64 time;
	__u64 first; /* the ring's first slot */
};

static __always_inline bool ring_reserve(struct ring_space *space, __u32 kind, __u32 n)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct trace_ring *ring = bpf_map_lookup_elem(&rings, &cpu);

	if (!ring)
		return false;
	if (ring->room < ring->head - ring->tail + n) {
		__sync_fetch_and_add(&ring->lost[kind], 1);
		return false;
	}
	space->first = ring->first;
	space->position = __sync_fetch_and_add(&ring->head, n);
	space->time = (bpf_ktime_get_ns() - config.base_ns) & TRACE_TIME_MASK;
	return true;
}

static __always_inline void write_slot(struct ring_space *space, __u32 n, __u64 kind, __u64 low, __u64 payload)
{
	__u64 position = space->position + n;
	__u32 index = space->first + (position & config.slots_mask);
	struct trace_slot *slot = bpf_map_lookup_elem(&slots, &index);

	if (!slot)
		return;
	slot->payload = payload;
	store_barrier();
	slot->tag = ~(position >> config.slots_shift) << TRACE_GENERATION_SHIFT | kind << TRACE_KIND_SHIFT | low;
}

static __always_inline void write_more(struct ring_space *space, __u32 n, __u64 data, __u64 payload)
{
	write_slot(space, n, TRACE_MORE, data & TRACE_TIME_MASK, payload);
}

/* A record of one slot. */
static __always_inline int emit(__u32 kind, __u64 payload)
{
	struct ring_space space;

	if (ring_reserve(&space, kind, 1))
		write_slot(&space, 0, kind, space.time, payload);
	return 0;
}

/* A record of two slots. */
static __always_inline int emit_more(__u32 kind, __u64 payload, __u64 data, __u64 more)
{
	struct ring_space space;

	if (!ring_reserve(&space, kind, 2))
		return 0;
	write_more(&space, 1, data, more);
	write_slot(&space, 0, kind, space.time, payload);
	return 0;
}

static __always_inline __u64 halves(__u32 high, __u32 low)
{
	return (__u64)high << 32 | low;
}

#endif
