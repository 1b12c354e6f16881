/* SPDX-License-Identifier: GPL-2.0 */
/* Stacks of waiting tasks: the kernel's and their programs'. */
#ifndef VMSCOPE_TRACE_STACK_BPF_H
#define VMSCOPE_TRACE_STACK_BPF_H

#include "trace_ring.bpf.h"

#define STACK_DEPTH 32

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1); /* user space: most different stacks */
	__uint(key_size, sizeof(__u32));
	__uint(value_size, STACK_DEPTH * sizeof(__u64));
} stacks SEC(".maps");

/* The id of the running task's kernel stack; negative: none. */
static __always_inline __s32 stack_of(void *ctx)
{
	long stack;

	if (!config.stacks)
		return -1;
	stack = bpf_get_stackid(ctx, &stacks, BPF_F_FAST_STACK_CMP);
	/* Another stack has the same hash. Without its innermost function, which is the tracepoint's, it gets another one. */
	if (stack < 0)
		stack = bpf_get_stackid(ctx, &stacks, BPF_F_FAST_STACK_CMP | 1);
	return stack;
}

/* Equal addresses mean other code in another process, so this is no BPF_MAP_TYPE_STACK_TRACE. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: a power of two */
	__type(key, __u32);
	__type(value, struct user_stack);
} user_stacks SEC(".maps");

/* The one that is being looked for. Switches do not interrupt each other on a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct user_stack);
} user_stack_sought SEC(".maps");

/* Sleeps whose user stack found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} user_stacks_lost SEC(".maps");

/* Rows that a stack may be in. */
#define USER_STACK_PLACES 8

static __always_inline __u64 hash_of(const struct user_stack *stack)
{
	__u64 hash = stack->process;

	for (__u32 i = 0; i < USER_STACK_DEPTH && i < stack->depth; i++) {
		hash = (hash ^ stack->addresses[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 32;
	}
	return hash | 1;
}

/* The row of a stack and one; 0: there is no room. Two CPUs that store a stack at once may give it two rows. */
static __always_inline __u32 user_stack_row(struct user_stack *sought)
{
	__u32 zero = 0;
	__u64 *lost;

	for (__u32 i = 0; i < USER_STACK_PLACES; i++) {
		__u32 index = ((sought->hash >> 32) + i) & config.user_stacks_mask;
		struct user_stack *row = bpf_map_lookup_elem(&user_stacks, &index);

		if (!row)
			return 0;
		if (row->hash == sought->hash && row->process == sought->process)
			return index + 1;
		if (row->hash || __sync_val_compare_and_swap(&row->hash, 0, sought->hash))
			continue;
		row->time = sought->time;
		row->process = sought->process;
		row->depth = sought->depth;
		bpf_probe_read_kernel(row->addresses, sizeof(row->addresses), sought->addresses);
		return index + 1;
	}
	lost = bpf_map_lookup_elem(&user_stacks_lost, &zero);
	if (lost)
		__sync_fetch_and_add(lost, 1);
	return 0;
}

/* The row of the running task's user stack and one; 0: none. */
static __always_inline __u32 user_stack_of(void *ctx, struct task_struct *task, __u64 time)
{
	struct user_stack *sought;
	__u32 zero = 0;
	long bytes;

	/* The other workers of programs have no address in theirs. */
	if (!config.user_stacks_mask || task->flags & (PF_KTHREAD | PF_IO_WORKER))
		return 0;
	sought = bpf_map_lookup_elem(&user_stack_sought, &zero);
	if (!sought)
		return 0;
	bytes = bpf_get_stack(ctx, sought->addresses, sizeof(sought->addresses), BPF_F_USER_STACK);
	if (bytes <= 0 || !sought->addresses[0])
		return 0;
	sought->time = time;
	sought->process = task->tgid;
	sought->depth = bytes / sizeof(__u64);
	sought->hash = hash_of(sought);
	return user_stack_row(sought);
}

#endif
