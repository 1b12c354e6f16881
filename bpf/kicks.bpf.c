// SPDX-License-Identifier: GPL-2.0
/* Marks vCPUs that their VMM took out of KVM_RUN for a reason of its own: samples alone show a pause as time without
 * samples. It runs when KVM_RUN returns to the VMM, not at every VM exit. */
#include "vcpu.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

#define EINTR 4

/* `error` is -EINTR after a signal, as a VMM sends it to get hold of the vCPU. */
SEC("tp_btf/kvm_userspace_exit")
int BPF_PROG(on_kick, __u32 reason, int error)
{
	struct task_struct *task;
	struct vcpu_ref *ref;

	if (error != -EINTR && !(reason < 32 && (STOPPING_EXITS >> reason & 1)))
		return 0;
	task = bpf_get_current_task_btf();
	ref = find_vcpu(task->pid);
	if (ref)
		ref->kicked = 1;
	return 0;
}
