// SPDX-License-Identifier: GPL-2.0
/* Stamps marks that a guest makes by an instruction that always leaves it, CPUID: the same instants seen from both sides. */
#include "kernel.bpf.h"
#include <bpf/bpf_tracing.h>
#include "abi/vm.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 pid;   /* the VM's process */
	__u32 nonce; /* upper bits of a mark's value; the lower ones are its number */
} config = {};

/* By the mark's number: when the host saw it, ns of CLOCK_MONOTONIC; 0: not yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MARKS);
	__type(key, __u32);
	__type(value, __u64);
} marks SEC(".maps");

SEC("raw_tp/kvm_cpuid")
int BPF_PROG(note_mark, unsigned int leaf, unsigned int value)
{
	__u64 now = bpf_ktime_get_ns();
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 key = value & (MARKS - 1);
	__u64 *mark;

	if (leaf != MARK_LEAF || task->tgid != config.pid || (value & ~(MARKS - 1)) != config.nonce)
		return 0;
	mark = bpf_map_lookup_elem(&marks, &key);
	if (mark && !*mark)
		*mark = now;
	return 0;
}
