/* SPDX-License-Identifier: GPL-2.0 */
/* Waits for held locks. */
#ifndef VMSCOPE_TRACE_LOCKS_BPF_H
#define VMSCOPE_TRACE_LOCKS_BPF_H

#include "trace_files.bpf.h"
#include "trace_stack.bpf.h"
#include <bpf/bpf_tracing.h>

/* The task that owns a lock; 0: unknown. Readers leave a stale owner in a semaphore. */
static __always_inline __u32 owner_of(void *lock, unsigned int flags)
{
	__u64 owner = 0;
	__u32 tid = 0;

	if (flags & LCB_F_MUTEX)
		bpf_core_read(&owner, sizeof(owner), &((struct mutex *)lock)->owner.counter);
	else if (flags & (LCB_F_READ | LCB_F_WRITE) && !(flags & (LCB_F_SPIN | LCB_F_RT | LCB_F_PERCPU)))
		bpf_core_read(&owner, sizeof(owner), &((struct rw_semaphore *)lock)->owner.counter);
	if (!(flags & LCB_F_MUTEX) && owner & RWSEM_READER_OWNED)
		return 0;
	owner &= ~OWNER_FLAGS;
	if (owner)
		bpf_core_read(&tid, sizeof(tid), &((struct task_struct *)owner)->pid);
	return tid;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	bool is_spin = flags & LCB_F_SPIN && !(flags & LCB_F_MUTEX);
	__s32 stack = -1;
	struct ring_space space;
	__u32 owner;

	if (is_passed_over(task))
		return 0;
	if (!ring_reserve(&space, TRACE_LOCK_BEGIN, 3))
		return 0;
	owner = owner_of(lock, flags);
	/* Walking the stack takes longer than a spinlock is usually held. */
	if (!is_spin)
		stack = stack_of(ctx);
	write_more(&space, 2, 0, (__u32)task->pid);
	write_more(&space, 1, flags, halves(stack, owner));
	write_slot(&space, 0, TRACE_LOCK_BEGIN, space.time, (__u64)lock);
	if (config.files_mask && !is_spin && flags & (LCB_F_READ | LCB_F_WRITE) && !(flags & (LCB_F_RT | LCB_F_PERCPU)))
		emit_lock_file(task, lock);
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (is_passed_over(task))
		return 0;
	return emit_more(TRACE_LOCK_END, (__u64)lock, 0, (__u32)task->pid);
}

/* A contended mutex of glibc has this value. Its owner's thread id is the second word behind it. */
#define GLIBC_WAITED_FOR 2
#define GLIBC_OWNER 8

/* Who may hold a futex; 0: unknown. Any other use of a futex with a mutex's value gives a word that means something else:
 * the reader of the trace asks whether it names a thread of the same process. */
static __always_inline __u32 futex_owner(unsigned long address, __u32 command, __u32 value)
{
	__u32 owner = 0;

	if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2)
		bpf_probe_read_user(&owner, sizeof(owner), (void *)address);
	else if (value == GLIBC_WAITED_FOR)
		bpf_probe_read_user(&owner, sizeof(owner), (void *)(address + GLIBC_OWNER));
	return owner & FUTEX_TID_MASK;
}

/* The task calls futex(address, operation, value). The wait ends with the call. */
static __always_inline int emit_futex_wait(unsigned long address, __u32 operation, __u32 value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 command = operation & FUTEX_CMD_MASK;
	struct ring_space space;

	if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET && command != FUTEX_LOCK_PI && command != FUTEX_LOCK_PI2)
		return 0;
	if (!ring_reserve(&space, TRACE_LOCK_BEGIN, 3))
		return 0;
	write_more(&space, 2, 0, (__u32)task->pid);
	write_more(&space, 1, TRACE_LOCK_FUTEX, halves(-1, futex_owner(address, command, value)));
	write_slot(&space, 0, TRACE_LOCK_BEGIN, space.time, address);
	return 0;
}

#endif
