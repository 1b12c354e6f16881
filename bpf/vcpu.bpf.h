/* SPDX-License-Identifier: GPL-2.0 */
/* vCPUs: the table of their threads, exit reasons, wait times.
 *
 * A vCPU's address comes from user space and its VM may end at any time, so it is probed and never dereferenced. Most of
 * a probe's cost is the call, so neighbouring fields are read by one probe. */
#ifndef VMSCOPE_VCPU_BPF_H
#define VMSCOPE_VCPU_BPF_H

#include "kernel.bpf.h"
#include "vmcb.bpf.h"
#include "abi/sample.h"
#include <stdbool.h>

/* A variable has a known address, so there is no lookup as in an array map. All objects share it. */
struct vcpu_bucket vcpus[VCPU_BUCKETS] SEC(".bss.vcpus");

/* NULL: the thread is no vCPU. */
static __always_inline struct vcpu_ref *find_vcpu(__u32 tid)
{
	struct vcpu_bucket *bucket = &vcpus[(tid * VCPU_HASH) >> (32 - VCPU_BUCKET_BITS)];

#pragma unroll
	for (int i = 0; i < VCPU_BUCKET_SLOTS; i++)
		if (bucket->ref[i].tid == tid)
			return &bucket->ref[i];
	return NULL;
}

static __always_inline struct kvm_vcpu *vcpu_of(struct vcpu_ref *ref)
{
	return (struct kvm_vcpu *)(ref->vcpu & ~VCPU_FLAGS);
}

static __always_inline bool is_protected(struct vcpu_ref *ref)
{
	return ref->vcpu & VCPU_PROTECTED;
}

static __always_inline bool is_svm(__u32 vendor)
{
	return vendor == VENDOR_AMD && bpf_core_type_exists(struct vcpu_svm);
}

static __always_inline bool is_vmx(__u32 vendor)
{
	return vendor == VENDOR_INTEL && bpf_core_type_exists(struct vcpu_vmx);
}

static __always_inline long read_vmcb(char **vmcb, struct kvm_vcpu *vcpu)
{
	struct vcpu_svm *svm = (struct vcpu_svm *)vcpu; /* vcpu is its first member */

	return bpf_core_read(vmcb, sizeof(*vmcb), &svm->vmcb);
}

/* Whether the vCPU runs a guest of its guest, or did at the last exit: that has a control block of its own. `own` is the
 * vCPU's; 0: not known. */
static __always_inline bool is_nested_svm(char *vmcb, __u64 own)
{
	return own && (__u64)vmcb != own;
}

static __always_inline bool is_nested_vmx(struct kvm_vcpu *vcpu)
{
	struct vcpu_vmx *vmx = (struct vcpu_vmx *)vcpu; /* vcpu is its first member */
	char *loaded;

	if (!bpf_core_field_exists(vmx->vmcs01) || bpf_core_read(&loaded, sizeof(loaded), &vmx->loaded_vmcs))
		return false;
	return loaded != (char *)vmx + bpf_core_field_offset(vmx->vmcs01);
}

/* Reason and interrupt information of the last exit. */
static __always_inline long read_vmx_exit(__u32 *reason, __u32 *info, struct kvm_vcpu *vcpu)
{
	struct vcpu_vmx *vmx = (struct vcpu_vmx *)vcpu; /* vcpu is its first member */
	struct vcpu_vmx___vt *with_vt = (struct vcpu_vmx___vt *)vcpu;
	long err;

	if (bpf_core_field_exists(with_vt->vt)) {
		err = bpf_core_read(reason, sizeof(*reason), &with_vt->vt.exit_reason.full);
		err |= bpf_core_read(info, sizeof(*info), &with_vt->vt.exit_intr_info);
	} else {
		err = bpf_core_read(reason, sizeof(*reason), &vmx->exit_reason.full);
		err |= bpf_core_read(info, sizeof(*info), &vmx->exit_intr_info);
	}
	*reason &= VMX_BASIC_REASON;
	return err;
}

/* 0: unknown. */
static __always_inline __u32 exit_reason(struct kvm_vcpu *vcpu, __u32 vendor)
{
	__u32 reason = 0;
	__u32 info;
	char *vmcb;

	if (is_svm(vendor)) {
		if (!read_vmcb(&vmcb, vcpu))
			bpf_probe_read_kernel(&reason, sizeof(reason), vmcb + VMCB_EXIT_CODE);
	} else if (is_vmx(vendor)) {
		if (read_vmx_exit(&reason, &info, vcpu))
			reason = 0;
	}
	return reason;
}

/* Whether a CPU quota stops the thread. */
static __always_inline bool is_throttled(struct task_struct *task)
{
	struct task_struct___throttled *by_task = (void *)task;
	struct cfs_rq *queue = NULL;
	int count = 0;
	_Bool throttled = false;

	if (bpf_core_field_exists(by_task->throttled)) {
		bpf_core_read(&throttled, sizeof(throttled), &by_task->throttled);
		return throttled;
	}
	if (bpf_core_field_exists(queue->throttle_count) && bpf_core_field_exists(task->se.cfs_rq) &&
	    !bpf_core_read(&queue, sizeof(queue), &task->se.cfs_rq))
		bpf_core_read(&count, sizeof(count), &queue->throttle_count);
	return 0 < count;
}

/* Exits to user space after which a VMM stops a vCPU: for its debugger, or because the guest can't go on. */
#define STOPPING_EXITS                                                                                                 \
	(1u << KVM_EXIT_DEBUG | 1u << KVM_EXIT_SHUTDOWN | 1u << KVM_EXIT_FAIL_ENTRY | 1u << KVM_EXIT_INTERNAL_ERROR |  \
	 1u << KVM_EXIT_SYSTEM_EVENT)
/* Those that can stand in kvm_run while a vCPU is paused. A VMM that pauses it between two runs has KVM complete its I/O
 * first, which leaves the old reason. */
#define PAUSED_EXITS (STOPPING_EXITS | 1u << KVM_EXIT_INTR | 1u << KVM_EXIT_IO | 1u << KVM_EXIT_MMIO)

/* Whether a thread that sleeps does so because its VMM paused the vCPU: outside KVM_RUN (inside, the vCPU's preempt
 * notifier is registered), and with no I/O of the guest to do. */
static __always_inline bool is_paused(struct task_struct *task, struct kvm_vcpu *vcpu)
{
	void *notifier = NULL, *io = NULL;
	struct kvm_run *run = NULL;
	__u32 reason = 0;

	if (!bpf_core_field_exists(task->preempt_notifiers) ||
	    !bpf_core_field_exists(vcpu->arch.complete_userspace_io))
		return false;
	if (bpf_core_read(&notifier, sizeof(notifier), &task->preempt_notifiers.first) || notifier ||
	    bpf_core_read(&io, sizeof(io), &vcpu->arch.complete_userspace_io) || io ||
	    bpf_core_read(&run, sizeof(run), &vcpu->run) ||
	    bpf_core_read(&reason, sizeof(reason), &run->exit_reason))
		return false;
	return reason < 32 && (PAUSED_EXITS >> reason & 1);
}

/* Why a vCPU's thread that is not runnable sleeps. */
static __always_inline __u8 why_asleep(struct task_struct *task, struct kvm_vcpu *vcpu)
{
	__u64 blocking = 0;

	if (bpf_core_field_exists(vcpu->stat.generic.blocking))
		bpf_core_read(&blocking, sizeof(blocking), &vcpu->stat.generic.blocking);
	if (blocking)
		return OFFCPU_HALTED;
	return is_paused(task, vcpu) ? OFFCPU_PAUSED : OFFCPU_ASLEEP;
}

/* Three neighbours of kvm_vcpu.stat.generic. */
struct halt_times {
	__u64 poll_success_ns;
	__u64 poll_fail_ns;
	__u64 wait_ns;
};

#define OFFSET_IN_STAT(field) bpf_core_field_offset(struct kvm_vcpu_stat_generic, field)

/* Whether this kernel has all wait counters of `struct sample`, and those of KVM as the neighbours of halt_times. */
static __always_inline bool counts_waits(void)
{
	return bpf_core_field_exists(struct task_struct, sched_info.run_delay) &&
	       bpf_core_field_exists(struct kvm_vcpu_stat_generic, halt_wait_ns) &&
	       OFFSET_IN_STAT(halt_poll_fail_ns) == OFFSET_IN_STAT(halt_poll_success_ns) + 8 &&
	       OFFSET_IN_STAT(halt_wait_ns) == OFFSET_IN_STAT(halt_poll_success_ns) + 16;
}

static __always_inline long read_halt_times(struct halt_times *times, struct kvm_vcpu *vcpu)
{
	return bpf_probe_read_kernel(times, sizeof(*times), &vcpu->stat.generic.halt_poll_success_ns);
}

#endif
