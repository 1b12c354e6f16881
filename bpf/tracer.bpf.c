// SPDX-License-Identifier: GPL-2.0
/* The trace: events of tasks, CPUs and disks. Every program is loaded and attached separately, so the others work if
 * this kernel refuses one. A program has the name of its tracepoint.
 *
 * A filter never drops starts, names and exits of tasks, interrupts, and disk requests. Traced tasks wait for them, and
 * they are rare compared with switches, system calls and page faults. */
#include "trace_filter.bpf.h"
#include "trace_stack.bpf.h"
#include "trace_disks.bpf.h"
#include "trace_locks.bpf.h"
#include "trace_calls.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

/* Tasks and CPUs */

static __always_inline __u32 switch_kind(bool preempt, unsigned int state, struct task_struct *prev)
{
	if (preempt || state == TASK_RUNNING)
		return TRACE_SWITCH_RUNNABLE;
	if (state & TASK_DEAD)
		return TRACE_SWITCH_DEAD;
	/* A signal came, so the task stays runnable. Up to Linux 6.13 `state` does not say so. */
	if (prev->__state == TASK_RUNNING)
		return TRACE_SWITCH_RUNNABLE;
	if (state & (TASK_STOPPED | TASK_TRACED | TASK_PARKED))
		return TRACE_SWITCH_STOPPED;
	if (state & TASK_UNINTERRUPTIBLE && !(state & TASK_NOLOAD))
		return TRACE_SWITCH_DISK;
	return TRACE_SWITCH_SLEEP;
}

/* The time is taken before the stacks are walked: walking takes a while, which is no CPU time of the task. */
static __always_inline int emit_sleep(void *ctx, struct task_struct *task, __u32 kind, __u64 who, __u64 data,
				      bool with_stacks)
{
	struct ring_space space;
	__u32 user_stack = 0;
	__s32 stack = -1;

	if (!ring_reserve(&space, kind, 2))
		return 0;
	if (with_stacks) {
		stack = stack_of(ctx);
		user_stack = user_stack_of(ctx, task, space.time);
	}
	write_more(&space, 1, data, halves(user_stack, stack));
	write_slot(&space, 0, kind, space.time, who);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	__u32 kind = switch_kind(preempt, state, prev);
	bool is_prev_traced = is_traced(prev);
	__u64 who = halves(prev->pid, next->pid);

	if (config.filter && !is_prev_traced && !is_schedule_traced(next))
		return 0;
	if (kind != TRACE_SWITCH_SLEEP && kind != TRACE_SWITCH_DISK) {
		if (config.filter == FILTER_TREE && kind == TRACE_SWITCH_DEAD)
			unfollow(prev->pid);
		return emit(kind, who);
	}
	if (kind == TRACE_SWITCH_SLEEP)
		return emit_sleep(ctx, prev, TRACE_SWITCH_SLEEP, who, 0, is_prev_traced);
	return emit_sleep(ctx, prev, TRACE_SWITCH_DISK, who, BPF_CORE_READ_BITFIELD(prev, in_iowait), is_prev_traced);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *woken)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (config.filter && !is_traced(woken) && !is_traced(task))
		return 0;
	return emit(TRACE_WAKING, halves(task->pid, woken->pid));
}

static __always_inline int emit_wakeup(struct task_struct *woken)
{
	if (!is_schedule_traced(woken))
		return 0;
	return emit(TRACE_WAKEUP, halves(woken->thread_info.cpu, woken->pid));
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *woken)
{
	return emit_wakeup(woken);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *woken)
{
	return emit_wakeup(woken);
}

/* Whether the task never runs user code: a kernel thread, or a worker of io_uring or vhost within a process. */
static __always_inline bool is_kernel_task(struct task_struct *child, struct task_struct *parent)
{
	__u32 workers = PF_IO_WORKER | PF_USER_WORKER;

	return child->flags & (PF_KTHREAD | (workers & ~parent->flags));
}

/* Not sched_process_fork, which does not report workers of io_uring and vhost. */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *child)
{
	struct task_struct *parent = bpf_get_current_task_btf();

	if (config.filter == FILTER_TREE && is_traced(parent))
		follow(child->pid);
	return emit_more(TRACE_FORK, halves(parent->pid, child->pid), is_kernel_task(child, parent), (__u32)child->tgid);
}

/* A name has 16 bytes. A record holds the first 14. */
static __always_inline int emit_name(__u32 kind, __u32 tid, const __u64 name[2])
{
	return emit_more(kind, tid, name[0], name[0] >> 48 | name[1] << 16);
}

/* A thread that calls exec takes the thread id of its process's leader. That id is no longer followed if the leader
 * has exited. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid)
{
	__u64 name[2] = {};

	if (config.filter == FILTER_TREE && old_pid != task->pid && is_followed(old_pid)) {
		follow(task->pid);
		unfollow(old_pid);
	}
	bpf_core_read(name, sizeof(name), &task->comm);
	return emit_name(TRACE_EXEC, task->pid, name);
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *task, const char *comm)
{
	__u64 name[2] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), comm);
	return emit_name(TRACE_RENAME, task->pid, name);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	return emit(TRACE_EXIT, task->pid);
}

/* Page faults */

SEC("tp_btf/page_fault_user")
int BPF_PROG(page_fault_user, unsigned long address)
{
	if (is_passed_over(bpf_get_current_task_btf()))
		return 0;
	return emit(TRACE_FAULT_USER, address);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(page_fault_kernel, unsigned long address)
{
	if (is_passed_over(bpf_get_current_task_btf()))
		return 0;
	return emit(TRACE_FAULT_KERNEL, address);
}

/* Without registers it is no fault but a request for pages. With RETRY it will be called again. */
SEC("fexit/handle_mm_fault")
int BPF_PROG(handle_mm_fault, void *area, unsigned long address, unsigned int flags, struct pt_regs *regs,
	     unsigned int result)
{
	if (!regs || result & VM_FAULT_RETRY || is_passed_over(bpf_get_current_task_btf()))
		return 0;
	/* The kernel counts major faults the same way. */
	return emit(TRACE_FAULT_END, result & VM_FAULT_MAJOR || flags & FAULT_FLAG_TRIED);
}

/* Interrupts */

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry, int irq)
{
	return emit(TRACE_IRQ_ENTER, (__u32)irq);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit, int irq)
{
	return emit(TRACE_IRQ_EXIT, (__u32)irq);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	return emit(TRACE_SOFTIRQ_ENTER, vector);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	return emit(TRACE_SOFTIRQ_EXIT, vector);
}

#define VECTOR(name, number)                                  \
	SEC("tp_btf/" #name "_entry")                         \
	int name##_entry(void *ctx)                           \
	{                                                     \
		return emit(TRACE_VECTOR_ENTER, number);      \
	}                                                     \
	SEC("tp_btf/" #name "_exit")                          \
	int name##_exit(void *ctx)                            \
	{                                                     \
		return emit(TRACE_VECTOR_EXIT, number);       \
	}

VECTOR(local_timer, TRACE_VECTOR_LOCAL_TIMER)
VECTOR(reschedule, TRACE_VECTOR_RESCHEDULE)
VECTOR(call_function, TRACE_VECTOR_CALL_FUNCTION)
VECTOR(call_function_single, TRACE_VECTOR_CALL_FUNCTION_SINGLE)
VECTOR(irq_work, TRACE_VECTOR_IRQ_WORK)
VECTOR(x86_platform_ipi, TRACE_VECTOR_OTHER)
VECTOR(error_apic, TRACE_VECTOR_OTHER)
VECTOR(spurious_apic, TRACE_VECTOR_OTHER)
VECTOR(thermal_apic, TRACE_VECTOR_OTHER)
VECTOR(threshold_apic, TRACE_VECTOR_OTHER)
VECTOR(deferred_error_apic, TRACE_VECTOR_OTHER)
