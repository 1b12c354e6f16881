// SPDX-License-Identifier: GPL-2.0
/* Records for how long CPU quotas throttled the queues of CPUs. Loaded once a VM has a quota.
 *
 * A group with a quota has a queue (`cfs_rq`) on each CPU. Whose share of the quota is used up is throttled, with everything
 * below it, until the quota's next period refills it. Both functions are called with interrupts off, and not from NMIs: the
 * ring of a CPU has one producer at a time. The lock of the queue's CPU is held: a queue is changed by one CPU at a time. */
#include "ring.bpf.h"
#include "abi/quota.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 slot_mask; /* slots per CPU - 1; slots are a power of two */
	__u32 cpus;	 /* the highest CPU's number + 1 */
} config = {};

struct ring rings[MAX_CPUS] SEC(".bss.rings");

/* The groups that are watched: by control group's id, a number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUOTA_GROUPS);
	__type(key, __u64);
	__type(value, __u32);
} groups SEC(".maps");

/* Since when a queue is throttled, by group and CPU; or QUEUE_*. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: QUOTA_GROUPS * CPUs */
	__type(key, __u32);
	__type(value, __u64);
} since SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * slots */
	__type(key, __u32);
	__type(value, struct quota_event);
} events SEC(".maps");

/* Since when the queue is throttled; NULL: its group is not watched. */
static __always_inline __u64 *find_queue(struct cfs_rq *queue, __u32 *group, __u32 *cpu)
{
	__u64 id = queue->tg->css.cgroup->kn->id;
	__u32 *number = bpf_map_lookup_elem(&groups, &id);
	__u32 slot;

	if (!number)
		return NULL;
	*group = *number;
	*cpu = queue->rq->cpu;
	if (config.cpus <= *cpu)
		return NULL;
	slot = *group * config.cpus + *cpu;
	return bpf_map_lookup_elem(&since, &slot);
}

SEC("fexit/throttle_cfs_rq")
int BPF_PROG(on_throttle, struct cfs_rq *queue, bool throttled)
{
	__u64 *from;
	__u32 group, cpu;

	/* The quota was refilled meanwhile. */
	if (!throttled)
		return 0;
	from = find_queue(queue, &group, &cpu);
	if (from)
		*from = bpf_ktime_get_ns();
	return 0;
}

SEC("fexit/unthrottle_cfs_rq")
int BPF_PROG(on_unthrottle, struct cfs_rq *queue)
{
	struct quota_event *event;
	struct ring_space space;
	__u64 *from, began;
	__u32 group, cpu;

	/* Linux 6.18 and later leave a queue throttled that has used up what it was given. */
	if (BPF_CORE_READ_BITFIELD_PROBED(queue, throttled))
		return 0;
	from = find_queue(queue, &group, &cpu);
	if (!from || *from == QUEUE_FREE)
		return 0;
	began = *from;
	*from = QUEUE_FREE;
	if (!ring_reserve(&space, rings, config.slot_mask))
		return 0;
	event = bpf_map_lookup_elem(&events, &space.slot);
	if (!event)
		return 0;
	event->from_ns = began;
	event->to_ns = bpf_ktime_get_ns();
	event->group = group;
	event->cpu = cpu;
	ring_publish(&space);
	return 0;
}
