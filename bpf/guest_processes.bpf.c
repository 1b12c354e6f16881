// SPDX-License-Identifier: GPL-2.0
/* Runs inside a guest while its host records. It logs page tables and FS bases of processes, and the stacks of kernel
 * threads, which may have exited when the host asks for the guest's map. It writes to one ring and wakes no task.
 *
 * An exit has no page tables: up to Linux 6.15 its tracepoint comes after exit_mm(), when task->mm is gone and
 * active_mm may belong to another process. The fork or exec before has recorded them.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi/guest_process.h"

char LICENSE[] SEC("license") = "GPL";

/* Byte offsets of kernel fields. User space sets them: it has already read the kernel's BTF for its own walk over the
 * tasks. With CO-RE the loader would read these 4 MiB a second time, which takes seconds in an emulated guest. */
const volatile __u64 task_mm = 0;
const volatile __u64 task_flags = 0;
const volatile __u64 task_stack = 0;
const volatile __u64 task_start_time = 0;
const volatile __u64 task_pid = 0;
const volatile __u64 task_tgid = 0;
const volatile __u64 task_comm = 0;
const volatile __u64 task_fs_base = 0;
const volatile __u64 mm_pgd = 0;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

/* Reads a field. An event with an unreadable field is dropped and counted. */
#define READ(to, base, offset) bpf_probe_read_kernel(&(to), sizeof(to), (void *)((base) + (offset)))

static __always_inline int emit(__u32 kind, __u64 task, __u32 parent)
{
	struct guest_process_event *event;
	__u32 flags;
	__u64 mm;
	long err;

	err = READ(mm, task, task_mm);
	err |= READ(flags, task, task_flags);
	if (err) {
		count_lost();
		return 0;
	}
	if (flags & PF_KTHREAD) {
		/* Its name comes later, so it is logged at its exit with all there is to say. */
		if (kind != GUEST_PROCESS_EXIT)
			return 0;
		kind = GUEST_PROCESS_KERNEL_EXIT;
	} else if (!mm && kind != GUEST_PROCESS_EXIT) {
		return 0;
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return 0;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->pgd = 0;
	if (kind == GUEST_PROCESS_KERNEL_EXIT) {
		err |= READ(event->pgd, task, task_stack);
		err |= READ(event->fs_base, task, task_start_time);
	} else {
		if (mm)
			err |= READ(event->pgd, mm, mm_pgd);
		/* Of a running thread: the value at its last switch, or at the arch_prctl() that set it. */
		err |= READ(event->fs_base, task, task_fs_base);
	}
	event->kind = kind;
	err |= READ(event->pid, task, task_tgid);
	err |= READ(event->tid, task, task_pid);
	event->parent = parent;
	err |= READ(event->name, task, task_comm);
	if (err) {
		count_lost();
		bpf_ringbuf_discard(event, BPF_RB_NO_WAKEUP);
		return 0;
	}
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* (struct task_struct *parent, struct task_struct *child) */
SEC("raw_tp/sched_process_fork")
int on_fork(struct bpf_raw_tracepoint_args *context)
{
	__u32 parent;

	if (READ(parent, context->args[0], task_tgid)) {
		count_lost();
		return 0;
	}
	return emit(GUEST_PROCESS_FORK, context->args[1], parent);
}

/* (struct task_struct *task, pid_t old_pid, struct linux_binprm *) */
SEC("raw_tp/sched_process_exec")
int on_exec(struct bpf_raw_tracepoint_args *context)
{
	return emit(GUEST_PROCESS_EXEC, context->args[0], 0);
}

/* (struct task_struct *task, ...) */
SEC("raw_tp/sched_process_exit")
int on_exit(struct bpf_raw_tracepoint_args *context)
{
	return emit(GUEST_PROCESS_EXIT, context->args[0], 0);
}
