// SPDX-License-Identifier: GPL-2.0
/* Counts the VM exits of each vCPU by reason. It runs at every exit, so it is loaded on request only. */
#include "vcpu.bpf.h"
#include "abi/switch.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 rows;   /* vCPUs that can be counted */
	__u32 vendor; /* VENDOR_* */
} config = {};

/* One thread at a time runs a vCPU, so each count has one writer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: rows * EXIT_SLOTS */
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline __u32 slot_of(__u32 reason)
{
	if (reason < EXIT_CODES)
		return reason;
	if (reason - EXIT_NPF < EXIT_NPF_CODES)
		return EXIT_CODES + reason - EXIT_NPF;
	return EXIT_OTHER;
}

/* Some verifiers reject the tracepoint's vCPU pointer as possibly NULL, so the vCPU comes from the table. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(count_exit)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct vcpu_ref *ref = find_vcpu(task->pid);
	__u64 *count;
	__u32 key;

	if (!ref || config.rows <= ref->row)
		return 0;
	key = ref->row * EXIT_SLOTS + slot_of(exit_reason(vcpu_of(ref), config.vendor));
	count = bpf_map_lookup_elem(&counts, &key);
	if (count)
		++*count;
	return 0;
}
