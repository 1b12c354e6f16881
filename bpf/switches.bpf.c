// SPDX-License-Identifier: GPL-2.0
/* Records when vCPU threads get and leave CPUs, and when they are woken. Loaded on request only.
 *
 * The scheduler calls both programs with interrupts off, and NMIs neither switch nor wake tasks. So the ring of a CPU
 * has one producer at a time. One wake-up is reported with interrupts on, that of the running thread itself: it is
 * ignored. */
#include "ring.bpf.h"
#include "vcpu.bpf.h"
#include "abi/switch.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 slot_mask; /* slots per CPU - 1; slots are a power of two */
	__u32 vendor;    /* VENDOR_* */
} config = {};

struct ring rings[MAX_CPUS] SEC(".bss.rings");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * slots */
	__type(key, __u32);
	__type(value, struct switch_event);
} events SEC(".maps");

/* An event of this CPU with what all kinds have; NULL: there is no space. */
static __always_inline struct switch_event *reserve_event(struct ring_space *space, __u8 kind, __u32 vcpu, __u32 cpu)
{
	struct switch_event *event;

	if (!ring_reserve(space, rings, config.slot_mask))
		return NULL;
	event = bpf_map_lookup_elem(&events, &space->slot);
	if (!event)
		return NULL;
	event->time_ns = bpf_ktime_get_ns();
	event->kind = kind;
	event->vcpu = vcpu;
	event->cpu = cpu;
	event->pid = 0;
	event->tid = 0;
	event->exit_reason = 0;
	event->flags = 0;
	return event;
}

static __always_inline __u8 off_cpu_reason(bool preempted, unsigned int state, struct task_struct *task,
				    struct kvm_vcpu *vcpu)
{
	if (preempted || state == TASK_RUNNING)
		return is_throttled(task) ? OFFCPU_THROTTLED : OFFCPU_RUNNABLE;
	return why_asleep(task, vcpu);
}

static __always_inline void set_nested(struct switch_event *event)
{
	event->guest_ip = 0;
	event->guest_fs_base = 0;
	event->guest_stack = 0;
	event->cpl = CPL_NESTED;
	event->flags = SWITCH_GUEST;
}

/* Where the guest will continue, which is the code that is delayed. No CPU runs the vCPU now, so its registers do not
 * change. */
static __always_inline void read_guest(struct switch_event *event, struct vcpu_ref *ref)
{
	struct kvm_vcpu *vcpu = vcpu_of(ref);
	struct vmcb_paging paging;
	__u32 available = 0;
	char *vmcb;
	long err;

	if (is_svm(config.vendor)) {
		err = read_vmcb(&vmcb, vcpu);
		if (!err && is_nested_svm(vmcb, ref->vmcb)) {
			set_nested(event);
			return;
		}
		err |= bpf_probe_read_kernel(&paging, sizeof(paging), vmcb + VMCB_CR3);
		err |= bpf_probe_read_kernel(&event->guest_fs_base, sizeof(event->guest_fs_base), vmcb + VMCB_FS_BASE);
		err |= bpf_probe_read_kernel(&event->cpl, sizeof(event->cpl), vmcb + VMCB_CPL);
		event->guest_cr3 = paging.cr3;
		event->guest_ip = paging.rip;
		event->guest_stack = event->cpl ? 0 : KERNEL_STACK(paging.rsp);
		event->flags = err ? 0 : SWITCH_GUEST | SWITCH_CR3;
	} else if (is_vmx(config.vendor)) {
		if (is_nested_vmx(vcpu)) {
			set_nested(event);
			return;
		}
		/* As in samples: only the instruction pointer, and only if KVM has it cached. Nothing caches the stack
		 * pointer. */
		err = bpf_core_read(&available, sizeof(available), &vcpu->arch.regs_avail);
		if (err || !(available & (1u << VCPU_REGS_RIP)) ||
		    bpf_core_read(&event->guest_ip, sizeof(event->guest_ip), &vcpu->arch.regs[VCPU_REGS_RIP]))
			return;
		event->guest_fs_base = 0;
		event->guest_stack = 0;
		event->cpl = (__s64)event->guest_ip < 0 ? 0 : 3;
		event->flags = SWITCH_GUEST;
	}
}

static __always_inline void emit_out(struct vcpu_ref *ref, bool preempted, unsigned int state,
				     struct task_struct *prev, struct task_struct *next)
{
	struct kvm_vcpu *vcpu = vcpu_of(ref);
	struct switch_event *event;
	struct ring_space space;

	event = reserve_event(&space, SWITCH_OUT, ref->row, bpf_get_smp_processor_id());
	if (!event)
		return;
	event->pid = next->tgid;
	event->tid = next->pid;
	event->off_cpu = OFFCPU_ASLEEP;
	/* An exiting thread has closed its files: its vCPU may be gone. */
	if (!(state & TASK_DEAD)) {
		event->off_cpu = off_cpu_reason(preempted, state, prev, vcpu);
		if (!is_protected(ref)) {
			event->exit_reason = exit_reason(vcpu, config.vendor);
			/* After a halt the guest continues with whatever woke it; a pause delays none of its code. */
			if (event->off_cpu != OFFCPU_HALTED && event->off_cpu != OFFCPU_PAUSED)
				read_guest(event, ref);
		}
	}
	ring_publish(&space);
}

static __always_inline void emit_in(struct vcpu_ref *ref, struct task_struct *prev)
{
	struct switch_event *event;
	struct ring_space space;

	event = reserve_event(&space, SWITCH_IN, ref->row, bpf_get_smp_processor_id());
	if (!event)
		return;
	event->pid = prev->tgid;
	event->tid = prev->pid;
	event->off_cpu = OFFCPU_ON_CPU;
	ring_publish(&space);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	struct vcpu_ref *ref;

	if (!bpf_core_type_exists(struct kvm_vcpu))
		return 0;
	if (prev->pid) {
		ref = find_vcpu(prev->pid);
		if (ref)
			emit_out(ref, preempt, state, prev, next);
	}
	if (next->pid) {
		ref = find_vcpu(next->pid);
		if (ref)
			emit_in(ref, prev);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct switch_event *event;
	struct vcpu_ref *ref;
	struct ring_space space;

	/* It was woken before it slept, so it continues without a switch. */
	if (task->on_cpu)
		return 0;
	ref = find_vcpu(task->pid);
	if (!ref)
		return 0;
	event = reserve_event(&space, SWITCH_WAKE, ref->row, task->thread_info.cpu);
	if (!event)
		return 0;
	event->off_cpu = is_throttled(task) ? OFFCPU_THROTTLED : OFFCPU_RUNNABLE;
	ring_publish(&space);
	return 0;
}
