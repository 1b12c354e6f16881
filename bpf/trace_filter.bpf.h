/* SPDX-License-Identifier: GPL-2.0 */
/* Which tasks' events are kept. */
#ifndef VMSCOPE_TRACE_FILTER_BPF_H
#define VMSCOPE_TRACE_FILTER_BPF_H

#include "trace_ring.bpf.h"

#define FILTER_NONE 0
#define FILTER_TREE 1
#define FILTER_PROCESS 2
#define FILTER_CGROUP 3
#define FILTER_PROCESS_AND_RIVALS 4 /* the process, and all switches and wake-ups: its rivals for the CPUs */

/* One bit per thread id, of which there are at most 2^22 (PID_MAX_LIMIT). Cheaper than a hash map, and never full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: 65536 with FILTER_TREE */
	__type(key, __u32);
	__type(value, __u64);
} followed SEC(".maps");

static __always_inline __u64 *followed_word(__u32 tid)
{
	__u32 index = tid / 64;

	return bpf_map_lookup_elem(&followed, &index);
}

static __always_inline bool is_followed(__u32 tid)
{
	__u64 *word = followed_word(tid);

	return word && *word >> (tid % 64) & 1;
}

static __always_inline void follow(__u32 tid)
{
	__u64 *word = followed_word(tid);

	if (word)
		__sync_fetch_and_or(word, 1ULL << (tid % 64));
}

static __always_inline void unfollow(__u32 tid)
{
	__u64 *word = followed_word(tid);

	if (word)
		__sync_fetch_and_and(word, ~(1ULL << (tid % 64)));
}

static __always_inline bool is_in_cgroup(struct task_struct *task)
{
	struct cgroup *group = task->cgroups->dfl_cgrp;
	struct cgroup *ancestor = NULL;

	if (group->level < (__s64)config.filter_level)
		return false;
	bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
			      (char *)&group->ancestors + config.filter_level * sizeof(ancestor));
	return ancestor && BPF_CORE_READ(ancestor, kn, id) == config.filter_id;
}

static __always_inline bool is_traced(struct task_struct *task)
{
	if (config.filter == FILTER_TREE)
		return is_followed(task->pid);
	if (config.filter == FILTER_PROCESS || config.filter == FILTER_PROCESS_AND_RIVALS)
		return task->tgid == config.filter_id;
	if (config.filter == FILTER_CGROUP)
		return is_in_cgroup(task);
	return true;
}

/* Whether the task's switches and wake-ups are kept. */
static __always_inline bool is_schedule_traced(struct task_struct *task)
{
	return config.filter == FILTER_PROCESS_AND_RIVALS || is_traced(task);
}

/* Whether the running task's own actions (system calls, page faults, lock waits) are left out. */
static __always_inline bool is_passed_over(struct task_struct *task)
{
	return (config.exclude && task->tgid == config.exclude) || !is_traced(task);
}

#endif
