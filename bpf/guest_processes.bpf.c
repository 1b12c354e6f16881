// SPDX-License-Identifier: GPL-2.0
/* Runs inside a guest while its host records: notes which page tables and FS bases processes have
 * that may be gone when the guest is asked. Writes to one ring, wakes nobody.
 *
 * An exit tells no page tables: the tracepoint comes after exit_mm() (up to Linux 6.15), when
 * task->mm is gone and active_mm may be a stranger's. The fork or exec before has told them.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "abi/guest_process.h"

#define KERNEL_TYPE __attribute__((preserve_access_index))

char LICENSE[] SEC("license") = "GPL";

struct mm_struct {
	void *pgd;
} KERNEL_TYPE;

struct thread_struct {
	unsigned long fsbase;
} KERNEL_TYPE;

struct task_struct {
	struct mm_struct *mm;
	int pid;
	int tgid;
	char comm[16];
	struct thread_struct thread;
} KERNEL_TYPE;

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

static __always_inline int note(__u32 kind, struct task_struct *task, __u32 parent)
{
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	struct guest_process_event *event;

	/* A kernel thread. */
	if (!mm && kind != GUEST_PROCESS_EXIT)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return 0;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->pgd = mm ? (__u64)BPF_CORE_READ(mm, pgd) : 0;
	/* Of a running thread: as of its last switch, or of the arch_prctl() that set it. */
	event->fs_base = BPF_CORE_READ(task, thread.fsbase);
	event->kind = kind;
	event->pid = BPF_CORE_READ(task, tgid);
	event->tid = BPF_CORE_READ(task, pid);
	event->parent = parent;
	if (BPF_CORE_READ_INTO(&event->name, task, comm))
		event->name[0] = 0;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* (struct task_struct *parent, struct task_struct *child) */
SEC("raw_tp/sched_process_fork")
int note_fork(struct bpf_raw_tracepoint_args *context)
{
	struct task_struct *parent = (void *)context->args[0];

	return note(GUEST_PROCESS_FORK, (void *)context->args[1], BPF_CORE_READ(parent, tgid));
}

/* (struct task_struct *task, pid_t old_pid, struct linux_binprm *) */
SEC("raw_tp/sched_process_exec")
int note_exec(struct bpf_raw_tracepoint_args *context)
{
	return note(GUEST_PROCESS_EXEC, (void *)context->args[0], 0);
}

/* (struct task_struct *task, ...) */
SEC("raw_tp/sched_process_exit")
int note_exit(struct bpf_raw_tracepoint_args *context)
{
	return note(GUEST_PROCESS_EXIT, (void *)context->args[0], 0);
}
