/* SPDX-License-Identifier: GPL-2.0 */
/* Kernel stacks of waiting tasks. */
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

#endif
