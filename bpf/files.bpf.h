/* SPDX-License-Identifier: GPL-2.0 */
/* Iterators over open files (iter/task_file). */
#ifndef VMSCOPE_FILES_BPF_H
#define VMSCOPE_FILES_BPF_H

#include <stdbool.h>
#include "kernel.bpf.h"

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL_TYPE;

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} KERNEL_TYPE;

/* With the final 0: the name is "kvm-vm". Without: it begins with "kvm-vcpu:", unlike "kvm-vcpu-stats:0". */
#define is_vm_file(file) file_name_is(file, "kvm-vm", sizeof("kvm-vm"))
#define is_vcpu_file(file) file_name_is(file, "kvm-vcpu:", sizeof("kvm-vcpu:") - 1)

/* Whether the file's name begins with the `length` bytes of `wanted`. */
static __always_inline bool file_name_is(struct file *file, const char *wanted, int length)
{
	char name[16];

	if (bpf_probe_read_kernel(name, length, file->f_path.dentry->d_name.name))
		return false;
	for (int i = 0; i < length; i++)
		if (name[i] != wanted[i])
			return false;
	return true;
}

/* The threads of a process share its files, so each file is met once per thread. Whether this is the first time.
 *
 * Pass what was loaded from the context, once: to verifiers of Linux 6.1 a second load is another pointer, which may be
 * NULL. */
static __always_inline bool is_new_file(struct task_struct *task, struct file *file)
{
	return task && file && task->pid == task->tgid;
}

#endif
