// SPDX-License-Identifier: GPL-2.0
/* Notes when threads of vCPUs get and leave CPUs and when they are woken. Loaded only when asked for.
 *
 * The scheduler calls both programs with interrupts off (the one wake-up that it reports with interrupts on is
 * that of the running thread itself, which is passed over), and NMIs neither switch nor wake: so the ring of a
 * CPU has one producer at a time, and writing is plain stores. */
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

static __always_inline struct switch_event *next_event(struct ring **ring)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 slot;

	if (MAX_CPUS <= cpu)
		return NULL;
	*ring = &rings[cpu];
	if ((*ring)->head - (*ring)->tail > config.slot_mask) {
		(*ring)->dropped++;
		return NULL;
	}
	slot = cpu * (config.slot_mask + 1) + ((*ring)->head & config.slot_mask);
	return bpf_map_lookup_elem(&events, &slot);
}

static __always_inline void publish(struct ring *ring)
{
	/* x86 keeps stores in order; the barrier keeps the compiler from moving them past the head. */
	barrier();
	ring->head++;
}

static __always_inline __u8 why_out(bool preempted, unsigned int state, struct task_struct *task,
				    struct kvm_vcpu *vcpu)
{
	__u64 blocking = 0;

	if (preempted || state == TASK_RUNNING)
		return is_throttled(task) ? AWAY_THROTTLED : AWAY_RUNNABLE;
	if (bpf_core_field_exists(vcpu->stat.generic.blocking))
		bpf_core_read(&blocking, sizeof(blocking), &vcpu->stat.generic.blocking);
	return blocking ? AWAY_HALTED : AWAY_ASLEEP;
}

/* Where the guest will go on, which is where it suffers the wait: nobody runs the vCPU now, so that its registers are at
 * rest. */
static __always_inline void read_guest(struct switch_event *event, struct kvm_vcpu *vcpu)
{
	struct vmcb_paging paging;
	__u32 available = 0;
	char *vmcb;
	long err;

	if (is_svm(config.vendor)) {
		err = read_vmcb(&vmcb, vcpu);
		err |= bpf_probe_read_kernel(&paging, sizeof(paging), vmcb + VMCB_CR3);
		err |= bpf_probe_read_kernel(&event->guest_fs_base, sizeof(event->guest_fs_base), vmcb + VMCB_FS_BASE);
		err |= bpf_probe_read_kernel(&event->cpl, sizeof(event->cpl), vmcb + VMCB_CPL);
		event->guest_cr3 = paging.cr3;
		event->guest_ip = paging.rip;
		event->flags = err ? 0 : SWITCH_GUEST | SWITCH_CR3;
	} else if (is_vmx(config.vendor)) {
		/* As with samples: only the address, and only when KVM happens to have it. */
		err = bpf_core_read(&available, sizeof(available), &vcpu->arch.regs_avail);
		if (err || !(available & (1u << VCPU_REGS_RIP)) ||
		    bpf_core_read(&event->guest_ip, sizeof(event->guest_ip), &vcpu->arch.regs[VCPU_REGS_RIP]))
			return;
		event->guest_fs_base = 0;
		event->cpl = (__s64)event->guest_ip < 0 ? 0 : 3;
		event->flags = SWITCH_GUEST;
	}
}

static __always_inline void note_out(struct vcpu_ref *ref, bool preempted, unsigned int state,
				     struct task_struct *prev, struct task_struct *next)
{
	struct kvm_vcpu *vcpu = vcpu_of(ref);
	struct switch_event *event;
	struct ring *ring;

	event = next_event(&ring);
	if (!event)
		return;
	event->time_ns = bpf_ktime_get_ns();
	event->vcpu = ref->row;
	event->cpu = bpf_get_smp_processor_id();
	event->pid = next->tgid;
	event->tid = next->pid;
	event->kind = SWITCH_OUT;
	event->away = AWAY_ASLEEP;
	event->exit_reason = 0;
	event->flags = 0;
	/* A thread that ends has closed its files: its vCPU may be gone. */
	if (!(state & TASK_DEAD)) {
		event->away = why_out(preempted, state, prev, vcpu);
		if (!is_protected(ref)) {
			event->exit_reason = exit_reason(vcpu, config.vendor);
			/* What follows a halt need not have been there before it. */
			if (event->away != AWAY_HALTED)
				read_guest(event, vcpu);
		}
	}
	publish(ring);
}

static __always_inline void note_in(struct vcpu_ref *ref, struct task_struct *prev)
{
	struct switch_event *event;
	struct ring *ring;

	event = next_event(&ring);
	if (!event)
		return;
	event->time_ns = bpf_ktime_get_ns();
	event->vcpu = ref->row;
	event->cpu = bpf_get_smp_processor_id();
	event->pid = prev->tgid;
	event->tid = prev->pid;
	event->exit_reason = 0;
	event->kind = SWITCH_IN;
	event->away = AWAY_ON_CPU;
	publish(ring);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(note_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	struct vcpu_ref *ref;

	if (!bpf_core_type_exists(struct kvm_vcpu))
		return 0;
	if (prev->pid) {
		ref = find_vcpu(prev->pid);
		if (ref)
			note_out(ref, preempt, state, prev, next);
	}
	if (next->pid) {
		ref = find_vcpu(next->pid);
		if (ref)
			note_in(ref, prev);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(note_wakeup, struct task_struct *task)
{
	struct switch_event *event;
	struct vcpu_ref *ref;
	struct ring *ring;

	/* Woken before it slept: it goes on without a switch. */
	if (task->on_cpu)
		return 0;
	ref = find_vcpu(task->pid);
	if (!ref)
		return 0;
	event = next_event(&ring);
	if (!event)
		return 0;
	event->time_ns = bpf_ktime_get_ns();
	event->vcpu = ref->row;
	event->cpu = task->thread_info.cpu;
	event->pid = 0;
	event->tid = 0;
	event->exit_reason = 0;
	event->kind = SWITCH_WAKE;
	event->away = is_throttled(task) ? AWAY_THROTTLED : AWAY_RUNNABLE;
	publish(ring);
	return 0;
}
