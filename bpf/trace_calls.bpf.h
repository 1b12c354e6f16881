/* SPDX-License-Identifier: GPL-2.0 */
/* System calls. */
#ifndef VMSCOPE_TRACE_CALLS_BPF_H
#define VMSCOPE_TRACE_CALLS_BPF_H

#include "trace_files.bpf.h"
#include "trace_locks.bpf.h"

/* 32-bit programs have other numbers: they are recorded as 0xffff. */

static __always_inline __u32 call_number(struct task_struct *task, long number)
{
	if (task->thread_info.status & TS_COMPAT)
		return 0xffff;
	return number & 0xffff;
}

/* Returns the call's number if its arguments say more; else -1. */
static __always_inline long emit_syscall_enter(long number)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (is_passed_over(task))
		return -1;
	number = call_number(task, number);
	emit(TRACE_SYSCALL_ENTER, halves(number, task->pid));
	return number == SYSCALL_FUTEX || (config.files_mask && takes_file(number)) ? number : -1;
}

static __always_inline int emit_arguments(long number, __u64 first, __u64 second, __u64 third)
{
	if (number == SYSCALL_FUTEX)
		return emit_futex_wait(first, second, third);
	emit_call_file(bpf_get_current_task_btf(), number == SYSCALL_SENDFILE ? second : first);
	return 0;
}

static __always_inline int emit_syscall_exit(long number, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 failed = -MAX_ERRNO <= result && result < 0;

	if (is_passed_over(task))
		return 0;
	if (number < 0)
		number = SYSCALL_RT_SIGRETURN;
	if (config.files_mask)
		emit_call_result(task, call_number(task, number), result);
	return emit(TRACE_SYSCALL_EXIT, halves(call_number(task, number) | failed << 31, task->pid));
}

SEC("tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *regs, long number)
{
	number = emit_syscall_enter(number);
	return number < 0 ? 0 : emit_arguments(number, regs->di, regs->si, regs->dx);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long result)
{
	return emit_syscall_exit(regs->orig_ax, result);
}

/* In place of the two above, which would run for every task: perf calls this function for tasks with an event, and for
 * all where another tool has attached a program by perf. That program can keep events from perf, so perf_tp_event, which
 * comes after it, may miss some. It has more arguments than programs can have before Linux 6.6. */
SEC("fentry/perf_trace_run_bpf_submit")
int BPF_PROG(perf_trace_run_bpf_submit, void *record, int size, int context, struct trace_event_call *call)
{
	struct trace_event_raw_sys_enter *enter = record;
	struct trace_event_raw_sys_exit *exit = record;
	__u64 type = call->event.type;
	long number;

	if (type == config.enter_type) {
		number = emit_syscall_enter(BPF_CORE_READ(enter, id));
		return number < 0 ? 0 :
				    emit_arguments(number, BPF_CORE_READ(enter, args[0]),
						   BPF_CORE_READ(enter, args[1]), BPF_CORE_READ(enter, args[2]));
	}
	if (type == config.exit_type)
		return emit_syscall_exit(BPF_CORE_READ(exit, id), BPF_CORE_READ(exit, ret));
	return 0;
}

#endif
