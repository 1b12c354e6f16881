// SPDX-License-Identifier: GPL-2.0
/* The sampler: each sampling interrupt writes one record into the ring of its CPU.
 *
 * Only the CPU's own perf event writes the ring, and the BPF program of an event does not nest: there is one
 * producer.
 */
#include "files.bpf.h"
#include "guest_stack.bpf.h"
#include "registers.bpf.h"
#include "ring.bpf.h"
#include <linux/bpf_perf_event.h>

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 slot_mask;  /* slots per CPU - 1; slots are a power of two */
	__u32 call_graph; /* 0 or 1 */
	__u32 vendor;     /* VENDOR_*: a kernel may have both vendors' KVM built in */
	__u32 trigger;    /* TRIGGER_* */
} config = {};

struct ring rings[MAX_CPUS] SEC(".bss.rings");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * slots */
	__type(key, __u32);
	__type(value, struct sample);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * slots with call graphs */
	__type(key, __u32);
	__type(value, struct stack);
} stacks SEC(".maps");

/* KVM handles the interrupt that ended the guest's run in a window of its own. Softirqs raised by that interrupt run in
 * the same window, but on the IRQ stack: a tick there interrupted the host, not the guest. */
static __always_inline bool on_task_stack(struct bpf_perf_event_data *ctx, struct task_struct *task)
{
	return ctx->regs.rsp - (__u64)task->stack < THREAD_SIZE;
}

/* PF_VCPU is set from before the guest's run until the end of that window. Interrupts are on in the window only, so a
 * timer interrupt that finds PF_VCPU set came in the window. Whether it also ended the guest's run says the exit reason:
 * the window follows every exit. */
static __always_inline bool interrupted_guest(struct bpf_perf_event_data *ctx, struct task_struct *task)
{
	return (task->flags & PF_VCPU) && on_task_stack(ctx, task);
}

/* An NMI can come anywhere while PF_VCPU is set. KVM marks the NMIs that ended a guest's run. */
static __always_inline bool nmi_from_guest(struct kvm_vcpu *vcpu)
{
	__u8 handling = 0;

	bpf_core_read(&handling, sizeof(handling), &vcpu->arch.handling_intr_from_guest);
	return handling;
}

/* Whether a host interrupt ended the guest's run. After any other exit the window lets in what came while KVM had
 * interrupts off: that interrupted KVM. */
static __always_inline bool ended_by_interrupt(__u32 exit_reason)
{
	if (is_svm(config.vendor))
		return exit_reason == SVM_EXIT_INTR || exit_reason == SVM_EXIT_NMI;
	return exit_reason == VMX_EXIT_INTERRUPT || exit_reason == VMX_EXIT_EXCEPTION_OR_NMI;
}

static __always_inline long read_waits(struct sample *s, struct task_struct *task, struct kvm_vcpu *vcpu)
{
	struct halt_times times;

	if (read_halt_times(&times, vcpu))
		return -1;
	s->halted_ns = times.wait_ns;
	s->polled_ns = times.poll_success_ns + times.poll_fail_ns;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		s->runnable_ns = task->sched_info.run_delay;
	return 0;
}

/* Returns `flags` with those of the vCPU added. `stack` is NULL without call graphs. */
static __always_inline __u8 fill_vcpu(struct sample *s, struct stack *stack, struct task_struct *task,
				      struct vcpu_ref *ref, struct ring *ring, __u8 flags, enum access access)
{
	struct kvm_vcpu *vcpu = vcpu_of(ref);
	struct guest_view *view = view_of(ref);
	__u64 task_at = 0;
	long err = 0;

	s->vcpu = ref->row;
	if (is_protected(ref)) {
		clear_registers(s);
	} else if (is_svm(config.vendor)) {
		err = read_svm(s, ref, access);
		if (s->cpl != CPL_NESTED)
			flags |= SAMPLE_CR3;
	} else if (is_vmx(config.vendor)) {
		err = read_vmx(s, vcpu);
	} else {
		clear_registers(s);
	}
	if (view && !is_protected(ref))
		flags |= read_task(&task_at, s, view, config.vendor);
	if (stack && task_at && s->cpl != CPL_NESTED) {
		stack->guest = read_general(stack->registers, ref, config.vendor, access);
		copy_stacks(stack, s, view, task_at);
	}
	if (!err && !is_protected(ref) && !ended_by_interrupt(s->exit_reason))
		flags &= ~SAMPLE_GUEST;
	if (ref->vcpu & VCPU_WAITS) {
		flags |= SAMPLE_WAITS;
		err |= read_waits(s, task, vcpu);
	}
	if (ref->kicked) {
		flags |= SAMPLE_KICKED;
		/* A sample of the VMM before it sleeps does not end it. */
		if (flags & SAMPLE_GUEST)
			ref->kicked = 0;
	}
	if (err)
		ring->read_errors++;
	return flags;
}

static __always_inline void fill_sample(struct sample *s, struct stack *stack, struct ring *ring,
					struct bpf_perf_event_data *ctx, enum access access)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = task->pid;
	struct vcpu_ref *ref;
	__u8 flags;

	/* The privilege level is 0 or 3. */
	flags = ctx->regs.cs & SAMPLE_HOST_USER;
	if (tid && interrupted_guest(ctx, task))
		flags |= SAMPLE_GUEST;
	s->host_ip = ctx->regs.rip;
	s->time_ns = bpf_ktime_get_ns();
	s->pid = task->tgid;
	s->tid = tid;
	s->vcpu = VCPU_NONE;
	s->stack = STACK_NONE;
	ref = tid && bpf_core_type_exists(struct kvm_vcpu) ? find_vcpu(tid) : NULL;
	if (ref) {
		if (config.trigger == TRIGGER_NMI && !nmi_from_guest(vcpu_of(ref)))
			flags &= ~SAMPLE_GUEST;
		flags = fill_vcpu(s, stack, task, ref, ring, flags, access);
	} else if (flags & SAMPLE_GUEST) {
		s->vcpu = VCPU_UNKNOWN;
		ring->unknown++;
	}
	s->flags = flags;
}

static __always_inline struct stack *clear_stack(__u32 slot)
{
	struct stack *stack = bpf_map_lookup_elem(&stacks, &slot);

	if (stack) {
		stack->kernel_bytes = 0;
		stack->user_bytes = 0;
		stack->guest = 0;
		stack->chunks = 0;
	}
	return stack;
}

/* The host's: where a guest was interrupted it is always KVM's. */
static __always_inline void fill_stack(struct bpf_perf_event_data *ctx, struct stack *stack)
{
	stack->kernel_bytes = bpf_get_stack(ctx, stack->kernel, sizeof(stack->kernel), 0);
	stack->user_bytes = bpf_get_stack(ctx, stack->user, sizeof(stack->user), BPF_F_USER_STACK);
}

static __always_inline int take_sample(struct bpf_perf_event_data *ctx, enum access access)
{
	struct stack *stack = NULL;
	struct ring_space space;
	struct sample *s;

	if (!ring_reserve(&space, rings, config.slot_mask))
		return 0;
	s = bpf_map_lookup_elem(&samples, &space.slot);
	if (!s)
		return 0;
	if (config.call_graph)
		stack = clear_stack(space.slot);
	fill_sample(s, stack, space.ring, ctx, access);
	if (stack && !(s->flags & SAMPLE_GUEST))
		fill_stack(ctx, stack);
	ring_publish(&space);
	return 0;
}

/* User space loads one of the two. */
SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	return take_sample(ctx, TYPED);
}

SEC("perf_event")
int sample_probing(struct bpf_perf_event_data *ctx)
{
	return take_sample(ctx, PROBES);
}

/* The finder: an iterator over open files. The private data of KVM's file kvm-vcpu:N is the vCPU. It runs only while
 * user space reads it: at the start, and after a sample met an unknown vCPU. */

static __always_inline __u8 off_cpu_reason(struct task_struct *task, struct kvm_vcpu *vcpu)
{
	unsigned int state = 0;
	int on_cpu = 0;

	bpf_core_read(&on_cpu, sizeof(on_cpu), &task->on_cpu);
	if (on_cpu)
		return OFFCPU_ON_CPU;
	bpf_core_read(&state, sizeof(state), &task->__state);
	if (state == TASK_RUNNING || state == TASK_WAKING)
		return is_throttled(task) ? OFFCPU_THROTTLED : OFFCPU_RUNNABLE;
	return why_asleep(task, vcpu);
}

static __always_inline void look_at_thread(struct vcpu_found *found, struct task_struct *task, struct kvm_vcpu *vcpu)
{
	struct halt_times times;

	found->off_cpu = off_cpu_reason(task, vcpu);
	bpf_core_read(&found->cpu, sizeof(found->cpu), &task->thread_info.cpu);
	if (!counts_waits() || read_halt_times(&times, vcpu) ||
	    bpf_core_read(&found->runnable_ns, sizeof(found->runnable_ns), &task->sched_info.run_delay))
		return;
	found->halted_ns = times.wait_ns;
	found->polled_ns = times.poll_success_ns + times.poll_fail_ns;
	found->waits = 1;
}

SEC("iter/task_file")
int find_vcpus(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct vcpu_found found = {};
	struct kvm_vcpu *vcpu;
	__u8 protected_state = 0;
	struct task_struct *thread;
	struct vcpu_svm *svm;

	if (!is_new_file(task, file))
		return 0;
	if (!bpf_core_type_exists(struct kvm_vcpu) || !is_vcpu_file(file))
		return 0;
	vcpu = file->private_data;
	svm = (struct vcpu_svm *)vcpu;
	found.time_ns = bpf_ktime_get_ns();
	found.vcpu = (__u64)vcpu;
	found.pid = task->tgid;
	if (bpf_core_read(&found.kvm, sizeof(found.kvm), &vcpu->kvm) ||
	    bpf_core_read(&found.number, sizeof(found.number), &vcpu->vcpu_id) ||
	    !is_own_vm(task, (struct kvm *)found.kvm))
		return 0;
	if (bpf_core_field_exists(vcpu->arch.guest_state_protected) &&
	    !bpf_core_read(&protected_state, sizeof(protected_state), &vcpu->arch.guest_state_protected))
		found.protected_state = protected_state;
	if (!protected_state)
		found.exit_reason = exit_reason(vcpu, config.vendor);
	if (is_svm(config.vendor) && bpf_core_field_exists(svm->vmcb01.ptr))
		bpf_core_read(&found.vmcb, sizeof(found.vmcb), &svm->vmcb01.ptr);
	thread = thread_of(vcpu, task);
	if (thread) {
		bpf_core_read(&found.tid, sizeof(found.tid), &thread->pid);
		look_at_thread(&found, thread, vcpu);
	} else {
		found.off_cpu = OFFCPU_ASLEEP;
	}
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
